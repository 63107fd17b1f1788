"""Order, retention, reading and editing on mongomock-motor: the quick run, in this process and without a server.

It proves little: mongomock is no MongoDB. What it lacks is given to it here. The rest of the contract is not for it: it
blocks the event loop while it works, looks at every document for each statement, and no other process can have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("mongomock_motor", reason="mongomock-motor is not installed: pip install -r requirements-dev.txt")

from mongomock.database import Database
from mongomock_motor import AsyncMongoMockClient, AsyncMongoMockCollection

from chatkeep.testing.editing import Editing
from chatkeep.testing.order import Order
from chatkeep.testing.reading import Reading
from chatkeep.testing.retention import Retention
from chatkeep_mongodb import indexes

ANSWERS: dict[str, dict[str, Any]] = {"hello": {"ok": 1.0, "setName": "mock"}, "buildInfo": {"version": "mongomock"}}


def answer(_: Database, command: str) -> dict[str, Any]:
    return {**ANSWERS[command], "localTime": datetime.now(UTC)}


async def none_missing(_: Any) -> list[str]:
    return []


@pytest.mark.once
class TestMongomock(Order, Retention, Reading, Editing):
    @pytest.fixture
    def url(self) -> str:
        return "mongodb:///tests"

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"client": AsyncMongoMockClient(), "indexes": "manual"}

    @pytest.fixture(autouse=True)
    def _commands(self) -> Iterator[None]:
        """Mongomock knows no commands."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "command", answer)
            patch.setattr(indexes, "missing", none_missing)
            # What it gives for other options is not asynchronous.
            patch.setattr(AsyncMongoMockCollection, "with_options", lambda collection, **_: collection, raising=False)
            yield
