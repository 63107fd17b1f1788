"""Which sessions there are: the catalogue of each scope, and the list of scopes.

Both lie in places of their own in a cluster, so that no script has them and a session at once. What holds all the same:

* A session is in the catalogue, and its scope in the list, before its life begins and when its beginning is
  acknowledged: it is put there before, and once more after, first in the catalogue and then in the list. Whoever dies
  in between leaves an entry of nothing.
* An entry is taken out by whoever has seen that the session is not there, and only if it was not renewed since.
* A scope is taken out of the list by whoever has seen that nothing is in it, and only if nothing was begun in it since
  a time before that look. Every time is compared with times of the same node alone: each has a clock of its own.
* An entry has the time of the last write, exact to `EXACT` seconds: whoever writes renews it so often.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from chatkeep.records import Key, Scope

from .keys import Keys
from .scripts import CATALOGUE
from .stored import SECOND, text_of

EXACT = 20.0
"""For so many seconds, an entry that we have renewed need not be renewed again."""
MOST_KNOWN = 10_000
PAGE = 100
SCOPES = 1000
FIRST = (float("-inf"), "", "")
"""The place in front of all entries."""
OLD = 60 * SECOND
"""An entry without a session that is so old belongs to no session that is just about to begin."""
TIDY_EVERY, TIDY = 16, 32
"""Whoever begins so many sessions looks whether so many of the oldest entries still have theirs."""

Ask = Callable[..., asyncio.Future[Any]]


class Entry(NamedTuple):
    """A session in a catalogue; smaller ones come first in a listing."""

    place: float
    """The negative of the last write's time."""
    id: str
    address: str
    key: Key

    @property
    def updated(self) -> int:
        return -int(self.place)


