"""What docs/frameworks.md says of the Claude Agent SDK."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import claude_agent_sdk as sdk
from tests.adapters.claude_agent.documents import PROGRAMS, ROOT, SECTION

from chatkeep_adapters import claude_agent


def test_every_program_is_run_by_a_test_and_is_no_longer_than_promised() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert set(PROGRAMS) == set(re.findall(r"""documented\("([\w.]+)"\)""", tests))
    most = {"claude_agent.py": 8, "claude_import.py": 3}
    assert {title: len([line for line in text.splitlines() if line]) for title, text in PROGRAMS.items()} == most


def test_the_functions_and_versions_that_are_named_are_there() -> None:
    named = set(re.findall(r"`(\w+_(?:store|from_store|via_store))`", SECTION))
    assert len(named) >= 4
    assert all(hasattr(sdk, name) for name in named)
    extras = tomllib.loads((ROOT / "adapters" / "pyproject.toml").read_text(encoding="utf-8"))
    (requirement,) = extras["project"]["optional-dependencies"]["claude-agent-sdk"]
    lowest = requirement.partition(">=")[2].partition(",")[0]
    assert f"claude-agent-sdk {lowest} and " in SECTION
    assert f"{claude_agent.SUMMARY_BYTES // 1024} KiB" in SECTION
    assert claude_agent.ATTEMPTS == 10, "the document says ten times"
