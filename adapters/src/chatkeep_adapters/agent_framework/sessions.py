"""`ChatkeepSessionStore`: the framework's sessions, kept in a database.

One `AgentSession` is one state key of the chatkeep session with that id: the id and service id that it has, its state,
and the agent's fingerprint. One key and not one for each entry of the state, because a session is read and replaced as
a whole: one value is never half of one writer's and half of another's, is read in one step, and has the one version
that compare-and-set needs. A history that grows belongs into messages (`ChatkeepHistoryProvider`), not into the state.

The service session id stands beside it in the same atomic write, where `ScopedStore.find_by_service_id` finds it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import EllipsisType, TracebackType
from typing import Any, Self

from agent_framework import AgentSession

from chatkeep import (
    ABSENT,
    ChatkeepError,
    ConflictError,
    CorruptRecordError,
    ScopedStore,
    SerializationError,
    Session,
    Store,
    open_store,
)
from chatkeep.arguments import check_id
from chatkeep.metadata import ServiceId, changes
from chatkeep.records import StateOp, Write

from .given import narrowed, no_store
from .session_state import StateWriter, read

try:
    from agent_framework import SessionStore
except ImportError as error:
    raise ImportError(
        "ChatkeepSessionStore extends the framework's SessionStore, which came with agent-framework-core 1.13: "
        "pip install 'agent-framework-core>=1.13,<2'"
    ) from error

STATE_KEY = "agent_framework.session"
"""The state key that holds the snapshot."""
KIND = "chatkeep.agent_session"
VERSION = 1
FORMAT = f"{KIND}/{VERSION}"

_VERSIONS = "_chatkeep_versions"
"""The attribute of an `AgentSession` that holds the versions which `get` read and `set` wrote; copies take it along."""


class FingerprintError(ChatkeepError, ValueError):
    """A session was stored for an agent of another configuration: ``stored`` and ``expected`` are the fingerprints."""

    def __init__(self, message: str, *, stored: str, expected: str) -> None:
        super().__init__(message)
        self.stored = stored
        self.expected = expected


class ChatkeepSessionStore(SessionStore):
    """Sessions of the Microsoft Agent Framework in the scope of a store.

    ::

        store = open_store("sqlite:///chat.db")
        sessions = ChatkeepSessionStore(store.scoped(tenant="acme", user="alice"))
        session = await sessions.get("support-42") or agent.create_session(session_id="support-42")
        await agent.run("Where is my bag?", session=session)
        await sessions.set("support-42", session)

    `store` is a store, a scope of one, or a URL; what was opened from a URL is closed by `aclose`, or by ``async
    with``. `app`, `tenant` and `user` narrow it. A session expires as the store's ``ttl`` says.

    Give each signed-in user a scope of their own: no other session can be read, written or noticed from there. A
    service session id is bound to the API key and not to a user, so take none from a client: it is found through a
    session of the user's own, and what a client sends as a serialised session goes through `resume`, not through
    ``AgentSession.from_dict``.

    With ``check_conflicts=True`` a `set` is a `ConflictError` if the session was stored or deleted since the `get` that
    this `AgentSession`, or the one that it is a copy of, came from; one that came from no `get` is only stored where
    there is none. Without it the last writer wins, as in the framework's own stores.

    `fingerprint` is a text of yours that stands for the agent's configuration. It is kept with each session, and `get`
    raises a `FingerprintError` if another one is found. An error and not a warning, because the agent would already
    have answered when somebody reads the log, and because nobody has to ask for it. A session that was stored without
    one is taken.

    The framework calls its session stores experimental, and warns of that once.
    """

    def __init__(
        self,
        store: ScopedStore[Any] | str,
        *,
        check_conflicts: bool = False,
        fingerprint: str | None = None,
        app: str | EllipsisType = ...,
        tenant: str | EllipsisType = ...,
        user: str | EllipsisType = ...,
    ) -> None:
        super().__init__()
        self._own: Store[Any] | None = None
        if isinstance(store, str):
            store = self._own = open_store(store)
        elif not isinstance(store, ScopedStore):
            raise no_store(store, type(self).__name__)
        self._scope = narrowed(store, app=app, tenant=tenant, user=user)
        self._check_conflicts = check_conflicts
        self._fingerprint = None if fingerprint is None else check_id(fingerprint, "fingerprint")
        self._writer: StateWriter | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._scope!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close what was opened from a URL; a store that you passed in stays open. May be called twice."""
        if self._own is not None:
            await self._own.close()

    @staticmethod
    def validate_session_id(session_id: str) -> None:
        """An `InvalidIdError` for what cannot be an id: it is any text of 1 to 1,024 bytes in UTF-8."""
        check_id(session_id, "a session id")

    async def get(self, session_id: str) -> AgentSession | None:
        """The session as it was last stored, a new object at each call, or None.

        A `CorruptRecordError` if what is stored cannot be read, or holds a type that is not registered in this
        process; a `FingerprintError` if it was stored for an agent of another configuration.
        """
        entry = await self._session(session_id).state.entry(STATE_KEY)
        if entry is None:
            return None
        session = self._restored(session_id, entry.value)
        self._note(session_id, session, entry.version)
        return session

    async def set(self, session_id: str, session: AgentSession) -> None:
        """Store the session under that id, in the place of what is there, in one atomic step.

        As in the framework's own stores it may be another id than the session's; `get` takes the one given here, and
        `resume` finds a session only under its own.

        What would not come back as what it is, is a `SerializationError` that names its place; then nothing is written.
        """
        if not isinstance(session, AgentSession):
            raise TypeError(
                f"a session store takes an AgentSession, not {type(session).__name__}: a serialised one of your own is "
                "read with AgentSession.from_dict, and one that a client has sent with resume"
            )
        if type(session) is not AgentSession:
            raise TypeError(
                f"a session store takes an AgentSession itself, not {type(session).__qualname__}: a class that extends "
                "it would not come back; keep what it adds in session.state"
            )
        handle = self._session(session_id)
        service = session.service_session_id
        service = dict(service) if isinstance(service, Mapping) else service
        self._writer = self._writer or StateWriter(handle.serializer)
        value = {
            "format": FORMAT,
            "session_id": session.session_id,
            "service_session_id": service,
            "fingerprint": self._fingerprint,
            "state": self._writer.write(session.state),
        }
        expected = self._versions(session).get(self._place(session_id), ABSENT) if self._check_conflicts else None
        try:
            operation = handle.state.operation(STATE_KEY, value, expected=expected)
        except SerializationError as error:
            key = f"state[{STATE_KEY!r}]"  # nobody else's: the place is one in the AgentSession
            raise SerializationError(
                str(error).replace(key, "$", 1), path=error.path.replace(key, "$", 1)
            ) from error.__cause__
        meta = changes(handle.serializer, service_session_id=service or None)
        try:
            outcome = await handle.commit(Write(os.urandom(16), state=[operation], meta=meta))
        except ConflictError as error:
            raise ConflictError(
                f"session {session_id!r} was stored or deleted by somebody else since this one was read: get it again, "
                "and do to that what was done to this",
                version=error.version,
            ) from error
        self._note(session_id, session, str(outcome.versions[0]))

    async def delete(self, session_id: str) -> None:
        """Delete the stored `AgentSession` and its service session id, if they are there.

        The messages of the same chatkeep session stay, as the framework's stores leave a history alone; all of it goes
        with ``await store.session(session_id).delete()``.
        """
        handle = self._session(session_id)
        meta = changes(handle.serializer, service_session_id=None)
        await handle.commit(Write(os.urandom(16), state=[StateOp(STATE_KEY)], meta=meta, must_exist=True))

    async def find_by_service_id(self, service_session_id: ServiceId) -> AgentSession | None:
        """This scope's session with that service session id, the last written one if there are several, or None.

        An id that was issued to somebody else is not found, nor is one that no session has any more.
        """
        found = await self._scope.find_by_service_id(service_session_id)
        return None if found is None else await self.get(found.id)

    async def resume(self, snapshot: Mapping[str, Any]) -> AgentSession | None:
        """The session that a serialised one from outside (``session.to_dict()``) names, as it is stored in this scope.

        Of what a client sends only the session id is used. If it holds a service session id, that must be the stored
        one: otherwise it is as little found as a session of somebody else's, and the answer is None.
        """
        if not isinstance(snapshot, Mapping):
            raise TypeError(
                f"resume takes the mapping of session.to_dict(), not {type(snapshot).__name__}: "
                "read JSON with json.loads first"
            )
        session = await self.get(check_id(snapshot.get("session_id"), "the snapshot's session_id"))
        claimed = snapshot.get("service_session_id")
        return session if session is not None and claimed in (None, session.service_session_id) else None

    def _session(self, session_id: str) -> Session[Any]:
        return self._scope.session(session_id)

    def _restored(self, session_id: str, value: Any) -> AgentSession:
        """The `AgentSession` that a stored value holds."""
        try:
            _check_form(value)
            session = AgentSession(
                session_id=check_id(value["session_id"], "session_id"), service_session_id=value["service_session_id"]
            )
            session.state = read(value["state"])
        except (CorruptRecordError, LookupError, TypeError, ValueError) as error:
            raise CorruptRecordError(f"the stored AgentSession of session {session_id!r}: {error}") from error
        stored, expected = value.get("fingerprint"), self._fingerprint
        if stored is not None and expected is not None and stored != expected:
            raise FingerprintError(
                f"session {session_id!r} was stored for an agent with the fingerprint {stored!r}, and this one has "
                f"{expected!r}: begin a new session, or, if this agent can go on with it, read it with a "
                "ChatkeepSessionStore without fingerprint= and store it with this one",
                stored=stored,
                expected=expected,
            )
        return session

    def _place(self, session_id: str) -> tuple[str, str]:
        return self._scope.scope.address, session_id

    def _versions(self, session: AgentSession) -> dict[tuple[str, str], str]:
        versions: dict[tuple[str, str], str] = vars(session).get(_VERSIONS, {})
        return versions

    def _note(self, session_id: str, session: AgentSession, version: str) -> None:
        """Remember which version of the stored session this object stands for."""
        if self._check_conflicts:
            vars(session)[_VERSIONS] = {**self._versions(session), self._place(session_id): version}


def _check_form(value: Any) -> None:
    """Refuse a stored value that this version does not know."""
    form = value.get("format") if isinstance(value, Mapping) else None
    if form == FORMAT:
        return
    kind, _, version = form.partition("/") if isinstance(form, str) else ("", "", "")
    if kind == KIND and version.isdecimal() and int(version) > VERSION:
        raise CorruptRecordError(
            f"it has the form {form!r} of a newer chatkeep, and this one reads {FORMAT!r}; upgrade"
        )
    raise CorruptRecordError(f"its form is {form!r} and not {FORMAT!r}")
