"""From a URL, or a client of the caller's own, to servers and connections to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE

from chatkeep.errors import ConfigError, InvalidURLError
from chatkeep.options import own_keys
from chatkeep.url import StoreURL

from .abandoned import abandon
from .commands import Command
from .failures import LOST
from .options import SCHEMES, RedisOptions
from .pipeline import Pipeline, Settings

DEFAULT_PORTS = {"redis+sentinel": 26379, "redis+cluster": 6379}


# Clients


def client_maker(url: StoreURL, options: RedisOptions) -> Callable[[], Any]:
    """What makes a new client for the URL; every mistake in the URL is told now."""
    arguments = _arguments(url, options)
    if url.scheme == "redis+cluster":
        _check_waiting(options)
        hosts = _hosts(url)
        return lambda: RedisCluster(startup_nodes=[ClusterNode(*host) for host in hosts], **arguments)
    if url.scheme == "redis+sentinel":
        return _sentinel_maker(url, options, arguments)
    text = _text(url)
    return lambda: Redis.from_url(text, **arguments)


def _text(url: StoreURL, authority: str | None = None, path: str | None = None) -> str:
    """The driver's part of the URL, with its own name of the scheme."""
    _, _, rest = url.without(own_keys(RedisOptions)).partition("://")
    location, mark, query = rest.partition("?")
    if authority is not None:
        location = authority + (path or "")
    return f"{SCHEMES[url.scheme]}://{location}{mark}{query}"


def _arguments(url: StoreURL, options: RedisOptions) -> dict[str, Any]:
    """What the driver is told beside, or in the place of, its URL."""
    several = url.scheme in DEFAULT_PORTS
    text = _text(url, "host:1", "") if several else _text(url)
    try:
        given = dict(parse_url(text))
    except ValueError as error:
        raise InvalidURLError(f"{url}: {url.scrub(str(error))}") from None
    # The store tries again itself, and has its own timeouts.
    own: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
    if "socket_timeout" not in given:
        own["socket_timeout"] = None
    if "socket_connect_timeout" not in given:
        own["socket_connect_timeout"] = options.connect_timeout
    if not several:
        return own
    for key in ("host", "port", "connection_class"):
        given.pop(key, None)
    if "ssl" in given:
        given["ssl"] = str(given["ssl"]).lower() in ("1", "true", "yes", "on")
    for key, kind in (
        ("require_full_coverage", bool),
        ("cluster_error_retry_attempts", int),
        ("reinitialize_steps", int),
    ):
        if key in given:
            value = str(given[key])
            given[key] = value.lower() in ("1", "true", "yes", "on") if kind is bool else int(value)
    user, _, _ = url.authority.rpartition("@")
    if user:
        login = dict(parse_url(f"redis://{user}@host:1"))
        given |= {key: login[key] for key in ("username", "password") if key in login}
    return {**given, **own}


def _hosts(url: StoreURL) -> list[tuple[str, int]]:
    """The hosts and ports of a URL with several."""
    hosts = []
    for text in url.authority.rpartition("@")[2].split(","):
        name, bracket, rest = text.partition("]") if text.startswith("[") else ("", "", text)
        before, _, port = rest.rpartition(":") if ":" in rest else (rest, "", "")
        host = name.removeprefix("[") if bracket else before
        if not host or (port and not (port.isascii() and port.isdigit() and int(port) < 65536)):
            raise InvalidURLError(f"{url}: write its hosts as host:port,host:port")
        hosts.append((host, int(port) if port else DEFAULT_PORTS[url.scheme]))
    return hosts


def _sentinel_maker(url: StoreURL, options: RedisOptions, arguments: dict[str, Any]) -> Callable[[], Any]:
    hosts = _hosts(url)
    master, _, database = url.decoded_path.removeprefix("/").partition("/")
    if not master or (database and not database.isdigit()):
        raise InvalidURLError(f"{url}: write redis+sentinel://host:port,host:port/name of the master/database")
    if database:
        arguments.setdefault("db", int(database))
    least = int(arguments.pop("min_other_sentinels", 0))
    at_sentinels = {
        key: value
        for key, value in arguments.items()
        if key.startswith(("ssl", "socket_")) or key in ("retry", "protocol")
    }
    if options.sentinel_username is not None:
        at_sentinels["username"] = options.sentinel_username
    if options.sentinel_password is not None:
        at_sentinels["password"] = options.sentinel_password.get_secret_value()

    def make() -> Any:
        sentinel = cast("Any", Sentinel)(hosts, min_other_sentinels=least, sentinel_kwargs=at_sentinels, **arguments)
        return sentinel.master_for(master)

    return make


