"""What stays whole whatever happens at the same time, and what is damaged harms itself alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from tests.redis.proxy import Proxy
from tests.redis.servers import Server

from chatkeep import ChatMessage, Session, Store, open_store
from chatkeep.errors import (
    CorruptRecordError,
    OutcomeUnknownError,
    StoreError,
    StoreFormatError,
    StoreUnavailableError,
)
from chatkeep.records import Key
from chatkeep_redis.backend import RedisBackend


def said(*texts: str) -> list[ChatMessage]:
    """A turn."""
    first, *rest = texts
    return [ChatMessage.user(first), *map(ChatMessage.assistant, rest)]


def backend_of(store: Store[Any]) -> RedisBackend:
    backend = store.backend
    assert isinstance(backend, RedisBackend)
    return backend


def raw(server: Server) -> redis.Redis:
    """A client that decodes nothing."""
    return redis.Redis(port=server.port)


# Catalogues and lists


@pytest.mark.parametrize("step", ["drop", "leave"])
async def test_a_scopes_state_that_is_written_while_the_scope_is_erased_stays_in_reach(
    server: Server, step: str
) -> None:
    async with open_store(server.url()) as store, open_store(server.url()) as other:
        acme, alice = store.scoped(tenant="acme"), other.scoped(tenant="acme", user="alice")
        await alice.state.set("old", 1)
        catalogue = backend_of(store).catalogue
        original = getattr(catalogue, step)

        async def write_before(*args: Any) -> Any:
            await alice.state.set("secret", 1)
            return await original(*args)

        setattr(catalogue, step, write_before)
        await acme.erase()
        setattr(catalogue, step, original)
        assert await alice.state.get("secret") == 1
        assert (await acme.erase()).state_keys == 1
        assert await alice.state.get("secret") is None


async def test_a_session_whose_writer_died_as_it_began_while_its_scope_was_erased_stays_in_reach(
    server: Server,
) -> None:
    async with open_store(server.url()) as store, open_store(server.url()) as other:
        acme, session = store.scoped(tenant="acme"), other.scoped(tenant="acme", user="alice").session("new")
        await other.open()
        catalogue = backend_of(other).catalogue
        enter, entered = catalogue.enter, 0

        async def die_the_second_time(key: Key) -> None:
            nonlocal entered
            entered += 1
            if entered == 2:
                raise StoreUnavailableError("gone")
            await enter(key)
            await acme.erase()

        catalogue.enter = die_the_second_time  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknownError):
            await session.append(said("secret"))
        catalogue.enter = enter  # type: ignore[method-assign]
        assert [info.id for info in await acme.list_sessions(below=True)] == ["new"]
        await session.append(said("more"))
        assert (await acme.erase()).sessions == 1
        assert await session.count() == 0


@pytest.mark.parametrize("kind", ["session", "state"])
async def test_who_writes_where_catalogue_and_list_know_nothing_enters_both(server: Server, kind: str) -> None:
    async with open_store(server.url()) as store, open_store(server.url()) as other:

        async def write(it: Store[Any]) -> None:
            scope = it.scoped(tenant="acme", user="alice")
            await (scope.session("s").append(said("x")) if kind == "session" else scope.state.set("k", 1))

        await write(store)
        with raw(server) as client:
            client.delete(*client.scan_iter(match="*sessions"), *client.scan_iter(match="*{scopes}*"))
        await write(other)
        erased = await store.scoped(tenant="acme").erase()
        assert (erased.sessions, erased.state_keys) == ((1, 0) if kind == "session" else (0, 1))


async def test_a_session_is_in_its_catalogue_before_its_scope_is_in_the_list(server: Server) -> None:
    async with open_store(server.url()) as store:
        await store.open()
        catalogue = backend_of(store).catalogue
        ask, steps = catalogue._ask, list[str]()

        def tell(script: Any, keys: Any, args: Any, **options: Any) -> Any:
            steps.append(args[0])
            future = ask(script, keys, args, **options)
            future.add_done_callback(lambda _: steps.append(f"{args[0]} is done"))
            return future

        catalogue._ask = tell
        await catalogue.enter(store.session("s")._key)
        await asyncio.sleep(0)
        assert steps == ["add", "add is done", "enter", "enter is done"]


async def test_a_deletion_whose_answer_is_lost_leaves_no_entry(server: Server) -> None:
    async with Proxy(server.port) as proxy, open_store(proxy.url(), connections=1) as store:
        await store.session("alice").append(said("x"))
        proxy.lose("reply")
        await store.session("alice").delete()
        assert proxy.lost
    with raw(server) as client:
        assert list(client.scan_iter(match="*sessions")) == []


# Writes that the store repeats


async def stored(proxy: Proxy, session: Session[ChatMessage], count: int) -> None:
    """Until the write is done whose answer is lost."""
    async with asyncio.timeout(60):
        while True:
            if proxy.lost and await session.count() == count:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("others", [5, 300])
@pytest.mark.parametrize("kind", ["append", "pop"])
async def test_a_write_that_is_repeated_after_many_others_is_done_once_or_its_outcome_is_unknown(
    server: Server, others: int, kind: str
) -> None:
    # One connection: no handshake of a further one is among the trips.
    async with (
        Proxy(server.port) as proxy,
        open_store(proxy.url(connections=1)) as store,
        open_store(server.url()) as other,
    ):
        ours, theirs = store.session("s"), other.session("s")
        await ours.append(said("first"))
        proxy.lose("reply", at=1 if kind == "append" else 2, for_good=True)  # it reads first
        write = asyncio.ensure_future(ours.append(said("once")) if kind == "append" else ours.pop())
        await stored(proxy, theirs, 2 if kind == "append" else 0)
        for number in range(others):
            await theirs.append(said(str(number)))
        await proxy.open()
        if others > 256:
            with pytest.raises(OutcomeUnknownError, match="too many writes"):
                await write
        else:
            await write
        texts = [message.text for message in await theirs.messages()]
        assert len(texts) == others + (2 if kind == "append" else 0)
        assert texts.count("once") == (1 if kind == "append" else 0)


async def test_a_write_that_never_arrived_is_done_when_it_is_repeated_whatever_came_before(server: Server) -> None:
    async with Proxy(server.port) as proxy, open_store(proxy.url()) as store:
        session = store.session("s")
        for number in range(300):
            await session.append(said(str(number)))
        await asyncio.sleep(0.2)
        proxy.lose("request")
        assert (await session.append(said("once"))).added == 1
        assert proxy.lost
        assert await session.count() == 301


async def test_a_write_of_an_earlier_life_is_not_done_again_in_the_next(server: Server) -> None:
    async with Proxy(server.port) as proxy, open_store(proxy.url()) as store, open_store(server.url()) as other:
        ours, theirs = store.session("s"), other.session("s")
        for number in range(260):
            await theirs.append(said(str(number)))
        proxy.lose("reply", for_good=True)
        write = asyncio.create_task(ours.append(said("once")))
        await stored(proxy, theirs, 261)
        await theirs.delete()
        for number in range(20):
            await theirs.append(said(str(number)))
        await proxy.open()
        await write
        assert await theirs.count() == 20


# What is damaged


@pytest.mark.parametrize("cut", ["short", "without a seq's end", "an id that is too long"])
async def test_a_damaged_record_harms_itself_alone(server: Server, cut: str) -> None:
    async with open_store(server.url(), on_corrupt="skip") as store:
        session = store.session("s")
        for text in ("one", "two", "three"):
            await session.append([ChatMessage.user(text, id=text)])
        order = backend_of(store).keys.session(session._key).order
        with raw(server) as client:
            member = client.zrangebylex(order, "[r", "(s")[1]
            other = {"short": member[:20], "without a seq's end": member[:11]}.get(
                cut, member[:20] + b"\xff\xff" + member[22:]
            )
            client.zrem(order, member)
            client.zadd(order, {other: 0})
        assert [message.text for message in await session.messages()] == ["one", "three"]
        assert [finding.seq for finding in await session.verify()] == [2]
        assert [finding.seq for finding in await session.repair()] == [2]
        assert await session.verify() == []
        assert (await session.append([ChatMessage.user("three", id="three"), ChatMessage.user("four")])).added == 1
        async with open_store(server.url(), max_messages=2, on_corrupt="skip") as trimming:
            await trimming.session("s").append([ChatMessage.user("five")])
        assert [message.text for message in await session.messages()] == ["four", "five"]
        assert await session.truncate_after(0) == 2


async def test_a_damaged_record_is_trimmed_and_truncated_like_others(server: Server) -> None:
    for way in ("trim", "age", "many", "truncate"):
        async with open_store(server.url()) as store:
            session = store.session(way)
            await session.append([ChatMessage.user(text) for text in ("one", "two", "three")])
            order = backend_of(store).keys.session(session._key).order
            with raw(server) as client:
                member = client.zrangebylex(order, "[r", "(s")[0]
                client.zrem(order, member)
                client.zadd(order, {member[:16]: 0})
            if way == "truncate":
                assert await session.truncate_after(0) == 3
                continue
        ways: dict[str, dict[str, Any]] = {"trim": {"max_messages": 2}, "age": {"max_age": "1d"}}
        options = ways.get(way, {"max_messages": 1})
        async with open_store(server.url(), **options) as store:
            texts = [f"{number}" for number in range(20 if way == "many" else 1)]
            await store.session(way).append([ChatMessage.user(text) for text in texts])
            if way != "age":
                assert (await store.session(way).messages())[-1].text == texts[-1]


@pytest.mark.parametrize("what", ["log", "head"])
async def test_a_damaged_head_is_named_and_keeps_nobody_else_from_listing_sweep_and_erase(
    server: Server, what: str
) -> None:
    async with open_store(server.url()) as store:
        scope = store.scoped(tenant="t", user="u")
        for name in ("one", "bad", "two"):
            await scope.session(name).append(said("x", "y"))
        head = backend_of(store).keys.session(scope.session("bad")._key).head
        with raw(server) as client:
            field = "h" if what == "head" else "L"
            client.hset(head, field, client.hget(head, field)[:7])
        for call in (lambda: scope.session("bad").messages(), lambda: scope.session("bad").append(said("z"))):
            with pytest.raises(CorruptRecordError, match="'bad'"):
                await call()
        assert {info.id for info in await scope.list_sessions()} == {"one", "two"}
        assert (await store.sweep()).expired == 0
        assert (await store.purge(older_than="1d")).sessions == 0
        erased = await scope.erase()
        assert (erased.sessions, erased.messages) == (3, 6 if what == "head" else 4)
        with raw(server) as client:
            assert not client.exists(head)


async def test_what_a_later_version_has_written_is_neither_purged_nor_erased_and_all_else_is(server: Server) -> None:
    async with open_store(server.url()) as store:
        scope = store.scoped(tenant="t")
        for name in ("a", "later", "z"):
            await scope.session(name).append(said("x"))
        head = backend_of(store).keys.session(scope.session("later")._key).head
        with raw(server) as client:
            client.hset(head, "h", b"2" + b"\0" * 48)
        assert {info.id for info in await scope.list_sessions()} == {"a", "z"}
        for remove in (lambda: store.purge(older_than="1000d"), scope.erase):
            with pytest.raises(StoreFormatError, match="format 2"):
                await remove()
            with raw(server) as client:
                assert client.exists(head)
        assert not await scope.session("a").exists()
        assert not await scope.session("z").exists()


async def test_keys_under_another_sessions_name_are_not_removed(server: Server) -> None:
    async with open_store(server.url()) as store:
        scope = store.scoped(tenant="t")
        ours, theirs = scope.session("ours"), scope.session("theirs")
        await ours.append(said("x"))
        await theirs.append(said("x"))
        keys = backend_of(store).keys
        mine, other = keys.session(ours._key), keys.session(theirs._key)
        with raw(server) as client:
            for old, new in zip(mine.all, other.all, strict=True):
                if client.exists(old):
                    client.rename(old, new)
        assert (await scope.erase()).sessions == 0
        with raw(server) as client:
            assert client.exists(other.head, other.order) == 2


async def test_what_is_left_of_a_session_whose_head_was_evicted_is_erased(server: Server) -> None:
    async with open_store(server.url()) as store:
        scope = store.scoped(tenant="t")
        session = scope.session("s")
        await session.append([ChatMessage.user("x", id="x")])
        await session.state.set("k", 1)
        with raw(server) as client:
            keys = backend_of(store).keys.session(session._key)
            client.delete(keys.head)
            await scope.erase()
            assert not client.exists(keys.order, keys.known, keys.values)


@pytest.mark.parametrize("what", ["order", "known"])
async def test_a_session_of_which_a_part_was_evicted_is_not_torn_further(server: Server, what: str) -> None:
    async with open_store(server.url(), max_messages=5, max_age="1d") as store:
        session = store.session("s")
        for number in range(5):
            await session.append([ChatMessage.user("x", id=f"i{number}")], batch_id=f"b{number}")
        with raw(server) as client:
            keys = backend_of(store).keys.session(session._key)
            client.delete(getattr(keys, what))
            before = client.hgetall(keys.head), client.zrange(keys.order, 0, -1)
            if what == "known":
                assert await session.truncate_after(2) == 3
                assert [message.text for message in await session.messages()] == ["x", "x"]
                return
            for write in (lambda: session.append([ChatMessage.user("y")]), lambda: session.truncate_after(1)):
                with pytest.raises(StoreError, match="evict"):
                    await write()
            assert (client.hgetall(keys.head), client.zrange(keys.order, 0, -1)) == before
        assert await session.delete()


# Sweeping


async def test_old_sessions_that_are_there_do_not_keep_what_has_expired_from_being_swept(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatkeep_redis.backend.OLD", 0)
    async with open_store(server.url()) as store, open_store(server.url(), ttl=0.05) as short:
        await asyncio.gather(*(store.session(f"old{number}").append(said("x")) for number in range(60)))
        await asyncio.gather(*(short.session(f"new{number}").append(said("x")) for number in range(20)))
        await asyncio.sleep(0.1)
        assert sum([(await store.sweep(budget=3)).expired for _ in range(20)]) == 20


async def test_scopes_with_nothing_in_them_are_forgotten_by_sweep_and_purge_and_those_with_state_are_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatkeep_redis.backend.OLD", 0)
    async with open_store(server.url(), ttl=0.05) as store:
        names = backend_of(store).keys.scopes[0]
        for forget in (store.sweep, lambda: store.purge(older_than="1d")):
            for number in range(3):
                await store.scoped(tenant="t", user=f"u{number}").session("s").append(said("x"))
            await store.scoped(tenant="t", user="kept").state.set("k", 1)
            await asyncio.sleep(0.1)
            await forget()
            with raw(server) as client:
                assert client.zrange(names, 0, -1) == [b'[null,"t","kept"]']
            await store.scoped(tenant="t").erase()
