"""Clauses 25 and 26: a store from its first use to its end, and what it takes meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chatkeep import ChatkeepError, ChatMessage, Store, StoreUnavailableError, open_store
from chatkeep.errors import StoreClosedError, StoreLoopError

from .clauses import clause
from .harness import Harness, Opener, texts, turn

T = TypeVar("T")


def every_call(store: Store[ChatMessage]) -> dict[str, Callable[[], Awaitable[object]]]:
    """One call of everything that a store can do, by name."""
    session, scope = store.session("s"), store.scoped(user="u")
    message = ChatMessage.user("x")

    async def stream() -> object:
        return [each async for each in session.stream()]

    async def iterate() -> object:
        return [each async for each in store.iter_sessions()]

    async def lease() -> object:
        async with session.lease() as guarded:
            return guarded

    return {
        "open": store.open,
        "ping": store.ping,
        "sweep": store.sweep,
        "append": lambda: session.append([message]),
        "append to a log": lambda: session.log("aside").append([message]),
        "messages": session.messages,
        "stream": stream,
        "count": session.count,
        "pop": session.pop,
        "truncate_after": lambda: session.truncate_after(1),
        "replace_prefix": lambda: session.replace_prefix(1, []),
        "clear": session.clear,
        "replace": lambda: session.replace(1, message),
        "redact": lambda: session.redact(1),
        "fork": lambda: session.fork("branch"),
        "info": session.info,
        "exists": session.exists,
        "update": lambda: session.update(title="Bag"),
        "delete": session.delete,
        "snapshot": session.snapshot,
        "lease": lease,
        "state.get": lambda: session.state.get("k"),
        "state.set": lambda: session.state.set("k", 1),
        "state.delete": lambda: session.state.delete("k"),
        "state.items": session.state.items,
        "scope.state.set": lambda: scope.state.set("k", 1),
        "list_sessions": store.list_sessions,
        "iter_sessions": iterate,
        "find_by_service_id": lambda: scope.find_by_service_id("resp"),
        "erase": scope.erase,
        "purge": lambda: scope.purge("1d"),
    }


async def elsewhere(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a call on another event loop, which is begun for it on another thread and closed after it."""
    return await asyncio.to_thread(lambda: asyncio.run(call()))


