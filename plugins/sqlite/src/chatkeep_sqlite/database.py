"""What the backend does in the database: plain, synchronous, inside a transaction that somebody else has begun."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import islice

from chatkeep import heads
from chatkeep.records import (
    ABSENT,
    RECENT,
    Head,
    HeadPage,
    Key,
    Lease,
    Listing,
    LogHead,
    Outcome,
    Receipt,
    RecordPage,
    Scope,
    Select,
    Span,
    StateEntry,
    StatePage,
    Write,
)

from .logs import Log, make_record

HEAD = "k, scope, id, life, created, updated, expires, ttl, meta, fence, lease_owner, lease_until"
UPDATED_FOR = 1.0
"""Seconds for which the time of the last write stands: a row and an index entry less to write while turns come fast."""
FIND_SESSION = (
    f"SELECT s.{HEAD.replace(', ', ', s.')}, l, tail, last, size, rewrite, looked, lead, turn "
    "FROM chatkeep_sessions AS s LEFT JOIN chatkeep_logs AS g ON g.k = s.k AND g.name = ? "
    "WHERE s.scope = ? AND s.id = ?"
)

HeadRow = tuple[int, str, str, str, float, float, float | None, float | None, str, int, str | None, float | None]


@lru_cache(maxsize=4096)
def address_of(scope: Scope) -> str:
    """The scope's address; making it takes longer than a statement."""
    return scope.address


