"""What the backend does in the database: plain, synchronous, inside a transaction that somebody else has begun."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import islice

from chatkeep import heads
from chatkeep.errors import StoreError
from chatkeep.records import (
    ABSENT,
    BATCHES,
    RECENT,
    Head,
    HeadPage,
    Keep,
    Key,
    Lease,
    Listing,
    LogHead,
    Outcome,
    Receipt,
    Record,
    RecordPage,
    Replace,
    Rewrite,
    Scope,
    Select,
    Span,
    StateEntry,
    StatePage,
    Write,
)

SEQ_BITS = 32
SEQ_MASK = (1 << SEQ_BITS) - 1

HEAD = "k, scope, id, life, created, updated, expires, ttl, meta, fence, lease_owner, lease_until"
RECORD = f"pos & {SEQ_MASK}, id, role, starts_turn, format, created, text, payload"
PUT_RECORD = "INSERT INTO chatkeep_records VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
READ = f"SELECT {RECORD} FROM chatkeep_records WHERE pos > ? AND pos < ? ORDER BY pos LIMIT ?"
READ_NEWEST = READ.replace("ORDER BY pos", "ORDER BY pos DESC")
FIND_SESSION = (
    f"SELECT s.{HEAD.replace(', ', ', s.')}, l, tail, last, size, rewrite FROM chatkeep_sessions AS s "
    "LEFT JOIN chatkeep_logs AS g ON g.k = s.k AND g.name = ? WHERE s.scope = ? AND s.id = ?"
)

HeadRow = tuple[int, str, str, str, float, float, float | None, float | None, str, int, str | None, float | None]
make_record: Callable[[Iterable[object]], Record] = partial(tuple.__new__, Record)


@lru_cache(maxsize=4096)
def address_of(scope: Scope) -> str:
    """The scope's address; making it takes longer than a statement."""
    return scope.address


class Log:
    """A log's row while a write works on it."""

    def __init__(self, number: int, head: LogHead) -> None:
        self.number = number
        self.base = number << SEQ_BITS
        self.head = head

    @property
    def end(self) -> int:
        """Behind the log's last possible position."""
        return self.base + SEQ_MASK + 1


