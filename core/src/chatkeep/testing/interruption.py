"""What comes between a call and its answer: a cancellation at a chosen await, or an answer that does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Generic, TypeVar, cast

import pytest

from chatkeep import Store
from chatkeep.backend import Backend
from chatkeep.records import Key, Outcome, Receipt, Scope, SweepReport, Write

T = TypeVar("T")

How = Callable[["asyncio.Task[Any]", object], None]
"""Has a task cancelled that is about to wait for something."""

HANGS = 60.0
"""After so many seconds, what has not ended never will."""


class Interruption(Generic[T]):
    """Awaits an operation, and has the task in which it is awaited cancelled at the operation's `at`-th suspension.

    Without `at` it only counts them.
    """

    def __init__(self, operation: Awaitable[T], at: float = inf, how: How | None = None) -> None:
        self._operation = operation
        self._at = at
        self._how = how
        self.suspensions = 0
        """How often the operation has waited."""

    def __await__(self) -> Generator[Any, Any, T]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._operation.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return cast("T", end.value)
            self.suspensions += 1
            if self._how and (self.suspensions == self._at or (self.suspensions > self._at and self._how is twice)):
                self._how(task, waits_for)
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - it is for the operation to see
                thrown = error


def once(task: asyncio.Task[Any], _: object) -> None:
    """As soon as it waits."""
    asyncio.get_running_loop().call_soon(task.cancel)


def twice(task: asyncio.Task[Any], _: object) -> None:
    """As soon as it waits, and once more while it settles that; so again at every later suspension."""
    loop = asyncio.get_running_loop()
    loop.call_soon(task.cancel)
    loop.call_soon(lambda: loop.call_soon(task.cancel))


def as_the_answer_comes(task: asyncio.Task[Any], waits_for: object) -> None:
    """When what it waits for is there, and it has not been told so yet."""
    if isinstance(waits_for, asyncio.Future):
        waits_for.add_done_callback(lambda _: task.cancel())
    else:
        once(task, waits_for)


def begun(operation: Awaitable[T]) -> asyncio.Task[T]:
    """A task of its own for an operation."""

    async def run() -> T:
        return await operation

    return asyncio.create_task(run())


async def ended(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """The task, once it has ended, however it did."""
    await asyncio.wait({task}, timeout=HANGS)
    assert task.done(), f"not over after {HANGS:g} s"
    return task


class Withholding:
    """A store's backend while its answers to writes do not come: each is made at once, or when `release` is set."""

    def __init__(self, store: Store[Any], *, late: bool) -> None:
        self.release = asyncio.Event()
        if not late:
            self.release.set()
        self._backend = store.backend
        self._connection = store.connection
        self._writes: list[asyncio.Task[Any]] = []
        self._timers: list[Callable[[], object]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def commit(self, key: Key, write: Write) -> Outcome:
        return await self._withhold(lambda: self._backend.commit(key, write))

    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        return await self._withhold(lambda: self._backend.remove(scope, older_than=older_than, dry_run=dry_run))

    async def sweep(self, budget: int = 100) -> SweepReport:
        return await self._withhold(lambda: self._backend.sweep(budget))

    async def _withhold(self, call: Callable[[], Awaitable[T]]) -> T:
        async def make() -> None:
            await self.release.wait()
            await call()

        self._writes.append(asyncio.create_task(make()))
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        return await answer

    def keep_timer(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Remember a timer that was set, if it is one of the store's writes."""
        if getattr(callback, "__self__", None) is self._connection:
            self._timers.append(lambda: callback(*args))

    async def sent(self, tasks: Collection[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
        """Those of the tasks that wait for an answer, once all others have ended."""
        async with asyncio.timeout(HANGS):
            while len(self._writes) + sum(task.done() for task in tasks) < len(tasks):
                await asyncio.wait(tasks, timeout=0.001)
        return [task for task in tasks if not task.done()]

    async def run_out(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Let the time for the answers be over, until the tasks have ended."""
        while self._timers:
            self._timers.pop(0)()
        await asyncio.wait(tasks, timeout=HANGS)
        assert all(task.done() for task in tasks), "the end of the timeout ends nothing"

    async def written(self) -> None:
        """Have all that was sent arrive."""
        self.release.set()
        await asyncio.gather(*self._writes)


@contextmanager
def withheld(store: Store[Any], *, late: bool = False) -> Iterator[Withholding]:
    """Withhold the answers to a store's writes; their timeout is over when the test says so."""
    backend, loop = store.backend, asyncio.get_running_loop()
    set_timer = loop.call_later
    withholding = Withholding(store, late=late)

    def call_later(delay: float, callback: Callable[..., object], *args: Any, **options: Any) -> asyncio.TimerHandle:
        withholding.keep_timer(callback, args)
        return set_timer(delay, callback, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", call_later)
        store.backend = cast("Backend", withholding)
        try:
            yield withholding
        finally:
            store.backend = backend
