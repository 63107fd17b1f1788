"""Searching a history for words, and the tool with which a model does that."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from typing import Final

from agent_framework import FunctionTool, Message

from chatkeep import CorruptRecordError, Log
from chatkeep.records import Span

TOOL: Final = "search_history"
INSTRUCTIONS: Final = f"What was said earlier than the messages you see, you can look up with {TOOL}."
PAGE = 500
"""How many messages are read at once."""


async def search(log: Log[Message], query: str, *, limit: int) -> list[Message]:
    """Up to `limit` messages that say most of the query's words, upper or lower case; of equal ones the newest first.

    The whole log is read, in pages. Searched is the text of what was said, not what tools were called with or returned.
    """
    words = set(query.casefold().split())
    hits: list[tuple[int, int, Message]] = []
    async for seq, message, text in _texts(log):
        score = sum(word in text for word in words)
        if score:
            hits = heapq.nlargest(limit, [*hits, (score, seq, message)], key=lambda hit: hit[:2])
    return [message for _, _, message in hits]


def search_tool(log: Log[Message], *, limit: int) -> FunctionTool:
    """The tool for a model: what it finds is one line for each message, who said it in front."""

    async def search_history(query: str) -> str:
        found = await search(log, query, limit=limit)
        return "\n".join(f"[{message.role}] {message.text}" for message in found) or "nothing was found"

    return FunctionTool(
        name=TOOL,
        description="Search all that was said in this conversation, also what you are not shown, for words.",
        func=search_history,
    )


async def _texts(log: Log[Message]) -> AsyncIterator[tuple[int, Message, str]]:
    """The seq, the message and its text without upper case, of every message that says something."""
    after, more = 0, True
    while more:
        page = await log.records(Span(after=after, limit=PAGE))
        for record in page.records:
            after = record.seq
            try:
                message = log.decode(record)
            except CorruptRecordError:  # nothing to search in
                continue
            if text := log.codec.encode(message).text:
                yield record.seq, message, text.casefold()
        more = page.more
