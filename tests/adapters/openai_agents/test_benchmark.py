"""What `benchmarks.openai_agents` measures is done, and a session that keeps less is found out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import SQLiteSession
from benchmarks import openai_agents

from chatkeep import ScopedStore, open_store


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("LONG", 40), ("CALLS", 2), ("READS", 2)):
        monkeypatch.setattr(openai_agents, name, number)


def in_memory(**options: Any) -> openai_agents.Place:
    @asynccontextmanager
    async def place(name: str) -> AsyncIterator[tuple[ScopedStore[Any], Any]]:
        theirs = SQLiteSession(name)
        async with open_store("memory://", **options) as store:
            yield store, theirs
        theirs.close()

    return place


async def test_every_row_is_measured() -> None:
    for where, place in (("SQLite", openai_agents.on_sqlite), ("memory", in_memory())):
        rows = await openai_agents.measured(where, place)
        wanted = [f"append a turn at 40 items, {where}", f"newest 20 of 40 items, {where}", f"all 40 items, {where}"]
        assert [row.name for row in rows] == wanted
        assert all(row.ours > 0 and row.yardstick > 0 for row in rows)


async def test_a_session_that_does_not_keep_all_is_not_measured() -> None:
    with pytest.raises(RuntimeError, match=r"^ChatkeepSession on memory has kept 10 items of 40$"):
        await openai_agents.measured("memory", in_memory(max_messages=10))
