"""``python -m benchmarks.agent_framework [--rounds N] [--picture FILE.png]``: print the table."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import platform
import sqlite3
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agent_framework", description="What a longer history costs an agent."
    )
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts (default: 3)")
    parser.add_argument("--picture", type=Path, help="also draw the table into this file, such as agent-framework.png")
    options = parser.parse_args()
    if missing := [name for name in ("agent_framework", "chatkeep_adapters") if importlib.util.find_spec(name) is None]:
        sys.exit(f"not installed: {', '.join(missing)}; pip install ./core './adapters[agent-framework]'")

    from .report import growth, picture, table  # noqa: PLC0415 - what these import may be missing
    from .rows import SIZES, measured  # noqa: PLC0415

    rows = asyncio.run(measured(options.rounds, tell=lambda row: print(growth(row), flush=True)))
    versions = [f"agent-framework-core {importlib.metadata.version('agent-framework-core')}"]
    versions += [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    caption = f"{', '.join(versions)}, median of {options.rounds} rounds"
    print(f"\n{table(rows, SIZES)}\n{caption}")
    if options.picture is not None:
        picture(rows, options.picture, caption=caption)


if __name__ == "__main__":
    main()
