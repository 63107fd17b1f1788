"""Under which ids messages are stored.

A message with an id is stored once. But some services give every message the same id, or use ids again, and some chat
clients keep a question's id when it is edited. Such a message is stored without being known by its id, which stays in
it all the same.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from chatkeep import CorruptRecordError, DuplicateIdError, Log
from chatkeep.records import Span

M = TypeVar("M")
_UNNAMED: Final = "_chatkeep_unnamed"
"""The attribute of a message whose id names another message in the log.

It begins with an underscore, so that the framework copies it and neither sends nor serialises it.
"""


def mark_unnamed(message: object) -> None:
    """Let a message be stored without an id of its own, so that the log takes it for no other message."""
    setattr(message, _UNNAMED, True)


def is_unnamed(message: object) -> bool:
    """Whether the message's id is none that a log may know it by."""
    return _UNNAMED in vars(message)


def distinct(messages: Sequence[M], taken: Sequence[M] = ()) -> list[M]:
    """The messages, unnamed where several have the same id, or one of `taken` has it."""
    times = Counter(map(_id, messages))
    times.update(map(_id, taken))
    return [_unnamed(message) if times[_id(message)] > 1 else message for message in messages]


async def append(
    log: Log[M],
    earlier: Sequence[M] = (),
    question: Sequence[M] = (),
    answers: Sequence[M] = (),
    *,
    batch_id: str | None,
    said: Callable[[M], object],
    without_known: Callable[[Log[M], Sequence[M], Mapping[str, int]], Awaitable[list[M]]] | None = None,
) -> None:
    """Append in one step what is new.

    Where the log knows a message's id: one of `earlier` is the same message, whatever it says, and goes, with what
    `without_known` takes along. One of `question` is the same if it says the same, else it is another. One of `answers`
    is another.
    """
    question = distinct(question, earlier)
    answers = distinct(answers, [*earlier, *question])
    earlier = distinct(earlier)
    while True:
        try:
            await log.append([*earlier, *question, *answers], batch_id=batch_id, on_conflict="strict")
            return
        except DuplicateIdError as error:
            known = error.seqs
            if not known:
                raise
            met = {id: seq for id, seq in known.items() if any(_id(message) == id for message in earlier)}
            if met and without_known is not None:
                earlier = await without_known(log, earlier, met)
            earlier = [message for message in earlier if _id(message) not in met]
            changed = [m for m in question if _id(m) not in known or await _differs(log, m, known[_id(m)], said)]
            question, answers = ([_unnamed(m) if _id(m) in known else m for m in part] for part in (changed, answers))


async def _differs(log: Log[M], message: M, seq: int, said: Callable[[M], object]) -> bool:
    """Whether the message at `seq`, which has the same id, says something else, or is no longer there to be asked."""
    page = await log.records(Span(after=seq - 1, limit=1))
    if not page.records or page.records[0].seq != seq:
        return True
    try:
        return said(log.decode(page.records[0])) != said(message)
    except CorruptRecordError:
        return True


def _id(message: Any) -> Any:
    """The id that a log may know the message by; the message itself, which equals no other, if there is none."""
    name = getattr(message, "message_id", None)  # what is no message is the codec's to refuse
    return name if name and not is_unnamed(message) else id(message)


def _unnamed(message: M) -> M:
    copied = copy.copy(message)
    mark_unnamed(copied)
    return copied
