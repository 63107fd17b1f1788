"""What the Redis backend does beyond the contract: trips, keys, catalogues, the stored layout, URLs."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError
from tests.redis.proxy import Proxy
from tests.redis.servers import Server

from chatkeep import ChatMessage, Store, open_store
from chatkeep.errors import (
    ConfigError,
    InvalidURLError,
    OutcomeUnknownError,
    StoreError,
    StoreFormatError,
    StoreUnavailableError,
)
from chatkeep.records import RECENT, Key, Scope, Write
from chatkeep_redis import catalogue as catalogues
from chatkeep_redis import failures
from chatkeep_redis.backend import RedisBackend
from chatkeep_redis.clients import Sentinels
from chatkeep_redis.options import SCHEMES, RedisOptions

LATE = 60.0
"""Seconds that nothing here takes, unless it hangs."""


def said(*texts: str) -> list[ChatMessage]:
    """A turn."""
    first, *rest = texts
    return [ChatMessage.user(first), *map(ChatMessage.assistant, rest)]


def backend_of(store: Store[Any]) -> RedisBackend:
    backend = store.backend
    assert isinstance(backend, RedisBackend)
    return backend


def calls(server: Server) -> dict[str, int]:
    """How often each command was called since `forget_calls`, by scripts or not."""
    with server.client() as client:
        stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


def forget_calls(server: Server) -> None:
    server.call("CONFIG", "RESETSTAT")


# Trips


async def test_a_commit_and_a_reading_are_one_command_each(server: Server) -> None:
    async with open_store(server.url(), max_messages=10, ttl="30d") as store:
        session = store.session("s")
        await session.append(said("one", "two"))
        await session.state.items()  # so that the server knows every script
        steps: list[Callable[[], Awaitable[object]]] = [
            lambda: session.append(said("three", "four")),
            lambda: session.append([ChatMessage.user("five", id="five")], batch_id="b"),
            lambda: session.state.set("k", 1),
            lambda: session.update(title="title"),
            lambda: session.messages(last=20),
            session.messages,
            session.info,
            session.state.items,
            lambda: session.log("other").append(said("one")),
            lambda: session.truncate_after(3),
        ]
        for number, step in enumerate(steps):
            forget_calls(server)
            await step()
            made = calls(server)
            asked = made.get("evalsha", 0) + made.get("exec", 0) + made.get("eval", 0)
            assert asked == 1, f"step {number}: {made}"


async def test_a_session_begins_with_a_few_trips_and_its_place_is_renewed_now_and_then(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(server.url()) as store:
        await store.session("warm").append(said("up"))
        forget_calls(server)
        await store.session("s").append(said("one"))
        assert calls(server)["evalsha"] <= 7
        monkeypatch.setattr(catalogues, "EXACT", 0.0)
        forget_calls(server)
        await store.session("s").append(said("two"))
        assert calls(server)["evalsha"] == 2


async def test_nothing_looks_through_all_keys_or_throws_them_away(server: Server) -> None:
    async with open_store(server.url(), ttl="30d", max_messages=4) as store:
        view = store.scoped(tenant="acme")
        for number in range(5):
            await view.session(f"s-{number}").append(said("one", "two"))
        await view.list_sessions(below=True)
        await store.list_sessions(below=True)
        await view.session("s-1").delete()
        await view.purge(older_than=0)
        await view.erase()
        await store.sweep()
        await store.ping()
    assert not {"keys", "scan", "flushall", "flushdb", "hscan", "zscan", "randomkey"} & calls(server).keys()


async def test_no_more_connections_are_made_than_the_store_may_have(server: Server) -> None:
    async with open_store(server.url(), connections=2) as store:
        await asyncio.gather(*(store.session(f"s-{number}").append(said("hello")) for number in range(500)))
        with server.client() as client:
            assert len(client.client_list()) - 1 <= 2


# Keys


async def test_all_keys_of_a_session_have_one_tag_and_the_prefix_and_go_with_it(server: Server) -> None:
    async with open_store(server.url(prefix="my:")) as store:
        session = store.session("}{ of braces {}")
        await session.append([ChatMessage.user("x", id="x")], batch_id="b")
        await session.state.set("k", 1)
        for number in range(20):
            await session.log(f"log {number}").append(said("x"))
        with server.client() as client:
            keys = sorted(client.scan_iter())
            tags = {key[: key.index("}") + 1] for key in keys}
            assert all(key.startswith("my:{") for key in keys)
            assert len(tags) == 3, "the session's, the catalogue's, that of the scopes"
            mine = [key for key in keys if key.endswith(("head", "order", "known", "values", "recent"))]
            assert len(mine) == 5
            await session.delete()
            (left,) = [key for key in client.scan_iter() if key in mine]
            assert left.endswith("recent"), "so that a deletion that is sent again is known"
            assert 0 < client.pttl(left) <= 60_000


async def test_stores_with_other_prefixes_or_databases_see_nothing_of_each_other(server: Server) -> None:
    urls = [server.url(prefix=prefix) for prefix in ("a:", "a:b:", "", "chatkeep:")] + [server.url(1)]
    for number, url in enumerate(urls):
        async with open_store(url) as store:
            await store.session("s").append(said(str(number)))
            await store.state.set("k", number)
    for number, url in enumerate(urls):
        async with open_store(url) as store:
            assert [message.text for message in await store.session("s").messages()] == [str(number)]
            assert len(await store.list_sessions(below=True)) == 1
            assert (await store.purge(older_than=0)).sessions == 1
            assert await store.state.get("k") == number


async def test_the_tokens_that_are_remembered_are_bounded_and_forgotten_after_a_while(server: Server) -> None:
    async with open_store(server.url()) as store:
        session = store.session("s")
        for _ in range(5):
            await asyncio.gather(*(session.append(said("x")) for _ in range(100)))
        with server.client() as client:
            (recent,) = client.scan_iter(match="*recent")
            tokens = client.execute_command("HKEYS", recent, NEVER_DECODE=[])
            assert RECENT <= len([name for name in tokens if len(name) == 16]) <= 2 * RECENT
            assert client.pttl(recent) > 0


# Tokens


async def test_a_deletion_that_is_sent_again_answers_as_it_did(server: Server) -> None:
    async with open_store(server.url()) as store:
        await store.session("s").append(said("one"))
        write = Write(b"0123456789abcdef", delete=True, must_exist=True)
        first = await store.backend.commit(Key(Scope(), "s"), write)
        assert first.life
        assert await store.backend.commit(Key(Scope(), "s"), write) == first
        await store.session("s").append(said("another life"))
        assert await store.backend.commit(Key(Scope(), "s"), write) == first
        assert await store.session("s").count() == 1


async def test_a_batch_that_the_store_sends_again_itself_is_answered_as_before_and_one_of_its_callers_is_known(
    server: Server,
) -> None:
    async with Proxy(server.port) as proxy, open_store(proxy.url()) as store:
        await store.session("s").append(said("one"))
        proxy.lose("reply")
        first = await store.session("s").append(said("two", "three"), batch_id="b")
        assert proxy.lost
        assert (first.added, first.seqs) == (2, (2, 3))
        again = await store.session("s").append(said("two", "three"), batch_id="b")
        assert (again.added, again.seqs) == (0, (2, 3))
        assert await store.session("s").count() == 3


async def test_a_write_that_too_few_replicas_confirm_is_of_unknown_outcome_and_stored(server: Server) -> None:
    async with open_store(server.url()) as store:
        await store.session("s").append(said("one"))
    async with open_store(server.url(), wait_replicas=1, wait_timeout=0.05) as store:
        with pytest.raises(OutcomeUnknownError, match="0 of 1 replicas"):
            await store.session("s").append(said("two"))
        assert [message.text for message in await store.session("s").messages()] == ["one", "two"]


async def test_a_new_session_whose_first_write_too_few_replicas_confirm_is_stored_and_sent_again_stored_once(
    server: Server,
) -> None:
    async with open_store(server.url(), wait_replicas=1, wait_timeout=0.05) as store:
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError, match="0 of 1 replicas"):
                await store.session("s").append(said("one", "two"), batch_id="b")
        assert [message.text for message in await store.session("s").messages()] == ["one", "two"]
        assert [info.id for info in await store.list_sessions()] == ["s"]


# What the driver raises


class Moody(redis.CredentialProvider):
    """Has a password only while it is `well`."""

    well = True

    async def get_credentials_async(self) -> tuple[str, str]:
        if not self.well:
            raise RuntimeError("no token today")
        return "default", "any"


async def test_whatever_the_driver_raises_comes_at_once_to_all_who_wait(server: Server) -> None:
    provider = Moody()
    server.call("CONFIG", "SET", "requirepass", "any")
    client = redis.asyncio.Redis(port=server.port, credential_provider=provider)
    provider.well = False
    store = open_store("redis://", client=client, timeout=LATE, connect_timeout=LATE)
    async with client:

        async def ask(number: int) -> None:
            with pytest.raises(StoreError, match="RuntimeError: no token today") as met:
                await store.session(f"s-{number}").append(said("x"))
            assert isinstance(met.value.__cause__, RuntimeError)

        async with asyncio.timeout(LATE / 2):
            await asyncio.gather(*map(ask, range(10)))
            provider.well = True
            await store.session("s").append(said("x"))
            provider.well = False
            await client.connection_pool.disconnect()
            await asyncio.gather(*map(ask, range(10)))
            provider.well = True
            assert await store.session("s").count() == 1
        await store.close()


# Connections


async def test_a_pool_that_is_smaller_than_the_store_would_like_is_enough(server: Server) -> None:
    url = server.url(max_connections=1, prefix="url:")
    client = redis.asyncio.Redis(port=server.port, max_connections=3)
    pool: Any = client.connection_pool
    taken = [await pool.get_connection() for _ in range(2)]
    waits = redis.asyncio.Redis(
        connection_pool=redis.asyncio.BlockingConnectionPool(port=server.port, max_connections=1)
    )
    stores = [open_store(url), *(open_store("redis://", client=own) for own in (client, waits))]
    async with client, waits:
        for store in stores:
            for _ in range(3):
                await asyncio.gather(*(store.session(f"s-{number}").append(said("x")) for number in range(200)))
            assert len(await store.list_sessions(limit=1000)) == 200
            await store.close()
        await waits.connection_pool.disconnect()
        for connection in taken:
            await pool.release(connection)


async def test_where_no_connection_is_free_one_is_waited_for(server: Server) -> None:
    client = redis.asyncio.Redis(port=server.port, max_connections=1)
    pool: Any = client.connection_pool
    async with client, open_store("redis://", client=client) as store:
        await store.ping()
        [lane] = backend_of(store)._servers._pipelines[""].lanes  # type: ignore[union-attr]
        await lane.release(disconnect=False)
        taken = await pool.get_connection()
        writing = asyncio.create_task(store.session("s").append(said("x")))
        await asyncio.sleep(0.1)
        assert not writing.done()
        await pool.release(taken)
        assert (await writing).added == 1


async def test_no_sentinel_is_lost_where_many_ask_at_once_while_the_first_is_away() -> None:
    sentinels = Sentinels([("a", 1), ("b", 2), ("c", 3)])
    known = set(sentinels.sentinels)

    async def no_answer() -> Any:
        await asyncio.sleep(0)
        raise redis.ConnectionError

    async def answer() -> Any:
        await asyncio.sleep(0)
        flags = {"is_master": True, "is_sdown": False, "is_odown": False, "num-other-sentinels": 2}
        return {"main": {"ip": "a", "port": 7, **flags}}

    for sentinel, masters in zip(sentinels.sentinels, (no_answer, no_answer, answer), strict=True):
        sentinel.sentinel_masters = masters
    found = await asyncio.gather(*(sentinels.discover_master("main") for _ in range(3)))
    assert found == [("a", 7)] * 3
    assert set(sentinels.sentinels) == known
    assert len(sentinels.sentinels) == 3


# Listings


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each write renew the session's place in the listing."""
    monkeypatch.setattr(catalogues, "EXACT", 0.0)


