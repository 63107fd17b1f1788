"""Telling a replay from a repetition: which of the messages of a save does the log hold already?

Somebody who says "ok" twice says it twice; somebody who hands the whole transcript over again, as chat clients do, has
said nothing but the end of it. Content alone cannot tell them apart. Three signs can:

* The message was read from this log: it carries a mark, which copies keep. See `read`.
* It stands in a sequence that ends the log and goes on with something new, and in which the agent speaks too: what the
  agent said, a caller can only have from the conversation. See `repeated`.
* It has a message id: the log knows ids. See `chatkeep_adapters.agent_framework.naming`.

What is a replay is told by its place among the messages, and not by the object: that may stand there twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from agent_framework import Message

from chatkeep import CorruptRecordError, Cursor, Log, Session, SessionSerializer
from chatkeep.records import Record, Span

from .codec import said, seq_of, starts_turn

_MARK: Final = "_chatkeep_mark"
_SAID_TO_THE_AGENT = frozenset({"user", "system", "developer"})
"""The roles of what a caller can come up with alone."""
_PROMPTS = frozenset({"system", "developer"})
_MARGIN = 20

_STORES: WeakKeyDictionary[SessionSerializer, str] = WeakKeyDictionary()


class Place(NamedTuple):
    """One log of one store of this process: plain values, for what carries them may be copied and pickled."""

    store: str
    scope: str
    session: str
    log: str


class _Mark(NamedTuple):
    place: Place
    seq: int
    newest: bool
    """Whether the message was the last one of the log when it was read."""
    words: tuple[Any, ...]


def place_of(session: Session[Any], log: Log[Any]) -> Place:
    """Where a log's messages come from."""
    store = _STORES.setdefault(log.serializer, uuid.uuid4().hex)
    return Place(store, session.scope.address, session.id, log.name)


# What was read


def mark(messages: Sequence[Message], end: Cursor, place: Place) -> None:
    """Let the messages of a reading that reached to `end` say where they come from, and what they said then."""
    for message in messages:
        seq = seq_of(message)
        if seq is not None:
            setattr(message, _MARK, _Mark(place, seq, seq == end.seq, _words(message)))


def read(messages: Sequence[Message], place: Place) -> set[int]:
    """At which places of a sequence there are messages that were read from that log, in its order, and handed back.

    They reach to the log's newest message of then, or to the last that the agent says. What was changed since, and
    stands behind that, is new, and so is a question that is asked once more.
    """
    found: list[int] = []
    size = seq = 0
    for index, message in enumerate(messages):
        mark: _Mark | None = vars(message).get(_MARK)
        if mark is None or mark.place != place:
            continue
        if mark.seq <= seq:
            break
        found.append(index)
        seq = mark.seq
        if mark.words == _words(message) and (mark.newest or by_the_agent(message)):
            size = len(found)
    return set(found[:size])


def _words(message: Message) -> tuple[Any, ...]:
    """What tells whether a message was changed since: quick to make."""
    return message.role, [(content.type, content.text, content.uri, content.call_id) for content in message.contents]


# What is repeated


