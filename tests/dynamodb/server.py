"""DynamoDB emulators for the tests: found on this machine, started when the first test needs one, killed at the end."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chatkeep"
"""Where ``nox -s servers`` puts them."""
PROGRAMS = {"ministack": "CHATKEEP_MINISTACK", "dynalite": "CHATKEEP_DYNALITE"}
"""For each emulator, the variable of the environment that names another program."""
PLACES = {
    "ministack": CACHE / "ministack" / "bin" / "ministack",
    "dynalite": CACHE / "dynalite" / "node_modules" / "dynalite" / "cli.js",
}
MISSING = {
    "ministack": "there is no ministack: `nox -s servers` installs one, or set CHATKEEP_MINISTACK to yours",
    "dynalite": "there is no dynalite: `nox -s servers` installs one where npm is, or set CHATKEEP_DYNALITE",
}
REGION = "eu-west-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "made-up-for-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}
GUARD = '"$@" >"$0" 2>&1 & child=$!; read -r _; kill -9 $child; wait $child 2>/dev/null'
"""Ends the server when the pipe closes, which it does however this process ends."""
_numbers = itertools.count(1)


def program(kind: str = "ministack") -> str | None:
    """The emulator of the environment, on the path or in the cache; None: there is none, or no node to run it."""
    found = os.environ.get(PROGRAMS[kind]) or shutil.which(kind) or (str(PLACES[kind]) if PLACES[kind].exists() else "")
    return found or None if kind != "dynalite" or shutil.which("node") else None


@functools.cache
def version() -> str:
    """What the installed ministack says that it is."""
    python = Path(program() or "").with_name("python")
    ask = "import importlib.metadata as m; print(m.version('ministack'))"
    said = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "of unknown version"


class Server:
    """One emulator with a folder of its own."""

    def __init__(self, kind: str = "ministack") -> None:
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix=f"chatkeep-{kind}-"))
        self.port = free_port()
        self._guard: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        found = program(self.kind)
        assert found is not None
        environment = {**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(self.port), "SERVICES": "dynamodb"}
        command = [found]
        if self.kind == "dynalite":
            at_once = ("--createTableMs", "0", "--deleteTableMs", "0", "--updateTableMs", "0")
            runner = () if os.access(found, os.X_OK) and not found.endswith(".js") else ("node",)
            command = [*runner, found, "--host", "127.0.0.1", "--port", str(self.port), *at_once]
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, f"{self.folder}/log", *command],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=self.folder,
            env={**environment, "HOME": str(self.folder), "TMPDIR": str(self.folder)},
        )
        self._wait()

    def _wait(self, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        path = "/_ministack/health" if self.kind == "ministack" else "/"
        while True:
            try:
                with urllib.request.urlopen(self.endpoint + path, timeout=5):
                    return
            except urllib.error.HTTPError:
                return  # it answers
            except OSError:
                if time.monotonic() > end:
                    raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:]) from None
                time.sleep(0.02)

    def kill(self) -> None:
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(30)
            self._guard = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port


@functools.cache
def shared(kind: str) -> Server:
    """This process's emulator. What it takes for credentials is in the environment from then on."""
    for name, value in CREDENTIALS.items():
        os.environ.setdefault(name, value)
    server = Server(kind)
    server.start()
    return server


@functools.cache
def client(kind: str) -> Any:
    """A client of boto3's for this process's emulator."""
    import boto3
    from botocore.config import Config

    endpoint = shared(kind).endpoint
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=32)
    return boto3.client("dynamodb", region_name=REGION, endpoint_url=endpoint, config=config)


def make_table(kind: str = "ministack") -> str:
    """The name of a new table, the only one that there is."""
    from chatkeep_dynamodb import table

    asked, name = client(kind), f"Tests{os.getpid()}-{next(_numbers)}"
    for former in asked.list_tables()["TableNames"]:
        asked.delete_table(TableName=former)
    asked.create_table(**table.definition(name, kms_key=None))
    if kind == "ministack":
        enabled = {"Enabled": True, "AttributeName": table.TTL}
        asked.update_time_to_live(TableName=name, TimeToLiveSpecification=enabled)
    return name


def empty_table(kind: str = "ministack", options: str = "") -> str:
    """The URL of a new table of this process's emulator."""
    more = f"&{options}" if options else ""
    return f"dynamodb://{REGION}/{make_table(kind)}?endpoint_url={shared(kind).endpoint}{more}"
