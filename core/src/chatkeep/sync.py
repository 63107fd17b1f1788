"""The store without async: for scripts, Django and Celery.

::

    from chatkeep import ChatMessage
    from chatkeep.sync import open_store

    with open_store("sqlite:///chat.db") as store:
        session = store.scoped(tenant="acme", user="alice").session("support-42")
        session.append([ChatMessage.user("Where is my bag?")])
        for message in session.stream():
            print(message.text)

The names, arguments, results and errors are those of `chatkeep`; ``async with`` becomes ``with``, ``async for`` becomes
``for``. Everything runs on one event loop on a thread of its own, which the first call begins; codecs, reducers and
counts of tokens are called there.

* Any number of threads may use one store.
* Where an event loop is running, a call is a `StoreLoopError`: use the async store there.
* An exception that is raised into a waiting thread, such as Ctrl-C, cancels the call; a write is settled first.
* In a forked child, a store that the parent had open is opened anew, with every handle on it. SQLite refuses a file
  that the parent has open. Of a database in memory the child has a copy (``memory://``) or an empty one
  (``sqlite://``). A store on your own client that the parent had open is refused.
* Stores that nobody closed are closed when the process ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from . import factory
from .blocking import Handle, Origin, blocking, documented_by, iterating, listed, plain
from .codecs import MessageCodec
from .factory import Types
from .lease import Lease as AsyncLease
from .log import Appended
from .log import Log as AsyncLog
from .messages import ChatMessage
from .metadata import ServiceId
from .records import Cursor, Expiry, Keep, OnConflict, Scope
from .session import Session as AsyncSession
from .state import State as AsyncState
from .store import ScopedStore as AsyncScopedStore
from .store import Store as AsyncStore

if TYPE_CHECKING:
    from .options import StoreOptions
    from .serializer import SessionSerializer
    from .snapshot import SessionSnapshot

__all__ = ["Lease", "Log", "ScopedStore", "Session", "State", "Store", "open_store"]

M = TypeVar("M")
N = TypeVar("N")


class Log(Handle, Generic[M]):
    """One log of a session: `chatkeep.Log` without async."""

    __slots__ = ()

    _twin: AsyncLog[M]

    @property
    def name(self) -> str:
        """The log's name; "" is the session's main log."""
        return self._twin.name

    @property
    def codec(self) -> MessageCodec[M]:
        """What a message is here."""
        return self._twin.codec

    @property
    def serializer(self) -> SessionSerializer:
        """What turns a codec's values into bytes and back."""
        return self._twin.serializer

    @documented_by(AsyncLog.append)
    def append(
        self,
        messages: Iterable[M],
        *,
        batch_id: str | None = None,
        expected_tail: Cursor | int | None = None,
        on_conflict: OnConflict = "keep",
        metadata: Mapping[str, Any] | None = None,
    ) -> Appended:
        return self._origin.run(
            self._twin.append,
            listed(messages),
            batch_id=batch_id,
            expected_tail=expected_tail,
            on_conflict=on_conflict,
            metadata=metadata,
        )

    @documented_by(AsyncLog.replace_prefix)
    def replace_prefix(self, upto: Cursor | int, messages: Iterable[M] = ()) -> Appended:
        return self._origin.run(self._twin.replace_prefix, upto, listed(messages))

    messages = blocking(AsyncLog[M].messages)
    stream = iterating(AsyncLog[M].stream)
    count = blocking(AsyncLog.count)
    records = blocking(AsyncLog.records)
    decode = plain(AsyncLog[M].decode)
    pop = blocking(AsyncLog[M].pop)
    truncate_after = blocking(AsyncLog.truncate_after)
    clear = blocking(AsyncLog.clear)
    replace = blocking(AsyncLog[M].replace)
    redact = blocking(AsyncLog.redact)
    verify = blocking(AsyncLog.verify)
    repair = blocking(AsyncLog.repair)
    commit = blocking(AsyncLog.commit)


class Session(Log[M]):
    """One conversation: `chatkeep.Session` without async."""

    __slots__ = ()

    _twin: AsyncSession[M]

    @property
    def id(self) -> str:
        return self._twin.id

    @property
    def scope(self) -> Scope:
        return self._twin.scope

    @overload
    def log(self, name: str) -> Log[M]: ...
    @overload
    def log(self, name: str, *, codec: MessageCodec[N]) -> Log[N]: ...
    @documented_by(AsyncSession.log)
    def log(self, name: str, *, codec: MessageCodec[Any] | None = None) -> Log[Any]:
        return Log(self._twin.log(name) if codec is None else self._twin.log(name, codec=codec), self._origin)

    @property
    def state(self) -> State:
        """The session's state: JSON values under keys."""
        return State(self._twin.state, self._origin)

    info = blocking(AsyncSession.info)
    exists = blocking(AsyncSession.exists)
    update = blocking(AsyncSession.update)
    delete = blocking(AsyncSession.delete)

    @documented_by(AsyncSession.fork)
    def fork(self, new_id: str, *, upto: Cursor | int | None = None) -> Session[M]:
        return Session(self._origin.run(self._twin.fork, new_id, upto=upto), self._origin)

    snapshot = blocking(AsyncSession.snapshot)
    restore = blocking(AsyncSession.restore)

    @documented_by(AsyncSession.lease)
    def lease(self, *, ttl: float | str | timedelta = 30.0, wait: float | str | timedelta = 0.0) -> Lease[M]:
        return Lease(self._twin.lease(ttl=ttl, wait=wait), self._origin)

    @documented_by(AsyncSession.guarded)
    def guarded(self, life: str, fence: int) -> Session[M]:
        return Session(self._twin.guarded(life, fence), self._origin)


