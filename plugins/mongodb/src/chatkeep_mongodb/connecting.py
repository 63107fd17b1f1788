"""Clients: made from a URL by either driver, or the caller's own. Nothing here speaks to a server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl

from pymongo import AsyncMongoClient
from pymongo.common import URI_OPTIONS_VALIDATOR_MAP
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError, InvalidName, InvalidURI
from pymongo.uri_parser import split_options

from chatkeep.documents import DocumentBackend
from chatkeep.errors import ConfigError, InvalidURLError
from chatkeep.options import own_keys
from chatkeep.url import StoreURL

from .driver import Connected, MongoDriver
from .options import MongoOptions

DATABASE = "chatkeep"
"""Where the URL names none."""
CONNECTIONS = 32
"""How many at most, unless the URL says: one event loop keeps no more of them busy."""
KNOWN_OPTIONS = {name.lower() for name in URI_OPTIONS_VALIDATOR_MAP}
_FORBIDDEN = set('/\\. "$*<>:|?\0')
_WRONG = (ConfigurationError, InvalidURI, InvalidName, ValueError, TypeError, OSError)
"""What the drivers raise where something in a URL is wrong."""


class _Ours:
    """A client that was made here. It is closed with its event loop, if that ends first: nobody could do so later."""

    def __init__(self, client: Any, collection: Any) -> None:
        self.collection = collection
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._lasting = self._last()

    async def begin(self) -> None:
        await anext(self._lasting)

    async def _last(self) -> AsyncGenerator[None, None]:
        """An event loop that ends closes the asynchronous generators that have begun on it."""
        try:
            yield
        finally:
            closing = self._client.close()
            if inspect.isawaitable(closing):
                await closing

    async def close(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._lasting.aclose()


class _Theirs:
    """A client of the caller's, which is not closed."""

    def __init__(self, collection: Any) -> None:
        self.collection = collection

    async def close(self) -> None:
        return None


def open_backend(url: StoreURL, options: MongoOptions, client: Any) -> DocumentBackend:
    """``mongodb://host/database?…``, or ``mongodb:///database`` with a client of the caller's."""
    database = database_of(url)
    connect = _connector(url, options, database) if client is None else _given(url, options, client, database)
    return DocumentBackend(MongoDriver(connect, name=str(url), make_indexes=options.indexes == "create"))


def database_of(url: StoreURL) -> str | None:
    """The database that the URL names."""
    name = url.decoded_path.removeprefix("/")
    if _FORBIDDEN.intersection(name) or len(name.encode()) > 63:
        raise InvalidURLError(
            f"{url}: {name!r} cannot be the name of a database, which has at most 63 bytes and none of "
            '/ \\ . space " $ * < > : | ?'
        )
    return name or None


def _connector(url: StoreURL, options: MongoOptions, database: str | None) -> Callable[[], Awaitable[Connected]]:
    if not url.authority:
        raise InvalidURLError(f"{url}: the host is missing: {url.scheme}://localhost{url.path or '/' + DATABASE}")
    _check_options(url)
    text = url.without(own_keys(MongoOptions))
    named = {name.lower() for name, _ in url.query}
    settings: dict[str, Any] = {}
    if "serverselectiontimeoutms" not in named:
        # Opening has its own limit. Later on, a call may wait for a failover as long as it may take at all.
        settings["serverSelectionTimeoutMS"] = int(max(options.connect_timeout, options.timeout * 0.9) * 1000)
    if "connecttimeoutms" not in named:
        settings["connectTimeoutMS"] = int(options.connect_timeout * 1000)
    if "maxpoolsize" not in named:
        settings["maxPoolSize"] = CONNECTIONS
    make: Callable[..., Any] = _motor(url) if options.driver == "motor" else AsyncMongoClient
    if options.driver == "pymongo":  # Motor names itself to the server, and no other beside it
        settings["driver"] = DriverInfo("chatkeep")

    async def connect() -> Connected:
        try:
            client = make(text, **settings)
            collection = client[database or DATABASE][options.collection]
        except _WRONG as error:
            raise ConfigError(f"{url}: {url.scrub(str(error))}") from None
        ours = _Ours(client, collection)
        await ours.begin()
        return ours

    return connect


def _check_options(url: StoreURL) -> None:
    """Refuse what the driver would only warn of."""
    own = own_keys(MongoOptions)
    theirs = [name for name, _ in url.query if name not in own]
    for name in theirs:
        if name.lower() not in KNOWN_OPTIONS:
            known = {each.lower(): each for each in [*own, *KNOWN_OPTIONS]}
            close = get_close_matches(name.lower(), sorted(known), n=1)
            meant = f" Did you mean {known[close[0]]}?" if close else ""
            raise ConfigError(
                f"{url.scrub(repr(name))} is no option of a {url.scheme}:// store, nor of the driver.{meant} "
                f"The store's own: {', '.join(sorted(own))}"
            )
    query = url.without(own).partition("?")[2]
    if any(parse_qsl(query)):
        try:
            split_options(query, validate=True, warn=False)
        except _WRONG as error:
            raise ConfigError(f"{url}: {url.scrub(str(error))}") from None


def _motor(url: StoreURL) -> Callable[..., Any]:
    try:
        from motor.motor_asyncio import AsyncIOMotorClient  # noqa: PLC0415 - it need not be installed
    except ImportError as error:
        raise ConfigError(
            f"{url}: driver=motor needs Motor, which is not installed: pip install 'chatkeep-mongodb[motor]'"
        ) from error
    return AsyncIOMotorClient


def _given(
    url: StoreURL, options: MongoOptions, client: Any, database: str | None
) -> Callable[[], Awaitable[Connected]]:
    """A client or a database of either driver, or of one that behaves like Motor."""
    kind = type(client).__name__
    if url.authority:
        raise ConfigError(f"{url}: with client= the URL names no host: write {url.scheme}:///{database or DATABASE}")
    if kind in ("MongoClient", "Database"):
        raise ConfigError(
            f"{url}: client= is a {kind}, which blocks the event loop: pass an AsyncMongoClient or an "
            "AsyncIOMotorClient, or a database of one"
        )
    # Of the class: an object has an attribute for every name of a database or collection.
    if hasattr(type(client), "get_collection"):
        if database not in (None, client.name):
            raise ConfigError(f"{url}: client= is the database {client.name!r}, and the URL names {database!r}")
        theirs = client
    elif hasattr(type(client), "get_database"):
        theirs = client[database or DATABASE]
    else:
        raise ConfigError(
            f"{url}: client= must be an AsyncMongoClient, an AsyncIOMotorClient or a database of one, not {kind}"
        )

    async def connect() -> Connected:
        return _Theirs(theirs[options.collection])

    return connect
