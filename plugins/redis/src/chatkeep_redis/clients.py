"""From a URL, or a client of the caller's own, to servers and connections to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.client import NEVER_DECODE
from redis.exceptions import RedisError

from chatkeep.errors import ConfigError
from chatkeep.options import own_keys
from chatkeep.url import StoreURL

from .abandoned import abandon
from .commands import Command
from .failures import LOST
from .options import RedisOptions
from .pipeline import Pipeline, Settings
from .urls import address, arguments, hosts_of, master_of

# Clients


def client_maker(url: StoreURL, options: RedisOptions) -> Callable[[], Any]:
    """What makes a new client for the URL; every mistake in the URL is told now."""
    told = arguments(url, options)
    if url.scheme == "redis+cluster":
        _check_waiting(options)
        make = _cluster_maker(url, told)
    elif url.scheme == "redis+sentinel":
        make = _sentinel_maker(url, options, told)
    else:
        make = partial(Redis.from_url, address(url), **told)
    try:
        for connection in _unconnected(make()):
            connection()
    except Exception as error:
        raise ConfigError(f"{url}: the driver refuses its options: {url.scrub(str(error))}") from error
    return make


def _unconnected(client: Any) -> list[Callable[[], Any]]:
    """What makes connections, not connected, to each kind of server that the client speaks to."""
    if isinstance(client, RedisCluster):
        node = next(iter(client.nodes_manager.startup_nodes.values()))
        return [partial(node.connection_class, **node.connection_kwargs)]
    pool = client.connection_pool
    sentinels = pool.sentinel_manager.sentinels[:1] if isinstance(pool, SentinelConnectionPool) else []
    return [each.make_connection for each in (pool, *(sentinel.connection_pool for sentinel in sentinels))]


def _cluster_maker(url: StoreURL, told: dict[str, Any]) -> Callable[[], Any]:
    hosts = hosts_of(url)
    return lambda: RedisCluster(startup_nodes=[ClusterNode(*host) for host in hosts], **told)


def _sentinel_maker(url: StoreURL, options: RedisOptions, told: dict[str, Any]) -> Callable[[], Any]:
    hosts, (master, database) = hosts_of(url), master_of(url)
    told.setdefault("db", database)
    least = told.pop("min_other_sentinels", 0)
    at_sentinels = {
        key: value for key, value in told.items() if key.startswith(("ssl", "socket_")) or key in ("retry", "protocol")
    }
    if options.sentinel_username is not None:
        at_sentinels["username"] = options.sentinel_username
    if options.sentinel_password is not None:
        at_sentinels["password"] = options.sentinel_password.get_secret_value()

    def make() -> Any:
        sentinel = cast("Any", Sentinels)(hosts, min_other_sentinels=least, sentinel_kwargs=at_sentinels, **told)
        return sentinel.master_for(master)

    return make


def _check_waiting(options: RedisOptions) -> None:
    if options.wait_replicas:
        raise ConfigError("wait_replicas is for one server or sentinels, not for a cluster: leave it out")


def check_client(client: Any, url: StoreURL, options: RedisOptions) -> None:
    """Refuse what is no client of the driver's asynchronous kind, and what it cannot do or is not asked."""
    if not isinstance(client, Redis | RedisCluster):
        kind = f"{type(client).__module__}.{type(client).__qualname__}"
        raise ConfigError(f"client= takes a redis.asyncio.Redis or a redis.asyncio.RedisCluster, not a {kind}")
    if url.authority or url.path.strip("/"):
        raise ConfigError(
            f"{url}: with client= the URL names no server and no database: write {url.scheme}:// and our options"
        )
    if isinstance(client, RedisCluster):
        _check_waiting(options)
    if others := sorted({key for key, _ in url.query} - own_keys(RedisOptions)):
        raise ConfigError(f"{url}: {', '.join(others)} beside client=: how to connect is for the client to say")


class Sentinels(Sentinel):
    """The driver's, which puts the sentinel that answers first. Two who ask at once make it lose another one there."""

    async def discover_master(self, service_name: str) -> Any:
        before = tuple(self.sentinels)
        try:
            return await super().discover_master(service_name)
        finally:
            self.sentinels += [sentinel for sentinel in before if sentinel not in self.sentinels]
            self.sentinels = list(dict.fromkeys(self.sentinels))


# Servers


class PoolNode:
    """The one server behind a client, or the master that its sentinels name."""

    moves = False

    def __init__(self, client: Redis) -> None:
        self._pool: Any = client.connection_pool
        self.finds_masters = isinstance(self._pool, SentinelConnectionPool)
        self.most: int = self._pool.max_connections

    async def acquire(self) -> Any:
        try:
            return await self._pool.get_connection()
        except RedisError:
            raise
        except BaseException:  # the driver has put it back, open and in the middle of its handshake
            await self._pool.disconnect(inuse_connections=False)
            raise

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
        self.most: int = node.max_connections

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
        self.cluster = isinstance(client, RedisCluster)
        self._pipelines: dict[str, Pipeline] = {}
        if not self.cluster:
            self._pipelines[""] = Pipeline(PoolNode(client), settings)

    async def prepare(self) -> None:
        """Learn which nodes a cluster has."""
        if self.cluster:
            await self.client.initialize()

    def send(self, command: Command) -> None:
        """Send a command to the server that has its keys."""
        self._pipeline(command).send(command)

    def _pipeline(self, command: Command) -> Pipeline:
        if not self.cluster:
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
        if not self.cluster:
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
            if self.cluster:
                manager = self.client.nodes_manager
                for node in (*manager.nodes_cache.values(), *manager.startup_nodes.values()):
                    for connection in node._connections:
                        abandon(connection)
                self.client._initialize = True

    def _sentinels(self) -> list[Any]:
        """The clients that ask sentinels."""
        manager = getattr(getattr(self.client, "connection_pool", None), "sentinel_manager", None)
        return list(manager.sentinels) if manager else []
