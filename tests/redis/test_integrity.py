"""What stays whole whatever happens at the same time, and what is damaged harms itself alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from tests.redis.proxy import Proxy
from tests.redis.servers import Server

from chatkeep import ChatMessage, Store, open_store
from chatkeep.errors import OutcomeUnknownError, StoreUnavailableError
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
