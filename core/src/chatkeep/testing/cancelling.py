"""Clause 8: whatever is cancelled, at whichever await, is settled first and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest

from chatkeep import Appended, ChatMessage, Session, Store
from chatkeep.backend import Backend
from chatkeep.errors import (
    ChatkeepError,
    ConflictError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from chatkeep.records import Head, Key, Outcome, Write
from chatkeep.store import ScopedStore

from .clauses import MORE, clause
from .harness import Harness, Opener, texts, turn
from .interruption import HANGS, How, Interruption, as_the_answer_comes, begun, ended, once, twice, withheld
from .lifecycle import elsewhere
from .operations import CLOSINGS, OPERATIONS, Place, seen
from .order import batch, names

Looks = dict[str, Any]

ENDS = {"Lease.__aenter__": 0, "Lease.__aexit__": 1}
"""Where a cancellation may leave only the look before, or only the one after: a lease that nobody holds."""

HOWS: list[How] = [once, twice, as_the_answer_comes]
TURNS: list[list[How]] = [[how] for how in HOWS] if any(map(os.environ.get, MORE)) else [HOWS]
"""The ways of cancelling that take turns in one test, from one await to the next; each at every await for whoever asks
for more than usual."""
FEW = 5
"""So many tasks may a driver begin for itself, such as for a pool, and keep."""


async def check_tasks(before: set[asyncio.Task[Any]]) -> None:
    """Fail if the tasks that were begun since do not end."""
    for _ in range(1000):
        left = asyncio.all_tasks() - before
        if len(left) <= FEW:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(left)} tasks are left behind, such as {left.pop()}")


async def check_usable(places: list[Place], witness: Store[ChatMessage]) -> None:
    """Fail unless each place can be written to and read through its own store and through another."""
    await asyncio.gather(*(place.session.append([ChatMessage.user("later")]) for place in places))
    await asyncio.gather(*(place.through(witness).session.append([ChatMessage.user("last")]) for place in places))
    for place in places:
        assert texts(await place.session.messages(last=2)) == ["later", "last"], place.tenant


async def outcomes(store: Store[ChatMessage], witness: Store[ChatMessage]) -> dict[str, tuple[Looks, Looks, int]]:
    """By the name of an operation: how a place looks before it and after it, and how often it waits."""
    places = [Place(store, name) for name in OPERATIONS]
    await asyncio.gather(*(place.fill() for place in places))
    before = await seen(witness, places[0].tenant)
    found = {}
    for name, place in zip(OPERATIONS, places, strict=True):
        operation = Interruption(OPERATIONS[name](place))
        await operation
        found[name] = before, await seen(witness, name), operation.suspensions
    return found


class Altered:
    """A store's backend with some of its methods replaced."""

    def __init__(self, backend: Backend, **methods: Callable[..., Awaitable[object]]) -> None:
        self._backend = backend
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Cancelling(Harness):
    """Cancellations, timeouts and lost answers."""

    # At every await

    @pytest.fixture
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have every reading that goes page by page take several of them."""
        monkeypatch.setattr("chatkeep.reading.PAGE", 2)
        monkeypatch.setattr("chatkeep.integrity.PAGE", 2)
        monkeypatch.setitem(cast("dict[str, Any]", ScopedStore.list_sessions.__kwdefaults__), "limit", 1)

    @clause(1, 8)
    @pytest.mark.usefixtures("small_pages")
    @pytest.mark.parametrize("hows", TURNS, ids=lambda hows: "-".join(how.__name__ for how in hows))
    async def test_cancelled_at_whatever_await_an_operation_is_settled_and_leaves_nothing_behind(
        self, opened: Opener, hows: list[How]
    ) -> None:
        store, witness = opened(ttl=3600.0, ttl_policy="read"), opened()  # so that readings write, too
        await asyncio.gather(store.open(), witness.open())
        tasks = asyncio.all_tasks()
        attempts: list[tuple[str, int, Place, list[Looks]]] = []
        for name, (before, after, waits) in (await outcomes(store, witness)).items():
            allowed = [before, after]
            if name in ENDS:
                allowed = [allowed[ENDS[name]]]
            attempts += [(name, at, Place(store, f"{name} {at}"), allowed) for at in range(1, waits + 1)]
        await asyncio.gather(*(place.fill() for _, _, place, _ in attempts))
        settled: list[Looks] = []
        for number, (name, at, place, allowed) in enumerate(attempts):
            how = hows[number % len(hows)]
            operation = Interruption(OPERATIONS[name](place), at, how)
            task = await ended(begun(operation))
            if operation.suspensions < at:  # it took fewer steps than before
                task.result()
            else:
                assert task.cancelled(), f"{name}, cancelled {how.__name__} at its await {at}, went on"
            settled.append(await seen(witness, place.tenant))
            assert settled[-1] in allowed, f"{name}, cancelled {how.__name__} at its await {at}, was done in part"
            for _ in range(6):
                await asyncio.sleep(0)
            assert await seen(store, place.tenant) == settled[-1], f"after {name} another answer is read"
        places = [place for _, _, place, _ in attempts]
        await witness.session("elsewhere").state.set("k", 1)  # behind whatever was sent before
        assert [await seen(witness, place.tenant) for place in places] == settled, "a write went on"
        await check_usable(places, witness)
        assert len(attempts) > len(OPERATIONS) / 2
        await check_tasks(tasks)

    @clause(8, 25)
    async def test_cancelled_during_the_first_use_it_is_whole_or_absent_and_others_are_not_disturbed(
        self, opened: Opener
    ) -> None:
        witness = opened()
        known = await outcomes(witness, witness)
        cut = [Place(witness, f"{name}, cut") for name in OPERATIONS]
        await asyncio.gather(*(place.fill() for place in cut))
        tasks = asyncio.all_tasks()
        for (name, operation), place in zip(OPERATIONS.items(), cut, strict=True):
            store = opened()
            task = begun(Interruption(operation(place.through(store)), 1, once))
            other = asyncio.create_task(store.scoped(user=name).state.set("k", 1))
            if not (await ended(task)).cancelled():
                task.result()  # it had nothing to wait for
            await other
            assert await store.scoped(user=name).state.get("k") == 1
            assert await seen(store, place.tenant) in known[name][:2], f"{name} was done in part"
            await store.close()
        await check_usable(cut, witness)
        await check_tasks(tasks)

    @clause(8, 25)
    @pytest.mark.parametrize("how", [once, twice, as_the_answer_comes])
    async def test_cancelled_at_whatever_await_a_closing_leaves_no_task_and_no_write_without_an_answer(
        self, opened: Opener, how: How
    ) -> None:
        witness = opened()
        await witness.open()
        tasks = asyncio.all_tasks()

        async def close(name: str, at: int, *, used: bool) -> bool:
            """Whether it came to the cancellation."""
            store, tenant = opened(), f"{name} {at} {used}"
            writes = []
            if used:
                await store.open()
                session = store.scoped(tenant=tenant).session("s")
                writes = [asyncio.create_task(session.append(batch(str(number)))) for number in range(3)]
                await asyncio.sleep(0)
            operation = Interruption(CLOSINGS[name](store), at, how)
            task = await ended(begun(operation))
            cut = operation.suspensions >= at
            assert task.cancelled() == cut
            if cut or name != "Store.__aenter__":
                with pytest.raises(StoreClosedError):
                    await store.ping()
            await asyncio.wait_for(store.close(), HANGS)
            answers = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), HANGS)
            stored = names(await witness.scoped(tenant=tenant).session("s").messages())
            for number, answer in enumerate(answers):
                assert isinstance(answer, Appended | ChatkeepError), "a write was cancelled that nobody had cancelled"
                if not isinstance(answer, OutcomeUnknownError):
                    assert (str(number) in stored) == isinstance(answer, Appended)
            return cut

        for name in CLOSINGS:
            for used in (False, True):
                at = 1
                while await close(name, at, used=used):
                    at += 1
        await check_tasks(tasks)

    @clause(8, 27)
    @pytest.mark.parametrize("how", [once, twice, as_the_answer_comes])
    async def test_a_fork_that_is_cancelled_keeps_nothing_of_what_is_redacted_meanwhile(
        self, opened: Opener, how: How
    ) -> None:
        store, witness = opened(), opened()
        await store.open()
        backend, cut, at = store.backend, True, 0

        async def redact_and_commit(key: Key, write: Write) -> Outcome:
            if write.append:
                await witness.session(origin).redact(1)
            return await backend.commit(key, write)

        while cut:
            at += 1
            origin, branch = f"s{at}", f"branch {at}"
            await witness.session(origin).append(turn(1))
            store.backend = cast("Backend", Altered(backend, commit=redact_and_commit))
            operation = Interruption(store.session(origin).fork(branch), at, how)
            task = await ended(begun(operation))
            store.backend = backend
            cut = operation.suspensions >= at
            assert task.cancelled() if cut else isinstance(task.exception(), ConflictError)
            assert await witness.session(branch).messages() == []
        assert at > 1

    # By what programs use for it

    @clause(8)
    @pytest.mark.parametrize("by", ["timeout", "wait_for", "task group"])
    async def test_by_a_timeout_or_the_failure_of_a_neighbour_a_write_is_whole_or_absent_and_the_store_usable(
        self, opened: Opener, by: str
    ) -> None:
        store, witness = opened(), opened().session("s")
        session = store.session("s")
        loop = asyncio.get_running_loop()
        await session.append(batch("first"))
        began = loop.time()
        await session.append(batch("second"))
        usual = loop.time() - began

        async def fail(after: int) -> None:
            for _ in range(after):
                await asyncio.sleep(0)
            raise KeyError("the neighbour failed")

        async def beside(neighbour: Coroutine[Any, Any, None], write: Coroutine[Any, Any, object]) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(write)
                group.create_task(neighbour)

        async def cut(write: Coroutine[Any, Any, object], moment: int) -> None:
            if by == "timeout":
                async with asyncio.timeout(moment * usual / 8):
                    await write
            elif by == "wait_for":
                await asyncio.wait_for(write, moment * usual / 8)
            else:
                with pytest.raises(ExceptionGroup) as failed:
                    await beside(fail(moment), write)
                assert [type(error) for error in failed.value.exceptions] == [KeyError]

        late = 0
        for moment in range(12):
            for write in (
                session.append(batch(f"a{moment}")),
                session.pop(3),
                session.replace_prefix(3, batch(f"r{moment}")),
                session.state.set("k", moment),
            ):
                try:
                    await cut(write, moment)
                except TimeoutError as error:
                    if isinstance(error, ChatkeepError):
                        raise  # it was the caller's
                    late += 1
                now = names(await witness.messages()), await witness.state.items()
                assert (names(await session.messages()), await session.state.items()) == now
            await session.append(batch(f"z{moment}"))
            assert names(await witness.messages())[-1] == f"z{moment}"
        assert late or by == "task group"

    # At whatever moment

    @clause(1, 8)
    async def test_what_a_cancelled_write_did_is_settled_when_the_cancellation_goes_on(self, opened: Opener) -> None:
        store, witness = opened(), opened().session("s")
        session = store.session("s")
        loop = asyncio.get_running_loop()
        await session.append(batch("first"))
        began = loop.time()
        await session.append(batch("second"))
        usual = loop.time() - began

        async def seen() -> tuple[list[str], dict[str, Any]]:
            return texts(await witness.messages()), await witness.state.items()

        acts: list[Callable[[int], Awaitable[object]]] = [
            lambda number: session.append(batch(f"b{number}")),
            lambda number: session.append(batch(f"c{number}"), batch_id=str(number)),
            lambda number: session.pop(3),
            lambda number: session.state.set(f"k{number}", number),
            lambda number: session.replace_prefix(3, batch(f"r{number}", size=3)),
            lambda number: session.clear() if number % 4 == 0 else session.truncate_after(6),
        ]
        for number in range(72):
            act = asyncio.ensure_future(acts[number % len(acts)](number))
            if number < 36:
                for _ in range(number // len(acts)):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(usual * (number - 36) / 30)
            for _ in range(1 + number % 3):
                act.cancel()
                await asyncio.sleep(0)
            await asyncio.wait({act})
            if not act.cancelled():
                assert isinstance(act.exception(), OutcomeUnknownError | ValueError | None)
            now = await seen()
            await asyncio.sleep(2 * usual)
            assert await seen() == now, f"write {number} went on after its cancellation"
            said = [text for text in now[0] if text[0] in "fsbc"]
            names([ChatMessage.user(text) for text in said])
            if number % len(acts) == 5:
                await session.append(batch(f"s{number}"))

    @clause(1, 8)
    async def test_cancelling_many_at_once_leaves_each_batch_whole_or_absent(self, opened: Opener) -> None:
        store = opened()
        session = store.session("s")
        chance = random.Random(8)  # noqa: S311 - the same writes are cancelled each time
        answered: list[str] = []

        async def write(number: int) -> None:
            await session.append(batch(str(number)))
            answered.append(str(number))

        tasks = [asyncio.create_task(write(number)) for number in range(100)]
        await asyncio.sleep(0)
        while not all(task.done() for task in tasks):
            chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        stored = names(await opened().session("s").messages())
        assert len(set(stored)) == len(stored)
        assert set(answered) <= set(stored), "an acknowledged batch is lost"

    # Lost answers

    @clause(8)
    async def test_every_write_whose_answer_does_not_come_is_of_unknown_outcome_cancelled_or_not(
        self, opened: Opener
    ) -> None:
        store, witness = opened(), opened()
        known = await outcomes(store, witness)
        cut = [(name, Place(store, f"{name}, {end}"), end) for name in OPERATIONS for end in ("late", "cancelled")]
        await asyncio.gather(*(place.fill() for _, place, _ in cut))
        with withheld(store) as withholding:
            tasks = {begun(OPERATIONS[name](place)): (name, place, end) for name, place, end in cut}
            waiting = await withholding.sent(tasks)
            for _ in range(2):
                for task in waiting:
                    assert tasks[task][2] == "late" or task.cancel()
                await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            await withholding.written()
            await withholding.run_out(waiting)
        for task, (name, place, end) in tasks.items():
            before, after, _ = known[name]
            if task not in waiting:
                task.result()
                assert after == before, f"{name} did not wait for its answer"
                continue
            with pytest.raises(OutcomeUnknownError) as unknown:
                task.result()
            assert isinstance(unknown.value.__cause__, asyncio.CancelledError) == (end == "cancelled")
            if name != "Lease.__aenter__ and work":  # which has not come to the work
                assert await seen(witness, place.tenant) == after
        assert len(waiting) > len(OPERATIONS)
        await check_usable([place for _, place, _ in cut], witness)

    @clause(5, 8)
    @pytest.mark.parametrize("late", [False, True])
    async def test_what_is_sent_again_after_an_unknown_outcome_is_stored_once_whenever_the_first_one_arrives(
        self, opened: Opener, late: bool
    ) -> None:
        store, witness = opened(), opened()
        acts: dict[str, Callable[[Session[ChatMessage]], Awaitable[Appended]]] = {
            "batch id": lambda session: session.append(batch("a"), batch_id="a"),
            "ids": lambda session: session.append([ChatMessage.user(name, id=name) for name in "abc"]),
        }
        await store.open()
        with withheld(store, late=late) as withholding:
            tasks = [begun(act(store.session(f"{by}, {when}"))) for by, act in acts.items() for when in (1, 2)]
            await withholding.run_out(await withholding.sent(tasks))
            for task in tasks:
                assert isinstance(task.exception(), OutcomeUnknownError)
            for by, act in acts.items():
                session = witness.session(f"{by}, 1")
                if late:
                    assert not await session.exists()
                    assert (await act(session)).added == 3
            await withholding.written()
        for by, act in acts.items():
            for when in (1, 2):
                session = store.session(f"{by}, {when}")
                assert (await act(session)).added == 0
                assert await witness.session(session.id).count() == 3

    @clause(8, 27)
    async def test_a_fork_is_of_unknown_outcome_where_nobody_can_say_whether_its_origin_was_edited(
        self, opened: Opener
    ) -> None:
        store = opened()
        session = store.session("s")
        await session.append(turn(1))
        backend = store.backend

        async def look(key: Key) -> Head | None:
            raise StoreTimeoutError("no answer")

        store.backend = cast("Backend", Altered(backend, head=look))
        with pytest.raises(OutcomeUnknownError, match="'branch'") as unknown:
            await session.fork("branch")
        assert isinstance(unknown.value.__cause__, StoreTimeoutError)
        store.backend = backend
        await store.session("branch").delete()
        assert await (await session.fork("branch")).count() == 2

    @clause(5, 8)
    async def test_a_write_that_is_too_late_says_truly_whether_it_may_be_stored(self, opened: Opener) -> None:
        witness = opened()
        session = witness.session("s")
        loop = asyncio.get_running_loop()
        await witness.open()
        began = loop.time()
        await asyncio.gather(*(session.append(batch(f"usual {number}")) for number in range(20)))
        usual = loop.time() - began
        for part in (0.1, 0.3, 0.6, 1, 1.5):
            store = opened(timeout=max(part * usual, 0.001))
            with suppress(StoreUnavailableError):
                await store.open()
            ids = [f"{part} {number}" for number in range(20)]
            answers = await asyncio.gather(
                *(store.session("s").append(batch(id), batch_id=id) for id in ids), return_exceptions=True
            )
            for answer in answers:
                assert isinstance(answer, Appended | StoreUnavailableError | OutcomeUnknownError)
            await asyncio.sleep(usual)
            await witness.session("elsewhere").state.set("k", part)  # behind what is still under way
            stored = names(await session.messages())
            for id, answer in zip(ids, answers, strict=True):
                if not isinstance(answer, OutcomeUnknownError):
                    assert (id in stored) == isinstance(answer, Appended), f"{id}: {answer!r}"
            await asyncio.gather(*(session.append(batch(id), batch_id=id) for id in ids))
            stored = names(await session.messages())
            assert Counter(stored) == Counter(set(stored)), "sent again and stored twice"
            assert set(ids) <= set(stored)

    # Event loops that end

    @clause(1, 8)
    async def test_an_event_loop_that_ends_with_writes_under_way_leaves_each_whole_or_absent(
        self, opened: Opener, options: dict[str, Any]
    ) -> None:
        if "client" in options:
            pytest.skip("a client of the caller's own does not outlive its event loop")
        session = opened().session("s")
        await session.append(batch("first"))
        for passes in range(8):
            store, answered = opened(), ["first"]

            async def write(number: int, store: Store[ChatMessage], answered: list[str], passes: int) -> None:
                name = f"{passes} {number}"
                await store.session("s").append(batch(name))
                answered.append(name)

            async def leave(store: Store[ChatMessage], answered: list[str], passes: int) -> None:
                await store.open()
                writes = [asyncio.create_task(write(number, store, answered, passes)) for number in range(10)]
                for _ in range(passes):
                    await asyncio.sleep(0)
                raise KeyError(f"left with {len(writes)} under way")

            with pytest.raises(KeyError):
                await elsewhere(partial(leave, store, answered, passes))
            stored = names(await session.messages())
            assert set(answered) <= set(stored), "an acknowledged write is lost"
            await store.session("s").append(batch(f"next {passes}"))
            assert names(await session.messages()) == [*stored, f"next {passes}"]
