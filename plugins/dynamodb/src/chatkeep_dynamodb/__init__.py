"""Conversations in Amazon DynamoDB: chatkeep's backend for ``dynamodb://`` URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chatkeep.backend import BackendSpec
from chatkeep.plugins import hookimpl

from .options import DynamoOptions

if TYPE_CHECKING:
    from chatkeep.documents import DocumentBackend
    from chatkeep.url import StoreURL

__all__ = ["DynamoOptions", "chatkeep_backend"]


def _open(url: StoreURL, options: DynamoOptions, client: Any) -> DocumentBackend:
    from .connecting import open_backend  # noqa: PLC0415 - the driver takes long to import

    return open_backend(url, options, client)


@hookimpl
def chatkeep_backend() -> BackendSpec:
    return BackendSpec("dynamodb", ("dynamodb",), DynamoOptions, _open, takes_client=True)
