"""A log of a session: its newest messages in the head, the older ones in a tree, and the ids that it knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from typing import Any

from chatkeep import heads
from chatkeep.records import BATCHES, Keep, LogHead, Record, Replace, Rewrite, Span, Write
from chatkeep.records import Body as MessageBody

from .driver import Document
from .packing import (
    Body,
    ElsewhereError,
    Ref,
    Stored,
    make_ref,
    pack_records,
    plain_ref,
    unpack_bodies,
    unpack_entry,
)
from .shelf import Shelf
from .trees import Tree, size_of
from .trimmed import Trimmed

LOOKUPS = 4
"""Reading a leaf costs about as much as looking for so many ids by themselves."""


def new_log(name: str) -> Document:
    """A log without a record, as a head holds it."""
    return {
        "name": name,
        "tail": 0,
        "last": 0,
        "size": 0,
        "rewrite": 0,
        "spilled": 0,
        "in": [],
        "refs": [],
        "batches": [],
        "gone": None,
    }


def log_head(document: Document) -> LogHead:
    """Where a log stands."""
    return LogHead(document["tail"], document["last"], document["size"], document["rewrite"])


def inline_bytes(document: Document) -> int:
    """How much of a log is in the head."""
    return sum(map(len, document["in"]))


def relieve(logs: list[Document], written: str, shelf: Shelf) -> None:
    """Where a session's logs have too much in the head, empty the largest but the one that is written to."""
    limit = shelf.limits.head_bytes
    total = sum(map(inline_bytes, logs)) if len(logs) > 1 else 0
    if total <= limit:
        return
    for place in sorted(range(len(logs)), key=lambda place: inline_bytes(logs[place]), reverse=True):
        if logs[place]["name"] == written or not logs[place]["in"]:
            continue
        total -= inline_bytes(logs[place])
        log = Log(logs[place], shelf)
        log.leave_head()
        logs[place] = log.changed()
        if total <= limit // 2:
            return


