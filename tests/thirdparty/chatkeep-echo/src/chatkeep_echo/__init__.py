"""Conversations in a journal, a file of JSON lines: a backend of chatkeep for ``echo:///file`` URLs."""

from __future__ import annotations

from chatkeep import hookimpl
from chatkeep.backend import BackendSpec
from chatkeep.options import StoreOptions

from .backend import open_backend

__all__ = ["chatkeep_backend"]


@hookimpl
def chatkeep_backend() -> BackendSpec:
    return BackendSpec("echo", ("echo",), StoreOptions, open_backend)