class Lease(Handle, Generic[M]):
    """``with session.lease(ttl=30) as guarded``: `chatkeep.lease.Lease` without async."""

    __slots__ = ()

    _twin: AsyncLease[M]

    def __enter__(self) -> Session[M]:
        return Session(self._origin.enter(self._twin), self._origin)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._origin.run(self._twin.__aexit__, kind, error, traceback)

    renew = blocking(AsyncLease.renew)


class State(Handle):
    """The state of a session or of a scope: `chatkeep.State` without async."""

    __slots__ = ()

    _twin: AsyncState

    get = blocking(AsyncState.get)
    entry = blocking(AsyncState.entry)
    set = blocking(AsyncState.set)
    update = blocking(AsyncState.update)
    delete = blocking(AsyncState.delete)
    keys = blocking(AsyncState.keys)
    items = blocking(AsyncState.items)
    operation = plain(AsyncState.operation)


class ScopedStore(Handle, Generic[M]):
    """What one scope can see of a store: `chatkeep.ScopedStore` without async."""

    __slots__ = ()

    _twin: AsyncScopedStore[M]

    @property
    def scope(self) -> Scope:
        """The address of this view."""
        return self._twin.scope

    @documented_by(AsyncScopedStore.scoped)
    def scoped(
        self, *, app: str | EllipsisType = ..., tenant: str | EllipsisType = ..., user: str | EllipsisType = ...
    ) -> ScopedStore[M]:
        return ScopedStore(self._twin.scoped(app=app, tenant=tenant, user=user), self._origin)

    @overload
    def session(self, id: str) -> Session[M]: ...
    @overload
    def session(self, id: str, *, codec: MessageCodec[N]) -> Session[N]: ...
    @documented_by(AsyncScopedStore.session)
    def session(self, id: str, *, codec: MessageCodec[Any] | None = None) -> Session[Any]:
        return Session(self._twin.session(id) if codec is None else self._twin.session(id, codec=codec), self._origin)

    @property
    def state(self) -> State:
        """The state of the scope itself: it belongs to no session and does not expire."""
        return State(self._twin.state, self._origin)

    list_sessions = blocking(AsyncScopedStore.list_sessions)
    iter_sessions = iterating(AsyncScopedStore.iter_sessions)

    @documented_by(AsyncScopedStore.find_by_service_id)
    def find_by_service_id(self, service_session_id: ServiceId) -> Session[M] | None:
        found = self._origin.run(self._twin.find_by_service_id, service_session_id)
        return None if found is None else Session(found, self._origin)

    @documented_by(AsyncScopedStore.restore)
    def restore(self, snapshot: SessionSnapshot) -> Session[M]:
        return Session(self._origin.run(self._twin.restore, snapshot), self._origin)

    erase = blocking(AsyncScopedStore.erase)
    purge = blocking(AsyncScopedStore.purge)


class Store(ScopedStore[M]):
    """A database that keeps conversations, for any number of threads: `chatkeep.Store` without async.

    `open_store` makes one; it connects at the first use. ``with`` closes it, also where it could not be opened.
    """

    __slots__ = ()

    _twin: AsyncStore[M]

    @property
    def options(self) -> StoreOptions:
        """The options of the URL and of `open_store`, checked."""
        return self._twin.options

    @property
    def serializer(self) -> SessionSerializer:
        """What turns values into bytes and back."""
        return self._twin.serializer

    @property
    def keep(self) -> Keep:
        """How much of a log is kept."""
        return self._twin.keep

    @property
    def expiry(self) -> Expiry:
        """How long a session lives."""
        return self._twin.expiry

    def __enter__(self) -> Self:
        self._origin.enter(self._twin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._origin.run(self._twin.__aexit__, kind, error, traceback)

    open = blocking(AsyncStore.open)
    close = blocking(AsyncStore.close)
    ping = blocking(AsyncStore.ping)
    sweep = blocking(AsyncStore.sweep)
    renew = blocking(AsyncStore.renew)
    check_scope = plain(AsyncStore.check_scope)
    check_size = plain(AsyncStore.check_size)

    @documented_by(AsyncStore.at)
    def at(self, scope: Scope) -> ScopedStore[M]:
        return ScopedStore(self._twin.at(scope), self._origin)


@overload
def open_store(
    url: str | None = None, *, client: object = None, types: Types = (), codec: None = None, **options: Any
) -> Store[ChatMessage]: ...
@overload
def open_store(
    url: str | None = None, *, client: object = None, types: Types = (), codec: MessageCodec[M], **options: Any
) -> Store[M]: ...
def open_store(
    url: str | None = None,
    *,
    client: object = None,
    types: Types = (),
    codec: MessageCodec[Any] | None = None,
    **options: Any,
) -> Store[Any]:
    """The store behind a connection URL, as `chatkeep.open_store` gives it, without async.

    Usable with ``with`` and without. Nothing is connected here.
    """
    address, types = factory.store_url(url, client=client).text, tuple(types)

    def open_one() -> AsyncStore[Any]:
        return factory.open_store(address, client=client, types=types, codec=codec, **options)

    twin = open_one()
    return Store(twin, Origin(twin, open_one if client is None else None))
