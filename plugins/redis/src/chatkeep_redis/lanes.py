"""One connection, on which one exchange follows the other."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis

from chatkeep.errors import StoreError

from . import failures
from .abandoned import abandon
from .commands import Command, pack
from .scripts import Script
from .wire import Wire

if TYPE_CHECKING:
    from .pipeline import Pipeline

FRESH = 0.01
"""For so many seconds a connection is taken to be open still; then it is looked at."""
FIRST_PAUSE = 0.01
"""Before the first further attempt to reach a server."""


class Lane:
    """One connection, on which one exchange follows the other while there is something to send.

    Where the connection is known to be open, what waits is sent at once, and what is answered calls back. All else is a
    task's: connecting, and sending again what was lost or refused.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.connection: Any = None
        self._pipeline = pipeline
        self._settings = pipeline.settings
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._batch: list[Command] = []
        """What was sent at once and is not answered."""
        self._left: list[Command] = []
        """What a task is to begin with."""
        self._begun = self._busy = False
        self._waiting: asyncio.Future[None] | None = None
        """Of whoever waits until it rests."""
        self._used = self._asked = 0.0
        self._leaves = False
        """Whether the connection leads to where nothing can be written."""

    def start(self) -> None:
        self._busy = True
        wire = self._wire
        if wire is None or not wire.open or self._settings.wait_replicas or self._loop.time() - self._used >= FRESH:
            self._begin([])
        else:
            self._go_on(wire)

    def resting(self) -> asyncio.Future[None]:
        """Done when it has nothing to do."""
        waiting = self._waiting = self._loop.create_future()
        if not self._busy:
            waiting.set_result(None)
        return waiting

    def _rest(self) -> None:
        self._busy = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._pipeline.rest(self)

    # At once

    def _go_on(self, wire: Wire) -> None:
        """Send what waits, or rest."""
        batch = self._batch = self._pipeline.take()
        if not batch:
            self._rest()
            return
        for command in batch:
            command.sent = True
        self._asked = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._settings.timeout, self._look)
        wire.ask(self._packed(batch), sum([command.replies for command in batch]), self._told)

    def _told(self, replies: list[Any], error: Exception | None) -> None:
        """All answers are there, or the connection is lost."""
        batch, self._batch = self._batch, []
        left, texts = self._sort_out(batch, _folded(batch, replies), error)
        self._used = self._loop.time()
        wire = self._wire
        if left or self._leaves or wire is None or not wire.open:
            self._begin(left, texts=texts)
        else:
            self._go_on(wire)

    def _look(self) -> None:
        """Break the connection if the answer takes too long."""
        self._timer = None
        if not self._batch or self._wire is None:
            return
        left = self._settings.timeout - (self._loop.time() - self._asked)
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._wire.fail(TimeoutError(f"no answer within {self._settings.timeout:g} s"))

    # As a task

    def _begin(self, left: list[Command], *, texts: bool = False) -> None:
        self._left, self._begun = left, False
        self._task = self._loop.create_task(self._run(texts=texts))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task and not self._begun:  # it was cancelled before
            self._give_up(self._left)
            self._rest()

    def _give_up(self, batch: list[Command]) -> None:
        """The event loop ends."""
        for command in batch:
            command.uncertain = command.sent
            command.fail(self._pipeline.refusal())
        self._pipeline.refuse_all()

    async def _run(self, *, texts: bool) -> None:
        batch, self._left, self._begun = self._left, [], True
        try:
            await self._serve(batch, texts=texts)
            while self in self._pipeline.lanes and (batch := self._pipeline.take()):
                await self._serve(batch)
        except asyncio.CancelledError:
            self._give_up(batch)
            raise
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is for those who wait
            await self._drop()
            for command in batch:
                command.uncertain = command.sent
                command.fail(self._pipeline.translated(error))
        finally:
            self._rest()

    async def _drop(self) -> None:
        """End the connection; the next one is another."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.detach()
        self._leaves = False
        if self.connection is not None:
            await self.connection.disconnect(nowait=True)

    async def release(self, *, disconnect: bool) -> None:
        """Give the connection back."""
        if self._timer is not None:
            self._timer.cancel()
        connection, self.connection = self.connection, None
        wire, self._wire = self._wire, None
        if wire is not None:
            lost = not wire.open
            wire.detach()
            disconnect = disconnect or lost
        if connection is not None:
            if disconnect:
                with suppress(*failures.LOST):  # a server that takes no leave keeps nobody
                    await connection.disconnect()
            await self._pipeline.node.release(connection)

    def abandon(self) -> None:
        """The event loop is closed."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.detach()
        abandon(self.connection)

    async def _serve(self, batch: list[Command], *, texts: bool = False) -> None:
        """Until each has its answer, or an error."""
        pause = FIRST_PAUSE
        if self._leaves:
            await self._drop()
        while batch:
            try:
                wire = await self._connected()
            except Exception as error:  # noqa: BLE001 - a credential provider raises what it likes
                await self._drop()  # which was left in the middle of its handshake, perhaps
                if failures.is_of_the_pool(error) and self._pipeline.dismiss(self, batch):
                    return
                batch = self._again(batch, error)
            else:
                batch = [command for command in batch if not command.future.done()]  # withdrawn meanwhile
                if not batch:  # asyncio has transports that never get rid of nothing
                    return
                batch, texts = await self._exchange(wire, batch, texts=texts)
                if self._leaves:
                    await self._drop()
                if texts:
                    continue
            if batch:
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._pipeline.longest_pause)

    async def _connected(self) -> Wire:
        """The connection, open as far as one can know."""
        if self._wire is not None:
            for _ in range(2):  # so that what has come meanwhile is there, such as the end
                if not self._wire.open or self._loop.time() - self._used < FRESH:
                    break
                await asyncio.sleep(0)
            if self._wire.open:
                return self._wire
            await self._drop()
        async with asyncio.timeout(self._settings.connect_timeout):
            if self.connection is None:
                self.connection = await self._pipeline.node.acquire()
            if not self.connection.is_connected:
                await self.connection.connect()
        self._wire = Wire(self.connection)
        return self._wire

    async def _exchange(self, wire: Wire, batch: list[Command], *, texts: bool) -> tuple[list[Command], bool]:
        """Send the commands and hand out the answers; which are to be sent again, and whether with their scripts."""
        if not batch:
            return [], False
        waits = self._settings.wait_replicas if any(command.waits for command in batch) else 0
        answered: asyncio.Future[tuple[list[Any], Exception | None]] = self._loop.create_future()

        def tell(replies: list[Any], error: Exception | None) -> None:
            if not answered.done():
                answered.set_result((replies, error))

        for command in batch:
            command.sent = True
        try:
            async with asyncio.timeout(self._settings.timeout):
                wanted = sum(command.replies for command in batch) + bool(waits)
                wire.ask(self._packed(batch, texts=texts, waits=waits), wanted, tell)
                replies, error = await answered
                replies = _folded(batch, replies)
        except TimeoutError as late:
            replies, error = [], late
        except asyncio.CancelledError:
            await self._drop()
            raise
        self._used = self._loop.time()
        if error is not None:
            await self._drop()
        if waits:
            return self._confirmed(batch, replies, error)
        return self._sort_out(batch, replies, error)

    def _sort_out(
        self, batch: list[Command], replies: list[Any], error: Exception | None
    ) -> tuple[list[Command], bool]:
        """Hand out the answers; which commands are to be sent again, and whether with their scripts."""
        again: list[Command] = []
        unknown_scripts = False
        for command, reply in zip(batch, replies, strict=False):
            if isinstance(reply, redis.NoScriptError):
                again.append(command)
                unknown_scripts = True
            elif command.plain and isinstance(reply, Exception):
                command.plain = ()  # a server without memory takes no transaction, and runs scripts that read
                again.append(command)
                unknown_scripts = True
            elif isinstance(reply, Exception):
                again += self._refused(command, reply)
            else:
                command.answer(reply)
        if error is None:
            return again, unknown_scripts
        lost = batch[len(replies) :]
        for command in lost:
            command.uncertain = True
        return again + self._again(lost, error), False

    def _confirmed(
        self, batch: list[Command], replies: list[Any], error: Exception | None
    ) -> tuple[list[Command], bool]:
        """The same, of commands after which the server was asked how many replicas have them."""
        if error is None and isinstance(replies[-1], Exception):
            error = replies.pop()  # not even that can be told
        if error is not None:
            known = [command for command, reply in zip(batch, replies, strict=False) if isinstance(reply, Exception)]
            unsure = [command for command in batch if command not in known]
            refusals = [reply for reply in replies if isinstance(reply, Exception)]
            again, _ = self._sort_out(known, refusals, None)
            for command in unsure:
                command.uncertain = True
            return again + self._again(unsure, error), False
        confirmed, wanted = replies.pop(), self._settings.wait_replicas
        for command, reply in zip(batch, replies, strict=True):
            if confirmed < wanted and not isinstance(reply, Exception) and command.waits and command.has_written(reply):
                command.uncertain = True
                command.fail(StoreError(f"{self._settings.place}: {confirmed} of {wanted} replicas confirmed in time"))
        return self._sort_out(batch, replies, None)

    def _packed(self, batch: list[Command], *, texts: bool = False, waits: int = 0) -> bytes:
        if len(batch) == 1 and not texts and not waits:
            return batch[0].packed()
        sent: list[bytes] = []
        told: set[Script | None] = {None}
        for command in batch:
            sent.append(command.packed(text=texts and command.script not in told))
            if not command.plain:
                told.add(command.script)
        if waits:
            sent.append(pack(("WAIT", waits, int(self._settings.wait_timeout * 1000))))
        return b"".join(sent)

    def _refused(self, command: Command, error: Exception) -> list[Command]:
        """The server has refused the command: it, if it is to be sent again."""
        if failures.is_of_a_replica(error):
            self._leaves = True
        elif not failures.passes(error) and not (failures.is_redirection(error) and self._pipeline.node.moves):
            command.fail(self._pipeline.translated(error))
            return []
        return self._again([command], error)

    def _again(self, batch: list[Command], error: Exception) -> list[Command]:
        """Those of the commands that go on here. Others go on elsewhere, or are told why not."""
        pipeline = self._pipeline
        hopeful = [command for command in batch if pipeline.hopes(command, error)]
        if not pipeline.node.moves:
            return hopeful
        for command in hopeful:
            pipeline.redirect(command, error)
        return []


def _folded(batch: list[Command], replies: list[Any]) -> list[Any]:
    """One reply for each command, of a transaction its result or the first error; and what follows."""
    if len(replies) <= len(batch) + 1 and not any(command.plain for command in batch):
        return replies
    found: list[Any] = []
    at = 0
    for command in batch:
        behind = at + command.replies
        if behind > len(replies):
            return found  # the connection was lost
        result = replies[behind - 1]
        if command.plain:
            met = [*replies[at:behind], *(result if isinstance(result, list) else ())]
            result = next((reply for reply in met if isinstance(reply, Exception)), result)
        found.append(result)
        at = behind
    return found + replies[at:]
