"""``python -m benchmarks.mongodb [--url URL] [--rounds N]``: the MongoDB backend beside raw PyMongo, on one server.

Without a URL the tests' own mongod is started. The yardstick writes one document a turn for appending (the least that
keeps the same bytes, with an index over session and seq), and one a message for reading, as stores of this kind do.
Both acknowledge alike, and both encode and decode.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import statistics
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, NamedTuple

import pymongo
from pydantic_core import from_json, to_json
from pymongo import AsyncMongoClient, WriteConcern

from chatkeep import ChatMessage, Session, Store, open_store

from .measure import Row, median_row, seconds
from .report import table
from .turns import turns

CALLS = 300
LONG = 10_000
SESSIONS, TURNS_EACH = 100, 20
SIZES = (1, 1, 2, 4, 1, 10, 1, 3)
"""How often a turn's answer is repeated: turns of 300 bytes to 4 KB."""


def said() -> Any:
    """Turns of various sizes, up to 4 KB."""
    for number, (question, answer) in enumerate(turns()):
        yield question, (answer * SIZES[number % len(SIZES)])[:3500]


def messages(turn: tuple[str, str]) -> list[ChatMessage]:
    return [ChatMessage.user(turn[0]), ChatMessage.assistant(turn[1])]


def plain(turn: tuple[str, str]) -> list[bytes]:
    return [to_json({"role": "user", "content": turn[0]}), to_json({"role": "assistant", "content": turn[1]})]


