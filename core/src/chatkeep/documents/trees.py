"""The older messages of a log: leaves in order of seq, named by the head itself or by lists of leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from .driver import Limits
from .packing import Ref, Stored, pack_records, pack_refs
from .shelf import Shelf


def size_of(stored: Stored) -> int:
    """About how many bytes a record takes where it is stored."""
    record = stored.record
    return 80 + len(record.payload) + len(record.text or "") + len(record.id or "") + len(record.role)


def groups(records: Sequence[Stored], limits: Limits) -> Iterator[list[Stored]]:
    """The records divided into leaves."""
    group, size = list[Stored](), 0
    for stored in records:
        more = size_of(stored)
        if group and (len(group) == limits.leaf_records or size + more > limits.leaf_bytes):
            yield group
            group, size = [], 0
        group.append(stored)
        size += more
    if group:
        yield group


class Tree:
    """The refs of one log, in order of seq. What a change makes superfluous is given up on the shelf."""

    def __init__(self, shelf: Shelf, refs: list[Ref], log: str) -> None:
        self.shelf = shelf
        self.refs = refs
        self._log = log

    @property
    def size(self) -> int:
        return sum(ref.size for ref in self.refs)

    # Making

    def leaf(self, records: Sequence[Stored]) -> Ref:
        """A new leaf."""
        digests = [self.shelf.digest(self._log, stored.record.id) for stored in records if stored.record.id]
        name, parts = self.shelf.add(pack_records(records), digests)
        return self._ref(name, parts, records)

    @staticmethod
    def _ref(name: bytes, parts: int, records: Sequence[Stored]) -> Ref:
        starts = [stored.record.seq for stored in records if stored.record.starts_turn]
        last = records[-1].record
        return Ref(
            name,
            0,
            records[0].record.seq,
            last.seq,
            len(records),
            starts[0] if starts else 0,
            starts[-1] if starts else 0,
            last.created_at or 0.0,
            any(stored.record.id for stored in records),
            any(stored.body for stored in records),
            parts,
        )

    def _list(self, refs: Sequence[Ref]) -> Ref:
        """A new list of what stands side by side."""
        name, parts = self.shelf.add(pack_refs(refs))
        return Ref(
            name,
            1 + max(ref.level for ref in refs),
            refs[0].first,
            refs[-1].last,
            sum(ref.size for ref in refs),
            next((ref.start for ref in refs if ref.start), 0),
            next((ref.turn for ref in reversed(refs) if ref.turn), 0),
            refs[-1].closed,
            any(ref.ids for ref in refs),
            any(ref.bodies for ref in refs),
            parts,
        )

    def append(self, records: Sequence[Stored]) -> None:
        """Leaves of newer records."""
        self.refs += [self.leaf(group) for group in groups(records, self.shelf.limits)]

    def prepend(self, records: Sequence[Stored]) -> None:
        """Leaves of older records."""
        self.refs[:0] = [self.leaf(group) for group in groups(records, self.shelf.limits)]

    def fold(self) -> None:
        """Where there are too many refs, put the oldest of the lowest level that is long enough into a list."""
        while len(self.refs) > self.shelf.limits.refs:
            wanted = max(2, self.shelf.limits.refs // 2)
            runs, place = list[tuple[bool, int, int, int]](), 0
            for level, run in groupby(self.refs, key=lambda ref: ref.level):
                length = sum(1 for _ in run)
                runs.append((length >= wanted, -level, length, place))
                place += length
            _, _, length, place = max(runs, key=lambda run: run[:3])
            size = min(length, wanted)
            if size < 2:  # no two of one level side by side
                place, size = 0, wanted
            self.refs[place : place + size] = [self._list(self.refs[place : place + size])]

    # Reading

    async def covering(
        self, *, low: int, high: int, need: int | None, newest: bool, refs: Sequence[Ref] | None = None
    ) -> list[Ref]:
        """The leaves with seqs in ``low < seq < high``: all, or as many as certainly hold `need` such records."""
        found = list(self.refs if refs is None else refs)
        while True:
            found = _enough([ref for ref in found if ref.last > low and ref.first < high], low, high, need, newest)
            lists = [ref for ref in found if ref.level]
            if not lists:
                return found
            below = iter(await self.shelf.lists(lists))
            found = [child for ref in found for child in (next(below) if ref.level else (ref,))]

    async def find(self, seq: int) -> tuple[Ref, Stored] | None:
        """The record at `seq` and its leaf."""
        for ref in await self.covering(low=seq - 1, high=seq + 1, need=None, newest=False):
            for stored in await self.shelf.leaf(ref):
                if stored.record.seq == seq:
                    return ref, stored
        return None

    async def turn_at(self, index: int) -> int:
        """The last seq, among the records up to the one at `index` (from 0), that starts a turn; 0 if there is none."""
        refs, found = self.refs, 0
        while True:
            holding = None
            for ref in refs:
                if index < ref.size:
                    holding = ref
                    break
                found = ref.turn or found
                index -= ref.size
            if holding is None:
                return found
            if holding.level == 0:
                leaf = (await self.shelf.leaf(holding))[: index + 1]
                return next((each.record.seq for each in reversed(leaf) if each.record.starts_turn), found)
            (refs,) = await self.shelf.lists([holding])

    # Changing

    async def replace(self, seq: int, stored: Stored) -> None:
        """Put a record in the place of the one that is there at `seq`."""
        self.refs = await self._replaced(self.refs, seq, stored)

    async def _replaced(self, refs: Sequence[Ref], seq: int, stored: Stored) -> list[Ref]:
        place = next(place for place, ref in enumerate(refs) if ref.first <= seq <= ref.last)
        ref, changed = refs[place], list(refs)
        if ref.level:
            (children,) = await self.shelf.lists([ref])
            changed[place] = self._list(await self._replaced(children, seq, stored))
        else:
            records = [stored if each.record.seq == seq else each for each in await self.shelf.leaf(ref)]
            changed[place] = self.leaf(records)
            await self._give_up_leaf(ref, records)
            return changed
        self.shelf.bury(ref.name, ref.parts)
        return changed

    async def _give_up_leaf(self, ref: Ref, kept: Sequence[Stored]) -> None:
        """Give a leaf up whose records live on elsewhere, these at least, with their bodies."""
        if ref.bodies:
            bodies = {stored.body for stored in kept}
            for stored in await self.shelf.leaf(ref._replace(first=0)):
                if stored.body not in bodies:
                    self.shelf.bury_body(stored.body)
        self.shelf.bury(ref.name, ref.parts)

    async def cut_front(self, cut: int, *, split: bool = False) -> None:
        """Give up everything before `cut`. `split`: what stays of a leaf is stored anew, without the rest."""
        while self.refs and self.refs[0].first < cut:
            ref = self.refs[0]
            if ref.last < cut:
                self.shelf.bury_ref(self.refs.pop(0))
            elif ref.level:
                (self.refs[:1],) = await self.shelf.lists([ref])
                self.shelf.bury(ref.name, ref.parts)
            else:
                leaf = await self.shelf.leaf(ref)
                kept = [stored for stored in leaf if stored.record.seq >= cut]
                if split:
                    self.refs[0] = self.leaf(kept)
                    await self._give_up_leaf(ref, kept)
                else:
                    self.refs[0] = self._ref(ref.name, ref.parts, kept)._replace(bodies=ref.bodies)
                return

    async def cut_back(self, after: int) -> list[Stored]:
        """Give up everything behind `after`; what stays of a leaf is no longer in the tree, and returned."""
        while self.refs and self.refs[-1].last > after:
            ref = self.refs[-1]
            if ref.first > after:
                self.shelf.bury_ref(self.refs.pop())
            elif ref.level:
                (self.refs[-1:],) = await self.shelf.lists([ref])
                self.shelf.bury(ref.name, ref.parts)
            else:
                kept = [stored for stored in await self.shelf.leaf(ref) if stored.record.seq <= after]
                await self._give_up_leaf(ref, kept)
                self.refs.pop()
                return kept
        return []


def _enough(refs: list[Ref], low: int, high: int, need: int | None, newest: bool) -> list[Ref]:
    """As many of the refs, from one end, as certainly hold `need` records between the two seqs."""
    if need is None:
        return refs
    taken = list[Ref]()
    for ref in reversed(refs) if newest else refs:
        if need <= 0:
            break
        taken.append(ref)
        if low < ref.first and ref.last < high:
            need -= ref.size
    if newest:
        taken.reverse()
    return taken
