"""Connections whose event loop is closed: nothing can be awaited on them, and yet their sockets must not stay open."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def abandon(connection: Any) -> None:
    """Close the connection's socket without its event loop."""
    writer = getattr(connection, "_writer", None)
    if writer is None:
        return
    connection._reader = connection._writer = None
    transport = writer.transport
    with suppress(RuntimeError):  # the loop is closed: the transport can tell nobody
        transport.abort()
    for each in (getattr(getattr(transport, "_ssl_protocol", None), "_transport", None), transport):
        lost = getattr(each, "_call_connection_lost", None)  # what asyncio's own loop would have called
        if lost is not None:
            with suppress(RuntimeError):
                lost(None)
