"""The backend over a `Driver`: every commit is one conditional change of the session's head."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from chatkeep import heads
from chatkeep.backend import Backend
from chatkeep.errors import (
    CorruptRecordError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreTimeoutError,
)
from chatkeep.records import (
    ABSENT,
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

from .attempts import UNANSWERED, Attempt
from .driver import Change, Document, Driver, UncertainError, View
from .logs import Log
from .packing import DamagedError
from .sessions import (
    UPDATED_FOR,
    Planner,
    gone,
    head_of,
    id_of,
    is_live,
    key_of,
    new_version,
    remembers,
    version_of,
)
from .shelf import Cache, MissingError, clear_garbage
from .states import State
from .sweeping import Sweep
from .wholeness import check_head, counts, whole

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("chatkeep.documents")

HELD = 512
"""How many heads are kept in mind, so that a write on one of them needs not read it first."""
LARGEST_HELD = 256 * 1024
"""A head that is larger, in bytes, is read anew instead."""
PAGE = 100


def _counted(
    method: Callable[Concatenate[DocumentBackend, P], Awaitable[T]],
) -> Callable[Concatenate[DocumentBackend, P], Coroutine[Any, Any, T]]:
    """A call that is refused after closing, and that closing waits for."""

    @wraps(method)
    async def call(backend: DocumentBackend, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with backend.under_way():
            return await method(backend, *args, **kwargs)

    return call


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
        self._closing = False
        self._under_way = 0
        self._idle: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

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
        self._closing, self._under_way, self._idle = False, 0, None
        self._loop = asyncio.get_running_loop()
        await self.driver.open()

    async def close(self) -> None:
        """Calls that have begun are waited for; writes that have not are refused."""
        self._closing = True
        loop = asyncio.get_running_loop()
        while self._under_way and self._loop is loop:  # those of a loop that is closed have ended
            if self._idle is None:
                self._idle = loop.create_future()
            await asyncio.shield(self._idle)
        await self.driver.close()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A call, which closing waits for."""
        self._check_open()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way and self._idle is not None:
                if not self._idle.done():
                    self._idle.set_result(None)
                self._idle = None

    def _check_open(self) -> None:
        if self._closing:
            raise StoreClosedError("the store is closed: open a new one")

    @_counted
    async def ping(self) -> Health:
        return await self.driver.ping()

    # What is kept in mind

    def held(self, id: bytes) -> Document | None:
        """The head as it was when it was seen last, if it is kept in mind."""
        return self._held.get(id)

    def let_go(self, id: bytes) -> None:
        """It is another one by now."""
        self._held.pop(id, None)

    def hold(self, id: bytes, document: Document | None) -> None:
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

    async def find(self, key: Key, id: bytes, view: View) -> Document | None:
        """The head as it is stored now."""
        document = await self.driver.find(id, view)
        named = (document.get("scope"), document.get("session")) if document else (None, None)
        if named not in ((None, None), (key.scope.address, key.session)):
            raise StoreError(f"{heads.place(key)} is stored as another one: the database was changed by hand")
        if document is not None:
            check_head(document, name=f"{heads.place(key)} in {key.scope.address}")
        self.hold(id, document)
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

    @_counted
    async def commit(self, key: Key, write: Write) -> Outcome:
        id = id_of(key)
        attempt = Attempt(self, key, id, write)
        try:
            async with self._turn(id):
                if (seen := self._recent.get((id, write.token))) is not None:
                    return seen
                self._check_open()
                outcome = await attempt.make()
                if not write.batch:
                    self._recent[id, write.token] = outcome
                    if len(self._recent) > RECENT:
                        self._recent.popitem(last=False)
                return outcome
        except CorruptRecordError:
            if not write.delete or write.life is not None:
                raise
            document = await self.driver.find(id, "writer")
            await self.end(id, document, lambda each: each is not None, dry_run=False)
            return Outcome(ABSENT if document is None else document.get("life") or ABSENT)
        except asyncio.CancelledError:
            self._held.pop(id, None)
            if attempt.sent:
                raise
            raise StoreTimeoutError(f"{heads.place(key)}: there was no time left; nothing was written") from None

    # Reading

    async def _look(self, key: Key, look: Callable[[Document | None, bool], Awaitable[T]]) -> T:
        """What `look` makes of the head; anew with a later one where a part has been given up meanwhile.

        Where none has, a part is lost or damaged, and `look` is told to have it stood in for.
        """
        id = id_of(key)
        version: bytes | None = None
        view: View = "reader"
        while True:
            document = await self.find(key, id, view)
            current = version_of(document)
            lost = view == "writer" and current == version  # what was missing was given up by no later head
            try:
                found = await look(document if is_live(document, self.driver.clock()) else None, lost)
                if not lost or version_of(await self.find(key, id, view)) == current:
                    return found
                version = None
            except (MissingError, DamagedError) as error:
                if lost and version_of(await self.find(key, id, view)) == current:
                    raise StoreError(f"{heads.place(key)} is damaged: {error}") from error
                version, view = current, "writer"

    @_counted
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        async def look(document: Document | None, lost: bool) -> RecordPage:
            if document is None:
                return RecordPage((), None)
            head = head_of(key, document)
            found = next((each for each in document["logs"] if each["name"] == log), None)
            if found is None:
                return RecordPage((), head)
            shelf = self.planner.shelf(id_of(key), head.life, lenient=lost)
            stored = Log(found, shelf)
            if span.bodies and (quick := await stored.bodies(span)) is not None:
                return RecordPage((), head, quick[1], quick[0])
            records, more = await stored.read(span)
            return RecordPage(records, head, more)

        return await self._look(key, look)

    @_counted
    async def head(self, key: Key) -> Head | None:
        document = await self.find(key, id_of(key), "reader")
        return head_of(key, document) if document and is_live(document, self.driver.clock()) else None

    @_counted
    async def state(self, key: Key, select: Select) -> StatePage:
        async def look(document: Document | None, lost: bool) -> StatePage:
            if document is None:
                return StatePage((), None)
            shelf = self.planner.shelf(id_of(key), document["life"], lenient=lost)
            entries, more = await State(document["state"], shelf).select(select)
            return StatePage(entries, document["life"], more)

        return await self._look(key, look)

    @_counted
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        after = None if listing.after is None else heads.listing_after(listing.after)
        below = scope.prefix if listing.below and scope.depth < len(scope) else None
        found, size = list[Head](), listing.limit + 1
        while len(found) <= listing.limit:
            page = await self.driver.listed(
                scope.address, below=below, service=listing.where.get("service"), after=after, limit=size
            )
            now = self.driver.clock()
            live = [head_of(key_of(document), document) for document in whole(page) if is_live(document, now)]
            found += [head for head in live if head.meta.items() >= listing.where.items()]
            if len(page) < size:
                break
            after = (-page[-1]["updated"], page[-1]["session"], page[-1]["scope"])
            size = max(size, PAGE)
        heads_found = found[: listing.limit]
        return HeadPage(heads_found, heads.listing_cursor(heads_found[-1]) if len(heads_found) < len(found) else None)

    # Removing

    @_counted
    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        """What is damaged is erased, and never purged. What a later version has stored is neither, and told at last."""
        below = scope.prefix if scope.depth < len(scope) else None
        now = self.driver.clock()
        after: tuple[bytes, Document] | None = None
        slack = UPDATED_FOR if older_than else 0.0
        before = now - ((older_than or 0.0) + slack)
        sessions = messages = keys = 0
        refused: StoreFormatError | None = None

        def doomed(document: Document | None) -> bool:
            nonlocal refused
            if document is None or document.get("life", "") is None:
                return False
            try:
                check_head(document)
            except StoreFormatError as error:
                refused = error
                return False
            except CorruptRecordError as error:
                if older_than is not None:
                    logger.warning("a session is left out of a purge: %s", error)
                return older_than is None
            if older_than is None:
                return True
            return bool(document["session"]) and (not is_live(document, now) or document["updated"] <= before)

        async def end(id: bytes, found: Document) -> None:
            nonlocal sessions, messages, keys
            document = await self.end(id, found, doomed, dry_run=dry_run)
            if document is not None:
                sessions += document.get("session") != ""
                counted = counts(document)
                messages += counted[0]
                keys += counted[1]

        while True:
            page = await self.driver.scoped(scope.address, below=below, after=after, limit=PAGE)
            await self.driver.all_of([partial(end, id, found) for id, found in page])
            if len(page) < PAGE:
                if refused is not None:
                    raise refused
                return Receipt(sessions, messages, keys, dry_run)
            after = page[-1]

    async def end(
        self, id: bytes, document: Document | None, doomed: Callable[[Document | None], bool], *, dry_run: bool
    ) -> Document | None:
        """End the session if it is doomed, however often it changes meanwhile; the head that it had, if it was."""
        attempt = 0
        while document is not None and doomed(document):
            if dry_run:
                return document
            version = new_version()
            end = gone(document, version, self.driver.limits.recent, self.driver.clock())
            self.let_go(id)
            try:
                if await self.driver.swap(id, document.get("version", b""), Change(end, former=document)):
                    await self.clear(id, end)
                    return document
                attempt += 1
                document = await self.driver.find(id, "writer")
            except UncertainError as error:
                attempt += 1
                if attempt > UNANSWERED:
                    raise OutcomeUnknownError(f"a session may or may not be removed: {error.__cause__}") from error
                await self.driver.pause(attempt)
                found = await self.driver.find(id, "settled")
                if remembers(found, version):
                    await self.clear(id, end)
                    return document
                document = found
        return None

    async def clear_lives(self, id: bytes, lives: Sequence[str]) -> None:
        for life in lives:
            await self.driver.drop_life(id, life)

    async def clear(self, id: bytes, gone_head: Document) -> None:
        """Delete what a session left that is gone. Its head stays for a while, without a word of whose it was."""
        if not gone_head["lives"]:
            return
        await self.clear_lives(id, gone_head["lives"])
        limit, now = self.driver.limits.recent, self.driver.clock()
        cleared = gone(gone_head, new_version(), limit, now, cleared=True)
        try:
            await self.driver.swap(id, gone_head["version"], Change(cleared, former=gone_head))
        except UncertainError as error:
            logger.info("that a session's parts are deleted is not noted yet: %s", error.__cause__ or error)

    async def after_commit(self, id: bytes, write: Write, document: Document) -> None:
        """Delete at once what was to be deleted; the rest of what was given up is left to later commits."""
        if document["life"] is None:
            await self.clear(id, document)
            return
        await self.clear_lives(id, document["lives"])
        taken_out = write.truncate_after is not None or any(op.value is None for op in write.state)
        if taken_out or write.rewrite or write.replace:
            await clear_garbage(self.driver, id, document["garbage"])

    @_counted
    async def sweep(self, budget: int = 100) -> SweepReport:
        return await Sweep(self).make(budget)
