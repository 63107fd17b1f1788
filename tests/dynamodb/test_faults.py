"""Lost answers, throttling, batches done by halves: each write is stored once, or not at all, and told so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.dynamodb import server
from tests.dynamodb.proxy import Proxy, Request, proxy, through

from chatkeep import ChatMessage, OutcomeUnknownError, Store, StoreUnavailableError, open_store

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.once,
    pytest.mark.skipif(server.program() is None, reason=server.MISSING["ministack"]),
]
WRITES = ("UpdateItem", "PutItem")
BATCHES = ("BatchWriteItem", "BatchGetItem")


@pytest_asyncio.fixture
async def between() -> AsyncIterator[Proxy]:
    async with proxy() as made:
        yield made


@pytest_asyncio.fixture
async def store(between: Proxy) -> AsyncIterator[Store[ChatMessage]]:
    async with open_store(through(between)) as opened:
        yield opened


def said(messages: list[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.parametrize("fault", ["lost", "failed", "unsent"])
async def test_a_write_whose_answer_does_not_come_is_stored_once(
    store: Store[ChatMessage], between: Proxy, fault: str
) -> None:
    session = store.session("s")
    for number in range(5):
        between.once(fault, *WRITES)
        assert (await session.append([ChatMessage.user(str(number))])).added == 1
    between.once(fault, *WRITES)
    await session.state.set("k", 1)
    between.once(fault, *WRITES)
    assert said(await session.pop()) == ["4"]
    between.once(fault, *WRITES, times=2)
    await store.session("new").append([ChatMessage.user("x")])
    assert said(await session.messages()) == ["0", "1", "2", "3"]
    assert said(await store.session("new").messages()) == ["x"]
    assert await session.state.get("k") == 1
    between.once(fault, *WRITES)
    assert await session.delete()
    assert not await session.exists()
    assert between.struck[fault] >= 9


@pytest.mark.parametrize("fault", ["lost", "failed"])
async def test_a_conditional_write_is_no_conflict_with_itself(
    store: Store[ChatMessage], between: Proxy, fault: str
) -> None:
    session = store.session("s")
    tail = (await session.append([ChatMessage.user("a")])).tail
    between.once(fault, "UpdateItem")
    receipt = await session.append([ChatMessage.user("b", id="m1")], expected_tail=tail)
    assert receipt.added == 1
    between.once(fault, "UpdateItem")
    assert (await session.append([ChatMessage.user("c")], batch_id="turn-1")).added == 1
    assert (await session.append([ChatMessage.user("c")], batch_id="turn-1")).added == 0
    assert said(await session.messages()) == ["a", "b", "c"]


@pytest.mark.parametrize("fault", ["busy", "throttled", "conflict", "limited", "broken"])
async def test_a_busy_table_is_asked_again(store: Store[ChatMessage], between: Proxy, fault: str) -> None:
    session = store.session("s")
    for operations in (("GetItem",), WRITES, ("Query",), BATCHES):
        between.once(fault, *operations, times=3)
        await session.append([ChatMessage.user("x" * 3000, id=f"{operations[0]}-{place}") for place in range(20)])
        assert len(await session.messages()) % 20 == 0
        assert len(await store.list_sessions()) == 1
    assert await session.count() == 80
    assert between.struck[fault] == 12


async def test_a_table_that_stays_busy_is_an_unavailable_store_and_nothing_is_written(between: Proxy) -> None:
    async with open_store(through(between), timeout=2.0) as store:
        session = store.session("s")
        await session.append([ChatMessage.user("a")])
        between.once("busy", *WRITES, times=1_000_000)
        with pytest.raises(StoreUnavailableError):
            await session.append([ChatMessage.user("b")])
        between.once("busy", *BATCHES, times=1_000_000)
        with pytest.raises(StoreUnavailableError):
            await session.append([ChatMessage.user("c" * 20_000)])
        between.fault = lambda request: None
        assert said(await session.messages()) == ["a"]


@pytest.mark.parametrize("operation", BATCHES)
async def test_a_batch_of_which_nothing_is_ever_done_is_an_unavailable_store(between: Proxy, operation: str) -> None:
    async with open_store(through(between), timeout=2.0) as store:
        session = store.session("s")
        await session.append([ChatMessage.user("a")])
        between.once("none", operation, times=1_000_000)
        writes = operation == "BatchWriteItem"
        call = session.append([ChatMessage.user("c" * 20_000)]) if writes else store.list_sessions()
        with pytest.raises(StoreUnavailableError, match="no capacity"):
            await call
        assert 2 < between.struck["none"] < 200, "the pauses do not grow"
        between.fault = lambda request: None
        assert said(await session.messages()) == ["a"]
        assert len(await store.list_sessions()) == 1


async def test_a_service_that_goes_on_failing_is_an_unknown_outcome(between: Proxy) -> None:
    async with open_store(through(between), timeout=5.0) as store:
        session = store.session("s")
        await session.append([ChatMessage.user("a")])
        between.once("unsent", *WRITES, times=1_000_000)
        with pytest.raises(OutcomeUnknownError):
            await session.append([ChatMessage.user("b")])
        between.once("unsent", "GetItem", times=1_000_000)
        with pytest.raises(StoreUnavailableError):
            await session.messages()
        between.fault = lambda request: None
        assert said(await session.messages()) == ["a"]


async def test_what_a_batch_leaves_is_asked_for_again(store: Store[ChatMessage], between: Proxy) -> None:
    between.fault = lambda request: "half" if request.operation in BATCHES else None
    session = store.session("s")
    history = [ChatMessage.user(f"{place} " + "x" * 400, id=f"m{place}") for place in range(300)]
    await session.append(history)
    large = "é" * 1_000_000
    await session.append([ChatMessage.user(large)])
    await session.state.update({f"k{place}": "v" * 200 for place in range(300)})
    assert await session.messages() == [*history, ChatMessage.user(large)]
    assert (await session.append(history[:10])).added == 0
    assert len(await session.state.keys()) == 300
    assert await session.delete()
    assert between.struck["half"] > 50


async def test_a_query_may_end_after_any_item(store: Store[ChatMessage], between: Proxy) -> None:
    between.fault = lambda request: "page" if request.operation == "Query" else None
    scope = store.scoped(tenant="acme")
    for number in range(12):
        await scope.scoped(user=f"u{number % 3}").session(f"s{number}").append([ChatMessage.user("x")])
    assert len(await scope.list_sessions(below=True, limit=100)) == 12
    assert [each.id for each in await scope.scoped(user="u0").list_sessions()] == ["s0", "s3", "s6", "s9"]
    session = scope.session("long")
    history = [ChatMessage.user("x" * 300, id=f"m{place}") for place in range(100)]
    await session.append(history)
    assert (await session.append(history)).added == 0
    await session.delete()
    await session.append([ChatMessage.user("again", id="m0")])
    receipt = await scope.erase()
    assert (receipt.sessions, receipt.messages) == (13, 13)
    assert between.struck["page"] > 50


async def test_a_write_that_goes_on_in_its_thread_is_waited_for_by_closing(between: Proxy) -> None:
    url = through(between)
    going_on = asyncio.Event()

    async with open_store(url) as other:
        store = open_store(url, timeout=20)
        session = store.session("s")
        await session.append([ChatMessage.user("a")])
        answer = between._passed_on

        async def slowly(head: dict[str, str], body: bytes) -> bytes:
            going_on.set()
            await asyncio.sleep(0.5)
            return await answer(head, body)

        between._passed_on = slowly  # type: ignore[method-assign]
        writing = asyncio.create_task(session.append([ChatMessage.user("b")]))
        await going_on.wait()
        await store.close()
        assert (await writing).added == 1
        between._passed_on = answer  # type: ignore[method-assign]
        assert said(await other.session("s").messages()) == ["a", "b"]


async def test_many_writers_behind_faults_lose_and_double_nothing(between: Proxy) -> None:
    url, faults = through(between), ["lost", "failed", "unsent", "busy", "conflict"]
    number = 0

    def now_and_then(request: Request) -> str | None:
        nonlocal number
        number += 1
        return faults[number // 7 % len(faults)] if number % 7 == 0 else None

    stores = [open_store(url, timeout=60) for _ in range(4)]
    between.fault = now_and_then

    async def write(writer: int) -> None:
        session = stores[writer % 4].session("s")
        for place in range(15):
            await session.append([ChatMessage.user(f"{writer}.{place}")])

    await asyncio.gather(*map(write, range(8)))
    between.fault = lambda request: None
    found = said(await stores[0].session("s").messages())
    for each in stores:
        await each.close()
    assert sorted(found) == sorted(f"{writer}.{place}" for writer in range(8) for place in range(15))
    for writer in range(8):
        own = [text for text in found if text.startswith(f"{writer}.")]
        assert own == [f"{writer}.{place}" for place in range(15)]
    assert len(between.struck) == 5
