"""``python -m benchmarks.openai_agents [--rounds N] [--picture FILE]``: sessions of the OpenAI Agents SDK in chatkeep.

The other side is the SDK's own session on the same kind of database: `SQLiteSession` in a file, and `RedisSession` and
`MongoDBSession` on one server, where there is one. Each keeps the same turns in a session of its own. The SDK's
`SQLiteSession` runs with SQLite's default ``synchronous=FULL`` in WAL mode, as ours does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from agents import SQLiteSession

from chatkeep import ScopedStore, open_store
from chatkeep_adapters.openai_agents import ChatkeepSession

from .measure import Row, in_turns, median_row
from .report import picture, table
from .turns import turns

REDIS_URL, MONGODB_URL = "CHATKEEP_BENCH_REDIS_URL", "CHATKEEP_BENCH_MONGODB_URL"
"""The environment variables that name servers. What is stored there is taken out again."""
LONG, NEWEST, CALLS, READS = 1_000, 20, 200, 15
Place = Callable[[str], AbstractAsyncContextManager[tuple[ScopedStore[Any], Any]]]
"""Of a session's name: a store of ours, and a session of the SDK's own."""


def batches() -> Iterator[list[Any]]:
    """A turn's items as the SDK writes them: a question, and the answer of a model."""
    for number, (question, answer) in enumerate(turns()):
        part = {"type": "output_text", "text": answer, "annotations": [], "logprobs": []}
        about = {"id": f"msg_{number:048}", "type": "message", "role": "assistant", "status": "completed"}
        yield [{"role": "user", "content": question}, {**about, "content": [part]}]


@asynccontextmanager
async def on_sqlite(name: str) -> AsyncIterator[tuple[ScopedStore[Any], Any]]:
    with tempfile.TemporaryDirectory() as folder:
        theirs = SQLiteSession(name, Path(folder) / "sdk.db")
        async with open_store(f"sqlite:///{folder}/chat.db") as store:
            yield store, theirs
        theirs.close()


def on_redis(url: str) -> Place:
    @asynccontextmanager
    async def place(name: str) -> AsyncIterator[tuple[ScopedStore[Any], Any]]:
        from agents.extensions.memory import RedisSession  # noqa: PLC0415 - takes the SDK's extra

        theirs = RedisSession.from_url(name, url=url)
        async with open_store(url) as store:
            try:
                yield store.scoped(tenant=name), theirs
            finally:
                await store.scoped(tenant=name).erase()
                await theirs.clear_session()
                await theirs.close()

    return place


def on_mongodb(url: str) -> Place:
    @asynccontextmanager
    async def place(name: str) -> AsyncIterator[tuple[ScopedStore[Any], Any]]:
        from agents.extensions.memory import MongoDBSession  # noqa: PLC0415 - takes the SDK's extra
        from pymongo import AsyncMongoClient  # noqa: PLC0415

        async with AsyncMongoClient[dict[str, Any]](url) as client:
            theirs = MongoDBSession(name, client=client, database=name)
            async with open_store(f"mongodb:///{name}", client=client) as store:
                try:
                    yield store.scoped(tenant=name), theirs
                finally:
                    await client.drop_database(name)

    return place


async def measured(where: str, place: Place) -> list[Row]:
    """Append a turn, the newest items, all of them: at the length that the sessions have by then."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    async with place(name) as (store, theirs):
        ours = ChatkeepSession(store, session_id=name)
        sides = (ours, theirs)
        for batch in islice(batches(), LONG // 2):  # turn by turn: the SDK's MongoDBSession keeps a batch in a document
            for side in sides:
                await side.add_items(batch)
        for side in sides:
            kept = await side.get_items()
            if len(kept) != LONG:
                raise RuntimeError(f"{type(side).__name__} on {where} has kept {len(kept)} items of {LONG}")
        rows = []
        for what, limit, calls in ((f"newest {NEWEST} of", NEWEST, CALLS), ("all", None, READS)):
            read = await in_turns(
                lambda limit=limit: ours.get_items(limit),  # type: ignore[misc]
                lambda limit=limit: theirs.get_items(limit),  # type: ignore[misc]
                calls=calls,
                warm_up=min(5, calls),
            )
            rows.append(Row(f"{what} {LONG:,} items, {where}", *read))
        mine, others = batches(), batches()
        appended = await in_turns(
            lambda: ours.add_items(next(mine)), lambda: theirs.add_items(next(others)), calls=CALLS
        )
        return [Row(f"append a turn at {LONG:,} items, {where}", *appended), *rows]


def places() -> dict[str, Place]:
    """Where there is something to measure: in a file, and on the servers that are named or that tests can start."""
    found: dict[str, Place] = {"SQLite": on_sqlite}
    if url := os.environ.get(REDIS_URL) or local_redis():
        found["Redis"] = on_redis(url)
    if url := os.environ.get(MONGODB_URL) or local_mongodb():
        found["MongoDB"] = on_mongodb(url)
    return found


def local_redis() -> str | None:
    from tests.redis import servers  # noqa: PLC0415 - of no use where a server is named

    try:
        return servers.shared().url()
    except servers.MissingServerError:
        return None


def local_mongodb() -> str | None:
    from tests.mongodb import server  # noqa: PLC0415

    return f"mongodb://{server.shared('replica set')}" if server.program() else None


async def one_round(found: dict[str, Place]) -> list[Row]:
    return [row for where, place in found.items() for row in await measured(where, place)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.openai_agents")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts (default: 3)")
    parser.add_argument("--picture", type=Path, help="also draw the table into this file")
    options = parser.parse_args()
    found = places()
    rounds = [asyncio.run(one_round(found)) for _ in range(options.rounds)]
    rows = [median_row(list(each)) for each in zip(*rounds, strict=True)]
    sdk = f"openai-agents {version('openai-agents')}"
    caption = f"Python {platform.python_version()}, the other is the session of {sdk} on the same database"
    print(f"{table(rows)}\n{caption}; median of {options.rounds} rounds")
    missing = [where for where in ("Redis", "MongoDB") if where not in found]
    if missing:
        print(f"not measured, for there is no server here: {', '.join(missing)} ({REDIS_URL}, {MONGODB_URL} name one)")
    if options.picture is not None:
        picture(rows, options.picture, caption=caption)


if __name__ == "__main__":
    main()
