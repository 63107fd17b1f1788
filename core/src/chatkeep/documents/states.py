"""The state of a session: a few entries in its head, or many in leaves in the order of their keys."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from chatkeep import heads
from chatkeep.records import Select, StateEntry, Write

from .driver import Document
from .packing import Body, StateLeaf, Value, pack_directory, pack_state, unpack_directory, unpack_state
from .shelf import Shelf

LEAF_ENTRIES = 256


def _order(value: Value) -> bytes:
    return value.entry.key.encode()


class State:
    """One session's state while a write changes it, or a reading looks at it.

    `document` is what the head holds: how many entries there are, and either the entries or where the list of the
    leaves lies. None: there is none.
    """

    def __init__(self, document: Document | None, shelf: Shelf) -> None:
        self._document = document or {"count": 0, "in": None, "directory": None}
        self._shelf = shelf
        self._limits = shelf.limits

    # Reading

    def _inline(self) -> list[Value]:
        packed = self._document["in"]
        return [] if packed is None else unpack_state(packed)

    async def _directory(self) -> list[StateLeaf]:
        name, parts = self._document["directory"]
        (data,) = await self._shelf.contents([(bytes.fromhex(name), parts)])
        return unpack_directory(data)

    async def _leaves(self, leaves: Sequence[StateLeaf]) -> list[list[Value]]:
        return [unpack_state(data) for data in await self._shelf.contents((leaf[1:]) for leaf in leaves)]

    async def _named(self, keys: Iterable[str]) -> list[Value]:
        """The entries with these keys, without what lies elsewhere."""
        wanted = set(keys)
        if self._document["directory"] is None:
            return [value for value in self._inline() if value.entry.key in wanted]
        leaves = await self._directory()
        chosen = sorted({_place(leaves, key) for key in wanted})
        found = chain.from_iterable(await self._leaves([leaves[place] for place in chosen]))
        return [value for value in found if value.entry.key in wanted]

    async def select(self, select: Select) -> tuple[list[StateEntry], bool]:
        """The entries that are asked for, and whether there are more."""
        if select.keys is not None:
            found = await self._named(select.keys)
            found = [value for value in found if value.entry.key.startswith(select.prefix)]
        elif self._document["directory"] is None:
            found = self._inline()
        else:
            found = await self._range(select)
        after = None if select.after is None else select.after.encode()
        prefix = select.prefix.encode()
        found = [
            value for value in found if _order(value).startswith(prefix) and (after is None or _order(value) > after)
        ]
        found.sort(key=_order)
        more = select.limit is not None and len(found) > select.limit
        return await self._full(found[: select.limit]), more

    async def _range(self, select: Select) -> list[Value]:
        """The entries from the beginning of a range, at least as many as are asked for."""
        leaves = await self._directory()
        low = max(select.prefix.encode(), b"" if select.after is None else select.after.encode())
        first = bisect_right([leaf.key.encode() for leaf in leaves], low)
        leaves = leaves[max(0, first - 1) :]
        prefix = select.prefix.encode()
        leaves = leaves[:1] + [
            leaf for leaf in leaves[1:] if leaf.key.encode().startswith(prefix) or leaf.key.encode() < prefix
        ]
        if select.limit is None:
            return list(chain.from_iterable(await self._leaves(leaves)))
        found, size = list[Value](), 0
        while leaves and size <= select.limit:
            (leaf,) = await self._leaves([leaves.pop(0)])
            size += sum(_order(value).startswith(prefix) and _order(value) > low for value in leaf)
            found += leaf
        return found

    async def _full(self, values: Sequence[Value]) -> list[StateEntry]:
        """The same entries, with what lies elsewhere."""
        elsewhere = [value.body for value in values if value.body]
        read = iter(await self._shelf.available((body.name, body.parts) for body in elsewhere) if elsewhere else ())
        return [value.entry._replace(value=next(read)) if value.body else value.entry for value in values]

    # Changing

    async def change(self, write: Write) -> tuple[Document | None, list[str | None]]:
        """What the head is to hold after the write's operations, and the versions that they gave."""
        known = {value.entry.key: value for value in await self._named(op.key for op in write.state)}
        changes = heads.state_changes(write, {key: value.entry for key, value in known.items()})
        for value in known.values():
            if value.body:
                self._shelf.bury(value.body.name, value.body.parts)
        new = {key: None if entry is None else self._value(entry) for key, entry in changes.items()}
        count = self._document["count"] - len(known) + sum(value is not None for value in new.values())
        if self._document["directory"] is None:
            document = self._placed(_merged(self._inline(), new), count)
        else:
            document = await self._spread(new, count)
        return document, [entry and entry.version for entry in changes.values()]

    def _value(self, entry: StateEntry) -> Value:
        if len(entry.value) <= min(self._limits.body_bytes, 4 * self._limits.state_bytes):
            return Value(entry)
        name, parts = self._shelf.add(entry.value)
        return Value(entry._replace(value=b""), Body(name, parts, -1, len(entry.value)))

    def _placed(self, values: list[Value], count: int) -> Document | None:
        """All of the entries: in the head, or in their first leaves."""
        if not values:
            return None
        packed = pack_state(values)
        if len(packed) <= self._limits.state_bytes:
            return {"count": count, "in": packed, "directory": None}
        return self._listed(self._divided(values, ""), count)

    async def _spread(self, new: dict[str, Value | None], count: int) -> Document | None:
        """The changes brought to the leaves that they belong to."""
        leaves = await self._directory()
        by_place = dict[int, dict[str, Value | None]]()
        for key, value in new.items():
            by_place.setdefault(_place(leaves, key), {})[key] = value
        places = sorted(by_place)
        before = await self._leaves([leaves[place] for place in places])
        for place, values in reversed(list(zip(places, before, strict=True))):
            leaf = leaves[place]
            leaves[place : place + 1] = self._divided(_merged(values, by_place[place]), leaf.key)
            self._shelf.bury(leaf.name, leaf.parts)
        name, parts = self._document["directory"]
        self._shelf.bury(bytes.fromhex(name), parts)
        return self._listed(leaves, count) if leaves else None

    def _divided(self, values: list[Value], first: str) -> list[StateLeaf]:
        """New leaves of these entries; the first one begins at `first`, however great its first key is."""
        leaves, place = list[StateLeaf](), 0
        while place < len(values):
            size, end = 0, place
            while end < len(values) and end - place < LEAF_ENTRIES:
                size += len(values[end].entry.value) + len(values[end].entry.key) + 60
                if end > place and size > 8 * self._limits.state_bytes:
                    break
                end += 1
            key = values[place].entry.key if leaves else first
            leaves.append(StateLeaf(key, *self._shelf.add(pack_state(values[place:end]))))
            place = end
        return leaves

    def _listed(self, leaves: list[StateLeaf], count: int) -> Document:
        name, parts = self._shelf.add(pack_directory([leaves[0]._replace(key=""), *leaves[1:]]))
        return {"count": count, "in": None, "directory": [name.hex(), parts]}


def _place(leaves: Sequence[StateLeaf], key: str) -> int:
    """Which of the leaves a key belongs to."""
    return bisect_right(leaves, key.encode(), key=lambda leaf: leaf.key.encode()) - 1


def _merged(values: Iterable[Value], changes: dict[str, Any]) -> list[Value]:
    """The entries after the changes, in the byte order of their keys."""
    kept = {value.entry.key: value for value in values} | changes
    return sorted((value for value in kept.values() if value is not None), key=_order)
