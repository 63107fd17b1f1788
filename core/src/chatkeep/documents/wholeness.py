"""Whether a head is whole: what is damaged, or of a later version, harms itself alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from chatkeep.errors import CorruptRecordError, StoreFormatError

from .driver import Document
from .packing import check_form

logger = logging.getLogger("chatkeep.documents")

GONE = frozenset({"form", "version", "recent", "number", "life", "lives", "reap", "due"})
"""What a head has whose session is gone."""
LISTED = GONE | {
    *("scope", "session", "created", "updated", "expires", "ttl", "kept", "parts"),
    *("meta", "service", "fence", "owner", "leased", "logs", "garbage"),
}
"""What a listing sees of any other."""
WHOLE = LISTED | {"state"}


def check_head(document: Document, *, fields: frozenset[str] = WHOLE, name: str | None = None) -> None:
    """A `StoreFormatError` if a later version of chatkeep has stored it, a `CorruptRecordError` if it lacks a field.

    `name` is what the session is called where that is known.
    """
    name = name or f"session {document.get('session')!r} in {document.get('scope')}"
    if "form" in document:
        check_form(document["form"], name)
    lacking = (GONE if "life" in document and document["life"] is None else fields) - document.keys()
    if lacking:
        raise CorruptRecordError(
            f"the head of {name} is damaged, it lacks {', '.join(sorted(lacking))}: restore a backup, or delete it"
        )


def whole(documents: Iterable[Document]) -> Iterator[Document]:
    """Those of a listing that can be understood."""
    for document in documents:
        try:
            check_head(document, fields=LISTED)
        except (CorruptRecordError, StoreFormatError) as error:
            logger.warning("a session is left out of a listing: %s", error)
        else:
            yield document


def counts(document: Document) -> tuple[int, int]:
    """How many messages and state keys a session has, as far as that can be told."""
    logs: Any = document.get("logs")
    state: Any = document.get("state")
    messages = sum(log.get("size", 0) for log in logs) if isinstance(logs, list) else 0
    return messages, state.get("count", 0) if isinstance(state, dict) else 0
