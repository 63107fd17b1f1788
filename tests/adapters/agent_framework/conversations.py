"""What the tests of the adapter have in common: a tool, questions, and what has been said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from agent_framework import AgentSession, Content, Message

from chatkeep import OutcomeUnknownError
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

Opener = Callable[..., Any]


def weather(city: str) -> str:
    """How the weather is."""
    if city == "Atlantis":
        raise LookupError("there is no such city")
    return f"sunny in {city}"


def calls(*cities: str) -> list[Content]:
    return [Content.from_function_call(f"call-{city}", "weather", arguments=f'{{"city": "{city}"}}') for city in cities]


def said(messages: Sequence[Message]) -> list[tuple[str, Any]]:
    """Each message's role, and its text or else the types of its contents."""
    return [(each.role, each.text or [content.type for content in each.contents]) for each in messages]


async def ask(agent: Any, question: Any, session: AgentSession, *, stream: bool = False) -> str:
    if not stream:
        return str((await agent.run(question, session=session)).text)
    streaming = agent.run(question, session=session, stream=True)
    words = [update.text async for update in streaming]
    assert (await streaming.get_final_response()).text == "".join(words)
    return "".join(words)


def lose_answer(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next write be stored, and its answer be lost."""
    commit = store.backend.commit

    async def lost(*args: Any) -> Any:
        monkeypatch.setattr(store.backend, "commit", commit)
        await commit(*args)
        raise OutcomeUnknownError("the answer is lost")

    monkeypatch.setattr(store.backend, "commit", lost)


class Persistent(ChatkeepHistoryProvider):
    """Saves a run once more where nobody knows what has become of it."""

    async def after_run(self, **run: Any) -> None:
        try:
            await super().after_run(**run)
        except OutcomeUnknownError:
            await super().after_run(**run)
