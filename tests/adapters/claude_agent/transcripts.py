"""Entries of transcripts, as the command line writes them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from chatkeep_adapters.claude_agent import ChatkeepSessionStore

Opener = Callable[..., ChatkeepSessionStore]

PROJECT = "-home-alice-airline"
SESSION = "1f0e5c7a-6d7c-4e5a-9f3e-0a3f2a4d9c11"
KEY: Any = {"project_key": PROJECT, "session_id": SESSION}


def said(text: str, *, type: str = "user", uuid: str | None = None, **more: Any) -> Any:
    """An entry with a message; its uuid is made of the text if not given."""
    content: Any = text if type == "user" else [{"type": "text", "text": text}]
    return {"type": type, "uuid": uuid or uuid_of(text), "message": {"role": type, "content": content}, **more}


def uuid_of(text: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, text))


def chained(*entries: Any, session_id: str = SESSION) -> list[Any]:
    """The entries as one conversation: each says which one it follows, when, and in which session."""
    parents = [None, *(entry["uuid"] for entry in entries)]
    return [
        {**entry, "parentUuid": parent, "sessionId": session_id, "timestamp": f"2026-01-02T03:04:{place:02}.000Z"}
        for place, (entry, parent) in enumerate(zip(entries, parents, strict=False))
    ]


def title(text: str, *, uuid: str | None = None) -> Any:
    """An entry that names the transcript; such have no uuid, unless the SDK itself writes them."""
    return {"type": "custom-title", "customTitle": text} | ({} if uuid is None else {"uuid": uuid})
