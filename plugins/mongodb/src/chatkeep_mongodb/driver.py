"""What the document algorithm asks of a database, asked of MongoDB: one collection, no transaction.

A head has the session's 20 bytes as its ``_id``; a part has them with its name behind, so that a session's parts lie
side by side. Every statement is on ``_id`` or on one of `indexes`. Writes are acknowledged by a majority (a server that
stands alone: by its journal) unless the URL says otherwise.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from pymongo import ReadPreference, WriteConcern
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from chatkeep.documents import Change, Document, Limits, Part, PartName, UncertainError, View
from chatkeep.errors import ConfigError, StoreError
from chatkeep.records import Health

from . import indexes
from .failures import DRIVER_ERRORS, may_be_done, translated

ID_BYTES = 20
NAME_BYTES = 10
HIGHEST = "\U0010ffff"
"""Behind every address that begins with what stands before it."""
MARGIN = 60.0
"""Seconds by which the server is told later than needed that something may be deleted: clocks differ."""
SYNCHRONIZED_FOR = 60.0
"""Seconds for which the difference between the server's clock and ours is taken to stay the same."""
AT_ONCE = 16
"""How many sessions are removed at one time."""
NOT_LISTED = ("state", "logs.in", "logs.refs", "logs.batches", "logs.gone")
"""What no listing needs of a head."""


class Connected(Protocol):
    """A client that is there, of whichever driver."""

    collection: Any
    """Of the database, with the reader's own preferences."""

    async def close(self) -> None: ...


