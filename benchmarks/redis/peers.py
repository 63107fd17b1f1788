"""What agent frameworks have of their own for keeping a conversation in Redis. None of them is needed by chatkeep."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from benchmarks.turns import Turn

Append = Callable[[Turn], Awaitable[object]]
"""Stores a turn in one session."""
Peer = Callable[[str, str], AbstractAsyncContextManager[Append]]
"""``peer(url, session)``: its append, while it is open."""


class MissingError(Exception):
    """Why a peer cannot be measured here."""


def needed(package: str, install: str) -> None:
    """A `MissingError` if a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise MissingError(f"not installed: pip install {install}")


@asynccontextmanager
async def langchain(url: str, session: str) -> AsyncIterator[Append]:
    """``RedisChatMessageHistory`` of langchain-community, as an asynchronous program calls it: a thread of a pool.

    The one of langchain-redis wants a server with the search module.
    """
    needed("langchain_community", "langchain-community redis")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langchain_community.chat_message_histories import RedisChatMessageHistory  # noqa: PLC0415
        from langchain_core.messages import AIMessage, HumanMessage  # noqa: PLC0415

        history: Any = RedisChatMessageHistory(session, url=url)

    async def append(turn: Turn) -> None:
        await history.aadd_messages([HumanMessage(turn[0]), AIMessage(turn[1])])

    yield append
    history.clear()
    history.redis_client.close()


@asynccontextmanager
async def openai_agents(url: str, session: str) -> AsyncIterator[Append]:
    """``RedisSession`` of the OpenAI Agents SDK."""
    needed("agents", "'openai-agents[redis]'")
    from agents.extensions.memory import RedisSession  # noqa: PLC0415

    kept: Any = RedisSession.from_url(session, url=url)

    async def append(turn: Turn) -> None:
        await kept.add_items([{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}])

    yield append
    await kept.clear_session()
    await kept.close()


@asynccontextmanager
async def agent_framework(url: str, session: str) -> AsyncIterator[Append]:
    """``RedisHistoryProvider`` of the Microsoft Agent Framework."""
    needed("agent_framework_redis", "--pre agent-framework-redis")
    from agent_framework import Message  # noqa: PLC0415
    from agent_framework_redis import RedisHistoryProvider  # noqa: PLC0415

    provider: Any = RedisHistoryProvider(redis_url=url, application_id=session)

    async def append(turn: Turn) -> None:
        await provider.save_messages(session, [Message("user", [turn[0]]), Message("assistant", [turn[1]])])

    yield append
    await provider.clear(session)
    await provider.aclose()