@pytest.mark.usefixtures("exact")
async def test_sessions_are_listed_by_their_last_write_whatever_that_was(server: Server) -> None:
    async with open_store(server.url()) as store:
        for number in range(6):
            await store.session(f"s{number}").append(said("x"))
        assert [info.id for info in await store.list_sessions()] == [f"s{number}" for number in (5, 4, 3, 2, 1, 0)]
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: store.session("s0").append(said("y")),
            lambda: store.session("s1").state.set("k", 1),
            lambda: store.session("s2").update(title="t"),
            lambda: store.session("s3").log("side").append(said("x")),
            lambda: store.session("s4").pop(),
        ]
        for place, write in enumerate(writes):
            await write()
            assert (await store.list_sessions(limit=1))[0].id == f"s{place}"
        await store.session("s5").messages()
        await store.scoped(user="u").session("s9").append(said("x"))
        assert [info.id for info in await store.list_sessions(below=True, limit=3)] == ["s9", "s4", "s3"]


@pytest.mark.parametrize("limit", [1, 7, 250])
async def test_sessions_of_one_instant_are_listed_by_id_each_on_one_page(server: Server, limit: int) -> None:
    async with open_store(server.url()) as store:
        names = sorted(f"s{number}" for number in range(150 if limit > 1 else 12))
        views = [store, store.scoped(user="u")]
        for view in views:
            await asyncio.gather(*(view.session(name).state.set("k", 1) for name in names))
        with server.client() as client:
            for key in client.scan_iter(match="*sessions"):
                client.zadd(key, dict.fromkeys(client.zrange(key, 0, -1), -1.7e15))
        seen: list[tuple[str, str | None]] = []
        after = None
        while True:
            page = await store.list_sessions(below=True, limit=limit, after=after)
            seen += [(info.id, info.scope.user) for info in page]
            after = page.next
            if after is None:
                break
            assert len(page) == limit
        assert [name for name, _ in seen] == sorted(2 * names)
        assert len(set(seen)) == len(seen) == 2 * len(names)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one instant"])
