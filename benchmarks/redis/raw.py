"""The yardsticks: the least that redis-py can do for the same messages.

A list for each session, one script that pushes a turn and trims, messages as plain dicts; no scopes, ids, expiry,
whole turns, conditions, lives or retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import redis.asyncio
from pydantic_core import from_json, to_json

from benchmarks.turns import Turn

PUSH_AND_TRIM = """
local tail = redis.call('RPUSH', KEYS[1], unpack(ARGV, 2))
redis.call('LTRIM', KEYS[1], -ARGV[1], -1)
return tail
"""


def encoded(turn: Turn) -> list[bytes]:
    question, answer = turn
    return [to_json({"role": "user", "content": question}), to_json({"role": "assistant", "content": answer})]


class Raw:
    """redis-py as it is, with a connection for each call that is under way."""

    def __init__(self, url: str, prefix: str, *, keep: int, connections: int = 100) -> None:
        self.client = redis.asyncio.Redis.from_url(url, max_connections=connections)
        self.prefix = prefix
        self.keep = keep
        self.script = self.client.register_script(PUSH_AND_TRIM)

    async def __aenter__(self) -> Self:
        await self.client.ping()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def append(self, session: str, turn: Turn) -> None:
        await self.script(keys=[self.prefix + session], args=[self.keep, *encoded(turn)])

    async def fill(self, session: str, messages: Sequence[bytes]) -> None:
        """Have a history, whatever its length."""
        await self.client.rpush(self.prefix + session, *messages)

    async def newest(self, session: str, limit: int) -> list[Any]:
        """The newest messages, oldest first, decoded."""
        return [from_json(message) for message in await self.client.lrange(self.prefix + session, -limit, -1)]
