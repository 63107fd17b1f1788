"""Importing the adapters imports no framework; importing one framework's imports that."""

from __future__ import annotations

import subprocess
import sys

import agent_framework
import pytest


def loaded(module: str) -> set[str]:
    """The top-level packages that importing a module brings."""
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_no_framework_is_imported_before_its_adapter_is() -> None:
    assert "agent_framework" not in loaded("chatkeep_adapters")


def failure(program: str) -> str:
    """The last line of what a program says that fails."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ChatkeepHistoryProvider", "'agent-framework-core>=1.0,<2'"),
        ("ChatkeepSessionStore", "'agent-framework-core>=1.13,<2'"),
        ("ChatkeepChatMessageStore", "'agent-framework-core==1.0.0b251120' 'mcp[ws]<1.23'"),
    ],
)
def test_where_the_framework_is_missing_the_error_says_what_to_install(name: str, wanted: str) -> None:
    said = failure(
        f"import sys; sys.modules['agent_framework'] = None; from chatkeep_adapters.agent_framework import {name}"
    )
    assert said.endswith(f"{name} needs agent-framework-core, which is not installed: pip install {wanted}")


def test_where_the_framework_is_another_version_the_error_says_which_one_it_takes() -> None:
    said = failure("from chatkeep_adapters.agent_framework import ChatkeepChatMessageStore")
    assert "ChatkeepChatMessageStore is for the betas of agent-framework-core, such as 1.0.0b251120" in said


@pytest.mark.skipif(not hasattr(agent_framework, "SessionStore"), reason="this framework has no SessionStore")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # The framework's: session stores are experimental.
def test_a_star_imports_what_a_framework_with_session_stores_has() -> None:
    names: dict[str, object] = {}
    exec("from chatkeep_adapters.agent_framework import *", names)
    assert set(names) - {"__builtins__"} == {
        "ChatkeepHistoryProvider",
        "ChatkeepSessionStore",
        "FingerprintError",
        "MessageCodec",
    }