class Lifecycle(Harness):
    """Opening, closing, event loops, and how little a store takes."""

    @pytest.fixture
    def unreachable_url(self) -> str | None:
        """A URL of this backend behind which there is nothing; None where nothing can be out of reach."""
        return None

    # 25: opening

    @clause(25)
    async def test_a_store_works_with_and_without_async_with(self, url: str, options: dict[str, Any]) -> None:
        async with open_store(url, **options) as store:
            await store.session("s").append([ChatMessage.user("with")])
            assert texts(await store.session("s").messages()) == ["with"]
        plain = open_store(url, **options)
        await plain.session("t").append([ChatMessage.user("without")])
        assert texts(await plain.session("t").messages()) == ["without"]
        await plain.close()

    @clause(25)
    async def test_the_first_use_by_fifty_tasks_at_once_sets_up_once(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened()
        calls = 0
        really = store.backend.open

        async def count() -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0.01)
            await really()

        monkeypatch.setattr(store.backend, "open", count)
        await asyncio.gather(*(store.session(f"s{n % 7}").append([ChatMessage.user(str(n))]) for n in range(50)))
        await store.open()
        assert calls == 1
        assert sum([await store.session(f"s{n}").count() for n in range(7)]) == 50

    @clause(25)
    async def test_a_set_up_that_failed_is_tried_again(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        store = opened()
        really = store.backend.open

        async def fail_once() -> None:
            monkeypatch.setattr(store.backend, "open", really)
            raise StoreUnavailableError("not yet")

        monkeypatch.setattr(store.backend, "open", fail_once)
        with pytest.raises(StoreUnavailableError, match="not yet"):
            await store.session("s").append([ChatMessage.user("x")])
        await store.session("s").append([ChatMessage.user("x")])
        assert await store.session("s").count() == 1

    @clause(25)
    async def test_who_is_cancelled_while_setting_up_takes_no_other_task_with_it(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened()
        really = store.backend.open

        async def slowly() -> None:
            await asyncio.sleep(0.01)
            await really()

        monkeypatch.setattr(store.backend, "open", slowly)
        first, second = (asyncio.create_task(store.session("s").append([ChatMessage.user(name)])) for name in "ab")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first, second})
        assert first.cancelled()
        assert second.result().added == 1
        assert texts(await store.session("s").messages()) == ["b"]

    @clause(25)
    async def test_many_stores_begin_on_an_empty_database_at_once(self, opened: Opener) -> None:
        stores = [opened() for _ in range(8)]
        await asyncio.gather(*(store.session("s").append([ChatMessage.user("x")]) for store in stores))
        assert await stores[0].session("s").count() == 8

    @clause(25)
    async def test_handles_cost_nothing_and_reach_nothing(self, unreachable_url: str | None, url: str) -> None:
        store = open_store(unreachable_url or url)
        session = store.scoped(tenant="acme", user="alice").session("s").log("aside")
        assert "aside" in repr(session)
        await store.close()

    @clause(25)
    async def test_what_cannot_be_reached_is_unavailable_within_the_connect_timeout(
        self, unreachable_url: str | None
    ) -> None:
        if unreachable_url is None:
            pytest.skip("the backend's test class names no unreachable_url: it is always there")
        store = open_store(unreachable_url, connect_timeout=1.0)
        loop = asyncio.get_running_loop()
        for _ in range(2):
            began = loop.time()
            with pytest.raises(StoreUnavailableError) as refused:
                await store.session("s").append([ChatMessage.user("x")])
            assert loop.time() - began < 10, "the connect timeout of 1 s was not kept"
            assert isinstance(refused.value, ConnectionError)
        await store.close()

    # 25: closing

    @clause(25)
    async def test_closing_twice_is_closing_once(self, opened: Opener) -> None:
        used, unused = opened(), opened()
        await used.session("s").append([ChatMessage.user("x")])
        for store in (used, unused):
            await store.close()
            await store.close()
            await asyncio.gather(store.close(), store.close())

    @clause(25)
    async def test_every_use_after_close_is_refused(self, opened: Opener) -> None:
        used, unused = opened(), opened()
        await used.session("s").append([ChatMessage.user("x")])
        for store in (used, unused):
            await store.close()
            for name, call in every_call(store).items():
                try:
                    await call()
                except StoreClosedError:
                    continue
                pytest.fail(f"{name} after close was not refused")
            with pytest.raises(StoreClosedError):
                async with store:
                    pass
        assert await opened().session("s").count() == 1

    @clause(25)
    async def test_a_ping_that_counts_sessions_counts_no_scopes(self, store: Store[ChatMessage]) -> None:
        await store.session("s").append(turn(1))
        await store.scoped(user="alice").state.set("k", 1)
        assert (await store.ping()).details.get("sessions", 1) == 1

    @clause(25)
    async def test_every_call_works_before_close(self, store: Store[ChatMessage]) -> None:
        for name, call in every_call(store).items():
            await store.session("s").append([ChatMessage.user("x")])
            await store.session("s").clear()
            await store.session("s").delete()
            await store.session("branch").delete()
            await store.session("s").append([ChatMessage.user("x")])
            seq = (await store.session("s").messages()).seqs[0]
            assert seq == 1, f"before {name}, a new life does not count from 1"
            await call()

    @clause(25)
    async def test_every_call_may_be_the_first_and_connects_by_itself(self, opened: Opener) -> None:
        witness = opened()
        for name in every_call(witness):
            await witness.session("branch").delete()
            await witness.session("s").delete()
            await witness.session("s").append([ChatMessage.user("x")])
            store = opened()
            await every_call(store)[name]()
            await store.close()

    @clause(25)
    async def test_what_was_under_way_at_the_close_is_stored_or_refused_and_never_left_waiting(
        self, opened: Opener
    ) -> None:
        store = opened()
        await store.open()
        writing = [
            asyncio.create_task(store.session(f"s{n % 5}").append([ChatMessage.user(str(n))])) for n in range(300)
        ]
        reading = [asyncio.create_task(store.session(f"s{n % 5}").messages()) for n in range(50)]
        await asyncio.sleep(0)
        await store.close()
        answers = await asyncio.wait_for(asyncio.gather(*writing, return_exceptions=True), 20)
        await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), 20)
        answered = {str(n) for n, answer in enumerate(answers) if not isinstance(answer, BaseException)}
        for answer in answers:
            assert not isinstance(answer, BaseException) or isinstance(answer, ChatkeepError)
        witness = opened()
        stored = [text for n in range(5) for text in texts(await witness.session(f"s{n}").messages())]
        assert len(set(stored)) == len(stored)
        assert answered <= set(stored), "an acknowledged write is lost"
        refused = {str(n) for n, answer in enumerate(answers) if isinstance(answer, StoreClosedError)}
        assert not refused & set(stored), "a write was refused and stored all the same"

    @clause(25)
    async def test_a_closing_that_was_cancelled_is_completed_by_the_next_one(self, opened: Opener) -> None:
        for moment in range(10):
            store = opened()
            await store.session("s").append([ChatMessage.user("x")])
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(moment / 5000)
            closing.cancel()
            await asyncio.wait({closing})
            await asyncio.wait_for(store.close(), 20)
            with pytest.raises(StoreClosedError):
                await store.session("s").count()
        assert await opened().session("s").count() == 10

    @clause(25)
    async def test_openings_and_closings_that_are_cancelled_leave_nothing_behind(
        self, url: str, options: dict[str, Any], opened: Opener
    ) -> None:
        await opened().session("s").append([ChatMessage.user("x")])
        before = taken()
        for moment in range(50):
            with suppress(TimeoutError):
                async with asyncio.timeout(moment / 5000), open_store(url, **options) as store:
                    await store.session("s").count()
        few = 10  # such as a pool may keep for the next one
        for _ in range(1000):
            left = {what: number - before[what] for what, number in taken().items() if number > before[what] + few}
            if not left:
                break
            await asyncio.sleep(0.01)
        assert not left, f"50 stores that were cancelled have left {left} behind"

    @clause(25)
    async def test_closing_one_store_leaves_the_others_and_what_is_not_its_own(self, opened: Opener) -> None:
        one, other = opened(), opened()
        await one.session("s").append([ChatMessage.user("one")])
        await other.session("s").append([ChatMessage.user("other")])
        await one.close()
        await other.session("s").append([ChatMessage.user("more")])
        again = opened()  # with the caller's own client, where there is one
        assert texts(await again.session("s").messages()) == ["one", "other", "more"]

    @clause(25)
    async def test_what_was_stored_is_there_after_the_store_was_closed(
        self, url: str, options: dict[str, Any], opened: Opener
    ) -> None:
        keeper = opened()  # a database in memory lives as long as somebody has it
        await keeper.open()
        async with open_store(url, **options) as store:
            await store.session("s").append([ChatMessage.user("x")])
            await store.session("s").state.set("k", [1])
        async with open_store(url, **options) as store:
            assert texts(await store.session("s").messages()) == ["x"]
            assert await store.session("s").state.get("k") == [1]

    # 25: event loops

    @clause(25)
    async def test_a_second_event_loop_is_refused_while_the_first_is_open(self, store: Store[ChatMessage]) -> None:
        await store.session("s").append([ChatMessage.user("x")])

        async def use() -> None:
            for call in (store.session("s").messages, store.session("s").clear, store.open, store.close):
                with pytest.raises(StoreLoopError):
                    await call()

        await elsewhere(use)
        assert texts(await store.session("s").messages()) == ["x"]

    @clause(25)
    async def test_after_the_first_event_loop_is_closed_the_next_one_sets_up_anew(
        self, opened: Opener, options: dict[str, Any]
    ) -> None:
        keeper = opened()
        await keeper.open()
        store = opened()

        async def use() -> None:
            await store.session("s").append([ChatMessage.user("x")])

        await elsewhere(use)
        if "client" in options:
            with pytest.raises(StoreLoopError):
                await use()
            return
        await elsewhere(use)
        await use()
        assert await store.session("s").count() == 3
        with pytest.raises(StoreLoopError):
            await elsewhere(use)

    @clause(25)
    async def test_a_store_can_be_closed_after_its_event_loop_is(self, opened: Opener, options: dict[str, Any]) -> None:
        store = opened()

        async def use() -> None:
            await store.session("s").append([ChatMessage.user("x")])

        await elsewhere(use)
        await store.close()
        with pytest.raises(StoreClosedError):
            await use()

    # 26: bounded

    @clause(26)
    async def test_thousands_of_sessions_take_no_more_connections_threads_or_files_than_a_few(
        self, store: Store[ChatMessage]
    ) -> None:
        async def use(number: int) -> None:
            session = store.scoped(user=f"u{number % 97}").session(f"s{number}")
            await session.append([ChatMessage.user("x")])
            assert len(await session.messages(last=1)) == 1

        async def use_many(first: int, last: int) -> list[object]:
            handles: list[object] = [store.session(f"s{number}") for number in range(first, last)]
            for start in range(first, last, 200):
                await asyncio.gather(*(use(number) for number in range(start, min(start + 200, last))))
            return handles

        handles = await use_many(0, 200)
        before = taken()
        handles += await use_many(200, 2000)
        after = taken()
        for what, number in before.items():
            assert after[what] <= number + 2, f"1,800 further sessions took {after[what] - number} more {what}"
        assert len(handles) == 2000
        for number in (0, 199, 200, 1000, 1999):
            assert await store.scoped(user=f"u{number % 97}").session(f"s{number}").count() == 1

    @clause(26)
    async def test_a_thousand_calls_at_once_are_all_answered(self, store: Store[ChatMessage]) -> None:
        await asyncio.gather(*(store.session(f"s{n % 50}").append([ChatMessage.user(str(n))]) for n in range(1000)))
        counts = await asyncio.gather(*(store.session(f"s{n % 50}").count() for n in range(1000)))
        assert set(counts) == {20}
        await asyncio.gather(*(store.session(f"s{n % 50}").state.set(f"k{n}", n) for n in range(500)))
        assert len(await store.session("s0").state.keys()) == 10

    @clause(26)
    async def test_the_event_loop_stays_free_while_the_store_works(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user("x" * 1000)] * 200)
        others = 0
        working = True

        async def other() -> None:
            nonlocal others
            while working:
                others += 1
                await asyncio.sleep(0)

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: session.append([ChatMessage.user("x")]),
            "messages": session.messages,
            "count": session.count,
            "state.set": lambda: session.state.set("k", 1),
            "state.get": lambda: session.state.get("k"),
            "list_sessions": store.list_sessions,
        }
        task = asyncio.create_task(other())
        for name, call in calls.items():
            before = others
            for _ in range(20):
                await call()
            assert others >= before + 20, f"other tasks had no turn during {name}"
        working = False
        await task


def taken() -> dict[str, int]:
    """How many threads and open files (sockets too) this process has; files only where the system lists them."""
    found = {"threads": threading.active_count()}
    listing = Path("/proc/self/fd")
    if os.name == "posix" and listing.is_dir():
        found["open files"] = len(os.listdir(listing))  # noqa: PTH208 - iterdir would hold one more open
    return found
