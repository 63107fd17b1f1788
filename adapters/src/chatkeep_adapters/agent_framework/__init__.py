"""The Microsoft Agent Framework (``agent-framework-core``) remembers in chatkeep.

`ChatkeepHistoryProvider`
    keeps what an agent and its users say (1.x).
`ChatkeepSessionStore`
    keeps the framework's `AgentSession` (1.13 and later).
`ChatkeepChatMessageStore`
    keeps a thread's messages, for the betas before 1.0.

Each is imported when it is asked for, and says so if the framework that is installed is not one of its versions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .chat_message_store import ChatkeepChatMessageStore as ChatkeepChatMessageStore
    from .codec import MessageCodec as MessageCodec
    from .history import ChatkeepHistoryProvider as ChatkeepHistoryProvider
    from .sessions import ChatkeepSessionStore as ChatkeepSessionStore
    from .sessions import FingerprintError as FingerprintError

_MODULES = {
    "ChatkeepChatMessageStore": "chat_message_store",
    "ChatkeepHistoryProvider": "history",
    "ChatkeepSessionStore": "sessions",
    "FingerprintError": "sessions",
    "MessageCodec": "codec",
}
"""The public names and where they are. They need different versions of the framework, so none is imported unasked."""
_VERSIONS = {
    "chat_message_store": "'agent-framework-core==1.0.0b251120' 'mcp[ws]<1.23'",
    "sessions": "'agent-framework-core>=1.13,<2'",
}
"""What to install for the modules that not every 1.x will do for; the beta does not say itself which mcp it needs."""

# What 1.13 and later have: ``import *`` would fail with the betas' store among it.
__all__ = ["ChatkeepHistoryProvider", "ChatkeepSessionStore", "FingerprintError", "MessageCodec"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        try:
            return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        except ImportError as error:
            if error.name != "agent_framework":
                raise
            missing = isinstance(error, ModuleNotFoundError)
            needs = "agent-framework-core, which is not installed" if missing else "another agent-framework-core"
            wanted = _VERSIONS.get(_MODULES[name], "'agent-framework-core>=1.0,<2'")
            raise ImportError(f"{name} needs {needs}: pip install {wanted}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
