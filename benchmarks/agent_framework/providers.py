"""The history providers that are measured, each with nothing stored. ``folder`` is an empty one for its files."""

from __future__ import annotations

import importlib.metadata
import os
import uuid
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import agent_framework
from agent_framework import HistoryProvider

from chatkeep import Window
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

REDIS_URL = "CHATKEEP_BENCH_REDIS_URL"
"""The variable of the environment that says which Redis server may be used."""

Opener = Callable[[Path], AbstractAsyncContextManager[HistoryProvider]]


class MissingError(Exception):
    """Why a provider cannot be measured here."""


def chatkeep(folder: Path) -> AbstractAsyncContextManager[HistoryProvider]:
    """Ours: the model is shown the whole history, as with the others."""
    return ChatkeepHistoryProvider(f"sqlite:///{folder}/ours.db")


def chatkeep_window(folder: Path) -> AbstractAsyncContextManager[HistoryProvider]:
    """Ours as it is meant for a long conversation: the model is shown as much of a long history as of the shortest."""
    return ChatkeepHistoryProvider(f"sqlite:///{folder}/ours.db", window=Window(max_messages=10))


@asynccontextmanager
async def files(folder: Path) -> AsyncIterator[HistoryProvider]:
    """The framework's own, a file of JSON lines for each session."""
    if not hasattr(agent_framework, "FileHistoryProvider"):
        raise MissingError(f"agent-framework-core {importlib.metadata.version('agent-framework-core')} has none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the framework says that it is an experiment
        provider = agent_framework.FileHistoryProvider(folder / "files")
    yield provider


@asynccontextmanager
async def redis(_: Path) -> AsyncIterator[HistoryProvider]:
    """The framework's, a list for each session. What it has stored is taken out again."""
    if not (url := os.environ.get(REDIS_URL)):
        raise MissingError(f"{REDIS_URL} names no server")
    try:
        from agent_framework_redis import RedisHistoryProvider  # noqa: PLC0415 - a package of its own
        from redis.asyncio import Redis  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415
    except ImportError as error:
        raise MissingError("not installed: pip install --pre agent-framework-redis") from error
    application = f"chatkeep-bench-{uuid.uuid4().hex}"
    client: Any = Redis.from_url(url, decode_responses=True)
    try:
        try:
            await client.ping()
        except RedisError as error:
            raise MissingError(f"no server where {REDIS_URL} points: {type(error).__name__}") from error
        try:
            yield RedisHistoryProvider(redis_client=client, application_id=application)
        finally:
            async for key in client.scan_iter(match=f"*{application}*"):
                await client.delete(key)
    finally:
        await client.aclose()
