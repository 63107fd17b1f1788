"""What every call to a backend has in common: set-up, event loops, timeouts, cancellation, errors of the driver."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from chatkeep import (
    ChatMessage,
    OutcomeUnknownError,
    SessionSerializer,
    Store,
    StoreError,
    StoreUnavailableError,
    open_store,
)
from chatkeep.codecs import ChatMessageCodec
from chatkeep.errors import ConflictError, StoreClosedError, StoreLoopError, StoreTimeoutError
from chatkeep.memory import MemoryBackend
from chatkeep.options import StoreOptions
from chatkeep.records import Head, Key, Outcome, Write
from chatkeep.testing.lifecycle import every_call

Pause = Callable[[], Awaitable[object]]
SHORT = 0.1
"""A timeout, in seconds, for those calls that are never answered."""


class DriverError(Exception):
    """What the driver of the scripted backend raises."""


async def nothing() -> None:
    return None


async def hang() -> None:
    await asyncio.Event().wait()


async def three_steps() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def break_down() -> None:
    await asyncio.sleep(0)
    raise DriverError("the wire broke")


class Scripted(MemoryBackend):
    """The memory backend, made slow, deaf or broken: a pause before a commit takes effect, and one after it."""

    driver_errors = (DriverError,)

    def __init__(self) -> None:
        super().__init__()
        self.before: Pause = nothing
        self.after: Pause = nothing
        self.opening: Pause = nothing
        self.looking: Pause = nothing
        self.closing: Pause = nothing
        self.begun = self.under_way = self.opened = self.closed = 0

    def translate(self, error: Exception) -> StoreError:
        return StoreUnavailableError(f"the scripted database: {error}")

    async def open(self) -> None:
        self.opened += 1
        await self.opening()

    async def close(self) -> None:
        self.closed += 1
        await self.closing()

    async def commit(self, key: Key, write: Write) -> Outcome:
        self.begun += 1
        self.under_way += 1
        try:
            await self.before()
            outcome = await super().commit(key, write)
            await self.after()
            return outcome
        finally:
            self.under_way -= 1

    async def head(self, key: Key) -> Head | None:
        await self.looking()
        return await super().head(key)


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


def store_on(
    backend: Scripted, *, timeout: float = 30.0, connect_timeout: float = 5.0, ours: bool = True
) -> Store[ChatMessage]:
    return Store(
        backend,
        name="scripted://",
        options=StoreOptions(timeout=timeout, connect_timeout=connect_timeout),
        serializer=SessionSerializer(),
        codec=ChatMessageCodec(),
        ours=ours,
    )


def say(*said: str) -> list[ChatMessage]:
    return [ChatMessage.user(text) for text in said]


async def stored(backend: Scripted) -> list[str]:
    """What is stored, read past the store under test."""
    other = Scripted()
    other.held = backend.held
    return [message.text for message in await store_on(other).session("s").messages()]


Act = Callable[[Store[ChatMessage]], Awaitable[object]]

WRITES: dict[str, Act] = {
    "append": lambda store: store.session("s").append(say("new 1", "new 2")),
    "append with a batch id": lambda store: store.session("s").append(say("new 1", "new 2"), batch_id="x"),
    "pop": lambda store: store.session("s").pop(2),
    "replace_prefix": lambda store: store.session("s").replace_prefix(3, say("summary")),
    "truncate_after": lambda store: store.session("s").truncate_after(1),
    "state.set": lambda store: store.session("s").state.set("k", "new"),
    "update": lambda store: store.session("s").update(title="new"),
}


# Clause 8: cancelled


@pytest.mark.parametrize("cancellations", [1, 2, 3])
@pytest.mark.parametrize("name", WRITES)
async def test_cancelled_at_whatever_await_a_write_that_has_begun_is_settled_first(
    name: str, cancellations: int
) -> None:
    cut_short = settled = 0
    for step in range(14):
        backend = Scripted()
        backend.opening = backend.before = backend.after = three_steps
        store = store_on(backend)
        before = await others_see(backend, fill=True)
        act = asyncio.ensure_future(WRITES[name](store))
        for _ in range(step):
            await asyncio.sleep(0)
        for _ in range(cancellations):
            act.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({act})
        assert backend.under_way == 0, "the cancellation went on while the write was under way"
        now = await others_see(backend)
        cut_short += act.cancelled()
        settled += backend.begun
        assert (now != before) == bool(backend.begun), "begun and not settled"
        for _ in range(20):
            await asyncio.sleep(0)
        assert await others_see(backend) == now
    assert cut_short >= 10
    assert settled >= 6


async def others_see(backend: Scripted, *, fill: bool = False) -> object:
    """All of the session as another store sees it; first fill it if asked to."""
    other = Scripted()
    other.held = backend.held
    session = store_on(other).session("s")
    if fill:
        await session.append(say("a", "b", "c"))
    info = await session.info()
    assert info is not None
    return [message.text for message in await session.messages()], await session.state.items(), info.title


async def test_a_second_cancellation_does_not_cut_the_settling_short(backend: Scripted) -> None:
    store, answer = store_on(backend), asyncio.Event()
    await store.open()
    backend.before = answer.wait
    act = asyncio.create_task(store.session("s").append(say("a")))
    for _ in range(5):
        await asyncio.sleep(0.01)
        act.cancel()
    await asyncio.sleep(0.01)
    assert not act.done()
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await act
    assert await stored(backend) == ["a"]


async def test_a_write_that_is_cancelled_and_refused_is_cancelled_with_the_refusal_as_its_cause(
    backend: Scripted,
) -> None:
    store = store_on(backend)
    await store.open()
    backend.before = three_steps
    act = asyncio.create_task(store.session("s").append(say("a"), expected_tail=7))
    await asyncio.sleep(0)
    act.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await act
    assert isinstance(cancelled.value.__cause__, ConflictError)
    assert await stored(backend) == []


async def test_a_cancelled_write_that_cannot_be_settled_is_of_unknown_outcome(backend: Scripted) -> None:
    store = store_on(backend, timeout=SHORT)
    await store.open()
    backend.after = hang
    act = asyncio.create_task(store.session("s").append(say("a")))
    await asyncio.sleep(0)
    act.cancel()
    with pytest.raises(OutcomeUnknownError) as unknown:
        await act
    assert isinstance(unknown.value.__cause__, asyncio.CancelledError)
    assert await stored(backend) == ["a"]


async def test_a_timeout_of_the_callers_own_waits_for_the_outcome_and_is_the_callers(backend: Scripted) -> None:
    store = store_on(backend)
    await store.open()
    backend.after = lambda: asyncio.sleep(0.2)
    with pytest.raises(TimeoutError) as late:
        async with asyncio.timeout(0.01):
            await store.session("s").append(say("a"))
    assert not isinstance(late.value, StoreTimeoutError)
    assert backend.under_way == 0
    assert await stored(backend) == ["a"]


async def test_in_a_task_group_the_failure_of_another_leaves_the_write_settled(backend: Scripted) -> None:
    store = store_on(backend)
    await store.open()
    backend.before = backend.after = three_steps

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("the stream ended")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(store.session("s").append(say("a", "b")))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as failed:
        await both()
    assert failed.group_contains(KeyError)
    assert (backend.under_way, await stored(backend)) == (0, ["a", "b"])


async def test_cancelled_during_set_up_nothing_is_written_and_the_set_up_serves_the_next_one(backend: Scripted) -> None:
    store, answer = store_on(backend), asyncio.Event()
    backend.opening = answer.wait
    act = asyncio.create_task(store.session("s").append(say("a")))
    await asyncio.sleep(0.01)
    act.cancel()
    with pytest.raises(asyncio.CancelledError):
        await act
    answer.set()
    await store.session("s").append(say("b"))
    assert (backend.opened, backend.begun, await stored(backend)) == (1, 1, ["b"])


async def test_a_cancelled_read_is_dropped_at_once(backend: Scripted) -> None:
    store = store_on(backend)
    await store.open()
    backend.looking = hang
    act = asyncio.create_task(store.session("s").info())
    await asyncio.sleep(0.01)
    act.cancel()
    with pytest.raises(asyncio.CancelledError):
        await act


async def test_a_read_whose_cancellation_the_driver_swallows_is_cancelled_all_the_same(backend: Scripted) -> None:
    store = store_on(backend)
    await store.open()

    async def swallow() -> None:
        with suppress(asyncio.CancelledError):
            await hang()

    backend.looking = swallow
    act = asyncio.create_task(store.session("s").info())
    await asyncio.sleep(0.01)
    act.cancel()
    with pytest.raises(asyncio.CancelledError):
        await act


# Clause 8: late


@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_write_without_an_answer_is_of_unknown_outcome_and_can_be_sent_again(
    backend: Scripted, where: str
) -> None:
    store = store_on(backend, timeout=SHORT)
    setattr(backend, where, hang)
    with pytest.raises(OutcomeUnknownError, match="same batch_id"):
        await store.session("s").append(say("a"), batch_id="x")
    assert await stored(backend) == ([] if where == "before" else ["a"])
    setattr(backend, where, nothing)
    await store.session("s").append(say("a"), batch_id="x")
    assert await stored(backend) == ["a"]


async def test_a_write_that_an_ending_event_loop_cuts_off_is_not_waited_for(backend: Scripted) -> None:
    """At its end, `asyncio.run` cancels every task, those that the store made too."""
    store = store_on(backend, timeout=3600)
    await store.open()
    backend.before = hang
    before = asyncio.all_tasks()
    act = asyncio.create_task(store.session("s").append(say("a")))
    await asyncio.sleep(0.01)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    with pytest.raises(OutcomeUnknownError):
        await asyncio.wait_for(act, 20)


async def test_a_write_that_heeds_no_cancellation_is_given_up_all_the_same(backend: Scripted) -> None:
    store, answer = store_on(backend, timeout=SHORT), asyncio.Event()
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def deaf() -> None:
        while not answer.is_set():
            try:
                await answer.wait()
            except asyncio.CancelledError:
                continue
        raise DriverError("far too late")

    backend.before = deaf
    with pytest.raises(OutcomeUnknownError):
        await store.session("s").append(say("a"))
    assert backend.under_way == 1
    answer.set()
    await asyncio.sleep(0.01)
    assert backend.under_way == 0
    gc.collect()
    assert complaints == [], "a late failure is nobody's any more"


async def test_a_backend_that_takes_a_late_write_back_says_so(backend: Scripted) -> None:
    store = store_on(backend, timeout=SHORT)

    async def withdraw() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StoreTimeoutError("taken back: nothing was written") from None

    backend.before = withdraw
    with pytest.raises(StoreTimeoutError, match="taken back"):
        await store.session("s").append(say("a"))


async def test_settling_and_giving_up_take_no_longer_than_the_timeout(
    backend: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the timers that are set, one for settling and one for taking back."""
    store = store_on(backend, timeout=1.0)
    await store.open()
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    set_timer = loop.call_later

    def call_later(delay: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return set_timer(0, *args, **kwargs)

    async def deaf() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if len(delays) > 1:
                    raise

    backend.before = deaf
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", call_later)
        with pytest.raises(OutcomeUnknownError):
            await store.session("s").append(say("a"))
    assert len(delays) == 2
    assert sum(delays) == pytest.approx(1.0)


async def test_a_late_read_is_a_timeout_and_a_connection_error(backend: Scripted) -> None:
    store = store_on(backend, timeout=SHORT)
    backend.looking = hang
    with pytest.raises(StoreTimeoutError, match="scripted://") as late:
        await store.session("s").info()
    assert isinstance(late.value, TimeoutError)
    assert isinstance(late.value, ConnectionError)
    backend.looking = nothing
    assert await store.session("s").info() is None


async def test_a_callers_timeout_around_a_read_stays_the_callers(backend: Scripted) -> None:
    store = store_on(backend)
    await store.open()
    backend.looking = hang
    with pytest.raises(TimeoutError) as late:
        async with asyncio.timeout(0.01):
            await store.session("s").info()
    assert not isinstance(late.value, StoreError)


# Errors of the driver


@pytest.mark.parametrize("place", ["opening", "looking", "before", "after"])
async def test_an_error_of_the_driver_is_one_of_ours_with_the_drivers_as_its_cause(
    backend: Scripted, place: str
) -> None:
    store = store_on(backend)
    if place != "opening":
        await store.open()
    setattr(backend, place, break_down)
    act = store.session("s").append(say("a")) if place in ("before", "after") else store.session("s").info()
    with pytest.raises(StoreUnavailableError, match="the wire broke") as failed:
        await act
    assert isinstance(failed.value.__cause__, DriverError)
    setattr(backend, place, nothing)
    await store.session("s").append(say("b"))
    assert (await stored(backend))[-1] == "b"


async def test_our_errors_stay_as_they_are_where_the_driver_raises_oserror(
    backend: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a backend on files or sockets does: `StoreTimeoutError` and others are an OSError too."""
    monkeypatch.setattr(Scripted, "driver_errors", (OSError,))

    async def refuse() -> None:
        raise StoreUnavailableError("somebody has the file")

    async def fail() -> None:
        raise FileNotFoundError("no such file")

    ours, theirs = "(^|: )somebody has the file$", "the scripted database: no such file$"
    for place, pause, kind, words in [
        ("opening", hang, StoreUnavailableError, r"^scripted:// cannot be reached within 0\.1 s$"),
        ("opening", refuse, StoreUnavailableError, ours),
        ("opening", fail, StoreUnavailableError, theirs),
        ("looking", hang, StoreTimeoutError, r"^scripted:// did not answer within 0\.1 s$"),
        ("looking", refuse, StoreUnavailableError, ours),
        ("looking", fail, StoreUnavailableError, theirs),
        ("before", refuse, StoreUnavailableError, ours),
        ("before", fail, StoreUnavailableError, theirs),
    ]:
        store = store_on(backend, timeout=SHORT, connect_timeout=SHORT)
        setattr(backend, place, pause)
        with pytest.raises(kind, match=words) as told:
            await (store.session("s").append(say("a")) if place == "before" else store.session("s").info())
        assert type(told.value) is kind
        assert ("the scripted database" in str(told.value)) is (pause is fail)
        setattr(backend, place, nothing)
    backend.closing = refuse
    with pytest.raises(StoreUnavailableError, match=r"^somebody has the file$"):
        await store.close()


# Set-up


async def test_fifty_tasks_at_once_set_up_once(backend: Scripted) -> None:
    store = store_on(backend)
    backend.opening = three_steps
    await asyncio.gather(*(store.session("s").append(say(str(number))) for number in range(50)))
    assert (backend.opened, len(await stored(backend))) == (1, 50)


async def test_one_cancelled_of_those_who_wait_for_the_set_up_disturbs_no_other(backend: Scripted) -> None:
    store, answer = store_on(backend), asyncio.Event()
    backend.opening = answer.wait
    acts = [asyncio.create_task(store.session("s").append(say(str(number)))) for number in range(10)]
    await asyncio.sleep(0.01)
    for act in acts[::2]:
        act.cancel()
    await asyncio.sleep(0.01)
    answer.set()
    await asyncio.wait(acts)
    assert [act.cancelled() for act in acts] == [True, False] * 5
    assert (backend.opened, await stored(backend)) == (1, ["1", "3", "5", "7", "9"])


async def test_a_failed_set_up_is_told_to_all_who_waited_and_the_next_call_tries_again(backend: Scripted) -> None:
    store = store_on(backend)
    backend.opening = break_down
    answers = await asyncio.gather(*(store.session("s").info() for _ in range(10)), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailableError) for answer in answers)
    assert backend.opened == 1
    backend.opening = nothing
    await store.session("s").append(say("a"))
    assert (backend.opened, await stored(backend)) == (2, ["a"])


async def test_a_set_up_that_failed_while_nobody_waited_is_not_held_against_the_next_call(backend: Scripted) -> None:
    store, answer = store_on(backend), asyncio.Event()

    async def fail_later() -> None:
        await answer.wait()
        raise DriverError("the wire broke")

    backend.opening = fail_later
    act = asyncio.create_task(store.open())
    await asyncio.sleep(0.01)
    act.cancel()
    with pytest.raises(asyncio.CancelledError):
        await act
    answer.set()
    await asyncio.sleep(0.01)
    backend.opening = nothing
    await store.session("s").append(say("a"))
    assert backend.opened == 2


async def test_a_set_up_that_takes_too_long_is_unavailable_and_is_tried_again(backend: Scripted) -> None:
    store = store_on(backend, connect_timeout=SHORT)
    backend.opening = hang
    with pytest.raises(StoreUnavailableError, match=r"scripted:// cannot be reached within 0\.1 s"):
        await store.open()
    backend.opening = nothing
    await store.open()
    assert backend.opened == 2


# Closing


async def test_closing_during_the_set_up_breaks_it_off_and_refuses_those_who_waited(backend: Scripted) -> None:
    store, tidy = store_on(backend), asyncio.Event()

    async def hang_and_tidy_up() -> None:
        try:
            await hang()
        finally:
            await tidy.wait()

    backend.opening = hang_and_tidy_up
    acts = [asyncio.create_task(store.session("s").append(say(str(number)))) for number in range(5)]
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.01)
    assert backend.closed == 0, "closed what was still being opened"
    tidy.set()
    await closing
    for act in acts:
        with pytest.raises(StoreClosedError):
            await act
    assert (backend.opened, backend.closed, backend.begun) == (1, 1, 0)


async def test_closing_during_a_set_up_that_fails_is_quiet(backend: Scripted) -> None:
    store = store_on(backend)

    async def fail_if_broken_off() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            raise DriverError("the wire broke") from None

    backend.opening = fail_if_broken_off
    act = asyncio.create_task(store.open())
    await asyncio.sleep(0.01)
    await store.close()
    with pytest.raises(StoreClosedError):
        await act
    with pytest.raises(StoreClosedError):
        await store.open()


async def test_closing_goes_on_while_its_caller_is_cancelled_and_whoever_closes_next_waits_for_it(
    backend: Scripted,
) -> None:
    store, answer = store_on(backend), asyncio.Event()
    await store.open()
    backend.closing = answer.wait
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.close()
    waiting = [asyncio.create_task(store.close()) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    answer.set()
    await asyncio.gather(*waiting)
    assert backend.closed == 1


async def test_a_closing_that_fails_is_an_error_of_ours_and_the_next_one_tries_again(backend: Scripted) -> None:
    store = store_on(backend)
    await store.open()
    backend.closing = break_down
    with pytest.raises(StoreUnavailableError, match="the wire broke"):
        await store.close()
    with pytest.raises(StoreClosedError):
        await store.ping()
    backend.closing = nothing
    await store.close()
    await store.close()
    assert backend.closed == 2


def test_a_closing_that_its_event_loop_cut_off_is_done_by_the_next_one(backend: Scripted) -> None:
    store = store_on(backend)

    async def begin_to_close() -> None:
        await store.open()
        backend.closing = hang
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0.01)
        assert not closing.done()

    on_a_loop_of_its_own(begin_to_close)
    backend.closing = nothing
    on_a_loop_of_its_own(store.close)
    on_a_loop_of_its_own(store.close)
    assert backend.closed == 2


async def test_async_with_that_is_cancelled_while_it_opens_closes_what_was_opened(backend: Scripted) -> None:
    backend.opening = hang
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), store_on(backend):
            pytest.fail("it was never open")
    assert (backend.opened, backend.closed) == (1, 1)


async def test_async_with_that_cannot_open_says_why_and_closes(backend: Scripted) -> None:
    backend.opening = break_down
    with pytest.raises(StoreUnavailableError, match="the wire broke"):
        async with store_on(backend):
            pytest.fail("it was never open")
    assert (backend.opened, backend.closed) == (1, 1)


async def test_what_was_never_opened_is_not_closed_and_what_was_is_closed_once(backend: Scripted) -> None:
    store = store_on(backend)
    await store.close()
    assert backend.closed == 0
    used = store_on(backend)
    await used.open()
    await used.close()
    await used.close()
    assert (backend.opened, backend.closed) == (1, 1)
    with pytest.raises(StoreClosedError, match="scripted://"):
        await used.session("s").info()
    assert backend.opened == 1, "a closed store was set up again"


async def test_async_with_opens_and_closes_even_if_the_block_fails(backend: Scripted) -> None:
    async def use() -> None:
        async with store_on(backend):
            assert backend.opened == 1
            raise KeyError("the block failed")

    with pytest.raises(KeyError):
        await use()
    assert backend.closed == 1


# Event loops


def on_a_loop_of_its_own(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    with asyncio.Runner() as runner:
        runner.run(call())


def test_a_second_loop_is_refused_while_the_first_is_open_and_served_when_it_is_closed(backend: Scripted) -> None:
    store = store_on(backend)

    async def use() -> None:
        await store.session("s").append(say("a"))

    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(use())
        for call in (use, store.open, store.close):
            with pytest.raises(StoreLoopError, match="scripted:// is in use on another event loop"):
                on_a_loop_of_its_own(call)
        first.run_until_complete(use())
    finally:
        first.close()
    assert backend.opened == 1
    on_a_loop_of_its_own(use)
    assert backend.opened == 2
    assert asyncio.run(stored(backend)) == ["a", "a", "a"]


def test_with_the_callers_client_a_second_loop_is_refused_for_good_and_may_still_close(backend: Scripted) -> None:
    store = store_on(backend, ours=False)

    async def use() -> None:
        await store.session("s").append(say("a"))

    on_a_loop_of_its_own(use)
    with pytest.raises(StoreLoopError, match="make a new client"):
        on_a_loop_of_its_own(use)
    assert backend.opened == 1
    on_a_loop_of_its_own(store.close)
    assert backend.closed == 1


def test_a_loop_that_ended_during_the_set_up_leaves_the_next_one_to_begin_anew(backend: Scripted) -> None:
    store = store_on(backend)

    async def give_up() -> None:
        act = asyncio.create_task(store.open())
        await asyncio.sleep(0.01)
        assert not act.done()

    backend.opening = hang
    on_a_loop_of_its_own(give_up)
    backend.opening = nothing

    async def use() -> None:
        await store.session("s").append(say("a"))

    on_a_loop_of_its_own(use)
    assert backend.opened == 2


# Processes


async def test_in_a_forked_process_every_call_is_refused_and_the_backend_is_left_alone(
    backend: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(backend)
    await store.session("s").append(say("a"))
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        for name, call in {**every_call(store), "close": store.close}.items():
            with pytest.raises(StoreLoopError) as refused:
                await call()
            assert "scripted:// was opened in another process" in str(refused.value), name
    assert (backend.opened, backend.begun, backend.closed) == (1, 1, 0)
    await store.session("s").append(say("b"))
    await store.close()
    assert (await stored(backend), backend.closed) == (["a", "b"], 1)


async def test_a_store_that_was_closed_before_a_fork_is_closed_in_the_child_too(
    backend: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(backend)
    await store.open()
    await store.close()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.ping()
    assert backend.closed == 1


def test_a_backend_that_opens_nothing_serves_a_forked_process_whatever_became_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store("memory://")

    async def use() -> int:
        await store.session("s").append(say("a"))
        return await store.session("s").count()

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(use()) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert loop.run_until_complete(use()) == 2
    monkeypatch.setattr(os, "getpid", lambda: -2)
    assert asyncio.run(use()) == 3
    loop.close()
