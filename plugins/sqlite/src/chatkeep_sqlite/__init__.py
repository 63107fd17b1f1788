"""Conversations in SQLite: chatkeep's backend for ``sqlite:///file.db`` and, in memory, ``sqlite://``."""

from __future__ import annotations

from chatkeep.backend import BackendSpec
from chatkeep.plugins import hookimpl

from .backend import SQLiteBackend, SQLiteOptions, open_backend

__all__ = ["SQLiteBackend", "SQLiteOptions", "chatkeep_backend"]


@hookimpl
def chatkeep_backend() -> BackendSpec:
    return BackendSpec("sqlite", ("sqlite",), SQLiteOptions, open_backend)
