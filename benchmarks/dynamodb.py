"""``python -m benchmarks.dynamodb [--rounds N] [--picture FILE.png]``: the backend beside raw boto3, on one emulator.

The tests' own ministack is started. The yardstick does the least from a thread pool of the same size: one conditional
``put_item`` a turn for appending, and one item a message for reading, by one query. Both encode and decode. An emulator
says how the two compare, and nothing of how long DynamoDB takes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from chatkeep import ChatMessage, Store, open_store

from .measure import Row, median_row
from .mongodb import fill, messages, plain, said, taken
from .report import picture, table

CALLS = 200
LONG, QUERIED, PEERS_LONG = 10_000, 300, 300
THREADS = 16


class Raw:
    """boto3 in threads, doing the least."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name, self._seq = client, name, 0
        self._threads = ThreadPoolExecutor(THREADS)

    async def _call(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def append(self, session: str, turn: tuple[str, str]) -> None:
        self._seq += 1
        number = self._seq

        def put() -> None:
            item = {"pk": {"B": session.encode()}, "sk": {"B": number.to_bytes(8, "big")}}
            item |= {"messages": {"L": [{"B": each} for each in plain(turn)]}}
            self._client.put_item(TableName=self._name, Item=item, ConditionExpression="attribute_not_exists(pk)")

        await self._call(put)

    async def fill(self, session: str, size: int) -> None:
        payloads = [payload for turn in islice(said(), size // 2) for payload in plain(turn)]

        def put(begin: int) -> None:
            items = [
                {"pk": {"B": session.encode()}, "sk": {"B": (begin + place).to_bytes(8, "big")}, "data": {"B": each}}
                for place, each in enumerate(payloads[begin : begin + 25])
            ]
            self._client.batch_write_item(RequestItems={self._name: [{"PutRequest": {"Item": each}} for each in items]})

        for begin in range(0, len(payloads), 25):
            await self._call(lambda begin=begin: put(begin))

    async def newest(self, session: str, limit: int) -> list[Any]:
        def query() -> list[Any]:
            answer = self._client.query(
                TableName=self._name,
                KeyConditionExpression="pk = :p",
                ExpressionAttributeValues={":p": {"B": session.encode()}},
                ScanIndexForward=False,
                ConsistentRead=True,
                Limit=limit,
            )
            return [from_json(item["data"]["B"]) for item in reversed(answer["Items"])]

        found: list[Any] = await self._call(query)
        return found


class Sides(NamedTuple):
    store: Store[ChatMessage]
    raw: Raw


@asynccontextmanager
async def sides() -> AsyncIterator[Sides]:
    """Ours and the yardstick, in a table of their own."""
    from tests.dynamodb import server  # noqa: PLC0415

    url = server.empty_table()
    name = url.partition("?")[0].rpartition("/")[2]
    async with open_store(url, ttl="30d", connections=THREADS) as store:
        await store.open()
        yield Sides(store, Raw(server.client("ministack"), name))


async def appending() -> list[Row]:
    async with sides() as (store, raw):
        session, ours, theirs = store.session("s"), said(), said()
        mine, others = await taken(
            lambda: session.append(messages(next(ours))), lambda: raw.append("s", next(theirs)), times=2 * CALLS
        )
        median, mean = statistics.median, statistics.fmean
        return [
            Row("append a turn, the median, beside one conditional put_item", median(mine), median(others), 1.5),
            Row("append a turn, the mean, beside one conditional put_item", mean(mine), mean(others), 2.0),
        ]


async def long_and_short() -> list[Row]:
    async with sides() as (store, _):
        source, long, short = said(), store.session("long"), store.session("short")
        await fill(long, LONG)
        await fill(short, 10)
        at_long, at_short = await taken(
            lambda: long.append(messages(next(source))), lambda: short.append(messages(next(source))), times=CALLS
        )
        median = statistics.median
        return [Row("append at 10,000 messages, beside at 10", median(at_long), median(at_short), 1.3)]


async def newest() -> list[Row]:
    async with sides() as (store, raw):
        session = store.session("s")
        await fill(session, LONG)
        await raw.fill("s", QUERIED)  # for a longer one, the emulator takes longer, which DynamoDB does not
        mine, others = await taken(
            lambda: session.messages(last=20), lambda: raw.newest("s", 20), times=CALLS, warm_up=3
        )
        median = statistics.median
        return [Row("read the newest 20 of 10,000, beside one query", median(mine), median(others), 1.0)]


async def beside_langchain() -> list[Row]:
    from langchain_community.chat_message_histories import DynamoDBChatMessageHistory  # noqa: PLC0415
    from langchain_core.messages import AIMessage, HumanMessage  # noqa: PLC0415
    from tests.dynamodb import server  # noqa: PLC0415

    async with sides() as (store, _):
        client, name = server.client("ministack"), "LangChain"
        keys = [{"AttributeName": "SessionId", "KeyType": "HASH"}]
        kinds = [{"AttributeName": "SessionId", "AttributeType": "S"}]
        client.create_table(TableName=name, KeySchema=keys, AttributeDefinitions=kinds, BillingMode="PAY_PER_REQUEST")
        os.environ.setdefault("AWS_DEFAULT_REGION", server.REGION)
        peer = DynamoDBChatMessageHistory(name, "s", endpoint_url=server.shared("ministack").endpoint)

        def add(turn: tuple[str, str]) -> None:
            peer.add_messages([HumanMessage(turn[0]), AIMessage(turn[1])])

        session, ours, theirs = store.session("s"), said(), said()
        await fill(session, PEERS_LONG)
        for turn in islice(said(), PEERS_LONG // 2):
            await asyncio.to_thread(add, turn)
        mine, others = await taken(
            lambda: session.append(messages(next(ours))),
            lambda: asyncio.to_thread(add, next(theirs)),
            times=30,
            warm_up=2,
        )
        client.delete_table(TableName=name)
        return [
            Row("append a turn at 300, beside LangChain's", statistics.median(mine), statistics.median(others), 0.1)
        ]


MEASUREMENTS: dict[str, Callable[[], Awaitable[list[Row]]]] = {
    "append": appending,
    "append-at-10,000": long_and_short,
    "newest-20": newest,
}


def peers() -> dict[str, Callable[[], Awaitable[list[Row]]]]:
    """Those that are installed."""
    known = {"langchain_community": beside_langchain}
    return {name: measure for name, measure in known.items() if importlib.util.find_spec(name)}


async def all_rows(rounds: int) -> list[Row]:
    rows = list[Row]()
    for measure in [*MEASUREMENTS.values(), *peers().values()]:
        found = [await measure() for _ in range(rounds)]
        rows += [median_row(list(each)) for each in zip(*found, strict=True)]
        print(f"{rows[-1].ratio:6.2f}  {rows[-1].name}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dynamodb")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many rounds counts (default: 3)")
    parser.add_argument("--picture", type=Path, help="also draw the table into this file, such as dynamodb.png")
    options = parser.parse_args()
    rows = asyncio.run(all_rows(options.rounds))
    caption = f"ministack, median of {options.rounds} rounds"
    print(f"\n{table(rows)}\n{caption}")
    if options.picture is not None:
        picture(rows, options.picture, caption=caption)


if __name__ == "__main__":
    main()
