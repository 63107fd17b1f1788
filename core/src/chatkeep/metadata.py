"""What a session says of itself: title, metadata and service session id, as the text entries of its head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from logging import getLogger
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple

from .arguments import NAME_BYTES, check_id
from .errors import MessageTooLargeError, SerializationError
from .records import Cursor, Head, Scope

if TYPE_CHECKING:
    from .serializer import SessionSerializer

logger = getLogger("chatkeep")

TITLE = "title"
SERVICE = "service"
ENTRY = "m:"
"""The beginning of the names that the caller's metadata has in the head."""
META_BYTES = 16 * 1024
"""The most that one update of title, metadata and service session id may hold."""

ServiceId = str | Mapping[str, Any]


class LogInfo(NamedTuple):
    """One log of a session."""

    tail: Cursor
    """Its newest message; ``seq`` is 0 if it is empty."""
    size: int
    """How many messages it holds."""


class SessionInfo(NamedTuple):
    """What there is to know of a session without reading it. Times are in UTC, by the backend's clock."""

    id: str
    scope: Scope
    life: str
    created_at: datetime
    updated_at: datetime
    """Of the last write."""
    expires_at: datetime | None
    title: str | None
    metadata: dict[str, Any]
    service_session_id: str | dict[str, Any] | None
    logs: dict[str, LogInfo]
    """By name; the main log is ""."""

    @property
    def messages(self) -> int:
        """How many messages the main log holds."""
        return self.logs[""].size if "" in self.logs else 0

    @property
    def tail(self) -> Cursor:
        """Of the main log: what an append on what is there now gives as `expected_tail`."""
        return self.logs[""].tail if "" in self.logs else Cursor(self.life, 0)


def described(head: Head, serializer: SessionSerializer) -> SessionInfo:
    """The head as a caller sees it."""
    entries = head.meta.items()
    return SessionInfo(
        head.key.session,
        head.key.scope,
        head.life,
        datetime.fromtimestamp(head.created_at, UTC),
        datetime.fromtimestamp(head.updated_at, UTC),
        None if head.expires_at is None else datetime.fromtimestamp(head.expires_at, UTC),
        head.meta.get(TITLE),
        {name[len(ENTRY) :]: _loaded(serializer, text) for name, text in entries if name.startswith(ENTRY)},
        _loaded(serializer, head.meta[SERVICE]) if SERVICE in head.meta else None,
        {name: LogInfo(Cursor(head.life, log.tail, log.rewrite), log.size) for name, log in head.logs.items()},
    )


def _loaded(serializer: SessionSerializer, text: str) -> Any:
    """An entry's value; its text where it cannot be read here, so that it spoils no listing."""
    try:
        return serializer.loads(text.encode())
    except ValueError as error:
        logger.warning("an entry of a session's metadata cannot be read and is given as its text: %s", error)
        return text


def changes(
    serializer: SessionSerializer,
    *,
    title: str | EllipsisType | None = ...,
    metadata: Mapping[str, Any] | None = None,
    service_session_id: ServiceId | EllipsisType | None = ...,
) -> dict[str, str | None]:
    """The entries that an update puts into the head; None removes one."""
    entries: dict[str, str | None] = {}
    if title is not ...:
        entries[TITLE] = None if title is None else check_id(title, "a title")
    if service_session_id is not ...:
        entries[SERVICE] = None if service_session_id is None else service_entry(serializer, service_session_id)
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping such as {{'channel': 'web'}}, not {_kind(metadata)}")
    for name, value in (metadata or {}).items():
        check_id(name, "a metadata key", NAME_BYTES - len(ENTRY))
        entries[ENTRY + name] = None if value is None else entry(serializer, value, f"metadata[{name!r}]")
    size = sum(len(name.encode()) + len((text or "").encode()) for name, text in entries.items())
    if size > META_BYTES:
        raise MessageTooLargeError(
            f"title, metadata and service session id take {size} bytes; {META_BYTES} are allowed: "
            "keep what is large in the session's state"
        )
    return entries


def service_entry(serializer: SessionSerializer, service_session_id: ServiceId) -> str:
    """The one text of a service session id."""
    if isinstance(service_session_id, str):
        check_id(service_session_id, "service_session_id")
    elif not isinstance(service_session_id, Mapping):
        raise TypeError(f"service_session_id must be a str or a mapping, not {_kind(service_session_id)}")
    return entry(serializer, service_session_id, "service_session_id")


def entry(serializer: SessionSerializer, value: Any, path: str) -> str:
    """The one text of a value: whatever the order of its keys."""
    text = serializer.dumps(value, path=path).decode()
    if text[0] not in "[{":
        return text
    try:
        value = json.loads(text)
        ordered = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return ordered if ordered.isprintable() else json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise SerializationError(f"{path}: nested more deeply than this thread's stack allows", path=path) from None


def _kind(value: object) -> str:
    return type(value).__name__
