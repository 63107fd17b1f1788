"""When something goes wrong with a Redis server or on the way to it: a retry that works, or one clear error."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.redis import servers
from tests.redis.proxy import FAULTS, Fault, Proxy
from tests.redis.servers import Replicated, Server

from chatkeep import ChatMessage, Store, open_store
from chatkeep.errors import (
    ChatkeepError,
    OutcomeUnknownError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from chatkeep.testing.operations import OPERATIONS, Place, seen

pytestmark = pytest.mark.once

HANGS = 60.0
"""After so many seconds, what has not ended never will."""
LONG = {"timeout": HANGS, "connect_timeout": HANGS}


def said(*texts: str) -> list[ChatMessage]:
    """A turn."""
    first, *rest = texts
    return [ChatMessage.user(first), *map(ChatMessage.assistant, rest)]


async def texts_of(store: Store[ChatMessage], session: str = "s") -> list[str]:
    return [message.text for message in await store.session(session).messages()]


async def reached(store: Store[ChatMessage]) -> None:
    """Connect, on a busy machine and with little patience."""
    async with asyncio.timeout(HANGS):
        while True:
            try:
                await store.ping()
                return
            except StoreUnavailableError:
                continue


def digest(server: Server) -> str:
    """What every key of the server holds, in one number."""
    with server.client() as client:
        answer: str = client.execute_command("DEBUG", "DIGEST")
    return answer


@pytest.fixture
def server(tmp_path: Path) -> Any:
    """A server of the test's own, which may be asked for a digest, and forgets everything when it is restarted."""
    options = {"enable_debug_command": "yes", "repl_diskless_sync_delay": "0"}
    with servers.plain(tmp_path / "server", **options) as started:
        yield started


@pytest.fixture
def durable(tmp_path: Path) -> Any:
    """A server that forgets nothing that it has acknowledged."""
    with servers.plain(tmp_path / "durable", appendonly="yes", appendfsync="always") as started:
        yield started


@pytest_asyncio.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A relay to the shared server."""
    async with Proxy(servers.shared().port) as relay:
        yield relay


@pytest.fixture
def prefix() -> str:
    """Keys of the test's own on the shared server."""
    return servers.prefix()


# Scripts


async def test_a_script_cache_that_was_emptied_is_filled_again_unnoticed(server: Server) -> None:
    async with open_store(server.url()) as store:
        await store.session("s").append(said("one"))
        server.call("SCRIPT", "FLUSH")
        await store.session("s").append(said("two"))
        assert await texts_of(store) == ["one", "two"]
        server.call("SCRIPT", "FLUSH")
        assert await texts_of(store) == ["one", "two"]
        for number in range(20):
            server.call("SCRIPT", "FLUSH")
            await asyncio.gather(*(store.session(f"s-{number}-{each}").append(said("hello")) for each in range(20)))
        assert len(await store.list_sessions(limit=1000)) == 401
        server.call("SCRIPT", "FLUSH")
        assert await store.session("s").delete()


# Restarts


async def test_after_a_restart_the_next_call_works_and_nothing_that_was_acknowledged_is_gone(durable: Server) -> None:
    async with open_store(durable.url(), **LONG) as store:
        for number, end in enumerate([durable.stop, durable.kill, durable.kill]):
            await store.session("s").append(said(str(number)))
            end()
            durable.start()
            assert await texts_of(store) == [str(each) for each in range(number + 1)]
            end()
            durable.start()
            await store.session("s").state.set(str(number), number)
        assert await store.session("s").state.items() == {"0": 0, "1": 1, "2": 2}
        assert [info.id for info in await store.list_sessions()] == ["s"]


async def test_a_server_that_has_forgotten_everything_is_begun_with_anew(server: Server) -> None:
    async with open_store(server.url(), **LONG) as store:
        before = await store.session("s").append(said("one", "two"))
        server.restart()
        assert await texts_of(store) == []
        after = await store.session("s").append(said("three"))
        assert after.seqs == (1,)
        assert after.tail.life != before.tail.life
        assert [info.id for info in await store.list_sessions()] == ["s"]


