"""What `benchmarks.agent_framework` measures and prints is what was done."""

from __future__ import annotations

import runpy
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import agent_framework
import pytest
from agent_framework import HistoryProvider
from benchmarks.agent_framework.providers import REDIS_URL
from benchmarks.agent_framework.report import table
from benchmarks.agent_framework.rows import JOBS, ROWS, RUN, SAVE, Growth, measured, median_growth, one_round

from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider


async def test_every_provider_is_measured_or_the_row_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("chatkeep_sqlite", reason="what is measured is on SQLite: pip install ./plugins/sqlite")
    monkeypatch.delenv(REDIS_URL, raising=False)
    rows = await measured(1, sizes=(2, 4), calls=2)
    assert [(row.job, row.provider) for row in rows] == [(job, name) for job, name, _, _ in ROWS]
    for row in rows:
        if row.provider.startswith("Redis"):
            assert row.missing == f"{REDIS_URL} names no server"
        elif row.provider.startswith("File") and not hasattr(agent_framework, "FileHistoryProvider"):
            assert row.missing.endswith(" has none")
        else:
            assert (row.missing, list(row.seconds)) == ("", [2, 4])
        assert row.missing in table(rows, (2, 4))


@pytest.mark.parametrize("job", JOBS)
async def test_a_provider_that_does_not_store_all_is_not_measured(job: str, tmp_path: Path) -> None:
    def forgetful(_: Path) -> AbstractAsyncContextManager[HistoryProvider]:
        return ChatkeepHistoryProvider("memory://", max_messages=4)

    with pytest.raises(RuntimeError, match=f"^{job}, ChatkeepHistoryProvider: 4 messages stored, not 8$"):
        await one_round(job, forgetful, tmp_path, sizes=(4,), calls=1)


def test_the_table_tells_the_growth_the_bar_and_what_is_missing() -> None:
    rows = [
        Growth(SAVE, "ours", {10: 0.001, 1_000: 0.0012}, 1.3),
        Growth(SAVE, "theirs", {10: 0.0005, 1_000: 0.025}),
        Growth(RUN, "ours", {10: 0.001, 1_000: 0.0014}, 1.3),
        Growth(RUN, "theirs", {}, missing="no server"),
    ]
    assert table(rows, (10, 1_000)).splitlines() == [
        "save a turn of four messages            10      1,000   1,000 : 10  at most",
        "  ours                            1,000 µs   1,200 µs         1.20     1.30",
        "  theirs                            500 µs    25.0 ms        50.00",
        "agent.run with a call of a tool         10      1,000   1,000 : 10  at most",
        "  ours                            1,000 µs   1,400 µs         1.40     1.30  missed",
        "  theirs                         not measured: no server",
    ]


def test_the_documents_table_has_the_rows_that_are_measured() -> None:
    document = (Path(__file__).parents[3] / "docs" / "agent-framework.md").read_text(encoding="utf-8")
    text = document.partition("## What a longer history costs\n")[2].split("```\n")[1]
    found, job = [], ""
    for line in text.splitlines()[:-1]:
        name = line.strip().split("  ")[0]
        if line.startswith("  "):
            found.append((job, name))
        job = job if line.startswith("  ") else name
    assert found == [(job, name) for job, name, _, _ in ROWS]


def test_of_several_rounds_the_one_whose_growth_is_the_median_counts() -> None:
    rounds = [Growth(SAVE, "ours", {10: 1.0, 100: ratio}) for ratio in (3.0, 1.0, 2.0)]
    assert median_growth(rounds).ratio == 2.0
    assert median_growth([*rounds, Growth(SAVE, "ours", {}, missing="gone")]).missing == "gone"


def test_where_the_framework_is_missing_the_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agent_framework", None)
    monkeypatch.setattr(sys, "argv", ["benchmarks.agent_framework"])
    with pytest.raises(SystemExit, match=r"^not installed: agent_framework; pip install ./core './adapters\["):
        runpy.run_module("benchmarks.agent_framework", run_name="__main__")
