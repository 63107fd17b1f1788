"""What `benchmarks.openai_agents` measures is done, and one that keeps less is found out."""

from __future__ import annotations

import pytest
from benchmarks import openai_agents

from chatkeep import open_store
from chatkeep_adapters.openai_agents import ChatkeepSession


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("LONG", 20), ("BATCH", 10), ("CALLS", 2), ("NEWEST", 5)):
        monkeypatch.setattr(openai_agents, name, number)


async def test_every_row_is_measured() -> None:
    pytest.importorskip("chatkeep_sqlite", reason="what is measured is on SQLite: pip install ./plugins/sqlite")
    rows = await openai_agents.on_sqlite()
    assert [row.name.partition(" ")[0] for row in rows] == ["append", "read", "read"]
    assert all(row.ours > 0 and row.yardstick > 0 and row.name.endswith(", SQLite") for row in rows)


async def test_a_session_that_does_not_keep_all_is_not_measured() -> None:
    async with open_store("memory://", max_messages=10) as store, open_store("memory://") as whole:
        sessions = [ChatkeepSession(each, session_id="s") for each in (store, whole)]
        with pytest.raises(RuntimeError, match=r"^the two sessions on memory do not hold what they were given$"):
            await openai_agents.rows("memory", *sessions)
