"""The demo's first process: it stores conversations, every turn in one append of its own."""

from __future__ import annotations

import os
from statistics import median
from time import perf_counter

from .conversations import Conversation, conversations
from .demo import RESUMED, TENANT
from .screen import Screen
from .store import Message, opened
from .text import counted, duration, in_one_line, microseconds, shortened

_TITLE = 60


async def store(url: str) -> None:
    """Store what is not stored yet, and print what each conversation cost."""
    screen = Screen()
    begun = perf_counter()
    async with opened(url) as kept:
        await kept.open()
        connecting = perf_counter() - begun
        name = in_one_line(kept.connection.name)
        screen.put_line(("chatkeep demo", "bold"), f": an airline agent's conversations, in {name}")
        screen.put_line()
        screen.put_line(
            (f"Process {os.getpid()}", "bold"),
            f" connects ({duration(connecting)}), stores them turn by turn and ends:",
        )
        for conversation in conversations():
            turns = conversation.turns[:-1] if conversation.id == RESUMED else conversation.turns
            session = kept.scoped(tenant=TENANT).session(conversation.id)
            costs, added = [], 0
            for number, turn in enumerate(turns, 1):
                before = perf_counter()
                appended = await session.append(turn, batch_id=conversation.batch_id(number))
                costs.append(perf_counter() - before)
                added += appended.added
            await session.update(title=shortened(conversation.title, _TITLE))
            await session.state.update(conversation.state)
            screen.put_line(*_row(conversation, turns, costs, added))


def _row(
    conversation: Conversation, turns: list[list[Message]], costs: list[float], added: int
) -> list[str | tuple[str, str]]:
    size = sum(map(len, turns))
    return [
        f"  {conversation.id}  {counted(len(turns), 'turn')} {counted(size, 'message')}  ",
        (f"{duration(sum(costs)):>8}  {microseconds(median(costs)):>9} a turn", "cyan"),
        ("  all new" if added == size else f"  {added} new, none doubled", "green"),
    ]