async def test_while_the_server_is_away_everything_is_unavailable_and_afterwards_works_again(durable: Server) -> None:
    async with open_store(durable.url(), timeout=2.0, connect_timeout=0.3) as store:
        session = store.session("s")
        await session.append(said("one"))
        durable.kill()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: session.append(said("lost")),
            session.messages,
            session.info,
            lambda: session.state.set("k", 1),
            store.list_sessions,
            lambda: store.scoped(tenant="t").erase(),
            store.ping,
        ]
        with pytest.raises((OutcomeUnknownError, StoreUnavailableError)):  # it may have been under way
            await session.append(said("lost"))
        for call in calls:
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                await call()
        results = await asyncio.gather(*(session.append(said("lost")) for _ in range(100)), return_exceptions=True)
        assert {type(result) for result in results} <= {StoreUnavailableError, StoreTimeoutError}
        durable.start()
        await session.append(said("two"))
        assert await texts_of(store) == ["one", "two"], "what was unavailable was not written"


async def test_a_store_opened_before_its_server_is_up_works_once_it_is(durable: Server) -> None:
    durable.kill()
    store = open_store(durable.url(), connect_timeout=1.0)
    with pytest.raises(StoreUnavailableError, match=str(durable.port)):
        await store.session("s").append(said("early"))
    durable.start()
    await store.session("s").append(said("hello"))
    assert await texts_of(store) == ["hello"]
    await store.close()


# What gets lost on the way


@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_is_lost_at_whichever_trip_each_operation_has_been_done_once(
    proxy: Proxy, prefix: str, fault: Fault
) -> None:
    witness = open_store(servers.shared().url(prefix=prefix))
    store = open_store(proxy.url(prefix=prefix), **LONG)
    async with witness, store:
        for number, (name, operation) in enumerate(OPERATIONS.items()):
            undisturbed = await Place(store, f"{number}").fill()
            before = proxy.trips
            await operation(undisturbed)
            trips = proxy.trips - before
            expected = await seen(witness, undisturbed.tenant)
            for at in range(1, trips + 1):
                place = await Place(store, f"{number}-{at}").fill()
                proxy.lose(fault, at=at)
                async with asyncio.timeout(HANGS):
                    await operation(place)
                # What is asked at once may take one trip more or less.
                assert proxy.lost or at > 1, f"{name} has made no trip"
                proxy.lose_nothing()
                assert await seen(witness, place.tenant) == expected, f"{name}: after a loss at trip {at} of {trips}"


async def test_a_write_whose_outcome_cannot_be_learnt_says_so_and_sent_again_is_stored_once(
    proxy: Proxy, prefix: str
) -> None:
    async with open_store(proxy.url(prefix=prefix), timeout=1.0, connect_timeout=0.5) as store:
        session = store.session("s")
        await session.append(said("one"))
        proxy.lose("reply", for_good=True)
        with pytest.raises(OutcomeUnknownError, match="batch_id") as unknown:
            await session.append(said("two", "three"), batch_id="b")
        assert "nothing was written" not in str(unknown.value)
        await proxy.open()
        again = await session.append(said("two", "three"), batch_id="b")
        assert again.added == 0
        assert await texts_of(store) == ["one", "two", "three"]


async def test_half_a_request_is_never_half_a_batch(proxy: Proxy, prefix: str) -> None:
    witness = open_store(servers.shared().url(prefix=prefix))
    store = open_store(proxy.url(prefix=prefix), timeout=1.0, connect_timeout=0.5)
    async with witness, store:
        await store.session("s").append(said("one"))
        proxy.lose("half a request", for_good=True)
        with pytest.raises((OutcomeUnknownError, StoreUnavailableError)):
            await store.session("s").append([ChatMessage.user("x" * 2000) for _ in range(100)])
        assert await texts_of(witness) == ["one"]


