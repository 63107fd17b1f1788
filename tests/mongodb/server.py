"""MongoDB servers for the tests: found on this machine, started when the first test needs one, killed at the end."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

PROGRAM = "CHATKEEP_MONGOD"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chatkeep" / "mongod"
"""Where ``nox -s servers`` puts it."""
MEMORY = Path("/dev/shm")
OPTIONS = (
    "--bind_ip=127.0.0.1",
    "--nounixsocket",
    "--oplogSize=64",
    "--wiredTigerCacheSizeGB=0.25",
    "--setParameter=ttlMonitorSleepSecs=1",
    "--setParameter=diagnosticDataCollectionEnabled=false",
    "--setParameter=enableTestCommands=1",
    "--quiet",
)
MISSING = "there is no mongod: `nox -s servers` installs one for the tests, or set CHATKEEP_MONGOD to yours"
GUARD = '"$@" >"$0" 2>&1 & child=$!; read -r _; kill -9 $child; wait $child 2>/dev/null'
"""Ends the server when the pipe closes, which it does however this process ends."""


def program() -> str | None:
    """The mongod of the environment, on the path or in the cache."""
    kept = CACHE / "fiftyone" / "db" / "bin" / "mongod"
    if kept.exists():
        kept.chmod(0o755)
    return os.environ.get(PROGRAM) or shutil.which("mongod") or (str(kept) if kept.exists() else None)


@functools.cache
def version() -> str:
    """What the program says that it is."""
    found = program()
    assert found is not None
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[0].removeprefix("db version v")


class Server:
    """One mongod with a folder of its own."""

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chatkeep-mongod-", dir=MEMORY if MEMORY.is_dir() else None))
        self.port = port or free_port()
        self._options = options
        self._guard: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, **options: Any) -> pymongo.MongoClient[Any]:
        """A client that speaks to this server alone."""
        return pymongo.MongoClient(f"mongodb://{self.address}/?directConnection=true", **options)

    def start(self) -> None:
        found = program()
        assert found is not None
        (self.folder / "db").mkdir(exist_ok=True)
        place = (f"--dbpath={self.folder}/db", f"--port={self.port}")
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, f"{self.folder}/log", found, *place, *OPTIONS, *self._options],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.wait_for("ping")

    def wait_for(self, command: str, field: str = "ok", seconds: float = 30.0) -> None:
        """Until the server answers the command with a true field."""
        end = time.monotonic() + seconds
        with self.client(serverSelectionTimeoutMS=1000) as client:
            while True:
                try:
                    if client.admin.command(command)[field]:
                        return
                except PyMongoError:
                    if time.monotonic() > end:
                        raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:]) from None
                if time.monotonic() > end:
                    raise RuntimeError(f"after {seconds:g} s {command} has no {field}")
                time.sleep(0.02)

    def kill(self) -> None:
        """As a power cut would."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(30)
            self._guard = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def replica_set(members: int) -> list[Server]:
    """That many servers, one of which is the primary."""
    servers = [Server("--replSet=rs0") for _ in range(members)]
    for server in servers:
        server.start()
    listed = [{"_id": number, "host": server.address} for number, server in enumerate(servers)]
    settings = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 200}
    with servers[0].client() as client:
        client.admin.command("replSetInitiate", {"_id": "rs0", "members": listed, "settings": settings})
    primary(servers)
    return servers


def primary(servers: Sequence[Server]) -> Server:
    """The one that is the primary, once there is one."""
    hosts = ",".join(server.address for server in servers)
    with pymongo.MongoClient(f"mongodb://{hosts}/?replicaSet=rs0", serverSelectionTimeoutMS=30_000) as client:
        client.admin.command("ping")
        found = client.primary
    return next(server for server in servers if found is not None and server.port == found[1])


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


@functools.cache
def shared(kind: str) -> str:
    """The hosts of this process's server: ``standalone``, or ``replica set`` of one."""
    if kind == "replica set":
        (server,) = replica_set(1)
    else:
        server = Server()
        server.start()
    return server.address


def empty_database(kind: str = "standalone", options: str = "") -> str:
    """The URL of this process's database on the server of that kind, emptied.

    Emptied, and not a new one: to make the indexes takes longer than a test.
    """
    address = shared(kind)
    with pymongo.MongoClient(f"mongodb://{address}/?directConnection=true") as client:
        client["tests"]["chatkeep"].delete_many({})
    return f"mongodb://{address}/tests{'?' if options else ''}{options}"
