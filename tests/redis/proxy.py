"""What stands between a store and its server in the tests: a relay that counts trips and loses what it is told to."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal, Self
from urllib.parse import urlencode

from tests.redis.servers import free_port

Fault = Literal["request", "half a request", "reply"]
"""What gets lost, with the connection: before the server has it, in the middle, or after the server has acted on it."""
FAULTS: tuple[Fault, ...] = ("request", "half a request", "reply")


class Proxy:
    """A relay to a server of this machine. As a context it takes connections."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.trips = 0
        """How often a client has spoken, and then waited for what the server says."""
        self.connections = 0
        """How many connections were ever made."""
        self.silent = False
        """Whether what the server says is withheld, until `speak`."""
        self._server_port = port
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._closing: asyncio.Task[None] | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self._fault: tuple[Fault, int] | None = None
        self._last = False

    def url(self, database: int = 0, **options: object) -> str:
        """The URL of the server, through here."""
        return f"redis://127.0.0.1:{self.port}/{database}" + (f"?{urlencode(options)}" if options else "")

    def lose(self, what: Fault, *, at: int = 1, for_good: bool = False) -> None:
        """Lose the next request or its reply, or the one that comes `at`-th; `for_good` leaves no connection at all."""
        self._fault = (what, self.trips + at)
        self._last = for_good

    def lose_nothing(self) -> None:
        """Forget what was to be lost."""
        self._fault = None

    @property
    def lost(self) -> bool:
        """Whether what was to be lost has been."""
        return self._fault is None

    def cut(self) -> None:
        """Break every connection."""
        for link in list(self._links):
            link.abort()

    async def shut(self) -> None:
        """Break every connection, and refuse others until `open`."""
        self._refuse()
        self.cut()
        await self._refused()

    def _refuse(self) -> None:
        """Take no further connections."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for each in listener.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())

        async def close() -> None:
            for _ in range(8):  # asyncio forgets, open, whom it has taken and not handed over when this closes
                await asyncio.sleep(0)
            listener.close()

        self._closing = asyncio.create_task(close())

    async def _refused(self) -> None:
        if self._closing is not None:
            await self._closing

    async def open(self) -> None:
        """Take connections, again perhaps."""
        await self._refused()
        self._listener = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    def speak(self) -> None:
        """Pass on what was withheld."""
        self.silent = False
        for link in self._links:
            link.pass_on()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()
        if self._relays:
            await asyncio.wait(self._relays)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        listener = self._listener
        if listener is None:  # shut before it came here
            writer.transport.abort()
            return
        try:
            link = _Link(self, writer, *await asyncio.open_connection("127.0.0.1", self._server_port))
        except BaseException:
            writer.transport.abort()
            raise
        if self._listener is not listener:  # shut meanwhile
            link.abort()
        self._links.add(link)
        try:
            await asyncio.gather(link.forth(reader), link.back())
        finally:
            self._links.discard(link)

    def due(self, link: _Link) -> Fault | None:
        """A trip begins: whether it is the one that goes wrong."""
        self.trips += 1
        if self._fault is None or self.trips < self._fault[1]:
            return None
        what, _ = self._fault
        self._fault = None
        if self._last:
            self._refuse()
            for other in self._links - {link}:
                other.abort()
        return what


class _Link:
    """One connection through the proxy."""

    def __init__(
        self, proxy: Proxy, client: asyncio.StreamWriter, reader: asyncio.StreamReader, server: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._reader = reader
        self._server = server
        self._answered = True
        self._doomed = False
        self._withheld = b""

    async def forth(self, reader: asyncio.StreamReader) -> None:
        """What the client says."""
        with suppress(OSError):
            while data := await reader.read(2**16):
                fault = self._proxy.due(self) if self._answered else None
                self._answered = False
                if fault == "request":
                    break
                if fault == "half a request":
                    self._server.write(data[: len(data) // 2])
                    await self._server.drain()
                    break
                self._doomed = self._doomed or fault == "reply"
                self._server.write(data)
                await self._server.drain()
        self.abort()

    async def back(self) -> None:
        """What the server says."""
        with suppress(OSError):
            while data := await self._reader.read(2**16):
                self._answered = True
                if self._doomed:
                    break
                self._withheld += data
                if not self._proxy.silent:
                    self.pass_on()
        self.abort()

    def pass_on(self) -> None:
        self._client.write(self._withheld)
        self._withheld = b""

    def abort(self) -> None:
        """End both halves: what the server has got it acts on, what it says then nobody hears."""
        self._server.close()
        self._client.transport.abort()
