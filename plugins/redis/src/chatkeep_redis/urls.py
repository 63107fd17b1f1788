"""From a URL to what the driver is told; every mistake in it is found here, before anything is connected."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from chatkeep.errors import ConfigError, InvalidURLError
from chatkeep.options import own_keys
from chatkeep.url import StoreURL

from .options import SCHEMES, RedisOptions

DEFAULT_PORTS = {"redis+sentinel": 26379, "redis+cluster": 6379}


def _truth(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError


def _one_of(*choices: str) -> Callable[[str], str]:
    return lambda text: choices[choices.index(text)]


KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "cluster_error_retry_attempts": ("a whole number", int),
    "min_other_sentinels": ("a whole number", int),
    "protocol": ("2 or 3", lambda text: int(_one_of("2", "3")(text))),
    "reinitialize_steps": ("a whole number", int),
    "require_full_coverage": ("true or false", _truth),
    "socket_read_size": ("a whole number", int),
    "ssl": ("true or false", _truth),
    "ssl_cert_reqs": ("none, optional or required", _one_of("none", "optional", "required")),
    "ssl_min_version": ("TLSv1_2 or TLSv1_3", lambda text: ssl.TLSVersion[_one_of("TLSv1_2", "TLSv1_3")(text)]),
}
"""What the driver's options are that it does not read out of a URL itself, and leaves as text."""


def arguments(url: StoreURL, options: RedisOptions) -> dict[str, Any]:
    """What the driver is told beside the addresses."""
    several = url.scheme in DEFAULT_PORTS
    _check_place(url)
    text = f"{SCHEMES[url.scheme]}://{'host:1' if several else ''}{_query(url)}"
    try:
        given = dict(parse_url(text))
    except ValueError as error:
        raise InvalidURLError(f"{url}: {url.scrub(str(error))}") from None
    for key in ("host", "port", "connection_class"):
        given.pop(key, None)
    for key in given.keys() & KINDS.keys():
        expected, read = KINDS[key]
        try:
            given[key] = read(str(given[key]))
        except (ValueError, KeyError):
            raise ConfigError(f"{url}: the option {key}={given[key]}: expected {expected}") from None
    _check_tls(url, given)
    user, _, _ = url.authority.rpartition("@")
    if several and user:
        login = dict(parse_url(f"redis://{user}@host:1"))
        given |= {key: login[key] for key in ("username", "password") if key in login}
    # The store tries again itself, and has its own timeouts.
    usual = {"socket_timeout": None, "socket_connect_timeout": options.connect_timeout}
    return {**usual, **given, "retry": Retry(NoBackoff(), 0)}


def address(url: StoreURL) -> str:
    """The driver's URL of one server: where it is, with user and database, and nothing besides."""
    _, _, rest = url.text.partition("://")
    return f"{SCHEMES[url.scheme]}://{rest.partition('?')[0]}"


def _query(url: StoreURL) -> str:
    _, mark, query = url.without(own_keys(RedisOptions)).partition("?")
    return mark + query


def _check_place(url: StoreURL) -> None:
    """Refuse what cannot be where a server is, or says it twice."""
    hosts, path = url.authority.rpartition("@")[2], url.decoded_path.strip("/")
    number = path if url.scheme != "redis+sentinel" else path.partition("/")[2]
    if url.scheme == "unix":
        if hosts or not path:
            raise InvalidURLError(f"{url}: write a socket's path with three slashes in front, unix:///run/redis.sock")
        return
    if number and "db" in dict(url.query):
        raise ConfigError(f"{url}: the database is given twice, in the path and as ?db=: give it once")
    if url.scheme == "redis+cluster":
        if path not in ("", "0"):
            raise InvalidURLError(f"{url}: a cluster has no database but 0: leave the path out")
    elif url.scheme != "redis+sentinel":
        if "," in hosts:
            raise InvalidURLError(
                f"{url} names several hosts: write redis+sentinel://host:port,host:port/name of the master, or "
                "redis+cluster://host:port,host:port"
            )
        if path and not (path.isascii() and path.isdigit()):
            raise InvalidURLError(f"{url}: its path is the number of a database, such as /0; a prefix is ?prefix=…")


def _check_tls(url: StoreURL, given: dict[str, Any]) -> None:
    named = sorted(key for key in given if key.startswith("ssl"))
    if not named:
        return
    if url.scheme in DEFAULT_PORTS:
        if not given.get("ssl") and named != ["ssl"]:
            raise ConfigError(f"{url}: {named[-1]} is for TLS: add ssl=true")
        return
    secure = {"redis": "rediss", "valkey": "valkeys"}.get(url.scheme)
    if secure:
        raise ConfigError(f"{url}: for TLS use {secure}:// instead of {url.scheme}:// (and leave ssl= out)")
    if "ssl" in given or url.scheme == "unix":
        raise ConfigError(f"{url}: leave {named[0]} out: whether there is TLS is for the scheme to say")


def hosts_of(url: StoreURL) -> list[tuple[str, int]]:
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


def master_of(url: StoreURL) -> tuple[str, int]:
    """The name of the master that sentinels are asked for, and the database."""
    master, _, database = url.decoded_path.removeprefix("/").partition("/")
    if not master or (database and not (database.isascii() and database.isdigit())):
        raise InvalidURLError(f"{url}: write redis+sentinel://host:port,host:port/name of the master/database")
    return master, int(database or 0)
