"""Concurrent calls share a pipeline.

A `Pipeline` leads to one server. Commands wait in its queue; each of a few lanes has one connection, and takes all that
waits when it is free: one request, one answer. What is lost with a connection is sent again. That is safe: whatever is
read may be read twice, and a write carries a token by which the server knows it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

from redis import exceptions as redis

from chatkeep.errors import StoreClosedError, StoreError

from . import failures
from .commands import Command
from .lanes import FIRST_PAUSE, Lane

BATCH = 16
"""How many commands share a request at most: few enough for the server to work while we read its answers."""
LONGEST_PAUSE = 0.5
"""Between attempts to reach a server."""
REPLICA_PATIENCE = 1.0
"""Seconds for which a server that has become a replica is asked again, where nobody says which is the master now."""


class Node(Protocol):
    """Where connections to one server come from."""

    finds_masters: bool
    """Whether another attempt may lead to another server."""
    moves: bool
    """Whether another node may have, or get, some of its keys."""
    most: int
    """How many connections there can be at once."""

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
        # Short enough for the last attempt's error to come before the end of the patience.
        self.longest_pause = min(LONGEST_PAUSE, settings.connect_timeout / 20, settings.timeout / 20)
        self._short = 0.7 * min(settings.connect_timeout, settings.timeout)
        self._long = max(self._short, 0.9 * settings.timeout - settings.connect_timeout)
        self._most = min(settings.connections, node.most)

    def send(self, command: Command) -> None:
        """Have it sent, with all that waits by then."""
        if self.closed:
            command.fail(self.refusal())
            return
        self._queue.append(command)
        if self._idle:
            self._idle.pop().start()
        elif len(self.lanes) < self._most:
            lane = Lane(self)
            self.lanes.append(lane)
            lane.start()

    def refusal(self) -> StoreClosedError:
        return StoreClosedError(f"{self.settings.place} was closed; nothing was written")

    def refuse_all(self) -> None:
        """Whoever still waits is told that nothing will come."""
        while self._queue:
            self._queue.popleft().fail(self.refusal())

    def dismiss(self, lane: Lane, batch: list[Command]) -> bool:
        """Do without a lane that gets no connection, if another one has one and takes over its commands."""
        if not any(other.connection is not None for other in self.lanes):
            return False
        self.lanes.remove(lane)
        self._most = len(self.lanes)
        self._queue.extendleft(reversed(batch))
        if self._idle:
            self._idle.pop().start()
        return True

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
        if not command.hopes:
            return self._short if passing else 0.0
        elsewhere = failures.is_redirection(error) or failures.is_of_a_replica(error)
        if passing or elsewhere or (failures.is_lost(error) and self.node.finds_masters):
            return self._long
        return self._short if failures.is_lost(error) else 0.0

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
                    async with self._elsewhere, asyncio.timeout_at(command.since + self._long):
                        reply = await self.node.elsewhere(command.parts(text=text))
                except TimeoutError:
                    command.uncertain = True  # and the error that came first says why
                except redis.NoScriptError:
                    text = True
                    continue
                except Exception as met:  # noqa: BLE001 - whatever the driver raises is for those who wait
                    error = met
                    refused = isinstance(met, failures.DRIVER_ERRORS) and not failures.is_lost(met)
                    command.uncertain = command.uncertain or not refused
                else:
                    command.answer(reply)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.longest_pause)
        except asyncio.CancelledError:  # of an event loop that ends
            command.uncertain = True
            command.fail(self.refusal())
            raise

    def rest(self, lane: Lane) -> None:
        """The lane has nothing to do."""
        if lane not in self.lanes:
            return
        if self._queue and not self.closed:  # since it looked last
            lane.start()
        else:
            self._idle.append(lane)

    async def close(self, *, disconnect: bool) -> None:
        """Answer what was sent, refuse the rest, give back the connections."""
        self.closed = True
        self.refuse_all()
        resting = [lane.resting() for lane in self.lanes]
        if busy := [each for each in (*self._redirections, *resting) if not each.done()]:
            await asyncio.wait(busy)
        await asyncio.gather(*(lane.release(disconnect=disconnect) for lane in self.lanes))
        self.lanes = []

    def abandon(self) -> None:
        """Its event loop is closed: nobody waits any more, and nothing can be awaited."""
        self.closed = True
        for lane in self.lanes:
            lane.abandon()