async def test_each_of_many_sessions_is_counted_and_removed_once(server: Server, together: bool) -> None:
    async with open_store(server.url()) as store:
        view = store.scoped(user="u")
        await asyncio.gather(*(view.session(f"s{number}").append(said("x", "y")) for number in range(350)))
        if together:
            with server.client() as client:
                (key,) = client.scan_iter(match="*sessions")
                client.zadd(key, dict.fromkeys(client.zrange(key, 0, -1), -1.7e15))
        for remove in (view.erase, lambda **options: view.purge(older_than=0, **options)):
            found = await remove(dry_run=True)
            assert (found.sessions, found.messages) == (350, 700)
        assert (await view.purge(older_than="1h")).sessions == 0
        assert (await view.erase()).sessions == 350
        assert [key for key in server.call("KEYS", "*") if not key.endswith("recent")] == []


async def test_what_has_expired_is_swept_out_of_the_catalogues(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def entries() -> int:
        with server.client() as client:
            return sum(client.zcard(key) for key in client.scan_iter(match="*sessions"))

    monkeypatch.setattr("chatkeep_redis.backend.OLD", 0)
    async with open_store(server.url()) as store:
        await store.scoped(tenant="a").session("stays").append(said("x"))
        async with open_store(server.url(), ttl=0.05) as short:
            for tenant in ("a", "b", "c"):
                for number in range(4):
                    await short.scoped(tenant=tenant).session(f"s{number}").append(said("x"))
        assert entries() == 13
        await asyncio.sleep(0.1)
        assert [info.id for info in await store.list_sessions(below=True)] == ["stays"]
        assert [(await store.sweep(budget=5)).expired for _ in range(4)] == [5, 5, 2, 0]
        assert entries() == 1
        assert [info.id for info in await store.list_sessions(below=True)] == ["stays"]


async def test_whoever_begins_sessions_looks_after_those_that_have_expired(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatkeep_redis.backend.OLD", 0)
    async with open_store(server.url(), ttl=0.05) as store:
        for number in range(100):
            await store.session(f"s{number}").append(said("x"))
            await asyncio.sleep(0.005)
        with server.client() as client:
            (key,) = client.scan_iter(match="*sessions")
            assert client.zcard(key) < 60


# Between catalogue and session


async def test_a_session_that_begins_anew_while_another_is_deleting_it_stays_in_the_listing(server: Server) -> None:
    async with open_store(server.url()) as store, open_store(server.url()) as other:
        backend = backend_of(store)
        drop = backend.catalogue.drop

        async def begin_and_drop(*args: Any) -> tuple[int, int]:
            await other.session("s").append(said("again"))
            return await drop(*args)

        for delete in (
            lambda: store.session("s").delete(),
            lambda: store.scoped(app="a").erase(),
            lambda: store.purge(older_than=0),
        ):
            await store.session("s").append(said("x"))
            await store.scoped(app="a").session("s").append(said("x"))
            backend.catalogue.drop = begin_and_drop  # type: ignore[method-assign]
            await delete()
            backend.catalogue.drop = drop  # type: ignore[method-assign]
            assert [info.id for info in await store.list_sessions()] == ["s"]
            assert await store.session("s").count() > 0
            await store.purge(older_than=0)


async def test_a_session_that_cannot_be_catalogued_does_not_begin(server: Server) -> None:
    async with open_store(server.url()) as store:
        await store.open()
        backend = backend_of(store)

        async def fail(key: Key) -> None:
            raise StoreUnavailableError("no catalogue")

        enter, backend.catalogue.enter = backend.catalogue.enter, fail  # type: ignore[method-assign]
        for write in (store.session("s").append(said("x")), store.state.set("k", 1)):
            with pytest.raises(StoreUnavailableError, match="no catalogue"):
                await write
        backend.catalogue.enter = enter  # type: ignore[method-assign]
        assert not await store.session("s").exists()
        assert await store.state.get("k") is None
        assert server.call("DBSIZE") == 0


async def test_who_writes_to_a_session_that_is_in_no_catalogue_puts_it_there(server: Server) -> None:
    async with open_store(server.url()) as store:
        await store.open()
        backend = backend_of(store)
        enter, entered = backend.catalogue.enter, 0

        async def fail_the_second_time(key: Key) -> None:
            nonlocal entered
            entered += 1
            if entered == 2:
                raise StoreUnavailableError("gone")
            await enter(key)

        backend.catalogue.enter = fail_the_second_time  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknownError):
            await store.session("s").append(said("x"), batch_id="b")
        with server.client() as client:
            client.delete(*client.scan_iter(match="*sessions"))  # as if somebody had dropped it meanwhile
        assert await store.list_sessions() == []
        assert (await store.session("s").append(said("x"), batch_id="b")).added == 0
        assert await store.session("s").count() == 1
        assert [info.id for info in await store.list_sessions()] == ["s"]


# The stored layout


async def test_what_a_later_version_has_written_is_refused_in_words(server: Server) -> None:
    async with open_store(server.url()) as store:
        session = store.session("s")
        await session.append(said("x"))
        with server.client() as client:
            (head,) = client.scan_iter(match="*head")
            packed = client.execute_command("HGET", head, "h", NEVER_DECODE=[])
            client.hset(head, "h", b"2" + packed[1:])
        for call in (
            lambda: session.append(said("y")),
            session.messages,
            session.info,
            lambda: session.state.set("k", 1),
            lambda: session.state.get("k"),
            session.delete,
        ):
            with pytest.raises(StoreFormatError, match=r"format 2.*knows 1.*upgrade"):
                await call()
        assert await store.list_sessions() == [], "others are listed all the same"


async def test_keys_that_are_another_sessions_are_not_written_to(server: Server) -> None:
    async with open_store(server.url()) as store:
        session = store.session("s")
        await session.append(said("x"))
        with server.client() as client:
            (head,) = client.scan_iter(match="*head")
            client.hset(head, "k", "other")
        for call in (lambda: session.append(said("y")), session.messages, lambda: session.state.get("k")):
            with pytest.raises(StoreError, match="another"):
                await call()


async def test_messages_that_the_server_has_thrown_away_are_missed(server: Server) -> None:
    async with open_store(server.url()) as store:
        session = store.session("s")
        await session.append(said("x", "y"))
        with server.client() as client:
            client.delete(*client.scan_iter(match="*order"))
        for call in (session.messages, lambda: session.messages(last=1)):
            with pytest.raises(StoreError, match=r"of 2 messages only 0 .*noeviction"):
                await call()


async def test_ping_says_which_server_it_is(server: Server) -> None:
    async with open_store(server.url(prefix="my:")) as store:
        health = await store.ping()
        assert health.backend == "redis"
        assert health.server.startswith(("Redis ", "Valkey "))
        assert health.details == {"mode": "standalone", "role": "master", "prefix": "my:"}


# URLs


def settings(url: str, **options: Any) -> dict[str, Any]:
    """What the driver connects with."""
    client = backend_of(open_store(url, **options))._make()  # type: ignore[misc]
    if isinstance(client, redis.asyncio.RedisCluster):
        return {**client.connection_kwargs, "nodes": sorted(client.nodes_manager.startup_nodes)}
    return cast("dict[str, Any]", client.connection_pool.connection_kwargs)


def test_names_passwords_and_driver_options_reach_the_driver_untouched() -> None:
    query = "client_name=a%20b&socket_timeout=2.5&health_check_interval=7&ttl=30d&prefix=p%3A"
    for scheme in ("redis", "valkey"):
        found = settings(f"{scheme}://us%40er:p%3Ass%2F%25@example.org:7000/3?{query}")
        expected = {
            "username": "us@er",
            "password": "p:ss/%",
            "host": "example.org",
            "port": 7000,
            "db": 3,
            "client_name": "a b",
            "socket_timeout": 2.5,
            "health_check_interval": 7,
        }
        assert expected.items() <= found.items()
        assert not {"ttl", "prefix"} & found.keys()
    assert settings("unix://us:pw@/run/redis%20a.sock?db=2")["path"] == "/run/redis a.sock"
    for scheme in ("rediss", "valkeys"):
        client = backend_of(open_store(f"{scheme}://host?ssl_ca_certs=ca.pem"))._make()  # type: ignore[misc]
        assert issubclass(client.connection_pool.connection_class, SSLConnection)
        assert client.connection_pool.connection_kwargs["ssl_ca_certs"] == "ca.pem"


def test_timeouts_are_ours_unless_the_driver_is_told_its_own() -> None:
    found = settings("redis://host", connect_timeout=3.0)
    assert (found["socket_timeout"], found["socket_connect_timeout"]) == (None, 3.0)
    found = settings("redis://host?socket_connect_timeout=9", connect_timeout=3.0)
    assert found["socket_connect_timeout"] == 9.0


def test_sentinels_and_clusters_have_several_hosts() -> None:
    url = "redis+sentinel://u:p%40@[::1]:7,b,c:9/main/2?sentinel_username=su&sentinel_password=sp&ssl=true"
    pool = backend_of(open_store(url))._make().connection_pool  # type: ignore[misc]
    assert (pool.service_name, pool.connection_kwargs["db"]) == ("main", 2)
    assert (pool.connection_kwargs["username"], pool.connection_kwargs["password"]) == ("u", "p@")
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("::1", 7), ("b", 26379), ("c", 9)]
    assert {(each["username"], each["password"]) for each in asked} == {("su", "sp")}
    found = settings("redis+cluster://u:p%40@a:1,b/?ssl=false&client_name=c&require_full_coverage=false")
    assert found["nodes"] == ["a:1", "b:6379"]
    assert (found["username"], found["password"], found["client_name"]) == ("u", "p@", "c")


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("redis://host/0?max_mesages=3", ConfigError, "Did you mean max_messages"),
        ("redis://host/0?socket_timeut=3", ConfigError, "Did you mean socket_timeout"),
        ("redis://host?db=one", InvalidURLError, "'db'"),
        ("redis://host/abc", InvalidURLError, r"number of a database.*\?prefix="),
        ("redis://host/1/2", InvalidURLError, "number of a database"),
        ("redis://host/1?db=2", ConfigError, "given twice"),
        ("redis+sentinel://a/main/1?db=2", ConfigError, "given twice"),
        ("redis+cluster://host/1", InvalidURLError, "no database but 0"),
        ("redis+cluster://host?db=1", ConfigError, "db"),
        ("redis://host?host=other", ConfigError, "'host' is no option"),
        ("redis://host?port=7", ConfigError, "'port' is no option"),
        ("redis://host?path=/run/redis.sock", ConfigError, "'path' is no option"),
        ("redis://a:1,b:2/0", InvalidURLError, r"redis\+sentinel://.*redis\+cluster://"),
        ("unix://run/redis.sock", InvalidURLError, "three slashes"),
        ("unix://us:pw@run/redis.sock", InvalidURLError, "three slashes"),
        ("unix://?db=1", InvalidURLError, "three slashes"),
        ("redis://host?ssl=true", ConfigError, "use rediss://"),
        ("valkey://host?ssl_ca_certs=ca.pem", ConfigError, "use valkeys://"),
        ("rediss://host?ssl=true", ConfigError, "leave ssl out"),
        ("unix:///run/redis.sock?ssl_ca_certs=ca.pem", ConfigError, "leave ssl_ca_certs out"),
        ("redis+cluster://host?ssl_ca_certs=ca.pem", ConfigError, "add ssl=true"),
        ("redis+cluster://host?ssl=perhaps", ConfigError, "ssl=perhaps: expected true or false"),
        ("redis+cluster://host?reinitialize_steps=x", ConfigError, "reinitialize_steps=x: expected a whole number"),
        ("redis+cluster://host?require_full_coverage=x", ConfigError, "require_full_coverage=x: expected true"),
        ("redis+sentinel://host/main?min_other_sentinels=x", ConfigError, "min_other_sentinels=x: expected a whole"),
        ("redis://host?protocol=4", ConfigError, "protocol=4: expected 2 or 3"),
        ("rediss://host?ssl_cert_reqs=nope", ConfigError, "ssl_cert_reqs=nope: expected none, optional or required"),
        ("rediss://host?ssl_min_version=1", ConfigError, "ssl_min_version=1: expected TLSv1_2"),
        ("redis://host?min_other_sentinels=1", ConfigError, "the driver refuses.*min_other_sentinels"),
        ("redis+sentinel://host/main?reinitialize_steps=1", ConfigError, "the driver refuses.*reinitialize_steps"),
        ("redis+cluster://host?min_other_sentinels=1", ConfigError, "the driver refuses.*min_other_sentinels"),
        ("redis://host/0?prefix=a{b}", ConfigError, "braces"),
        ("redis://host/0?connections=0", ConfigError, "1 or more"),
        ("redis+sentinel://a,b", InvalidURLError, "name of the master"),
        ("redis+sentinel://a,b/main/two", InvalidURLError, "name of the master"),
        ("redis+sentinel://a:x,b/main", InvalidURLError, "host:port"),
        ("redis+cluster:///", InvalidURLError, "host:port"),
        ("redis+cluster://a/?wait_replicas=1", ConfigError, "wait_replicas"),
    ],
)
def test_what_is_wrong_in_a_url_is_said_at_once(url: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        open_store(url)


async def test_a_cluster_of_the_callers_does_not_wait_for_replicas() -> None:
    with pytest.raises(ConfigError, match="wait_replicas"):
        open_store("redis://", client=redis.asyncio.RedisCluster(host="host"), wait_replicas=1)


async def test_how_to_connect_is_for_a_client_of_the_callers_to_say() -> None:
    with pytest.raises(ConfigError, match="protocol, username beside client="):
        open_store("redis://?username=u&protocol=3&ttl=30d", client=redis.asyncio.Redis())
    for where in ("redis://host", "redis:///3?prefix=p:", "unix:///run/redis.sock", "redis+sentinel://a,b/main"):
        with pytest.raises(ConfigError, match="names no server and no database"):
            open_store(where, client=redis.asyncio.Redis())


@pytest.mark.parametrize("wrong", [redis.Redis(), object(), "redis://host"])
def test_a_client_that_is_none_of_the_drivers_asynchronous_ones_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"redis\.asyncio\.Redis"):
        open_store("redis://host", client=wrong)