class Raw:
    """PyMongo, doing the least."""

    def __init__(self, database: Any, concern: WriteConcern) -> None:
        self.turns = database["raw_turns"].with_options(write_concern=concern)
        self.messages = database["raw_messages"].with_options(write_concern=concern)
        self.seq = 0

    async def prepare(self) -> None:
        for collection in (self.turns, self.messages):
            await collection.create_index([("session", 1), ("seq", 1)], unique=True)

    async def append(self, session: str, turn: tuple[str, str]) -> None:
        self.seq += 1
        await self.turns.insert_one({"session": session, "seq": self.seq, "messages": plain(turn)})

    async def fill(self, session: str, size: int) -> None:
        payloads = [payload for turn in islice(said(), size // 2) for payload in plain(turn)]
        documents = [{"session": session, "seq": seq, "payload": each} for seq, each in enumerate(payloads, 1)]
        await self.messages.insert_many(documents)

    async def newest(self, session: str, limit: int) -> list[Any]:
        cursor = self.messages.find({"session": session}, {"_id": False, "payload": True})
        found = await cursor.sort("seq", -1).limit(limit).to_list(limit)
        return [from_json(each["payload"]) for each in reversed(found)]


class Sides(NamedTuple):
    store: Store[ChatMessage]
    raw: Raw


@asynccontextmanager
async def sides(url: str, **options: Any) -> AsyncIterator[Sides]:
    """Ours and the yardstick, in a database of their own."""
    name = f"bench_{uuid.uuid4().hex[:8]}"
    client: AsyncMongoClient[Any] = AsyncMongoClient(url)
    location, mark, query = url.partition("?")
    async with open_store(f"{location.rstrip('/')}/{name}{mark}{query}", ttl="30d", **options) as store:
        concern = (await store.ping()).details["write_concern"]
        raw = Raw(client[name], WriteConcern(**concern))
        await raw.prepare()
        yield Sides(store, raw)
    await client.drop_database(name)
    await client.close()


async def fill(session: Session[ChatMessage], size: int) -> None:
    source = (message for turn in said() for message in messages(turn))
    for begin in range(0, size, 250):
        await session.append(islice(source, min(250, size - begin)))


Call = Callable[[], Awaitable[object]]


async def taken(*calls: Call, times: int = CALLS, warm_up: int = 20) -> list[list[float]]:
    """The seconds of each call, in turns."""
    found: list[list[float]] = [[] for _ in calls]
    for turn in range(times + warm_up):
        for place in range(len(calls))[:: 1 if turn % 2 else -1]:
            spent = await seconds(calls[place])
            if turn >= warm_up:
                found[place].append(spent)
    return found


async def appending(url: str) -> list[Row]:
    async with sides(url) as (store, raw):
        session, ours, theirs = store.session("s"), said(), said()
        mine, others = await taken(
            lambda: session.append(messages(next(ours))), lambda: raw.append("s", next(theirs)), times=2 * CALLS
        )
        median, mean = statistics.median, statistics.fmean
        return [
            Row("append a turn, the median, beside one insert_one", median(mine), median(others), 1.7),
            Row("append a turn, the mean, beside one insert_one", mean(mine), mean(others), 2.2),
        ]


async def long_and_short(url: str) -> list[Row]:
    async with sides(url) as (store, _):
        source, long, short = said(), store.session("long"), store.session("short")
        await fill(long, LONG)
        await fill(short, 10)
        at_long, at_short = await taken(
            lambda: long.append(messages(next(source))), lambda: short.append(messages(next(source)))
        )
        return [
            Row("append at 10,000 messages, beside at 10", statistics.median(at_long), statistics.median(at_short), 1.3)
        ]


def reading(limit: int, name: str, bar: float, times: int) -> Callable[[str], Awaitable[list[Row]]]:
    async def measure(url: str) -> list[Row]:
        async with sides(url) as (store, raw):
            session = store.session("s")
            await fill(session, LONG)
            await raw.fill("s", LONG)
            mine, others = await taken(
                lambda: session.messages(last=limit), lambda: raw.newest("s", limit), times=times, warm_up=3
            )
            return [Row(name, statistics.median(mine), statistics.median(others), bar)]

    return measure


async def at_once(url: str) -> list[Row]:
    async with sides(url) as (store, raw):
        spoken = list(islice(said(), TURNS_EACH))

        async def converse(number: int) -> None:
            for turn in spoken:
                await store.session(f"s{number}").append(messages(turn))

        async def converse_raw(number: int) -> None:
            for turn in spoken:
                await raw.append(f"s{number}", turn)

        theirs = await seconds(lambda: asyncio.gather(*map(converse_raw, range(SESSIONS))))
        ours = await seconds(lambda: asyncio.gather(*map(converse, range(SESSIONS))))
        written = SESSIONS * TURNS_EACH
        return [Row("100 sessions × 20 turns at once, a turn", ours / written, theirs / written, 1 / 0.45)]


MEASUREMENTS: dict[str, Callable[[str], Awaitable[list[Row]]]] = {
    "append": appending,
    "append-at-10,000": long_and_short,
    "newest-20": reading(20, "read the newest 20 of 10,000", 1.4, 200),
    "all-10,000": reading(LONG, "read all 10,000, beside one document a message", 0.5, 10),
    "at-once": at_once,
}


# Peers, where they are installed: openai-agents, langchain-mongodb

PEERS_LONG = 1000


async def beside_openai_agents(url: str) -> list[Row]:
    from agents.extensions.memory.mongodb_session import MongoDBSession  # noqa: PLC0415

    async with sides(url) as (store, raw):
        peer = MongoDBSession("s", client=raw.turns.database.client, database=raw.turns.database.name)

        async def add(turn: tuple[str, str]) -> None:
            await peer.add_items([{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}])

        return await beside(store, "the OpenAI Agents SDK's", add, lambda: peer.get_items(20))


async def beside_langchain(url: str) -> list[Row]:
    from langchain_core.messages import AIMessage, HumanMessage  # noqa: PLC0415
    from langchain_mongodb import MongoDBChatMessageHistory  # noqa: PLC0415

    async with sides(url) as (store, raw):
        name = raw.turns.database.name
        peer = MongoDBChatMessageHistory(url, "s", database_name=name, collection_name="peer", history_size=20)

        async def add(turn: tuple[str, str]) -> None:
            await peer.aadd_messages([HumanMessage(turn[0]), AIMessage(turn[1])])

        return await beside(store, "LangChain's", add, peer.aget_messages)


async def beside(
    store: Store[ChatMessage], name: str, add: Callable[[tuple[str, str]], Awaitable[None]], newest: Call
) -> list[Row]:
    """An append and the newest 20, at 1,000 messages."""
    session, ours, theirs = store.session("s"), said(), said()
    await fill(session, PEERS_LONG)
    for turn in islice(said(), PEERS_LONG // 2):
        await add(turn)
    mine, others = await taken(lambda: session.append(messages(next(ours))), lambda: add(next(theirs)))
    read, others_read = await taken(lambda: session.messages(last=20), newest)
    median = statistics.median
    return [
        Row(f"append a turn, beside {name}", median(mine), median(others), 1 / 1.3),
        Row(f"read the newest 20, beside {name}", median(read), median(others_read), 1 / 2),
    ]


def peers() -> dict[str, Callable[[str], Awaitable[list[Row]]]]:
    """Those that are installed."""
    known = {"agents": beside_openai_agents, "langchain_mongodb": beside_langchain}
    return {name: measure for name, measure in known.items() if importlib.util.find_spec(name)}


async def all_rows(url: str, rounds: int) -> list[Row]:
    rows = list[Row]()
    for measure in [*MEASUREMENTS.values(), *peers().values()]:
        found = [await measure(url) for _ in range(rounds)]
        rows += [median_row(list(each)) for each in zip(*found, strict=True)]
        print(f"{rows[-1].ratio:6.2f}  {rows[-1].name}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mongodb")
    parser.add_argument("--url", help="a server that may be written to; without it the tests' mongod is started")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts (default: 3)")
    options = parser.parse_args()
    url = options.url
    if url is None:
        from tests.mongodb import server  # noqa: PLC0415

        url = f"mongodb://{server.shared('replica set')}"
    rows = asyncio.run(all_rows(url, options.rounds))
    with pymongo.MongoClient(url) as client:
        print(f"\n{table(rows)}\nMongoDB {client.server_info()['version']}, median of {options.rounds} rounds")


if __name__ == "__main__":
    main()
