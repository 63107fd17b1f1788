"""The contract that every backend keeps, as a test suite: for this project's backends and for yours.

A backend's test file, complete::

    import pytest
    from chatkeep.testing import StoreContract

    class TestEcho(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"echo:///{tmp_path}/conversations"

`url` must name a database that is empty when a test begins. Everything else has defaults: see `StoreContract`. It needs
pytest and pytest-asyncio: ``pip install 'chatkeep-core[testing]'``, from a checkout ``pip install './core[testing]'``.
"""

from __future__ import annotations

try:
    import pytest
    import pytest_asyncio as _  # noqa: F401 - the fixtures need it; said here, where it can be said what to install
except ModuleNotFoundError as error:
    raise ImportError(
        f"chatkeep.testing needs pytest and pytest-asyncio, and {error.name} is not installed: "
        "pip install 'chatkeep-core[testing]' (from a checkout of chatkeep: pip install './core[testing]')"
    ) from error

PARTS = (
    "order",
    "retention",
    "reading",
    "fidelity",
    "state",
    "isolation",
    "lifecycle",
    "cancelling",
    "editing",
    "processes",
    "kills",
)

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in (*PARTS, "harness")))  # a failure shows its values

from .clauses import clause, xfail  # noqa: E402
from .contract import StoreContract  # noqa: E402

__all__ = ["StoreContract", "clause", "xfail"]
