"""Reading a log: what is stored becomes messages, in pages, windows and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from logging import getLogger
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from . import heads
from .arguments import check_number, check_position
from .codecs import MessageCodec, refusal
from .errors import ConflictError, CorruptRecordError
from .integrity import QUARANTINE
from .records import ABSENT, LOST, Cursor, Head, Key, LogHead, Record, RecordPage, Span
from .windows import Fitter, Window, check_window, reduced

if TYPE_CHECKING:
    from .serializer import SessionSerializer
    from .store import Store

M = TypeVar("M")
logger = getLogger("chatkeep")

ALL = Span()
PAGE = 500
"""How many records a stream or a window reads at once."""
PAGE_OF_TOKENS = 50
"""How many a window reads first that is bounded by tokens alone."""


class History(list[M]):
    """Messages, oldest first, and where they stand.

    `seqs` has one number per message. `start` and `end` are the cursors of the first and the last one: page on with
    ``messages(after=history.end, limit=n)`` or ``messages(before=history.start, limit=n)``. `tail` is the log's newest
    message at that instant, `more` whether there was more in the direction of reading, `skipped` how many damaged
    records were left out.
    """

    __slots__ = ("end", "more", "seqs", "skipped", "start", "tail")

    def __init__(self, messages: Iterable[M], seqs: list[int], page: RecordPage, log: str, skipped: int = 0) -> None:
        super().__init__(messages)
        head = page.head.logs.get(log, LogHead()) if page.head else LogHead()
        life = page.head.life if page.head else ABSENT
        self.seqs = seqs
        self.tail = Cursor(life, head.tail, head.rewrite)
        self.start = Cursor(life, seqs[0] if seqs else head.tail + 1, head.rewrite)
        self.end = Cursor(life, seqs[-1] if seqs else head.tail, head.rewrite)
        self.more = page.more
        self.skipped = skipped


class LogReader(Generic[M]):
    """What can be done with a log without changing it."""

    __slots__ = ("_codec", "_fence", "_key", "_life", "_name", "_store")

    def __init__(
        self,
        store: Store[Any],
        key: Key,
        codec: MessageCodec[M],
        *,
        name: str = "",
        life: str | None = None,
        fence: int | None = None,
    ) -> None:
        self._store = store
        self._key = key
        self._codec = codec
        self._name = name
        self._life = life
        self._fence = fence

    def __repr__(self) -> str:
        log = f", log={self._name!r}" if self._name else ""
        return f"<{type(self).__name__} {self._key.session!r} in {self._key.scope.address}{log}>"

    @property
    def name(self) -> str:
        """The log's name; "" is the session's main log."""
        return self._name

    @property
    def codec(self) -> MessageCodec[M]:
        """What a message is here."""
        return self._codec

    @property
    def serializer(self) -> SessionSerializer:
        """What turns a codec's values into bytes and back."""
        return self._store.serializer

    async def messages(
        self,
        last: int | None = None,
        *,
        after: Cursor | int | None = None,
        before: Cursor | int | None = None,
        limit: int | None = None,
        window: Window[M] | None = None,
    ) -> History[M]:
        """The messages, oldest first: all, the newest `last`, a page, or what fits a `window`.

        A page is the first `limit` after a cursor, or the newest `limit` before one; both cursors are exclusive.

        `last` and `limit` count messages, so what they give may begin inside a turn, with a tool's result whose call is
        not there. For a model take a `Window`, which begins where a turn starts.
        """
        if window is not None:
            check_window(window)
            if not last is after is before is limit is None:
                raise ValueError("window cannot be combined with last, after, before or limit")
            return await self._window(window)
        if last is not None and not after is before is limit is None:
            raise ValueError("last cannot be combined with after, before or limit")
        last = None if last is None else check_number(last, "last")
        limit = None if limit is None else check_number(limit, "limit")
        newest = last is not None or (before is not None and after is None)
        life, lower = self._position(after)
        other, upper = self._position(before)
        span = Span(lower, upper, limit if last is None else last, newest)
        if life and other and life != other:
            raise ConflictError(f"the two cursors are of two lives of session {self._key.session!r}")
        return await self._read(span, life or other or None)

    async def stream(self, *, after: Cursor | int | None = None) -> AsyncIterator[M]:
        """The messages one by one, oldest first, up to the tail, read in pages."""
        place = after
        while True:
            page = await self.messages(after=place, limit=PAGE)
            for message in page:
                yield message
            if not page.more:
                return
            place = page.end

    async def count(self) -> int:
        """How many messages the log holds."""
        head = await self._store.connection.read(self._store.backend.head, self._key)
        return head.logs.get(self._name, LogHead()).size if head else 0

    async def records(self, span: Span = ALL) -> RecordPage:
        """What is stored, undecoded: for tools."""
        return await self._store.connection.read(self._store.backend.read, self._key, self._name, span)

    # How records become messages

    def decode(self, record: Record) -> M:
        """The record's message. A damaged one is a `CorruptRecordError` whose `record` is what is stored."""
        try:
            if record.format == LOST:
                raise ValueError("the database has lost it, or what it was stored with is damaged")
            if record.format not in self._codec.accepts:
                raise ValueError(f"it {refusal(self._codec, record.format)}")
            return self._codec.decode(self._store.serializer.loads(record.payload), record)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise self._corrupt(record, error) from error

    def _corrupt(self, record: Record, error: Exception) -> CorruptRecordError:
        return CorruptRecordError(
            f"message {record.seq} of {heads.place(self._key, self._name)} cannot be read: {error}. "
            "on_corrupt='skip' reads the others, and repair() takes it out of the conversation",
            record=record,
        )

    def _decode_or_raw(self, record: Record) -> M | Record:
        """The record's message; with ``on_corrupt="raw"`` the record itself if it is damaged."""
        try:
            return self.decode(record)
        except CorruptRecordError:
            if self._store.options.on_corrupt != "raw":
                raise
            return record

    async def _newest(self, count: int) -> tuple[Head | None, list[Record]]:
        """The head, and the newest `count` records that are not in quarantine, oldest first."""
        head, records, before = None, list[Record](), None
        while True:
            page = await self.records(Span(before=before, limit=count - len(records), newest=True))
            head = head or page.head
            records[:0] = [record for record in page.records if record.format != QUARANTINE]
            if len(records) >= count or not page.more:
                return head, records
            before = page.records[0].seq

    async def _page(self, span: Span) -> tuple[RecordPage, list[M | Record], list[int], int]:
        """A page, what it says, the seqs, and how many damaged records were skipped, by `on_corrupt`.

        All at once where the codec can; one by one where that fails, since a damaged record harms only itself.
        """
        if not hasattr(self._codec, "decode_many"):
            page = await self.records(span)
            return page, *self._one_by_one(page.records)
        page = await self.records(span._replace(bodies=True))
        bodies = page.bodies
        if bodies is None:
            bodies = [(record.seq, record.id, record.format, record.payload) for record in page.records]
        if {form for _, _, form, _ in bodies} <= self._codec.accepts:
            try:
                values = self._store.serializer.loads_many([payload for _, _, _, payload in bodies])
                return page, self._codec.decode_many(values, bodies), [seq for seq, _, _, _ in bodies], 0
            except (ValueError, TypeError, LookupError, RecursionError):
                logger.debug("reading session %r one by one: a record is damaged", self._key.session)
        if page.bodies is not None:
            page = await self.records(span)
        return page, *self._one_by_one(page.records)

    def _one_by_one(self, records: Sequence[Record]) -> tuple[list[M | Record], list[int], int]:
        found: list[M | Record] = []
        seqs: list[int] = []
        skipped = 0
        for record in records:
            if record.format == QUARANTINE:
                continue
            try:
                found.append(self._decode_or_raw(record))
                seqs.append(record.seq)
            except CorruptRecordError as error:
                if self._store.options.on_corrupt == "raise":
                    raise
                logger.warning("skipped: %s", error)
                skipped += 1
        return found, seqs, skipped

    def _position(self, place: Cursor | int | None) -> tuple[str | None, int | None]:
        """The life and the seq that a caller's cursor or number means, if there is one."""
        return (None, None) if place is None else self._place(place)

    def _place(self, place: Cursor | int, *, least: int = 0) -> tuple[str | None, int]:
        """The life and the seq that a caller's cursor or number means; a `ValueError` if it is neither."""
        if isinstance(place, Cursor):
            return place.life, place.seq
        return None, check_position(place, least=least)

    def _check_life(self, life: str | None, head: Head | None) -> None:
        """Refuse what was found for a cursor of another life, or for one of none where there is a session by now."""
        if life is not None and life != (head.life if head else ABSENT):
            log = head.logs.get(self._name, LogHead()) if head else LogHead()
            current = Cursor(head.life if head else ABSENT, log.tail, log.rewrite)
            raise ConflictError(heads.other_life(self._key.session), tail=current)

    async def _window(self, window: Window[M]) -> History[M]:
        """What fits the window, read backwards in growing pages; with reducers, the whole log is read."""
        if window.reducers:
            history = await self._read(Span(), None)
            kept = await reduced(self._readable(history), window=window, codec=self._codec)
            history[:], history.seqs = kept, []
            return self._fit(history, window)
        size = min(PAGE, (window.max_messages or PAGE_OF_TOKENS) + 1)
        history, damage = await self._read_end(Span(limit=size, newest=True), None)
        while history.more and not (fitter := self._fitter(history, window)).done:
            if damage is not None:
                if fitter.full:
                    break
                raise damage
            size = min(PAGE, 2 * size)
            try:
                span = Span(before=history.start.seq, limit=size, newest=True)
                older, damage = await self._read_end(span, history.tail.life)
            except ConflictError:  # it was deleted meanwhile and may have begun anew
                return await self._window(window)
            history[:0], history.seqs[:0] = older, older.seqs
            history.start, history.more = older.start, older.more
        return self._fit(history, window)

    async def _read_end(self, span: Span, life: str | None) -> tuple[History[M], CorruptRecordError | None]:
        """A page of the newest messages: whole, or what stands behind a damaged record, and that record's error."""
        damage = None
        while True:
            try:
                history = await self._read(span, life)
            except CorruptRecordError as error:  # the oldest one first
                damage, span = error, span._replace(after=error.seq)
            else:
                history.more = history.more or damage is not None
                return history, damage

    def _readable(self, history: History[M]) -> list[M]:
        """Without the damaged records that ``on_corrupt="raw"`` leaves in: a window is for a model to read."""
        return [message for message in history if not isinstance(message, Record)]

    def _fitter(self, history: History[M], window: Window[M]) -> Fitter[M]:
        fitter = Fitter(window, self._codec)
        for message in reversed(self._readable(history)):
            if fitter.done:
                break
            fitter.add(message, self._codec.encode(message).starts_turn)
        return fitter

    def _fit(self, history: History[M], window: Window[M]) -> History[M]:
        """Cut the history to the window."""
        if len(history) != len(readable := self._readable(history)):
            history.seqs = [
                seq for seq, each in zip(history.seqs, history, strict=True) if not isinstance(each, Record)
            ]
            history[:] = readable
        fitter = self._fitter(history, window)
        complete = not history.more and fitter.messages == len(history)
        cut = len(history) - fitter.taken(complete=complete)
        if cut:
            del history[:cut], history.seqs[:cut]
            history.more = True
            history.start = history.start._replace(seq=history.seqs[0] if history.seqs else history.tail.seq + 1)
        return history

    async def _read(self, span: Span, life: str | None) -> History[M]:
        """A page of messages. Where damaged records are skipped, further ones are read until it is full."""
        page, messages, seqs, skipped = await self._page(span)
        self._check_life(life, page.head)
        first = page
        while span.limit is not None and len(messages) < span.limit and page.more:
            missing = span.limit - len(messages)
            if span.newest:
                span = span._replace(before=page.records[0].seq)
            else:
                span = span._replace(after=page.records[-1].seq)
            page, further, places, more_skipped = await self._page(span._replace(limit=missing))
            messages, seqs = (further + messages, places + seqs) if span.newest else (messages + further, seqs + places)
            skipped += more_skipped
        if page.head is not None:
            await self._store.renew(self._key)
        return History(cast("list[M]", messages), seqs, first._replace(more=page.more), self._name, skipped)
