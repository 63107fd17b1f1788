"""The demo's second process: what it finds, one more turn, then the conversation, a window of it, and its state."""

from __future__ import annotations

import os
import shlex
from time import perf_counter

from chatkeep import History, Window, estimate_tokens

from .conversations import conversations
from .demo import DEFAULT_URL, RESUMED, TENANT
from .failures import Code, CommandError
from .screen import Screen
from .store import Message, opened
from .text import counted, duration, in_one_line, json_text, shortened
from .transcript import Brevity, print_message

BUDGET = 400
"""Tokens of the window that is shown."""


async def resume(url: str) -> None:
    """Resume the conversation that the first process left, and print what each step cost."""
    screen, clock = Screen(), _Clock()
    async with opened(url) as kept:
        await kept.open()
        connecting = clock.lap()
        name = in_one_line(kept.connection.name)
        session = kept.scoped(tenant=TENANT).session(RESUMED)
        found = await session.info()
        finding = clock.lap()
        if found is None:
            raise CommandError(
                f"what one process stored in {name}, the next one does not find: use a database that outlives a "
                f"process, such as {DEFAULT_URL}",
                Code.USAGE,
            )
        conversation = next(each for each in conversations() if each.id == RESUMED)
        turns = conversation.turns
        clock.lap()
        appended = await session.append(turns[-1], batch_id=conversation.batch_id(len(turns)))
        adding = clock.lap()
        history = await session.messages()
        reading = clock.lap()
        window = await session.messages(window=Window(max_tokens=BUDGET, overflow="keep"))
        cutting = clock.lap()
        state = await session.state.items()
        loading = clock.lap()

    screen.put_line()
    screen.put_line(
        (f"Process {os.getpid()}", "bold"),
        f" connects ({duration(connecting)}) and finds ",
        (RESUMED, "bold"),
        f": {counted(found.messages, 'message')} ({duration(finding)}).",
    )
    if appended.added:
        screen.put_line(f"It goes on where the first one ended, with one more turn ({duration(adding)}):")
    else:
        screen.put_line(f"It sends the last turn, which an earlier run has stored: not doubled ({duration(adding)}).")
    screen.put_line()
    _print_messages(screen, history, window)
    screen.put_line()
    rows = [
        ("History", f"{counted(len(history), 'message')}, oldest first", reading),
        ("Window", _window_words(window), cutting),
        *((("State" if not place else ""), text, loading) for place, text in enumerate(_state_words(state))),
    ]
    for label, text, cost in rows:
        note = f"  {duration(cost)}" if label else ""
        room = max(screen.text_width - 9 - len(note), 20)
        screen.put_line((f"{label:<9}", "bold"), shortened(text, room), (note, "cyan"))
    screen.put_line()
    where = shlex.quote(name)
    screen.put_line(("Run it again: nothing is doubled. Look further:", "dim"))
    screen.put_line(f"  chatkeep sessions {where} --tenant {TENANT}")
    screen.put_line(f"  chatkeep show {where} {conversations()[0].id} --tenant {TENANT}")


def _print_messages(screen: Screen, history: History[Message], window: History[Message]) -> None:
    for seq, message in zip(history.seqs, history, strict=True):
        if window.seqs and seq == window.seqs[0]:
            title = f"─── a window of {BUDGET} tokens starts here "
            screen.put_line((title.ljust(screen.text_width, "─"), "yellow"))
        print_message(screen, seq, message, Brevity(said=2, rest=1))


def _window_words(window: History[Message]) -> str:
    tokens = sum(map(estimate_tokens, window))
    if not window:
        return f"nothing, for {BUDGET} tokens"
    return f"messages {window.seqs[0]} to {window.seqs[-1]}: {tokens} of {BUDGET} tokens"


def _state_words(state: dict[str, object]) -> list[str]:
    return [f"{key} = {json_text(value)}" for key, value in state.items()]


class _Clock:
    """How long each step took."""

    def __init__(self) -> None:
        self._last = perf_counter()

    def lap(self) -> float:
        """Seconds since the last call."""
        now = perf_counter()
        passed, self._last = now - self._last, now
        return passed
