"""Telling a replay from a repetition: which of the messages of a save does the log hold already?

Somebody who says "ok" twice says it twice; somebody who hands the whole transcript over again, as chat clients do, has
said nothing but the end of it. Content alone cannot tell them apart. Three signs can:

* The message was read from this log: it carries a mark, which copies keep.
* It has a message id: the log knows ids, and `Log.append` sees to them.
* It stands in a sequence that ends the log and goes on with something new, and in which the agent speaks too: what the
  agent said, a caller can only have from the conversation.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from agent_framework import Message

from chatkeep import CorruptRecordError, Cursor, Log, Session, SessionSerializer
from chatkeep.records import Record, Span

from .codec import said, seq_of

_MARK: Final = "_chatkeep_mark"
_SAID_TO_THE_AGENT = frozenset({"user", "system", "developer"})
"""The roles of what a caller can come up with alone."""

_STORES: WeakKeyDictionary[SessionSerializer, str] = WeakKeyDictionary()


class Place(NamedTuple):
    """One log of one store of this process: plain values, for what carries them may be copied and pickled."""

    store: str
    scope: str
    session: str
    log: str


class _Saying:
    """A message as it is compared: by its id where both have one, else by who says what."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, message: Message) -> None:
        self._id = message.message_id
        self._said = said(message)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Saying):
            return NotImplemented
        if self._id and other._id:
            return self._id == other._id
        return self._said == other._said


class _Mark(NamedTuple):
    place: Place
    newest: bool
    """Whether the message was the last one of the log when it was read."""


def place_of(session: Session[Any], log: Log[Any]) -> Place:
    """Where a log's messages come from."""
    store = _STORES.setdefault(log.serializer, uuid.uuid4().hex)
    return Place(store, session.scope.address, session.id, log.name)


def mark(messages: Sequence[Message], end: Cursor, place: Place) -> None:
    """Let the messages of a reading that reached to `end` say where they come from."""
    for message in messages:
        seq = seq_of(message)
        if seq is not None:
            setattr(message, _MARK, _Mark(place, seq == end.seq))


def without_read(messages: Sequence[Message], place: Place) -> list[Message]:
    """The messages that were not read from that log.

    If what was read does not reach to the log's end, it is being said once more: then all of them.
    """
    marks: list[_Mark | None] = [vars(message).get(_MARK) for message in messages]
    if not any(mark is not None and mark.place == place and mark.newest for mark in marks):
        return list(messages)
    return [message for message, mark in zip(messages, marks, strict=True) if mark is None or mark.place != place]


def may_be_replayed(messages: Sequence[Message]) -> bool:
    """Whether the agent speaks in what a caller gives, so that the log's end has to be looked at."""
    return any(message.role not in _SAID_TO_THE_AGENT for message in messages)


async def repeated(log: Log[Message], given: Sequence[Message], *, without: Collection[str] = ()) -> int:
    """How many of the messages at the beginning of `given` repeat the end of the log; see `overlap`, and `newest`."""
    last = await newest(log, 1, without=without)
    if last and _Saying(last[0]) not in map(_Saying, given):
        return 0  # nearly always: what is new costs the reading of one message
    return overlap(given, await newest(log, 2 * len(given) + 20, without=without))


async def newest(log: Log[Message], count: int, *, without: Collection[str] = ()) -> list[Message]:
    """The log's last messages, up to `count` of them, oldest first; those that cannot be read are left out.

    Left out as well are those that the context providers in `without` had added.
    """
    page = await log.records(Span(limit=count, newest=True))
    messages = [message for record in page.records if (message := _decoded(log, record)) is not None]
    return [message for message in messages if source_of(message) not in without]


def source_of(message: Message) -> str | None:
    """The id of the context provider that a message comes from, if the framework says so."""
    attribution = message.additional_properties.get("_attribution")
    source = attribution.get("source_id") if isinstance(attribution, dict) else None
    return source if isinstance(source, str) else None


def overlap(given: Sequence[Message], end: Sequence[Message]) -> int:
    """How many of the messages at the beginning of `given` repeat the end of the log, up to its last message.

    They are as many as agree with the log as far back as both go, of several ways the one that agrees longest. The
    agent must speak in them.
    """
    replayed, log = list(map(_Saying, given)), list(map(_Saying, end))
    best = agreeing = 0
    for size in range(1, len(replayed) + 1):
        reach = min(size, len(log))
        if reach > agreeing and replayed[size - reach : size] == log[len(log) - reach :]:
            best, agreeing = size, reach
    return best if may_be_replayed(given[best - agreeing : best]) else 0


def _decoded(log: Log[Message], record: Record) -> Message | None:
    try:
        return log.decode(record)
    except CorruptRecordError:  # it equals nothing: on_corrupt speaks where it is read for the model
        return None
