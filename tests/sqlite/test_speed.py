"""A gross loss of speed is noticed: the rows of `benchmarks`, each held to its bar with half as much again to spare."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.rows import Measurement, measurements

MARGIN = 1.5
ATTEMPTS = 3
"""The best of so many rounds counts: a busy machine must not fail a test."""
WORSE = {"read all 10,000, beside raw aiosqlite": 3.5}
"""Rows whose bar is missed by more than the margin, and what they are held to instead."""


@pytest.mark.speed
@pytest.mark.parametrize("measurement", [pytest.param(each, id=name) for name, each in measurements().items()])
async def test_the_ratio_to_the_yardstick_stays_below_its_bar(measurement: Measurement, tmp_path: Path) -> None:
    best = float("inf")
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        row = await measurement(folder)
        assert row.bar is not None
        most = WORSE.get(row.name, row.bar * MARGIN)
        best = min(best, row.ratio)
        if best <= most:
            return
    pytest.fail(f"{row.name}: {best:.2f} in the best of {ATTEMPTS} rounds, and {most:.2f} is the most")
