"""What calls cost in requests and units, as docs/dynamodb.md says, with an expiry and the listing on.

The emulators tell the units: ministack counts what writes take, with the indexes, and dynalite what reads take.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import boto3
import pytest
from botocore.config import Config
from tests.dynamodb import server

from chatkeep import ChatMessage, Store, open_store
from chatkeep.testing.harness import turn

READS = {"GetItem", "BatchGetItem", "Query"}
WRITES = {"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"}


class Meter:
    """A client that notes what its requests take."""

    def __init__(self, kind: str) -> None:
        self.counts = {"ministack": WRITES, "dynalite": READS}[kind]
        self.requests: Counter[str] = Counter()
        self.units = 0.0
        config = Config(retries={"total_max_attempts": 1}, max_pool_connections=16)
        endpoint = server.shared(kind).endpoint
        self.client = boto3.client("dynamodb", region_name=server.REGION, endpoint_url=endpoint, config=config)
        events = self.client.meta.events
        events.register("provide-client-params.dynamodb", self._ask)
        events.register("after-call.dynamodb", self._note)

    def _ask(self, params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any] | None:
        return {**params, "ReturnConsumedCapacity": "INDEXES"} if model.name in READS | WRITES else None

    def _note(self, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        self.requests[model.name] += 1
        told = parsed.get("ConsumedCapacity") or []
        if model.name in self.counts:
            self.units += sum(each["CapacityUnits"] for each in (told if isinstance(told, list) else [told]))

    def taken(self) -> tuple[dict[str, int], float]:
        """The requests since the last time, and the units of those that the emulator can count."""
        found = dict(self.requests), self.units
        self.requests, self.units = Counter(), 0.0
        return found


@asynccontextmanager
async def measured(kind: str, *, stores: int = 1, options: str = "") -> AsyncIterator[tuple[Meter, list[Store[Any]]]]:
    """So many stores on one new table, open, behind one meter."""
    if server.program(kind) is None:
        pytest.skip(server.MISSING[kind])
    meter, url = Meter(kind), f"dynamodb:///{server.make_table(kind)}?ttl=30d&timeout=120{options}"
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_store(url, client=meter.client)) for _ in range(stores)]
        for store in opened:
            await store.open()
        meter.taken()
        yield meter, opened


def a_turn(number: int) -> list[ChatMessage]:
    """A turn of about 0.4 KB."""
    return [ChatMessage.user(f"question {number} " + "word " * 20), ChatMessage.assistant("word " * 40)]


@pytest.mark.once
async def test_writes_take_the_requests_and_units_that_the_documents_say() -> None:
    async with measured("ministack", stores=2) as (meter, (store, other)):
        session = store.scoped(tenant="acme", user="alice").session("s")
        from_elsewhere = other.scoped(tenant="acme", user="alice").session("s")
        await session.append(turn(1))
        assert meter.taken() == ({"GetItem": 1, "UpdateItem": 1, "PutItem": 1}, 4.0)
        await session.append(turn(2))
        assert meter.taken() == ({"UpdateItem": 1}, 1.0)
        await from_elsewhere.append(turn(3))
        assert meter.taken() == ({"GetItem": 1, "UpdateItem": 1}, 2.0)
        await session.append(turn(4))  # the first is refused: it goes by what it knows
        requests, units = meter.taken()
        assert requests == {"UpdateItem": 2, "GetItem": 1}
        assert units <= 3
        for number in range(100):
            await session.append(a_turn(number))
        requests, units = meter.taken()
        assert requests["UpdateItem"] == 100
        assert requests.keys() == {"UpdateItem", "BatchWriteItem"}
        assert requests["BatchWriteItem"] < 25
        assert units < 100 * 3.5  # "about three a turn"
        await session.state.set("language", "no")
        requests, units = meter.taken()
        assert requests == {"UpdateItem": 1}
        assert units <= 6


@pytest.mark.once
async def test_reads_take_the_requests_and_units_that_the_documents_say() -> None:
    async with measured("dynalite") as (meter, (store,)):
        scope = store.scoped(tenant="acme", user="alice")
        session = scope.session("s")
        for number in range(100):
            await session.append(a_turn(number))
        meter.taken()
        await session.messages(last=6)
        assert meter.taken() == ({"GetItem": 1}, 1.0)
        await session.messages()
        requests, units = meter.taken()
        assert requests == {"GetItem": 1, "BatchGetItem": 1}
        assert units < 2 + 200 * 0.4 / 4  # no more than its 80 KB in a row, for parts are deflated
        await scope.list_sessions()
        requests, units = meter.taken()
        assert requests == {"Query": 1, "BatchGetItem": 1}
        assert units <= 1 + 2


@pytest.mark.once
@pytest.mark.parametrize("stores", [1, 4])
@pytest.mark.parametrize("options", ["", "&max_messages=40"], ids=["plain", "trimming"])
async def test_twenty_writers_on_one_session_meet_no_conflict_in_one_store_and_few_from_several(
    stores: int, options: str
) -> None:
    async with measured("ministack", stores=stores, options=options) as (meter, opened):

        async def write(writer: int) -> None:
            session = opened[writer % stores].session("hot")
            for batch in range(50):
                await session.append([ChatMessage.user(f"{writer}.{batch}"), ChatMessage.assistant("x")])

        await asyncio.gather(*map(write, range(20)))
        requests, _ = meter.taken()
        info = await opened[0].session("hot").info()
    repeated = requests["UpdateItem"] + requests["PutItem"] - 1000 - 1  # and the catalogue's entry
    assert info is not None
    assert info.logs[""].tail.seq == 2000
    assert repeated <= (0 if stores == 1 else 500)
