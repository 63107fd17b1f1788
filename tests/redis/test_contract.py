"""The contract, on Redis."""

from __future__ import annotations

import pytest
from tests.redis import servers

from chatkeep.testing import StoreContract


class TestRedis(StoreContract):
    tick = 0.3

    @pytest.fixture
    def url(self) -> str:
        return servers.shared().url(prefix=servers.prefix())

    @pytest.fixture
    def unreachable_url(self) -> str:
        return f"redis://127.0.0.1:{servers.free_port()}/0"