def _check_waiting(options: RedisOptions) -> None:
    if options.wait_replicas:
        raise ConfigError("wait_replicas is for one server or sentinels, not for a cluster: leave it out")


def check_client(client: Any, options: RedisOptions) -> None:
    """Refuse what is no client of the driver's asynchronous kind, and what it cannot do."""
    if not isinstance(client, Redis | RedisCluster):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigError(f"client= takes a redis.asyncio.Redis or a redis.asyncio.RedisCluster, not a {kind}")
    if isinstance(client, RedisCluster):
        _check_waiting(options)


# Servers


class PoolNode:
    """The one server behind a client, or the master that its sentinels name."""

    moves = False

    def __init__(self, client: Redis) -> None:
        self._pool: Any = client.connection_pool
        self.finds_masters = isinstance(self._pool, SentinelConnectionPool)

    async def acquire(self) -> Any:
        return await self._pool.get_connection()

    async def release(self, connection: Any) -> None:
        await self._pool.release(connection)

    async def elsewhere(self, parts: tuple[Any, ...]) -> Any:
        raise NotImplementedError("there is no other node")


class ClusterMember:
    """One node of a cluster."""

    moves = True
    finds_masters = True

    def __init__(self, client: RedisCluster, node: ClusterNode) -> None:
        self._client = client
        self._node = node

    async def acquire(self) -> Any:
        return self._node.acquire_connection()

    async def release(self, connection: Any) -> None:
        self._node.release(connection)

    async def elsewhere(self, parts: tuple[Any, ...]) -> Any:
        return await self._client.execute_command(*parts, **{NEVER_DECODE: True})


class Servers:
    """All servers behind one client, each with a pipeline."""

    def __init__(self, client: Any, settings: Settings, *, ours: bool) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._ours = ours
        self._cluster = isinstance(client, RedisCluster)
        self._pipelines: dict[str, Pipeline] = {}
        if not self._cluster:
            self._pipelines[""] = Pipeline(PoolNode(client), settings)

    async def prepare(self) -> None:
        """Learn which nodes a cluster has."""
        if self._cluster:
            await self.client.initialize()

    def send(self, command: Command) -> None:
        """Send a command to the server that has its keys."""
        self._pipeline(command).send(command)

    def _pipeline(self, command: Command) -> Pipeline:
        if not self._cluster:
            return self._pipelines[""]
        node = self.client.get_node_from_key(command.keys[0]) if command.keys else self.client.get_default_node()
        found = self._pipelines.get(node.name)
        if found is None:
            found = self._pipelines[node.name] = Pipeline(ClusterMember(self.client, node), self._settings)
        return found

    async def close(self) -> None:
        """Answer what was sent, refuse the rest, and close the client if it is ours."""
        for pipeline in self._pipelines.values():
            await pipeline.close(disconnect=self._ours)
        if self._ours:
            await self.client.aclose()
            await self._driver_is_done()
            for sentinel in self._sentinels():
                await sentinel.aclose()

    async def _driver_is_done(self) -> None:
        """Wait for what a cluster's client does beside, and close what it leaves open where it was interrupted."""
        if not self._cluster:
            return
        manager = self.client.nodes_manager
        nodes = (*manager.nodes_cache.values(), *manager.startup_nodes.values())
        beside = {task for place in (manager, *nodes) for task in getattr(place, "_background_tasks", ())}
        if beside:  # it takes its leave of nodes when it has learnt of others; not in the oldest
            await asyncio.wait(beside, timeout=self._settings.connect_timeout)
        for connection in [each for node in nodes for each in node._connections if each.is_connected]:
            with suppress(*LOST):
                await connection.disconnect()

    def abandon(self) -> None:
        """Their event loop is closed: drop everything without awaiting it."""
        for pipeline in self._pipelines.values():
            pipeline.abandon()
        if not self._ours:
            return
        with suppress(AttributeError):  # what the driver keeps besides, and would complain of when it is collected
            for sentinel in self._sentinels():
                for connection in sentinel.connection_pool._available_connections:
                    abandon(connection)
            if self._cluster:
                manager = self.client.nodes_manager
                for node in (*manager.nodes_cache.values(), *manager.startup_nodes.values()):
                    for connection in node._connections:
                        abandon(connection)
                self.client._initialize = True

    def _sentinels(self) -> list[Any]:
        """The clients that ask sentinels."""
        manager = getattr(getattr(self.client, "connection_pool", None), "sentinel_manager", None)
        return list(manager.sentinels) if manager else []
