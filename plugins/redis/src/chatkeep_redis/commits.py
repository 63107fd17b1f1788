"""A write on its way, with what has to be done in the catalogue before and after it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from chatkeep.backend import Settling
from chatkeep.errors import ChatkeepError, StoreTimeoutError
from chatkeep.records import ABSENT, Key, Outcome, Write

from .catalogue import TIDY
from .commands import Command
from .failures import unknown
from .scripts import COMMIT
from .stored import SECOND
from .writes import MAY_BEGIN, REPEATED, AbsentError, arguments, has_written, outcome

if TYPE_CHECKING:
    from .backend import RedisBackend

CLOCKS = 0.1
"""By so many seconds at most, our clock and the server's disagree about how long a write has been on its way."""

logger = logging.getLogger("chatkeep.redis")


class Commit(Settling[Outcome]):
    """The outcome of a write that has been sent.

    As a rule it takes one trip. Where the session is not there yet, it is catalogued first, and once more after its
    life has begun; now and then the session's place in the catalogue is renewed, at the same time as the write.
    """

    def __init__(self, backend: RedisBackend, key: Key, write: Write) -> None:
        super().__init__()
        self._backend = backend
        self._catalogue = backend.catalogue
        self._key = key
        self._write = write
        self._keys = backend.keys.session(key)
        self._arguments = arguments(self._keys, key, write, backend.memory)
        self._renewal: asyncio.Future[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._moves = not write.is_touch
        """Whether the session is first in its catalogue after it, and its scope in the list."""
        self._command: _WriteCommand | None = self._send()
        """What was sent and is not answered. Not kept any longer: it has this one, and would have to be collected."""
        if key.session and self._moves and not write.delete and not self._catalogue.is_exact(key):
            self._renewal = self._catalogue.renew(key)
            self._renewal.add_done_callback(_retrieve)

    def _send(self) -> _WriteCommand:
        command = _WriteCommand(self, self._keys.all, self._arguments)
        self._backend.send(command)
        return command

    def withdraw(self) -> None:
        if self._command is not None and not self._command.sent and not self.done():
            self.set_exception(
                StoreTimeoutError(f"{self._backend.place} is busy, or does not answer; nothing was written: try again")
            )

    def answered(self, reply: bytes | list[Any]) -> None:
        """The script has said this."""
        self._command = None
        try:
            done, began = outcome(self._key, self._write, reply)
        except AbsentError:
            self._go_on(self._begin)
            return
        except Exception as error:  # noqa: BLE001 - for whoever waits
            self.set_exception(error)
            return
        if self._write.delete:  # also where it is not there: the answer to our first attempt may be lost
            self._go_on(partial(self._end, done))
        elif began or (self._moves and done.life != ABSENT and not self._catalogue.is_exact(self._key, done.life)):
            self._go_on(partial(self._finish, done, began=began))
        else:
            self.set_result(done)

    def _go_on(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._take(step))
        self._task.add_done_callback(self._taken)

    async def _take(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await step()
        except Exception as error:  # noqa: BLE001 - for whoever waits
            if not self.done():
                self.set_exception(error)

    def _taken(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and not self.done():  # by an event loop that ends, perhaps before it had begun
            self.set_exception(unknown(f"{self._backend.place}: the event loop has ended"))

    async def _begin(self) -> None:
        """The session is not there. Nothing was written yet."""
        await self._catalogue.enter(self._key)
        if not self.done():
            self._arguments[MAY_BEGIN] = b"1"
            self._command = self._send()

    async def _finish(self, done: Outcome, *, began: bool) -> None:
        """The write is stored: now the catalogue says so, too."""
        try:
            if began:
                await self._catalogue.enter(self._key)
                await self._tidy_sometimes()
            elif self._renewal is None or not (await self._renewal)[1]:
                await self._catalogue.enter(self._key)
            self._catalogue.note(self._key, done.life)
        except ChatkeepError as error:
            if began:
                raise unknown(str(error)) from error
            logger.warning("a session's place in the listing was not renewed: %s", error)
        if not self.done():
            self.set_result(done)

    async def _end(self, done: Outcome) -> None:
        """The session is deleted."""
        self._catalogue.forget(self._key)
        try:
            if self._key.session:
                await self._backend.strike(self._key)
        except ChatkeepError as error:
            logger.warning("a session that is deleted was not taken out of the catalogue: %s", error)
        if not self.done():
            self.set_result(done)

    async def _tidy_sometimes(self) -> None:
        """Whoever begins sessions looks after those that have expired."""
        if self._key.session and self._catalogue.tidies():
            await self._backend.tidy(self._key.scope, TIDY)


class _WriteCommand(Command):
    """The command of a commit, whose answer is the commit's to judge."""

    __slots__ = ("commit", "first")

    def __init__(self, commit: Commit, keys: tuple[bytes, ...], args: list[Any]) -> None:
        super().__init__(COMMIT, keys, args, None, commit, writes=True)
        self.commit = commit
        self.first = 0.0
        """When it was sent first."""

    def parts(self, *, text: bool = False) -> tuple[Any, ...]:
        now = self.commit.get_loop().time()
        self.first = self.first or now
        if self.uncertain:
            self.args = [*self.args]  # which the commit has, too
            self.args[REPEATED] = int((now - self.first + CLOCKS) * SECOND)
        return super().parts(text=text)

    def has_written(self, reply: Any) -> bool:
        return has_written(reply)

    def answer(self, reply: Any) -> None:
        if not self.commit.done():
            self.commit.answered(reply)


def _retrieve(renewal: asyncio.Future[Any]) -> None:
    """Whoever waits is told; where the write was refused, nobody does."""
    if not renewal.cancelled():
        renewal.exception()
