"""What the document algorithm asks of a database, asked of DynamoDB: one table, no transaction, no scan.

A session's head, its parts, hints for message ids and marks of parts that nobody has confirmed yet share one partition
key, the session's 20 bytes. Every commit is one conditional update of the head. Reads of the table are strongly
consistent; the indexes are asked for listings, service session ids and by sweeps alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from chatkeep.documents import GRACE, Change, Document, Limits, Part, PartName, View
from chatkeep.errors import StoreError
from chatkeep.records import Health

from . import table
from .calls import Answer, Calls, together
from .catalogue import Catalogue
from .clock import ServerClock
from .failures import DRIVER_ERRORS, translated
from .items import (
    DUE,
    HEAD,
    HINT,
    HINT_BYTES,
    MARK,
    PART,
    PENDING,
    SWEEP_SHARDS,
    Item,
    Update,
    expires,
    head_item,
    hint_key,
    key,
    mark_key,
    moment_key,
    packed,
    part_key,
    read_head,
    still,
    sweep_key,
    unpacked,
)
from .listing import Listing, Memory

LIMITS = Limits(
    inline_records=48,
    inline_bytes=8 * 1024,
    head_bytes=64 * 1024,
    leaf_records=64,
    leaf_bytes=64 * 1024,
    body_bytes=16 * 1024,
    part_bytes=360 * 1024,
    state_bytes=2 * 1024,
    refs=16,
    slack=0.5,
)
"""A write is paid for by the size of its item: heads are small, and no item comes near 400 KB."""
LASTING = 600.0
"""Seconds for which a catalogue entry stays longer than its session, at least."""


class DynamoDriver:
    """`connect` makes the calls, once. `name` is the URL."""

    driver_errors = DRIVER_ERRORS
    limits = LIMITS

    def __init__(
        self,
        connect: Callable[[ServerClock], Awaitable[Calls]],
        *,
        name: str,
        prepare: Callable[[Calls], Awaitable[None]] | None = None,
        ours: bool = True,
    ) -> None:
        self._connect = connect
        self._name = name
        self._prepare = prepare
        self._ours = ours
        self._calls: Calls | None = None
        self._ready = False
        self._clock = ServerClock()
        self._memory = Memory()

    def translate(self, error: Exception) -> StoreError:
        return translated(error, self._name)

    # Opening

    async def open(self) -> None:
        """Make the client, unless a former event loop has: a client and its threads are bound to none."""
        if self._calls is None:
            self._calls = await self._connect(self._clock)
        if self._ready:
            return
        if self._prepare is not None:
            await self._prepare(self._calls)
        await self._calls.make("get_item", lambda: {"Key": table.NOBODY}, lambda answer: None)
        self._ready = True

    async def close(self) -> None:
        calls, self._calls, self._ready = self._calls, None, False
        if calls is not None:
            await calls.end()
            if self._ours:
                calls.client.close()

    @property
    def calls(self) -> Calls:
        assert self._calls is not None
        return self._calls

    @property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self.calls, self.clock)

    @property
    def _listing(self) -> Listing:
        return Listing(self.calls, self._catalogue, self._memory, self.clock)

    def clock(self) -> float:
        return self._clock.time()

    async def pause(self, attempt: int) -> None:
        await asyncio.sleep(random.uniform(0, min(0.5, 0.005 * 2**attempt)))  # noqa: S311 - spreads the waiting ones

    async def all_of(self, calls: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        await together(calls)

    async def ping(self) -> Health:
        return Health("dynamodb", "DynamoDB", await table.looked_over(self.calls))

    # Heads

    async def find(self, id: bytes, view: View) -> Document | None:
        def read(answer: Answer) -> Document | None:
            return read_head(answer["Item"]) if "Item" in answer else None

        head = await self.calls.make("get_item", lambda: {"Key": key(id, HEAD), "ConsistentRead": True}, read)
        return None if head is None else await self._catalogue.with_lives(id, head)

    async def insert(self, id: bytes, head: Document) -> bool:
        async with self._entered(id, head):
            return await self.calls.change(
                "put_item", lambda: {"Item": head_item(id, head), "ConditionExpression": "attribute_not_exists(pk)"}
            )

    async def swap(self, id: bytes, version: bytes, change: Change) -> bool:
        document = change.document
        if change.sets is None and document["scope"] is not None:
            async with self._entered(id, document):
                return await self.calls.change("put_item", lambda: {"Item": head_item(id, document), **still(version)})
        if change.sets is not None and "reap" in change.sets:
            async with self._entered(id, document):
                return await self._update(id, version, change)
        return await self._update(id, version, change)

    async def _update(self, id: bytes, version: bytes, change: Change) -> bool:
        return await self.calls.change("update_item", lambda: Update(id, change).parameters(id, version))

    @asynccontextmanager
    async def _entered(self, id: bytes, head: Document) -> AsyncIterator[None]:
        """Have the catalogue know of a head before it is there, and for longer."""
        began = self.clock()
        await self._enter(id, head)
        try:
            yield
        finally:
            # A machine that was frozen meanwhile, as AWS Lambda's are, may find the entry forgotten.
            if self.clock() - began > GRACE / 2:
                await self._enter(id, head)

    async def _enter(self, id: bytes, head: Document) -> None:
        reap = head["reap"]
        until = None if reap is None else reap + max(LASTING, reap - self.clock())
        await self._catalogue.enter(id, head["scope"], until)

    async def remove(self, id: bytes, version: bytes) -> None:
        def read(answer: Answer) -> bytes | None:
            path: bytes | None = answer.get("Attributes", {}).get("path", {}).get("B")
            return path

        def parameters() -> dict[str, Any]:
            return {"Key": key(id, HEAD), "ReturnValues": "ALL_OLD", **still(version)}

        path = await self.calls.make_unless_unmet("delete_item", parameters, read)
        if path is not None:
            await self._catalogue.take_out(id, path)

    # Parts

    async def put(self, id: bytes, life: str, parts: Sequence[Part], *, until: float | None) -> None:
        """Marks go first, so that no part is ever there that nobody can find; hints last."""
        more: Item = {"life": {"B": bytes.fromhex(life)}}
        if until is not None:
            more["expires"] = expires(until)
        mark = more | {
            "sweep": {"B": sweep_key(PENDING, id[2] % SWEEP_SHARDS)},
            "due": {"B": moment_key(self.clock())},
        }
        await self.calls.write([_put(mark_key(id, part.name) | mark) for part in parts])
        await self.calls.write([_put(item) for item in await self.calls.in_thread(lambda: _items(id, parts, more))])
        hints = [hint_key(id, digest, part.name) for part in parts for digest in part.digests]
        await self.calls.write([_put(hint | more) for hint in hints])

    async def get(self, id: bytes, names: Sequence[PartName]) -> Mapping[PartName, bytes]:
        if len(names) == 1:

            def read(answer: Answer) -> dict[PartName, bytes]:
                return {names[0]: unpacked(answer["Item"]["data"]["B"])} if "Item" in answer else {}

            return await self.calls.make(
                "get_item", lambda: {"Key": part_key(id, names[0]), "ConsistentRead": True}, read
            )

        def take(item: Item) -> tuple[PartName, bytes]:
            return item["sk"]["B"][len(PART) :], unpacked(item["data"]["B"])

        return dict(await self.calls.read([part_key(id, name) for name in names], take, only=("sk", "data")))

    async def drop(self, id: bytes, names: Sequence[PartName]) -> None:
        if not names:
            return

        def hints_of(item: Item) -> list[Item]:
            digests, name = item.get("ids", {"B": b""})["B"], item["sk"]["B"][len(PART) :]
            places = range(0, len(digests), HINT_BYTES)
            return [hint_key(id, digests[place : place + HINT_BYTES], name) for place in places]

        hints = await self.calls.read([part_key(id, name) for name in names], hints_of, only=("sk", "ids"))
        await self.calls.delete([hint for each in hints for hint in each])
        await self.calls.delete([part_key(id, name) for name in names])
        await self.calls.delete([mark_key(id, name) for name in names])

    async def drop_life(self, id: bytes, life: str) -> None:
        for kind in (HINT, PART, MARK):  # a mark goes last: until then, it can be found
            await self.calls.delete(await self._of(id, kind, life))

    async def extend(self, id: bytes, life: str, until: float | None) -> None:
        names, values = {"#e": "expires"}, {} if until is None else {":e": expires(until)}

        async def extend(one: Item) -> None:
            asked: dict[str, Any] = {
                "Key": one,
                "UpdateExpression": "REMOVE #e" if until is None else "SET #e = :e",
                # Another writer may have kept it for longer meanwhile, or for ever.
                "ConditionExpression": "attribute_exists(pk)" if until is None else "#e < :e",
                "ExpressionAttributeNames": names,
            }
            if values:
                asked["ExpressionAttributeValues"] = values
            await self.calls.make_unless_unmet("update_item", lambda: asked, lambda answer: None)

        for kind in (MARK, PART, HINT):
            await together([partial(extend, one) for one in await self._of(id, kind, life)])

    async def _of(self, id: bytes, kind: bytes, life: str) -> list[Item]:
        """The keys of all items of this kind and life."""
        values = {":p": {"B": id}, ":k": {"B": kind}, ":l": {"B": bytes.fromhex(life)}}
        names, only = {"#l": "life"}, "pk, sk"
        return await self.calls.query(
            "pk = :p AND begins_with(sk, :k)",
            values,
            lambda item: item,
            FilterExpression="#l = :l",
            ExpressionAttributeNames=names,
            ProjectionExpression=only,
        )

    async def holding(self, id: bytes, digests: Sequence[bytes]) -> Sequence[PartName]:
        found = list[PartName]()

        async def look(digest: bytes) -> None:
            hint = HINT + digest[:HINT_BYTES]
            condition, values = "pk = :p AND begins_with(sk, :h)", {":p": {"B": id}, ":h": {"B": hint}}
            found.extend(await self.calls.query(condition, values, lambda item: item["sk"]["B"][len(hint) :]))

        await together([partial(look, digest) for digest in digests])
        return found

    # Many sessions

    async def listed(
        self, scope: str, *, below: str | None, service: str | None, after: tuple[float, str, str] | None, limit: int
    ) -> Sequence[Document]:
        if service is not None:
            return await self._listing.served(scope, below=below is not None, service=service, after=after, limit=limit)
        return await self._listing.listed(scope, below=below is not None, after=after, limit=limit)

    async def scoped(
        self, scope: str, *, below: str | None, after: tuple[bytes, Document] | None, limit: int
    ) -> Sequence[tuple[bytes, Document]]:
        return await self._catalogue.scoped(scope, below=below is not None, after=after, limit=limit)

    async def due(self, now: float, limit: int) -> Sequence[tuple[bytes, Document]]:
        ids = [id for id, _ in await self._swept(DUE, now, limit)]
        heads = await self._catalogue.heads(ids, whole=True)
        return [
            (id, head)
            for id, head in heads.items()
            if "due" not in head or (head["due"] is not None and head["due"] <= now)
        ]

    async def pending(self, before: float, limit: int) -> Sequence[tuple[bytes, PartName]]:
        return [(id, sort[len(MARK) :]) for id, sort in await self._swept(PENDING, before, limit)]

    async def _swept(self, kind: bytes, until: float, limit: int) -> list[tuple[bytes, bytes]]:
        """Partition and sort keys of what is due or pending, up to so many, of the longest time first in each shard."""
        if limit < 1:
            return []
        found = list[tuple[bytes, bytes]]()
        shards = random.sample(range(SWEEP_SHARDS), SWEEP_SHARDS)  # none is always the one that comes too short
        for shard in shards:
            values = {":s": {"B": sweep_key(kind, shard)}, ":d": {"B": moment_key(until)}}
            start: Item | None = None
            while len(found) < limit:
                page, start = await self.calls.page(
                    "#s = :s AND #d <= :d",
                    values,
                    lambda item: (item["pk"]["B"], item["sk"]["B"]),
                    start=start,
                    IndexName="chatkeep_sweep",
                    ExpressionAttributeNames={"#s": "sweep", "#d": "due"},
                    Limit=limit - len(found),
                )
                found += page
                if start is None:
                    break
        return found

    async def settle(self, id: bytes, names: Sequence[PartName]) -> None:
        await self.calls.delete([mark_key(id, name) for name in names])


def _put(item: Item) -> Item:
    return {"PutRequest": {"Item": item}}


def _items(id: bytes, parts: Iterable[Part], more: Item) -> list[Item]:
    items = list[Item]()
    for name, data, digests in parts:
        item = part_key(id, name) | more | {"data": {"B": packed(data)}}
        if digests:
            item["ids"] = {"B": b"".join(digest[:HINT_BYTES] for digest in digests)}
        items.append(item)
    return items
