"""The contract, on the document algorithm: over a driver in memory, with little room in everything.

So that heads spill, leaves are divided and listed, and payloads lie elsewhere, all the time.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from chatkeep import plugins
from chatkeep.backend import Backend, BackendSpec
from chatkeep.documents import DocumentBackend, Limits
from chatkeep.documents.inmemory import Documents, InMemoryDriver
from chatkeep.options import StoreOptions
from chatkeep.testing import StoreContract
from chatkeep.url import StoreURL

CRAMPED = Limits(
    inline_records=4,
    inline_bytes=2000,
    head_bytes=2500,
    leaf_records=3,
    leaf_bytes=1500,
    body_bytes=300,
    part_bytes=100_000,
    state_bytes=200,
    refs=4,
    recent=8,
    garbage=4,
)


class InProcess(DocumentBackend):
    """It opens nothing, so that the contract knows that no other process can have its database."""

    open = Backend.open


@pytest.mark.once  # in the other sessions the backends that are built on it have the contract
class TestDocuments(StoreContract):
    @pytest.fixture
    def url(self, monkeypatch: pytest.MonkeyPatch) -> str:
        documents = Documents()

        def open_backend(url: StoreURL, options: StoreOptions, client: Any) -> Backend:
            return InProcess(InMemoryDriver(documents, limits=CRAMPED))

        spec = BackendSpec("documents", ("documents",), StoreOptions, open_backend)
        monkeypatch.setitem(plugins._specs, "documents", spec)
        return f"documents://{uuid.uuid4().hex}"
