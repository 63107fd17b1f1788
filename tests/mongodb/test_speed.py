"""A gross loss of speed is noticed: the rows of `benchmarks.mongodb`, each held to its bar and half as much again."""

from __future__ import annotations

import pytest
from benchmarks.mongodb import MEASUREMENTS
from tests.mongodb import server

MARGIN = 1.5
ATTEMPTS = 3
"""The best of so many rounds counts: a busy machine must not fail a test."""
WORSE = {"read all 10,000, beside one document a message": 2.0}
"""Rows whose bar is missed, and what they are held to instead: most of that time goes into making the messages."""


@pytest.mark.speed
@pytest.mark.once
@pytest.mark.skipif(server.program() is None, reason=server.MISSING)
@pytest.mark.parametrize("name", MEASUREMENTS)
async def test_the_ratio_to_the_yardstick_stays_below_its_bar(name: str) -> None:
    url, best = f"mongodb://{server.shared('replica set')}", dict[str, float]()
    for _ in range(ATTEMPTS):
        rows = await MEASUREMENTS[name](url)
        best.update({row.name: min(best.get(row.name, row.ratio), row.ratio) for row in rows})
        most = {row.name: WORSE.get(row.name, (row.bar or 0.0) * MARGIN) for row in rows}
        if all(best[row] <= most[row] for row in best):
            return
    pytest.fail(f"the best of {ATTEMPTS} rounds: {best}; the most: {most}")
