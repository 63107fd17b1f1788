"""The contract that every backend keeps, as a test suite: for this project's backends and for yours.

A backend's test file, complete::

    import pytest
    from chatkeep.testing import StoreContract

    class TestEcho(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"echo:///{tmp_path}/conversations"

`url` must name a database that is empty when a test begins. Everything else has defaults: see `StoreContract`. It needs
pytest, pytest-asyncio, pytest-timeout and hypothesis: ``pip install 'chatkeep-core[testing]'``, from a checkout
``pip install './core[testing]'``. ``CHATKEEP_EXAMPLES=500`` tries more random examples; `chatkeep.testing.examples`
says how a failure of theirs is repeated.
"""

from __future__ import annotations

try:  # all of it, said here, where it can be said what to install
    import hypothesis as _hypothesis  # noqa: F401
    import pytest
    import pytest_asyncio as _asyncio  # noqa: F401
    import pytest_timeout as _timeout  # type: ignore[import-untyped]  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        f"chatkeep.testing needs hypothesis, pytest, pytest-asyncio and pytest-timeout, and {error.name} is not "
        "installed: pip install 'chatkeep-core[testing]' (from a checkout of chatkeep: pip install './core[testing]')"
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
    "sequences",
    "properties",
)

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in (*PARTS, "harness")))  # a failure shows its values

from .clauses import clause, xfail  # noqa: E402
from .contract import StoreContract  # noqa: E402

__all__ = ["StoreContract", "clause", "xfail"]
