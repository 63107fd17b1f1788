"""Sessions in the order of their last writes: an index that may lag, and for what lies below a scope, their heads.

The index has a partition for each scope that is one user's, and `LISTING_SHARDS` for any other, since one partition
takes a thousand writes a second. Below a scope there may be as many scopes as sessions: then their heads are read, and
once for a whole listing, however many pages it has.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from chatkeep.documents import Document

from .calls import READ_AT_ONCE, Calls, together
from .catalogue import Catalogue, prefix_of, within
from .items import EXACT, Item, listing_key, listing_shards, newest_first, path_of, rank, service_key

logger = logging.getLogger("chatkeep.dynamodb")

Order = tuple[float, str, str]
AT_ONCE = 16 * READ_AT_ONCE
"""How many heads are in memory at once where all are looked through."""
SETTLED = 50.0 + EXACT
"""Seconds after which a write is in no listing's way any more, however slow it was."""
KEPT_FOR = 600.0
MOST_KEPT, MOST_PLACES = 8, 100_000


class Below(NamedTuple):
    """What lies below a scope, as it was found at a moment."""

    moment: float
    paths: Sequence[bytes]
    places: Sequence[tuple[Order, bytes]] | None
    """Every session's place in the order, and its id, in this order; None: the index says it more cheaply."""


