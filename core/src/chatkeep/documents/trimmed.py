"""The ids of messages that were trimmed and are still known: the newest in the head, the others in a part."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from chatkeep.records import Record

from .driver import Document
from .packing import DamagedError
from .shelf import Shelf

_TRIMMED = struct.Struct(">16sQ")
"""A trimmed id: its digest, and the seq that its message had."""
MERGED = 64
"""How many trimmed ids the head holds before they are put to the others, in a part."""


class Trimmed:
    """The ids that were trimmed and are still known, in order of seq."""

    def __init__(self, shelf: Shelf, log: str, document: Document | None) -> None:
        self._shelf = shelf
        self._log = log
        stored = document or {"part": None, "size": 0, "skip": 0, "new": b""}
        self._part: list[Any] | None = stored["part"]
        self._size: int = stored["size"]
        self._skip: int = stored["skip"]
        """How many at the beginning of the part are forgotten."""
        self._new: bytes = stored["new"]

    @property
    def count(self) -> int:
        return self._size - self._skip + len(self._new) // _TRIMMED.size

    async def _old(self) -> bytes:
        """What of the part is still known."""
        if self._part is None:
            return b""
        name, parts = self._part
        (data,) = await self._shelf.contents([(bytes.fromhex(name), parts)])
        if len(data) != self._size * _TRIMMED.size:
            raise DamagedError("the ids that were trimmed are damaged in the database: their part has another length")
        return data[self._skip * _TRIMMED.size :]

    async def find(self, ids: Iterable[str]) -> dict[str, int]:
        """The seqs of those of the ids that are known."""
        if not self.count:
            return {}
        known = dict(_TRIMMED.iter_unpack(await self._old() + self._new))
        digests = {id: self._shelf.digest(self._log, id) for id in ids}
        return {id: known[digest] for id, digest in digests.items() if digest in known}

    def add(self, records: Iterable[Record]) -> None:
        """Records that have been trimmed, in order of seq."""
        self._new += b"".join(
            _TRIMMED.pack(self._shelf.digest(self._log, record.id), record.seq) for record in records if record.id
        )

    async def settle(self, keep: int) -> None:
        """Forget the oldest but `keep`, and put what is new into the part where it has become much."""
        surplus = self.count - keep
        if surplus > 0:
            from_part = min(surplus, self._size - self._skip)
            self._skip += from_part
            self._new = self._new[(surplus - from_part) * _TRIMMED.size :]
        if self._part is not None and self._skip == self._size:
            self._give_up()
        if len(self._new) > MERGED * _TRIMMED.size:
            data = await self._old() + self._new
            self._give_up()
            name, parts = self._shelf.add(data)
            self._part, self._size, self._new = [name.hex(), parts], len(data) // _TRIMMED.size, b""

    def _give_up(self) -> None:
        if self._part is not None:
            self._shelf.bury(bytes.fromhex(self._part[0]), self._part[1])
        self._part, self._size, self._skip = None, 0, 0

    def document(self) -> Document | None:
        """As a head holds it."""
        if not self.count and self._part is None:
            return None
        return {"part": self._part, "size": self._size, "skip": self._skip, "new": self._new}
