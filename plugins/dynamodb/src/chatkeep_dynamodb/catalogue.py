"""Which sessions there are: the catalogue, which is strongly consistent.

An entry of the catalogue is there before its session begins, and outlives it. It has keys alone, in which eight bytes
stand for each field of the scope, so that what is below a scope lies side by side; the names stand in heads alone. The
catalogue is spread over `ENTRY_SHARDS` partitions, since one partition takes a thousand writes a second.
"""

from __future__ import annotations

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
    path_of,
    read_head,
)

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
    """The catalogue of one table. `clock` says the time by the service's."""

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
        prefix = prefix_of(scope, below=below)
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
            elif within(head["scope"], scope, prefix) and (after is None or entry.id != after[0]):
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

    async def below(self, scope: str) -> list[tuple[bytes, bytes]]:
        """What stands for each scope, the given one and those below it, beside the id of each of its sessions."""
        prefix = prefix_of(scope, below=True)
        found = list[tuple[bytes, bytes]]()

        async def look(shard: int) -> None:
            values = {":p": {"B": ENTRY + bytes([shard])}, ":s": {"B": prefix}}
            condition = "pk = :p AND begins_with(sk, :s)" if prefix else "pk = :p"
            asked = values if prefix else {":p": values[":p"]}
            found.extend(await self._calls.query(condition, asked, lambda item: _read_entry(item)[:2]))

        await together([partial(look, shard) for shard in range(ENTRY_SHARDS)])
        return found


def prefix_of(scope: str, *, below: bool) -> bytes:
    """What the keys of a scope's entries begin with, and if asked for, of those below it."""
    path = path_of(scope)
    return path[: FIELD_BYTES * depth_of(scope)] if below else path


def _place(id: bytes, head: Document) -> tuple[int, bytes]:
    """Where in the catalogue the entry of a head is: its shard and its sort key."""
    return id[0] % ENTRY_SHARDS, (head["path"] if "path" in head else path_of(head["scope"])) + id


def within(address: str, scope: str, prefix: bytes | None) -> bool:
    """Whether a scope is the other, or where there is a prefix, lies below it."""
    return address == scope if prefix is None else path_of(address).startswith(prefix)
