"""Session stores on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.adapters.claude_agent.transcripts import Opener

from chatkeep import open_store
from chatkeep_adapters.claude_agent import ChatkeepSessionStore


@pytest_asyncio.fixture
async def opened(url: str) -> AsyncIterator[Opener]:
    """``opened(**options)`` is a session store on one more store of the same database, closed after the test."""
    stores: list[Any] = []

    def open_one_more(**options: Any) -> ChatkeepSessionStore:
        stores.append(open_store(url, **options))
        return ChatkeepSessionStore(stores[-1])

    yield open_one_more
    for store in stores:
        await store.close()


@pytest.fixture
def sessions(opened: Opener) -> ChatkeepSessionStore:
    return opened()
