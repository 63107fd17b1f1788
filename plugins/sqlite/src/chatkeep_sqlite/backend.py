"""The SQLite backend: writes that wait together share one commit, reads have a connection of their own.

Order and atomicity come from SQLite itself: one writer per file (``BEGIN IMMEDIATE``), readers on a snapshot. Nobody is
answered before the COMMIT that holds the write, and each write of a group has a savepoint of its own, so that one that
is refused takes nothing with it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import Field

from chatkeep.backend import Backend
from chatkeep.errors import InvalidURLError, StoreError
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
from .failures import DRIVER_ERRORS, translated, undecodable
from .files import Parting, create_file, empty_log, resolve
from .group import Group, Waiting, closed
from .logs import READABLE
from .schema import MEMORY, prepare
from .worker import Worker

T = TypeVar("T")
logger = logging.getLogger("chatkeep.sqlite")


class SQLiteOptions(StoreOptions):
    """Options of ``sqlite://`` URLs."""

    create: bool = Field(True, description="Make the file if it is not there.")
    synchronous: Literal["FULL", "NORMAL"] = Field(
        "FULL",
        description="FULL: an acknowledged write survives a power cut. NORMAL: it survives the process; faster.",
    )


class SQLiteBackend(Backend):
    driver_errors = DRIVER_ERRORS

    def __init__(self, path: str, options: SQLiteOptions) -> None:
        self.path = path
        self.clock: Callable[[], float] = time.time
        self._create = options.create
        self._synchronous = options.synchronous
        self._patience = options.timeout * 0.9  # so that SQLite's own answer comes before the store's timeout
        self._connect_patience = min(options.connect_timeout * 0.9, self._patience)
        self._closing = threading.Lock()
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._read_from: Database | None = None
        self._group: Group | None = None

    async def open(self) -> None:
        if self._group and self._writer and self._writer.alive and self._reader and self._reader.alive:
            self._group.start_anew()
            return  # the threads know no event loop: they serve the new one as well
        file = self.path
        if file != MEMORY:
            create_file(file, create=self._create)
            file = resolve(file)
        parting = Parting()
        self._writer = Worker(file, closing=self._closing, parting=parting)
        try:
            database = await self._connect(self._writer)
            self._group = Group(self._writer, database, self.path)
            self._reader, self._read_from = self._writer, database
            if file != MEMORY:
                self._reader = Worker(file, closing=self._closing, parting=parting)
                self._read_from = await self._connect(self._reader)
                await self._writer.call(self._writer.check)  # that both have the same file
        except BaseException:
            self._stop()
            raise

    async def _connect(self, worker: Worker) -> Database:
        await worker.start()

        def connect(connection: sqlite3.Connection) -> Database:
            try:
                prepare(connection, self.path, synchronous=self._synchronous, patience=self._connect_patience)
            except sqlite3.Error:
                worker.check(connection)  # which may say why
                raise
            connection.execute(f"PRAGMA busy_timeout = {int(self._patience * 1000)}")
            worker.prepared(log=worker is self._writer)
            return Database(connection, self._now)

        return await worker.call(connect)

    def _now(self) -> float:
        return self.clock()

    async def close(self) -> None:
        try:
            if self._group is not None:
                await self._group.close()
        finally:
            stopping = self._stop()  # which goes on by itself if this is cut short
        for stopped in stopping:
            await stopped

    def _stop(self) -> list[asyncio.Future[None]]:
        """Tell both threads to end. Each does so when its call is done, which may wait for another program's lock."""
        workers = {worker for worker in (self._writer, self._reader) if worker is not None}
        self._group = self._writer = self._reader = None
        return [worker.stop() for worker in workers if worker.alive]

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
        outcome = self._write(lambda database: database.commit(key, write))
        if write.rewrite or write.delete:
            outcome.add_done_callback(self._wipe)
        return outcome

    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        receipt: Receipt = await self._write(lambda database: database.remove(scope, older_than, dry_run))
        self._wipe()
        return receipt

    async def sweep(self, budget: int = 100) -> SweepReport:
        return SweepReport(expired=await self._write(lambda database: database.sweep(budget)))

    def _wipe(self, _: object = None) -> None:
        """Take what was erased or redacted out of the write-ahead log too, unless somebody is reading there now."""

        def done(reason: str | None, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("%r: the write-ahead log was not emptied: %s", self.path, error)

        writer = self._writer
        if writer is None or not writer.alive or self.path == MEMORY:
            return

        def wipe(connection: sqlite3.Connection) -> str:
            writer.check(connection)
            return empty_log(connection)

        writer.submit(wipe, done)

    def _write(self, work: Callable[[Database], Any]) -> Waiting:
        """What `work` returns, once it is committed."""
        if self._group is None:
            raise closed(self.path)
        return self._group.write(work)

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
            raise closed(self.path)
        return self._reader.call(partial(self._snapshot, look, self._reader))

    def _snapshot(self, look: Callable[[Database], T], reader: Worker, connection: sqlite3.Connection) -> T:
        database = self._read_from
        assert database is not None
        reader.check(connection)
        connection.execute("BEGIN")
        try:
            return look(database)
        except sqlite3.OperationalError as error:
            if connection.text_factory is READABLE or not undecodable(error):
                raise
            connection.text_factory = READABLE  # slower, and so not before it is needed
            return look(database)
        finally:
            connection.execute("COMMIT")

    def translate(self, error: Exception) -> StoreError:
        return translated(error, self.path)


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
