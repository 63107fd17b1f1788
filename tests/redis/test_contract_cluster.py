"""The contract, on a Redis Cluster of three."""

from __future__ import annotations

import pytest
from tests.redis import servers

from chatkeep.testing import StoreContract

pytestmark = pytest.mark.once


class TestCluster(StoreContract):
    tick = 0.3

    @pytest.fixture
    def url(self, cluster: servers.Cluster) -> str:
        return cluster.url(prefix=servers.prefix())

    @pytest.fixture
    def unreachable_url(self) -> str:
        return f"redis+cluster://127.0.0.1:{servers.free_port()},127.0.0.1:{servers.free_port()}/"
