"""Importing the adapters imports no framework; importing one framework's imports that."""

from __future__ import annotations

import subprocess
import sys


def loaded(module: str) -> set[str]:
    """The top-level packages that importing a module brings."""
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_no_framework_is_imported_before_its_adapter_is() -> None:
    assert "agent_framework" not in loaded("chatkeep_adapters")


def test_where_the_framework_is_missing_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['agent_framework'] = None; "
        "from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider"
    )
    failed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'agent-framework-core>=1.0,<2'" in failed.stderr.splitlines()[-1]