class Database:
    """One SQLite connection and the clock. Used on the connection's own thread alone."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float] = time.time) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.clock = clock
        self._recent: dict[tuple[Key, bytes], Outcome] = {}
        self._less_recent: dict[tuple[Key, bytes], Outcome] = {}
        self.unsettled: dict[tuple[Key, bytes], Outcome] = {}

    # Heads

    def _row(self, key: Key, now: float) -> HeadRow | None:
        """The row of the live session."""
        found = self.execute(
            f"SELECT {HEAD} FROM chatkeep_sessions WHERE scope = ? AND id = ?", (address_of(key.scope), key.session)
        ).fetchone()
        return found if found is None or found[6] is None or found[6] > now else None

    def _find_session(self, key: Key, name: str, now: float) -> tuple[HeadRow | None, Log | None]:
        """The row of the live session, and its log of that name: one statement for what most calls begin with."""
        found = self.execute(FIND_SESSION, (name, address_of(key.scope), key.session)).fetchone()
        if found is None or (found[6] is not None and found[6] <= now):
            return None, None
        log = None if found[12] is None else Log(self.connection, found[12], LogHead(*found[13:17]), *found[17:])
        return found[:12], log

    def _head(self, key: Key, row: HeadRow, logs: dict[str, LogHead]) -> Head:
        _, _, _, life, created, updated, expires, ttl, meta, fence, owner, until = row
        lease = None if owner is None or until is None else Lease(owner, until)
        entries = {} if meta == "{}" else json.loads(meta)
        return Head(key, life, created, updated, expires, ttl, entries, logs, fence, lease)

    def _logs(self, k: int) -> dict[str, LogHead]:
        rows = self.execute("SELECT name, tail, last, size, rewrite FROM chatkeep_logs WHERE k = ?", (k,))
        return {name: LogHead(*numbers) for name, *numbers in rows}

    def head(self, key: Key) -> Head | None:
        row = self._row(key, self.clock())
        return self._head(key, row, self._logs(row[0])) if row else None

    # Writes

    def commit(self, key: Key, write: Write) -> Outcome:
        name = (key, write.token)
        seen = self.unsettled.get(name) or self._recent.get(name) or self._less_recent.get(name)
        if seen is not None:
            return seen
        now = self.clock()
        row, log = self._find_session(key, write.log, now)
        head = self._head(key, row, {}) if row else None
        heads.check_life(write, head, key.session, log.head if log else None)
        if row is None or head is None:
            if write.must_exist:
                return Outcome(ABSENT)
            k, head = self._begin(key, now)
        else:
            k = row[0]
        if write.delete:
            self._delete(k)
            outcome = Outcome(head.life)
        else:
            outcome = self._change(k, head, log, write, now)
            self._settle(k, head, write, now)
        if not write.batch:
            self.unsettled[name] = outcome
        return outcome

    def settle(self) -> None:
        """Answer the same writes in the same way again: they are committed now."""
        self._recent.update(self.unsettled)
        if len(self._recent) > RECENT:
            self._recent, self._less_recent = {}, self._recent

    def _begin(self, key: Key, now: float) -> tuple[int, Head]:
        """A new life, with nothing of an expired one left."""
        address = address_of(key.scope)
        for (k,) in self.execute(
            "SELECT k FROM chatkeep_sessions WHERE scope = ? AND id = ?", (address, key.session)
        ).fetchall():
            self._delete(k)
        life = secrets.token_hex(8)
        cursor = self.execute(
            "INSERT INTO chatkeep_sessions (scope, id, life, created, updated) VALUES (?, ?, ?, ?, ?)",
            (address, key.session, life, now, now),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid, Head(key, life, now, now, None, None, {}, {})

    def _settle(self, k: int, head: Head, write: Write, now: float) -> None:
        """What every write does to the head."""
        ttl, expires = heads.renewed(head, write.expiry, now)
        changes: dict[str, object] = {}
        if not write.is_touch and not 0 <= now - head.updated_at < UPDATED_FOR:
            changes["updated"] = now
        if expires != head.expires_at or ttl != head.ttl:
            changes |= {"expires": expires, "ttl": ttl}
        if write.meta:
            changes["meta"] = json.dumps(heads.merged(head.meta, write.meta))
        if write.lease:
            fence, lease = heads.leased(head, write.lease, now)
            owner, until = lease or (None, None)
            changes |= {"fence": fence, "lease_owner": owner, "lease_until": until}
        if changes:
            names = ", ".join(f"{name} = ?" for name in changes)
            self.execute(f"UPDATE chatkeep_sessions SET {names} WHERE k = ?", (*changes.values(), k))

    def _change(self, k: int, head: Head, log: Log | None, write: Write, now: float) -> Outcome:
        """The one kind of change that the write asks for."""
        if write.state:
            return Outcome(head.life, versions=self._set_state(k, write), fence=head.fence)
        if write.lease:
            return Outcome(head.life, fence=heads.leased(head, write.lease, now)[0])
        known = log.batch(write) if write.batch and log else None
        if known is not None and log is not None:
            return Outcome(head.life, log.head, seqs=known, fence=head.fence)
        heads.check_tail(write, head.life, log.head if log else LogHead())
        if log is None:
            if not write.append:
                return self._change_nothing(head, write)
            cursor = self.execute("INSERT INTO chatkeep_logs (k, name) VALUES (?, ?)", (k, write.log))
            assert cursor.lastrowid is not None
            log = Log(self.connection, cursor.lastrowid, LogHead())
        before = log.row
        seqs: Sequence[int] = ()
        added = removed = 0
        if write.append:
            seqs, added = log.append(write, now)
        elif write.truncate_after is not None:
            removed = log.truncate(write.truncate_after)
        elif write.replace:
            seqs = log.replace(write.replace, now)
        elif write.rewrite:
            log.rewrite(write.rewrite)
        if log.row != before:
            log.save()
        return Outcome(head.life, log.head, seqs, added, removed, fence=head.fence)

    def _change_nothing(self, head: Head, write: Write) -> Outcome:
        """A log without a record: nothing can be taken out of it or replaced in it."""
        if write.replace:
            heads.check_replace(write.replace, LogHead(), 0)
        if write.rewrite:
            heads.check_rewrite(write.rewrite, None)
        return Outcome(head.life, fence=head.fence)

    # State

    def _set_state(self, k: int, write: Write) -> list[str | None]:
        current = {entry.key: entry for op in write.state for entry in self._entries(k, op.key)}
        changes = heads.state_changes(write, current)
        for key, entry in changes.items():
            if entry is None:
                self.execute("DELETE FROM chatkeep_state WHERE k = ? AND key = ?", (k, key.encode()))
            else:
                self.execute(
                    "INSERT OR REPLACE INTO chatkeep_state VALUES (?, ?, ?, ?, ?)", (k, key.encode(), *entry[1:])
                )
        return [entry and entry.version for entry in changes.values()]

    def _entries(self, k: int, key: str) -> list[StateEntry]:
        rows = self.execute(
            "SELECT version, format, value FROM chatkeep_state WHERE k = ? AND key = ?", (k, key.encode())
        )
        return [StateEntry(key, *row) for row in rows]

    # Reading

    def read(self, key: Key, name: str, span: Span) -> RecordPage:
        row, log = self._find_session(key, name, self.clock())
        if row is None:
            return RecordPage((), None)
        if log is None:
            return RecordPage((), self._head(key, row, {}))
        rows, more = log.read(span)
        head = self._head(key, row, {name: log.head})
        if span.bodies:
            return RecordPage((), head, more, rows)
        return RecordPage(list(map(make_record, rows)), head, more)

    def state(self, key: Key, select: Select) -> StatePage:
        row = self._row(key, self.clock())
        if row is None:
            return StatePage((), None)
        k, life = row[0], row[3]
        if select.keys is not None:
            return StatePage([entry for name in sorted(select.keys) for entry in self._entries(k, name)], life)
        prefix = select.prefix.encode()
        lower = max(prefix, b"" if select.after is None else select.after.encode() + b"\0")
        upper = prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"  # UTF-8 has no byte 0xff
        limit = -1 if select.limit is None else select.limit + 1
        rows = self.execute(
            "SELECT CAST(key AS TEXT), version, format, value FROM chatkeep_state "
            "WHERE k = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?",
            (k, lower, upper, limit),
        ).fetchall()
        entries = [StateEntry(*entry) for entry in rows[: select.limit]]
        return StatePage(entries, life, len(entries) < len(rows))

    def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        where, values = ["id <> ''", "(expires IS NULL OR expires > ?)"], [self.clock()]
        parameters: list[object] = list(values)
        if listing.below:
            where.append("scope >= ? AND scope < ?")
            parameters += [scope.prefix, scope.prefix + "\U0010ffff"]
        else:
            where.append("scope = ?")
            parameters.append(scope.address)
        wanted = listing.where.items()
        if "service" in listing.where:
            where.append("meta ->> '$.service' = ?")
            parameters.append(listing.where["service"])
        if listing.after is not None:
            place = heads.listing_after(listing.after)
            where.append("updated <= ? AND (-updated, id, scope) > (?, ?, ?)")
            parameters += [-place[0], *place]
        query = (
            f"SELECT {HEAD} FROM chatkeep_sessions WHERE {' AND '.join(where)} ORDER BY updated DESC, id, scope LIMIT ?"
        )
        parameters.append(-1 if wanted else listing.limit + 1)
        with closing(self.execute(query, parameters)) as found_rows:
            # Not in SQL: how json_each gives keys with escapes, and texts with a NUL, depends on SQLite's version.
            matching = (row for row in found_rows if not wanted or wanted <= json.loads(row[8]).items())
            rows = list(islice(matching, listing.limit + 1))
        page = rows[: listing.limit]
        found = [self._head(Key(Scope(*json.loads(row[1])), row[2]), row, self._logs(row[0])) for row in page]
        return HeadPage(found, heads.listing_cursor(found[-1]) if len(page) < len(rows) else None)

    # Removing

    def remove(self, scope: Scope, older_than: float | None, dry_run: bool) -> Receipt:
        where, values = "scope >= ? AND scope < ?", list[object]([scope.prefix, scope.prefix + "\U0010ffff"])
        if scope.depth == len(scope):
            where, values = "scope = ?", [scope.address]
        if older_than is not None:
            now = self.clock()
            where += " AND id <> '' AND (updated <= ? OR expires <= ?)"
            values += [now - (older_than + UPDATED_FOR if older_than else 0), now]
        doomed = self.execute(f"SELECT k, id FROM chatkeep_sessions WHERE {where}", values).fetchall()
        sessions = messages = keys = 0
        for k, id in doomed:
            sessions += id != ""
            messages += sum(log.size for log in self._logs(k).values())
            keys += self.execute("SELECT count(*) FROM chatkeep_state WHERE k = ?", (k,)).fetchone()[0]
            if not dry_run:
                self._delete(k)
        return Receipt(sessions, messages, keys, dry_run)

    def _delete(self, k: int) -> None:
        for (number,) in self.execute("SELECT l FROM chatkeep_logs WHERE k = ?", (k,)).fetchall():
            Log(self.connection, number, LogHead()).clear()
        for table in ("chatkeep_logs", "chatkeep_state", "chatkeep_sessions"):
            self.execute(f"DELETE FROM {table} WHERE k = ?", (k,))

    def sweep(self, budget: int) -> int:
        """Delete up to `budget` expired sessions; how many that were."""
        expired = self.execute(
            "SELECT k FROM chatkeep_sessions WHERE expires <= ? ORDER BY expires LIMIT ?", (self.clock(), budget)
        ).fetchall()
        for (k,) in expired:
            self._delete(k)
        return len(expired)
