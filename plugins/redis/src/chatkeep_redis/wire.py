"""A connection of the driver's from the time on at which it has shaken hands: answers come without a task that waits.

The driver connects, speaks TLS, logs in and chooses the database. Then the transport gets this protocol, which parses
with hiredis as the driver's does, and calls back when all answers to what was asked are there. `detach` gives the
transport back as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis
from redis import exceptions as redis

Tell = Callable[[list[Any], Exception | None], None]
"""Gets the answers in order, refusals as exceptions; with an error, only those that came before it."""

_NOTHING = object()
_PUSH: Any = getattr(hiredis, "PushNotification", ())
"""What a server says unasked."""


class Wire(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self, connection: Any) -> None:
        self.open = True
        self._transport = connection._writer.transport
        self._driver = self._transport.get_protocol()
        self._reader = hiredis.Reader(
            protocolError=redis.InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=_NOTHING,
        )
        self._replies: list[Any] = []
        self._wanted = 0
        self._tell: Tell | None = None
        self._transport.set_protocol(self)

    def ask(self, data: bytes, wanted: int, tell: Tell) -> None:
        """Send what has so many answers."""
        self._replies, self._wanted, self._tell = [], wanted, tell
        self._transport.write(data)

    def fail(self, error: Exception) -> None:
        """Break the connection; whoever waits gets the error."""
        self.open = False
        self._transport.abort()
        self._end(error)

    def detach(self) -> None:
        """Let the driver have its connection again. Nobody is told anything any more."""
        self.open = False
        self._tell = None
        self._transport.set_protocol(self._driver)

    def data_received(self, data: bytes) -> None:
        reader, replies = self._reader, self._replies
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING:
                if not isinstance(reply, _PUSH):
                    replies.append(reply)
        except redis.RedisError as error:
            self.fail(redis.ConnectionError(f"no answer of Redis's: {error}"))
            return
        if self._tell is not None and len(replies) >= self._wanted:
            self._end(None)

    def eof_received(self) -> bool:
        self.open = False
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._driver.connection_lost(exc)
        self._end(redis.ConnectionError(f"the connection was lost: {exc or 'the server has closed it'}"))

    def _end(self, error: Exception | None) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self._replies, error)
