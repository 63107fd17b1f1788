"""The contract, on a real mongod: one that stands alone, and a replica set of one; by both drivers."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from tests.mongodb import server

from chatkeep.testing import StoreContract

QUIET = pytest.mark.filterwarnings(
    # PyMongo leaves the socket to the garbage collector where it is cancelled while it connects.
    "ignore:unclosed <socket:ResourceWarning"
)
EVERY = any(map(os.environ.get, ("CHATKEEP_KILLS", "CHATKEEP_EXAMPLES")))
"""Whether each driver is tried with each kind of server, and not only one with one and the other with the other."""


class OnMongod(StoreContract):
    pytestmark: ClassVar = [*StoreContract.pytestmark, QUIET]
    kind = "standalone"
    driver_options = ""

    @pytest.fixture
    def url(self, missing: Callable[[str, str], None]) -> str:
        if server.program() is None:
            missing("mongodb", server.MISSING)
        if "motor" in self.driver_options and importlib.util.find_spec("motor") is None:
            pytest.skip("Motor is not installed: pip install './plugins/mongodb[motor]'")
        return server.empty_database(self.kind, self.driver_options)

    @pytest.fixture(autouse=True)
    def _collected(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Have what PyMongo has left collected here, and not while another test runs."""
        yield
        if "cancelled" in request.node.name:
            gc.collect()

    @pytest.fixture
    def unreachable_url(self) -> str:
        return "mongodb://127.0.0.1:9/conversations"


class TestPyMongo(OnMongod):
    pass


@pytest.mark.once
class TestMotorOnReplicaSet(OnMongod):
    kind = "replica set"
    driver_options = "driver=motor"


@pytest.mark.skipif(not EVERY, reason="only where more than usual is asked for, with CHATKEEP_EXAMPLES or _KILLS")
class TestPyMongoOnReplicaSet(OnMongod):
    kind = "replica set"


@pytest.mark.skipif(not EVERY, reason="only where more than usual is asked for, with CHATKEEP_EXAMPLES or _KILLS")
class TestMotor(OnMongod):
    driver_options = "driver=motor"
