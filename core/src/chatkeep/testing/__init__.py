"""The contract that every backend keeps, as a test suite: for this project's backends and for yours.

A backend's test file, complete::

    import pytest
    from chatkeep.testing import StoreContract

    class TestEcho(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"echo:///{tmp_path}/conversations"

`url` must name a database that is empty when a test begins. Everything else has defaults: see `StoreContract`. It needs
pytest, pytest-asyncio and hypothesis: ``pip install 'chatkeep-core[testing]'``.
"""

from __future__ import annotations

import pytest

PARTS = ("order", "retention", "reading", "fidelity", "state", "isolation", "lifecycle", "editing")

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in (*PARTS, "harness")))  # a failure shows its values

from .clauses import clause, xfail  # noqa: E402
from .contract import StoreContract  # noqa: E402

__all__ = ["StoreContract", "clause", "xfail"]
