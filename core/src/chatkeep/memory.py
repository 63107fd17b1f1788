"""The memory backend: the reference model of the protocol, and a store for tests and short-lived processes.

``memory://`` is a database of its own, gone with its store; ``memory://name`` is one per process and name.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from bisect import bisect_left
from collections import ChainMap
from collections.abc import Callable, Sequence
from itertools import islice, pairwise, takewhile
from math import inf

from . import heads, records
from .backend import Backend, BackendSpec
from .options import StoreOptions
from .records import ABSENT, Head, Key, LogHead, Outcome, Receipt, Record, Scope, StateEntry, Write


class Log:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ids: dict[str | None, int] = {}  # id -> seq, of what is held and of what was trimmed lately
        self.trimmed: list[str] = []
        self.batches: dict[bytes, Sequence[int]] = {}
        self.last = self.rewrites = 0

    def head(self) -> LogHead:
        return LogHead(self.records[-1].seq if self.records else 0, self.last, len(self.records), self.rewrites)

    def place(self, seq: int) -> int:
        return bisect_left(self.records, seq, key=lambda record: record.seq)

    def held(self, seq: int) -> Record | None:
        place = self.place(seq)
        return next((record for record in self.records[place : place + 1] if record.seq == seq), None)

    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        ids = ChainMap[str | None, int]({}, self.ids)
        heads.check_new(write, {record.id: ids[record.id] for record in write.append if record.id and record.id in ids})
        new, swapped, seqs = dict[int, Record](), dict[int, Record](), list[int]()
        for record in write.append:
            seq = ids.get(record.id, 0) if record.id else 0
            if not seq:
                seq = ids[record.id] = self.last + len(new) + 1
                new[seq] = record._replace(seq=seq, created_at=record.created_at or now)
            elif better := heads.meet(write, record, new.get(seq) or swapped.get(seq) or self.held(seq), seq):
                (new if seq in new else swapped)[seq] = better
            seqs.append(seq)
        for seq, record in swapped.items():
            self.records[self.place(seq)] = record
        self.rewrites += bool(swapped)
        self.records += new.values()
        self.last += len(new)
        self.ids.update((name, seq) for name, seq in ids.maps[0].items() if name)
        if write.batch:
            self.batches = dict([*self.batches.items(), (write.token, seqs)][-records.BATCHES :])
        self.trim(write.keep, now)
        return seqs, len(new)

    def trim(self, keep: records.Keep, now: float) -> None:
        cut = 0
        if keep.max_age is not None:
            turns = ((last.created_at or now, first.seq) for last, first in pairwise(self.records) if first.starts_turn)
            oldest = now - keep.max_age
            cut = max((seq for _, seq in takewhile(lambda turn: turn[0] < oldest, turns)), default=0)
        if keep.max_messages is not None:
            older = islice(reversed(self.records), max(0, keep.max_messages - 1), None)
            starts = (record.seq for record in older if record.starts_turn)
            cut = max(cut, next(starts, 0) if keep.max_messages else self.last + 1)
        place = self.place(cut)
        self.trimmed += [record.id for record in self.records[:place] if record.id]
        del self.records[:place]
        while len(self.trimmed) > keep.remember_ids:
            del self.ids[self.trimmed.pop(0)]

    def take(self, start: int, end: int, upto: float = inf) -> list[Record]:
        """Take out the records at these places, and forget their ids and the batches that lay wholly among them."""
        gone, self.records[start:end] = self.records[start:end], []
        for record in gone:
            self.ids.pop(record.id, None)
        low = gone[0].seq if gone else inf
        self.batches = {token: at for token, at in self.batches.items() if not low <= min(at) <= max(at) <= upto}
        return gone

    def replace(self, change: records.Replace, now: float) -> list[int]:
        end = len(self.records) if change.upto is None else self.place(change.upto + 1)
        heads.check_replace(change, self.head(), end)
        removed = {record.id for record in self.records[:end]}
        for record in change.records:
            if record.id in self.ids and record.id not in removed:
                raise heads.duplicate(record, self.ids[record.id])
        seqs = [record.seq for record in self.take(0, end, change.upto or inf)[end - len(change.records) :]]
        new = zip(seqs, change.records, strict=True)
        self.records[:0] = [r._replace(seq=seq, created_at=r.created_at or now) for seq, r in new]
        self.ids.update((record.id, record.seq) for record in self.records[: len(seqs)] if record.id)
        self.rewrites += end > 0
        return seqs

    def rewrite(self, change: records.Rewrite) -> None:
        known = self.held(change.record.seq)
        record = heads.check_rewrite(change, known)
        if record.id and self.ids.get(record.id, record.seq) != record.seq:
            raise heads.duplicate(record, self.ids[record.id])
        self.ids.pop(known.id if known else None, None)
        self.ids.update({record.id: record.seq} if record.id else {})
        self.records[self.place(record.seq)] = record
        self.rewrites += 1


class Session:
    def __init__(self, key: Key, life: str, now: float) -> None:
        self.head = Head(key, life, now, now, None, None, {}, {})
        self.logs, self.state = dict[str, Log](), dict[str, StateEntry]()

    def apply(self, write: Write, now: float) -> Outcome:
        """All of the write, or an error before anything has changed."""
        log, life = self.logs.get(write.log) or Log(), self.head.life
        seqs, added = log.batches.get(write.token, ()), 0
        removed, versions = 0, list[str | None]()
        if not seqs:
            heads.check_tail(write, life, log.head())
        if write.append and not seqs:
            seqs, added = log.append(write, now)
            self.logs[write.log] = log
        elif write.truncate_after is not None:
            removed = len(log.take(log.place(write.truncate_after + 1), len(log.records)))
        elif write.replace:
            seqs = log.replace(write.replace, now)
        elif write.rewrite:
            log.rewrite(write.rewrite)
        elif write.state:
            changes = heads.state_changes(write, self.state)
            for key, entry in changes.items():
                self.state.update({key: entry}) if entry else self.state.pop(key, None)
            versions = [entry and entry.version for entry in changes.values()]
        elif write.lease:
            fence, lease = heads.leased(self.head, write.lease, now)
            self.head = self.head._replace(fence=fence, lease=lease)
        ttl, expires = heads.renewed(self.head, write.expiry, now)
        meta, updated = heads.merged(self.head.meta, write.meta), self.head.updated_at if write.is_touch else now
        logs = {**self.head.logs, write.log: log.head()} if write.log in self.logs else self.head.logs
        self.head = self.head._replace(ttl=ttl, expires_at=expires, meta=meta, updated_at=updated, logs=logs)
        return Outcome(life, log.head(), seqs, added, removed, versions, self.head.fence)


class MemoryBackend(Backend):
    def __init__(self) -> None:
        self.lock, self.clock = threading.RLock(), time.time
        self.new_life: Callable[[], str] = lambda: secrets.token_hex(8)
        self.held: dict[Key, Session] = {}
        self.recent: dict[tuple[Key, bytes], Outcome] = {}

    async def ping(self) -> records.Health:
        return records.Health("memory", "this process", {"sessions": sum(bool(key.session) for key in self.held)})

    def live(self, key: Key) -> Session | None:
        session = self.held.get(key)
        return None if session is None or (session.head.expires_at or inf) <= self.clock() else session

    async def commit(self, key: Key, write: Write) -> Outcome:
        with self.lock:
            if seen := self.recent.get((key, write.token)):
                return seen
            session = self.live(key)
            head = session.head if session else None
            heads.check_life(write, head, key.session, head.logs.get(write.log) if head else None)
            if session is None and write.must_exist:
                return Outcome(ABSENT)
            if session and write.delete:
                outcome = Outcome(self.held.pop(key).head.life)
            else:
                session = session or Session(key, self.new_life(), self.clock())
                outcome = session.apply(write, self.clock())
                self.held[key] = session
            if not write.batch:
                self.recent[key, write.token] = outcome
                if len(self.recent) > records.RECENT:
                    del self.recent[next(iter(self.recent))]
            return outcome

    async def read(self, key: Key, log: str, span: records.Span) -> records.RecordPage:
        await asyncio.sleep(0)  # here and below: whoever reads in a loop lets others write
        with self.lock:
            session = self.live(key)
            held = session.logs.get(log, Log()) if session else Log()
            start = 0 if span.after is None else held.place(span.after + 1)
            end = len(held.records) if span.before is None else max(start, held.place(span.before))
            size = end - start if span.limit is None else min(span.limit, end - start)
            first = end - size if span.newest else start
            head = session.head if session else None
            return records.RecordPage(held.records[first : first + size], head, size < end - start)

    async def head(self, key: Key) -> Head | None:
        await asyncio.sleep(0)
        return session.head if (session := self.live(key)) else None

    async def state(self, key: Key, select: records.Select) -> records.StatePage:
        await asyncio.sleep(0)
        with self.lock:
            session = self.live(key)
            state = session.state if session else {}
            keys = sorted(name for name in (state if select.keys is None else select.keys) if name in state)
            keys = [name for name in keys if name.startswith(select.prefix) and name > (select.after or "")]
            page = [state[name] for name in keys[: select.limit]]
            return records.StatePage(page, session.head.life if session else None, len(page) < len(keys))

    async def sessions(self, scope: Scope, listing: records.Listing) -> records.HeadPage:
        await asyncio.sleep(0)
        with self.lock:
            there = [key for key in self.held if key.session and (key.scope == scope or listing.below)]
            live = [session.head for key in there if scope.contains(key.scope) and (session := self.live(key))]
        after = (-inf, "", "") if listing.after is None else heads.listing_after(listing.after)
        wanted = [head for head in live if head.meta.items() >= listing.where.items()]
        found = [head for head in sorted(wanted, key=heads.listing_place) if heads.listing_place(head) > after]
        page = found[: listing.limit]
        return records.HeadPage(page, heads.listing_cursor(page[-1]) if len(page) < len(found) else None)

    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        before = self.clock() - (older_than or 0)
        with self.lock:
            gone = [
                session
                for key, session in self.held.items()
                if scope.contains(key.scope)
                if older_than is None or (key.session and (not self.live(key) or session.head.updated_at <= before))
            ]
            for session in () if dry_run else gone:
                del self.held[session.head.key]
        messages = sum(log.size for session in gone for log in session.head.logs.values())
        sessions = sum(bool(session.head.key.session) for session in gone)
        return Receipt(sessions, messages, sum(len(session.state) for session in gone), dry_run)

    async def sweep(self, budget: int = 100) -> records.SweepReport:
        return records.SweepReport(expired=(await self.remove(Scope(), older_than=inf)).sessions)


named: dict[str, MemoryBackend] = {}
SPEC = BackendSpec(
    "memory",
    ("memory",),
    StoreOptions,
    lambda url, *_: named.setdefault(url.authority, MemoryBackend()) if url.authority else MemoryBackend(),
)
