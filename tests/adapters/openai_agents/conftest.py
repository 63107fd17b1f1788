"""Sessions on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from agents import set_tracing_disabled
from tests.adapters.openai_agents.models import Opener

from chatkeep import open_store
from chatkeep_adapters.openai_agents import ChatkeepSession


@pytest.fixture(autouse=True)
def no_tracing() -> Iterator[None]:
    """The SDK would send what its runs do to a service."""
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


@pytest_asyncio.fixture
async def opened(url: str) -> AsyncIterator[Opener]:
    """``opened(**arguments)`` is the session on one more store of the same database, closed after the test."""
    stores: list[Any] = []

    def open_one_more(*, on_corrupt: Any = "raise", session_id: str = "bags", **arguments: Any) -> ChatkeepSession:
        stores.append(open_store(url, on_corrupt=on_corrupt))
        return ChatkeepSession(stores[-1], session_id=session_id, **arguments)

    yield open_one_more
    for store in stores:
        await store.close()


@pytest.fixture
def session(opened: Opener) -> ChatkeepSession:
    return opened()
