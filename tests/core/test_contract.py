"""The contract, on the memory backend."""

from __future__ import annotations

import uuid

import pytest

from chatkeep.testing import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}"
