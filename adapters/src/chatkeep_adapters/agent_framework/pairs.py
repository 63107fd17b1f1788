"""Calls and results that have lost each other, because a record between them is damaged and was left out."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from agent_framework import Message


def without_broken_pairs(messages: Sequence[Message]) -> list[Message]:
    """The messages without calls that nobody answers and results that nobody called for: services refuse both.

    Messages are copied where a part of them goes, and left out where nothing remains.
    """
    contents = [content for message in messages for content in message.contents]
    made = {content.call_id for content in contents if content.type == "function_call"}
    answered = {content.call_id for content in contents if content.type == "function_result"}
    whole = []
    for message in messages:
        kept = [
            content
            for content in message.contents
            if (content.type != "function_call" or content.call_id in answered)
            and (content.type != "function_result" or content.call_id in made)
        ]
        if len(kept) == len(message.contents):
            whole.append(message)
        elif kept:
            part = copy.copy(message)
            part.contents = kept
            whole.append(part)
    return whole