def test_the_options_that_are_handed_on_are_the_drivers() -> None:
    kinds = (redis.asyncio.Redis, redis.asyncio.RedisCluster, redis.asyncio.Sentinel, AbstractConnection, Connection)
    known = {
        name
        for kind in (*kinds, SSLConnection)
        for name in inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    }
    newer = {
        "legacy_responses",
        "socket_read_size",
        "ssl_ca_path",
        "ssl_exclude_verify_flags",
        "ssl_include_verify_flags",
        "ssl_password",
    }
    assert RedisOptions.driver_options is not None
    assert RedisOptions.driver_options - known <= newer
    assert not RedisOptions.driver_options & RedisOptions.model_fields.keys()


def test_every_scheme_opens_a_store_and_imports_the_driver_for_it_alone() -> None:
    program = (
        "import sys, chatkeep_redis; assert 'redis' not in sys.modules; "
        "from chatkeep.plugins import installed_backends; installed_backends(); assert 'redis' not in sys.modules; "
        "from chatkeep import open_store; open_store('redis://host'); assert 'redis' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for scheme in SCHEMES:
        rest = "a,b/main" if scheme == "redis+sentinel" else "/run/redis.sock" if scheme == "unix" else "host"
        assert repr(open_store(f"{scheme}://{rest}"))


def test_the_scripts_are_part_of_the_package() -> None:
    import chatkeep_redis

    folder = Path(chatkeep_redis.__file__).parent / "scripts"
    assert {file.stem for file in folder.glob("*.lua")} == {"catalogue", "commit", "read", "remove", "state"}


# Errors


def no_node(reason: Exception) -> Exception:
    """What a cluster's client raises where no node has answered, for this reason, what nodes of a cluster answer."""
    error = redis.RedisClusterException("Redis Cluster cannot be connected. Please provide at least one reachable node")
    inner = redis.RedisClusterException("Cluster mode is not enabled on this node")
    error.__cause__, inner.__context__ = inner, reason
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            redis.ConnectionError("Error 111 connecting to host:1. Connection refused."),
            StoreUnavailableError,
            "refused",
        ),
        (redis.TimeoutError("Timeout connecting to server"), StoreUnavailableError, "reached"),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), StoreUnavailableError, "loading"),
        (redis.ReadOnlyError("You can't write against a read only replica."), StoreUnavailableError, "replica"),
        (
            redis.exceptions.OutOfMemoryError("used memory > 'maxmemory'."),
            StoreUnavailableError,
            "maxmemory",
        ),
        (redis.exceptions.NoPermissionError("this user has no permissions"), StoreError, "prefix"),
        (redis.AuthenticationError("invalid username-password pair"), StoreUnavailableError, "password"),
        (redis.ResponseError("WRONGTYPE Operation against a key"), StoreError, "another program"),
        (redis.exceptions.MovedError("1 10.0.0.1:7"), StoreError, r"redis\+cluster://"),
        (redis.exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), StoreUnavailableError, "cluster"),
        (redis.exceptions.MasterDownError("MASTERDOWN Link with MASTER is down"), StoreUnavailableError, "MASTER"),
        (redis.ResponseError("ERR something else"), StoreError, "something else"),
        (RuntimeError("the driver's own"), StoreError, "RuntimeError: the driver's own"),
        (redis.AuthenticationError("Authentication required."), StoreUnavailableError, "wants a password.*:password@"),
        (
            redis.AuthenticationError("AUTH <password> called without any password configured for the default user"),
            StoreUnavailableError,
            "leave it out",
        ),
        (redis.ResponseError("DB index is out of range"), StoreError, "lower number"),
        (
            redis.ResponseError("unknown command 'EVALSHA', with args beginning with: 'e985' 'chatkeep:x'"),
            StoreError,
            r"\(unknown command 'EVALSHA'\).*redis\+sentinel://",
        ),
        (
            redis.ResponseError("unknown command 'SENTINEL', with args beginning with: 'MASTERS'"),
            StoreUnavailableError,
            "no sentinel .*use redis://",
        ),
        (MasterNotFoundError("No master found for 'nobody'"), StoreUnavailableError, "name in the URL"),
        (
            MasterNotFoundError(
                "No master found for 'm' : <Redis(password=None)> - ConnectionError('Error 111 connecting to a:1.')"
            ),
            StoreUnavailableError,
            "not all of its sentinels answer.*running$",
        ),
        (
            MasterNotFoundError("No master found for 'm' : <R()> - AuthenticationError('Authentication required')"),
            StoreUnavailableError,
            "sentinel_password",
        ),
        (
            redis.ConnectionError("Error 1 connecting to a:1. [SSL: WRONG_VERSION_NUMBER] wrong version number"),
            StoreUnavailableError,
            "speaks no TLS",
        ),
        (redis.ConnectionError("Connection closed by server."), StoreUnavailableError, "wants no TLS.*rediss://"),
        (
            redis.ConnectionError("Error 1 connecting to a:1. [SSL: CERTIFICATE_VERIFY_FAILED] verify failed"),
            StoreUnavailableError,
            "ssl_ca_certs=",
        ),
        (
            redis.ConnectionError("Error 2 connecting to a.example.org:1. No such file or directory."),
            StoreUnavailableError,
            "ssl_ options",
        ),
        (
            redis.ConnectionError("Error 2 connecting to /run/a.sock. No such file or directory."),
            StoreUnavailableError,
            "see that it is running",
        ),
        (no_node(redis.exceptions.NoPermissionError("may not run 'cluster|slots'")), StoreError, "does not permit"),
        (no_node(redis.AuthenticationError("invalid username-password pair")), StoreUnavailableError, "password"),
        (no_node(redis.ConnectionError("Error 111 connecting to a:1.")), StoreUnavailableError, "cannot be reached"),
        (no_node(redis.ResponseError("cluster support disabled")), StoreUnavailableError, "is no cluster .*redis://"),
    ],
)
def test_each_error_of_the_servers_has_one_meaning(error: Exception, kind: type[StoreError], words: str) -> None:
    found = failures.translated(error, "redis://host", "chatkeep:")
    assert type(found) is kind
    assert str(found).startswith("redis://host")
    with pytest.raises(kind, match=words):
        raise found
