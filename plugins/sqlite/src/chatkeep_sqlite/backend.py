"""The SQLite backend: writes that wait together share one commit, reads have a connection of their own.

Order and atomicity come from SQLite itself: one writer per file (``BEGIN IMMEDIATE``), readers on a snapshot. Nobody is
answered before the COMMIT that holds the write, and each write of a group has a savepoint of its own, so that one that
is refused takes nothing with it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import Field

from chatkeep.backend import Backend
from chatkeep.errors import (
    InvalidURLError,
    OutcomeUnknownError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from chatkeep.options import StoreOptions
from chatkeep.records import (
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
from chatkeep.url import StoreURL

from .database import Database
from .schema import MEMORY, create_file, prepare
from .worker import Worker

T = TypeVar("T")
logger = logging.getLogger("chatkeep.sqlite")

GROUP = 128
"""How many writes share a commit at most."""
SWEEP_INTERVAL = 60.0
SWEEP_BUDGET = 20
"""Every so many seconds a commit is followed by the removal of so many expired sessions."""


class SQLiteOptions(StoreOptions):
    """Options of ``sqlite://`` URLs."""

    synchronous: Literal["FULL", "NORMAL"] = Field(
        "FULL",
        description="FULL: an acknowledged write survives a power cut. NORMAL: it survives the process; faster.",
    )


