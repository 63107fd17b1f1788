"""A proxy between the store and the emulator that notes every request, and makes those fail that it is told to."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.dynamodb import server


class Request(NamedTuple):
    """One request: ``GetItem`` and its like, and what it asks for."""

    operation: str
    asked: dict[str, Any]


Fault = Callable[[Request], "str | None"]
"""What is to become of a request: a name, or None for nothing.

``lost``: it is done, and its answer does not come. ``unsent``: the connection closes before. ``failed``: it is done,
but the answer is an error of the service's. ``half``: half of a batch is left. ``page``: a query is given one item at a
time. ``none``: nothing of a batch is done, and all of it is left. ``broken``: nothing is done, and the answer is an
error of the service's. The names of `REFUSALS`: it is refused.
"""

REFUSALS = {
    "busy": "ProvisionedThroughputExceededException",
    "throttled": "ThrottlingException",
    "conflict": "TransactionConflictException",
    "limited": "RequestLimitExceeded",
    "denied": "AccessDeniedException",
}


class Proxy:
    """Listens on `port`. `fault` may be set at any time."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.requests: list[Request] = []
        self.struck: Counter[str] = Counter()
        self.fault: Fault = lambda request: None
        self._there = port
        self._open: set[asyncio.StreamWriter] = set()

    def once(self, name: str, *operations: str, times: int = 1) -> None:
        """The next requests of these operations fail so, that many times."""
        left = times

        def fault(request: Request) -> str | None:
            nonlocal left
            if request.operation not in operations or not left:
                return None
            left -= 1
            return name

        self.fault = fault

    def count(self) -> Counter[str]:
        """How often each operation was asked for since the last time."""
        found = Counter(request.operation for request in self.requests)
        self.requests.clear()
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while found := await self._received(reader):
                request, head, body = found
                answer = await self._answer(request, head, body)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever was there has gone
        finally:
            self._open.discard(writer)
            writer.close()

    @staticmethod
    async def _received(reader: asyncio.StreamReader) -> tuple[Request, dict[str, str], bytes] | None:
        line = await reader.readline()
        if not line:
            return None
        head: dict[str, str] = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            head[name.strip().lower()] = value.strip()
        body = await reader.readexactly(int(head.get("content-length", 0)))
        operation = head.get("x-amz-target", "").rpartition(".")[2]
        return Request(operation, json.loads(body or b"{}")), head, body

    async def _answer(self, request: Request, head: dict[str, str], body: bytes) -> bytes | None:
        self.requests.append(request)
        name = self.fault(request)
        if name is None:
            return await self._passed_on(head, body)
        self.struck[name] += 1
        if name == "unsent":
            return None
        if name in REFUSALS:
            kind, reasons = f"com.amazonaws.dynamodb.v20120810#{REFUSALS[name]}", [{"reason": "TableReadKeyRange"}]
            return _response(400, {"__type": kind, "message": "not now", "ThrottlingReasons": reasons}, after=1)
        if name == "none":
            left = "UnprocessedKeys" if request.operation == "BatchGetItem" else "UnprocessedItems"
            return _response(200, {"Responses": {}, left: request.asked["RequestItems"]})
        if name == "page":
            return await self._passed_on(head, json.dumps({**request.asked, "Limit": 1}).encode())
        if name == "half":
            return await self._half(request, head)
        if name != "broken":
            await self._passed_on(head, body)
        if name in ("failed", "broken"):
            return _response(500, {"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError", "message": "oh"})
        return None  # lost

    async def _half(self, request: Request, head: dict[str, str]) -> bytes:
        """Half of a batch is done, the rest left."""
        ((table, wanted),) = request.asked["RequestItems"].items()
        reading = isinstance(wanted, dict)
        every = wanted["Keys"] if reading else wanted
        now, later = every[: (len(every) + 1) // 2], every[(len(every) + 1) // 2 :]
        asked = {"RequestItems": {table: {**wanted, "Keys": now} if reading else now}}
        answer = json.loads((await self._passed_on(head, json.dumps(asked).encode())).partition(b"\r\n\r\n")[2])
        if later:
            left = {table: {**wanted, "Keys": later} if reading else later}
            answer["UnprocessedKeys" if reading else "UnprocessedItems"] = left
        return _response(200, answer)

    async def _passed_on(self, head: dict[str, str], body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._there)
        sent = {**head, "host": f"127.0.0.1:{self._there}", "content-length": str(len(body)), "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        writer.write(f"POST / HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        there: dict[str, str] = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            there[name.strip().lower()] = value.strip()
        size = there.get("content-length")
        content = await reader.read() if size is None else await reader.readexactly(int(size))
        writer.close()
        return _response(status, content, date=there.get("date"))

    async def close(self) -> None:
        for writer in list(self._open):
            writer.close()


def _response(status: int, content: Any, *, date: str | None = None, after: int | None = None) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    more = f"date: {date}\r\n" if date else ""
    more += f"retry-after: {after}\r\n" if after else ""
    head = (
        f"HTTP/1.1 {status} OK\r\ncontent-type: application/x-amz-json-1.0\r\n{more}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def proxy(kind: str = "ministack") -> AsyncIterator[Proxy]:
    """A proxy before this process's emulator."""
    made = Proxy(server.shared(kind).port)
    serving = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=1 << 24)
    made.port = serving.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        await made.close()
        serving.close()
        await serving.wait_closed()


def through(proxy: Proxy, options: str = "") -> str:
    """The URL of a new table, through the proxy."""
    more = f"&{options}" if options else ""
    return f"dynamodb://{server.REGION}/{server.make_table()}?endpoint_url=http://127.0.0.1:{proxy.port}{more}"
