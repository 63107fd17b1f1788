"""Which sessions there are: the catalogue, which is strongly consistent, and the listing, an index that may lag.

An entry of the catalogue is there before its session begins, and outlives it. It has keys alone, in which eight bytes
stand for each field of the scope, so that what is below a scope lies side by side; the names stand in heads alone. The
catalogue is spread over `ENTRY_SHARDS` partitions, and the listing of a scope that is not one user's over
`LISTING_SHARDS`, since one partition takes a thousand writes a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from chatkeep.documents import GRACE, Document

from .calls import Answer, Calls, together
from .items import (
    ENTRY,
    ENTRY_SHARDS,
    HEAD,
    Item,
    depth_of,
    entry_key,
    expires,
    is_damaged,
    key,
    listing_key,
    listing_shards,
    newest_first,
    path_of,
    rank,
    read_head,
    service_key,
)

logger = logging.getLogger("chatkeep.dynamodb")

PATH_BYTES = 24
FIELD_BYTES = 8
ID_BYTES = 20
HEAD_ALONE = ("pk", "version", "head")
"""What a listing needs of a head's item."""


class Entry(NamedTuple):
    """An entry of the catalogue."""

    path: bytes
    id: bytes
    written: int
    """When it was last told that a session begins, in seconds."""


def _read_entry(item: Item) -> Entry:
    sort = item["sk"]["B"]
    return Entry(sort[:PATH_BYTES], sort[PATH_BYTES:], int(item["at"]["N"]))


def _done(_: Answer) -> bool:
    return True


def _read_id(item: Item) -> bytes:
    found: bytes = item["pk"]["B"]
    return found


