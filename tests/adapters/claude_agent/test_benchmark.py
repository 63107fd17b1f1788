"""What `benchmarks.claude_agent` measures is done, and one that keeps less is found out."""

from __future__ import annotations

import pytest
from benchmarks import claude_agent

from chatkeep import open_store
from chatkeep_adapters.claude_agent import ChatkeepSessionStore


@pytest.mark.parametrize("measure", [claude_agent.append_and_load, claude_agent.growth, claude_agent.listing])
async def test_every_row_is_measured(measure: claude_agent.Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (("LONG", 500), ("LISTED", 3), ("CALLS", 2)):
        monkeypatch.setattr(claude_agent, name, small)
    async with open_store("memory://") as store:
        rows = await measure("memory", ChatkeepSessionStore(store))
    assert rows
    assert all(row.ours > 0 and row.yardstick > 0 and row.name.endswith(", memory") for row in rows)


async def test_a_store_that_does_not_keep_all_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (("LONG", 500), ("CALLS", 2)):
        monkeypatch.setattr(claude_agent, name, small)
    async with open_store("memory://", max_messages=10) as store:
        with pytest.raises(RuntimeError, match=r"^ChatkeepSessionStore on memory has not stored what it was given$"):
            await claude_agent.append_and_load("memory", ChatkeepSessionStore(store))
