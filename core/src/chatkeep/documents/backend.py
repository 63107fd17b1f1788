"""The backend over a `Driver`: every commit is one conditional change of the session's head."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from chatkeep import heads
from chatkeep.backend import Backend
from chatkeep.errors import ChatkeepError, OutcomeUnknownError, StoreError, StoreTimeoutError
from chatkeep.records import (
    RECENT,
    Head,
    HeadPage,
    Health,
    Key,
    Listing,
    Outcome,
    Receipt,
    RecordPage,
    Scope,
    Select,
    Span,
    StatePage,
    SweepReport,
    Write,
)

from .driver import GRACE, Change, Document, Driver, UncertainError
from .logs import Log
from .packing import make_ref, unpack_directory, unpack_entry, unpack_records, unpack_state
from .sessions import (
    UPDATED_FOR,
    Plan,
    Planner,
    difference,
    gone,
    head_of,
    id_of,
    is_live,
    key_of,
    new_life,
    new_version,
    remembers,
)
from .shelf import Cache, MissingError, clear_garbage, part_names
from .states import State

T = TypeVar("T")
logger = logging.getLogger("chatkeep.documents")

HELD = 512
"""How many heads are kept in mind, so that a write on one of them needs not read it first."""
LARGEST_HELD = 256 * 1024
"""A head that is larger, in bytes, is read anew instead."""
PAGE = 100
UNANSWERED = 4
"""How often a change whose answer was lost is looked for and sent again."""


class DocumentBackend(Backend):
    """A backend, given a driver. `clock` may be set, by tests, to another one than the driver's."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.driver_errors = driver.driver_errors
        self.failures: tuple[type[Exception], ...] = (*driver.driver_errors, UncertainError, StoreError)
        self._cache = Cache()
        self.planner = Planner(driver, self._cache)
        self._held: OrderedDict[bytes, Document] = OrderedDict()
        self._recent: OrderedDict[tuple[bytes, bytes], Outcome] = OrderedDict()
        self._writing: dict[bytes, tuple[asyncio.Lock, int]] = {}

    @property
    def clock(self) -> Callable[[], float]:
        return self.driver.clock

    @clock.setter
    def clock(self, clock: Callable[[], float]) -> None:
        self.driver.clock = clock  # type: ignore[method-assign]

    def translate(self, error: Exception) -> StoreError:
        return self.driver.translate(error)

    async def open(self) -> None:
        self._held.clear()
        self._writing.clear()
        await self.driver.open()

    async def close(self) -> None:
        await self.driver.close()

    async def ping(self) -> Health:
        return await self.driver.ping()

    # What is kept in mind

    def _hold(self, id: bytes, document: Document | None) -> None:
        """Keep a head in mind unless a later one is."""
        known = self._held.get(id)
        if document is None or document["life"] is None:
            self._held.pop(id, None)
            return
        if known is not None and known["life"] == document["life"] and known["number"] > document["number"]:
            return
        if sum(len(entry) for log in document["logs"] for entry in log["in"]) > LARGEST_HELD:
            self._held.pop(id, None)
            return
        self._held[id] = document
        self._held.move_to_end(id)
        if len(self._held) > HELD:
            self._held.popitem(last=False)

    async def _find(self, key: Key, id: bytes, *, settled: bool = False) -> Document | None:
        """The head as it is stored now."""
        document = await self.driver.find(id, settled=settled)
        named = None if document is None or document["life"] is None else (document["scope"], document["session"])
        if named not in (None, (key.scope.address, key.session)):
            raise StoreError(f"{heads.place(key)} is stored as another one: the database was changed by hand")
        self._hold(id, document)
        return document

    # Writing

    @asynccontextmanager
    async def _turn(self, id: bytes) -> AsyncIterator[None]:
        """One writer of this process at a time on one session: they would only spoil each other's attempts."""
        lock, users = self._writing.get(id) or (asyncio.Lock(), 0)
        self._writing[id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._writing[id]
            if users == 1:
                del self._writing[id]
            else:
                self._writing[id] = (lock, users - 1)

    async def commit(self, key: Key, write: Write) -> Outcome:
        id = id_of(key)
        attempt = _Attempt(self, key, id, write)
        try:
            async with self._turn(id):
                if (seen := self._recent.get((id, write.token))) is not None:
                    return seen
                outcome = await attempt.make()
                if not write.batch:
                    self._recent[id, write.token] = outcome
                    if len(self._recent) > RECENT:
                        self._recent.popitem(last=False)
                return outcome
        except asyncio.CancelledError:
            self._held.pop(id, None)
            if attempt.sent:
                raise
            raise StoreTimeoutError(f"{heads.place(key)}: there was no time left; nothing was written") from None

    async def change(self, id: bytes, before: Document | None, plan: Plan) -> bool:
        """Make the plan's change; whether the head was still the one that it was made from."""
        assert plan.document is not None
        if before is None:
            return await self.driver.insert(id, plan.document)
        if before["life"] == plan.document["life"]:
            return await self.driver.swap(id, before["version"], difference(before, plan.document))
        return await self.driver.swap(id, before["version"], Change(plan.document))

    # Reading

    async def _look(self, key: Key, look: Callable[[Document | None], Awaitable[T]]) -> T:
        """What `look` makes of the head; anew with a later one where a part has been given up meanwhile."""
        id = id_of(key)
        version, settled = None, False
        while True:
            document = await self._find(key, id, settled=settled)
            try:
                return await look(document if is_live(document, self.driver.clock()) else None)
            except MissingError as error:
                current = document["version"] if document else None
                if current == version and settled:
                    raise StoreError(f"{heads.place(key)} is damaged: {error}") from error
                version, settled = current, True

    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        async def look(document: Document | None) -> RecordPage:
            if document is None:
                return RecordPage((), None)
            head = head_of(key, document)
            found = next((each for each in document["logs"] if each["name"] == log), None)
            if found is None:
                return RecordPage((), head)
            shelf = self.planner.shelf(id_of(key), head.life)
            records, more = await Log(found, shelf).read(span)
            return RecordPage(records, head, more)

        return await self._look(key, look)

    async def head(self, key: Key) -> Head | None:
        document = await self._find(key, id_of(key))
        return head_of(key, document) if document and is_live(document, self.driver.clock()) else None

    async def state(self, key: Key, select: Select) -> StatePage:
        async def look(document: Document | None) -> StatePage:
            if document is None:
                return StatePage((), None)
            shelf = self.planner.shelf(id_of(key), document["life"])
            entries, more = await State(document["state"], shelf).select(select)
            return StatePage(entries, document["life"], more)

        return await self._look(key, look)

    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        after = None if listing.after is None else heads.listing_after(listing.after)
        below = scope.prefix if listing.below and scope.depth < len(scope) else None
        found, size = list[Head](), listing.limit + 1
        while len(found) <= listing.limit:
            page = await self.driver.listed(
                scope.address, below=below, service=listing.where.get("service"), after=after, limit=size
            )
            now = self.driver.clock()
            live = [head_of(key_of(document), document) for document in page if is_live(document, now)]
            found += [head for head in live if head.meta.items() >= listing.where.items()]
            if len(page) < size:
                break
            after = (-page[-1]["updated"], page[-1]["session"], page[-1]["scope"])
            size = max(size, PAGE)
        heads_found = found[: listing.limit]
        return HeadPage(heads_found, heads.listing_cursor(heads_found[-1]) if len(heads_found) < len(found) else None)

    # Removing

    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        below = scope.prefix if scope.depth < len(scope) else None
        now, after = self.driver.clock(), None
        slack = UPDATED_FOR if older_than else 0.0
        before = now - ((older_than or 0.0) + slack)
        sessions = messages = keys = 0

        def doomed(document: Document | None) -> bool:
            if document is None or document["life"] is None:
                return False
            if older_than is None:
                return True
            return bool(document["session"]) and (not is_live(document, now) or document["updated"] <= before)

        while True:
            page = await self.driver.scoped(scope.address, below=below, after=after, limit=PAGE)
            for id, found in page:
                document = await self._end(id, found, doomed, dry_run=dry_run)
                if document is not None:
                    sessions += document["session"] != ""
                    messages += sum(log["size"] for log in document["logs"])
                    keys += document["state"]["count"] if document["state"] else 0
            if len(page) < PAGE:
                return Receipt(sessions, messages, keys, dry_run)
            after = page[-1][0]

    async def _end(
        self, id: bytes, document: Document | None, doomed: Callable[[Document | None], bool], *, dry_run: bool
    ) -> Document | None:
        """End the session if it is doomed, however often it changes meanwhile; the head that it had, if it was."""
        attempt = 0
        while True:
            if not doomed(document):
                return None
            document = await self.driver.find(id, settled=True)
            if document is None or not doomed(document):
                return None
            if dry_run:
                return document
            version = new_version()
            end = gone(document, version, self.driver.limits.recent, self.driver.clock())
            self._held.pop(id, None)
            try:
                ended = await self.driver.swap(id, document["version"], Change(end))
            except UncertainError as error:
                attempt += 1
                if attempt > UNANSWERED:
                    raise OutcomeUnknownError(f"a session may or may not be removed: {error.__cause__}") from error
                await self.driver.pause(attempt)
                ended = remembers(await self.driver.find(id, settled=True), version)
            if ended:
                await self._clear(id, end)
                return document
            attempt += 1
            await self.driver.pause(attempt)

    async def clear_lives(self, id: bytes, lives: Sequence[str]) -> None:
        for life in lives:
            await self.driver.drop_life(id, life)

    async def _clear(self, id: bytes, gone_head: Document) -> None:
        """Delete what a session left that is gone. Its head stays for a while, without a word of whose it was."""
        await self.clear_lives(id, gone_head["lives"])
        limit, now = self.driver.limits.recent, self.driver.clock()
        cleared = gone(gone_head, new_version(), limit, now, cleared=True)
        await self.driver.swap(id, gone_head["version"], Change(cleared))

    async def after_commit(self, id: bytes, write: Write, document: Document) -> None:
        """Delete at once what was to be deleted; the rest of what was given up is left to later commits."""
        if document["life"] is None:
            await self._clear(id, document)
            return
        await self.clear_lives(id, document["lives"])
        if write.rewrite or write.truncate_after is not None or write.replace:
            await clear_garbage(self.driver, id, document["garbage"])

    # Sweeping

    async def sweep(self, budget: int = 100) -> SweepReport:
        expired, now = 0, self.driver.clock()
        for id, document in await self.driver.due(now, budget):
            if document["life"] is None:
                if document["reap"] is None:
                    await self._clear(id, document)
                else:
                    await self.driver.remove(id, document["version"])
                continue
            if await self._end(id, document, lambda each: bool(each and not is_live(each, now)), dry_run=False):
                expired += document["session"] != ""
        orphans = 0
        found = await self.driver.pending(now - GRACE, max(0, budget - expired))
        by_session = dict[bytes, list[bytes]]()
        for id, name in found:
            by_session.setdefault(id, []).append(name)
        for id, names in by_session.items():
            reached = await self._reached(id)
            if reached is None:
                continue  # it changes just now: another time
            lost = [name for name in names if name not in reached]
            await self.driver.drop(id, lost)
            await self.driver.settle(id, [name for name in names if name in reached])
            orphans += len(lost)
        return SweepReport(expired, orphans)

    async def _reached(self, id: bytes) -> set[bytes] | None:
        """The names of all parts that can be reached from the head, or are listed there as given up."""
        document = await self.driver.find(id, settled=True)
        reached = set[bytes]()
        if document is None or document["life"] is None:
            return reached
        shelf = self.planner.shelf(id, document["life"])
        try:
            for log in document["logs"]:
                refs = [make_ref(row) for row in log["refs"]]
                bodies = [stored.body for entry in log["in"] for stored in unpack_entry(entry)]
                while refs:
                    reached.update(name for ref in refs for name in part_names(ref.name, ref.parts))
                    data = await shelf.contents((ref.name, ref.parts) for ref in refs if not ref.level and ref.bodies)
                    bodies += [stored.body for each in data for stored in unpack_records(each)]
                    below = await shelf.lists([ref for ref in refs if ref.level])
                    refs = [child for children in below for child in children]
                reached.update(name for body in bodies if body for name in part_names(body.name, body.parts))
                if log["gone"] and log["gone"]["part"]:
                    name, parts = log["gone"]["part"]
                    reached.update(part_names(bytes.fromhex(name), parts))
            reached |= await self._reached_by_state(document["state"], shelf)
        except MissingError:
            return None
        for name, parts, _ in document["garbage"]:
            reached.update(part_names(bytes.fromhex(name), parts))
        return reached

    async def _reached_by_state(self, state: Any, shelf: Any) -> set[bytes]:
        if state is None:
            return set()
        reached = set[bytes]()
        packed = [state["in"]] if state["in"] is not None else []
        if state["directory"]:
            name, parts = state["directory"]
            leaf_names = [(bytes.fromhex(name), parts)]
            (data,) = await shelf.contents(leaf_names)
            leaf_names += [leaf[1:] for leaf in unpack_directory(data)]
            packed += await shelf.contents(leaf_names[1:])
            reached.update(each for name, parts in leaf_names for each in part_names(name, parts))
        bodies = [value.body for each in packed for value in unpack_state(each) if value.body]
        reached.update(each for body in bodies for each in part_names(body.name, body.parts))
        return reached


class _Attempt:
    """One write, tried until it is stored or refused."""

    def __init__(self, backend: DocumentBackend, key: Key, id: bytes, write: Write) -> None:
        self._backend = backend
        self._driver = backend.driver
        self._key = key
        self._id = id
        self._write = write
        self.sent = False
        """Whether a change was sent whose outcome is not known (yet)."""

    async def make(self) -> Outcome:
        backend, driver, id = self._backend, self._driver, self._id
        version, life = new_version(), new_life()
        unanswered: Plan | None = None
        document, fresh = backend._held.get(id), False
        losses = missing = number = 0
        while True:
            if document is None and not fresh:
                document, fresh = await self._find(unanswered), True
                if unanswered is not None:
                    if remembers(document, version):
                        self.sent = False
                        return await self._settled(unanswered, document)
                    if document is not None and self._overtaken(document, unanswered):
                        raise OutcomeUnknownError(
                            f"{heads.place(self._key)}: the answer to a write was lost, and so many have followed that "
                            "it cannot be told whether it is stored: send it again with the same batch_id or message "
                            "ids, and it is stored once"
                        )
            try:
                plan = await backend.planner.plan(self._key, id, self._write, document, version=version, life=life)
            except (ChatkeepError, ValueError) as error:
                if fresh:
                    self.sent = False
                    raise
                logger.debug("%s: read anew, for %s", heads.place(self._key), error)
                document = None
                continue
            except MissingError as error:
                missing += fresh
                if missing > 3:
                    raise StoreError(f"{heads.place(self._key)} is damaged: {error}") from error
                document, fresh = None, False
                continue
            if plan.document is None:
                if fresh:
                    self.sent = False
                    return plan.outcome
                document = None
                continue
            await self._prepare(plan, document)
            self.sent = True
            try:
                made = await backend.change(id, document, plan)
            except UncertainError as error:
                losses += 1
                backend._held.pop(id, None)
                if losses > UNANSWERED:
                    raise self._unknown(error.__cause__ or error) from error
                unanswered, document, fresh = plan, None, False
                await driver.pause(losses)
                continue
            except driver.driver_errors:
                self.sent = unanswered is not None
                backend._held.pop(id, None)
                raise
            if made:
                self.sent = False
                return await self._settled(plan, plan.document)
            self.sent = unanswered is not None
            backend._held.pop(id, None)
            await self._take_back(plan)
            if unanswered is None:
                version = new_version()
            number += fresh
            document, fresh = None, False
            if number > 1:
                await driver.pause(number)

    async def _find(self, unanswered: Plan | None) -> Document | None:
        try:
            return await self._backend._find(self._key, self._id, settled=True)
        except self._driver.driver_errors as error:
            if unanswered is None:
                raise
            raise self._unknown(error) from error

    def _unknown(self, error: BaseException) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{heads.place(self._key)}: the answer to a write was lost ({error}): it may or may not be stored; send it "
            "again with the same batch_id or message ids, and it is stored once"
        )

    def _overtaken(self, document: Document, plan: Plan) -> bool:
        """Whether so many writes have followed that the head may have forgotten the one that was not answered."""
        assert plan.document is not None
        behind: int = document["number"] - plan.document["number"]
        return behind >= self._driver.limits.recent

    async def _prepare(self, plan: Plan, stored: Document | None) -> None:
        """Everything that must be there before the head is changed."""
        document, driver, id = plan.document, self._driver, self._id
        assert document is not None
        if document["life"] is None:
            return
        if stored is not None and stored["life"] == document["life"]:
            if stored["parts"] and _sooner(stored["kept"], document["kept"]):
                await driver.extend(id, document["life"], document["kept"])
            if len(document["garbage"]) > driver.limits.garbage and stored["garbage"]:
                await clear_garbage(driver, id, stored["garbage"])
                document["garbage"] = document["garbage"][len(stored["garbage"]) :]
            if stored["lives"]:
                await self._backend.clear_lives(id, stored["lives"])
                document["lives"] = []
        if plan.parts:
            await driver.put(id, document["life"], plan.parts, until=document["kept"])

    async def _take_back(self, plan: Plan) -> None:
        """Parts that were stored in vain."""
        if plan.parts:
            await self._driver.drop(self._id, [part.name for part in plan.parts])

    async def _settled(self, plan: Plan, document: Document | None) -> Outcome:
        """It is stored: what remains to be done may fail."""
        backend = self._backend
        backend._hold(self._id, document)
        if plan.document is not None and document is not None and document["version"] == plan.document["version"]:
            try:
                await backend.after_commit(self._id, self._write, document)
            except backend.failures as error:
                logger.warning("%s: what was given up is not deleted yet: %s", heads.place(self._key), error)
            except asyncio.CancelledError:
                logger.info("%s: what was given up is not deleted yet: there was no time left", heads.place(self._key))
        return plan.outcome


def _sooner(kept: float | None, needed: float | None) -> bool:
    """Whether parts that are kept until then are not kept long enough, or for ever without need."""
    if kept is None or needed is None:
        return kept is not needed
    return needed > kept