class Waiting:
    """A write that waits for its turn: what to do, and where the answer goes."""

    __slots__ = ("after", "error", "future", "result", "work")

    def __init__(
        self, work: Callable[[Database], Any], future: asyncio.Future[Any], after: Callable[[Any], None] | None
    ) -> None:
        self.work = work
        self.after = after
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None

    def answer(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class SQLiteBackend(Backend):
    driver_errors = (sqlite3.Error,)

    def __init__(self, path: str, options: SQLiteOptions) -> None:
        self.path = path
        self.clock: Callable[[], float] = time.time
        self._synchronous = options.synchronous
        self._patience = options.timeout * 0.9  # so that SQLite's own answer comes before the store's timeout
        self._connect_patience = min(options.connect_timeout * 0.9, self._patience)
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._write_to: Database | None = None
        self._read_from: Database | None = None
        self._waiting: deque[Waiting] = deque()
        self._busy = False
        self._swept = 0.0

    async def open(self) -> None:
        self._waiting.clear()
        self._busy = False
        if self._writer and self._writer.alive and self._reader and self._reader.alive:
            return  # the threads know no event loop: they serve the new one as well
        if self.path != MEMORY:
            create_file(self.path)
        self._writer = Worker(self.path)
        try:
            self._write_to = await self._connect(self._writer)
            self._reader, self._read_from = self._writer, self._write_to
            if self.path != MEMORY:
                self._reader = Worker(self.path)
                self._read_from = await self._connect(self._reader)
        except BaseException:
            await self.close()
            raise

    async def _connect(self, worker: Worker) -> Database:
        await worker.start()

        def connect(connection: sqlite3.Connection) -> Database:
            prepare(connection, self.path, synchronous=self._synchronous, patience=self._connect_patience)
            connection.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")
            return Database(connection, self._now)

        return await worker.call(connect)

    def _now(self) -> float:
        return self.clock()

    async def close(self) -> None:
        if self._busy and self._writer is not None and self._writer.alive:
            await self._write(lambda database: None)  # whoever came before is answered before it
        workers = {worker for worker in (self._writer, self._reader) if worker is not None}
        self._writer = self._reader = None
        for worker in workers:
            if worker.alive:
                await worker.stop()

    async def ping(self) -> Health:
        def look(database: Database) -> dict[str, Any]:
            (journal_mode,) = database.execute("PRAGMA journal_mode").fetchone()
            (sessions,) = database.execute("SELECT count(*) FROM chatkeep_sessions WHERE id <> ''").fetchone()
            return {
                "path": self.path,
                "journal_mode": journal_mode,
                "synchronous": self._synchronous,
                "sessions": sessions,
            }

        return Health("sqlite", f"SQLite {sqlite3.sqlite_version}", await self._read(look))

    # Writing

    async def commit(self, key: Key, write: Write) -> Outcome:
        def remember(outcome: Outcome) -> None:
            if self._write_to is not None:
                self._write_to.remember(key, write, outcome)

        return await self._write(lambda database: database.commit(key, write), remember)

    async def remove(self, target: Key | Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        return await self._write(lambda database: database.remove(target, older_than, dry_run))

    async def sweep(self, budget: int = 100) -> SweepReport:
        return SweepReport(expired=await self._write(lambda database: database.sweep(budget)))

    async def _write(self, work: Callable[[Database], T], after: Callable[[T], None] | None = None) -> T:
        """The result of `work`, once it is committed. Cancelled before its turn, it is not done."""
        waiting = Waiting(work, asyncio.get_running_loop().create_future(), after)
        self._waiting.append(waiting)
        if not self._busy:
            self._start_group()
        try:
            result: T = await waiting.future
        except asyncio.CancelledError:
            try:
                self._waiting.remove(waiting)
            except ValueError:
                raise  # it has begun
            raise StoreTimeoutError(f"{self.path!r} was busy for too long; nothing was written") from None
        return result

    def _start_group(self) -> None:
        if self._writer is None:
            raise StoreUnavailableError(f"{self.path!r} was closed")
        self._busy = True
        self._writer.submit(self._run_group, self._group_done)

    def _run_group(self, connection: sqlite3.Connection) -> list[Waiting]:
        """On the writer's thread: one transaction for all that wait now."""
        group: list[Waiting] = []
        while self._waiting and len(group) < GROUP:
            group.append(self._waiting.popleft())
        if group:
            try:
                self._commit_group(connection, group)
            except Exception as error:  # noqa: BLE001 - whatever it was, every one of the group is told
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                for waiting in group:
                    waiting.error = error
            else:
                self._sweep_sometimes(connection)
        return group

    def _commit_group(self, connection: sqlite3.Connection, group: list[Waiting]) -> None:
        database, execute = self._write_to, connection.execute
        assert database is not None
        execute("BEGIN IMMEDIATE")
        if len(group) == 1:  # the transaction is savepoint enough
            group[0].result = group[0].work(database)
        else:
            self._work_each(connection, database, group)
        try:
            execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith("SQLITE_IOERR"):
                raise OutcomeUnknownError(
                    f"{self.path!r}: {error} while committing: the write may be stored"
                ) from error
            raise
        for waiting in group:
            if waiting.after is not None and waiting.error is None:
                waiting.after(waiting.result)

    def _work_each(self, connection: sqlite3.Connection, database: Database, group: list[Waiting]) -> None:
        """Each write in a savepoint of its own: one that is refused takes nothing with it."""
        execute = connection.execute
        for waiting in group:
            execute("SAVEPOINT one")
            try:
                waiting.result = waiting.work(database)
            except Exception as error:
                if not connection.in_transaction:
                    raise  # SQLite has rolled everything back
                execute("ROLLBACK TO one")
                waiting.error = error
            execute("RELEASE one")

    def _sweep_sometimes(self, connection: sqlite3.Connection) -> None:
        now = time.monotonic()
        if now - self._swept < SWEEP_INTERVAL or self._write_to is None:
            return
        self._swept = now
        try:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                self._write_to.sweep(SWEEP_BUDGET)
        except sqlite3.Error as error:
            logger.warning("expired sessions were not removed this time: %s", error)

    def _group_done(self, group: list[Waiting] | None, error: BaseException | None) -> None:
        """On the event loop: answer, and go on with those who came meanwhile."""
        if self._waiting and self._writer is not None:
            self._start_group()
        else:
            self._busy = False
        for waiting in group or ():
            waiting.answer()
        if error is not None:
            raise error

    # Reading

    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        return await self._read(lambda database: database.read(key, log, span))

    async def head(self, key: Key) -> Head | None:
        return await self._read(lambda database: database.head(key))

    async def state(self, key: Key, select: Select) -> StatePage:
        return await self._read(lambda database: database.state(key, select))

    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        return await self._read(lambda database: database.sessions(scope, listing))

    async def _read(self, look: Callable[[Database], T]) -> T:
        """The result of `look`, from one snapshot."""
        if self._reader is None:
            raise StoreUnavailableError(f"{self.path!r} was closed")
        return await self._reader.call(partial(self._snapshot, look))

    def _snapshot(self, look: Callable[[Database], T], connection: sqlite3.Connection) -> T:
        database = self._read_from
        assert database is not None
        connection.execute("BEGIN")
        try:
            return look(database)
        finally:
            connection.execute("COMMIT")

    def translate(self, error: Exception) -> StoreError:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        if name in ("SQLITE_BUSY", "SQLITE_LOCKED") or name.startswith("SQLITE_BUSY"):
            return StoreUnavailableError(
                f"{self.path!r} is locked by another program for more than {self._patience:g} s; nothing was written"
            )
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_PERM", "SQLITE_AUTH")):
            return StoreUnavailableError(f"{self.path!r} cannot be used: {error}; nothing was written")
        if name == "SQLITE_NOTADB":
            return StoreUnavailableError(f"{self.path!r} is no SQLite database: choose another file")
        return StoreError(f"{self.path!r}: {error} ({name})")


def open_backend(url: StoreURL, options: SQLiteOptions, _: None) -> SQLiteBackend:
    """``sqlite:///relative.db``, ``sqlite:////absolute.db``, and ``sqlite://`` for a database in memory."""
    if url.authority:
        raise InvalidURLError(f"{url}: a file's path stands behind three slashes: sqlite:///{url.authority}{url.path}")
    path = url.decoded_path.removeprefix("/")
    if url.path and not path:
        raise InvalidURLError(f"{url}: the path is missing; sqlite:///chat.db, or sqlite:// for one in memory")
    if "\0" in path:
        raise InvalidURLError(f"{url}: a path cannot hold a NUL")
    return SQLiteBackend(path or MEMORY, options)
