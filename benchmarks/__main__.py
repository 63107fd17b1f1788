"""``python -m benchmarks [--rounds N] [--picture FILE.png]``: print the table."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sqlite3
import tempfile
from pathlib import Path

from .measure import Row, median_row
from .report import picture, table
from .rows import Measurement, further_measurements, measurements


async def measured(measurement: Measurement, rounds: int) -> Row:
    """The median of so many rounds, each in a folder of its own."""
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            found.append(await measurement(Path(folder)))
    return median_row(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="chatkeep beside the raw driver.")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many rounds counts (default: 5)")
    parser.add_argument("--picture", type=Path, help="also draw the table into this file, such as speed.png")
    options = parser.parse_args()
    rows = asyncio.run(all_rows(options.rounds))
    caption = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, median of {options.rounds} rounds"
    print(f"\n{table(rows)}\n{caption}")
    if options.picture is not None:
        picture(rows, options.picture, caption=caption)


async def all_rows(rounds: int) -> list[Row]:
    rows = []
    for measurement in (measurements() | further_measurements()).values():
        row = await measured(measurement, rounds)
        print(f"{row.ratio:6.2f}  {row.name}", flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