class Database:
    """One SQLite connection and the clock. Used on the connection's own thread alone."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float] = time.time) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.clock = clock
        self.recent: OrderedDict[tuple[Key, bytes], Outcome] = OrderedDict()
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
        return found[:12], Log(found[12], LogHead(*found[13:])) if found[12] is not None else None

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
        seen = self.recent.get(name) or self.unsettled.get(name)
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
        outcome = self._change(k, head, log, write, now)
        self._settle(k, head, write, now)
        if not write.batch:
            self.unsettled[name] = outcome
        return outcome

    def settle(self) -> None:
        """Answer the same writes in the same way again: they are committed now."""
        self.recent.update(self.unsettled)
        while len(self.recent) > RECENT:
            self.recent.popitem(last=False)

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
        changes: dict[str, object] = {} if write.is_touch else {"updated": now}
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
        known = self._batch(log, write) if write.batch and log else None
        if known is not None and log is not None:
            return Outcome(head.life, log.head, seqs=known, fence=head.fence)
        heads.check_tail(write, head.life, log.head if log else LogHead())
        if log is None:
            if not write.append:
                return self._change_nothing(head, write)
            cursor = self.execute("INSERT INTO chatkeep_logs (k, name) VALUES (?, ?)", (k, write.log))
            assert cursor.lastrowid is not None
            log = Log(cursor.lastrowid, LogHead())
        before = log.head
        seqs: Sequence[int] = ()
        removed: Sequence[Record] = ()
        added = 0
        if write.append:
            seqs, added = self._append(log, write, now)
        elif write.pop or write.truncate_after is not None:
            removed = self._pop(log, write)
        elif write.replace:
            seqs = self._replace(log, write.replace, head.life, now)
        elif write.rewrite:
            self._rewrite(log, write.rewrite)
        if log.head != before:
            self.execute(
                "UPDATE chatkeep_logs SET tail = ?, last = ?, size = ?, rewrite = ? WHERE l = ?",
                (*log.head, log.number),
            )
        return Outcome(head.life, log.head, seqs, added, removed, fence=head.fence)

    def _change_nothing(self, head: Head, write: Write) -> Outcome:
        """A log without a record: nothing can be taken out of it or replaced in it."""
        if write.replace:
            heads.check_replace(write.replace, head.life, LogHead(), 0)
        if write.rewrite:
            heads.check_rewrite(write.rewrite, None)
        return Outcome(head.life, fence=head.fence)

    # Logs

    def _batch(self, log: Log, write: Write) -> Sequence[int] | None:
        row = self.execute(
            "SELECT seqs FROM chatkeep_batches WHERE l = ? AND token = ?", (log.number, write.token)
        ).fetchone()
        return json.loads(row[0]) if row else None

    def _find(self, log: Log, record: Record) -> tuple[int, Record | None]:
        """Where a record's id stands: its seq (0: nowhere) and what is stored there (None: it was trimmed)."""
        where = f"pos >> {SEQ_BITS} = ? AND id = ? AND id IS NOT NULL"
        row = self.execute(f"SELECT {RECORD} FROM chatkeep_records WHERE {where}", (log.number, record.id)).fetchone()
        if row:
            return row[0], make_record(row)
        row = self.execute(
            f"SELECT pos FROM chatkeep_trimmed WHERE pos >> {SEQ_BITS} = ? AND id = ?", (log.number, record.id)
        ).fetchone()
        return (row[0] & SEQ_MASK, None) if row else (0, None)

    def _append(self, log: Log, write: Write, now: float) -> tuple[Sequence[int], int]:
        last, base = log.head.last, log.base
        if last + len(write.append) > SEQ_MASK:
            raise StoreError(f"the log has given out {last} positions, and there are no more than {SEQ_MASK}")
        if all(record.id is None for record in write.append):
            rows = [
                (pos, *record[1:5], record[5] or now, *record[6:])
                for pos, record in enumerate(write.append, base + last + 1)
            ]
            self.connection.executemany(PUT_RECORD, rows)
            seqs: Sequence[int] = range(last + 1, last + 1 + len(rows))
            added = len(rows)
        else:
            seqs, added = self._append_with_ids(log, write, now)
        tail, last, size, rewrite = log.head
        log.head = LogHead(last + added if added else tail, last + added, size + added, rewrite)
        if write.batch:
            self._remember_batch(log, write, seqs)
        self._trim(log, write.keep, now)
        return seqs, added

    def _append_with_ids(self, log: Log, write: Write, now: float) -> tuple[Sequence[int], int]:
        last, seqs = log.head.last, list[int]()
        for record in write.append:
            seq, known = self._find(log, record) if record.id else (0, None)
            if not seq:
                last = seq = last + 1
                self._put(log, record._replace(seq=seq, created_at=record.created_at or now))
            elif better := heads.meet(write, record, known, seq):
                self._overwrite(log, better)
            seqs.append(seq)
        return seqs, last - log.head.last

    def _put(self, log: Log, record: Record) -> None:
        self.execute(PUT_RECORD, (log.base + record.seq, *record[1:]))

    def _overwrite(self, log: Log, record: Record) -> None:
        self.execute(
            "UPDATE chatkeep_records SET id = ?, role = ?, starts_turn = ?, format = ?, created = ?, text = ?, "
            "payload = ? WHERE pos = ?",
            (*record[1:], log.base + record.seq),
        )

    def _remember_batch(self, log: Log, write: Write, seqs: Sequence[int]) -> None:
        self.execute(
            "INSERT INTO chatkeep_batches (l, token, first, final, seqs) VALUES (?, ?, ?, ?, ?)",
            (log.number, write.token, min(seqs), max(seqs), json.dumps(list(seqs))),
        )
        self.execute(
            "DELETE FROM chatkeep_batches WHERE l = ? AND n <= "
            f"(SELECT n FROM chatkeep_batches WHERE l = ? ORDER BY n DESC LIMIT 1 OFFSET {BATCHES})",
            (log.number, log.number),
        )

    def _trim(self, log: Log, keep: Keep, now: float) -> None:
        tail, cut = log.head.tail, 0
        if keep.max_age is not None:
            cut = self._old_turns(log, now - keep.max_age)
        if keep.max_messages == 0:
            cut = log.base + tail + 1
        elif keep.max_messages is not None and tail > keep.max_messages:
            (turn,) = self.execute(
                "SELECT max(pos) FROM chatkeep_records WHERE starts_turn = 1 AND pos > ? AND pos <= ?",
                (log.base, log.base + tail - keep.max_messages + 1),
            ).fetchone()
            cut = max(cut, turn or 0)
        if not cut:
            return
        span = (log.base, cut)
        self.execute(
            "INSERT INTO chatkeep_trimmed SELECT pos, id FROM chatkeep_records "
            "WHERE pos > ? AND pos < ? AND id IS NOT NULL",
            span,
        )
        cut_away = self.execute("DELETE FROM chatkeep_records WHERE pos > ? AND pos < ?", span).rowcount
        if cut_away:
            self.execute(
                "DELETE FROM chatkeep_trimmed WHERE pos > ? AND pos <= (SELECT pos FROM chatkeep_trimmed "
                "WHERE pos > ? AND pos < ? ORDER BY pos DESC LIMIT 1 OFFSET ?)",
                (log.base, log.base, log.end, keep.remember_ids),
            )
            size = log.head.size - cut_away
            log.head = log.head._replace(size=size, tail=tail if size else 0)

    def _old_turns(self, log: Log, oldest: float) -> int:
        """The first position behind the leading turns whose last record is older; 0 if there is none."""
        cut = 0
        (first,) = self.execute(
            "SELECT min(pos) FROM chatkeep_records WHERE pos > ? AND pos < ?", (log.base, log.end)
        ).fetchone()
        while first is not None:
            (turn,) = self.execute(
                "SELECT min(pos) FROM chatkeep_records WHERE starts_turn = 1 AND pos > ? AND pos < ?", (first, log.end)
            ).fetchone()
            if turn is None:
                break
            (created,) = self.execute(
                "SELECT created FROM chatkeep_records WHERE pos < ? ORDER BY pos DESC LIMIT 1", (turn,)
            ).fetchone()
            if created >= oldest:
                break
            cut = first = turn
        return cut

    def _take(self, log: Log, lower: int, upper: int) -> list[Record]:
        """Take out the records between two positions, both inclusive, and forget the batches that lay wholly there."""
        span = (log.base + lower, log.base + upper)
        rows = self.execute(
            f"SELECT {RECORD} FROM chatkeep_records WHERE pos BETWEEN ? AND ? ORDER BY pos", span
        ).fetchall()
        if rows:
            self.execute("DELETE FROM chatkeep_records WHERE pos BETWEEN ? AND ?", span)
            self.execute(
                "DELETE FROM chatkeep_batches WHERE l = ? AND first >= ? AND final <= ?",
                (log.number, rows[0][0], upper),
            )
            (newest,) = self.execute(
                "SELECT max(pos) FROM chatkeep_records WHERE pos > ? AND pos < ?", (log.base, log.end)
            ).fetchone()
            log.head = log.head._replace(size=log.head.size - len(rows), tail=(newest or 0) & SEQ_MASK)
        return [make_record(row) for row in rows]

    def _pop(self, log: Log, write: Write) -> list[Record]:
        if write.truncate_after is not None:
            return self._take(log, min(write.truncate_after, SEQ_MASK - 1) + 1, SEQ_MASK)
        row = self.execute(
            "SELECT min(pos) FROM "
            "(SELECT pos FROM chatkeep_records WHERE pos > ? AND pos < ? ORDER BY pos DESC LIMIT ?)",
            (log.base, log.end, write.pop),
        ).fetchone()
        return self._take(log, row[0] & SEQ_MASK, SEQ_MASK) if row[0] else []

    def _replace(self, log: Log, replace: Replace, life: str, now: float) -> list[int]:
        upto = log.head.last if replace.upto is None else replace.upto
        (places,) = self.execute(
            "SELECT count(*) FROM chatkeep_records WHERE pos > ? AND pos <= ?", (log.base, log.base + upto)
        ).fetchone()
        heads.check_replace(replace, life, log.head, places)
        removed = self._take(log, 1, upto)
        for record in replace.records:
            seq = self._find(log, record)[0] if record.id else 0
            if seq:
                raise heads.duplicate(record, seq)
        seqs = [record.seq for record in removed[places - len(replace.records) :]]
        for seq, record in zip(seqs, replace.records, strict=True):
            self._put(log, record._replace(seq=seq, created_at=record.created_at or now))
        log.head = log.head._replace(
            size=log.head.size + len(seqs),
            tail=max(log.head.tail, *seqs, 0),
            rewrite=log.head.rewrite + 1,
        )
        return seqs

    def _rewrite(self, log: Log, rewrite: Rewrite) -> None:
        pos = log.base + rewrite.record.seq
        row = self.execute(f"SELECT {RECORD} FROM chatkeep_records WHERE pos = ?", (pos,)).fetchone()
        record = heads.check_rewrite(rewrite, make_record(row) if row else None)
        seq = self._find(log, record)[0] if record.id else 0
        if seq not in (0, record.seq):
            raise heads.duplicate(record, seq)
        self._overwrite(log, record)

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
        lower = log.base + min(max(span.after or 0, 0), SEQ_MASK)
        upper = log.end if span.before is None else log.base + min(span.before, SEQ_MASK)
        rows = self.execute(
            READ_NEWEST if span.newest else READ, (lower, upper, -1 if span.limit is None else span.limit)
        ).fetchall()
        more = False
        if span.after is span.before is None:
            more = len(rows) < log.head.size
        elif span.limit is not None and len(rows) == span.limit:
            edge = log.base + rows[-1][0] if rows else None
            rest = (lower, edge or upper) if span.newest else (edge or lower, upper)
            more = (
                self.execute("SELECT 1 FROM chatkeep_records WHERE pos > ? AND pos < ? LIMIT 1", rest).fetchone()
                is not None
            )
        if span.newest:
            rows.reverse()
        return RecordPage(list(map(make_record, rows)), self._head(key, row, {name: log.head}), more)

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

    def remove(self, target: Key | Scope, older_than: float | None, dry_run: bool) -> Receipt:
        if isinstance(target, Key):
            where, parameters = "scope = ? AND id = ?", [target.scope.address, target.session]
        elif target.depth == len(target):
            where, parameters = "scope = ?", [target.address]
        else:
            where, parameters = "scope >= ? AND scope < ?", [target.prefix, target.prefix + "\U0010ffff"]
        values: list[object] = list(parameters)
        now = self.clock()
        if older_than is not None:
            where += " AND id <> '' AND (updated <= ? OR expires <= ?)"
            values += [now - older_than, now]
        doomed = self.execute(f"SELECT k, id, expires FROM chatkeep_sessions WHERE {where}", values).fetchall()
        sessions = messages = keys = 0
        for k, id, expires in doomed:
            if not isinstance(target, Key) or expires is None or expires > now:  # else it was absent already
                sessions += id != ""
                messages += sum(log.size for log in self._logs(k).values())
                keys += self.execute("SELECT count(*) FROM chatkeep_state WHERE k = ?", (k,)).fetchone()[0]
            if not dry_run:
                self._delete(k)
        return Receipt(sessions, messages, keys, dry_run)

    def _delete(self, k: int) -> None:
        for (number,) in self.execute("SELECT l FROM chatkeep_logs WHERE k = ?", (k,)).fetchall():
            log = Log(number, LogHead())
            for table in ("chatkeep_records", "chatkeep_trimmed"):
                self.execute(f"DELETE FROM {table} WHERE pos > ? AND pos < ?", (log.base, log.end))
            self.execute("DELETE FROM chatkeep_batches WHERE l = ?", (number,))
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
