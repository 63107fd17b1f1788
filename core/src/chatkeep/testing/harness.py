"""What the contract's tests stand on: stores on the database under test, time that can pass, data to store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime, time
from decimal import Decimal
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio

from chatkeep import ChatMessage, Store, open_store
from chatkeep.backend import in_one_process
from chatkeep.records import Key, Write

from .clauses import Clauses

Opener = Callable[..., Store[Any]]


class Harness(Clauses):
    """Fixtures and helpers. A backend's test class overrides `url`, and where it must, the rest."""

    tick: float = 1.0
    """The shortest time, in seconds, that the backend's clock can tell apart for certain; expiry tests count in it."""

    @pytest.fixture
    def url(self) -> str:
        """The URL of a database that is empty when the test begins."""
        raise TypeError("override the fixture `url` with the connection URL of an empty database")

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        """Keyword options for every store that a test opens, such as ``client``."""
        return {}

    @pytest_asyncio.fixture
    async def opened(self, url: str, options: dict[str, Any]) -> AsyncIterator[Opener]:
        """``opened(**options)`` is one more store on the same database, closed at the end of the test."""
        stores: list[Store[Any]] = []

        def open_one_more(**more: Any) -> Store[Any]:
            store = open_store(url, **{**options, **more})
            stores.append(store)
            return store

        yield open_one_more
        for store in stores:
            await store.close()

    @pytest_asyncio.fixture
    async def store(self, opened: Opener) -> Store[ChatMessage]:
        """A store with no options of its own."""
        return opened()

    @pytest.fixture
    def reachable(self, opened: Opener, options: dict[str, Any]) -> dict[str, Any]:
        """The options with which another process opens the database. Where none can, the test is skipped."""
        if in_one_process(opened().backend):
            pytest.skip("what the backend keeps is in its own process: no other can have it")
        try:
            json.dumps(options)
        except TypeError:
            pytest.skip("the options of the test class hold what another process cannot have, such as a client")
        return options

    def time(self, store: Store[Any]) -> float:
        """Seconds by the backend's clock, as far as `pass_time` and a slow machine let them pass: to compare."""
        clock = getattr(store.backend, "clock", None)
        return monotonic() if clock is None else float(clock())

    async def pass_time(self, store: Store[Any], seconds: float) -> None:
        """Let time pass by the backend's clock. A backend with a settable `clock` need not wait for it."""
        clock = getattr(store.backend, "clock", None)
        if clock is None:
            await asyncio.sleep(seconds)
        else:
            store.backend.clock = lambda: clock() + seconds  # type: ignore[attr-defined]


def turn(number: int, *, tools: int = 0) -> list[ChatMessage]:
    """A question, `tools` calls with their results, and an answer."""
    messages = [ChatMessage.user(f"question {number}")]
    for call in range(tools):
        name = f"call-{number}-{call}"
        messages.append(ChatMessage.assistant(tool_calls=[{"id": name, "name": "look_up", "arguments": "{}"}]))
        messages.append(ChatMessage.tool(f"result {number}.{call}", tool_call_id=name, name="look_up"))
    return [*messages, ChatMessage.assistant(f"answer {number}")]


def turn_of_parts(number: int) -> list[ChatMessage]:
    """A question, a call, its result and an answer, as some APIs want it: the result is in the role of a user."""
    call = {"type": "tool_use", "id": f"call-{number}", "name": "look_up", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"call-{number}", "content": f"result {number}"}
    question, answer = turn(number)
    return [question, ChatMessage.assistant([call]), ChatMessage.user([result]), answer]


def texts(messages: list[ChatMessage]) -> list[str]:
    """What the messages say."""
    return [message.text for message in messages]


def same(left: object, right: object) -> bool:
    """Whether two values are the same JSON, types and signs included."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def identical(left: Any, right: Any) -> bool:
    """Whether two values are the same down to their types, the sign of a zero and what JSON has no word for."""
    pairs = [(left, right)]
    for one, other in pairs:  # which grows meanwhile: the values may be deeper than the stack
        if type(one) is not type(other):
            return False
        if isinstance(one, dict):
            if one.keys() != other.keys():
                return False
            pairs += [(value, other[key]) for key, value in one.items()]
        elif isinstance(one, list | tuple):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif repr(one) != repr(other) if isinstance(one, float | datetime | time | Decimal) else one != other:
            return False
    return True


async def commit_raw(store: Store[Any], key: Key, write: Write) -> None:
    """Commit a write past the codec, the serializer and every check of the store's."""
    await store.open()
    await store.backend.commit(key, write)
