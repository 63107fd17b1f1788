"""The protocol that a storage plugin implements.

A backend keeps records, state entries and one head per session, and never sees a message. It has one way to change
anything, `commit`; what the store can do is built on it. What each primitive promises:

``commit``
    The whole write or nothing, visible at once to every reader, in one atomic step. Conditions (`life`, `must_exist`,
    `expected_tail`, `expected_rewrite`, `expected`, versions, `fence`) are checked in that step, and a `ConflictError`
    says what is current. A session without a head, or whose expiry has passed, has no life: the write begins one, with
    nothing of the former one left. A record without `created_at` gets the backend's clock. Committing one write twice
    (same token) is committing it once: the tokens of at least the last `records.RECENT` writes are remembered, and of
    those with `batch` the log's last `records.BATCHES`, with the log itself.
``read``
    Records of one log from one instant, in order of seq, with the head of that instant.
``head``
    The head, with all its logs. None if there is no live session.
``state``
    State entries in the byte order of their keys. The empty session is the scope's own state.
``sessions``
    Heads of live sessions in exactly this scope, or also below it, last written first, then by id. While one pages, a
    session that is not written meanwhile is on exactly one page.
``remove``
    Everything in and below a scope: all that was acknowledged before the call began. With ``older_than`` only sessions
    not written for so many seconds, and expired ones; the state of scopes then stays.
``sweep``
    Removes at most about `budget` leftovers: expired sessions, and what dead writers left.
``open``
    Connects and sets up, once. It is called again on another event loop after the first was closed: what was bound to
    that loop is dropped without being awaited. A backend without it keeps everything in its own process.
``close``
    Gives back what `open` took, never a client that the caller passed in. It may be called twice, and like `open` on
    another loop.

`commit` and `read` are coroutine functions as a rule. Where they return futures instead (`commit` a `Settling`), which
go on by themselves, the store is spared a task. No method may block the event loop. After the first loop is closed,
calls may come from another thread. What is kept is bytes, and names no code to load: no pickle.

Reads never see an expired session. Backends raise chatkeep's errors for conditions; exceptions of the driver, named in
`driver_errors`, come through and are turned into ours by `translate`, in one place in the store.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from .errors import BackendBrokenError, StoreError
from .records import (
    Head,
    HeadPage,
    Health,
    Key,
    Listing,
    Outcome,
    Receipt,
    RecordPage,
    Scope,
    Select,
    Span,
    StatePage,
    SweepReport,
    Write,
)

T = TypeVar("T")

if TYPE_CHECKING:
    from .options import StoreOptions
    from .url import StoreURL


class Settling(asyncio.Future[T]):
    """The outcome of a write that has been sent: it cannot be cancelled, only settled.

    A task that is cancelled while it awaits one gets its CancelledError when the outcome is there: asyncio asks what a
    task awaits to cancel itself, is refused here, and throws the error in once the task goes on.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return False

    def withdraw(self) -> None:
        """The time is nearly over: end with a `StoreTimeoutError` if nothing was written yet and nothing will be."""


class Backend(Protocol):
    """One database. See the module's docstring for what each method promises."""

    driver_errors: tuple[type[Exception], ...] = ()

    def translate(self, error: Exception) -> StoreError:
        return StoreError(str(error))

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    @abstractmethod
    async def ping(self) -> Health: ...

    @abstractmethod
    def commit(self, key: Key, write: Write) -> Awaitable[Outcome]: ...

    @abstractmethod
    def read(self, key: Key, log: str, span: Span) -> Awaitable[RecordPage]: ...

    @abstractmethod
    async def head(self, key: Key) -> Head | None: ...

    @abstractmethod
    async def state(self, key: Key, select: Select) -> StatePage: ...

    @abstractmethod
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage: ...

    @abstractmethod
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt: ...

    @abstractmethod
    async def sweep(self, budget: int = 100) -> SweepReport: ...


def in_one_process(backend: Backend) -> bool:
    """Whether no other process can have the same database: a backend that opens nothing keeps all of it in its own."""
    return type(backend).open is Backend.open


def check_backend(backend: object, name: str) -> Backend:
    """`backend` if it has all that a backend needs, else a `BackendBrokenError`."""
    needed = [method for method in vars(Backend) if not method.startswith("_")]
    if missing := [method for method in needed if not hasattr(backend, method)]:
        kind = type(backend).__name__
        raise BackendBrokenError(
            f"the backend that the {name} plugin opens, a {kind}, has no {', '.join(missing)}: "
            "inherit from chatkeep.backend.Backend, and write what it lacks"
        )
    return cast("Backend", backend)


@dataclass(frozen=True)
class BackendSpec:
    """What a plugin's ``chatkeep_backend`` hook returns."""

    name: str
    """The name of the entry point, of the extra and of the folder."""
    schemes: tuple[str, ...]
    """The URL schemes that it answers to."""
    options: type[StoreOptions]
    """Its options: a pydantic model on the shared base."""
    open: Callable[[StoreURL, Any, Any], Backend]
    """``open(url, options, client)``: a backend, not yet connected. `client` is the caller's own, or None."""
    takes_client: bool = False
    """Whether a caller may pass a driver's client of their own."""
