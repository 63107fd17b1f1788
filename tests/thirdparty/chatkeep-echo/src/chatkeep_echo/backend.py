"""The backend: chatkeep's memory backend, kept in step with a journal.

Every call is work for one thread of the store's own and is done under the file's lock: nothing waits on the event loop,
and a call that is cancelled leaves no lock behind. Between calls the file is not open: a fork has nothing to share.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import FileIO
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from chatkeep import StoreError, StoreUnavailableError, records
from chatkeep.backend import Backend
from chatkeep.errors import InvalidURLError, StoreClosedError
from chatkeep.memory import MemoryBackend
from chatkeep.options import StoreOptions
from chatkeep.records import Key, Outcome, Receipt, Scope, Write
from chatkeep.url import StoreURL

from .journal import HEADER, Step, append, check_header, decoded, encoded, locked

T = TypeVar("T")
Look = Callable[[MemoryBackend], Coroutine[Any, Any, T]]


def finished(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, which waits for nothing but its turn and so needs no event loop."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result


class Replica:
    """What a journal says up to a place in it, in memory."""

    def __init__(self, file: FileIO) -> None:
        self.made_of = os.fstat(file.fileno())
        self.memory = MemoryBackend()
        self.place = 0

    def is_of(self, file: FileIO) -> bool:
        """Whether it was made of this file, and not of one in the place of which there is another now."""
        status = os.fstat(file.fileno())
        return os.path.samestat(status, self.made_of) and status.st_size >= self.place

    def catch_up(self, file: FileIO, path: str) -> None:
        """Take the steps that others have written since."""
        file.seek(self.place)
        new = file.read()
        if not self.place:
            check_header(new, path)
        *lines, _torn = new.split(b"\n")
        for line in lines:
            if self.place:
                self.take(decoded(line, path))
            self.place += len(line) + 1

    def take(self, step: Step) -> Any:
        """Take one step, at the time and with the life that it names; what comes of it."""
        memory = self.memory
        memory.clock, memory.new_life = (lambda: step.now), (lambda: step.life)
        if step.write:
            return finished(memory.commit(step.key, step.write))
        return finished(memory.remove(step.key.scope, older_than=step.older_than))


class EchoBackend(Backend):
    driver_errors = (OSError,)

    def __init__(self, path: str, options: StoreOptions) -> None:
        self.path = path
        self.clock: Callable[[], float] = time.time
        self._options = options
        self._thread: ThreadPoolExecutor | None = None
        self._replica: Replica | None = None

    async def open(self) -> None:
        if self._thread is None:  # which knows no event loop: it serves the next one as well
            self._thread = ThreadPoolExecutor(1, "chatkeep-echo")
        await self._call(self._create, timeout=self._options.connect_timeout)

    async def close(self) -> None:
        if self._thread is not None:
            last = self._call(lambda deadline: None)
            self._thread.shutdown(wait=False)  # it ends by itself when all is done that came before
            self._thread = None
            await last

    async def ping(self) -> records.Health:
        found = await self._look(MemoryBackend.ping)
        return records.Health("echo", HEADER.decode().strip(), {"path": self.path, **found.details})

    async def commit(self, key: Key, write: Write) -> Outcome:
        outcome: Outcome = await self._take(Step(key, write))
        return outcome

    async def remove(self, scope: Scope, *, older_than: float | None = None, dry_run: bool = False) -> Receipt:
        if dry_run:
            return await self._look(lambda memory: memory.remove(scope, older_than=older_than, dry_run=True))
        receipt: Receipt = await self._take(Step(Key(scope, ""), older_than=older_than))
        return receipt

    async def sweep(self, budget: int = 100) -> records.SweepReport:
        return records.SweepReport(expired=(await self.remove(Scope(), older_than=inf)).sessions)

    async def read(self, key: Key, log: str, span: records.Span) -> records.RecordPage:
        return await self._look(lambda memory: memory.read(key, log, span))

    async def head(self, key: Key) -> records.Head | None:
        return await self._look(lambda memory: memory.head(key))

    async def state(self, key: Key, select: records.Select) -> records.StatePage:
        return await self._look(lambda memory: memory.state(key, select))

    async def sessions(self, scope: Scope, listing: records.Listing) -> records.HeadPage:
        return await self._look(lambda memory: memory.sessions(scope, listing))

    def translate(self, error: Exception) -> StoreError:
        reason = "it stays locked by another program" if isinstance(error, BlockingIOError) else error
        return StoreUnavailableError(f"{self.path!r} cannot be used: {reason}; nothing was written")

    def _look(self, look: Look[T]) -> asyncio.Future[T]:
        return self._call(partial(self._read, look))

    def _take(self, step: Step) -> asyncio.Future[Any]:
        return self._call(partial(self._write, step))

    def _call(self, work: Callable[[float], T], *, timeout: float | None = None) -> asyncio.Future[T]:
        """What `work` returns on the thread. Its deadline is some time before the store gives up."""
        if self._thread is None:
            raise StoreClosedError(f"{self.path!r} was closed; nothing was written")
        deadline = time.monotonic() + 0.75 * (timeout or self._options.timeout)
        return asyncio.get_running_loop().run_in_executor(self._thread, work, deadline)

    # On the thread

    def _create(self, deadline: float) -> None:
        if not Path(self.path).exists():
            Path(self.path).touch()
        with locked(self.path, writing=False, deadline=deadline) as file:
            self._current(file)

    def _read(self, look: Look[T], deadline: float) -> T:
        with locked(self.path, writing=False, deadline=deadline) as file:
            memory = self._current(file).memory
            memory.clock = self.clock
            return finished(look(memory))

    def _write(self, step: Step, deadline: float) -> Any:
        with locked(self.path, writing=True, deadline=deadline) as file:
            replica = self._current(file)
            step = step._replace(now=self.clock(), life=secrets.token_hex(8))
            outcome = replica.take(step)  # if it is refused, nothing has changed here or in the journal
            self._replica = None  # ahead of the journal; to be made anew if that cannot be written
            replica.place = append(file, replica.place, encoded(step))
            self._replica = replica
            return outcome

    def _current(self, file: FileIO) -> Replica:
        if self._replica is None or not self._replica.is_of(file):
            self._replica = Replica(file)
        self._replica.catch_up(file, self.path)
        return self._replica


def open_backend(url: StoreURL, options: StoreOptions, _: None) -> EchoBackend:
    """``echo:///relative`` and ``echo:////absolute``."""
    path = url.decoded_path.removeprefix("/")
    if url.authority or not path:
        raise InvalidURLError(f"{url}: a journal's path stands behind three slashes, as in echo:///chat.journal")
    return EchoBackend(str(Path(path).absolute()), options)
