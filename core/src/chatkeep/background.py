"""The event loop behind `chatkeep.sync`: one per process, on one daemon thread, begun at the first call.

A call is sent to the loop, where it is a task, and waited for. If the waiting thread is interrupted (Ctrl-C, or a
signal handler that raises, as that of Celery's time limit does), the task is cancelled, and settled like any cancelled
call, before the interruption goes on.

A fork waits until the loop is between two steps, so that the child inherits no lock that the loop's thread holds: that
thread, which would give it back, is not there. The child begins a loop of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from logging import getLogger
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from .errors import StoreClosedError, StoreLoopError

if TYPE_CHECKING:
    from .store import Store

logger = getLogger("chatkeep")

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 2.0
"""How many seconds a fork waits for the loop to stand still, and the end of the process for stores to close."""


def refuse_beside_a_loop() -> None:
    """A `StoreLoopError` where an event loop is running in this thread: waiting would block it, perhaps for ever."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise StoreLoopError(
        "chatkeep.sync was called where an event loop is running, which it would block: there, open the store with "
        "chatkeep.open_store, whose methods have the same names and are awaited, or make the call in another thread, "
        "with asyncio.to_thread"
    )


class Call(Generic[T]):
    """A coroutine function that one thread has called and another one runs."""

    __slots__ = ("_call", "_task", "_told", "ended", "error", "result")

    def __init__(self, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self._told = threading.Lock()
        self._told.acquire()
        self.ended = False
        self.error: BaseException | None = None
        self.result: T

    def begin(self) -> None:
        """On the loop. The coroutine is made here: one that was never sent would complain that nobody awaited it."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        # A task that is cancelled before its first step never comes to `_run`.
        self._task.add_done_callback(lambda _: self.end(asyncio.CancelledError()))

    def cancel(self) -> None:
        """On the loop, as often as one likes."""
        if self._task is not None:
            self._task.cancel()
        else:
            self.end(asyncio.CancelledError())

    async def _run(self) -> None:
        try:
            self.result = await self._call()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits; here it could end the loop
            self.end(error)
        else:
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        """Wake the thread that waits. A task's callback would do so one turn of the loop later."""
        if not self.ended:
            self.error = error
            self.ended = True
            self._told.release()

    def wait(self) -> None:
        """Until it has ended."""
        if not self.ended:
            self._told.acquire()


class BackgroundLoop:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.stores: set[Store[Any]] = set()
        """Those that are used here, to be closed when nobody can use them any more, or at the end. Touched on the loop
        alone."""
        self._closings: set[asyncio.Task[None]] = set()
        self._calls: set[Call[Any]] = set()
        self._end = asyncio.Event()
        self._go_on = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="chatkeep.sync", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def run(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the call returns or raises. An interruption of this thread cancels it, and is raised when it has ended.

        An error of the call's, an `OutcomeUnknownError` perhaps, is then the interruption's cause.
        """
        waiting = Call(lambda: call(*args, **kwargs))
        self._calls.add(waiting)
        interruptions: list[BaseException] = []
        while True:
            try:
                try:
                    self._settle(waiting, interruptions)
                    break
                except BaseException as raised:  # noqa: BLE001 - raised again when the call has ended
                    interruptions.append(raised)
            except BaseException as raised:  # noqa: BLE001 - of a second signal, which waited behind the first
                interruptions.append(raised)
        self._calls.discard(waiting)
        interruption = interruptions[-1] if interruptions else None
        refuse_at_the_end()
        error, waiting.error = waiting.error, None
        try:
            if interruption is not None:
                cause = error.__cause__ if isinstance(error, asyncio.CancelledError) else error
                if cause is not None:
                    interruption.__cause__ = cause
                raise interruption
            if error is not None:
                raise error
            return waiting.result
        finally:
            interruptions.clear()
            del interruption, error  # whose traceback has this frame: neither may keep the other alive

    def _settle(self, waiting: Call[Any], interruptions: list[BaseException]) -> None:
        """Send the call, or its cancellation, and wait until it has ended, or will not because the loop has."""
        while not waiting.ended and not (interruptions and (_ending or self._loop.is_closed())):
            refuse_at_the_end()
            self._loop.call_soon_threadsafe(waiting.cancel if interruptions else waiting.begin)
            waiting.wait()

    def _serve(self) -> None:
        # asyncio.Runner would have another thread end those of the default executor, in which names are looked up; at
        # the end of a process no thread can be started, and the executor's have ended.
        try:
            self._loop.run_until_complete(self._close_at_the_end())
        finally:
            self._loop.close()

    async def _close_at_the_end(self) -> None:
        await self._end.wait()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logger.info("%s", context["message"]))
        for store in tuple(self.stores):  # one by one: SQLite's last connection to a file empties its write-ahead log
            try:
                await store.close()
            except Exception as error:  # noqa: BLE001 - whatever a driver raises, the others are closed
                logger.info("a store was not closed at the end of the process: %s", error)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()

    def drop(self, store: Store[Any]) -> None:
        """Nobody can use the store any more: close it. Called by the garbage collector, on any thread."""
        if self is _current and not _ending:
            self._loop.call_soon_threadsafe(self._begin_to_close, store)

    def _begin_to_close(self, store: Store[Any]) -> None:
        closing = asyncio.get_running_loop().create_task(store.close())
        self._closings.add(closing)
        closing.add_done_callback(self._closed)
        self.stores.discard(store)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closings.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.info("a store that nobody closed was not closed: %s", error)

    def end(self) -> None:
        """Close the stores and end the thread, within a time: what is left then ends as in a killed process."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE)

    def hold_still(self) -> None:
        """Keep the loop between two steps until `go_on`. A step that does not end in time is not waited for."""
        if threading.current_thread() is self._thread:
            return
        holding, go_on = threading.Event(), threading.Event()
        self._go_on = go_on

        def hold() -> None:
            holding.set()
            go_on.wait()

        self._loop.call_soon_threadsafe(hold)
        holding.wait(PATIENCE)

    def go_on(self) -> None:
        """Let the loop go on."""
        self._go_on.set()

    def leave(self) -> None:
        """In a forked child: calls that were under way have no outcome here."""
        for call in self._calls:
            call.end(StoreLoopError("the process was forked during this call, whose outcome is its parent's"))


_changing = threading.RLock()
"""Held while the loop is begun or ended, and over a fork."""
_current: BackgroundLoop | None = None
_ending = False
_left_behind: list[object] = []
"""What a forked child has of its parent. It is not used and not freed: either would disturb what the parent uses."""


def current_loop() -> BackgroundLoop:
    """This process's loop, begun if it is not there."""
    global _current  # noqa: PLW0603 - one per process
    if _current is None:
        with _changing:
            refuse_at_the_end()
            if _current is None:
                _current = BackgroundLoop()
    return _current


def leave_behind(*things: object) -> None:
    """Keep what a forked child must not free."""
    _left_behind.append(things)


def refuse_at_the_end() -> None:
    """A `StoreClosedError` where the process is ending. A daemon thread stops here, as it soon would anywhere."""
    if _ending:
        if threading.current_thread().daemon:
            threading.Event().wait()
        raise StoreClosedError("the process is ending, and its stores are closed: make the call earlier")


def _end() -> None:
    global _ending  # noqa: PLW0603
    with _changing:
        _ending = True
    if _current is not None:
        _current.end()


def _before_fork() -> None:
    _changing.acquire()
    if _current is not None:
        _current.hold_still()


def _after_fork_in_parent() -> None:
    try:
        if _current is not None:
            _current.go_on()
    finally:
        if _changing._is_owned():  # type: ignore[attr-defined]  # not, where a signal handler raised before
            _changing.release()


def _after_fork_in_child() -> None:
    global _changing, _current  # noqa: PLW0603
    _changing = threading.RLock()
    if _current is not None:
        _current.leave()
        leave_behind(_current)
        _current = None


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
