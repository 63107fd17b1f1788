"""The SDK's compaction session around `ChatkeepSession`: one step, and what is added meanwhile stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, Runner
from agents.memory import OpenAIResponsesCompactionSession
from tests.adapters.openai_agents.models import Opener, ScriptedModel, few_backends, kinds, user

from chatkeep import ConflictError, CorruptRecordError, OpenAIChatCodec
from chatkeep_adapters.openai_agents import ChatkeepSession

pytestmark = pytest.mark.skipif(
    tuple(map(int, version("openai-agents").split(".")[:2])) < (0, 24),
    reason="this SDK clears and adds: it knows no atomic replacement",
)
SUMMARY: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "all of it"}


class Service:
    """OpenAI's service, as far as compaction needs it; `meanwhile` is awaited while it works."""

    def __init__(self, *output: Any, meanwhile: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.output, self.meanwhile, self.asked = list(output), meanwhile, list[Any]()
        self.responses = self

    async def compact(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if self.meanwhile is not None:
            await self.meanwhile()
        return SimpleNamespace(output=self.output, usage=None)


def compacting(session: ChatkeepSession, service: Any, *, when: bool = True) -> OpenAIResponsesCompactionSession:
    return OpenAIResponsesCompactionSession(
        session_id=session.session_id,
        underlying_session=session,
        client=service,
        compaction_mode="input",
        should_trigger_compaction=lambda _: when,
    )


async def test_what_another_adds_while_a_compaction_is_made_stays(opened: Opener) -> None:
    session, other = opened(), opened()
    await session.add_items([user(str(number)) for number in range(5)])
    service = Service(user("4"), SUMMARY, meanwhile=lambda: other.add_items([user("meanwhile")]))
    await compacting(session, service).run_compaction({"force": True})
    assert len(service.asked[0]["input"]) == 5
    assert await other.get_items() == [user("4"), SUMMARY, user("meanwhile")]


async def test_a_run_compacts_what_the_model_was_shown_and_the_next_one_goes_on(opened: Opener) -> None:
    session, other = opened(), opened()
    await session.add_items([user("1"), user("2")])
    service = Service(SUMMARY, meanwhile=lambda: other.add_items([user("meanwhile")]))
    model = ScriptedModel()
    await Runner.run(Agent(name="bags", model=model), "3", session=compacting(session, service))
    assert kinds(service.asked[0]["input"]) == ["user", "user", "user", "assistant"]
    assert await other.get_items() == [SUMMARY, user("meanwhile")]
    await Runner.run(Agent(name="bags", model=model), "4", session=compacting(session, service, when=False))
    assert kinds(model.asked[-1]) == ["compaction", "user", "user"]


@few_backends
async def test_of_a_history_that_the_model_was_shown_the_end_of_the_rest_stays(opened: Opener) -> None:
    session = opened(session_settings={"limit": 2})
    older = [user(str(number)) for number in range(4)]
    await session.add_items(older)
    service = Service(SUMMARY)
    await Runner.run(Agent(name="bags", model=ScriptedModel()), "5", session=compacting(session, service))
    assert kinds(service.asked[0]["input"]) == ["user", "user", "user", "assistant"]
    assert await opened().get_items() == [*older[:2], SUMMARY]


@few_backends
async def test_a_reader_sees_what_was_or_what_is_and_a_run_adds_meanwhile(opened: Opener) -> None:
    session, other, reader = opened(), opened(), opened()
    await session.add_items([user("old")] * 5)
    seen, done = list[Any](), asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            seen.append([item.get("content") for item in await reader.get_items()])
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    service = Service(SUMMARY, meanwhile=lambda: Runner.run(Agent(name="b", model=ScriptedModel()), "x", session=other))
    await compacting(session, service).run_compaction({"force": True})
    done.set()
    await watching
    assert all(each.count("old") in {0, 5} and each for each in seen)
    assert kinds(await reader.get_items()) == ["compaction", "user", "assistant"]


async def test_of_two_compactions_of_one_history_one_wins_and_nothing_is_lost(opened: Opener) -> None:
    session, other = opened(), opened()
    await session.add_items([user("old")] * 5)
    inner = compacting(other, Service(SUMMARY | {"id": "cmp_2"}))
    outer = compacting(session, Service(SUMMARY, meanwhile=lambda: inner.run_compaction({"force": True})))
    with pytest.raises(ConflictError):
        await outer.run_compaction({"force": True})
    assert await session.get_items() == [SUMMARY | {"id": "cmp_2"}]


async def test_a_compaction_replaces_what_it_has_read_and_not_what_another_has(session: ChatkeepSession) -> None:
    await session.add_items([user("old")] * 5)

    async def read_by_another() -> None:
        await session.add_items([user("in no summary")])
        await asyncio.create_task(compacting(session, Service(), when=False).run_compaction({}))

    await compacting(session, Service(SUMMARY, meanwhile=read_by_another)).run_compaction({"force": True})
    assert await session.get_items() == [SUMMARY, user("in no summary")]


@few_backends
async def test_a_service_that_fails_leaves_the_history_as_it_was(session: ChatkeepSession) -> None:
    await session.add_items([user("old")] * 3)

    async def fails() -> None:
        raise OSError("no service")

    with pytest.raises(OSError, match="no service"):
        await compacting(session, Service(SUMMARY, meanwhile=fails)).run_compaction({"force": True})
    assert await session.get_items() == [user("old")] * 3


@few_backends
async def test_what_cannot_be_read_is_not_compacted_away(opened: Opener) -> None:
    session = opened(on_corrupt="skip")
    await session.add_items([user("one"), user("two")])
    damaged = session.view.session("bags", codec=OpenAIChatCodec())
    await damaged.append([{"role": "user", "content": "of another kind"}])
    with pytest.raises(CorruptRecordError, match=r"session\(\)\.repair\(\)"):
        await compacting(session, Service(SUMMARY)).run_compaction({"force": True})
    service = Service(SUMMARY)
    await Runner.run(Agent(name="bags", model=ScriptedModel()), "3", session=compacting(session, service))
    assert service.asked == []
    assert len((await session.session().records()).records) == 5


@few_backends
async def test_a_session_that_encrypts_items_compacts_them_too(opened: Opener) -> None:
    encrypting = pytest.importorskip("agents.extensions.memory.encrypt_session", reason="pip install cryptography")
    session = opened()
    service = Service(SUMMARY)
    secret = encrypting.EncryptedSession("bags", compacting(session, service), encryption_key="a key of the caller's")
    await secret.add_items([user("1")])
    await Runner.run(Agent(name="bags", model=ScriptedModel()), "2", session=secret)
    assert kinds(service.asked[0]["input"]) == ["user", "user", "assistant"]
    assert await secret.get_items() == [SUMMARY]
    assert all(set(item) == {"__enc__", "v", "kid", "payload"} for item in await session.get_items())
