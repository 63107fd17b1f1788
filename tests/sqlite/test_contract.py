"""The contract, on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatkeep.testing import StoreContract


class TestSQLite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/conversations.db"

    @pytest.fixture
    def unreachable_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/a folder that is not there/conversations.db"
