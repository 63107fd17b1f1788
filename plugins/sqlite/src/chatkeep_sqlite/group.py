"""Writes that wait together share one commit.

A group is what waits when the writer's thread has the file. Each write of it has a savepoint of its own, so that one
that is refused takes nothing with it, and nobody is answered before the COMMIT.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from chatkeep.backend import Settling
from chatkeep.errors import OutcomeUnknownError, StoreClosedError, StoreTimeoutError

from .database import Database
from .worker import Worker

logger = logging.getLogger("chatkeep.sqlite")

GROUP = 128
"""How many writes share a commit at most."""
SWEEP_INTERVAL = 60.0
SWEEP_BUDGET = 20
"""Every so many seconds a commit takes so many expired sessions with it."""


class Waiting(Settling[Any]):
    """A write that waits for its turn in `queue`, and its outcome. It goes on whether or not somebody awaits it."""

    def __init__(self, work: Callable[[Database], Any], queue: deque[Waiting], path: str) -> None:
        super().__init__()
        self.work = work
        self.queue = queue
        self.path = path
        self.outcome: Any = None
        self.error: Exception | None = None

    def withdraw(self) -> None:
        try:
            self.queue.remove(self)
        except ValueError:
            return  # it has begun
        self.set_exception(
            StoreTimeoutError(
                f"{self.path!r} stays busy, or locked by another program; nothing was written: end that program, "
                "or wait longer with timeout="
            )
        )

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


def closed(path: str) -> StoreClosedError:
    return StoreClosedError(f"{path!r} was closed; nothing was written")


class Group:
    """Those who wait to write, and how they are served: one transaction at a time on the writer's thread."""

    def __init__(self, worker: Worker, database: Database, path: str) -> None:
        self._worker = worker
        self._database = database
        self._path = path
        self._waiting: deque[Waiting] = deque()
        self._busy = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._swept = 0.0

    def start_anew(self) -> None:
        """On another event loop: the former one's writes, if any, are answered no more."""
        self._waiting = deque()
        self._busy = False

    async def close(self) -> None:
        """Answer whoever came before, refuse whoever comes now. Cut short, it refuses those who still wait."""
        if self._closed:
            return
        try:
            if self._busy and self._worker.alive and self._loop is asyncio.get_running_loop():
                last = self.write(lambda database: None)
                await asyncio.wait((last,))
                last.exception()  # of which those before it are told, too
        finally:
            self._closed = True

    def write(self, work: Callable[[Database], Any]) -> Waiting:
        """What `work` returns, once it is committed."""
        if self._closed:
            raise closed(self._path)
        waiting = Waiting(work, self._waiting, self._path)
        self._waiting.append(waiting)
        if not self._busy:
            self._serve()
        return waiting

    def _serve(self) -> None:
        self._busy = True
        self._loop = asyncio.get_running_loop()
        self._worker.submit(partial(self._run, self._waiting), self._answer)

    def _run(self, waiting: deque[Waiting], connection: sqlite3.Connection) -> list[Waiting]:
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
            self._worker.check(connection)
            self._commit(connection, group)
        except Exception as error:  # noqa: BLE001 - whatever it was, every one of the group is told
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return _told(group, error)
        return group

    def _commit(self, connection: sqlite3.Connection, group: list[Waiting]) -> None:
        database = self._database
        database.unsettled.clear()
        if len(group) == 1:  # the transaction is savepoint enough
            group[0].outcome = group[0].work(database)
        else:
            self._work_each(connection, database, group)
        self._sweep_sometimes(connection, database)
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            # Of what could not be written the log lacks the end, which alone makes it count. Of other faults, such as
            # one of fsync, nobody can say what the disk will hold.
            if error.sqlite_errorname.startswith("SQLITE_IOERR") and error.sqlite_errorname != "SQLITE_IOERR_WRITE":
                raise OutcomeUnknownError(
                    f"{self._path!r}: {error} while committing ({error.sqlite_errorname}): the write may or may not be "
                    "stored; send it again with the same batch_id or message ids, and it is stored once"
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

    def _answer(self, group: list[Waiting] | None, error: BaseException | None) -> None:
        """On the event loop: answer, and go on with those who came meanwhile."""
        self._busy = False
        if self._closed:
            group = [*(group or ()), *_told(_taken(self._waiting, len(self._waiting)), closed(self._path))]
        elif self._waiting:
            self._serve()
        for waiting in group or ():
            waiting.answer()
        if error is not None:
            raise error