class Catalogue:
    """The catalogue and the listing of one table. `clock` says the time by the service's."""

    def __init__(self, calls: Calls, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._clock = clock

    # Entries

    async def enter(self, id: bytes, scope: str, until: float | None) -> None:
        """Have an entry for a session that is about to begin, or about to be kept until then; None: for ever.

        An entry that stays longer goes on staying longer: the session may be another's who is quicker.
        """
        one, now = entry_key(id, path_of(scope)), {"N": str(int(self._clock()))}
        names, values = {"#at": "at", "#e": "expires"}, {":at": now}
        if until is None:
            await self._update(one, "SET #at = :at REMOVE #e", names, values)
            return
        later = {**values, ":e": expires(until)}
        longer = "attribute_not_exists(pk) OR (attribute_exists(#e) AND #e < :e)"
        while not await self._update(one, "SET #at = :at, #e = :e", names, later, longer):
            # If it has expired in this moment, it is begun anew.
            if await self._update(one, "SET #at = :at", {"#at": "at"}, values, "attribute_exists(pk)"):
                return

    async def _update(
        self, one: Item, change: str, names: dict[str, str], values: Item, condition: str | None = None
    ) -> bool:
        asked: dict[str, Any] = {
            "Key": one,
            "UpdateExpression": change,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }
        if condition is not None:
            asked["ConditionExpression"] = condition
        return bool(await self._calls.make_unless_unmet("update_item", lambda: asked, _done))

    async def take_out(self, id: bytes, path: bytes) -> None:
        """Take an entry out whose session is gone, unless one is about to begin."""
        asked = {
            "Key": entry_key(id, path),
            "ConditionExpression": "#at < :old",
            "ExpressionAttributeNames": {"#at": "at"},
            "ExpressionAttributeValues": {":old": {"N": str(int(self._clock() - GRACE))}},
        }
        await self._calls.make_unless_unmet("delete_item", lambda: asked, _done)

    async def scoped(
        self, scope: str, *, below: bool, after: tuple[bytes, Document] | None, limit: int
    ) -> list[tuple[bytes, Document]]:
        """Heads of the scope and, if asked for, of those below it, in the order of shards, scopes and ids."""
        prefix = _prefix(scope, below=below)
        found = list[tuple[bytes, Document]]()
        first = prefix or b"\0"  # no key is empty
        shard, sort = (0, first) if after is None else _place(*after)
        while shard < ENTRY_SHARDS and len(found) < limit:
            highest = prefix + b"\xff" * (PATH_BYTES + ID_BYTES - len(prefix))
            condition, values = "pk = :p AND sk BETWEEN :a AND :b", {":p": {"B": ENTRY + bytes([shard])}}
            values |= {":a": {"B": sort}, ":b": {"B": highest}}
            start, whole = None, False
            while len(found) < limit and not whole:
                entries, start = await self._calls.page(
                    condition, values, _read_entry, start=start, Limit=limit + 1 - len(found)
                )
                whole = start is None
                found += await self._heads(entries, scope, None if not below else prefix, after)
            shard, sort = shard + 1, first
        return found[:limit]

    async def _heads(
        self, entries: Sequence[Entry], scope: str, prefix: bytes | None, after: tuple[bytes, Document] | None
    ) -> list[tuple[bytes, Document]]:
        """The heads of these entries, in their order. Entries that have had no session for long are taken out."""
        heads = await self.heads([entry.id for entry in entries], whole=True)
        forgotten = int(self._clock() - GRACE)
        found = list[tuple[bytes, Document]]()
        for entry in entries:
            head = heads.get(entry.id)
            if head is not None and "scope" not in head:
                if after is None or entry.id != after[0]:
                    found.append((entry.id, {**head, "path": entry.path}))
            elif head is None or head["scope"] is None:
                if entry.written < forgotten and head is None:
                    await self.take_out(entry.id, entry.path)
            elif _within(head["scope"], scope, prefix) and (after is None or entry.id != after[0]):
                found.append((entry.id, head))
        return found

    async def heads(self, ids: Sequence[bytes], *, whole: bool = False) -> dict[bytes, Document]:
        """The heads that are there, as they are now, by their ids."""

        def read(item: Item) -> tuple[bytes, Document]:
            return _read_id(item), read_head(item)

        heads = dict(await self._calls.read([key(id, HEAD) for id in ids], read, only=() if whole else HEAD_ALONE))
        return {id: await self.with_lives(id, head) for id, head in heads.items()} if whole else heads

    async def with_lives(self, id: bytes, head: Document) -> Document:
        """The head; where it is damaged, with the lives that have left parts.

        Nobody writes to such a session: none of them is one that is just beginning.
        """
        if not is_damaged(head):
            return head
        found = await self._calls.query(
            "pk = :p",
            {":p": {"B": id}},
            lambda item: item["life"]["B"].hex(),
            FilterExpression="attribute_exists(#l)",
            ExpressionAttributeNames={"#l": "life"},
            ProjectionExpression="#l",
        )
        return {**head, "lives": sorted(set(found))}

    # Listing

    async def listed(
        self, scope: str, *, below: bool, after: tuple[float, str, str] | None, limit: int
    ) -> list[Document]:
        """Heads of sessions, last written first."""
        paths = [path_of(scope)] if not below else await self._paths(scope)
        streams = [
            _Stream(self._calls, listing_key(path, shard), after)
            for path in paths
            for shard in range(listing_shards(path))
        ]
        prefix = _prefix(scope, below=True) if below else None
        found = list[Document]()
        while len(found) < limit:
            keys = await _first_of(streams, limit - len(found) + 1)
            if not keys:
                break
            heads = await self.heads([id for _, id in keys])
            fitting = [head for head in heads.values() if _fits(head, scope, prefix, after)]
            found += [head for head in fitting if not any(head["version"] == each["version"] for each in found)]
        return sorted(found, key=_order)[:limit]

    async def served(
        self, scope: str, *, below: bool, service: str, after: tuple[float, str, str] | None, limit: int
    ) -> list[Document]:
        """The same, of those with this service session id."""
        prefix = _prefix(scope, below=True) if below else None
        values, names = {":s": {"B": service_key(service)}}, {"#s": "service"}
        found = await self._calls.query(
            "#s = :s", values, _read_id, IndexName="chatkeep_service", ExpressionAttributeNames=names
        )
        heads = (await self.heads(found)).values()
        fitting = [head for head in heads if head.get("service") == service and _fits(head, scope, prefix, after)]
        return sorted(fitting, key=_order)[:limit]

    async def _paths(self, scope: str) -> list[bytes]:
        """What stands for the scope and for those below it that have had sessions."""
        prefix = _prefix(scope, below=True)
        found = set[bytes]()

        async def look(shard: int) -> None:
            values = {":p": {"B": ENTRY + bytes([shard])}, ":s": {"B": prefix}}
            condition = "pk = :p AND begins_with(sk, :s)" if prefix else "pk = :p"
            asked = values if prefix else {":p": values[":p"]}
            found.update(await self._calls.query(condition, asked, lambda item: _read_entry(item).path))

        await together([partial(look, shard) for shard in range(ENTRY_SHARDS)])
        return sorted(found)


def _prefix(scope: str, *, below: bool) -> bytes:
    path = path_of(scope)
    return path[: FIELD_BYTES * depth_of(scope)] if below else path


def _place(id: bytes, head: Document) -> tuple[int, bytes]:
    """Where in the catalogue the entry of a head is: its shard and its sort key."""
    return id[0] % ENTRY_SHARDS, (head["path"] if "path" in head else path_of(head["scope"])) + id


def _within(address: str, scope: str, prefix: bytes | None) -> bool:
    return address == scope if prefix is None else path_of(address).startswith(prefix)


def _order(head: Document) -> tuple[float, str, str]:
    return -rank(head["updated"]), head["session"], head["scope"]


def _fits(head: Document, scope: str, prefix: bytes | None, after: tuple[float, str, str] | None) -> bool:
    if "scope" not in head:
        logger.warning("a session is left out of a listing: its head is damaged, or of a later version of chatkeep")
        return False
    return (
        head["scope"] is not None
        and bool(head["session"])
        and _within(head["scope"], scope, prefix)
        and (after is None or _order(head) > (-rank(-after[0]), *after[1:]))
    )


class _Stream:
    """The keys of one partition of the listing, in its order, fetched as they are needed."""

    def __init__(self, calls: Calls, partition: bytes, after: tuple[float, str, str] | None) -> None:
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
