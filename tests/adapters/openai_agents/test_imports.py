"""Importing the adapter without its SDK says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "stand_in", ["{'agents': None}", "{'agents': new, 'agents.memory': new}"], ids=["missing", "too old"]
)
def test_where_the_sdk_is_missing_or_too_old_the_error_says_what_to_install(stand_in: str) -> None:
    program = f"import sys, types; new = types.ModuleType('agents'); sys.modules.update({stand_in})"
    program += "; import chatkeep_adapters.openai_agents"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: chatkeep_adapters.openai_agents needs openai-agents 0.19 or later: "
        "pip install 'chatkeep-adapters[openai-agents]'"
    )


def test_no_framework_is_imported_with_the_items() -> None:
    program = "import sys, chatkeep_adapters.response_items; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "chatkeep_adapters.response_items" in found
    assert not {"claude_agent_sdk", "agent_framework", "agents", "openai"}.intersection(found)
