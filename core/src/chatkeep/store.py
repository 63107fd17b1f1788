"""The store: what a connection URL opens, and the scopes in it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from . import metadata as about
from .arguments import check_id, check_number
from .backend import Backend
from .codecs import MessageCodec, check_codec
from .connection import Connection
from .errors import InvalidIdError, MessageTooLargeError, ScopeRequiredError
from .records import Expiry, Health, Keep, Key, Listing, Receipt, Scope, SweepReport, Write
from .session import Session
from .state import State

if TYPE_CHECKING:
    from .options import StoreOptions
    from .serializer import SessionSerializer
    from .snapshot import SessionSnapshot

M = TypeVar("M")
N = TypeVar("N")

PAGE = 100


class SessionPage(list[about.SessionInfo]):
    """Sessions, last written first. `next` goes on with the following page; it is None at the end."""

    def __init__(self, sessions: list[about.SessionInfo], next: str | None) -> None:
        super().__init__(sessions)
        self.next = next


class ScopedStore(Generic[M]):
    """What one scope can see of a store: its own sessions and state, and nothing outside it."""

    def __init__(self, store: Store[Any], scope: Scope, codec: MessageCodec[M]) -> None:
        self._store = store
        self._scope = scope
        self._codec = codec

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._scope.address} of {self._store.connection.name}>"

    @property
    def scope(self) -> Scope:
        """The address of this view."""
        return self._scope

    def scoped(
        self, *, app: str | EllipsisType = ..., tenant: str | EllipsisType = ..., user: str | EllipsisType = ...
    ) -> ScopedStore[M]:
        """The view of a scope below this one. What is set already cannot be changed, nor can anything outside it.

        None is refused: a tenant that somebody forgot to look up must not become the scope of "no tenant".
        """
        given = {"app": app, "tenant": tenant, "user": user}
        fields = {name: check_id(value, name) for name, value in given.items() if value is not ...}
        if not fields:
            raise InvalidIdError("scoped() needs an app, a tenant or a user")
        scope = self._scope._replace(**fields)
        if not self._scope.contains(scope):
            raise InvalidIdError(
                f"{scope.address} does not lie below {self._scope.address}: start from the store itself"
            )
        return ScopedStore(self._store, scope, self._codec)

    @overload
    def session(self, id: str) -> Session[M]: ...
    @overload
    def session(self, id: str, *, codec: MessageCodec[N]) -> Session[N]: ...
    def session(self, id: str, *, codec: MessageCodec[Any] | None = None) -> Session[Any]:
        """A handle on the session with this id, whether it exists or not. No I/O."""
        key = Key(self._scope, check_id(id, "a session id"))
        self._store.check_scope(self._scope)
        return Session(self._store, key, self._codec if codec is None else check_codec(codec))

    @property
    def state(self) -> State:
        """The state of the scope itself: it belongs to no session and does not expire."""
        self._store.check_scope(self._scope)
        return State(self._store, Key(self._scope, ""))

    async def list_sessions(
        self,
        *,
        limit: int = PAGE,
        after: str | None = None,
        below: bool = False,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionPage:
        """A page of this scope's sessions, or with `below` also of the scopes below it, last written first.

        `title` and `metadata` keep those that have exactly these. `after` is the `next` of the page before.
        """
        limit = check_number(limit, "limit", least=1)
        where = about.changes(self._store.serializer, title=... if title is None else title, metadata=metadata)
        if None in where.values():
            raise ValueError("a metadata filter must be a value: None cannot be searched for")
        wanted = {name: text for name, text in where.items() if text is not None}
        listing = Listing(below, wanted, after, limit)
        page = await self._store.connection.read(self._store.backend.sessions, self._scope, listing)
        return SessionPage([about.described(head, self._store.serializer) for head in page.heads], page.next)

    async def iter_sessions(self, *, below: bool = False) -> AsyncIterator[about.SessionInfo]:
        """Every session of `list_sessions`, page after page."""
        after = None
        while True:
            page = await self.list_sessions(after=after, below=below)
            for info in page:
                yield info
            if page.next is None:
                return
            after = page.next

    async def find_by_service_id(self, service_session_id: about.ServiceId) -> Session[M] | None:
        """This scope's session with that service session id, the last written one if there are several, or None."""
        where = {about.SERVICE: about.service_entry(self._store.serializer, service_session_id)}
        listing = Listing(where=where, limit=1)
        page = await self._store.connection.read(self._store.backend.sessions, self._scope, listing)
        return self.session(page.heads[0].key.session) if page.heads else None

    async def restore(self, snapshot: SessionSnapshot) -> Session[M]:
        """The snapshot's session in this scope, with the snapshot's state and metadata; see `Session.restore`."""
        session = self.session(snapshot.session_id)
        await session.restore(snapshot)
        return session

    async def erase(self, *, dry_run: bool = False) -> Receipt:
        """Remove everything in this scope and below it: sessions, and the state of the scopes.

        All that was acknowledged before the call is gone. A whole store is not erased by mistake: narrow it first
        with ``scoped()``, or use ``purge(older_than=0)``, which removes every session and leaves the state of scopes.
        """
        if not self._scope.depth:
            raise ScopeRequiredError(
                "erase() on the whole store: narrow it with scoped(), or use purge(older_than=0), which removes every "
                "session and leaves the state of scopes"
            )
        return await self._store.connection.write(self._store.backend.remove, self._scope, dry_run=dry_run)

    async def purge(self, older_than: float | str | timedelta | None = None, *, dry_run: bool = False) -> Receipt:
        """Remove this scope's sessions, and those below it, that were not written for `older_than` (seconds, or such as
        ``"30d"``), and those that have expired. Without it only the expired ones. The state of scopes stays.
        """
        from .options import parse_duration  # noqa: PLC0415 - pydantic's models wait for the first store

        age = float("inf") if older_than is None else parse_duration(older_than)
        return await self._store.connection.write(
            self._store.backend.remove, self._scope, older_than=age, dry_run=dry_run
        )


