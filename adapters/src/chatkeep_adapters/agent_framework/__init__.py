"""The Microsoft Agent Framework (``agent-framework-core`` 1.x) remembers in chatkeep.

`ChatkeepHistoryProvider` keeps what an agent and its users say.
"""

from __future__ import annotations

from .codec import MessageCodec
from .history import ChatkeepHistoryProvider

__all__ = ["ChatkeepHistoryProvider", "MessageCodec"]
