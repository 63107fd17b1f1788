"""Calls and results that have lost each other, because a record between them is damaged and was left out."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from agent_framework import Message

from .codec import is_informational


def without_broken_pairs(messages: Sequence[Message]) -> list[Message]:
    """The messages without calls that nobody answers and results that nobody called for: services refuse both.

    Messages are copied where a part of them goes, and left out where nothing remains.
    """
    waiting: dict[str | None, int] = {}  # the last call with that id, which services may use again
    paired: set[int] = set()
    for content in (content for message in messages for content in message.contents):
        if content.type == "function_call" and not is_informational(content):
            waiting[content.call_id] = id(content)
        elif content.type == "function_result" and content.call_id in waiting:
            paired |= {waiting.pop(content.call_id), id(content)}
    whole = []
    for message in messages:
        kept = [
            content
            for content in message.contents
            if content.type not in ("function_call", "function_result")
            or id(content) in paired
            or is_informational(content)
        ]
        if len(kept) == len(message.contents):
            whole.append(message)
        elif kept:
            part = copy.copy(message)
            part.contents = kept
            whole.append(part)
    return whole
