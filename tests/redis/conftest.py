"""Redis servers of every kind, for the tests of this folder: `servers` says how each is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.redis import servers


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.Server]:
    """A plain server of this test's own, which it may harm."""
    with servers.plain(tmp_path / "server") as started:
        yield started


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Secured]:
    """A server that speaks TLS alone, to one user who is confined to keys that begin with ``app:``."""
    with servers.Secured(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture(scope="session")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Replicated]:
    """A master and a replica under three sentinels, which no test may harm."""
    with servers.Replicated(tmp_path_factory.mktemp("replicated")) as started:
        yield started


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Cluster]:
    """Three masters with a third of the slots each."""
    with servers.Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
