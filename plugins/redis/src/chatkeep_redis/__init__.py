"""Conversations in Redis and Valkey: chatkeep's backend for ``redis://`` and its relatives."""

from __future__ import annotations

from typing import Any

from chatkeep.backend import Backend, BackendSpec
from chatkeep.plugins import hookimpl
from chatkeep.url import StoreURL

from .options import SCHEMES, RedisOptions

__all__ = ["RedisOptions", "chatkeep_backend"]


def open_backend(url: StoreURL, options: RedisOptions, client: Any) -> Backend:
    """A backend for the URL, or on the caller's own client."""
    from .backend import RedisBackend  # noqa: PLC0415 - the driver is imported for the first store

    return RedisBackend(url, options, client)


@hookimpl
def chatkeep_backend() -> BackendSpec:
    return BackendSpec("redis", tuple(SCHEMES), RedisOptions, open_backend, takes_client=True)
