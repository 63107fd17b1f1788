"""The contract, on Redis."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.redis import servers

from chatkeep.testing import StoreContract


class TestRedis(StoreContract):
    tick = 0.3

    @pytest.fixture
    def url(self, missing: Callable[[str, str], None]) -> str:
        try:
            return servers.empty()
        except servers.MissingServerError as reason:
            missing("redis", str(reason))
            raise

    @pytest.fixture
    def unreachable_url(self) -> str:
        return servers.unreachable()
