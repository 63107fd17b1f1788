"""Importing the adapter without its SDK says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("stand_in", ["None", "types.ModuleType('claude_agent_sdk')"], ids=["missing", "too old"])
def test_where_the_sdk_is_missing_or_too_old_the_error_says_what_to_install(stand_in: str) -> None:
    program = f"import sys, types; sys.modules['claude_agent_sdk'] = {stand_in}; import chatkeep_adapters.claude_agent"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: chatkeep_adapters.claude_agent needs claude-agent-sdk 0.1.66 or later: "
        "pip install 'chatkeep-adapters[claude-agent-sdk]'"
    )


def test_no_framework_is_imported_with_what_adapters_share() -> None:
    program = "import sys, chatkeep_adapters.held_store, chatkeep_adapters.objects; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "chatkeep_adapters.objects" in found
    assert not {"claude_agent_sdk", "agent_framework", "agents"}.intersection(found)
