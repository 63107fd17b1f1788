"""The report's header says what each backend runs against, and a backend that is required is never left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def collect(*, without: str = "", require: str = "") -> subprocess.CompletedProcess[str]:
    """Collect the isolation tests in a process in which one package is as if it were not installed."""
    program = (
        f"import sys; sys.modules[{without!r}] = None; import pytest; "
        f"sys.exit(pytest.main(['--collect-only', {str(TESTS / 'frame' / 'test_isolation.py')!r}]))"
    )
    environment = {**os.environ, "CHATKEEP_REQUIRE": require, "CHATKEEP_ONLY": ""}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False
    )


def test_the_header_says_what_every_backend_runs_against() -> None:
    found = collect()
    assert found.returncode == 0, found.stderr
    assert "\nmemory: in this process\n" in found.stdout
    assert "\nsqlite: SQLite 3." in found.stdout


def test_the_header_says_what_to_install_for_a_backend_that_is_not_tested() -> None:
    found = collect(without="chatkeep_sqlite")
    assert found.returncode == 0, found.stderr
    assert "\nsqlite: not tested, the plugin is not installed: pip install ./core ./plugins/sqlite\n" in found.stdout


def test_the_header_says_what_to_install_for_a_framework_that_is_not_tested() -> None:
    found = collect(without="agent_framework")
    assert found.returncode == 0, found.stderr
    advice = "it is not installed: pip install ./core './adapters[agent-framework]'"
    assert f"\nagent_framework: not tested, {advice}\n" in found.stdout


def test_a_required_backend_that_cannot_be_tested_is_a_failure() -> None:
    found = collect(without="chatkeep_sqlite", require="memory,sqlite")
    assert found.returncode != 0
    assert "CHATKEEP_REQUIRE names sqlite, but the plugin is not installed" in found.stdout + found.stderr


def test_a_required_backend_that_nobody_knows_is_a_failure() -> None:
    found = collect(require="memory,oracle")
    assert found.returncode != 0
    known = "memory, sqlite, redis, mongodb, dynamodb"
    assert f"CHATKEEP_REQUIRE names oracle: here there are {known}" in found.stdout + found.stderr
