"""One SQLite connection on aiosqlite's thread, one hop per call.

aiosqlite's public methods make one hop to its thread for each statement, and a hop costs several times what a statement
does. Its queue of (future, function) is not public: the plugin is held to one minor version of aiosqlite, and
`tests/sqlite/test_worker.py` says what is relied on.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

import aiosqlite

T = TypeVar("T")


class Worker:
    """A connection and its thread."""

    def __init__(self, path: str) -> None:
        self._connection = aiosqlite.connect(path, isolation_level=None, cached_statements=256)
        # A store that nobody closed must not keep the process from ending. Every transaction ends within one call, so
        # that the thread can be stopped at any instant as a killed process can.
        self._connection._thread.daemon = True

    async def start(self) -> None:
        try:
            await self._connection
        except BaseException:
            # aiosqlite's thread answers the loop once more before it ends: the loop must still be there.
            await asyncio.get_running_loop().run_in_executor(None, self._connection._thread.join)
            raise

    @property
    def alive(self) -> bool:
        return self._connection._thread.is_alive() and self._connection._connection is not None

    def submit(
        self, function: Callable[[sqlite3.Connection], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run `function` on the thread, then `done` with its result or its exception on the running event loop."""
        loop = asyncio.get_running_loop()
        connection = self._connection

        def run() -> None:
            result, error = None, None
            try:
                result = function(connection._conn)
            except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
                error = raised
            try:
                loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                return  # the loop was closed meanwhile: nobody is waiting any more

        self._connection._tx.put_nowait((None, run))

    def call(self, function: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """The function's result, run on the thread."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.submit(function, done)
        return future

    async def stop(self) -> None:
        await self._connection.close()
