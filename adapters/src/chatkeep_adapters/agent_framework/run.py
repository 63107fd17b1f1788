"""A run that is being saved: the framework tells `save_messages` nothing but the messages."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from agent_framework import Message

from .codec import said

if TYPE_CHECKING:
    from agent_framework import SessionContext


class Run(NamedTuple):
    """A run that is being saved, or one call of the model where each is saved by itself."""

    context: SessionContext
    id: str
    saves: Iterator[int]
    """Counts the saves of the run: a subclass may divide what is saved."""
    beside: frozenset[str]
    """The context providers whose messages are no history."""


_RUN: ContextVar[Run | None] = ContextVar("chatkeep_agent_framework_run", default=None)


def being_saved() -> Run | None:
    """The run that is being saved here; None where something is saved by hand."""
    return _RUN.get()


@contextmanager
def saving(run: Run) -> Iterator[None]:
    """Whatever is saved inside belongs to that run."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


def run_id(context: SessionContext, provider: str) -> str:
    """What names the saves of a run by one provider: the same as long as the response says the same.

    A stream whose save has failed comes with another response object, of the same messages.
    """
    entry = f"chatkeep.run.{provider}"
    answers = [said(message) for message in context.response.messages] if context.response else []
    known, name = context.metadata.get(entry, (None, ""))
    if known != answers:
        name = uuid.uuid4().hex
        context.metadata[entry] = (answers, name)
    return str(name)


def start_of_answers(messages: Sequence[Message], context: SessionContext) -> int:
    """Where, in what a run saves, that begins which the agent has just said.

    A subclass may have left some out, put others behind them, or saved copies.
    """
    answers = list(context.response.messages) if context.response else []
    given = set(map(id, (*context.get_messages(), *context.input_messages)))
    ours = set(map(id, answers))
    same = operator.is_ if any(id(message) in ours for message in messages) else _says_the_same
    start = len(messages)
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        place = next((place for place in range(len(answers) - 1, -1, -1) if same(answers[place], message)), None)
        if place is not None:
            del answers[place:]
            start = index
        elif id(message) in given:
            break
    return start


def _says_the_same(one: Message, other: Message) -> bool:
    return said(one) == said(other)
