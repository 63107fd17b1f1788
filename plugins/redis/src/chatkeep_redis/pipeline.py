"""Concurrent calls share a pipeline.

A `Pipeline` leads to one server. Commands wait in its queue; each of a few lanes has one connection, and takes all that
waits when it is free: one request, one answer. What is lost with a connection is sent again. That is safe: whatever is
read may be read twice, and a write carries a token by which the server knows it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import hiredis
from redis import exceptions as redis

from chatkeep.errors import StoreClosedError, StoreError

from . import failures
from .abandoned import abandon
from .scripts import Script

_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # whose annotation is of tuples of one

BATCH = 128
"""How many commands share a request at most."""
FRESH = 0.01
"""For so many seconds a connection is taken to be open still; then it is looked at."""
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Between attempts to reach a server."""
REPLICA_PATIENCE = 1.0
"""Seconds for which a server that has become a replica is asked again, where nobody says which is the master now."""


class Command:
    """A command that is to be sent, and the future that gets its answer."""

    __slots__ = ("args", "decode", "future", "hopes", "keys", "script", "sent", "since", "uncertain", "writes")

    def __init__(
        self,
        script: Script | None,
        keys: Sequence[bytes],
        args: Sequence[Any],
        decode: Callable[[Any], Any] | None,
        future: asyncio.Future[Any],
        *,
        writes: bool = False,
        hopes: bool = True,
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.decode = decode
        self.future = future
        self.writes = writes
        self.hopes = hopes
        """Whether it is sent again where the server cannot be reached."""
        self.sent = False
        self.uncertain = False
        """Whether it was sent and nobody can say what became of it."""
        self.since = 0.0
        """When it failed first."""

    def parts(self, *, text: bool = False) -> tuple[Any, ...]:
        """What is sent; with the script's text where the server does not know it."""
        if self.script is None:
            return tuple(self.args)
        name = ("EVAL", self.script.text) if text else ("EVALSHA", self.script.digest)
        return (*name, len(self.keys), *self.keys, *self.args)

    def answer(self, reply: Any) -> None:
        """The server has said this."""
        if self.future.done():
            return
        try:
            result = self.decode(reply) if self.decode else reply
        except Exception as error:  # noqa: BLE001 - for whoever waits
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        if self.future.done():
            return
        if self.uncertain and self.writes:
            unknown = failures.unknown(str(error))
            unknown.__cause__ = error.__cause__ or error
            self.future.set_exception(unknown)
        else:
            self.future.set_exception(error)


class Node(Protocol):
    """Where connections to one server come from."""

    finds_masters: bool
    """Whether another attempt may lead to another server."""
    moves: bool
    """Whether another node may have, or get, some of its keys."""

    async def acquire(self) -> Any: ...

    async def release(self, connection: Any) -> None: ...

    async def elsewhere(self, parts: tuple[Any, ...]) -> Any:
        """The answer of whichever node has the command's keys now."""
        ...


class Settings(Protocol):
    """What a pipeline is told."""

    place: str
    prefix: str
    timeout: float
    connect_timeout: float
    connections: int
    wait_replicas: int
    wait_timeout: float


class Pipeline:
    """The way to one server."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self.closed = False
        self.lanes: list[Lane] = []
        self._idle: list[Lane] = []
        self._queue: deque[Command] = deque()
        self._redirections: set[asyncio.Task[None]] = set()
        self._elsewhere = asyncio.Semaphore(settings.connections)
        self._longest = 0.7 * min(settings.connect_timeout, settings.timeout)

    def send(self, command: Command) -> None:
        """Have it sent, with all that waits by then."""
        if self.closed:
            command.fail(self.refusal())
            return
        self._queue.append(command)
        if self._idle:
            self._idle.pop().start()
        elif len(self.lanes) < self.settings.connections:
            lane = Lane(self)
            self.lanes.append(lane)
            lane.start()

    def refusal(self) -> StoreClosedError:
        return StoreClosedError(f"{self.settings.place} was closed; nothing was written")

    def refuse_all(self) -> None:
        """Whoever still waits is told that nothing will come."""
        while self._queue:
            self._queue.popleft().fail(self.refusal())

    def take(self) -> list[Command]:
        """Those whose turn it is."""
        taken: list[Command] = []
        queue = self._queue
        while queue and len(taken) < BATCH:
            command = queue.popleft()
            if not command.future.done():
                taken.append(command)
        return taken

    def hopes(self, command: Command, error: Exception) -> bool:
        """Whether the command that met this error is to be sent again; if not, it is told so."""
        if command.future.done():
            return False
        now = asyncio.get_running_loop().time()
        command.since = command.since or now
        if not self.closed and now - command.since < self._patience(command, error):
            return True
        command.fail(self.translated(error))
        return False

    def _patience(self, command: Command, error: Exception) -> float:
        """For how many seconds the same is tried again."""
        settings, passing = self.settings, failures.passes(error)
        if failures.is_of_a_replica(error) and not self.node.finds_masters:
            return min(REPLICA_PATIENCE, settings.connect_timeout)
        if not command.hopes and not passing:
            return 0.0
        if passing or failures.is_lost(error) or failures.is_redirection(error) or failures.is_of_a_replica(error):
            return self._longest
        return 0.0

    def translated(self, error: Exception) -> StoreError:
        mine = failures.translated(error, self.settings.place, self.settings.prefix)
        mine.__cause__ = error
        return mine

    def redirect(self, command: Command, error: Exception) -> None:
        """Have the command sent to whichever node has its keys now."""
        task = asyncio.get_running_loop().create_task(self._redirected(command, error))
        self._redirections.add(task)
        task.add_done_callback(self._redirections.discard)

    async def _redirected(self, command: Command, error: Exception) -> None:
        pause, text = FIRST_PAUSE, False
        try:
            while self.hopes(command, error):
                command.sent = True
                try:
                    async with self._elsewhere, asyncio.timeout_at(command.since + self._longest):
                        reply = await self.node.elsewhere(command.parts(text=text))
                except TimeoutError:
                    command.uncertain = True  # and the error that came first says why
                except redis.NoScriptError:
                    text = True
                    continue
                except (redis.RedisError, redis.RedisClusterException, OSError) as met:
                    error = met
                    command.uncertain = command.uncertain or failures.is_lost(met)
                else:
                    command.answer(reply)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        except asyncio.CancelledError:  # of an event loop that ends
            command.uncertain = True
            command.fail(self.refusal())
            raise

    def rest(self, lane: Lane) -> None:
        """The lane has nothing to do."""
        if self._queue and not self.closed:  # since it looked last
            lane.start()
        else:
            self._idle.append(lane)

    async def close(self, *, disconnect: bool) -> None:
        """Answer what was sent, refuse the rest, give back the connections."""
        self.closed = True
        self.refuse_all()
        tasks = [*self._redirections, *(lane.task for lane in self.lanes if lane.task is not None)]
        if busy := [task for task in tasks if not task.done()]:
            await asyncio.wait(busy)
        await asyncio.gather(*(lane.release(disconnect=disconnect) for lane in self.lanes))
        self.lanes = []

    def abandon(self) -> None:
        """Its event loop is closed: nobody waits any more, and nothing can be awaited."""
        self.closed = True
        for lane in self.lanes:
            abandon(lane.connection)


class Lane:
    """One connection, and the task that sends on it while there is something to send."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.connection: Any = None
        self.task: asyncio.Task[None] | None = None
        self._pipeline = pipeline
        self._settings = pipeline.settings
        self._busy = False
        self._used = 0.0
        self._leaves = False
        """Whether the connection leads to where nothing can be written."""

    def start(self) -> None:
        self._busy = True
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._busy and task is self.task:  # it was cancelled before it had begun
            self._rest()

    def _rest(self) -> None:
        self._busy = False
        self._pipeline.rest(self)

    async def _run(self) -> None:
        batch: list[Command] = []
        try:
            while batch := self._pipeline.take():
                await self._serve(batch)
        except asyncio.CancelledError:  # of an event loop that ends
            for command in batch:
                command.uncertain = command.sent
                command.fail(self._pipeline.refusal())
            self._pipeline.refuse_all()
            raise
        finally:
            self._rest()

    async def release(self, *, disconnect: bool) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            if disconnect:
                with suppress(*failures.LOST):  # a server that takes no leave keeps nobody
                    await connection.disconnect()
            await self._pipeline.node.release(connection)

    async def _serve(self, batch: list[Command]) -> None:
        """Until each has its answer, or an error."""
        pause = FIRST_PAUSE
        texts = False
        while batch:
            try:
                connection = await self._connected()
            except (redis.RedisError, redis.RedisClusterException, OSError) as error:
                batch = self._again(batch, error)
            else:
                batch = [command for command in batch if not command.future.done()]  # withdrawn meanwhile
                batch, texts = await self._exchange(connection, batch, texts=texts)
                if texts:
                    continue
            if batch:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _connected(self) -> Any:
        """The connection, open as far as one can know."""
        connection = self.connection
        if connection is not None and connection.is_connected:
            if asyncio.get_running_loop().time() - self._used < FRESH:
                return connection
            await asyncio.sleep(0)  # so that what has come meanwhile is there, such as the end
            if connection.is_connected and not await _has_something(connection):
                return connection
            await connection.disconnect(nowait=True)
        async with asyncio.timeout(self._settings.connect_timeout):
            if connection is None:
                self.connection = connection = await self._pipeline.node.acquire()
            if not connection.is_connected:
                await connection.connect()
        return connection

    async def _exchange(self, connection: Any, batch: list[Command], *, texts: bool) -> tuple[list[Command], bool]:
        """Send the commands and hand out the answers; which are to be sent again, and whether with their scripts."""
        waits = self._settings.wait_replicas if any(command.writes for command in batch) else 0
        replies: list[tuple[Command, Any]] = []
        again: list[Command] = []
        unknown_scripts = False
        read = 0
        for command in batch:
            command.sent = True
        try:
            async with asyncio.timeout(self._settings.timeout):
                await connection.send_packed_command(self._packed(batch, texts=texts, waits=waits))
                for command in batch:
                    try:
                        reply = await connection.read_response(disable_decoding=True)
                    except redis.NoScriptError:
                        again.append(command)
                        unknown_scripts = True
                    except redis.ResponseError as error:
                        again += self._refused(command, error)
                    else:
                        if waits and command.writes:
                            replies.append((command, reply))
                        else:
                            command.answer(reply)
                    read += 1
                if waits:
                    confirmed = await connection.read_response(disable_decoding=True)
                    self._answer_confirmed(replies, confirmed)
                    replies = []
        except failures.LOST as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, redis.BusyLoadingError):  # the answer to one
                again += self._again(batch[read : read + 1], error)
                read += 1
            lost = [command for command, _ in replies] + batch[read:]
            for command in lost:
                command.uncertain = True
            return again + self._again(lost, error), False
        except asyncio.CancelledError:
            await connection.disconnect(nowait=True)
            raise
        if self._leaves:
            self._leaves = False
            await connection.disconnect(nowait=True)
        self._used = asyncio.get_running_loop().time()
        return again, unknown_scripts

    def _packed(self, batch: list[Command], *, texts: bool, waits: int) -> list[bytes]:
        sent: list[bytes] = []
        told: set[Script | None] = {None}
        for command in batch:
            sent.append(_pack(command.parts(text=texts and command.script not in told)))
            told.add(command.script)
        if waits:
            sent.append(_pack(("WAIT", waits, int(self._settings.wait_timeout * 1000))))
        return [b"".join(sent)]

    def _answer_confirmed(self, replies: list[tuple[Command, Any]], confirmed: int) -> None:
        wanted = self._settings.wait_replicas
        for command, reply in replies:
            if confirmed >= wanted:
                command.answer(reply)
            else:
                command.uncertain = True
                command.fail(StoreError(f"{self._settings.place}: {confirmed} of {wanted} replicas confirmed in time"))

    def _refused(self, command: Command, error: redis.ResponseError) -> list[Command]:
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


async def _has_something(connection: Any) -> bool:
    """Whether there is something to be read that nobody asked for: the end, as a rule."""
    look = getattr(connection, "can_read", None) or connection.can_read_destructive
    try:
        return bool(await look())
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True
