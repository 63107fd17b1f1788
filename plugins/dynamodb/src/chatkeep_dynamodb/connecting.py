"""Clients: made from a URL, or the caller's own. Nothing here speaks to the service, but boto3 may to find a role."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader

from chatkeep.documents import DocumentBackend
from chatkeep.errors import ConfigError, InvalidURLError, StoreUnavailableError
from chatkeep.url import StoreURL

from . import table
from .calls import Calls
from .clock import ServerClock
from .driver import DynamoDriver
from .failures import CREDENTIALS, MISSING_CREDENTIALS
from .options import DynamoOptions

_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)+")
ANSWERED_WITHIN = 1 / 3
"""The part of `timeout` that one request may take: so that a lost answer leaves time to look for it."""
BUSY_FOR = 0.7
"""The part of it for which requests are repeated while the table is busy."""
USER_AGENT = "chatkeep"


def open_backend(url: StoreURL, options: DynamoOptions, client: Any) -> DocumentBackend:
    """``dynamodb://region/Table?…``, or ``dynamodb:///Table`` with a client or session of the caller's."""
    name, region = table_of(url), region_of(url)
    ours = client is None or _is_session(client)
    if client is None:
        connect = _connector(url, options, name, region, session=None)
    elif ours:
        connect = _connector(url, _unsaid(url, options), name, region, session=client)
    else:
        connect = _given(url, _unsaid(url, options), name, region, client)
    prepare = None
    if options.create:
        prepare = partial(table.create, place=str(url), recovery=options.recovery, kms_key=options.kms_key)
    return DocumentBackend(DynamoDriver(connect, name=str(url), prepare=prepare, ours=ours))


def table_of(url: StoreURL) -> str:
    """The table that the URL names."""
    name = url.decoded_path.removeprefix("/")
    if not name:
        raise InvalidURLError(f"{url}: the table is missing: dynamodb://{url.authority or 'eu-west-1'}/Conversations")
    if not _TABLE.fullmatch(name):
        raise InvalidURLError(
            f"{url}: {name!r} cannot be the name of a table, which has 3 to 255 characters of A-Z, a-z, 0-9, '_', '.' "
            "and '-'"
        )
    return name


def region_of(url: StoreURL) -> str | None:
    """The region that the URL names."""
    region = url.authority.lower()
    if region and not _REGION.fullmatch(region):
        raise InvalidURLError(
            f"{url}: what stands before the table must be a region, such as dynamodb://eu-west-1/Conversations; "
            "credentials come from boto3's own places, and another endpoint as ?endpoint_url=…"
        )
    return region or None


def _is_session(client: Any) -> bool:
    return isinstance(client, boto3.session.Session)


def _unsaid(url: StoreURL, options: DynamoOptions) -> DynamoOptions:
    """The options, none of which says what a caller's own client or session says."""
    for option in ("profile",):
        if getattr(options, option) is not None:
            raise ConfigError(f"{url}: with client= the option {option} says nothing: leave it out")
    return options


def _connector(
    url: StoreURL, options: DynamoOptions, name: str, region: str | None, *, session: Any
) -> Callable[[ServerClock], Awaitable[Calls]]:
    def make() -> Any:
        try:
            found = session or _session(options.profile)
            where = region or found.region_name
            if where is None:
                raise ConfigError(
                    f"{url}: the region is missing: write dynamodb://eu-west-1/{name}, set AWS_REGION, or name a "
                    "profile that has one"
                )
            if found.get_credentials() is None:
                raise StoreUnavailableError(f"{url}: {CREDENTIALS}")
            config = Config(
                connect_timeout=min(options.connect_timeout, options.timeout * ANSWERED_WITHIN),
                read_timeout=options.timeout * ANSWERED_WITHIN,
                max_pool_connections=options.connections,
                # What is repeated, and when, is decided here: the client would take our own change for another's.
                retries={"total_max_attempts": 1, "mode": "standard"},
                parameter_validation=False,
                tcp_keepalive=True,
                user_agent_extra=USER_AGENT,
            )
            return found.client("dynamodb", region_name=where, endpoint_url=options.endpoint_url, config=config)
        except MISSING_CREDENTIALS as error:
            raise StoreUnavailableError(f"{url}: {CREDENTIALS} ({error})") from None
        except StoreUnavailableError:
            raise
        except OSError as error:  # of a program that the configuration names
            raise StoreUnavailableError(f"{url}: boto3 cannot get the credentials: {error}") from None
        except (BotoCoreError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{url}: {url.scrub(str(error))}") from None

    async def connect(clock: ServerClock) -> Calls:
        calls = Calls(None, name, threads=options.connections, patience=options.timeout * BUSY_FOR, clock=clock)
        try:
            calls.client = await calls.in_thread(make)
        except BaseException:
            await calls.end()
            raise
        return calls

    return connect


_models = create_loader()
"""Reads what boto3 knows of the service from files: once in a process, for it takes long."""


def _session(profile: str | None) -> Any:
    session = botocore.session.Session(profile=profile)
    session.register_component("data_loader", _models)
    return boto3.session.Session(botocore_session=session)


def _given(
    url: StoreURL, options: DynamoOptions, name: str, region: str | None, client: Any
) -> Callable[[ServerClock], Awaitable[Calls]]:
    """A client of the caller's."""
    meta = getattr(client, "meta", None)
    model = getattr(meta, "service_model", None)
    if getattr(model, "service_name", None) != "dynamodb" or not callable(getattr(client, "update_item", None)):
        raise ConfigError(
            f"{url}: client= must be boto3's DynamoDB client, boto3.client('dynamodb'), or a boto3.Session, not "
            f"{type(client).__name__}"
        )
    if type(client).__module__.startswith("aiobotocore") or hasattr(type(client), "__aenter__"):
        raise ConfigError(f"{url}: client= is an asynchronous client: pass boto3.client('dynamodb')")
    if options.endpoint_url is not None:
        raise ConfigError(f"{url}: with client= the option endpoint_url says nothing: leave it out")
    theirs = client.meta.region_name
    if region not in (None, theirs):
        raise ConfigError(f"{url}: client= is for the region {theirs}: write dynamodb:///{name}")
    threads = min(options.connections, client.meta.config.max_pool_connections)

    async def connect(clock: ServerClock) -> Calls:
        return Calls(client, name, threads=threads, patience=options.timeout * BUSY_FOR, clock=clock)

    return connect
