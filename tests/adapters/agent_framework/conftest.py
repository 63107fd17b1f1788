"""A chat client that says what it was told to, for real agents of the framework: no network, and no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio
from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
)
from tests.adapters.agent_framework.conversations import Opener

from chatkeep import open_store

Step = str | Exception | Message | Sequence[Content] | Callable[[Sequence[Message]], Any]


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Answers with one step of its script after the other; `asked` is what the model was shown each time.

    A step is a text, a message, contents such as calls of tools, an exception to raise, or a function of what the model
    is shown that returns one of these. After the script it says "ok". A text is streamed word by word. `offered` are
    the names of the tools that it was given each time.
    """

    def __init__(self, *script: Step) -> None:
        super().__init__()
        self.script = list(script)
        self.asked: list[list[Message]] = []
        self.offered: list[list[str]] = []

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, options: Any, **kwargs: Any) -> Any:
        self.asked.append(list(messages))
        self.offered.append([tool.name for tool in options.get("tools") or ()])
        step: Any = self.script.pop(0) if self.script else "ok"
        if callable(step):
            step = step(messages)
        return self._build_response_stream(self._streamed(step)) if stream else self._answered(step)

    async def _answered(self, step: Any) -> ChatResponse:
        await asyncio.sleep(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Message):
            return ChatResponse(messages=[step])
        return ChatResponse(messages=[Message("assistant", [step] if isinstance(step, str) else list(step))])

    async def _streamed(self, step: Any) -> AsyncIterator[ChatResponseUpdate]:
        if isinstance(step, str):
            for place, word in enumerate(step.split()):
                await asyncio.sleep(0)
                text = f" {word}" if place else word
                yield ChatResponseUpdate(contents=[Content.from_text(text)], role="assistant")
            return
        if isinstance(step, Exception):
            yield ChatResponseUpdate(contents=[Content.from_text("half an")], role="assistant")
            raise step
        contents = step.contents if isinstance(step, Message) else list(step)
        yield ChatResponseUpdate(contents=contents, role="assistant")


@pytest.fixture
def scripted() -> type[ScriptedClient]:
    """``scripted(*steps)`` is a chat client that answers with these."""
    return ScriptedClient


@pytest_asyncio.fixture
async def opened(url: str) -> AsyncIterator[Opener]:
    """``opened(**options)`` is one more store on the same database, closed at the end of the test."""
    stores: list[Any] = []

    def open_one_more(**options: Any) -> Any:
        stores.append(open_store(url, **options))
        return stores[-1]

    yield open_one_more
    for store in stores:
        await store.close()


@pytest.fixture
def store(opened: Opener) -> Any:
    return opened()
