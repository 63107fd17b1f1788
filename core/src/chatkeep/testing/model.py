"""A plain model of a store: what each operation returns and leaves, in dicts and lists, as the contract has it.

It is a second opinion, of which nothing is shared with any backend. What only a backend can know, the name of a life
and the version of a state key, stands as an `Unknown` here, until the backend has said it. Times are seconds.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from chatkeep import Appended, ChatMessage, Cursor, Receipt, SessionSnapshot, Window
from chatkeep.errors import (
    ConflictError,
    CorruptRecordError,
    DuplicateIdError,
    FencedError,
    LeaseHeldError,
    MessageNotFoundError,
    WindowError,
)
from chatkeep.metadata import LogInfo
from chatkeep.options import StoreOptions
from chatkeep.state import Versioned

ABSENT = ""
DEFAULTS = StoreOptions.model_validate({})
TTL_MARGIN = 1.05
"""How much longer than its time a session may be seen, as a factor (clause 11)."""


class Unknown(str):
    """What the backend has to name. Equal ones have one name, others have others."""

    __slots__ = ()


class RefusedError(Exception):
    """The operation ends with an error of exactly this kind, which carries this; with `ended` not always the tail."""

    def __init__(
        self,
        kind: type[Exception],
        *,
        tail: Cursor | None = None,
        version: str | None = None,
        seq: int | None = None,
        ended: bool = False,
    ) -> None:
        super().__init__(kind.__name__)
        self.kind, self.tail, self.version, self.seq, self.ended = kind, tail, version, seq, ended

    def __repr__(self) -> str:
        carried = {name: value for name, value in vars(self).items() if value and name != "kind"}
        return f"{self.kind.__name__} {carried}"


class At(NamedTuple):
    """Where an operation happens, by which store's options, and under which lease's guard."""

    options: StoreOptions
    scope: str
    session: str
    log: str = ""
    life: str | None = None
    fence: int | None = None


class Entry(NamedTuple):
    seq: int
    id: str | None
    data: dict[str, Any] | None
    """What a reader is given; None: it is damaged."""
    created: float


class Page(NamedTuple):
    """What a `History` says. A damaged message is None; any other None is not promised."""

    messages: list[dict[str, Any] | None]
    seqs: list[int]
    start: Cursor | None
    end: Cursor | None
    tail: Cursor
    more: bool | None
    skipped: int | None


class Info(NamedTuple):
    life: str
    created: float
    updated: float
    expires: tuple[float, float] | None
    """The first and the last instant at which it may go."""
    title: str | None
    metadata: dict[str, Any]
    service: Any
    logs: dict[str, LogInfo]


@dataclass
class ModelLog:
    entries: list[Entry] = field(default_factory=list)
    last: int = 0
    changes: int = 0
    """How often a visible message was changed or the beginning replaced: what a compaction loses against."""
    trimmed: dict[str, int] = field(default_factory=dict)
    batches: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def tail(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def held(self, id: str | None) -> int | None:
        """The index of the message with that id."""
        return next((place for place, entry in enumerate(self.entries) if id and entry.id == id), None)

    def upto(self, seq: float) -> int:
        """How many messages stand at or below `seq`."""
        return sum(entry.seq <= seq for entry in self.entries)

    def append(
        self, messages: Sequence[dict[str, Any]], on_conflict: str, now: float, options: StoreOptions
    ) -> tuple[list[int], int]:
        seqs, before, edited = list[int](), self.last, False
        ids = [data.get("id") for data in messages]
        if on_conflict == "strict" and any(self.held(id) is not None or id in self.trimmed for id in ids):
            raise RefusedError(DuplicateIdError)
        for data in messages:
            id = data.get("id")
            place = self.held(id)
            if place is not None:
                entry = self.entries[place]
                if entry.data != data and on_conflict == "error":
                    raise RefusedError(DuplicateIdError)
                if entry.data != data and on_conflict == "replace":
                    self.entries[place] = entry._replace(data=data)
                    edited = edited or entry.seq <= before
                seqs.append(entry.seq)
            elif id in self.trimmed:
                seqs.append(self.trimmed[id])
            else:
                self.last += 1
                self.entries.append(Entry(self.last, id, data, now))
                seqs.append(self.last)
        self.changes += edited
        self.trim(now, options)
        return seqs, self.last - before

    def trim(self, now: float, options: StoreOptions) -> None:
        starts = [place for place, entry in enumerate(self.entries) if starts_turn(entry.data)]
        cut, oldest = 0, now - (inf if options.max_age is None else options.max_age)
        for place in starts:
            if place and self.entries[place - 1].created >= oldest:
                break
            cut = place
        if options.max_messages is not None:
            least = len(self.entries) - options.max_messages
            cut = max([cut, *(place for place in starts if place <= least)])
            cut = cut if options.max_messages else len(self.entries)
        for entry in self.entries[:cut]:
            if entry.id:
                self.trimmed[entry.id] = entry.seq
        del self.entries[:cut]
        for id in list(self.trimmed)[: max(0, len(self.trimmed) - options.remember_ids)]:
            del self.trimmed[id]

    def take(self, start: int, end: int, upto: float = inf) -> list[Entry]:
        """Take messages out, and forget their ids and the batches that lay among them, up to the place `upto`."""
        gone = self.entries[start:end]
        del self.entries[start:end]
        low = gone[0].seq if gone else inf
        self.batches = {id: seqs for id, seqs in self.batches.items() if min(seqs) < low or max(seqs) > upto}
        return gone


@dataclass
class ModelSession:
    life: str
    created: float
    updated: float
    ttl: float | None = None
    expires: tuple[float, float] | None = None
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    service: Any = None
    logs: dict[str, ModelLog] = field(default_factory=dict)
    state: dict[str, Versioned] = field(default_factory=dict)
    fence: int = 0
    lease: tuple[str, float] | None = None

    def cursor(self, log: ModelLog | None, seq: int | None = None) -> Cursor:
        return Cursor(self.life, (log.tail if log else 0) if seq is None else seq, log.changes if log else 0)


def starts_turn(data: Mapping[str, Any] | None) -> bool:
    return data is not None and data["role"] == "user"


class World:
    """All that lies in one tenant. Its scopes are "", the tenant itself, and the names of users below it.

    A method that raises leaves it half changed: call it on a copy.
    """

    def __init__(self, now: float, *, timed: bool) -> None:
        self.now, self.timed = now, timed
        self.names = 0
        self.sessions: dict[tuple[str, str], ModelSession] = {}
        self.states: dict[str, dict[str, Versioned]] = {}
        self.bound: dict[str, str] = {}
        """What the backend calls the unknown."""
        self.cursors: dict[tuple[str, str], list[tuple[Cursor, Cursor]]] = {}
        """Those that a session gave: ours and the backend's."""
        self.versions: list[tuple[str, str]] = []
        self.leases: list[tuple[At, str]] = []
        """The guarded handle, and the owner, of each that was taken."""
        self.expired = False
        """Whether a session may be there that has expired and was not swept."""

    def copy(self) -> World:
        return copy.deepcopy(self, {id(entry): entry for entry in self._fixed()})

    def _fixed(self) -> Iterable[Any]:
        """What nobody changes, and need not be copied."""
        for session in self.sessions.values():
            for log in session.logs.values():
                yield from log.entries
        yield from (pair for pairs in self.cursors.values() for pair in pairs)
        yield from self.leases

    def fingerprint(self) -> str:
        """The same text for worlds that only differ in our own names for the unknown."""
        return re.sub(r"‹[^›]*›", lambda match: self.bound.get(match[0], "?"), repr((self.sessions, self.states)))

    def unknown(self, kind: str) -> Unknown:
        self.names += 1
        return Unknown(f"‹{kind} {self.names}›")

    def learn(self, ours: str, theirs: str) -> bool:
        """Whether the backend may call `ours` that: it has one name, which nothing else ever had."""
        if ours not in self.bound and theirs and theirs not in self.bound.values():
            self.bound[ours] = theirs
            if ours.startswith("‹version"):
                self.versions.append((ours, theirs))
        return self.bound.get(ours) == theirs if isinstance(ours, Unknown) else ours == theirs

    def keep_cursor(self, ours: Cursor, theirs: Cursor) -> None:
        """Remember a cursor that was given, for later use."""
        for key, session in self.sessions.items():
            known = self.cursors.setdefault(key, [])
            if session.life == ours.life and all(one != ours for one, _ in known):
                known.append((ours, theirs))

    def seq_of(self, scope: str, session: str, log: str, n: int) -> int:
        """The seq of the n-th newest message; 1 if there is none."""
        found = self.sessions.get((scope, session))
        entries = found.logs[log].entries if found and log in found.logs else []
        return entries[-1 - n % len(entries)].seq if entries else 1

    # Time

    def limbo(self) -> bool:
        """Whether a session may be gone by now and may also be there still."""
        spans = [session.expires for session in self.sessions.values() if session.expires]
        return any(first <= self.now < last for first, last in spans)

    def live(self, scope: str, session: str) -> ModelSession | None:
        found = self.sessions.get((scope, session))
        if found is not None and found.expires is not None and found.expires[0] <= self.now:
            self.expired = True
            del self.sessions[scope, session]
            return None
        return found

    def renew(self, session: ModelSession, options: StoreOptions) -> None:
        if options.ttl is None and session.ttl is None:
            return
        fixed = options.ttl is not None and options.ttl_policy == "fixed"
        ttl = session.ttl if options.ttl is None else options.ttl
        assert ttl is not None
        begin = session.created if fixed else self.now
        session.ttl = None if fixed else ttl
        session.expires = begin + ttl, begin + ttl * TTL_MARGIN

    def read(self, at: At) -> ModelSession | None:
        """The session, for what also renews its time where the policy says so."""
        session = self.live(at.scope, at.session)
        if session and at.options.ttl is not None and at.options.ttl_policy == "read":
            self.renew(session, at.options)
        return session

    # Conditions

    def tail(self, at: At) -> Cursor:
        session = self.live(at.scope, at.session)
        return session.cursor(session.logs.get(at.log)) if session else Cursor(ABSENT, 0)

    def check_life(self, at: At, place: Cursor | int | None) -> None:
        """Refuse the cursor of a former life, or one that was made when there was no session."""
        if isinstance(place, Cursor) and place.life != self.tail(at).life:
            raise RefusedError(ConflictError, tail=self.tail(at))

    def check_tail(self, at: At, expected: Cursor | int | None) -> None:
        self.check_life(at, expected)
        if expected is not None and number(expected) != self.tail(at).seq:
            raise RefusedError(ConflictError, tail=self.tail(at))

    def guard(self, at: At, place: Cursor | int | None = None) -> None:
        """Refuse a write under a lease that has passed on, or whose session has ended."""
        if at.life is None:
            return
        self.check_ended(at, place)
        session = self.live(at.scope, at.session)
        assert session is not None
        if at.fence is not None and at.fence < session.fence:
            raise RefusedError(FencedError)

    def check_ended(self, at: At, place: Cursor | int | None = None) -> None:
        """Refuse a lease whose session has ended, and a cursor of another life than the lease's."""
        session = self.live(at.scope, at.session)
        lives = (
            {at.life} & {session.life if session else ABSENT} & {place.life if isinstance(place, Cursor) else at.life}
        )
        if at.life is not None and not lives:
            raise RefusedError(ConflictError, tail=self.tail(at), ended=True)

    def writing(self, at: At, *, begin: bool = True) -> ModelSession | None:
        """The session, written to now; a new one begins where there is none, unless `begin` is False."""
        session = self.live(at.scope, at.session)
        if session is None:
            if not begin:
                return None
            session = self.sessions[at.scope, at.session] = ModelSession(self.unknown("life"), self.now, self.now)
        session.updated = self.now
        self.renew(session, at.options)
        return session

    def begun(self, at: At) -> ModelSession:
        session = self.writing(at)
        assert session is not None
        return session

    # Logs

    def append(
        self,
        at: At,
        messages: Sequence[ChatMessage],
        *,
        batch_id: str | None = None,
        expected_tail: Cursor | int | None = None,
        on_conflict: str = "keep",
    ) -> Appended:
        if not messages:
            self.check_tail(at, expected_tail)
            self.check_ended(at)
            return Appended(self.tail(at), (), 0)
        if on_conflict == "strict":
            distinct_ids(messages)
        self.guard(at, expected_tail)
        self.check_life(at, expected_tail)
        known = self.live(at.scope, at.session)
        if not (known and batch_id and batch_id in known.logs.get(at.log, ModelLog()).batches):
            self.check_tail(at, expected_tail)
        session = self.begun(at)
        log = session.logs.setdefault(at.log, ModelLog())
        if batch_id and batch_id in log.batches:
            return Appended(session.cursor(log), log.batches[batch_id], 0)
        seqs, added = log.append([message.data for message in messages], on_conflict, self.now, at.options)
        if batch_id:
            log.batches[batch_id] = tuple(seqs)
        return Appended(session.cursor(log), tuple(seqs), added)

    def pop(self, at: At, count: int = 1, *, expected_tail: Cursor | int | None = None) -> list[Any]:
        self.check_tail(at, expected_tail)
        session = self.live(at.scope, at.session)
        log = session.logs.get(at.log) if session else None
        if not log or not log.entries:
            self.check_ended(at)
            return []
        newest = log.entries[-count:]
        damaged = [entry.seq for entry in newest if entry.data is None]
        self.check_ended(at)
        if damaged and at.options.on_corrupt != "raw":
            raise RefusedError(CorruptRecordError, seq=damaged[0])
        self.guard(at)
        self.writing(at)
        return [entry.data for entry in log.take(len(log.entries) - len(newest), len(log.entries))]

    def truncate_after(self, at: At, seq: Cursor | int) -> int:
        place = number(seq)
        self.guard(at, seq)
        self.check_life(at, seq)
        session = self.writing(at, begin=False)
        log = session.logs.get(at.log) if session else None
        return len(log.take(log.upto(place), len(log.entries))) if log else 0

    def replace_prefix(self, at: At, upto: Cursor | int | None, messages: Sequence[ChatMessage] = ()) -> Appended:
        high = inf if upto is None else number(upto)
        given = distinct_ids(messages)
        self.guard(at, upto)
        self.check_life(at, upto)
        session = self.writing(at, begin=False)
        if session is None:
            if messages:
                raise RefusedError(ValueError)
            return Appended(Cursor(ABSENT, 0), (), 0)
        log = session.logs.get(at.log, ModelLog())
        if isinstance(upto, Cursor) and upto.rewrite != log.changes:
            raise RefusedError(ConflictError, tail=session.cursor(log))
        end = log.upto(high)
        if (upto is not None and high > log.last) or len(messages) > end:
            raise RefusedError(ValueError)
        stay = {entry.id for entry in log.entries[end:]} | log.trimmed.keys()
        if stay & set(given):
            raise RefusedError(DuplicateIdError)
        places = [entry.seq for entry in log.take(0, end, high or inf)][end - len(messages) :]
        log.entries[:0] = [
            Entry(seq, message.data.get("id"), message.data, self.now)
            for seq, message in zip(places, messages, strict=True)
        ]
        log.changes += end > 0
        return Appended(session.cursor(log), tuple(places), len(messages))

    def clear(self, at: At) -> None:
        self.replace_prefix(at, None)

    def replace(self, at: At, seq: Cursor | int, message: ChatMessage) -> None:
        log, place = self._at(at, seq)
        entry, id = log.entries[place], message.data.get("id")
        if id is not None and id != entry.id and (log.held(id) is not None or id in log.trimmed):
            raise RefusedError(DuplicateIdError)
        data = message.data if entry.id is None else {**message.data, "id": id or entry.id}
        log.entries[place] = entry._replace(id=id or entry.id, data=data)
        log.changes += 1

    def redact(self, at: At, seq: Cursor | int, text: str = "[redacted]") -> None:
        log, place = self._at(at, seq)
        entry = log.entries[place]
        if entry.data is None:
            raise RefusedError(CorruptRecordError, seq=entry.seq)
        data: dict[str, Any] = {
            name: entry.data[name] for name in ("role", "id", "name", "tool_call_id") if name in entry.data
        }
        if "content" in entry.data:
            data["content"] = text
        if "tool_calls" in entry.data:
            data["tool_calls"] = [{**call, "arguments": {"text": text}} for call in entry.data["tool_calls"]]
        log.entries[place] = entry._replace(data=data)
        log.changes += 1

    def _at(self, at: At, seq: Cursor | int) -> tuple[ModelLog, int]:
        """The log, which is written to, and the index of the message at `seq`."""
        wanted = number(seq, least=1)
        self.check_life(at, seq)
        session = self.live(at.scope, at.session)
        if not isinstance(seq, Cursor):
            self.check_ended(at)
        log = session.logs.get(at.log) if session else None
        place = next((i for i, entry in enumerate(log.entries) if entry.seq == wanted), None) if log else None
        if log is None or place is None:
            raise RefusedError(MessageNotFoundError)
        self.guard(at, seq)
        self.writing(at)
        return log, place

    def damage(self, at: At) -> None:
        """Somebody stores bytes that are no message."""
        unlimited = at._replace(options=DEFAULTS)
        log = self.begun(unlimited).logs.setdefault(at.log, ModelLog())
        log.last += 1
        log.entries.append(Entry(log.last, None, None, self.now))

    def verify(self, at: At) -> list[tuple[int, str]]:
        session = self.live(at.scope, at.session)
        log = (session.logs.get(at.log) if session else None) or ModelLog()
        found, made, unanswered = list[tuple[int, str]](), set[str](), dict[str, int]()
        for entry in log.entries:
            if entry.data is None:
                found.append((entry.seq, "damaged"))
                continue
            for call in entry.data.get("tool_calls", ()):
                made.add(call["id"])
                unanswered[call["id"]] = entry.seq
            answered = entry.data.get("tool_call_id")
            if answered is not None:
                unanswered.pop(answered, None)
                if answered not in made:
                    found.append((entry.seq, "result without call"))
        return sorted([*found, *((seq, "call without result") for seq in unanswered.values())])

    # Reading

    def messages(
        self,
        at: At,
        last: int | None = None,
        *,
        after: Cursor | int | None = None,
        before: Cursor | int | None = None,
        limit: int | None = None,
        window: Window[Any] | None = None,
    ) -> Page:
        low, high = -inf if after is None else number(after), inf if before is None else number(before)
        for place in (after, before):
            if isinstance(place, Cursor) and place.life not in (
                ABSENT,
                self.tail(at).life,
            ):  # what was empty is read on
                raise RefusedError(ConflictError, tail=self.tail(at), ended=True)
        session = self.read(at)
        log = (session.logs.get(at.log) if session else None) or ModelLog()
        if window is not None:
            return self.windowed(log, window, at.options.on_corrupt, session.life if session else ABSENT)
        entries = [entry for entry in log.entries if low < entry.seq < high]
        newest = last is not None or (before is not None and after is None)
        most = limit if last is None else last
        kept, looked = list[Entry](), 0
        for entry in reversed(entries) if newest else entries:
            if most is not None and len(kept) >= most:
                break
            looked += 1
            if entry.data is not None or at.options.on_corrupt != "skip":
                kept.append(entry)
        if newest:
            kept.reverse()
        for entry in kept if at.options.on_corrupt == "raise" else ():
            if entry.data is None:
                raise RefusedError(CorruptRecordError, seq=entry.seq)
        seqs = [entry.seq for entry in kept]
        life = session.life if session else ABSENT
        return Page(
            [entry.data for entry in kept],
            seqs,
            Cursor(life, seqs[0] if seqs else log.tail + 1, log.changes),
            Cursor(life, seqs[-1] if seqs else log.tail, log.changes),
            Cursor(life, log.tail, log.changes),
            looked < len(entries),
            looked - len(kept),
        )

    def windowed(self, log: ModelLog, window: Window[Any], on_corrupt: str, life: str) -> Page:
        """What fits the window; a damaged message is an error only where what stands behind it does not do."""
        damaged = max((entry.seq for entry in log.entries if entry.data is None and on_corrupt == "raise"), default=0)
        readable = [entry for entry in log.entries if entry.data is not None and entry.seq > damaged]
        most, starts = window.max_messages or 0, [starts_turn(entry.data) for entry in readable]
        turns = [len(readable) - place for place, start in enumerate(starts) if start]
        fits = [size for size in turns if size <= most]
        if not most:
            size = 0
        elif not damaged and len(readable) <= most:
            size = len(readable)
        elif (
            damaged
            and not (fits and len(readable) >= most)
            and (len(readable) <= most or (window.overflow == "keep" and not turns))
        ):
            raise RefusedError(CorruptRecordError, seq=damaged)
        elif fits or window.overflow == "empty":
            size = max(fits, default=0)
        elif window.overflow == "keep":
            size = min([*turns, len(readable)])
        else:
            raise RefusedError(WindowError)
        kept = readable[len(readable) - size :]
        tail = Cursor(life, log.tail, log.changes)
        return Page([entry.data for entry in kept], [entry.seq for entry in kept], None, None, tail, None, None)

    def stream(self, at: At, *, after: Cursor | int | None = None) -> list[Any]:
        return self.messages(at, after=after).messages

    def count(self, at: At) -> int:
        session = self.live(at.scope, at.session)
        return len(session.logs[at.log].entries) if session and at.log in session.logs else 0

    # Sessions

    def exists(self, at: At) -> bool:
        return self.live(at.scope, at.session) is not None

    def info(self, at: At) -> Info | None:
        session = self.live(at.scope, at.session)
        if session is None:
            return None
        logs = {name: LogInfo(session.cursor(log), len(log.entries)) for name, log in session.logs.items()}
        about = session.title, dict(session.metadata), session.service
        return Info(session.life, session.created, session.updated, session.expires, *about, logs)

    def update(self, at: At, **changes: Any) -> None:
        if not changes or changes == {"metadata": {}}:
            return
        self.guard(at)
        session = self.begun(at)
        session.title = changes.get("title", session.title)
        session.service = changes.get("service_session_id", session.service)
        merged = {**session.metadata, **changes.get("metadata", {})}
        session.metadata = {name: value for name, value in merged.items() if value is not None}

    def delete(self, at: At) -> bool:
        self.guard(at)
        known = self.live(at.scope, at.session) is not None
        self.sessions.pop((at.scope, at.session), None)
        return known

    def fork(self, at: At, new_id: str, *, upto: Cursor | int | None = None) -> str:
        if new_id == at.session:
            raise RefusedError(ConflictError)
        place = inf if upto is None else number(upto)
        at = at._replace(log="")
        if isinstance(upto, Cursor) and upto.life != ABSENT:
            self.check_life(at, upto)
        source = self.live(at.scope, at.session)
        if source is None:
            raise RefusedError(MessageNotFoundError)
        there = at._replace(session=new_id, log="", life=None, fence=None)
        if self.live(at.scope, new_id):
            raise RefusedError(ConflictError, tail=self.tail(there))
        entries = source.logs.get("", ModelLog()).entries
        entries = [entry for entry in entries if entry.seq <= place]
        fork = self.begun(there)
        fork.title = source.title
        seq = entries[-1].seq if entries else 0
        fork.metadata = {**source.metadata, "forked_from": {"session": at.session, "seq": seq}}
        if entries:
            renumbered = [entry._replace(seq=place) for place, entry in enumerate(entries, 1)]
            fork.logs[""] = ModelLog(renumbered, len(renumbered))
        return new_id

    def snapshot(self, at: At) -> SessionSnapshot:
        session = self.read(at)
        if session is None:
            return SessionSnapshot(at.session)
        state = {key: entry.value for key, entry in session.state.items()}
        return SessionSnapshot(at.session, session.service, state, dict(session.metadata), session.title)

    def restore(self, at: At, snapshot: SessionSnapshot) -> None:
        self.guard(at)
        self.read(at)
        session = self.begun(at)
        session.title, session.service = snapshot.title, snapshot.service_session_id
        session.metadata = dict(snapshot.metadata)
        session.state = {key: Versioned(value, self.unknown("version")) for key, value in snapshot.state.items()}

    # State

    def _state(self, at: At, *, write: bool = False, begin: bool = True) -> dict[str, Versioned]:
        if not at.session:
            return self.states.setdefault(at.scope, {})
        if write:
            self.guard(at)
        session = self.writing(at, begin=begin) if write else self.read(at)
        return session.state if session else {}

    def set(self, at: At, key: str, value: Any, *, expected: str | None = None) -> str:
        state = self._state(at, write=True)
        self._check_version(state, key, expected)
        state[key] = Versioned(value, self.unknown("version"))
        return state[key].version

    def set_several(self, at: At, values: Mapping[str, Any]) -> None:
        if values:
            self._state(at, write=True).update({key: Versioned(values[key], self.unknown("version")) for key in values})

    def remove(self, at: At, key: str, *, expected: str | None = None) -> None:
        state = self._state(at, write=True, begin=False)
        self._check_version(state, key, expected)
        state.pop(key, None)

    def _check_version(self, state: dict[str, Versioned], key: str, expected: str | None) -> None:
        current = state[key].version if key in state else ABSENT
        if expected not in (None, current):
            raise RefusedError(ConflictError, version=current or None)

    def entry(self, at: At, key: str) -> Versioned | None:
        return self._state(at).get(key)

    def items(self, at: At, prefix: str = "") -> dict[str, Any]:
        state = self._state(at)
        return {key: state[key].value for key in sorted(state, key=str.encode) if key.startswith(prefix)}

    def keys(self, at: At, prefix: str = "") -> list[str]:
        return list(self.items(at, prefix))

    # Leases

    def take_lease(self, at: At, ttl: float) -> None:
        known = self.live(at.scope, at.session)
        if known and known.lease and known.lease[1] > self.now:
            raise RefusedError(LeaseHeldError)
        session, owner = self.begun(at), self.unknown("owner")
        session.lease = owner, self.now + ttl
        session.fence += 1
        self.leases.append((at._replace(life=session.life, fence=session.fence), owner))

    def renew_lease(self, lease: int, ttl: float) -> None:
        at, owner = self.leases[lease]
        self.guard(at)
        self.begun(at).lease = owner, self.now + ttl

    def give_back(self, lease: int) -> None:
        at, owner = self.leases[lease]
        try:
            self.guard(at)
        except RefusedError:
            return
        session = self.begun(at)
        if session.lease and session.lease[0] == owner:
            session.lease = None

    # Scopes

    def listed(self, scope: str, *, below: bool = False) -> dict[tuple[str, str], Info]:
        keys = [key for key in list(self.sessions) if key[0] == scope or (below and not scope)]
        found = {key: self.info(At(DEFAULTS, *key)) for key in keys}
        return {key: info for key, info in found.items() if info}

    def erase(self, scope: str, *, dry_run: bool = False) -> Receipt:
        keys = list(self.listed(scope, below=True))
        states = [name for name in self.states if name == scope or not scope]
        receipt = self._receipt(keys, sum(len(self.states[name]) for name in states), dry_run=dry_run)
        if not dry_run:
            self.states = {name: state for name, state in self.states.items() if name not in states}
        return receipt

    def purge(self, scope: str, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        found = self.listed(scope, below=True).items()
        return self._receipt(
            [key for key, info in found if older_than is not None and self.now - info.updated >= older_than],
            dry_run=dry_run,
        )

    def _receipt(self, keys: Sequence[tuple[str, str]], state_keys: int = 0, *, dry_run: bool) -> Receipt:
        gone = [self.sessions[key] for key in keys]
        messages = sum(len(log.entries) for session in gone for log in session.logs.values())
        for key in () if dry_run else keys:
            del self.sessions[key]
        return Receipt(len(gone), messages, state_keys + sum(len(session.state) for session in gone), dry_run)


def number(place: Cursor | int, least: int = 0) -> int:
    """The seq that is meant. No int below `least` is one."""
    if not isinstance(place, Cursor) and place < least:
        raise RefusedError(ValueError)
    return place.seq if isinstance(place, Cursor) else place


def distinct_ids(messages: Sequence[ChatMessage]) -> list[str]:
    """The ids of the messages that have one; refused if one stands there twice."""
    ids = [message.data["id"] for message in messages if "id" in message.data]
    if len(set(ids)) < len(ids):
        raise RefusedError(DuplicateIdError)
    return ids