async def test_connections_that_are_killed_under_a_thousand_writers_lose_and_double_nothing(
    proxy: Proxy, prefix: str
) -> None:
    async with open_store(proxy.url(prefix=prefix), **LONG) as store:
        await store.ping()
        done = asyncio.Event()

        async def kill() -> int:
            for killed in count():
                if done.is_set():
                    return killed
                await asyncio.sleep(0.02)
                proxy.cut()
            raise AssertionError

        async def write(number: int) -> None:
            for part in range(3):
                await store.session(f"s-{number % 10}").append(said(f"{number}.{part}", "answer"))

        killing = asyncio.create_task(kill())
        await asyncio.gather(*map(write, range(1000)))
        done.set()
        assert await killing > 3
        found = Counter[str]()
        for number in range(10):
            texts = await texts_of(store, f"s-{number}")
            assert texts[1::2] == ["answer"] * (len(texts) // 2)
            found.update(texts[::2])
        assert found == Counter(f"{number}.{part}" for number in range(1000) for part in range(3))


async def test_idle_connections_that_the_server_has_closed_are_not_noticed(server: Server) -> None:
    async with open_store(server.url()) as store:
        for number in range(5):
            await asyncio.gather(*(store.session(str(each)).append(said(str(number))) for each in range(50)))
            server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await texts_of(store, "7") == [str(each) for each in range(number + 1)]
            server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


# Time


async def test_a_server_that_does_not_answer_costs_no_more_than_the_timeout(server: Server) -> None:
    async with open_store(server.url(), timeout=0.5, connect_timeout=0.5) as store:
        session = store.session("s")
        await session.append(said("one"))
        server.signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(StoreTimeoutError):
            await session.messages()
        with pytest.raises((OutcomeUnknownError, StoreTimeoutError)):
            await session.append(said("two"), batch_id="two")
        assert time.monotonic() - began < HANGS
        server.signal(signal.SIGCONT)
        await session.append(said("two"), batch_id="two")
        assert await texts_of(store) == ["one", "two"]


async def test_an_answer_that_comes_too_late_is_given_to_nobody_else(proxy: Proxy, prefix: str) -> None:
    async with open_store(proxy.url(prefix=prefix), timeout=0.5) as store:
        names = [f"s-{number}" for number in range(30)]
        await asyncio.gather(*(store.session(name).append(said(name)) for name in names))
        for _ in range(3):
            proxy.silent = True
            late = await asyncio.gather(*(texts_of(store, name) for name in names), return_exceptions=True)
            assert {type(each) for each in late} == {StoreTimeoutError}
            proxy.speak()
            assert await asyncio.gather(*(texts_of(store, name) for name in names)) == [[name] for name in names]


async def test_readers_that_are_cancelled_leave_no_answer_for_others(prefix: str) -> None:
    async with open_store(servers.shared().url(prefix=prefix)) as store:
        names = [f"s-{number}" for number in range(100)]
        await asyncio.gather(*(store.session(name).append(said(name)) for name in names))
        for delay in range(20):
            tasks = {name: asyncio.create_task(texts_of(store, name)) for name in names}
            for _ in range(delay):
                await asyncio.sleep(0)
            for name in names[::2]:
                tasks[name].cancel()
            await asyncio.wait(tasks.values())
            assert [tasks[name].result() for name in names[1::2]] == [[name] for name in names[1::2]]


# A server that refuses


async def test_out_of_memory_is_said_nothing_is_half_written_and_what_frees_memory_works(server: Server) -> None:
    async with open_store(server.url(), max_messages=4) as store:
        session = store.session("s")
        for number in range(4):
            await session.append([ChatMessage.user(f"{number}", id=f"id-{number}"), ChatMessage.assistant("yes")])
        await store.session("other").append(said("hello"))
        server.call("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
        before, texts = digest(server), await texts_of(store)
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: session.append([ChatMessage.user("4", id="id-4"), ChatMessage.assistant("no")]),
            lambda: session.append(said("4"), batch_id="4"),
            lambda: session.replace(session_tail, ChatMessage.user("other")),
            lambda: session.state.set("k", 1),
            lambda: session.update(title="title"),
            lambda: store.session("new").append(said("hello")),
            lambda: store.scoped(tenant="t").session("new").append(said("hello")),
        ]
        session_tail = (await session.messages()).tail.seq
        for call in refused:
            with pytest.raises(StoreUnavailableError, match="maxmemory"):
                await call()
        assert await texts_of(store) == texts, "it can be read all the same"
        assert digest(server) == before
        assert await store.session("other").delete()
        assert await session.pop() != []
        server.call("CONFIG", "SET", "maxmemory", "0")
        await session.append(said("5"))


async def test_a_read_only_replica_can_be_read_and_says_why_it_is_not_written_to(
    tmp_path: Path, server: Server
) -> None:
    with servers.plain(tmp_path / "replica", replicaof=f"127.0.0.1 {server.port}") as replica:
        async with open_store(server.url()) as store:
            await store.session("s").append(said("one"))
        servers.patiently(lambda: replica.call("INFO", "replication")["master_link_status"] == "up", "replication")
        servers.patiently(lambda: replica.call("DBSIZE") == server.call("DBSIZE"), "replication of every key")
        async with open_store(replica.url(), timeout=2.0, connect_timeout=0.5) as store:
            assert (await store.ping()).details["role"] == "replica"
            assert await texts_of(store) == ["one"]
            assert [info.id for info in await store.list_sessions()] == ["s"]
            for call in (
                lambda: store.session("s").append(said("two")),
                lambda: store.session("new").append(said("two")),
                lambda: store.session("s").delete(),
            ):
                with pytest.raises(StoreUnavailableError, match="replica"):
                    await call()
            replica.call("REPLICAOF", "NO", "ONE")
            await store.session("s").append(said("two"))
            assert await texts_of(store) == ["one", "two"]


async def test_a_server_that_is_loading_is_waited_for(tmp_path: Path) -> None:
    # It takes 30 µs more for each key, and looks after its connections every 1 KiB.
    slow = {"key_load_delay": "30", "loading_process_events_interval_bytes": "1024"}
    with servers.plain(tmp_path / "server", **slow) as server:
        # What is waited for is the longer of the two.
        async with open_store(server.url(), timeout=HANGS, connect_timeout=0.5) as store:
            await store.session("s").append(said("one"))
            with server.client() as client:
                client.mset({f"key-{number}": "x" * 100 for number in range(30_000)})
            server.call("SAVE")
            server.kill()
            server.start()
            with pytest.raises(Exception, match=r"(?i)loading"):
                server.call("GET", "key-1", attempts=1)
            assert await texts_of(store) == ["one"]
            await store.session("s").append(said("two"))
            assert await texts_of(store) == ["one", "two"]


async def test_a_server_that_goes_on_loading_is_unavailable_with_the_reason(tmp_path: Path) -> None:
    slow = {"key_load_delay": "300", "loading_process_events_interval_bytes": "1024"}
    with servers.plain(tmp_path / "server", **slow) as server:
        with server.client() as client:
            client.mset({f"key-{number}": "x" * 100 for number in range(30_000)})
        server.call("SAVE")
        server.kill()
        server.start()
        store = open_store(server.url(), timeout=2.0, connect_timeout=2.0)
        with pytest.raises(StoreUnavailableError, match=r"(?i)loading"):
            await store.session("s").append(said("one"))
        await store.close()
        server.kill()


async def test_keys_that_are_somebody_elses_are_an_error_that_names_them_and_stay_as_they_are(server: Server) -> None:
    async with open_store(server.url()) as store:
        await store.session("s").append(said("one"))
        with server.client() as client:
            for key in client.keys("*"):
                client.delete(key)
                client.set(key, "mine")
        before = digest(server)
        for call in (lambda: store.session("s").append(said("two")), store.session("s").messages):
            with pytest.raises(StoreError, match=r"prefix"):
                await call()
        assert digest(server) == before


# Between catalogue and session


@pytest.mark.parametrize("fault", FAULTS)
async def test_listing_and_erasing_survive_a_crash_at_any_trip_of_a_first_write(server: Server, fault: Fault) -> None:
    limits = {"timeout": 1.0, "connect_timeout": 0.3}
    writes: list[Callable[[Store[ChatMessage]], Awaitable[object]]] = [
        lambda store: store.scoped(tenant="acme", user="alice").session("s").append(said("hello", "yes")),
        lambda store: store.scoped(tenant="acme").state.set("k", 1),
    ]
    async with Proxy(server.port) as proxy:
        for write in writes:
            for at in range(1, 30):  # those of further connections that shake hands are among them
                server.call("FLUSHALL")
                store = open_store(proxy.url(), **limits)
                await reached(store)
                async with store:
                    proxy.lose(fault, at=at, for_good=True)
                    try:
                        await write(store)
                    except ChatkeepError:
                        assert proxy.lost
                    else:
                        assert not proxy.lost, "nobody could have been told that it was written"
                await proxy.shut()
                await proxy.open()
                if not proxy.lost:
                    proxy.lose_nothing()
                    break
                async with open_store(server.url()) as store:
                    tenant = store.scoped(tenant="acme")
                    session = tenant.scoped(user="alice").session("s")
                    exists = await session.exists()
                    assert len(await tenant.list_sessions(below=True)) == exists
                    assert [message.text for message in await session.messages()] == ["hello", "yes"] * exists
                    kept = bool(await tenant.state.items())
                    receipt = await tenant.erase()
                    assert (receipt.sessions, receipt.messages, receipt.state_keys) == (exists, 2 * exists, kept)
                    assert not await session.exists()
                    assert await tenant.state.items() == {}
                    await session.append(said("again"))
                    assert [info.id for info in await tenant.list_sessions(below=True)] == ["s"]
                    assert (await tenant.erase()).sessions == 1
            else:
                pytest.fail("a first write takes more than thirty trips")


async def test_an_erasure_that_crashed_is_done_by_the_next_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Proxy(server.port) as proxy:
        for at in range(1, 50):
            server.call("FLUSHALL")
            async with open_store(server.url()) as store:
                for tenant in ("acme", "other"):
                    view = store.scoped(tenant=tenant)
                    await view.state.set("k", 1)
                    for number in range(3):
                        await view.scoped(user=f"u-{number}").session("s").append(said("hello"))
            store = open_store(proxy.url(), timeout=1.0, connect_timeout=0.3)
            await reached(store)
            proxy.lose("reply", at=at, for_good=True)
            try:
                await store.scoped(tenant="acme").erase()
            except ChatkeepError:
                assert proxy.lost
            await store.close()
            await proxy.shut()
            await proxy.open()
            if not proxy.lost:
                break
            async with open_store(server.url()) as store:
                await store.scoped(tenant="acme").erase()
                assert await store.scoped(tenant="acme").list_sessions(below=True) == []
                assert await store.scoped(tenant="acme").state.items() == {}
                assert len(await store.scoped(tenant="other").list_sessions(below=True)) == 3
                await store.scoped(tenant="other").erase()
                with monkeypatch.context() as patch:  # a minute later, when no writer may be about to begin a session
                    patch.setattr("chatkeep_redis.backend.OLD", 0)
                    await store.scoped(tenant="acme").erase()
                assert server.call("DBSIZE") == 0, "nothing is left behind"
        else:
            pytest.fail("erasing three sessions takes fifty trips")


# Keys


async def test_memory_does_not_grow_with_what_was_trimmed(server: Server) -> None:
    names = count()

    async def append(store: Store[ChatMessage], times: int) -> None:
        for _ in range(times):
            number = next(names)
            await store.session("s").append(
                [ChatMessage.user(f"question {number:07}", id=f"id-{number:07}"), ChatMessage.assistant("answer")],
                batch_id=f"batch-{number:07}" if number % 2 else None,
            )

    def used() -> int:
        with server.client() as client:
            return sum(client.memory_usage(key, samples=0) for key in client.scan_iter())

    async with open_store(server.url(), max_messages=50, ttl="1h") as store:
        await append(store, 1_500)  # until it knows as many ids as it ever will
        keys, before = server.call("DBSIZE"), used()
        await append(store, 10_000)
        assert server.call("DBSIZE") == keys
        assert used() < 1.1 * before
        assert len(await store.session("s").messages()) == 50


async def test_expiry_costs_the_same_however_many_logs_a_session_has(server: Server) -> None:
    def expiries() -> int:
        with server.client() as client:
            stats = client.info("commandstats")
        return sum(
            stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("expire", "pexpire", "expireat", "pexpireat")
        )

    def expiring() -> dict[str, int]:
        with server.client() as client:
            return {key: client.execute_command("PEXPIRETIME", key) for key in client.scan_iter()}

    async with open_store(server.url(), ttl="1h") as store:
        costs = []
        for name, logs in {"few": 1, "many": 50}.items():
            session = store.session(name)
            await session.state.set("k", 1)
            for number in range(logs):
                await session.log(f"log-{number}").append([ChatMessage.user("x", id="x")])
            before = expiries()
            for _ in range(10):
                await session.append(said("hello"))
            costs.append(expiries() - before)
        assert costs[0] == costs[1] > 0
        await asyncio.sleep(0.02)
        await store.session("many").log("log-7").append(said("hello"))
        for head in [key for key in expiring() if key.endswith("}head")]:
            tag = head.removesuffix("head")
            times = {key.removeprefix(tag): instant for key, instant in expiring().items() if key.startswith(tag)}
            assert times.keys() == {"head", "order", "known", "values", "recent"}
            assert times.pop("recent") > 0, "which is kept for a while of its own"
            assert len(set(times.values())) == 1, times
            assert max(times.values()) > 0


# Failover


async def keep_writing(store: Store[ChatMessage], numbers: range, then: Callable[[int], None]) -> list[int]:
    """Append numbers one after the other, each again until it is acknowledged; `then` is called after each."""
    refused = []
    for number in numbers:
        async with asyncio.timeout(HANGS):
            while True:
                try:
                    await store.session("s").append(said(f"{number}", "yes"), batch_id=f"{number}")
                    break
                except (StoreUnavailableError, OutcomeUnknownError):
                    refused.append(number)
        then(number)
    return refused


def check_history(texts: list[str], numbers: range, *, may_lack: range) -> list[int]:
    """Each turn is there once and in order, but for one stretch of those that may be missing; returns that stretch."""
    assert texts[1::2] == ["yes"] * (len(texts) // 2)
    found = [int(text) for text in texts[::2]]
    assert len(found) == len(set(found)), "a turn is doubled"
    assert found == sorted(found)
    missing = [number for number in numbers if number not in set(found)]
    assert set(missing) <= set(may_lack)
    return missing


@pytest.fixture
def own_replicated(tmp_path: Path) -> Any:
    """A master and a replica under three sentinels, to be harmed."""
    with Replicated(tmp_path / "replicated") as started:
        yield started


async def test_a_failover_in_the_middle_of_a_thousand_appends_doubles_nothing_and_loses_no_more_than_redis_does(
    own_replicated: Replicated,
) -> None:
    """What the master had acknowledged and not passed on is lost with it: the newest before its death, no others."""
    killed_at, old = 300, own_replicated.master()
    assert old is not None

    def then(number: int) -> None:
        if number == killed_at:
            old.kill()

    async with open_store(own_replicated.url(), timeout=10.0, connect_timeout=5.0) as store:
        await keep_writing(store, range(1000), then)
        missing = check_history(await texts_of(store), range(1000), may_lack=range(killed_at + 1))
        assert missing == list(range(killed_at + 1))[killed_at + 1 - len(missing) :], "older ones than the newest"


async def test_no_call_fails_while_sentinels_make_another_master(own_replicated: Replicated) -> None:
    old = own_replicated.master()
    assert old is not None
    async with open_store(own_replicated.url(), timeout=HANGS, connect_timeout=0.5) as store:
        await store.session("s").append(said("one"))
        servers.patiently(lambda: own_replicated.nodes[1].call("DBSIZE") == old.call("DBSIZE"), "replication")
        old.kill()
        writes = (store.session("s").append(said(text)) for text in ("two", "three"))
        await asyncio.gather(*writes, store.session("s").messages(), store.session("new").append(said("hello")))
        assert len(await texts_of(store)) == 3


async def test_with_a_replica_to_wait_for_a_failover_loses_nothing(own_replicated: Replicated) -> None:
    killed_at = 300

    def then(number: int) -> None:
        if number == killed_at:
            own_replicated.fail_over()

    # The replica that is left has none of its own to wait for.
    async with open_store(own_replicated.url(wait_replicas=1), timeout=10.0, connect_timeout=5.0) as store:
        await keep_writing(store, range(killed_at + 1), then)
    async with open_store(own_replicated.url(), timeout=10.0, connect_timeout=5.0) as store:
        await keep_writing(store, range(killed_at + 1, 1000), lambda _: None)
        assert check_history(await texts_of(store), range(1000), may_lack=range(0)) == []


async def test_a_master_that_becomes_a_replica_is_left_for_its_successor(own_replicated: Replicated) -> None:
    old = own_replicated.master()
    assert old is not None

    def then(number: int) -> None:
        if number == 300:
            own_replicated.sentinels[0].call("SENTINEL", "FAILOVER", Replicated.NAME)
            servers.patiently(lambda: own_replicated.master() not in (old, None), "another master")
            new = own_replicated.master()
            assert new is not None
            old.call("REPLICAOF", "127.0.0.1", new.port)  # as a sentinel will tell it after 8 seconds

    async with open_store(own_replicated.url(), timeout=10.0, connect_timeout=5.0) as store:
        await keep_writing(store, range(1000), then)
        assert check_history(await texts_of(store), range(1000), may_lack=range(0)) == []