class Store(ScopedStore[M]):
    """A database that keeps conversations. `chatkeep.open_store` makes one; it connects at the first use.

    It belongs to the event loop of its first use. ``async with`` closes it, also where it could not be opened.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        options: StoreOptions,
        serializer: SessionSerializer,
        codec: MessageCodec[M],
        ours: bool = True,
    ) -> None:
        fields = {"app": options.app, "tenant": options.tenant}
        root = Scope(**{name: check_id(value, name) for name, value in fields.items() if value is not None})
        super().__init__(self, root, codec)
        self.backend = backend
        self.options = options
        self.serializer = serializer
        self.connection = Connection(
            backend, name=name, ours=ours, timeout=options.timeout, connect_timeout=options.connect_timeout
        )
        self.keep = Keep(options.max_messages, options.max_age, options.remember_ids)
        self.expiry = Expiry(options.ttl, options.ttl_policy == "fixed")

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and set up now. Without it the first call does so."""
        await self.connection.open()

    async def close(self) -> None:
        """Give back connections and threads. A client that you passed in stays open. May be called twice."""
        await self.connection.close()

    async def ping(self) -> Health:
        """Which server answers, and what it says of itself."""
        return await self.connection.read(self.backend.ping)

    async def sweep(self, budget: int = 100) -> SweepReport:
        """Remove up to about `budget` leftovers: expired sessions, and what writers left that died."""
        return await self.connection.write(self.backend.sweep, check_number(budget, "budget"))

    def at(self, scope: Scope) -> ScopedStore[M]:
        """The view of a scope that lies in this store; an `InvalidIdError` for any other."""
        if not self._scope.contains(scope):
            raise InvalidIdError(f"{scope.address} does not lie in {self._scope.address}, which is all of this store")
        for name, value in zip(scope._fields, scope, strict=True):
            if value is not None:
                check_id(value, name)
        return ScopedStore(self, scope, self._codec)

    async def renew(self, key: Key) -> None:
        """Renew the time of a session that was read, where the policy says so."""
        if key.session and self.options.ttl_policy == "read" and self.expiry.ttl is not None:
            touch = Write(os.urandom(16), expiry=self.expiry, must_exist=True)
            await self.connection.write(self.backend.commit, key, touch)

    def check_scope(self, scope: Scope) -> None:
        """Refuse the root address where the store requires a scope."""
        if self.options.require_scope and scope == self._scope:
            raise ScopeRequiredError("this store requires a scope: use store.scoped(tenant=…, user=…)")

    def check_size(self, what: str, size: int) -> None:
        """Refuse what is larger than a message may be."""
        if size > self.options.max_message_bytes:
            limit = self.options.max_message_bytes
            raise MessageTooLargeError(
                f"{what} takes {size} bytes; max_message_bytes is {limit}: raise it, or divide the value between keys"
            )
