"""Mistakes against clauses 12 to 14: drifting pages, hidden limits, windows cut anywhere, shared values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import AsyncIterator
from itertools import islice
from typing import Any

from chatkeep import metadata
from chatkeep.memory import MemoryBackend, Session
from chatkeep.reading import History, LogReader
from chatkeep.records import Head, HeadPage, Key, Listing, LogHead, RecordPage, Scope, Span
from chatkeep.serializer import SessionSerializer
from chatkeep.windows import Fitter, Window, estimate_tokens, reduced

from . import mutant

window_of = LogReader._window
fitting = Fitter.fitting
taken = Fitter.taken
add = Fitter.add
loads = SessionSerializer.loads
loads_many = SessionSerializer.loads_many
loaded = metadata._loaded


# 12: pages


@mutant(12, mistake="the most recent n are the first n")
class LastIsFirst(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        return await super().read(key, log, span._replace(newest=span.newest and span.before is not None))


@mutant(12, mistake="the newest n come newest first")
class NewestFirst(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        page = await super().read(key, log, span)
        return page._replace(records=list(reversed(page.records))) if span.newest else page


@mutant(12, mistake="after is inclusive")
class AfterIsInclusive(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        return await super().read(key, log, span._replace(after=span.after and span.after - 1))


@mutant(12, mistake="before is inclusive")
class BeforeIsInclusive(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        return await super().read(key, log, span._replace(before=span.before and span.before + 1))


@mutant(12, mistake="a cursor is an offset: it drifts when the beginning of the log is trimmed")
class CursorIsAnOffset(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        session = self.live(key)
        records = session.logs[log].records if session and log in session.logs else []
        if span.after and records:
            span = span._replace(after=records[span.after - 1].seq if span.after <= len(records) else span.after)
        return await super().read(key, log, span)


@mutant(12, mistake="paging backwards, the offset is counted from the newest message")
class OffsetFromTheEnd(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        session = self.live(key)
        records = session.logs[log].records if session and log in session.logs else []
        if span.before and span.newest and span.limit and records:
            pages = 1 + (records[-1].seq - span.before) // span.limit
            span = span._replace(before=records[-1].seq + 1 - pages * span.limit)
        return await super().read(key, log, span)


@mutant(12, 17, mistake="a query ends at a thousand records, and nobody asks for the rest")
class QueryEndsAtAThousand(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        page = await super().read(key, log, span)
        if span.newest:
            return page._replace(records=page.records[-1000:])
        return page._replace(records=page.records[:1000])


@mutant(12, mistake="a listing has a hundred sessions at most, whatever its limit")
class ListingEndsAtAHundred(MemoryBackend):
    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        return await super().sessions(scope, listing._replace(limit=min(100, listing.limit)))


@mutant(12, mistake="a session has a hundred logs at most")
class HundredLogs(MemoryBackend):
    async def head(self, key: Key) -> Head | None:
        head = await super().head(key)
        return head and head._replace(logs=dict(islice(head.logs.items(), 100)))


@mutant(12, mistake="a full page says that there is more, also where it is the last one")
class FullPageSaysMore(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        page = await super().read(key, log, span)
        return page._replace(more=len(page.records) == span.limit)


@mutant(12, mistake="a limit of 0 is no limit")
class ZeroIsNoLimit(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        return await super().read(key, log, span._replace(limit=span.limit or None))


@mutant(12, mistake="with after and before together the page is filled from its end")
class FilledFromTheEnd(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        return await super().read(key, log, span._replace(newest=span.newest or span.before is not None))


@mutant(12, mistake="a stream ends with its first page", place="chatkeep.reading.LogReader.stream")
async def stream_of_one_page(self: LogReader[Any], *, after: Any = None) -> AsyncIterator[Any]:
    for message in await self.messages(after=after, limit=500):
        yield message


@mutant(12, mistake="a stream goes on where it counts that it is", place="chatkeep.reading.LogReader.stream")
async def stream_by_count(self: LogReader[Any], *, after: Any = None) -> AsyncIterator[Any]:
    count = await self.count()
    page = await self.messages(after=after, limit=500)
    while page:
        for message in page:
            yield message
        page = await self.messages(after=page.end, before=count + 1, limit=500)


@mutant(12, mistake="count is the newest seq", place="chatkeep.reading.LogReader.count")
async def count_is_the_newest_seq(self: LogReader[Any]) -> int:
    head = await self._store.connection.read(self._store.backend.head, self._key)
    return head.logs.get(self._name, LogHead()).last if head else 0


@mutant(12, mistake="reading what is not there makes it")
class ReadingMakesASession(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        if not self.live(key):
            self.held[key] = Session(key, self.new_life(), self.clock())
        return await super().read(key, log, span)


@mutant(12, mistake="a log that is not there is looked for by the beginning of its name")
class LogByPrefix(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        session = self.live(key)
        names = sorted(session.logs, reverse=True) if session else []
        return await super().read(key, next((name for name in names if name.startswith(log)), log), span)


# 13: windows


@mutant(13, mistake="a window begins anywhere", place="chatkeep.windows.Fitter.add")
def begins_anywhere(self: Fitter[Any], message: Any, starts_turn: bool) -> None:
    add(self, message, True)


@mutant(13, mistake="a window holds one message too many", place="chatkeep.windows.Fitter.exceeded", kind=property)
def one_too_many(self: Fitter[Any]) -> bool:
    most, tokens = self._window.max_messages, self._window.max_tokens
    return (most is not None and self.messages > most + 1) or (tokens is not None and self.tokens > tokens)


@mutant(13, mistake="of two budgets the second is not kept", place="chatkeep.windows.Fitter.exceeded", kind=property)
def one_budget(self: Fitter[Any]) -> bool:
    most, tokens = self._window.max_messages, self._window.max_tokens
    return self.messages > most if most is not None else tokens is not None and self.tokens > tokens


@mutant(
    13,
    mistake="a log that fits as a whole is cut at its first turn all the same",
    place="chatkeep.windows.Fitter.fitting",
)
def whole_log_is_cut(self: Fitter[Any], *, complete: bool) -> int | None:
    return fitting(self, complete=False)


@mutant(
    13, mistake="a turn that does not fit is left out, whatever overflow says", place="chatkeep.windows.Fitter.taken"
)
def overflow_is_empty(self: Fitter[Any], *, complete: bool) -> int:
    return fitting(self, complete=complete) or 0


@mutant(13, mistake="overflow='keep' keeps what fits of the turn", place="chatkeep.windows.Fitter.taken")
def keeps_part_of_a_turn(self: Fitter[Any], *, complete: bool) -> int:
    whole = taken(self, complete=complete)
    fits = fitting(self, complete=complete)
    return whole if fits is not None else min(whole, self._window.max_messages or whole)


@mutant(13, mistake="reducers run after the cut", place="chatkeep.reading.LogReader._window")
async def reduced_after_the_cut(self: LogReader[Any], window: Window[Any]) -> History[Any]:
    if not window.reducers or (window.max_messages is None and window.max_tokens is None):
        return await window_of(self, window)
    history = await window_of(self, dataclasses.replace(window, reducers=()))
    history[:] = await reduced(list(history), window=window, codec=self._codec)
    return history


@mutant(13, mistake="reducers run in the opposite order", place="chatkeep.reading.LogReader._window")
async def reduced_in_the_opposite_order(self: LogReader[Any], window: Window[Any]) -> History[Any]:
    return await window_of(self, dataclasses.replace(window, reducers=window.reducers[::-1]))


@mutant(13, mistake="what the reducers make of it is stored", place="chatkeep.reading.LogReader._window")
async def reducers_are_stored(self: Any, window: Window[Any]) -> History[Any]:
    if window.reducers:
        history = await self.messages()
        shorter = await reduced(list(history), window=window, codec=self._codec)
        if len(shorter) <= len(history):
            await self.replace_prefix(history.end, shorter)
    return await window_of(self, window)


@mutant(13, mistake="a window is looked for in the newest 500 messages", place="chatkeep.reading.LogReader._window")
async def window_of_one_page(self: LogReader[Any], window: Window[Any]) -> History[Any]:
    if window.reducers:
        return await window_of(self, window)
    return self._fit(await self.messages(last=500), window)


@mutant(
    13,
    mistake="a system message in front is always kept, and comes on top of the budget",
    place="chatkeep.reading.LogReader._window",
)
async def system_comes_on_top(self: LogReader[Any], window: Window[Any]) -> History[Any]:
    history = await window_of(self, window)
    first = await self.messages(limit=1)
    if first and first[0].role == "system" and history.seqs[:1] != first.seqs:
        history.insert(0, first[0])
        history.seqs[:0] = first.seqs
    return history


@mutant(13, mistake="tokens are estimated, also for who brings a count", place="chatkeep.windows.Window.tokens")
def always_estimated(self: Window[Any], message: Any, codec: Any) -> int:
    return estimate_tokens(codec.encode(message).data)


@mutant(
    13,
    mistake="an error of a reducer's or a count's leaves the window as it is",
    place="chatkeep.reading.LogReader._window",
)
async def errors_are_swallowed(self: LogReader[Any], window: Window[Any]) -> History[Any]:
    try:
        return await window_of(self, window)
    except ZeroDivisionError:
        return await self.messages()


# 14: copies

read_before: dict[bytes, Any] = {}


@mutant(
    14,
    mistake="messages that were read once come from a cache",
    place="chatkeep.serializer.SessionSerializer.loads_many",
)
def cached_messages(self: SessionSerializer, datas: list[bytes]) -> list[Any]:
    return [cached(self, data) for data in datas]


@mutant(14, mistake="values that were read once come from a cache", place="chatkeep.serializer.SessionSerializer.loads")
def cached(self: SessionSerializer, data: bytes) -> Any:
    if data not in read_before:
        read_before[data] = loads(self, data)
    return read_before[data]


described_before: dict[str, Any] = {}


@mutant(14, mistake="metadata that was read once comes from a cache", place="chatkeep.metadata._loaded")
def cached_metadata(serializer: SessionSerializer, text: str) -> Any:
    return described_before.setdefault(text, loaded(serializer, text))


@mutant(14, mistake="what was written is kept as the caller's own object", place="chatkeep.factory.SessionSerializer")
class KeepsTheCallersObject(SessionSerializer):
    def __init__(self, types: Any = ()) -> None:
        super().__init__(types)
        self.kept: dict[bytes, Any] = {}

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        form, data = super().dumps_typed(value)
        self.kept[data] = value
        return form, data

    def loads(self, data: bytes) -> Any:
        return copy.copy(self.kept[data]) if data in self.kept else super().loads(data)
