"""The Microsoft Agent Framework (``agent-framework-core`` 1.x) remembers in chatkeep."""

from __future__ import annotations