class MongoDriver:
    """`connect` makes the client anew for each event loop. `name` is the URL without its password."""

    driver_errors = DRIVER_ERRORS
    margin = MARGIN

    def __init__(self, connect: Callable[[], Awaitable[Connected]], *, name: str, make_indexes: bool) -> None:
        self.limits = Limits()
        self._connect = connect
        self._name = name
        self._make_indexes = make_indexes
        self._connected: Connected | None = None
        self._reader: Any = None
        self._writer: Any = None
        self._settled: Any = None
        self._elsewhere = False
        self._difference = 0.0
        self._synchronized = float("-inf")

    def translate(self, error: Exception) -> StoreError:
        return translated(error, self._name)  # type: ignore[return-value]

    # Opening

    async def open(self) -> None:
        self._connected = await self._connect()
        try:
            collection = self._connected.collection
            hello = await self._synchronize(collection)
            concern = collection.write_concern
            if not concern.acknowledged:
                raise ConfigError(
                    f"{self._name}: with w=0 nobody is told whether a write was made: take w=1 or majority"
                )
            if not concern.document:
                alone = "setName" not in hello and hello.get("msg") != "isdbgrid"
                concern = WriteConcern(w=1, j=True) if alone else WriteConcern(w="majority")
            primary = ReadPreference.PRIMARY
            self._elsewhere = collection.read_preference != primary
            self._reader = collection
            self._writer = collection.with_options(read_preference=primary, write_concern=concern)
            self._settled = self._writer.with_options(read_concern=ReadConcern("majority"))
            if self._make_indexes:
                await indexes.create(self._writer)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            await connected.close()

    async def _synchronize(self, collection: Any) -> Any:
        """Look at the server's clock; what it says of itself."""
        began = time.monotonic()
        hello = await collection.database.command("hello")
        ended = time.monotonic()
        if isinstance(there := hello.get("localTime"), datetime):
            self._difference = there.replace(tzinfo=UTC).timestamp() - (began + ended) / 2
        else:
            self._difference = time.time() - ended
        self._synchronized = ended
        return hello

    def clock(self) -> float:
        return time.monotonic() + self._difference

    async def pause(self, attempt: int) -> None:
        await asyncio.sleep(random.uniform(0, min(0.2, 0.001 * 2**attempt)))  # noqa: S311 - spreads the waiting ones

    async def all_of(self, calls: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        try:
            for place in range(0, len(calls), AT_ONCE):
                async with asyncio.TaskGroup() as group:
                    for call in calls[place : place + AT_ONCE]:
                        group.create_task(call())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def ping(self) -> Health:
        database = self._reader.database
        hello = await self._synchronize(self._reader)
        server = await database.command("buildInfo")
        found: dict[str, Any] = {
            "database": database.name,
            "collection": self._reader.name,
            "topology": hello.get("setName") or ("sharded" if hello.get("msg") == "isdbgrid" else "standalone"),
            "write_concern": dict(self._writer.write_concern.document),
        }
        if lacking := await indexes.missing(self._reader):
            found["missing_indexes"] = lacking
        return Health("mongodb", f"MongoDB {server['version']}", found)

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Tell what was not done from what may have been."""
        try:
            yield
        except PyMongoError as error:
            if may_be_done(error):
                raise UncertainError(str(error)) from error
            raise

    # Heads

    async def find(self, id: bytes, view: View) -> Document | None:
        if time.monotonic() - self._synchronized > SYNCHRONIZED_FOR:
            await self._synchronize(self._writer)
        collection = {"reader": self._reader, "writer": self._writer, "settled": self._settled}[view]
        found = await collection.find_one({"_id": id})
        return None if found is None else self._head(found)

    async def insert(self, id: bytes, head: Document) -> bool:
        async with self._changing():
            try:
                await self._writer.insert_one({"_id": id, **self._stored(head)})
            except DuplicateKeyError:
                return False
            return True

    async def swap(self, id: bytes, version: bytes, change: Change) -> bool:
        which = {"_id": id, "version": version}
        async with self._changing():
            if change.sets is None:
                result = await self._writer.replace_one(which, self._stored(change.document))
            else:
                update: dict[str, Any] = {"$set": self._stored(change.sets)}
                if change.pushes:
                    update["$push"] = {path: {"$each": list(values)} for path, values in change.pushes.items()}
                result = await self._writer.update_one(which, update)
            return bool(result.matched_count)

    async def remove(self, id: bytes, version: bytes) -> None:
        await self._writer.delete_one({"_id": id, "version": version})

    def _stored(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        reap = fields.get("reap")
        return {**fields, "reap": self._date(reap)} if reap is not None else dict(fields)

    def _head(self, found: dict[str, Any]) -> Document:
        """The head as the algorithm has stored it."""
        del found["_id"]
        if found.get("reap") is not None:
            found["reap"] = found["reap"].replace(tzinfo=UTC).timestamp() - self.margin
        return found

    def _date(self, moment: float) -> datetime:
        return datetime.fromtimestamp(moment + self.margin, UTC)

    # Parts

    async def put(self, id: bytes, life: str, parts: Sequence[Part], *, until: float | None) -> None:
        now, reap = self.clock(), None if until is None else self._date(until)
        documents = []
        for name, data, digests in parts:
            document: dict[str, Any] = {"_id": id + name, "life": life, "data": data, "pending": now}
            if reap is not None:
                document["reap"] = reap
            if digests:
                document["ids"] = list(digests)
            documents.append(document)
        await self._writer.insert_many(documents, ordered=False)

    async def get(self, id: bytes, names: Sequence[PartName]) -> Mapping[PartName, bytes]:
        found = await self._get(self._reader, id, names)
        if len(found) < len(names) and self._elsewhere:
            found |= await self._get(self._writer, id, [name for name in names if name not in found])
        return found

    async def _get(self, collection: Any, id: bytes, names: Sequence[PartName]) -> dict[PartName, bytes]:
        if len(names) == 1:
            part = await collection.find_one({"_id": id + names[0]}, {"data": True})
            return {} if part is None or type(part.get("data")) is not bytes else {names[0]: part["data"]}
        which = {"_id": {"$in": [id + name for name in names]}}
        found = await collection.find(which, {"data": True}, batch_size=len(names) + 1).to_list(None)
        return {part["_id"][ID_BYTES:]: part["data"] for part in found if type(part.get("data")) is bytes}

    async def drop(self, id: bytes, names: Sequence[PartName]) -> None:
        if names:
            await self._writer.delete_many({"_id": {"$in": [id + name for name in names]}})

    async def drop_life(self, id: bytes, life: str) -> None:
        await self._writer.delete_many(_parts_of(id, life))

    async def extend(self, id: bytes, life: str, until: float | None) -> None:
        which = _parts_of(id, life)
        if until is None:
            await self._writer.update_many(which, {"$unset": {"reap": True}})
        else:  # another writer may have kept them for longer meanwhile, or for ever
            date = self._date(until)
            await self._writer.update_many({**which, "reap": {"$lt": date}}, {"$set": {"reap": date}})

    async def holding(self, id: bytes, digests: Sequence[bytes]) -> Sequence[PartName]:
        found = await self._writer.find({"ids": {"$in": list(digests)}}, {"_id": True}).to_list(None)
        return [part["_id"][ID_BYTES:] for part in found if part["_id"][:ID_BYTES] == id]

    # Many sessions

    async def listed(
        self, scope: str, *, below: str | None, service: str | None, after: tuple[float, str, str] | None, limit: int
    ) -> Sequence[Document]:
        which: dict[str, Any] = {**_within(scope, below), "session": {"$gt": ""}}
        if service is not None:
            which["service"] = service
        if after is not None:
            updated, session, address = -after[0], after[1], after[2]
            which["$or"] = [
                {"updated": {"$lt": updated}},
                {"updated": updated, "session": {"$gt": session}},
                {"updated": updated, "session": session, "scope": {"$gt": address}},
            ]
        order = [("updated", -1), ("session", 1), *([("scope", 1)] if below is not None else [])]
        cursor = self._reader.find(which, dict.fromkeys(NOT_LISTED, False), sort=order, limit=limit)
        return [self._head(found) for found in await cursor.to_list(None)]

    async def scoped(
        self, scope: str, *, below: str | None, after: tuple[bytes, Document] | None, limit: int
    ) -> Sequence[tuple[bytes, Document]]:
        which = _within(scope, below)
        if after is not None:
            scope, session = after[1]["scope"], after[1].get("session", "")
            behind = [{"scope": {"$gt": scope}}, {"scope": scope, "session": {"$gt": session}}]
            which = {"$and": [which, {"$or": behind}]}
        return await self._heads(self._writer.find(which, sort=[("scope", 1), ("session", 1)], limit=limit))

    async def _heads(self, cursor: Any) -> list[tuple[bytes, Document]]:
        return [(found["_id"], self._head(found)) for found in await cursor.to_list(None)]

    async def due(self, now: float, limit: int) -> Sequence[tuple[bytes, Document]]:
        which = {"due": {"$gt": 0, "$lte": now}}
        return await self._heads(self._writer.find(which, sort=[("due", 1)], limit=limit))

    async def pending(self, before: float, limit: int) -> Sequence[tuple[bytes, PartName]]:
        which = {"pending": {"$gt": 0, "$lt": before}}
        cursor = self._writer.find(which, {"_id": True}, sort=[("pending", 1)], limit=limit)
        found = await cursor.to_list(None)
        return [(part["_id"][:ID_BYTES], part["_id"][ID_BYTES:]) for part in found]

    async def settle(self, id: bytes, names: Sequence[PartName]) -> None:
        if names:
            which = {"_id": {"$in": [id + name for name in names]}}
            await self._writer.update_many(which, {"$unset": {"pending": True}})


def _parts_of(id: bytes, life: str) -> dict[str, Any]:
    return {"_id": {"$gte": id + bytes(NAME_BYTES), "$lte": id + b"\xff" * NAME_BYTES}, "life": life}


def _within(scope: str, below: str | None) -> dict[str, Any]:
    return {"scope": scope if below is None else {"$gte": below, "$lt": below + HIGHEST}}
