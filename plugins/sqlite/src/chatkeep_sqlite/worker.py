"""One SQLite connection on aiosqlite's thread, one hop per call.

aiosqlite's public methods make one hop to its thread for each statement, and a hop costs several times what a statement
does. Its queue of (future, function) is not public: the plugin is held to one minor version of aiosqlite, and
`tests/sqlite/test_worker.py` says what is relied on.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import aiosqlite

from .files import OpenFile, Parting
from .forks import keep_out_of_forks
from .schema import MEMORY

T = TypeVar("T")


class Worker:
    """A connection and its thread.

    Workers that share a `closing` lock close one after the other. Of two connections that are closed at the same
    instant each takes the other to be open still, and neither empties and removes the write-ahead log. Those that share
    a `parting` refuse together when their file is not where it was opened.
    """

    def __init__(self, path: str, *, closing: threading.Lock | None = None, parting: Parting | None = None) -> None:
        # Not to be made by SQLite, where it was moved away just now: `create_file` has made it.
        name = path if path == MEMORY else f"file:{quote(path)}?mode=rw"
        self._connection = aiosqlite.connect(name, uri=path != MEMORY, isolation_level=None, cached_statements=256)
        # A store that nobody closed must not keep the process from ending. Every transaction ends within one call, so
        # that the thread can be stopped at any instant as a killed process can.
        self._connection._thread.daemon = True
        self._path = path
        self._closing = closing or threading.Lock()
        self._parting = parting or Parting()
        self._inside = threading.RLock()
        self._file: OpenFile | None = None
        self._stopping = False

    async def start(self) -> None:
        """Begin the thread and open the file. A start that fails or is cancelled leaves neither."""
        connection = self._connection
        self._file = None if self._path == MEMORY else OpenFile(self._path, self._parting)

        def connect() -> None:
            keep_out_of_forks(self._inside)
            connection._connection = connection._connector()

        connection._thread.start()
        try:
            await self._ask(connect)
        except BaseException:
            self.stop()
            raise

    def prepared(self, *, log: bool) -> None:
        """Everything of the database is open: from now on `check` with `log` looks for the write-ahead log too."""
        if self._file is not None:
            self._file.prepared(log=log)

    def check(self, connection: sqlite3.Connection) -> None:
        """On the thread: a `StoreUnavailableError` if the file is not where it was opened. Ends any transaction then.

        All that was acknowledged is in the file then, wherever it is now.
        """
        if self._file is not None:
            self._file.check(connection)

    @property
    def alive(self) -> bool:
        """Whether it takes calls: it was started, and has not been told to stop."""
        connection = self._connection
        return not self._stopping and connection._thread.is_alive() and connection._connection is not None

    def submit(
        self, function: Callable[[sqlite3.Connection], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run `function` on the thread, then `done` with its result or its exception on the running event loop."""
        connection = self._connection
        self._submit(lambda: function(connection._conn), done)

    def _submit(self, function: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            result, error = None, None
            try:
                with self._inside:
                    result = function()
            except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
                error = raised
            try:
                loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                return  # the loop was closed meanwhile: nobody is waiting any more

        self._connection._tx.put_nowait((None, run))

    def call(self, function: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """The function's result, run on the thread."""
        connection = self._connection
        return self._ask(lambda: function(connection._conn))

    def _ask(self, function: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._submit(function, done)
        return future

    def stop(self) -> asyncio.Future[None]:
        """Close the connection and end the thread once what was asked before is done, whether or not anybody awaits it.

        It may be called once.
        """
        self._stopping = True
        return self._ask(self._end)

    def _end(self) -> None:
        connection, self._connection._connection = self._connection._connection, None
        try:
            if connection is not None:
                with self._closing:
                    if self._file is not None:
                        self._file.leave(connection)
                    connection.close()
            if self._file is not None:
                self._file.closed()
        finally:
            # On this thread aiosqlite finds no event loop, and so ends it without telling one, which may be closed.
            self._connection.stop()
