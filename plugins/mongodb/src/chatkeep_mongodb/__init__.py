"""Conversations in MongoDB: chatkeep's backend for ``mongodb://`` and ``mongodb+srv://`` URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chatkeep.backend import BackendSpec
from chatkeep.plugins import hookimpl

from .options import MongoOptions

if TYPE_CHECKING:
    from chatkeep.documents import DocumentBackend
    from chatkeep.url import StoreURL

__all__ = ["MongoOptions", "chatkeep_backend"]


def _open(url: StoreURL, options: MongoOptions, client: Any) -> DocumentBackend:
    from .connecting import open_backend  # noqa: PLC0415 - the driver takes long to import

    return open_backend(url, options, client)


@hookimpl
def chatkeep_backend() -> BackendSpec:
    return BackendSpec("mongodb", ("mongodb", "mongodb+srv"), MongoOptions, _open, takes_client=True)
