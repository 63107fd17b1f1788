"""``python -m benchmarks.claude_agent [--rounds N] [--picture FILE]``: the Claude Agent SDK's transcripts in chatkeep.

The other side is the SDK's `InMemorySessionStore`, the one store that its wheel brings: a dict of lists in the process,
which encodes nothing, copies nothing and knows no uuid. It shows what keeping costs, not what another database would.
One row has a bar: what an append costs may not grow with the transcript.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from claude_agent_sdk import InMemorySessionStore, SessionStore

from chatkeep import open_store
from chatkeep_adapters.claude_agent import ChatkeepSessionStore

from .measure import Row, in_turns, median_row
from .report import picture, table
from .turns import turns

REDIS_URL = "CHATKEEP_BENCH_REDIS_URL"
"""The environment variable that names a Redis server, for two more rows; what they store they take out again."""
BATCH, LONG, LISTED, CALLS = 10, 10_000, 100, 200
PROJECT = "-home-alice-airline"


def key(session_id: str) -> Any:
    return {"project_key": PROJECT, "session_id": session_id}


def entries() -> Iterator[Any]:
    """Entries such as the command line writes: some 500 characters each, an eighth of them without a uuid."""
    parent = None
    for number, (question, answer) in enumerate(turns()):
        about = {
            "sessionId": "s",
            "timestamp": f"2026-01-01T00:00:00.{number % 1000:03}Z",
            "cwd": "/home/alice/airline",
        }
        about |= {"isSidechain": False, "userType": "external", "version": "2.1.0", "gitBranch": "main"}
        for role, content in (("user", question), ("assistant", [{"type": "text", "text": answer}])):
            name = str(uuid.uuid4())
            yield {
                "type": role,
                "uuid": name,
                "parentUuid": parent,
                **about,
                "message": {"role": role, "content": content},
            }
            parent = name
        if number % 4 == 3:
            yield {"type": "last-prompt", "lastPrompt": question, "sessionId": "s"}


def batches(size: int = BATCH) -> Iterator[list[Any]]:
    source = entries()
    while True:
        yield list(islice(source, size))


async def fill(sessions: SessionStore, session_id: str, size: int) -> None:
    for batch in islice(batches(500), size // 500):
        await sessions.append(key(session_id), batch)


Measure = Callable[[str, ChatkeepSessionStore], Awaitable[list[Row]]]


async def append_and_load(name: str, ours: ChatkeepSessionStore) -> list[Row]:
    theirs, mine, others = InMemorySessionStore(), batches(), batches()
    appended = await in_turns(
        lambda: ours.append(key("s"), next(mine)), lambda: theirs.append(key("s"), next(others)), calls=CALLS
    )
    for sessions in (ours, theirs):
        await fill(sessions, "long", LONG)
        loaded = await sessions.load(key("long"))
        if loaded is None or len(loaded) != LONG:
            raise RuntimeError(f"{type(sessions).__name__} on {name} has not stored what it was given")
    read = await in_turns(lambda: ours.load(key("long")), lambda: theirs.load(key("long")), calls=7, warm_up=2)
    return [Row(f"append {BATCH} entries, {name}", *appended), Row(f"load {LONG:,} entries, {name}", *read)]


async def growth(name: str, ours: ChatkeepSessionStore) -> list[Row]:
    await fill(ours, "long", LONG)
    source, short = batches(), (f"short {number // 10}" for number in range(10**6))
    taken = await in_turns(
        lambda: ours.append(key("long"), next(source)), lambda: ours.append(key(next(short)), next(source)), calls=CALLS
    )
    return [Row(f"append {BATCH} entries at {LONG:,}, beside at less than 100, {name}", *taken, 1.3)]


async def listing(name: str, ours: ChatkeepSessionStore) -> list[Row]:
    theirs, source = InMemorySessionStore(), batches()
    for number in range(LISTED):
        batch = next(source)
        for sessions in (ours, theirs):
            await sessions.append(key(str(number)), batch)
    taken = await in_turns(
        lambda: ours.list_session_summaries(PROJECT),
        lambda: theirs.list_session_summaries(PROJECT),
        calls=20,
        warm_up=2,
    )
    return [Row(f"list the summaries of {LISTED} transcripts, {name}", *taken)]


async def one_round(redis: str | None) -> list[Row]:
    rows = list[Row]()
    places = [("memory", "memory://"), ("SQLite", "sqlite:///{}/chat.db")] + ([("Redis", redis)] if redis else [])
    for name, url in places:
        for measure in (append_and_load, growth, listing):
            async with AsyncExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                store = await stack.enter_async_context(open_store(url.format(folder)))
                scope = store.scoped(tenant=f"bench-{uuid.uuid4().hex[:8]}")
                stack.push_async_callback(scope.erase)
                rows += await measure(name, ChatkeepSessionStore(scope))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claude_agent")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts (default: 3)")
    parser.add_argument("--picture", type=Path, help="also draw the table into this file")
    options = parser.parse_args()
    rounds = [asyncio.run(one_round(os.environ.get(REDIS_URL))) for _ in range(options.rounds)]
    rows = [median_row(list(each)) for each in zip(*rounds, strict=True)]
    caption = f"Python {platform.python_version()}, the other is the SDK's InMemorySessionStore but where a row says so"
    print(f"{table(rows)}\n{caption}; median of {options.rounds} rounds")
    if options.picture is not None:
        picture(rows, options.picture, caption=caption)


if __name__ == "__main__":
    main()