class Memory:
    """What was found below scopes lately.

    It serves for pages that begin so far back that no session behind has been written since: a write moves a session
    to the front. The heads of a page are read anew.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[str, Below] = OrderedDict()

    def of(self, scope: str, after: Order | None, now: float) -> Below | None:
        """What is known of a page that begins behind `after`."""
        found = self._found.get(scope)
        if after is None or found is None or not found.moment <= now < found.moment + KEPT_FOR:
            return None
        return found if -after[0] <= found.moment - SETTLED else None

    def keep(self, scope: str, found: Below) -> None:
        self._found.pop(scope, None)
        if len(found.places or found.paths) <= MOST_PLACES:
            self._found[scope] = found
        if len(self._found) > MOST_KEPT:
            self._found.popitem(last=False)


class Listing:
    """The listings of one table."""

    def __init__(self, calls: Calls, catalogue: Catalogue, memory: Memory, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._catalogue = catalogue
        self._memory = memory
        self._clock = clock

    async def listed(self, scope: str, *, below: bool, after: Order | None, limit: int) -> list[Document]:
        """Heads of sessions, last written first."""
        if not below:
            return await self._from_index(scope, [path_of(scope)], None, after, limit)
        now, prefix = self._clock(), prefix_of(scope, below=True)
        found = self._memory.of(scope, after, now)
        if found is None:
            entries = await self._catalogue.below(scope)
            paths = sorted({path for path, _ in entries})
            if len(entries) <= max(READ_AT_ONCE, 2 * sum(map(listing_shards, paths))):
                page, places = await self._from_heads(scope, [id for _, id in entries], prefix, after, limit)
                self._memory.keep(scope, Below(now, paths, places))
                return page
            found = Below(now, paths, None)
            self._memory.keep(scope, found)
        if found.places is None:
            return await self._from_index(scope, found.paths, prefix, after, limit)
        return await self._from_places(scope, found.places, prefix, after, limit)

    async def _from_index(
        self, scope: str, paths: Sequence[bytes], prefix: bytes | None, after: Order | None, limit: int
    ) -> list[Document]:
        streams = [
            _Stream(self._calls, listing_key(path, shard), after)
            for path in paths
            for shard in range(listing_shards(path))
        ]
        found = list[Document]()
        while len(found) < limit:
            keys = await _first_of(streams, limit - len(found) + 1)
            if not keys:
                break
            heads = await self._catalogue.heads([id for _, id in keys])
            fitting = [head for head in heads.values() if _fits(head, scope, prefix, after)]
            found += [head for head in fitting if not any(head["version"] == each["version"] for each in found)]
        return sorted(found, key=_order)[:limit]

    async def _from_heads(
        self, scope: str, ids: Sequence[bytes], prefix: bytes, after: Order | None, limit: int
    ) -> tuple[list[Document], list[tuple[Order, bytes]]]:
        """A page out of all of these sessions, and the places of all."""
        first, places = list[Document](), list[tuple[Order, bytes]]()
        for begin in range(0, len(ids), AT_ONCE):
            heads = await self._catalogue.heads(ids[begin : begin + AT_ONCE])
            there = {id: head for id, head in heads.items() if _fits(head, scope, prefix, None)}
            places += [(_order(head), id) for id, head in there.items()]
            first += [head for head in there.values() if _fits(head, scope, prefix, after)]
            first = heapq.nsmallest(limit, first, key=_order)
        return first, sorted(places)

    async def _from_places(
        self, scope: str, places: Sequence[tuple[Order, bytes]], prefix: bytes, after: Order | None, limit: int
    ) -> list[Document]:
        found = list[Document]()
        begin = 0 if after is None else bisect_right(places, (-rank(-after[0]), *after[1:]), key=lambda each: each[0])
        while len(found) < limit and begin < len(places):
            need = limit - len(found)
            heads = await self._catalogue.heads([id for _, id in places[begin : begin + need]])
            found += [head for head in heads.values() if _fits(head, scope, prefix, after)]
            begin += need
        return sorted(found, key=_order)

    async def served(self, scope: str, *, below: bool, service: str, after: Order | None, limit: int) -> list[Document]:
        """Heads of sessions, last written first, of those with this service session id."""
        prefix = prefix_of(scope, below=True) if below else None
        values, names = {":s": {"B": service_key(service)}}, {"#s": "service"}
        found = await self._calls.query(
            "#s = :s",
            values,
            lambda item: item["pk"]["B"],
            IndexName="chatkeep_service",
            ExpressionAttributeNames=names,
        )
        heads = (await self._catalogue.heads(found)).values()
        fitting = [head for head in heads if head.get("service") == service and _fits(head, scope, prefix, after)]
        return sorted(fitting, key=_order)[:limit]


def _order(head: Document) -> Order:
    return -rank(head["updated"]), head["session"], head["scope"]


def _fits(head: Document, scope: str, prefix: bytes | None, after: Order | None) -> bool:
    if "scope" not in head:
        logger.warning("a session is left out of a listing: its head is damaged, or of a later version of chatkeep")
        return False
    return (
        head["scope"] is not None
        and bool(head["session"])
        and within(head["scope"], scope, prefix)
        and (after is None or _order(head) > (-rank(-after[0]), *after[1:]))
    )


class _Stream:
    """The keys of one partition of the listing, in its order, fetched as they are needed."""

    def __init__(self, calls: Calls, partition: bytes, after: Order | None) -> None:
        self._calls = calls
        self._condition, self._values = "#l = :l", {":l": {"B": partition}}
        self._names = {"#l": "listing"}
        if after is not None:
            self._condition += " AND #w >= :w"
            self._names["#w"] = "written"
            self._values[":w"] = {"B": newest_first(-after[0], after[1])}
        self._start: Item | None = None
        self.whole = False
        self.keys: list[tuple[bytes, bytes]] = []
        """What was fetched and not taken: the place in the order, and the id."""

    async def fetch(self, need: int) -> None:
        """Have so many keys, if there are."""
        while len(self.keys) < need and not self.whole:
            page, self._start = await self._calls.page(
                self._condition,
                self._values,
                lambda item: (item["written"]["B"], item["pk"]["B"]),
                start=self._start,
                IndexName="chatkeep_listing",
                ExpressionAttributeNames=self._names,
                Limit=need,
            )
            self.keys += page
            self.whole = self._start is None


async def _first_of(streams: Sequence[_Stream], need: int) -> list[tuple[bytes, bytes]]:
    """Take the first keys of all streams together: so many if there are, and all that stand beside the last."""
    await together([partial(stream.fetch, need + 1) for stream in streams if not stream.whole])
    every = sorted(key for stream in streams for key in stream.keys)
    if not every:
        return []
    last = every[min(need, len(every)) - 1][0]
    for stream in streams:  # one of several with the same place may not have been fetched yet
        while not stream.whole and stream.keys and stream.keys[-1][0] <= last:
            await stream.fetch(len(stream.keys) + need)
    taken = sorted(key for stream in streams for key in stream.keys if key[0] <= last)
    for stream in streams:
        stream.keys = [key for key in stream.keys if key[0] > last]
    return taken
