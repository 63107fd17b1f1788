"""How an async object becomes a sync one: calls that wait for the background loop."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from .background import BackgroundLoop, current_loop, leave_behind, refuse_beside_a_loop

if TYPE_CHECKING:
    from .store import Store

M = TypeVar("M")
T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

AT_ONCE = 100
"""How many items of an async iterator are fetched with one call."""


class Origin:
    """The async store that a sync store and all its handles stand for, and how calls on it are made."""

    def __init__(self, store: Store[Any], open_anew: Callable[[], Store[Any]] | None) -> None:
        """`open_anew` makes a store of the same URL and options, for a forked child; None where that cannot be."""
        self.store = store
        self._open_anew = open_anew
        self._loop: BackgroundLoop | None = None

    def run(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the call returns or raises, run on this process's loop."""
        refuse_beside_a_loop()
        loop = current_loop()
        if self._loop is not loop:
            loop.run(self._move, loop)
        return loop.run(call, *args, **kwargs)

    async def _move(self, loop: BackgroundLoop) -> None:
        """On the loop, at the first call in a process: a store that was opened before a fork is connected anew."""
        if self._loop is not loop:
            loop.stores.add(self.store)
            weakref.finalize(self, loop.drop, self.store).atexit = False
        if self._open_anew is not None and self.store.connection.inherited:
            leave_behind(self.store.backend, self.store.connection)
            fresh = self._open_anew()
            self.store.backend, self.store.connection = fresh.backend, fresh.connection
        self._loop = loop

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """What ``async with`` gives. It is left again if this thread is interrupted when it was just entered."""
        entered: list[T] = []

        async def enter() -> None:
            entered.append(await manager.__aenter__())

        try:
            self.run(enter)
        except BaseException:
            if entered:
                self.run(manager.__aexit__, None, None, None)
            raise
        return entered[0]


class Handle:
    """A sync object and its async twin, which does the work."""

    __slots__ = ("_origin", "_twin")

    def __init__(self, twin: Any, origin: Origin) -> None:
        self._twin = twin
        self._origin = origin

    def __repr__(self) -> str:
        return f"{repr(self._twin)[:-1]}, sync>"


# Three ways for an async method to become a sync one, with its name, its arguments and its docstring. What returns a
# handle, which becomes a sync one as well, is written out.


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Handle, P], T]:
    @wraps(method)
    def call(handle: Handle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return handle._origin.run(method, handle._twin, *args, **kwargs)

    return call


def plain(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Handle, P], T]:
    @wraps(method)
    def call(handle: Handle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(handle._twin, *args, **kwargs)

    return call


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Handle, P], Iterator[T]]:
    @wraps(method)
    def iterate(handle: Handle, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        refuse_beside_a_loop()
        return _fetched(method(handle._twin, *args, **kwargs), handle._origin)

    signature = inspect.signature(method)
    shown = signature.replace(return_annotation=str(signature.return_annotation).removeprefix("Async"))
    iterate.__signature__ = shown  # type: ignore[attr-defined]
    return iterate


def _fetched(iterator: AsyncIterator[T], origin: Origin) -> Iterator[T]:
    while True:
        items, error = origin.run(_fetch, iterator)
        yield from items
        if error is not None:
            raise error
        if len(items) < AT_ONCE:
            return


async def _fetch(iterator: AsyncIterator[T]) -> tuple[list[T], Exception | None]:
    """The next items, fewer than AT_ONCE where they end, and the error that they end with."""
    items: list[T] = []
    try:
        while len(items) < AT_ONCE:
            items.append(await anext(iterator))
    except StopAsyncIteration:
        return items, None
    except Exception as error:  # noqa: BLE001 - raised behind the items that came before it
        return items, error
    return items, None


def documented_by(method: Callable[..., Any]) -> Callable[[F], F]:
    """For what is written out."""

    def document(function: F) -> F:
        function.__doc__ = method.__doc__
        return function

    return document


def listed(messages: Iterable[M]) -> Iterable[M]:
    """The messages as a list, made in this thread: an iterator may itself call the store.

    What is no iterable, or none of messages, is left for the store to refuse.
    """
    left = isinstance(messages, (list, tuple, str, bytes, dict)) or not isinstance(messages, Iterable)
    return messages if left else list(messages)
