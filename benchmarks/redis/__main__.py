"""``python -m benchmarks.redis [--rounds N] [--picture FILE.png]``: print the table."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
from importlib.metadata import version
from pathlib import Path

import redis

from benchmarks.measure import Row, median_row
from benchmarks.report import picture, table

from .peers import MissingError
from .rows import Measurement, further_measurements, measurements


async def measured(measurement: Measurement, url: str, rounds: int) -> Row:
    """The median of so many rounds."""
    return median_row([await measurement(url) for _ in range(rounds)])


async def all_rows(url: str, rounds: int) -> list[Row]:
    rows = []
    for name, measurement in (measurements() | further_measurements()).items():
        try:
            row = await measured(measurement, url, rounds)
        except MissingError as reason:
            print(f"{name}: {reason}", flush=True)
            continue
        print(f"{row.ratio:6.2f}  {row.name}", flush=True)
        rows.append(row)
    return rows


def server() -> str:
    """The URL of the server that is named in the environment, or of one that is started here."""
    if url := os.environ.get("CHATKEEP_BENCH_REDIS_URL"):
        return url
    from tests.redis import servers  # noqa: PLC0415 - of no use where a server is named

    return servers.shared().url()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redis", description="chatkeep on Redis.")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many rounds counts (default: 5)")
    parser.add_argument("--picture", type=Path, help="also draw the table into this file, such as redis.png")
    options = parser.parse_args()
    url = server()
    with redis.Redis.from_url(url) as client:
        release = client.info("server")["redis_version"]
    rows = asyncio.run(all_rows(url, options.rounds))
    versions = f"Python {platform.python_version()}, Redis {release}, redis-py {version('redis')}"
    caption = f"{versions}, median of {options.rounds} rounds"
    print(f"\n{table(rows)}\n{caption}")
    if options.picture is not None:
        picture(rows, options.picture, caption=caption)


if __name__ == "__main__":
    main()