class Catalogue:
    """All catalogues. `ask` has a script run: ``ask(script, keys, args, writes=…)``."""

    def __init__(self, keys: Keys, ask: Ask, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._ask = ask
        self._clock = clock
        self._known: dict[Key, tuple[str, float]] = {}
        self._begun = count(1)

    def is_exact(self, key: Key, life: str | None = None) -> bool:
        """Whether the session's entry was renewed here lately, in that life."""
        known = self._known.get(key)
        return known is not None and self._clock() - known[1] < EXACT and life in (None, known[0])

    def note(self, key: Key, life: str) -> None:
        """The session's entry was renewed just now."""
        self._known.pop(key, None)
        self._known[key] = (life, self._clock())
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    def renew(self, key: Key, *, known: bool = True) -> asyncio.Future[Any]:
        """Put the session first in its catalogue; if `known`, only where it is in it."""
        args = ("add", key.session.encode(), "known" if known else "")
        return self._ask(CATALOGUE, (self._keys.catalogue(key.scope),), args, writes=True)

    async def enter(self, key: Key) -> None:
        """Put a session that begins in its catalogue, and then its scope in the list.

        In this order: who has found the catalogue empty before takes the scope out only if this does not come after.
        """
        if key.session:
            await self.renew(key, known=False)
        address = key.scope.address.encode()
        await self._ask(CATALOGUE, self._keys.scopes, ("enter", address), writes=True)

    async def drop(self, scope: Scope, sessions: Iterable[str], until: int) -> tuple[int, int]:
        """Take out entries that were not renewed after an instant; the time, and how many entries are left."""
        args = ("drop", until, *(session.encode() for session in sessions))
        now, left = await self._ask(CATALOGUE, (self._keys.catalogue(scope),), args, writes=True)
        return int(now), int(left)

    async def leave(self, scope: Scope, until: int) -> None:
        """Take a scope out of the list, if nothing was begun in it after an instant by the clock of `time`."""
        args = ("leave", until, scope.address.encode())
        await self._ask(CATALOGUE, self._keys.scopes, args, writes=True)

    def tidies(self) -> bool:
        """Whether it is our turn to look after old entries."""
        return next(self._begun) % TIDY_EVERY == 0

    async def oldest(self, scope: Scope, most: int, skip: int = 0) -> tuple[int, list[Entry]]:
        """The time, and the entries of the sessions that were not written for longest, but for so many of them."""
        now, found = await self._ask(CATALOGUE, (self._keys.catalogue(scope),), ("oldest", skip, skip + most - 1))
        return int(now), self._entries(scope, found)

    async def page(self, scope: Scope, place: float, most: int) -> tuple[int, list[Entry]]:
        """The time, and entries from a place on, that included."""
        where = "-inf" if place == float("-inf") else f"{place:.0f}"
        now, found = await self._ask(CATALOGUE, (self._keys.catalogue(scope),), ("page", where, most))
        return int(now), self._entries(scope, found)

    async def pages(self, scope: Scope, most: int) -> AsyncIterator[tuple[int, list[Entry]]]:
        """All entries, each once, some at a time and with the time at which those were read."""
        after, size = FIRST, most
        while True:
            now, found = await self.page(scope, after[0], size)
            behind = [entry for entry in found if entry[:3] > after]
            if behind:
                after = behind[-1][:3]
                yield now, behind
            if len(found) < size:
                return
            size = most if behind else 2 * size  # where so many were written in one instant

    def _entries(self, scope: Scope, found: Sequence[bytes]) -> list[Entry]:
        address = scope.address
        pairs = iter(found)
        names = ((text_of(session), float(place)) for session, place in zip(pairs, pairs, strict=True))
        return [Entry(place, session, address, Key(scope, session)) for session, place in names]

    async def time(self) -> int:
        """The time where the list of scopes is."""
        now, _ = await self._ask(CATALOGUE, self._keys.scopes, ("scopes", "-", "+", 0))
        return int(now)

    async def scopes(self, scope: Scope) -> AsyncIterator[Scope]:
        """The scopes in the list that are this one or lie below it."""
        if scope.depth == len(scope):
            yield scope
            return
        prefix = scope.prefix.encode()
        lower, upper = b"[" + prefix, b"(" + prefix + b"\xff"
        while True:
            args = ("scopes", lower, upper, SCOPES)
            _, found = await self._ask(CATALOGUE, self._keys.scopes, args)
            for address in found:
                yield scope_of(address)
            if len(found) < SCOPES:
                return
            lower = b"(" + found[-1]

    async def walk(self, scope: Scope, *, below: bool, after: tuple[float, str, str] | None) -> AsyncIterator[Entry]:
        """Entries in the order of a listing, behind a place in it."""
        scopes = [each async for each in self.scopes(scope)] if below else [scope]
        streams = [_Stream(self, each, after) for each in scopes]
        for start in range(0, len(streams), SCOPES):
            await asyncio.gather(*(stream.fill() for stream in streams[start : start + SCOPES]))
        heap = [(stream.first, number, stream) for number, stream in enumerate(streams) if stream.entries]
        heapq.heapify(heap)
        while heap:
            _, number, stream = heap[0]
            yield stream.entries.pop()
            if not stream.entries:
                await stream.fill()
            if stream.entries:
                heapq.heapreplace(heap, (stream.first, number, stream))
            else:
                heapq.heappop(heap)


class _Stream:
    """The entries of one catalogue, read in pages."""

    def __init__(self, catalogue: Catalogue, scope: Scope, after: tuple[float, str, str] | None) -> None:
        self.entries: list[Entry] = []
        """What was read and is still to come, the last first."""
        self._catalogue = catalogue
        self._scope = scope
        self._after = FIRST if after is None else after
        self._ended = False

    @property
    def first(self) -> Entry:
        return self.entries[-1]

    async def fill(self) -> None:
        """Read the next page, if there is one."""
        size = PAGE
        while not self.entries and not self._ended:
            _, found = await self._catalogue.page(self._scope, self._after[0], size)
            self._ended = len(found) < size
            self.entries = [entry for entry in reversed(found) if entry[:3] > self._after]
            size *= 2  # where so many were written in one instant
        if self.entries:
            self._after = self.entries[0][:3]


def scope_of(address: bytes) -> Scope:
    """The scope whose address it is."""
    return Scope(*json.loads(address))
