"""A log in the database: its records, the ids that it knows, and the batches that it remembers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from chatkeep import heads
from chatkeep.errors import StoreError
from chatkeep.records import BATCHES, Keep, LogHead, Record, Replace, Rewrite, Span, Write

from .failures import DamageError

SEQ_BITS = 32
SEQ_MASK = (1 << SEQ_BITS) - 1

RECORD = f"pos & {SEQ_MASK}, id, role, starts_turn, format, created, text, payload"
PUT_RECORD = "INSERT INTO chatkeep_records VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
BODY = f"pos & {SEQ_MASK}, id, format, payload"
READ = {
    (bodies, newest): f"SELECT {BODY if bodies else RECORD} FROM chatkeep_records WHERE pos > ? AND pos < ? "
    f"ORDER BY pos {'DESC' if newest else 'ASC'} LIMIT ?"
    for bodies in (False, True)
    for newest in (False, True)
}

make_record: Callable[[Iterable[object]], Record] = partial(tuple.__new__, Record)
READABLE = partial(str, encoding="utf-8", errors="replace")
"""As a connection's `text_factory`: makes a text of whatever a damaged record holds in a text's place."""


class Log:
    """One log during one transaction. `head` is where it stands; whoever changes it keeps the row."""

    def __init__(
        self, connection: sqlite3.Connection, number: int, head: LogHead, looked: int = 0, lead: int = 0, turn: int = 0
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self.number = number
        self.base = number << SEQ_BITS
        self.head = head
        self.looked = looked
        self.lead = lead
        self.turn = turn

    @property
    def end(self) -> int:
        """Behind the log's last possible position."""
        return self.base + SEQ_MASK + 1

    def read(self, span: Span) -> tuple[list[Any], bool]:
        """Rows of bodies or of records, oldest first, and whether there are more in the direction of reading."""
        lower = self.base + min(max(span.after or 0, 0), SEQ_MASK)
        upper = self.end if span.before is None else self.base + min(span.before, SEQ_MASK)
        statement = READ[span.bodies, span.newest]
        rows = self._execute(statement, (lower, upper, -1 if span.limit is None else span.limit)).fetchall()
        more = False
        if span.after is span.before is None:
            more = len(rows) < self.head.size
            if more and (span.limit is None or len(rows) < span.limit):
                raise DamageError(f"of the {self.head.size} messages of a log only {len(rows)} are found")
        elif span.limit is not None and len(rows) == span.limit:
            edge = self.base + rows[-1][0] if rows else None
            rest = (lower, edge or upper) if span.newest else (edge or lower, upper)
            found = self._execute("SELECT 1 FROM chatkeep_records WHERE pos > ? AND pos < ? LIMIT 1", rest).fetchone()
            more = found is not None
        if span.newest:
            rows.reverse()
        return rows, more

    @property
    def row(self) -> tuple[int, ...]:
        """Where the log stands."""
        return (*self.head, self.looked, self.lead, self.turn)

    def save(self) -> None:
        """Put where the log stands into its row."""
        self._execute(
            "UPDATE chatkeep_logs SET tail = ?, last = ?, size = ?, rewrite = ?, looked = ?, lead = ?, turn = ? "
            "WHERE l = ?",
            (*self.row, self.number),
        )

    def clear(self) -> None:
        """Delete everything that belongs to the log but its row."""
        for table in ("chatkeep_records", "chatkeep_trimmed"):
            self._execute(f"DELETE FROM {table} WHERE pos > ? AND pos < ?", (self.base, self.end))
        self._execute("DELETE FROM chatkeep_batches WHERE l = ?", (self.number,))

    def batch(self, write: Write) -> Sequence[int] | None:
        row = self._execute(
            "SELECT seqs FROM chatkeep_batches WHERE l = ? AND token = ?", (self.number, write.token)
        ).fetchone()
        return json.loads(row[0]) if row else None

    def find(self, record: Record) -> tuple[int, Record | None]:
        """Where a record's id stands: its seq (0: nowhere) and what is stored there (None: it was trimmed)."""
        known = self._record(f"pos >> {SEQ_BITS} = ? AND id = ? AND id IS NOT NULL", self.number, record.id)
        if known:
            return known.seq, known
        row = self._execute(
            f"SELECT pos FROM chatkeep_trimmed WHERE pos >> {SEQ_BITS} = ? AND id = ?", (self.number, record.id)
        ).fetchone()
        return (row[0] & SEQ_MASK, None) if row else (0, None)

    def _record(self, where: str, *values: object) -> Record | None:
        """A record, also a damaged one, which harms itself alone."""
        self._connection.text_factory = READABLE
        try:
            row = self._execute(f"SELECT {RECORD} FROM chatkeep_records WHERE {where}", values).fetchone()
        finally:
            self._connection.text_factory = str
        return make_record(row) if row else None

    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        last, base = self.head.last, self.base
        if last + len(write.append) > SEQ_MASK:
            raise StoreError(f"the log has given out {last} positions, and there are no more than {SEQ_MASK}")
        if all(record.id is None for record in write.append):
            rows = [
                (pos, *record[1:5], record[5] or now, *record[6:])
                for pos, record in enumerate(write.append, base + last + 1)
            ]
            self._connection.executemany(PUT_RECORD, rows)
            seqs: Sequence[int] = range(last + 1, last + 1 + len(rows))
            added = len(rows)
        else:
            seqs, added = self._append_with_ids(write, now)
        tail, last, size, rewrite = self.head
        self.head = LogHead(last + added if added else tail, last + added, size + added, rewrite)
        if write.batch:
            self._remember_batch(write, seqs)
        self._trim(write.keep, now)
        return seqs, added

    def _append_with_ids(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        last, seqs, edited = self.head.last, list[int](), False
        if write.on_conflict == "strict":
            named = [(record.id, self.find(record)[0]) for record in write.append if record.id]
            heads.check_new(write, {id: seq for id, seq in named if seq})
        for record in write.append:
            seq, known = self.find(record) if record.id else (0, None)
            if not seq:
                last = seq = last + 1
                self._put(record._replace(seq=seq, created_at=record.created_at or now))
            elif better := heads.meet(write, record, known, seq):
                self._overwrite(better)
                edited = edited or seq <= self.head.last
            seqs.append(seq)
        self._count_edit(edited)
        return seqs, last - self.head.last

    def _put(self, record: Record) -> None:
        self._execute(PUT_RECORD, (self.base + record.seq, *record[1:]))

    def _count_edit(self, edited: bool) -> None:
        self.head = self.head._replace(rewrite=self.head.rewrite + edited)

    def _overwrite(self, record: Record) -> None:
        self._look_anew()
        self._execute(
            "UPDATE chatkeep_records SET id = ?, role = ?, starts_turn = ?, format = ?, created = ?, text = ?, "
            "payload = ? WHERE pos = ?",
            (*record[1:], self.base + record.seq),
        )

    def _remember_batch(self, write: Write, seqs: Sequence[int]) -> None:
        self._execute(
            "INSERT INTO chatkeep_batches (l, token, first, final, seqs) VALUES (?, ?, ?, ?, ?)",
            (self.number, write.token, min(seqs), max(seqs), json.dumps(list(seqs))),
        )
        self._execute(
            "DELETE FROM chatkeep_batches WHERE l = ? AND n <= "
            f"(SELECT n FROM chatkeep_batches WHERE l = ? ORDER BY n DESC LIMIT 1 OFFSET {BATCHES})",
            (self.number, self.number),
        )

    def _trim(self, keep: Keep, now: float) -> None:
        tail, cut = self.head.tail, 0
        if keep.max_age is not None:
            cut = self._old_turns(now - keep.max_age)
            if cut:
                self._look_anew()
        if keep.max_messages == 0:
            cut = self.base + tail + 1
        elif keep.max_messages is not None and self.head.size > keep.max_messages:
            cut = max(cut, self._spare_turns(keep.max_messages))
        if not cut:
            return
        span = (self.base, cut)
        self._execute(
            "INSERT INTO chatkeep_trimmed SELECT pos, id FROM chatkeep_records "
            "WHERE pos > ? AND pos < ? AND id IS NOT NULL",
            span,
        )
        cut_away = self._execute("DELETE FROM chatkeep_records WHERE pos > ? AND pos < ?", span).rowcount
        if cut_away:
            self._execute(
                "DELETE FROM chatkeep_trimmed WHERE pos > ? AND pos <= (SELECT pos FROM chatkeep_trimmed "
                "WHERE pos > ? AND pos < ? ORDER BY pos DESC LIMIT 1 OFFSET ?)",
                (self.base, self.base, self.end, keep.remember_ids),
            )
            size = self.head.size - cut_away
            self.head = self.head._replace(size=size, tail=tail if size else 0)

    def _spare_turns(self, keep: int) -> int:
        """The first position behind the leading turns without which `keep` records remain; 0 if there is none."""
        cut, size = 0, self.head.size
        while size > keep:
            if not self.turn:
                self._look_for_turn()
            if not self.turn or size - self.lead < keep:
                break
            cut = self.base + self.turn
            size -= self.lead
            self.looked, self.lead, self.turn = self.turn, 1, 0
        return cut

    def _look_for_turn(self) -> None:
        """Find the first turn start behind the log's first record, and count what stands before it.

        It goes on where it ended last time: an append costs what it adds, however long a turn grows.
        """
        if not self.looked:
            (first,) = self._execute(
                "SELECT min(pos) FROM chatkeep_records WHERE pos > ? AND pos < ?", (self.base, self.end)
            ).fetchone()
            self.looked, self.lead = first & SEQ_MASK, 1
        found = self._execute(
            "SELECT pos FROM chatkeep_records WHERE pos > ? AND pos < ? AND starts_turn = 1 ORDER BY pos LIMIT 1",
            (self.base + self.looked, self.end),
        ).fetchone()
        self.turn = found[0] & SEQ_MASK if found else 0
        (before,) = self._execute(
            "SELECT count(*) FROM chatkeep_records WHERE pos > ? AND pos < ?",
            (self.base + self.looked, self.base + self.turn if self.turn else self.end),
        ).fetchone()
        self.lead += before
        self.looked = self.turn or self.head.tail

    def _look_anew(self) -> None:
        """Records before the tail have changed: what trimming has seen counts no more."""
        self.looked = self.lead = self.turn = 0

    def _old_turns(self, oldest: float) -> int:
        """The first position behind the leading turns whose last record is older; 0 if there is none."""
        cut = 0
        (first,) = self._execute(
            "SELECT min(pos) FROM chatkeep_records WHERE pos > ? AND pos < ?", (self.base, self.end)
        ).fetchone()
        while first is not None:
            (turn,) = self._execute(
                "SELECT min(pos) FROM (SELECT pos FROM chatkeep_records WHERE pos > ? AND pos < ? AND starts_turn = 1 "
                "ORDER BY pos LIMIT 1)",
                (first, self.end),
            ).fetchone()
            if turn is None:
                break
            (created,) = self._execute(
                "SELECT created FROM chatkeep_records WHERE pos < ? ORDER BY pos DESC LIMIT 1", (turn,)
            ).fetchone()
            if created >= oldest:
                break
            cut = first = turn
        return cut

    def _take(self, lower: int, upper: int) -> list[int]:
        """Take out the records between two seqs, both inclusive, and forget the batches that lay wholly there.

        The seqs of what was there.
        """
        span = (self.base + lower, self.base + upper)
        rows = self._execute("SELECT pos FROM chatkeep_records WHERE pos BETWEEN ? AND ? ORDER BY pos", span).fetchall()
        seqs = [pos & SEQ_MASK for (pos,) in rows]
        if seqs:
            self._look_anew()
            self._execute("DELETE FROM chatkeep_records WHERE pos BETWEEN ? AND ?", span)
            self._execute(
                "DELETE FROM chatkeep_batches WHERE l = ? AND first >= ? AND final <= ?",
                (self.number, seqs[0], upper),
            )
            (newest,) = self._execute(
                "SELECT max(pos) FROM chatkeep_records WHERE pos > ? AND pos < ?", (self.base, self.end)
            ).fetchone()
            self.head = self.head._replace(size=self.head.size - len(seqs), tail=(newest or 0) & SEQ_MASK)
        return seqs

    def truncate(self, after: int) -> int:
        """Take out everything behind `after`; how many records that were."""
        return len(self._take(min(after, SEQ_MASK - 1) + 1, SEQ_MASK))

    def replace(self, replace: Replace, now: float) -> list[int]:
        upto = self.head.last if replace.upto is None else replace.upto
        (places,) = self._execute(
            "SELECT count(*) FROM chatkeep_records WHERE pos > ? AND pos <= ?", (self.base, self.base + upto)
        ).fetchone()
        heads.check_replace(replace, self.head, places)
        removed = self._take(1, upto)
        for record in replace.records:
            seq = self.find(record)[0] if record.id else 0
            if seq:
                raise heads.duplicate(record, seq)
        seqs = removed[places - len(replace.records) :]
        for seq, record in zip(seqs, replace.records, strict=True):
            self._put(record._replace(seq=seq, created_at=record.created_at or now))
        self.head = self.head._replace(
            size=self.head.size + len(seqs),
            tail=max(self.head.tail, *seqs, 0),
        )
        self._count_edit(places > 0)
        return seqs

    def rewrite(self, rewrite: Rewrite) -> None:
        pos = self.base + rewrite.record.seq
        record = heads.check_rewrite(rewrite, self._record("pos = ?", pos))
        seq = self.find(record)[0] if record.id else 0
        if seq not in (0, record.seq):
            raise heads.duplicate(record, seq)
        self._overwrite(record)
        self._count_edit(True)
