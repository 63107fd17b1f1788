"""chatkeep keeps the conversations of AI agents in the database that a team already runs.

::

    from chatkeep import ChatMessage, open_store

    async with open_store("sqlite:///chat.db") as store:
        session = store.scoped(tenant="acme", user="alice").session("support-42")
        await session.append([ChatMessage.user("Where is my bag?"), ChatMessage.assistant("In Oslo.")])
        history = await session.messages(last=20)

`chatkeep.errors` draws the tree of errors. The plugin interface is in `chatkeep.backend` and `chatkeep.plugins`, the
contract that every backend keeps in `chatkeep.testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .codecs import ChatMessageCodec, Encoded, MessageCodec, OpenAIChatCodec
from .errors import (
    BackendBrokenError,
    BackendNotInstalledError,
    ChatkeepError,
    ConfigError,
    ConflictError,
    CorruptRecordError,
    DuplicateBackendError,
    DuplicateIdError,
    FencedError,
    InvalidIdError,
    InvalidURLError,
    LeaseHeldError,
    MessageNotFoundError,
    MessageTooLargeError,
    OutcomeUnknownError,
    ScopeRequiredError,
    SerializationError,
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreLoopError,
    StoreTimeoutError,
    StoreUnavailableError,
    UnknownSchemeError,
    WindowError,
)
from .factory import open_store
from .log import Appended, Log
from .messages import ChatMessage, ToolCall
from .metadata import SessionInfo
from .reading import History
from .records import ABSENT, Cursor, Health, Receipt, Scope
from .registered import RegisteredType
from .serializer import SessionSerializer
from .session import Session
from .snapshot import SessionSnapshot
from .state import State, Versioned
from .store import ScopedStore, SessionPage, Store
from .windows import Window, drop_tool_bodies, estimate_tokens, summarise

if TYPE_CHECKING:
    from .plugins import hookimpl, installed_backends

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "Appended",
    "BackendBrokenError",
    "BackendNotInstalledError",
    "ChatMessage",
    "ChatMessageCodec",
    "ChatkeepError",
    "ConfigError",
    "ConflictError",
    "CorruptRecordError",
    "Cursor",
    "DuplicateBackendError",
    "DuplicateIdError",
    "Encoded",
    "FencedError",
    "Health",
    "History",
    "InvalidIdError",
    "InvalidURLError",
    "LeaseHeldError",
    "Log",
    "MessageCodec",
    "MessageNotFoundError",
    "MessageTooLargeError",
    "OpenAIChatCodec",
    "OutcomeUnknownError",
    "Receipt",
    "RegisteredType",
    "Scope",
    "ScopeRequiredError",
    "ScopedStore",
    "SerializationError",
    "Session",
    "SessionInfo",
    "SessionPage",
    "SessionSerializer",
    "SessionSnapshot",
    "State",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreFormatError",
    "StoreLoopError",
    "StoreTimeoutError",
    "StoreUnavailableError",
    "ToolCall",
    "UnknownSchemeError",
    "Versioned",
    "Window",
    "WindowError",
    "drop_tool_bodies",
    "estimate_tokens",
    "hookimpl",
    "installed_backends",
    "open_store",
    "summarise",
]


def __getattr__(name: str) -> Any:
    if name in ("hookimpl", "installed_backends"):
        from . import plugins  # noqa: PLC0415 - pluggy and the entry points wait until they are needed

        return getattr(plugins, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
