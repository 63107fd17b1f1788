"""A driver on dicts: the model of one, on which the algorithm is tested without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from chatkeep.errors import StoreError
from chatkeep.records import Health

from .driver import Change, Document, Limits, Part, PartName, View


class Kept(NamedTuple):
    """A part as it is stored."""

    life: str
    data: bytes
    digests: tuple[bytes, ...]
    until: float | None
    put: float
    settled: bool = False


class Documents:
    """What is stored. Several drivers may share one, as processes share a database."""

    def __init__(self) -> None:
        self.heads: dict[bytes, Document] = {}
        self.parts: dict[tuple[bytes, PartName], Kept] = {}


def changed(head: Document, change: Change) -> Document:
    """The head after the change, made from the difference where there is one."""
    if change.sets is None:
        return change.document
    made: Document = _copied(head)
    for path, value in change.sets.items():
        place, name = _at(made, path)
        place[name] = value
    for path, values in change.pushes.items():
        place, name = _at(made, path)
        place[name] = [*place[name], *values]
    return made


def _at(document: Document, path: str) -> tuple[Any, Any]:
    *steps, name = path.split(".")
    place: Any = document
    for step in steps:
        place = place[int(step) if isinstance(place, list) else step]
    return place, name


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


class InMemoryDriver:
    """One client of `documents`. `step` is awaited around every operation: what happens there happens meanwhile."""

    driver_errors: tuple[type[Exception], ...] = ()

    def __init__(self, documents: Documents | None = None, *, limits: Limits | None = None) -> None:
        self.documents = documents or Documents()
        self.limits = limits or Limits()
        self.clock: Callable[[], float] = time.time

    async def step(self, name: str) -> None:
        await asyncio.sleep(0)

    async def _do(self, name: str, act: Callable[[], Any]) -> Any:
        await self.step(name)
        return act()

    def translate(self, error: Exception) -> StoreError:
        return StoreError(str(error))

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def ping(self) -> Health:
        return Health("documents", "this process", {})

    async def pause(self, attempt: int) -> None:
        await self.step("pause")

    async def all_of(self, calls: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        for call in calls:
            await call()

    # Heads

    async def find(self, id: bytes, view: View) -> Document | None:
        found: Document | None = await self._do("find", lambda: self.documents.heads.get(id))
        return None if found is None else dict(found)

    async def insert(self, id: bytes, head: Document) -> bool:
        return bool(await self._do("insert", lambda: self._insert(id, head)))

    def _insert(self, id: bytes, head: Document) -> bool:
        if id in self.documents.heads:
            return False
        self.documents.heads[id] = _copied(head)
        return True

    async def swap(self, id: bytes, version: bytes, change: Change) -> bool:
        return bool(await self._do("swap", lambda: self._swap(id, version, change)))

    def _swap(self, id: bytes, version: bytes, change: Change) -> bool:
        head = self.documents.heads.get(id)
        if head is None or head["version"] != version:
            return False
        made = changed(head, change)
        assert made == change.document, "the difference says something else than the whole"
        self.documents.heads[id] = _copied(made)
        return True

    async def remove(self, id: bytes, version: bytes) -> None:
        await self._do("remove", lambda: self._remove(id, version))

    def _remove(self, id: bytes, version: bytes) -> None:
        if (head := self.documents.heads.get(id)) is not None and head["version"] == version:
            del self.documents.heads[id]

    # Parts

    async def put(self, id: bytes, life: str, parts: Sequence[Part], *, until: float | None) -> None:
        await self._do("put", lambda: self._put(id, life, parts, until))

    def _put(self, id: bytes, life: str, parts: Sequence[Part], until: float | None) -> None:
        for part in parts:
            assert (id, part.name) not in self.documents.parts, "a name was used twice"
            assert len(part.data) <= self.limits.part_bytes
            kept = Kept(life, part.data, tuple(part.digests), until, self.clock())
            self.documents.parts[id, part.name] = kept

    async def get(self, id: bytes, names: Sequence[PartName]) -> Mapping[PartName, bytes]:
        def look() -> dict[PartName, bytes]:
            parts = self.documents.parts
            return {name: parts[id, name].data for name in names if (id, name) in parts}

        found: dict[PartName, bytes] = await self._do("get", look)
        return found

    async def drop(self, id: bytes, names: Sequence[PartName]) -> None:
        await self._do("drop", lambda: [self.documents.parts.pop((id, name), None) for name in names])

    async def drop_life(self, id: bytes, life: str) -> None:
        await self._do("drop_life", lambda: [self.documents.parts.pop(key) for key in self._of(id, life)])

    async def extend(self, id: bytes, life: str, until: float | None) -> None:
        def extend() -> None:
            parts = self.documents.parts
            for key in self._of(id, life):
                known = parts[key].until
                if known is not None and (until is None or until > known):
                    parts[key] = parts[key]._replace(until=until)

        await self._do("extend", extend)

    def _of(self, id: bytes, life: str) -> list[tuple[bytes, PartName]]:
        return [key for key, kept in self.documents.parts.items() if key[0] == id and kept.life == life]

    async def holding(self, id: bytes, digests: Sequence[bytes]) -> Sequence[PartName]:
        def look() -> list[PartName]:
            found = self.documents.parts.items()
            return [name for (owner, name), kept in found if owner == id and not {*digests}.isdisjoint(kept.digests)]

        names: list[PartName] = await self._do("holding", look)
        return names

    # Many sessions

    def _scoped(self, scope: str, below: str | None) -> list[tuple[bytes, Document]]:
        heads = self.documents.heads.items()
        there = [(id, head) for id, head in heads if head["scope"] is not None]
        return [
            (id, head)
            for id, head in there
            if (head["scope"] == scope if below is None else head["scope"].startswith(below))
        ]

    async def listed(
        self, scope: str, *, below: str | None, service: str | None, after: tuple[float, str, str] | None, limit: int
    ) -> Sequence[Document]:
        def look() -> list[Document]:
            found = [head for _, head in self._scoped(scope, below) if head["session"]]
            placed = [((-head["updated"], head["session"], head["scope"]), head) for head in found]
            chosen = [each for each in placed if service is None or each[1]["service"] == service]
            behind = [each for each in chosen if after is None or each[0] > after]
            return [head for _, head in sorted(behind, key=lambda each: each[0])][:limit]

        heads: list[Document] = await self._do("listed", look)
        return heads

    async def scoped(
        self, scope: str, *, below: str | None, after: tuple[bytes, Document] | None, limit: int
    ) -> Sequence[tuple[bytes, Document]]:
        def look() -> list[tuple[bytes, Document]]:
            found = sorted(self._scoped(scope, below), key=lambda each: each[0])
            return [each for each in found if after is None or each[0] > after[0]][:limit]

        heads: list[tuple[bytes, Document]] = await self._do("scoped", look)
        return heads

    async def due(self, now: float, limit: int) -> Sequence[tuple[bytes, Document]]:
        def look() -> list[tuple[bytes, Document]]:
            heads = self.documents.heads.items()
            return [(id, head) for id, head in heads if head["due"] is not None and head["due"] <= now][:limit]

        found: list[tuple[bytes, Document]] = await self._do("due", look)
        return found

    async def pending(self, before: float, limit: int) -> Sequence[tuple[bytes, PartName]]:
        def look() -> list[tuple[bytes, PartName]]:
            return [key for key, kept in self.documents.parts.items() if not kept.settled and kept.put < before][:limit]

        found: list[tuple[bytes, PartName]] = await self._do("pending", look)
        return found

    async def settle(self, id: bytes, names: Sequence[PartName]) -> None:
        def settle() -> None:
            parts = self.documents.parts
            parts.update({(id, name): parts[id, name]._replace(settled=True) for name in names if (id, name) in parts})

        await self._do("settle", settle)
