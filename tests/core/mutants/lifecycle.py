"""Mistakes against clauses 25 and 26: stores that set up twice, outlive their end, or take more with each session."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from typing import Any

from chatkeep.connection import Connection
from chatkeep.errors import StoreClosedError, StoreLoopError, StoreUnavailableError
from chatkeep.memory import MemoryBackend
from chatkeep.records import Health, Key, Outcome, RecordPage, Span, Write

from . import mutant

close = Connection.close
set_up = Connection._set_up


# 25: from the first use to the end


@mutant(25, mistake="every task that comes first sets up", place="chatkeep.connection.Connection._set_up")
async def sets_up_for_each(self: Any) -> None:
    if self._closed:
        raise StoreClosedError(f"{self.name} was closed: open a new store")
    self._check_loop()
    self._process, self._owner = os.getpid(), asyncio.get_running_loop()
    await self._open()


@mutant(
    25,
    mistake="a task that is cancelled while it sets up takes the others with it",
    place="chatkeep.connection.Connection._set_up",
)
async def set_up_by_the_first(self: Any) -> None:
    if self._closed:
        raise StoreClosedError(f"{self.name} was closed: open a new store")
    self._check_loop()
    loop = asyncio.get_running_loop()
    self._process = os.getpid()
    if self._owner is not loop or self._opening is None:
        self._owner, self._opening = loop, loop.create_task(self._open())
    await self._opening


@mutant(25, mistake="a set-up that failed is not tried again", place="chatkeep.connection.Connection._set_up")
async def set_up_but_once(self: Any) -> None:
    if self._opening is not None and self._opening.done() and not self._opening.cancelled():
        self._opening.result()
    await set_up(self)


@mutant(25, mistake="closing a second time is an error", place="chatkeep.connection.Connection.close")
async def closed_but_once(self: Any) -> None:
    if self._closed:
        raise StoreClosedError(f"{self.name} was closed already")
    await close(self)


@mutant(25, mistake="a store that is used after its end opens again", place="chatkeep.connection.Connection.close")
async def opens_again(self: Any) -> None:
    await close(self)
    self._closed, self._opening, self._closing = False, None, None


@mutant(
    25, mistake="a store that was never used can be used after its end", place="chatkeep.connection.Connection.close"
)
async def closed_if_it_was_used(self: Any) -> None:
    if self._owner is not None:
        await close(self)


@mutant(
    25,
    mistake="after its end a store refuses writes, and is read from a cache",
    place="chatkeep.connection.Connection.read",
)
async def reads_after_the_end(self: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    if not self._closed:
        await self.open()
    return await call(*args, **kwargs)


@mutant(25, mistake="closing one store takes away what others have stored", place="chatkeep.memory.MemoryBackend.close")
async def closing_empties(self: Any) -> None:
    self.held.clear()


@mutant(25, mistake="any event loop may use a store at any time", place="chatkeep.connection.Connection._check_loop")
def any_loop(self: Any, *, closing: bool = False) -> None:
    return None


@mutant(
    25,
    mistake="a store stays with its first event loop when that is long closed",
    place="chatkeep.connection.Connection._check_loop",
)
def first_loop_for_ever(self: Any, *, closing: bool = False) -> None:
    if self._owner is not None and self._owner is not asyncio.get_running_loop():
        raise StoreLoopError(f"{self.name} belongs to another event loop")


@mutant(
    25,
    mistake="a store cannot be closed after its event loop is closed",
    place="chatkeep.connection.Connection._check_loop",
)
def closed_on_its_own_loop(self: Any, *, closing: bool = False) -> None:
    loop = asyncio.get_running_loop()
    if self._owner is not None and self._owner is not loop and (closing or not self._owner.is_closed()):
        raise StoreLoopError(f"{self.name} belongs to another event loop")


@mutant(
    25,
    mistake="a write that is under way at the close is refused, and stored all the same",
    place="chatkeep.connection.Connection.write",
)
async def refused_and_stored(self: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    await self.open()
    outcome = await call(*args, **kwargs)
    await asyncio.sleep(0)
    if self._closed:
        raise StoreClosedError(f"{self.name} was closed meanwhile")
    return outcome


@mutant(
    25, mistake="a write that is under way at the close is never answered", place="chatkeep.connection.Connection.write"
)
async def answered_by_a_store_that_is_open(self: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    await self.open()
    outcome = await call(*args, **kwargs)
    await asyncio.sleep(0)
    if self._closed:
        return None
    return outcome


@mutant(25, mistake="a ping counts scopes as sessions")
class PingCountsScopes(MemoryBackend):
    async def ping(self) -> Health:
        return Health("memory", "this process", {"sessions": len(self.held)})


# 26: one store, thousands of sessions


@mutant(26, mistake="each session has an open file")
class FileForEachSession(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.files = dict[Key, int]()

    async def commit(self, key: Key, write: Write) -> Outcome:
        if key not in self.files and len(self.files) < 500:
            self.files[key] = os.open(os.devnull, os.O_RDONLY)
        return await super().commit(key, write)

    async def close(self) -> None:
        while self.files:
            os.close(self.files.popitem()[1])


@mutant(26, mistake="each session has a thread")
class ThreadForEachSession(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.over, self.threads = threading.Event(), Counter[Key]()

    async def commit(self, key: Key, write: Write) -> Outcome:
        if key not in self.threads and len(self.threads) < 300:
            self.threads[key] += 1
            threading.Thread(target=self.over.wait, args=(20,), daemon=True).start()
        return await super().commit(key, write)

    async def close(self) -> None:
        self.over.set()


@mutant(26, mistake="a pool has a hundred connections, and refuses whoever comes when they are in use")
class PoolIsExhausted(MemoryBackend):
    busy = 0

    async def commit(self, key: Key, write: Write) -> Outcome:
        if self.busy >= 100:
            raise StoreUnavailableError("no connection is free")
        self.busy += 1
        try:
            await asyncio.sleep(0)
            return await super().commit(key, write)
        finally:
            self.busy -= 1


@mutant(26, mistake="the store keeps the last thousand sessions in its hand, and forgets the rest")
class ThousandSessions(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        outcome = await super().commit(key, write)
        while len(self.held) > 1000:
            del self.held[next(iter(self.held))]
        return outcome


@mutant(26, mistake="reading blocks the event loop until it is done")
class ReadingBlocks(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        reading = super().read(key, log, span)
        while True:
            try:
                reading.send(None)
            except StopIteration as answer:
                return answer.value  # type: ignore[no-any-return]
