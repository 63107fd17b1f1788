"""What every test session shares: which backends are tested, against what, and when missing one is a failure.

A backend's tests lie in ``tests/<name>`` (memory's in ``tests/core``), the command line's in ``tests/cli``, an agent
framework's in ``tests/adapters/<name>``, on every backend. A folder whose package is not installed is left out, and the
header of the report says so. ``CHATKEEP_REQUIRE=sqlite,…`` turns what would be left out or skipped into a failure.

A backend that needs a server adds a function to GROUNDS, which finds the server (a URL from the environment, a program
on this machine, an emulator) and says what it found, or raises `MissingError` with what to install.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from tests.redis import servers

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("chatkeep", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("chatkeep")

TESTS = Path(__file__).parent
collect_ignore = ["thirdparty"]  # distributions of their own: nox -s thirdparty installs and tests them


class MissingError(Exception):
    """Why a backend cannot be tested here, and what to install."""


def memory() -> str:
    """The memory backend is part of core."""
    return "in this process"


def sqlite() -> str:
    """SQLite comes with Python, and the driver with the plugin."""
    if not installed("chatkeep_sqlite"):
        raise MissingError("the plugin is not installed: pip install ./core ./plugins/sqlite")
    return f"SQLite {sqlite3.sqlite_version}, aiosqlite {importlib.metadata.version('aiosqlite')}"


def redis() -> str:
    """A server on this machine or elsewhere, as tests/redis/servers.py says; none is started here."""
    if not installed("chatkeep_redis"):
        raise MissingError("the plugin is not installed: pip install ./core ./plugins/redis")
    try:
        return servers.ground()
    except servers.MissingServerError as reason:
        raise MissingError(str(reason)) from reason


def mongodb() -> str:
    """A mongod of this machine, started when a test needs it."""
    if not installed("chatkeep_mongodb"):
        raise MissingError("the plugin is not installed: pip install ./core ./plugins/mongodb")
    server = importlib.import_module("tests.mongodb.server")
    if server.program() is None:
        raise MissingError(server.MISSING)
    return f"mongod {server.version()}, pymongo {importlib.metadata.version('pymongo')}"


def empty_mongodb(_: Path) -> str:
    """The URL of this process's database, emptied."""
    url: str = importlib.import_module("tests.mongodb.server").empty_database()
    return url


def dynamodb() -> str:
    """An emulator of this machine, started when a test needs it."""
    if not installed("chatkeep_dynamodb"):
        raise MissingError("the plugin is not installed: pip install ./core ./plugins/dynamodb")
    server = importlib.import_module("tests.dynamodb.server")
    if server.program() is None:
        raise MissingError(server.MISSING["ministack"])
    return f"ministack {server.version()}, boto3 {importlib.metadata.version('boto3')}"


def empty_dynamodb(_: Path) -> str:
    """The URL of a new table of this process's emulator."""
    url: str = importlib.import_module("tests.dynamodb.server").empty_table()
    return url


GROUNDS: dict[str, Callable[[], str]] = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
    "mongodb": mongodb,
    "dynamodb": dynamodb,
}
"""For each backend, what its tests run against."""
URLS: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: f"memory://{uuid.uuid4().hex}",
    "sqlite": lambda folder: f"sqlite:///{folder}/conversations.db",
    "redis": lambda _: servers.empty(),
    "mongodb": empty_mongodb,
    "dynamodb": empty_dynamodb,
}
"""For each backend, the URL of an empty database of its own for a test that has that folder."""
FRAMEWORKS = {
    "agent_framework": "agent-framework",
    "claude_agent": "claude-agent-sdk",
    "openai_agents": "openai-agents",
}
"""For each agent framework's adapter, the extra of ``adapters`` that brings the framework."""
IMPORTED = {"claude_agent": "claude_agent_sdk", "openai_agents": "agents"}
"""What a framework is imported as, where its adapter has another name."""


def installed(package: str) -> bool:
    """Whether a top-level package can be imported; it is not."""
    return importlib.util.find_spec(package) is not None


def adapted(framework: str) -> bool:
    """Whether an agent framework and the adapters are installed."""
    return installed(IMPORTED.get(framework, framework)) and installed("chatkeep_adapters")


def required() -> set[str]:
    """The backends that must be tested."""
    return {name.strip() for name in os.environ.get("CHATKEEP_REQUIRE", "").split(",")} - {""}


def pytest_report_header() -> list[str]:
    """One line per backend; pytest stops here if one that is required cannot be tested."""
    if strange := sorted(required() - GROUNDS.keys()):
        raise pytest.UsageError(f"CHATKEEP_REQUIRE names {', '.join(strange)}: here there are {', '.join(GROUNDS)}")
    lines = []
    for name, ground in GROUNDS.items():
        try:
            lines.append(f"{name}: {ground()}")
        except MissingError as reason:
            if name in required():
                raise pytest.UsageError(f"CHATKEEP_REQUIRE names {name}, but {reason}") from reason
            lines.append(f"{name}: not tested, {reason}")
    if not installed("chatkeep_cli"):
        lines.append("cli: not tested, the command line is not installed: pip install ./core ./cli")
    for package, extra in FRAMEWORKS.items():
        if not adapted(package):
            lines.append(f"{package}: not tested, it is not installed: pip install ./core './adapters[{extra}]'")
    return lines


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out ``tests/<name>`` where ``chatkeep_<name>`` is not installed and <name> is a package of this project.

    And ``tests/adapters/<name>``, and ``<name>_beta``, where the framework of that name is not.
    """
    name = collection_path.name
    if collection_path.parent == TESTS / "adapters":
        framework = name.removesuffix("_beta")
        return True if framework in FRAMEWORKS and not adapted(framework) else None
    if collection_path.parent == TESTS and (name in GROUNDS or name == "cli") and not installed(f"chatkeep_{name}"):
        return True
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have told with ``record_property("told", text)``, in whichever process they ran."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call" and (told := dict(report.user_properties).get("told")):
                terminalreporter.section(report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " "))
                terminalreporter.write_line(str(told))


@pytest.fixture(params=GROUNDS)
def url(request: pytest.FixtureRequest, tmp_path: Path, missing: Callable[[str, str], None]) -> str:
    """The URL of an empty database: what takes it is tested on every backend."""
    backend: str = request.param
    try:
        GROUNDS[backend]()
    except MissingError as reason:
        missing(backend, str(reason))
    return URLS[backend](tmp_path)


@pytest.fixture
def missing() -> Callable[[str, str], None]:
    """Call ``missing(backend, reason)`` where a test cannot run: it is skipped, or fails if the backend is required."""

    def report(backend: str, reason: str) -> None:
        if backend in required():
            pytest.fail(f"CHATKEEP_REQUIRE names {backend}, but {reason}")
        pytest.skip(f"{backend}: {reason}")

    return report