class _Heard:
    """A message as a conversation has it: what is said in it, and the calls and results beside that.

    Two are the same if they have the same id; or, where one has none, if the same is said by the same role, and nothing
    else is in them, or the same. Chat clients drop what is no text, and change white space.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, message: Message) -> None:
        self.id = message.message_id
        self.role, contents = said(message)
        self.text = " ".join(" ".join(str(c.get("text") or "") for c in contents if c["type"] == "text").split())
        # The framework gives a call an id of its own after it was saved, where each call of the model is.
        self.rest = [{n: value for n, value in c.items() if n != "id"} for c in contents if c["type"] != "text"]
        self.silent = not self.text and not starts_turn(message)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Heard):
            return NotImplemented
        if self.id and other.id:
            return self.id == other.id
        same = (self.role, self.text) == (other.role, other.text)
        return same and (self.rest == other.rest or (bool(self.text) and not (self.rest and other.rest)))


def by_the_agent(message: Message) -> bool:
    """Whether the agent says it, or one of its tools."""
    return message.role not in _SAID_TO_THE_AGENT


async def repeated(log: Log[Message], given: Sequence[Message], *, without: Collection[str] = ()) -> set[int]:
    """At which places of `given` there is what the log ends with, or a system message that it holds there.

    Left out of the log are the messages that the context providers in `without` had added, and those that cannot be
    read.
    """
    if not any(map(by_the_agent, given)):
        return set()
    heard = list(map(_Heard, given))
    if all(each.silent for each in heard):
        return set()
    last = await _end_of(log, 1, without)
    if last.heard and not last.heard[0].silent and last.heard[0] not in heard:
        return set()  # nearly always: what is new costs the reading of one message
    size = 2 * len(given) + _MARGIN
    kept = await _end_of(log, size, without)
    while not kept.whole and sum(not each.silent for each in kept.heard) <= len(given):
        size *= 2
        kept = await _end_of(log, size, without)
    places = [index for index, each in enumerate(heard) if each.role not in _PROMPTS]
    found = {places[index] for index in overlap([heard[index] for index in places], kept)}
    prompts = set(range(max(found, default=0))).difference(places)
    return found | {index for index in prompts if heard[index] in kept.prompts}


class _Kept(NamedTuple):
    """The end of a log, as far as it was read."""

    heard: list[_Heard]
    prompts: list[_Heard]
    whole: bool
    """Whether it reaches to the beginning of the log."""
    begins: bool
    """Whether that is where the conversation began: nothing was trimmed or taken out before it."""


async def _end_of(log: Log[Message], size: int, without: Collection[str]) -> _Kept:
    page = await log.records(Span(limit=size, newest=True))
    messages = [message for record in page.records if (message := _decoded(log, record)) is not None]
    heard = [_Heard(message) for message in messages if source_of(message) not in without]
    begins = not page.more and (not page.records or page.records[0].seq == 1)
    return _Kept(
        [each for each in heard if each.role not in _PROMPTS],
        [each for each in heard if each.role in _PROMPTS],
        not page.more,
        begins,
    )


def overlap(given: Sequence[_Heard], kept: _Kept) -> range:
    """Which of the messages in `given` repeat the end of the log, up to its last message; the longest way counts.

    They agree as far back as both go. What has no words, such as the call of a tool, may be missing on either side, or
    be another. The agent must speak.
    """
    best, most = range(0), 0
    for stop in range(len(given), 0, -1):
        start, pairs = _agreeing(given[:stop], kept.heard)
        speaks = any(given[place].role not in _SAID_TO_THE_AGENT for place in pairs)
        if speaks and pairs[0] == stop - 1 and (start == 0 or kept.whole) and len(pairs) > most:
            best, most = range(start if kept.begins else 0, stop), len(pairs)
    return best


def _agreeing(given: Sequence[_Heard], kept: Sequence[_Heard]) -> tuple[int, list[int]]:
    """Where the agreement of two ends begins in `given`, and what has been found in both, last first.

    It begins at 0, or where `kept` goes no further; nothing is found where the two do not agree so far.
    """
    found: list[int] = []
    place, other = len(given) - 1, len(kept) - 1
    while place >= 0 and other >= 0:
        if given[place] == kept[other]:
            found.append(place)
            place -= 1
            other -= 1
        elif kept[other].silent:
            other -= 1
        elif given[place].silent:
            place -= 1
        else:
            return 0, []
    return place + 1, found


def source_of(message: Message) -> str | None:
    """The id of the context provider that a message comes from, if the framework says so."""
    attribution = message.additional_properties.get("_attribution")
    source = attribution.get("source_id") if isinstance(attribution, dict) else None
    return source if isinstance(source, str) else None


def _decoded(log: Log[Message], record: Record) -> Message | None:
    try:
        return log.decode(record)
    except CorruptRecordError:  # it equals nothing: on_corrupt speaks where it is read for the model
        return None
