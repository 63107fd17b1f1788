"""The contract, on ministack, the emulator that is closest to DynamoDB."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.dynamodb import server

from chatkeep.testing import StoreContract


@pytest.mark.once  # an emulator in Python takes minutes for all of it
class TestDynamoDB(StoreContract):
    tick = 4.0  # what the emulator takes for some tests' calls is part of the time that may not pass

    @pytest.fixture
    def url(self, missing: Callable[[str, str], None]) -> str:
        if server.program() is None:
            missing("dynamodb", server.MISSING["ministack"])
        return server.empty_table()

    @pytest.fixture
    def unreachable_url(self) -> str:
        server.shared("ministack")  # which sets made-up credentials
        return "dynamodb://eu-west-1/Conversations?endpoint_url=http://127.0.0.1:9"
