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
from collections.abc import Collection, Mapping, Sequence
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
_WORK = frozenset({"text_reasoning", "usage", "function_approval_request", "function_approval_response"})
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
    life: str
    seq: int
    newest: bool
    """Whether the message was the last one of the log when it was read."""
    words: tuple[Any, ...]


class Read(NamedTuple):
    """What of a sequence was read from the log."""

    places: set[int]
    whole: bool
    """Whether that reaches to the log's end as it is now: then all the rest is new."""


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
            setattr(message, _MARK, _Mark(place, end.life, seq, seq == end.seq, _words(message)))


async def read(log: Log[Message], messages: Sequence[Message], place: Place) -> Read:
    """Which messages of a sequence were read from that log, are there still, and are handed back in their order.

    They reach to the last message that the agent says, or to a question that nothing has answered yet. What stands
    behind that is new: a question that is asked once more, or a message that was changed.
    """
    found: list[tuple[int, _Mark]] = []
    for index, message in enumerate(messages):
        mark: _Mark | None = vars(message).get(_MARK)
        if mark is None or mark.place != place:
            continue
        if found and (mark.seq <= found[-1][1].seq or mark.life != found[-1][1].life):
            break
        found.append((index, mark))
    if not found:
        return Read(set(), False)
    # What is taken out goes from the end, or all at once; what was trimmed, or put into a summary, is no longer new.
    page = await log.records(Span(before=found[-1][1].seq + 1, limit=1, newest=True))
    if page.head is None or page.head.life != found[0][1].life or not page.records:
        return Read(set(), False)
    last, tail = page.records[0].seq, page.head.logs[log.name].tail
    size = 0
    for number, (index, mark) in enumerate(found, 1):
        unanswered = mark.seq == tail or (mark.newest and index + 1 < len(messages))
        if mark.seq <= last and mark.words == _words(messages[index]) and (by_the_agent(messages[index]) or unanswered):
            size = number
    return Read({index for index, _ in found[:size]}, size > 0 and found[size - 1][1].seq == tail)


def _words(message: Message) -> tuple[Any, ...]:
    """What tells whether a message was changed since: quick to make."""
    return message.role, [(content.type, content.text, content.uri, content.call_id) for content in message.contents]


# What is repeated


class _Heard:
    """A message as a conversation has it: what is said in it, and the pictures and files beside that.

    Two are the same if they have the same id; or, where one has none, if the same role says the same, and shows the
    same, where both show something. Chat clients drop what is no text, and change white space.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, message: Message) -> None:
        self.id = message.message_id
        self.role, contents = said(message)
        self.text = "".join("".join(str(c.get("text") or "") for c in contents if c["type"] == "text").split())
        beside = [c for c in contents if c["type"] != "text"]
        self.shown = [c for c in beside if not _is_work(c)]
        self.silent = not self.text and not self.shown and not starts_turn(message)
        self.links = [(c["type"], c.get("call_id")) for c in beside if c["type"] != "text_reasoning"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Heard):
            return NotImplemented
        if self.role != other.role:
            return False
        if self.id and other.id:
            return self.id == other.id
        if (self.text, self.silent) != (other.text, other.silent):
            return False
        if self.silent:
            return self.links == other.links
        return self.shown == other.shown or (bool(self.text) and not (self.shown and other.shown))


def _is_work(content: dict[str, Any]) -> bool:
    """Whether it is what an agent does to find an answer, and shows to nobody."""
    kind = content["type"]
    return kind in _WORK or kind.endswith(("_call", "_result"))


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
    gone: int
    """How many messages were trimmed or taken out before it, at most."""


async def _end_of(log: Log[Message], size: int, without: Collection[str]) -> _Kept:
    page = await log.records(Span(limit=size, newest=True))
    messages = [message for record in page.records if (message := _decoded(log, record)) is not None]
    heard = [_Heard(message) for message in messages if source_of(message) not in without]
    return _Kept(
        [each for each in heard if each.role not in _PROMPTS],
        [each for each in heard if each.role in _PROMPTS],
        not page.more,
        page.records[0].seq - 1 if page.records else 0,
    )


def overlap(given: Sequence[_Heard], kept: _Kept) -> range:
    """Which of the messages in `given` repeat the end of the log, up to its last message; the longest way counts.

    They agree as far back as both go; what stands before the log's first message was trimmed, if so much is gone. What
    has no words, such as the call of a tool, may be missing on either side, or be another. The agent must speak.
    """
    best, most = range(0), 0
    for stop in range(len(given), 0, -1):
        if stop <= most:
            break
        start, pairs = _agreeing(given[:stop], kept.heard)
        speaks = any(given[place].role not in _SAID_TO_THE_AGENT for place in pairs)
        if speaks and pairs[0] == stop - 1 and (start == 0 or kept.whole) and len(pairs) > most:
            gone = sum(not each.silent for each in given[:start]) <= kept.gone
            best, most = range(0 if gone else start, stop), len(pairs)
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


async def without_known(log: Log[Message], given: Sequence[Message], known: Mapping[str, int]) -> list[Message]:
    """`given` without what the log holds under the ids in `known`, and without what stands beside that in both.

    Some clients have ids for the questions alone, or for the answers.
    """
    seqs = {index: known[str(each.message_id)] for index, each in enumerate(given) if each.message_id in known}
    reach = 2 * len(given) + _MARGIN
    page = await log.records(Span(after=max(0, min(seqs.values()) - reach), before=max(seqs.values()) + reach))
    kept = [(record.seq, _Heard(m)) for record in page.records if (m := _decoded(log, record)) is not None]
    places = {seq: place for place, (seq, _) in enumerate(kept)}
    heard, dropped = list(map(_Heard, given)), set(seqs)
    for anchor, seq in seqs.items():
        for step in (1, -1):
            index, place = anchor + step, places.get(seq, -len(kept) - 1) + step
            while 0 <= index < len(given) and 0 <= place < len(kept) and index not in seqs:
                if heard[index] == kept[place][1]:
                    dropped.add(index)
                    index += step
                elif not kept[place][1].silent:
                    break
                place += step
    return [message for index, message in enumerate(given) if index not in dropped]


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
