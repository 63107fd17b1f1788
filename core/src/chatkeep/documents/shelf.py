"""The parts of one session as one call sees them: those that are stored, and those that it is about to store."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from chatkeep.errors import StoreFormatError
from chatkeep.records import LOST, Record

from .driver import Driver, Part, PartName
from .packing import Body, DamagedError, Ref, Stored, unpack_records, unpack_refs

logger = logging.getLogger("chatkeep.documents")

NAME_BYTES = 8
"""How long a name is without the number of the part that stands behind it."""
KEPT = 128
"""How many leaves and lists the cache holds: they never change, and trimming looks at the same ones again."""

PLAIN, LEAF, LIST = 0, 1, 2
"""What a head's list of garbage says of an entry: these parts alone; a leaf with bodies; a list with what it names."""


class MissingError(Exception):
    """A part is not there: a later head has given it up, or the database is damaged."""


def part_names(name: bytes, parts: int) -> list[PartName]:
    """The names of the parts that one content was divided into."""
    return [name + number.to_bytes(2, "big") for number in range(parts)]


class Cache:
    """What the latest leaves and lists hold, by their names, which are never used twice."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[bytes, bytes], Any] = OrderedDict()

    def get(self, id: bytes, name: bytes) -> Any:
        found = self._held.get((id, name))
        if found is not None:
            self._held.move_to_end((id, name))
        return found

    def put(self, id: bytes, name: bytes, content: Any) -> None:
        self._held[id, name] = content
        if len(self._held) > KEPT:
            self._held.popitem(last=False)


class Shelf:
    """Reads parts, and gathers what a commit is to store and what it gives up."""

    def __init__(self, driver: Driver, id: bytes, life: str, cache: Cache, *, lenient: bool = False) -> None:
        self.lenient = lenient
        """Whether what is missing or damaged is stood in for, record by record. Else it is an error: as a rule a
        later head has given it up."""
        self.driver = driver
        self.limits = driver.limits
        self.id = id
        self.life = life
        self._cache = cache
        self.new: list[Part] = []
        self._fresh: dict[PartName, bytes] = {}
        self.garbage: list[list[Any]] = []
        """Entries as a head lists them: a name, how many parts, and one of PLAIN, LEAF and LIST."""

    # Reading

    async def contents(self, wanted: Iterable[tuple[bytes, int]]) -> list[bytes]:
        """What lies under these names, each divided into so many parts."""
        wanted = list(wanted)
        names = [part for name, parts in wanted for part in part_names(name, parts)]
        found = await self._found(names)
        if missing := [name for name in names if name not in found]:
            raise MissingError(f"{len(missing)} of {len(names)} parts of a session are missing")
        return [
            found[name + b"\0\0"] if parts == 1 else b"".join(found[part] for part in part_names(name, parts))
            for name, parts in wanted
        ]

    async def available(self, wanted: Iterable[tuple[bytes, int]]) -> list[bytes]:
        """The same; where what is missing is stood in for, as much as there is before it."""
        if not self.lenient:
            return await self.contents(wanted)
        wanted = list(wanted)
        found = await self._found([part for name, parts in wanted for part in part_names(name, parts)])
        return [
            b"".join(found[part] for part in takewhile(found.__contains__, part_names(name, parts)))
            for name, parts in wanted
        ]

    async def _found(self, names: Sequence[PartName]) -> dict[PartName, bytes]:
        stored = [name for name in names if name not in self._fresh]
        return {**self._fresh, **(await self.driver.get(self.id, stored) if stored else {})}

    async def leaves(self, refs: Sequence[Ref], *, keep: bool = False) -> list[Sequence[Stored]]:
        """The visible records of each leaf. `keep`: they will be looked at again."""
        known = [self._cache.get(self.id, ref.name) for ref in refs]
        missing = [ref for ref, leaf in zip(refs, known, strict=True) if leaf is None]
        read = iter(await self.available((ref.name, ref.parts) for ref in missing) if missing else ())
        found = []
        for ref, leaf in zip(refs, known, strict=True):
            if leaf is None:
                data = next(read)
                leaf = _salvaged(ref, data) if self.lenient else unpack_records(data)  # noqa: PLW2901
                if keep and not self.lenient:
                    self._cache.put(self.id, ref.name, leaf)
            if leaf and leaf[0].record.seq < ref.first:
                leaf = [stored for stored in leaf if stored.record.seq >= ref.first]  # noqa: PLW2901
            found.append(leaf)
        return found

    async def leaf(self, ref: Ref) -> Sequence[Stored]:
        """The visible records of a leaf, which will be looked at again."""
        return (await self.leaves([ref], keep=True))[0]

    async def lists(self, refs: Sequence[Ref]) -> list[list[Ref]]:
        """What each of these lists names."""
        known = [self._cache.get(self.id, ref.name) for ref in refs]
        missing = [ref for ref, children in zip(refs, known, strict=True) if children is None]
        read = iter(await self.available((ref.name, ref.parts) for ref in missing) if missing else ())
        found = []
        for ref, children in zip(refs, known, strict=True):
            if children is None:
                try:
                    children = unpack_refs(next(read))  # noqa: PLW2901
                except DamagedError:
                    if not self.lenient:
                        raise
                    found.append(_lost_leaves(ref, self.limits.leaf_records))
                    continue
                self._cache.put(self.id, ref.name, children)
            found.append(children)
        return found

    async def full(self, records: Sequence[Stored]) -> list[Stored]:
        """The same records, with what lies elsewhere."""
        elsewhere = [stored.body for stored in records if stored.body]
        if not elsewhere:
            return list(records)
        read = iter(await self.available((body.name, body.parts) for body in elsewhere))
        found = []
        for stored in records:
            record, body = stored
            if body:
                data, size = next(read), max(body.text, 0)
                # Of one that is damaged, the payload will say so.
                text = None if body.text < 0 else data[:size].decode(errors="replace")
                record = record._replace(text=text, payload=data[size:])
            found.append(Stored(record, body))
        return found

    # Changing

    def add(self, data: bytes, digests: Sequence[bytes] = ()) -> tuple[bytes, int]:
        """Have content stored: its name, and how many parts it is divided into."""
        name, size = os.urandom(NAME_BYTES), self.limits.part_bytes
        pieces = [data[place : place + size] for place in range(0, len(data), size)] or [b""]
        for part, piece in zip(part_names(name, len(pieces)), pieces, strict=True):
            self.new.append(Part(part, piece, digests))
            self._fresh[part] = piece
            digests = ()
        return name, len(pieces)

    def bury(self, name: bytes, parts: int) -> None:
        """Give content up. What was to be stored by this very call need not be."""
        if name + b"\0\0" in self._fresh:
            self.new = [part for part in self.new if part.name[:NAME_BYTES] != name]
        else:
            self.garbage.append([name.hex(), parts, PLAIN])

    def bury_body(self, body: Body | None) -> None:
        """Give a payload up that lies elsewhere."""
        if body is not None:
            self.bury(body.name, body.parts)

    def bury_ref(self, ref: Ref) -> None:
        """Give a leaf or a list up, with all that it names."""
        kind = LIST if ref.level else LEAF if ref.bodies else PLAIN
        self.garbage.append([ref.name.hex(), ref.parts, kind])

    def digest(self, log: str, id: str) -> bytes:
        """What stands for a message id: another one in every session, life and log."""
        text = f"{self.life}\n{len(log.encode())}\n{log}{id}"
        return blake2b(text.encode(), digest_size=16, key=self.id).digest()


def _seqs(ref: Ref) -> list[int]:
    """The seqs of what is lost: true where there are no gaps, and else of that number, between the same ends."""
    return [ref.first, *range(ref.last - ref.size + 2, ref.last + 1)]


def _lost_leaves(ref: Ref, size: int) -> list[Ref]:
    """What stands in for all that a list names which is lost: leaves of that size, which are lost, too."""
    seqs = _seqs(ref)
    chunks = [seqs[place : place + size] for place in range(0, len(seqs), size)]
    return [
        ref._replace(
            name=bytes(NAME_BYTES) if place else ref.name,  # which no part has: what is left stands once
            level=0,
            first=chunk[0],
            last=chunk[-1],
            size=len(chunk),
            start=ref.start if ref.start in chunk else 0,
            turn=ref.turn if ref.turn in chunk else 0,
            ids=False,
            bodies=False,
        )
        for place, chunk in enumerate(chunks)
    ]


def _salvaged(ref: Ref, data: bytes) -> Sequence[Stored]:
    """The records of a leaf that may be damaged; where they cannot be told, what stands in for each.

    The first of these has what is left of the leaf as its payload, so that nothing is deleted with its repair.
    """
    try:
        found = unpack_records(data, whole=False)
    except DamagedError:
        found = ()
    visible = [stored for stored in found if stored.record.seq >= ref.first]
    if len(visible) == ref.size and visible[-1].record.seq == ref.last:
        return visible
    seqs = _seqs(ref)
    return [
        Stored(Record(seq, None, "", seq in (ref.start, ref.turn), LOST, ref.closed, None, b"" if place else data))
        for place, seq in enumerate(seqs)
    ]


async def clear_garbage(driver: Driver, id: bytes, garbage: Sequence[Sequence[Any]]) -> None:
    """Delete what a stored head lists as given up. What a list names goes before it, so that none is forgotten."""
    plain: list[PartName] = []
    for name, parts, kind in garbage:
        names = part_names(bytes.fromhex(name), parts)
        if kind != PLAIN:
            found = await driver.get(id, names)
            if len(found) == len(names):
                try:
                    await _clear_below(driver, id, b"".join(found[each] for each in names), kind)
                except (DamagedError, StoreFormatError) as error:  # it is deleted with the session
                    logger.warning("what a part named that was given up is not deleted: %s", error)
        plain += names
    if plain:
        await driver.drop(id, plain)


async def _clear_below(driver: Driver, id: bytes, data: bytes, kind: int) -> None:
    if kind == LEAF:
        bodies = [stored.body for stored in unpack_records(data) if stored.body]
        await driver.drop(id, [part for body in bodies for part in part_names(body.name, body.parts)])
        return
    below = unpack_refs(data)
    await clear_garbage(
        driver, id, [[ref.name.hex(), ref.parts, LIST if ref.level else LEAF if ref.bodies else PLAIN] for ref in below]
    )
