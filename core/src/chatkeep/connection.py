"""One backend as a store uses it: set up once, bound to one process and event loop, every call within its timeout.

Reads that are cancelled or late are dropped. A write that has begun is settled first: its outcome is awaited, however
often the caller is cancelled, until the timeout is over.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from logging import getLogger
from typing import Any, ParamSpec, TypeVar

from .backend import Backend, Settling, in_one_process
from .errors import (
    ChatkeepError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreLoopError,
    StoreTimeoutError,
    StoreUnavailableError,
)

logger = getLogger("chatkeep")

P = ParamSpec("P")
T = TypeVar("T")

WITHDRAWAL = 1 / 20
"""The last part of the timeout, which a backend has for taking back a write that is late."""


class Connection:
    """The backend of one store, and what every call to it has in common.

    `name` is the redacted URL, for error messages. `ours` says whether the backend's client is ours to close.
    """

    def __init__(self, backend: Backend, *, name: str, ours: bool, timeout: float, connect_timeout: float) -> None:
        self.backend = backend
        self.name = name
        self._ours = ours
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._process: int | None = None
        self._owner: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    async def read(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's answer, or a `StoreTimeoutError`."""
        if self._ready is not asyncio.get_running_loop() or self._process != os.getpid():
            await self._set_up()
        try:
            answer = call(*args, **kwargs)
            if isinstance(answer, asyncio.Future):
                return await self._future_answer(answer)
            return await self._answer(answer)
        except ChatkeepError:  # ours are builtins too, such as OSError: they stay, whatever the driver's are
            raise
        except self.backend.driver_errors as error:
            raise self.backend.translate(error) from error

    async def _answer(self, call: Awaitable[T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            async with asyncio.timeout(self._timeout) as limit:
                answer = await call
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._too_late() from error
        if task.cancelling() > cancellations:
            # Swallowed by the driver: before Python 3.12 asyncio.wait_for does so, where the answer comes with it.
            raise asyncio.CancelledError
        return answer

    async def _future_answer(self, answer: asyncio.Future[T]) -> T:
        def give_up() -> None:
            if not answer.done():
                answer.set_exception(self._too_late())

        timer = asyncio.get_running_loop().call_later(self._timeout, give_up)
        try:
            return await answer
        finally:
            timer.cancel()

    def _too_late(self) -> StoreTimeoutError:
        return StoreTimeoutError(f"{self.name} did not answer within {self._timeout:g} s")

    async def write(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The call's outcome, settled before a cancellation goes on, or an `OutcomeUnknownError`."""
        loop = asyncio.get_running_loop()
        if self._ready is not loop or self._process != os.getpid():
            await self._set_up()
        answer = call(*args, **kwargs)
        outcome = answer if isinstance(answer, Settling) else _Running(answer, self)
        timer = loop.call_later(self._timeout * (1 - WITHDRAWAL), self._withdraw, outcome)
        try:
            return await outcome
        except asyncio.CancelledError as cancellation:
            error = outcome.exception()
            if isinstance(error, OutcomeUnknownError):
                raise error from cancellation
            raise cancellation from error
        except ChatkeepError:
            raise
        except self.backend.driver_errors as error:
            raise self.backend.translate(error) from error
        finally:
            timer.cancel()

    def _withdraw(self, outcome: Settling[Any]) -> None:
        outcome.withdraw()
        if not outcome.done():
            asyncio.get_running_loop().call_later(self._timeout * WITHDRAWAL, self._give_up, outcome)

    def _give_up(self, outcome: Settling[Any]) -> None:
        if not outcome.done():
            outcome.set_exception(self.unknown(f"did not answer a write within {self._timeout:g} s"))

    def unknown(self, reason: str) -> OutcomeUnknownError:
        """What is said of a write that may or may not be stored."""
        return OutcomeUnknownError(
            f"{self.name} {reason}: it may or may not be stored; "
            "send it again with the same batch_id or message ids, and it is stored once"
        )

    async def open(self) -> None:
        """Connect and set up now instead of at the first call."""
        if self._ready is not asyncio.get_running_loop() or self._process != os.getpid():
            await self._set_up()

    async def close(self) -> None:
        """Close what is ours, and refuse whoever comes from now on or waits for the set-up, which is broken off.

        Every call waits for the one closing. It goes on while a caller is cancelled; what failed is tried again.
        """
        closing, loop = self._closing, asyncio.get_running_loop()
        if closing is not None and closing.done() and not closing.cancelled() and closing.exception() is None:
            return
        self._check_process()
        if closing is None or closing.done() or closing.get_loop() is not loop:
            self._check_loop(closing=True)
            self._closed = True
            self._ready = None
            closing = self._closing = loop.create_task(self._close(self._owner is not None))
            self._owner = loop
        await asyncio.shield(closing)

    async def _close(self, used: bool) -> None:
        try:
            if self._opening is not None and self._opening.get_loop() is asyncio.get_running_loop():
                self._opening.cancel()
                await asyncio.wait((self._opening,))
        finally:
            if used:
                await self._close_backend()

    async def _close_backend(self) -> None:
        try:
            await self.backend.close()
        except ChatkeepError:
            raise
        except self.backend.driver_errors as error:
            raise self.backend.translate(error) from error

    @property
    def inherited(self) -> bool:
        """Whether the process that this one is a fork of has it open: here it can be neither used nor closed."""
        return not self._closed and self._process not in (None, os.getpid()) and not in_one_process(self.backend)

    def _check_process(self) -> None:
        if self._process in (None, os.getpid()):
            return
        if not in_one_process(self.backend):
            raise StoreLoopError(
                f"{self.name} was opened in another process, of which this one is a fork: open a store in each "
                "process, after the fork"
            )
        # Nothing was opened and nothing is shared: what this process has is its own copy.
        self._process = self._owner = self._opening = self._closing = self._ready = None

    def _check_loop(self, *, closing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        if self._owner is None or self._owner is loop:
            return
        if not self._owner.is_closed():
            raise StoreLoopError(
                f"{self.name} is in use on another event loop, which is still open: open a store for each loop"
            )
        if not self._ours and not closing:
            raise StoreLoopError(
                f"{self.name} was opened with your own client on an event loop that is closed now: "
                "make a new client and a new store on this loop"
            )

    async def _set_up(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self.name} was closed: open a new store")
        self._check_process()
        self._check_loop()
        loop = asyncio.get_running_loop()
        self._process = os.getpid()
        if self._owner is not loop:
            self._owner, self._opening = loop, None
        if self._opening is None or self._opening.done():  # done in vain: this is the next attempt
            self._opening = loop.create_task(self._open())
            self._opening.add_done_callback(_retrieve)
        opening = self._opening
        await asyncio.wait((opening,))  # which, unlike awaiting it, tells our own cancellation from the opening's
        if self._closed:
            raise StoreClosedError(f"{self.name} was closed while it was being set up")
        opening.result()

    async def _open(self) -> None:
        foreign: tuple[type[Exception], ...] = (TimeoutError, *self.backend.driver_errors)
        try:
            async with asyncio.timeout(self._connect_timeout) as limit:
                await self.backend.open()
        except ChatkeepError:
            raise
        except foreign as error:
            if isinstance(error, TimeoutError) and limit.expired():
                limited = f"{self.name} cannot be reached within {self._connect_timeout:g} s"
                raise StoreUnavailableError(limited) from error
            if isinstance(error, self.backend.driver_errors):
                raise self.backend.translate(error) from error
            raise
        if not self._closed:
            self._ready = self._owner


def _retrieve(opening: asyncio.Task[None]) -> None:
    """Whoever waits is told; where nobody waits any more, asyncio need not complain of it."""
    if not opening.cancelled():
        opening.exception()


class _Running(Settling[T]):
    """A backend's coroutine, as a task of its own."""

    def __init__(self, call: Awaitable[T], connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._task = asyncio.ensure_future(call)
        self._task.add_done_callback(self._end)

    def withdraw(self) -> None:
        self._task.cancel()

    def _end(self, task: asyncio.Future[T]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.done():
            name, end = self._connection.name, error or ("cancelled" if task.cancelled() else "no error")
            logger.info("a write to %s that was given up has ended: %s", name, end)
        elif task.cancelled():  # withdrawn, or by an event loop that ends; it does not say whether in time
            self.set_exception(self._connection.unknown("was told to give up a write"))
        elif error is None:
            self.set_result(task.result())
        else:
            self.set_exception(error)