class Log:
    """One log while a write changes it, or a reading looks at it. `document` is what the head holds and stays as it is.

    The records in the head are packed as they were appended. They are looked at only where that is needed.
    """

    def __init__(self, document: Document, shelf: Shelf) -> None:
        self.name: str = document["name"]
        self.head = log_head(document)
        self._shelf = shelf
        self._limits = shelf.limits
        self._document = document
        self._entries: list[bytes] = document["in"]
        self._inline: list[Stored] | None = None
        """Where it is not None, it counts instead of the entries, and they will be packed anew."""
        self._tree: Tree | None = None
        self._batches: list[list[Any]] = document["batches"]
        self._trimmed: Trimmed | None = None

    # What is there

    @property
    def tree(self) -> Tree:
        if self._tree is None:
            self._tree = Tree(self._shelf, [make_ref(row) for row in self._document["refs"]], self.name)
        return self._tree

    @property
    def _spilled(self) -> int:
        """How many records are in the tree."""
        spilled: int = self._document["spilled"] if self._tree is None else self._tree.size
        return spilled

    @property
    def inline(self) -> Sequence[Stored]:
        """The records in the head."""
        if self._inline is not None:
            return self._inline
        return list(chain.from_iterable(map(unpack_entry, self._entries)))

    def _newest_inline(self, count: int) -> list[Stored]:
        """The newest `count` of them at least, if there are so many."""
        found = list[Stored]()
        for entry in reversed(self._entries):
            if len(found) >= count:
                break
            found[:0] = unpack_entry(entry)
        return found

    @property
    def trimmed(self) -> Trimmed:
        if self._trimmed is None:
            self._trimmed = Trimmed(self._shelf, self.name, self._document["gone"])
        return self._trimmed

    # Reading

    async def read(self, span: Span) -> tuple[list[Record], bool]:
        """The records of a span, oldest first, and whether there are more in the direction of reading."""
        low = 0 if span.after is None else span.after
        high: float = inf if span.before is None else span.before
        need = None if span.limit is None else span.limit + 1
        if span.newest and need is not None and span.before is None and need <= self.head.size - self._spilled:
            found = self._newest_inline(need)
        else:
            found = list(self.inline)
        found = [stored for stored in found if low < stored.record.seq < high]
        if self._spilled and (need is None or not span.newest or len(found) < need):
            top = self.head.last + 1 if high == inf else int(high)
            rest = None if need is None else need - len(found) if span.newest else need
            refs = await self.tree.covering(low=low, high=top, need=rest, newest=span.newest)
            older = chain.from_iterable(await self._shelf.leaves(refs))
            found = [*(stored for stored in older if low < stored.record.seq < top), *found]
        more = span.limit is not None and len(found) > span.limit
        if span.limit is not None:
            found = found[max(0, len(found) - span.limit) :] if span.newest else found[: span.limit]
        return [stored.record for stored in await self._shelf.full(found)], more

    async def bodies(self, span: Span) -> tuple[list[MessageBody], bool] | None:
        """The same of all records or of the newest, quicker; None where that cannot be."""
        limit = self.head.size if span.limit is None else span.limit
        if self._shelf.lenient or span.after is not None or span.before is not None:
            return None
        if not (span.newest or limit >= self.head.size):
            return None
        entries, found = list(self._entries), list[list[MessageBody]]()
        size = 0
        try:
            while entries and size < limit:
                found.append(unpack_bodies(entries.pop()))
                size += len(found[-1])
            if size < limit and self._spilled:
                top = self.head.last + 1
                refs = await self.tree.covering(low=0, high=top, need=limit - size, newest=True)
                if any(ref.bodies for ref in refs):
                    return None
                data = await self._shelf.contents((ref.name, ref.parts) for ref in refs)
                for ref, packed in zip(reversed(refs), reversed(data), strict=True):
                    leaf = unpack_bodies(packed)
                    found.append(leaf if leaf[0][0] >= ref.first else [body for body in leaf if body[0] >= ref.first])
        except ElsewhereError:
            return None
        bodies = list(chain.from_iterable(reversed(found)))
        return bodies[max(0, len(bodies) - limit) :], limit < self.head.size

    async def _held(self, seq: int) -> Stored | None:
        """The record at `seq`, with what lies elsewhere."""
        found = next((stored for stored in self.inline if stored.record.seq == seq), None)
        if found is None and self._spilled:
            place = await self.tree.find(seq)
            found = place[1] if place else None
        return (await self._shelf.full([found]))[0] if found else None

    async def _find_ids(self, ids: Iterable[str]) -> dict[str, int]:
        """The seqs of those of the ids that the log knows, held or trimmed."""
        wanted = set(ids)
        if not wanted:
            return {}
        known = {id: stored.record.seq for stored in self.inline if (id := stored.record.id) in wanted and id}
        if self._spilled and any(ref.ids for ref in self.tree.refs):
            digests = {self._shelf.digest(self.name, id): id for id in wanted if id not in known}
            if digests:
                known |= await self._find_in_tree(digests)
        return {**await self.trimmed.find(wanted), **known}

    async def _leaves_with_ids(self) -> list[Ref]:
        every = await self.tree.covering(low=0, high=self.head.last + 1, need=None, newest=False)
        return [ref for ref in every if ref.ids]

    async def _find_in_tree(self, digests: dict[bytes, str]) -> dict[str, int]:
        """Of what the driver found, that counts which is in the tree: it may be of a writer who never committed.

        Where there are many ids for few leaves, as of a whole transcript that is sent again, all leaves are read.
        """
        refs = await self._leaves_with_ids() if len(digests) > 4 * LOOKUPS else None
        if refs is None or LOOKUPS * len(refs) > len(digests):
            candidates = {name[:-2] for name in await self._shelf.driver.holding(self._shelf.id, list(digests))}
            if not candidates:
                return {}
            refs = [ref for ref in refs or await self._leaves_with_ids() if ref.name in candidates]
        wanted, found = set(digests.values()), dict[str, int]()
        for stored in chain.from_iterable(await self._shelf.leaves(refs, keep=True)):
            if stored.record.id in wanted:
                found[stored.record.id] = stored.record.seq
        return found

    def batch(self, token: bytes) -> Sequence[int] | None:
        """Where the append with this batch id went, if it is remembered."""
        for remembered, first, last, seqs in reversed(self._batches[-BATCHES:]):
            if remembered == token:
                return list(range(first, last + 1)) if seqs is None else list(seqs)
        return None

    # Writing

    async def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        """The seqs of the write's records, and how many are new."""
        known = await self._find_ids(record.id for record in write.append if record.id)
        heads.check_new(write, known)
        tail, last, size, rewrite = self.head
        new, swapped, seqs = dict[int, Record](), dict[int, Record](), list[int]()
        for record in write.append:
            seq = known.get(record.id, 0) if record.id else 0
            if not seq:
                seq = last + len(new) + 1
                if record.id:
                    known[record.id] = seq
                new[seq] = record._replace(seq=seq, created_at=record.created_at or now)
            else:
                there = new.get(seq) or swapped.get(seq)
                if there is None and write.on_conflict != "keep":
                    held = await self._held(seq)
                    there = held.record if held else None
                if better := heads.meet(write, record, there, seq):
                    (new if seq in new else swapped)[seq] = better
            seqs.append(seq)
        for seq, record in swapped.items():
            await self._put(seq, record)
        last += len(new)
        self.head = LogHead(last if new else tail, last, size + len(new), rewrite + bool(swapped))
        self._push([self._stored(record) for record in new.values()])
        if write.batch:
            kept = self._batches if len(self._batches) < 2 * BATCHES else self._batches[-BATCHES:]
            together = seqs == list(range(seqs[0], seqs[-1] + 1))
            self._batches = [*kept, [write.token, min(seqs), max(seqs), None if together else seqs]]
        await self._trim(write.keep, now)
        return seqs, len(new)

    def _stored(self, record: Record) -> Stored:
        """The record as it is to be stored: what is too large for a leaf, in parts of its own."""
        text = record.text.encode() if record.text is not None else b""
        if len(text) + len(record.payload) <= self._limits.body_bytes:
            return Stored(record)
        name, parts = self._shelf.add(text + record.payload)
        body = Body(name, parts, -1 if record.text is None else len(text), len(record.payload))
        return Stored(record._replace(text=None, payload=b""), body)

    def _push(self, records: Sequence[Stored]) -> None:
        """Newer records. Where the head would hold too many, the older ones go into the tree."""
        if not records:
            return
        inline = self.head.size - self._spilled
        sizes = sum(map(len, self._entries)) + sum(map(size_of, records))
        if self._inline is None and inline <= self._limits.inline_records and sizes <= self._limits.inline_bytes:
            self._entries = [*self._entries, pack_records(records)]
            return
        self._inline = [*self.inline, *records]
        self._spill()

    def _spill(self) -> None:
        """Where the head holds too much, leave the newest half there."""
        inline = self._inline
        if inline is None or (
            len(inline) <= self._limits.inline_records and sum(map(size_of, inline)) <= self._limits.inline_bytes
        ):
            return
        kept, size = 0, 0
        for stored in reversed(inline):
            size += size_of(stored)
            if kept == self._limits.inline_records // 2 or size > self._limits.inline_bytes // 2:
                break
            kept += 1
        place = len(inline) - kept
        self.tree.append(inline[:place])
        self._inline = inline[place:]

    def leave_head(self) -> None:
        """Put all that the head holds of it into the tree."""
        inline = self.inline
        self.tree.append(inline)
        self._inline = []

    async def _put(self, seq: int, record: Record) -> None:
        """Put a record in the place of the one that is there."""
        stored = self._stored(record)
        inline = list(self.inline)
        for place, each in enumerate(inline):
            if each.record.seq == seq:
                self._shelf.bury_body(each.body)
                inline[place] = stored
                self._inline = inline
                self._spill()
                return
        await self.tree.replace(seq, stored)

    # Retention

    async def _trim(self, keep: Keep, now: float) -> None:
        cut = 0
        if keep.max_age is not None and self.head.size:
            cut = await self._old_turns(now - keep.max_age, now)
        if keep.max_messages == 0:
            cut = self.head.last + 1
        elif keep.max_messages is not None and self.head.size > keep.max_messages:
            cut = max(cut, await self._spare_turns(keep.max_messages))
        if cut:
            await self._cut(cut)
        if self._document["gone"] is not None or self._trimmed is not None:
            await self.trimmed.settle(keep.remember_ids)

    async def _spare_turns(self, keep: int) -> int:
        """The last seq that starts a turn and has at least `keep` records from there; 0 if there is none."""
        index, spilled = self.head.size - keep, self._spilled
        inline = self.inline[: index - spilled + 1] if index >= spilled else ()
        for stored in reversed(inline):
            if stored.record.starts_turn:
                return stored.record.seq
        return await self.tree.turn_at(index) if spilled else 0

    async def _old_turns(self, oldest: float, now: float) -> int:
        """The first seq behind the leading turns whose last record is older; 0 if there is none."""
        cut, closed = 0, None
        refs = list(self.tree.refs) if self._spilled else []
        while refs:
            ref = refs.pop(0)
            if not ref.turn or (closed is None and ref.turn == ref.first):
                closed = ref.closed  # no turn ends in it
            elif ref.level:
                (refs[:0],) = await self._shelf.lists([ref])
            else:
                for stored in await self._shelf.leaf(ref):
                    if closed is not None and stored.record.starts_turn:
                        if closed >= oldest:
                            return cut
                        cut = stored.record.seq
                    closed = stored.record.created_at or now
        for stored in self.inline:
            if closed is not None and stored.record.starts_turn:
                if closed >= oldest:
                    return cut
                cut = stored.record.seq
            closed = stored.record.created_at or now
        return cut

    async def _cut(self, cut: int) -> None:
        """Trim everything before `cut`: its ids stay known."""
        inline, gone = list(self.inline), 0
        if self._spilled and self.tree.refs[0].first < cut:
            if any(ref.ids for ref in self.tree.refs if ref.first < cut):
                refs = await self.tree.covering(low=0, high=cut, need=None, newest=False)
                older = chain.from_iterable(await self._shelf.leaves([ref for ref in refs if ref.ids], keep=True))
                self.trimmed.add(stored.record for stored in older if stored.record.seq < cut)
            before = self.tree.size
            await self.tree.cut_front(cut)
            gone = before - self.tree.size
        out = [stored for stored in inline if stored.record.seq < cut]
        if out:
            if any(stored.record.id for stored in out):
                self.trimmed.add(stored.record for stored in out)
            for stored in out:
                self._shelf.bury_body(stored.body)
            self._inline = inline[len(out) :]
        size = self.head.size - len(out) - gone
        self.head = self.head._replace(size=size, tail=self.head.tail if size else 0)

    # Taking out and editing

    async def truncate(self, after: int) -> int:
        """Take out everything behind `after`; how many records that were."""
        inline, spilled = list(self.inline), self._spilled
        out = [stored for stored in inline if stored.record.seq > after]
        low = out[0].record.seq if out else 0
        if spilled and self.tree.refs[-1].last > after:
            (oldest, *_), _ = await self.read(Span(after=after, limit=1))
            low = oldest.seq
            self._inline = [*await self.tree.cut_back(after), *inline[: len(inline) - len(out)]]
        elif out:
            self._inline = inline[: len(inline) - len(out)]
        if not low:
            return 0
        for stored in out:
            self._shelf.bury_body(stored.body)
        self._forget_batches(low, inf)
        self._spill()
        before = self.head.size
        self._measure()
        return before - self.head.size

    async def replace(self, change: Replace, now: float) -> list[int]:
        """Put records in the place of a beginning; their seqs."""
        upto = self.head.last if change.upto is None else change.upto
        gone = await self._count_upto(upto)
        heads.check_replace(change, self.head, gone)
        known = await self._find_ids(record.id for record in change.records if record.id)
        for record in change.records:
            seq = known.get(record.id, 0) if record.id else 0
            if seq > upto or (seq and await self._held(seq) is None):
                raise heads.duplicate(record, seq)
        if not gone:
            return []
        (first, *_), _ = await self.read(Span(limit=1))
        last, _ = await self.read(Span(before=upto + 1, limit=len(change.records), newest=True))
        seqs = [record.seq for record in last]
        inline = list(self.inline)
        out = [stored for stored in inline if stored.record.seq <= upto]
        for stored in out:
            self._shelf.bury_body(stored.body)
        if self._spilled:
            await self.tree.cut_front(upto + 1, split=True)
        new = [
            self._stored(record._replace(seq=seq, created_at=record.created_at or now))
            for seq, record in zip(seqs, change.records, strict=True)
        ]
        self._inline = inline[len(out) :]
        if self.tree.refs:
            self.tree.prepend(new)
        else:
            self._inline = [*new, *self._inline]
        self._spill()
        self._forget_batches(first.seq, upto)
        self._measure()
        self.head = self.head._replace(rewrite=self.head.rewrite + 1)
        return seqs

    async def _count_upto(self, upto: int) -> int:
        """How many records stand at or before `upto`."""
        count = sum(stored.record.seq <= upto for stored in self.inline)
        if self._spilled:
            refs = list(self.tree.refs)
            while refs:
                ref = refs.pop(0)
                if ref.first > upto:
                    break
                if ref.last <= upto:
                    count += ref.size
                elif ref.level:
                    (refs[:0],) = await self._shelf.lists([ref])
                else:
                    count += sum(stored.record.seq <= upto for stored in await self._shelf.leaf(ref))
        return count

    async def rewrite(self, change: Rewrite) -> None:
        """Put a record in the place of another."""
        seq = change.record.seq
        held = await self._held(seq)
        record = heads.check_rewrite(change, held.record if held else None)
        if record.id:
            other = (await self._find_ids([record.id])).get(record.id, seq)
            if other != seq:
                raise heads.duplicate(record, other)
        await self._put(seq, record)
        self.head = self.head._replace(rewrite=self.head.rewrite + 1)

    def _forget_batches(self, low: float, high: float) -> None:
        """Forget the batches that lay wholly between these seqs, both inclusive."""
        kept = self._batches[-BATCHES:]
        left = [row for row in kept if not low <= row[1] <= row[2] <= high]
        if len(left) < len(kept):
            self._batches = left

    def _measure(self) -> None:
        """Where the log stands after something was taken out or put in at its beginning."""
        inline = self.inline
        size = self.tree.size + len(inline)
        tail = inline[-1].record.seq if inline else self.tree.refs[-1].last if self.tree.refs else 0
        self.head = self.head._replace(size=size, tail=tail)

    # What the head holds afterwards

    def changed(self) -> Document:
        """The log as the head is to hold it."""
        document = {**self._document, "batches": self._batches}
        document["tail"], document["last"], document["size"], document["rewrite"] = self.head
        if self._tree is not None:
            self._tree.fold()
            document["refs"] = [plain_ref(ref) for ref in self._tree.refs]
            document["spilled"] = self._tree.size
        if self._inline is not None:
            document["in"] = [pack_records(self._inline)] if self._inline else []
        else:
            document["in"] = self._entries
        if self._trimmed is not None:
            document["gone"] = self._trimmed.document()
        return document
