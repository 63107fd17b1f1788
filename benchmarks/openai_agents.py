"""``python -m benchmarks.openai_agents [--rounds N] [--picture FILE]``: sessions of the OpenAI Agents SDK.

Beside each of ours stands the SDK's own session on the same database: its SQLiteSession on a file and, where the
environment names a server, its RedisSession and its MongoDBSession. A turn is a question and its answer, in one append.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from agents import SQLiteSession

from chatkeep import open_store
from chatkeep_adapters.openai_agents import ChatkeepSession

from .measure import Row, in_turns, median_row
from .report import picture, table
from .turns import turns

SERVERS = {"Redis": "CHATKEEP_BENCH_REDIS_URL", "MongoDB": "CHATKEEP_BENCH_MONGODB_URL"}
"""The environment variables that name servers; what is stored there is taken out again."""
LONG, BATCH, CALLS, NEWEST = 1000, 2, 200, 20


def items() -> Iterator[Any]:
    for number, (question, answer) in enumerate(turns()):
        part = {"type": "output_text", "text": answer, "annotations": []}
        yield {"role": "user", "content": question}
        yield {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }


async def rows(name: str, ours: Any, theirs: Any) -> list[Row]:
    """Append, newest, all: on two sessions that hold the same."""
    for session in (ours, theirs):
        source = items()
        for _ in range(LONG // BATCH):
            await session.add_items(list(islice(source, BATCH)))
    mine, others = items(), items()
    newest = await in_turns(lambda: ours.get_items(NEWEST), lambda: theirs.get_items(NEWEST), calls=CALLS)
    found = [await session.get_items() for session in (ours, theirs)]
    if found[0] != found[1] or len(found[0]) != LONG:
        raise RuntimeError(f"the two sessions on {name} do not hold what they were given")
    everything = await in_turns(ours.get_items, theirs.get_items, calls=15, warm_up=2)
    appended = await in_turns(
        lambda: ours.add_items(list(islice(mine, 2))), lambda: theirs.add_items(list(islice(others, 2))), calls=CALLS
    )
    return [
        Row(f"append a turn to {LONG:,} items, {name}", *appended),
        Row(f"read the newest {NEWEST} of {LONG:,}, {name}", *newest),
        Row(f"read all {LONG:,}, {name}", *everything),
    ]


def their_session(name: str, url: str, session_id: str) -> Any:
    """The SDK's session on that server; it takes the driver of the SDK's own extra."""
    if name == "Redis":
        from agents.extensions.memory import RedisSession  # noqa: PLC0415 - only where there is a server

        return RedisSession.from_url(session_id, url=url)
    from agents.extensions.memory import MongoDBSession  # noqa: PLC0415

    return MongoDBSession.from_uri(session_id, uri=url, database=f"bench_{session_id[:8]}")


async def on_sqlite() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        theirs = SQLiteSession("s", Path(folder) / "theirs.db")
        async with open_store(f"sqlite:///{folder}/ours.db") as store:
            try:
                return await rows("SQLite", ChatkeepSession(store, session_id="s"), theirs)
            finally:
                theirs.close()


async def on_server(name: str, url: str) -> list[Row]:
    async with AsyncExitStack() as stack:
        session_id = uuid.uuid4().hex
        theirs = their_session(name, url, session_id)
        stack.push_async_callback(theirs.close)
        stack.push_async_callback(theirs.clear_session)
        store = await stack.enter_async_context(open_store(url))
        scope = store.scoped(tenant=f"bench-{session_id}")
        stack.push_async_callback(scope.erase)
        return await rows(name, ChatkeepSession(scope, session_id="s"), theirs)


async def one_round() -> list[Row]:
    found = await on_sqlite()
    for name, variable in SERVERS.items():
        if url := os.environ.get(variable):
            found += await on_server(name, url)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.openai_agents")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts (default: 3)")
    parser.add_argument("--picture", type=Path, help="also draw the table into this file")
    options = parser.parse_args()
    rounds = [asyncio.run(one_round()) for _ in range(options.rounds)]
    measured = [median_row(list(each)) for each in zip(*rounds, strict=True)]
    caption = f"Python {platform.python_version()}, beside the SDK's own session; median of {options.rounds} rounds"
    print(f"{table(measured)}\n{caption}")
    if options.picture is not None:
        picture(measured, options.picture, caption=caption)


if __name__ == "__main__":
    main()
