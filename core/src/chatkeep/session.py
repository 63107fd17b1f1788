"""A session: one conversation with its logs, its state and what it says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from types import EllipsisType
from typing import Any, TypeVar, overload

from . import heads
from . import metadata as about
from .arguments import NAME_BYTES, check_id
from .codecs import MessageCodec, check_codec
from .errors import ConfigError, ConflictError, MessageNotFoundError, OutcomeUnknownError, StoreError
from .lease import Lease
from .log import Log
from .records import ABSENT, Cursor, Head, Key, LogHead, Scope, Span, StateOp, Write
from .snapshot import SessionSnapshot
from .state import State

M = TypeVar("M")
N = TypeVar("N")

FORKED_FROM = "forked_from"
"""The metadata key that names what a fork came from."""


class Session(Log[M]):
    """One conversation: its main log, and everything else that belongs to it. A cheap handle, no I/O by itself."""

    __slots__ = ()

    @property
    def id(self) -> str:
        return self._key.session

    @property
    def scope(self) -> Scope:
        return self._key.scope

    @overload
    def log(self, name: str) -> Log[M]: ...
    @overload
    def log(self, name: str, *, codec: MessageCodec[N]) -> Log[N]: ...
    def log(self, name: str, *, codec: MessageCodec[Any] | None = None) -> Log[Any]:
        """A further log of this session, with its own order, sharing its scope, state, expiry and deletion."""
        check_id(name, "a log's name", NAME_BYTES)
        codec = self._codec if codec is None else check_codec(codec)
        return Log(self._store, self._key, codec, name=name, life=self._life, fence=self._fence)

    @property
    def state(self) -> State:
        """The session's state: JSON values under keys."""
        return State(self._store, self._key, life=self._life, fence=self._fence)

    async def info(self) -> about.SessionInfo | None:
        """What there is to know without reading the session; None if it does not exist."""
        head = await self._store.connection.read(self._store.backend.head, self._key)
        return about.described(head, self._store.serializer) if head else None

    async def exists(self) -> bool:
        """Whether anything was written to it that has not been deleted and has not expired."""
        return await self._store.connection.read(self._store.backend.head, self._key) is not None

    async def update(
        self,
        *,
        title: str | EllipsisType | None = ...,
        metadata: Mapping[str, Any] | None = None,
        service_session_id: about.ServiceId | EllipsisType | None = ...,
    ) -> None:
        """Set what is given. Metadata is merged key by key; None removes a key, the title or the service session id."""
        entries = about.changes(
            self._store.serializer, title=title, metadata=metadata, service_session_id=service_session_id
        )
        if entries:
            await self.commit(Write(os.urandom(16), meta=entries))

    async def delete(self) -> bool:
        """Delete the session with everything in it; whether there was one. The next write begins a new life."""
        outcome = await self.commit(self._write(delete=True, must_exist=True))
        return outcome.life != ABSENT

    async def fork(self, new_id: str, *, upto: Cursor | int | None = None) -> Session[M]:
        """A new session in the same scope that begins with this one's messages, up to a place or all of them.

        One atomic step. Title and metadata come along, and ``forked_from``; state, further logs and the service session
        id do not. A `ConflictError` if the new session exists already, or if this one is edited or deleted meanwhile.
        """
        fork = self._store.at(self.scope).session(new_id, codec=self._codec)
        if fork.id == self.id:
            raise ConflictError(f"session {self.id!r} cannot be forked onto itself")
        life, place = self._position(upto)
        page = await self._store.connection.read(
            self._store.backend.read, self._key, "", Span(before=None if place is None else place + 1)
        )
        self._check_life(life or None, page.head)
        if page.head is None:
            raise MessageNotFoundError(f"there is no session {self.id!r} to fork")
        origin = {FORKED_FROM: {"session": self.id, "seq": page.records[-1].seq if page.records else 0}}
        meta = dict(page.head.meta) | about.changes(self._store.serializer, metadata=origin)
        meta.pop(about.SERVICE, None)
        write = Write(os.urandom(16), append=page.records, meta=meta, expiry=self._store.expiry, life=ABSENT)
        await self._store.connection.write(self._write_fork, fork.id, write, page.head)
        return fork

    async def _write_fork(self, new_id: str, write: Write, origin: Head) -> None:
        """Write the fork, and take it back if its origin has changed: what was redacted or erased must not live on.

        One call to the connection, so that a cancellation in between waits for all of it.
        """
        backend, key = self._store.backend, Key(self.scope, new_id)
        failures: tuple[type[Exception], ...] = (StoreError, *backend.driver_errors)
        try:
            outcome = await backend.commit(key, write)
        except ConflictError as error:
            heads.name_place(error, key)
            raise
        try:
            head = await backend.head(self._key)
        except failures as error:
            raise OutcomeUnknownError(
                f"session {new_id!r} was forked from {self.id!r}, which could not be read again: whether it was edited "
                "or deleted meanwhile is not known. Delete the fork, and fork again"
            ) from error
        if self._standing(head) == self._standing(origin):
            return
        with suppress(ConflictError):  # somebody else has deleted it already
            await backend.commit(key, Write(os.urandom(16), delete=True, life=outcome.life, must_exist=True))
        raise ConflictError(f"session {self.id!r} was edited or deleted while it was forked: fork it again")

    @staticmethod
    def _standing(head: Head | None) -> tuple[str, int] | None:
        """The life, and how often what the main log holds was changed."""
        return None if head is None else (head.life, head.logs.get("", LogHead()).rewrite)

    async def snapshot(self) -> SessionSnapshot:
        """Session id, service session id, state, title and metadata, as one value to keep elsewhere or to send."""
        while True:
            info = await self.info()
            state = await self.state.items()
            again = await self.info()
            if (info and info.life) == (again and again.life):
                break
        if info is None:
            return SessionSnapshot(self.id)
        return SessionSnapshot(self.id, info.service_session_id, state, info.metadata, info.title)

    async def restore(self, snapshot: SessionSnapshot) -> None:
        """Give the session the snapshot's state, title, metadata and service session id, in one atomic step.

        State keys and metadata that the snapshot does not have are removed; the messages stay.
        """
        info = await self.info()
        known = dict.fromkeys(info.metadata if info else ())
        meta = about.changes(
            self._store.serializer,
            title=snapshot.title,
            metadata={**known, **snapshot.metadata},
            service_session_id=snapshot.service_session_id,
        )
        state = self.state
        operations = [state.operation(key, value) for key, value in snapshot.state.items()]
        operations += [StateOp(key) for key in await state.keys() if key not in snapshot.state]
        await self.commit(Write(os.urandom(16), state=operations, meta=meta))

    def lease(self, *, ttl: float | str | timedelta = 30.0, wait: float | str | timedelta = 0.0) -> Lease[M]:
        """Hold the session for `ttl` against others who ask for its lease; wait up to `wait` for them.

        Both are seconds, or durations such as ``"30s"``.
        """
        seconds = _seconds("ttl", ttl)
        if not seconds:
            raise ValueError(f"a lease's ttl must be more than 0 seconds, not {ttl!r}")
        return Lease(self, ttl=seconds, wait=_seconds("wait", wait))

    def guarded(self, life: str, fence: int) -> Session[M]:
        """This session, for writes in one life under one fencing token alone."""
        return Session(self._store, Key(self.scope, self.id), self._codec, life=life, fence=fence)


def _seconds(name: str, value: float | str | timedelta) -> float:
    from .options import parse_duration  # noqa: PLC0415 - pydantic's models wait for the first store

    try:
        return parse_duration(value)
    except ConfigError as error:
        raise ConfigError(f"a lease's {name}: {error}") from None
