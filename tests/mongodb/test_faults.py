"""Faults on command, lost answers and killed servers: each write is stored once, or not at all, and told so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
import pytest_asyncio
from tests.mongodb import server

from chatkeep import ChatMessage, OutcomeUnknownError, Store, StoreError, StoreUnavailableError, open_store

KINDS = ("standalone", "replica set")
WRITES = ["update", "insert", "delete"]
STEPPED_DOWN = [189, 91, 11602, 11600, 10107, 13435, 10058]
"""Errors of a server that is, or was until now, no primary, or shuts down."""

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.once,
    pytest.mark.skipif(server.program() is None, reason=server.MISSING),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest_asyncio.fixture
async def store(kind: str) -> AsyncIterator[Store[ChatMessage]]:
    # The driver looks at a server that it takes for no primary only so often.
    async with open_store(server.empty_database(kind, "heartbeatFrequencyMS=500"), timeout=20) as opened:
        yield opened


@contextmanager
def failing(kind: str, times: int, **data: Any) -> Iterator[None]:
    """The server's commands fail so many times, as `data` says."""
    with pymongo.MongoClient(f"mongodb://{server.shared(kind)}/?directConnection=true") as client:
        client.admin.command({"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data})
        try:
            yield
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def said(messages: list[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


async def test_a_connection_that_closes_before_the_write_is_made_costs_nothing(
    store: Store[ChatMessage], kind: str
) -> None:
    session = store.session("s")
    await session.append([ChatMessage.user("a")])
    for place in range(6):
        with failing(kind, 1 + place % 2, failCommands=WRITES, closeConnection=True):
            assert (await session.append([ChatMessage.user(f"b{place}")])).added == 1
    assert said(await session.messages()) == ["a", *(f"b{place}" for place in range(6))]


async def test_a_connection_that_closes_after_the_write_was_made_stores_it_once(kind: str) -> None:
    """The answer is lost on its way: by a proxy, since the server's own fault comes before the write."""
    host, port = server.shared(kind).split(":")
    cut = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(host, int(port))
        lost = False

        async def ask() -> None:
            nonlocal lost
            while data := await reader.read(1 << 20):
                lost = lost or (cut.is_set() and any(word in data for word in (b"update\0", b"insert\0")))
                to_there.write(data)
                await to_there.drain()

        async def answer() -> None:
            while data := await there.read(1 << 20):
                if lost:
                    cut.clear()
                    return
                writer.write(data)
                await writer.drain()

        tasks = [asyncio.create_task(ask()), asyncio.create_task(answer())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in (writer, to_there):
            each.close()

    server.empty_database(kind)
    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = proxy.sockets[0].getsockname()[1]
    url = f"mongodb://127.0.0.1:{place}/tests?directConnection=true"
    async with open_store(url) as store:
        session = store.session("s")
        await session.append([ChatMessage.user("a")])
        for number in range(5):
            cut.set()
            assert (await session.append([ChatMessage.user(str(number))])).added == 1
            assert not cut.is_set(), "no answer was lost"
        cut.set()
        await session.state.set("k", 1)
        cut.set()
        assert said(await session.pop()) == ["4"]
        cut.set()
        await store.session("new").append([ChatMessage.user("x")])
        assert said(await session.messages()) == ["a", "0", "1", "2", "3"]
        assert said(await store.session("new").messages()) == ["x"]
        cut.set()
        assert await session.delete()
        assert not await session.exists()
    proxy.close()
    await proxy.wait_closed()


@pytest.mark.parametrize("code", STEPPED_DOWN)
async def test_a_server_that_is_no_primary_any_more_is_asked_again(
    store: Store[ChatMessage], kind: str, code: int
) -> None:
    session = store.session("s")
    await session.append([ChatMessage.user("a")])
    with failing(kind, 1, failCommands=["update"], errorCode=code, errorLabels=["RetryableWriteError"]):
        assert (await session.append([ChatMessage.user("b")])).added == 1
    assert said(await session.messages()) == ["a", "b"]


async def test_an_error_of_the_servers_is_told_and_nothing_is_written(store: Store[ChatMessage], kind: str) -> None:
    session = store.session("s")
    await session.append([ChatMessage.user("a")])
    fault = failing(kind, 1, failCommands=["update"], errorCode=8)
    with fault, pytest.raises(StoreError, match="failCommand") as failed:
        await session.append([ChatMessage.user("b")])
    assert not isinstance(failed.value, OutcomeUnknownError)
    assert said(await session.messages()) == ["a"]


async def test_an_acknowledgement_that_does_not_come_is_an_unknown_outcome_or_a_stored_write(
    store: Store[ChatMessage], kind: str
) -> None:
    session = store.session("s")
    await session.append([ChatMessage.user("a")])
    concern = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out"}
    with failing(kind, 1, failCommands=["update"], writeConcernError=concern):
        assert (await session.append([ChatMessage.user("b")])).added == 1
    assert said(await session.messages()) == ["a", "b"]


async def test_a_server_that_stays_away_is_an_unavailable_store_and_a_slow_one_an_unknown_outcome(kind: str) -> None:
    url = server.empty_database(kind, "serverSelectionTimeoutMS=500")
    async with open_store(url, timeout=1.0) as store:
        session = store.session("s")
        await session.append([ChatMessage.user("a")])
        slow = failing(kind, 50, failCommands=["update"], blockConnection=True, blockTimeMS=3000)
        with slow, pytest.raises(OutcomeUnknownError):
            await session.append([ChatMessage.user("b")])
        away = failing(kind, 50, failCommands=["find"], closeConnection=True)
        with away, pytest.raises(StoreUnavailableError):
            await session.messages()
        await asyncio.sleep(3.5)
        assert said(await session.messages()) in (["a"], ["a", "b"])
        await session.append([ChatMessage.user("c")])


async def test_a_primary_that_is_killed_takes_nothing_acknowledged_with_it() -> None:
    servers = server.replica_set(3)
    hosts = ",".join(each.address for each in servers)
    try:
        async with open_store(f"mongodb://{hosts}/tests?replicaSet=rs0", timeout=30) as store:
            session, acknowledged, unknown = store.session("s"), list[str](), list[str]()
            killed = asyncio.Event()

            async def write(writer: int) -> None:
                for number in range(100):
                    text = f"{writer}.{number}"
                    try:
                        await session.append([ChatMessage.user(text)])
                        acknowledged.append(text)
                    except OutcomeUnknownError:
                        unknown.append(text)
                    if len(acknowledged) > 200:
                        killed.set()

            async def kill() -> None:
                await killed.wait()
                await asyncio.to_thread(server.primary(servers).kill)

            await asyncio.gather(kill(), *(write(writer) for writer in range(5)))
            found = Counter(said(await session.messages()))
            assert len(acknowledged) + len(unknown) == 500
            assert not set(acknowledged) - set(found), "an acknowledged message is lost"
            assert set(found.values()) == {1}, "a message is stored twice"
            assert len(unknown) <= 10
    finally:
        for each in servers:
            each.remove()
