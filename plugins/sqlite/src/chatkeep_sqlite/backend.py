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
    StoreClosedError,
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


class Waiting(asyncio.Future[Any]):
    """A write that waits for its turn in `queue`, and its outcome. It goes on whether or not somebody awaits it."""

    def __init__(self, work: Callable[[Database], Any], queue: deque[Waiting]) -> None:
        super().__init__()
        self.work = work
        self.queue = queue
        self.outcome: Any = None
        self.error: Exception | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Take the write back: it ends as a `StoreTimeoutError`. False if it has begun; then it goes on."""
        if self.done():
            return False
        try:
            self.queue.remove(self)
        except ValueError:
            return False
        self.set_exception(StoreTimeoutError("the database was busy for too long; nothing was written"))
        return True

    def answer(self) -> None:
        if self.done():
            return
        if self.error is None:
            self.set_result(self.outcome)
        else:
            self.set_exception(self.error)


def _taken(waiting: deque[Waiting], most: int) -> list[Waiting]:
    """Up to so many of those who wait; on another thread, where the last one may be withdrawn at any instant."""
    taken: list[Waiting] = []
    while waiting and len(taken) < most:
        try:
            taken.append(waiting.popleft())
        except IndexError:
            break
    return taken


def _told(group: list[Waiting], error: Exception) -> list[Waiting]:
    for waiting in group:
        waiting.error = error
    return group


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
        self._waiting = deque()  # another loop's writes, if any, are answered no more
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

    def commit(self, key: Key, write: Write) -> asyncio.Future[Outcome]:
        return self._write(lambda database: database.commit(key, write))

    async def remove(self, target: Key | Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        receipt: Receipt = await self._write(lambda database: database.remove(target, older_than, dry_run))
        return receipt

    async def sweep(self, budget: int = 100) -> SweepReport:
        return SweepReport(expired=await self._write(lambda database: database.sweep(budget)))

    def _write(self, work: Callable[[Database], Any]) -> Waiting:
        """What `work` returns, once it is committed."""
        if self._writer is None:
            raise self._closed()
        waiting = Waiting(work, self._waiting)
        self._waiting.append(waiting)
        if not self._busy:
            self._start_group()
        return waiting

    def _start_group(self) -> None:
        assert self._writer is not None
        self._busy = True
        self._writer.submit(partial(self._run_group, self._waiting), self._group_done)

    def _run_group(self, waiting: deque[Waiting], connection: sqlite3.Connection) -> list[Waiting]:
        """On the writer's thread: one transaction for all that wait once the file is free.

        Whoever gives up while another program holds the file has not begun, and can be told that nothing was written.
        """
        there = len(waiting)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return _told(_taken(waiting, there), error)
        group = _taken(waiting, GROUP)
        try:
            self._commit_group(connection, group)
        except Exception as error:  # noqa: BLE001 - whatever it was, every one of the group is told
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return _told(group, error)
        return group

    def _commit_group(self, connection: sqlite3.Connection, group: list[Waiting]) -> None:
        database = self._write_to
        assert database is not None
        database.unsettled.clear()
        if len(group) == 1:  # the transaction is savepoint enough
            group[0].outcome = group[0].work(database)
        else:
            self._work_each(connection, database, group)
        self._sweep_sometimes(connection, database)
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith("SQLITE_IOERR"):
                raise OutcomeUnknownError(
                    f"{self.path!r}: {error} while committing: the write may be stored"
                ) from error
            raise
        database.settle()

    def _work_each(self, connection: sqlite3.Connection, database: Database, group: list[Waiting]) -> None:
        """Each write in a savepoint of its own: one that is refused takes nothing with it."""
        execute = connection.execute
        for waiting in group:
            execute("SAVEPOINT one")
            try:
                waiting.outcome = waiting.work(database)
            except Exception as error:
                if not connection.in_transaction:
                    raise  # SQLite has rolled everything back
                execute("ROLLBACK TO one")
                waiting.error = error
            execute("RELEASE one")

    def _sweep_sometimes(self, connection: sqlite3.Connection, database: Database) -> None:
        """In the transaction that is under way: the file is ours already."""
        now = time.monotonic()
        if now - self._swept < SWEEP_INTERVAL:
            return
        self._swept = now
        connection.execute("SAVEPOINT sweep")
        try:
            database.sweep(SWEEP_BUDGET)
        except sqlite3.Error as error:
            if not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO sweep")
            logger.warning("expired sessions were not removed this time: %s", error)
        connection.execute("RELEASE sweep")

    def _group_done(self, group: list[Waiting] | None, error: BaseException | None) -> None:
        """On the event loop: answer, and go on with those who came meanwhile."""
        self._busy = False
        if self._writer is None:
            group = [*(group or ()), *_told(_taken(self._waiting, len(self._waiting)), self._closed())]
        elif self._waiting:
            self._start_group()
        for waiting in group or ():
            waiting.answer()
        if error is not None:
            raise error

    def _closed(self) -> StoreClosedError:
        return StoreClosedError(f"{self.path!r} was closed; nothing was written")

    # Reading

    def read(self, key: Key, log: str, span: Span) -> asyncio.Future[RecordPage]:
        return self._read(lambda database: database.read(key, log, span))

    async def head(self, key: Key) -> Head | None:
        return await self._read(lambda database: database.head(key))

    async def state(self, key: Key, select: Select) -> StatePage:
        return await self._read(lambda database: database.state(key, select))

    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        return await self._read(lambda database: database.sessions(scope, listing))

    def _read(self, look: Callable[[Database], T]) -> asyncio.Future[T]:
        """The result of `look`, from one snapshot."""
        if self._reader is None:
            raise self._closed()
        return self._reader.call(partial(self._snapshot, look))

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
                f"{self.path!r} stays locked by another program; nothing was written: end that program, "
                "or wait longer with timeout="
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
