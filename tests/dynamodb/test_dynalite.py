"""The contract on dynalite, a second opinion: strict about expressions, and another author's. It has no TTL."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.dynamodb import server

from chatkeep.testing.editing import Editing
from chatkeep.testing.isolation import Isolation
from chatkeep.testing.order import Order
from chatkeep.testing.reading import Reading
from chatkeep.testing.retention import Retention
from chatkeep.testing.state import StateClauses

EVERY = any(map(os.environ.get, ("CHATKEEP_KILLS", "CHATKEEP_EXAMPLES")))
CLAUSES = (Order, Retention, Reading, Editing, StateClauses, Isolation) if EVERY else (Order, Editing)
"""All that is quick only where more than usual is asked for; else what changes heads most."""


@pytest.mark.once
class TestDynalite(*CLAUSES):  # type: ignore[misc]
    tick = 4.0

    @pytest.fixture
    def url(self, missing: Callable[[str, str], None]) -> str:
        if server.program("dynalite") is None:
            pytest.skip(server.MISSING["dynalite"])
        return server.empty_table("dynalite")
