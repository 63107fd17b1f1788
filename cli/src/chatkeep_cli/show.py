"""``chatkeep show``: one conversation, for people or as the JSON Lines that ``add`` takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from json import loads
from typing import Any

from chatkeep import History, SessionInfo, Store
from chatkeep.log import Log
from chatkeep.records import Record

from .failures import Code, CommandError
from .screen import Screen, when, write_json
from .store import Message, Place, described, missing, opened
from .text import counted, in_one_line, quoted
from .transcript import Brevity, print_message

PAGE = 500
_SHORT = Brevity(rest=2)
_WHOLE = Brevity()


async def show_session(place: Place, *, last: int | None, full: bool, json: bool) -> None:
    """Print the session's messages, oldest first; not being there is an error."""
    store = opened(place.url, create=False)
    log = place.messages(store)
    async with store:
        info = await place.address.of(store).session(place.session).info()
        if info is None or (place.log is not None and place.log not in info.logs):
            raise missing(place, store, info)
        if json:
            await _write_json(store, log, last)
        else:
            await _print(log, info, last, _WHOLE if full else _SHORT)


async def _print(log: Log[Message], info: SessionInfo, last: int | None, brevity: Brevity) -> None:
    screen = Screen()
    held = info.logs[log.name].size if log.name in info.logs else 0
    screen.put_line((quoted(info.id), "bold"), *([f"  {described(info.scope)}"] if info.scope.depth else []))
    if info.title:
        screen.put_line(in_one_line(info.title))
    expiry = f", expires {when(info.expires_at)}" if info.expires_at else ""
    written = f"begun {when(info.created_at)}, last written {when(info.updated_at)}{expiry} (UTC)"
    screen.put_line((f"{counted(held, 'message')}; {written}", "dim"))
    if others := [f"{quoted(name)} ({each.size:,})" for name, each in sorted(info.logs.items()) if name != log.name]:
        screen.put_line((f"other logs: {', '.join(others)}", "dim"))
    screen.put_line()
    async for page in _pages(log, last):
        for seq, message in zip(page.seqs, page, strict=True):
            print_message(screen, seq, message, brevity)


async def _write_json(store: Store[Message], log: Log[Message], last: int | None) -> None:
    def stored(value: Any) -> Any:
        """What is more than JSON, such as a date, in the form in which chatkeep stores it."""
        return loads(store.serializer.dumps(value))

    unreadable = []
    async for page in _pages(log, last):
        for seq, message in zip(page.seqs, page, strict=True):
            if isinstance(message, Record):
                unreadable.append(seq)
            write_json(_noted(message) if isinstance(message, Record) else message, default=stored)
    if unreadable:
        raise CommandError(
            f"{counted(len(unreadable), 'message')} could not be read and came without content, the first at seq "
            f"{unreadable[0]}: read them with the codec that wrote them",
            Code.UNREADABLE,
        )


def _noted(record: Record) -> Message:
    """A record that holds no message known here, as a line that says so."""
    return {"role": record.role, "content": record.text, "chatkeep": {"seq": record.seq, "format": record.format}}


async def _pages(log: Log[Message], last: int | None) -> AsyncIterator[History[Any]]:
    """All messages in pages, or the newest `last`."""
    if last is not None:
        yield await log.messages(last=last)
        return
    page = await log.messages(limit=PAGE)
    yield page
    while page.more:
        page = await log.messages(after=page.end, limit=PAGE)
        yield page
