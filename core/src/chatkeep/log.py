"""A log: a session's messages in order, and everything that can be done with them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import blake2b
from logging import getLogger
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from .arguments import NAME_BYTES, check_id, check_number
from .codecs import MessageCodec, decode_all, format_of, refusal
from .errors import ConflictError, CorruptRecordError, DuplicateIdError, MessageNotFoundError, MessageTooLargeError
from .integrity import QUARANTINE, Finding, repair, verify
from .records import (
    ABSENT,
    Cursor,
    Head,
    Key,
    LogHead,
    OnConflict,
    Outcome,
    Record,
    RecordPage,
    Replace,
    Rewrite,
    Span,
    Write,
)
from .windows import Fitter, Window, reduced

if TYPE_CHECKING:
    from .serializer import SessionSerializer
    from .store import Store

M = TypeVar("M")
ROLES = frozenset({"user", "assistant", "system", "tool"})
"""The usual ones, which need no check."""
logger = getLogger("chatkeep")

ALL = Span()
PAGE = 500
"""How many records a stream or a window reads at once."""
PAGE_OF_TOKENS = 50
"""How many a window reads first that is bounded by tokens alone."""
ATTEMPTS = 10
"""How often a redaction starts over because the message was changed meanwhile."""


class Appended(NamedTuple):
    """What an append did."""

    tail: Cursor
    """The newest visible message now: give it to the next append as `expected_tail`."""
    seqs: Sequence[int]
    """One per message: where it is stored, now or since before."""
    added: int
    """How many were new."""


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


class Log(Generic[M]):
    """One log of a session: a cheap handle, no I/O until a method is called."""

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

    async def append(
        self,
        messages: Iterable[M],
        *,
        batch_id: str | None = None,
        expected_tail: Cursor | int | None = None,
        on_conflict: OnConflict = "keep",
    ) -> Appended:
        """Add messages at the end, all of them or none, in one atomic step.

        A message with an id that is stored already is not stored again: with ``on_conflict="keep"`` what is there
        stays, with ``"replace"`` it is replaced in its place, with ``"error"`` other content is a `DuplicateIdError`.
        `batch_id` does the same for messages without ids: the log remembers its last 128.

        `expected_tail` makes it conditional: a `ConflictError`, which carries the current tail, if anything was added
        or taken away since.
        """
        if type(messages) is not list and (
            isinstance(messages, (str, bytes, dict)) or not isinstance(messages, Iterable)
        ):
            raise TypeError(f"append takes a list of messages, not {type(messages).__name__}: append([message])")
        records = self._records(messages)
        if not records:
            head = await self._store.connection.read(self._store.backend.head, self._key)
            log = head.logs.get(self._name, LogHead()) if head else LogHead()
            return Appended(Cursor(head.life if head else ABSENT, log.tail, log.rewrite), (), 0)
        if batch_id is None:
            token = os.urandom(16)
        else:
            token = blake2b(check_id(batch_id, "batch_id").encode(), digest_size=16).digest()
        life, tail = self._position(expected_tail)
        outcome = await self._commit(
            Write(
                token,
                self._name,
                records,
                on_conflict,
                batch_id is not None,
                tail,
                keep=self._store.keep,
                expiry=self._store.expiry,
                life=self._held_to(life),
                fence=self._fence,
            )
        )
        return Appended(Cursor(outcome.life, outcome.log.tail, outcome.log.rewrite), outcome.seqs, outcome.added)

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
        """
        if window is not None:
            if not last is after is before is limit is None:
                raise ValueError("window cannot be combined with last, after, before or limit")
            return await self._window(window)
        if last is not None and not after is before is limit is None:
            raise ValueError("last cannot be combined with after, before or limit")
        for name, number in (("last", last), ("limit", limit)):
            if number is not None:
                check_number(number, name)
        newest = last is not None or (before is not None and after is None)
        life, lower = self._position(after)
        other, upper = self._position(before)
        span = Span(lower, upper, limit if last is None else last, newest)
        if life and other and life != other:
            raise ConflictError(f"the two cursors are of two lives of session {self._key.session!r}")
        return await self._read(span, life or other)

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

    async def pop(self, count: int = 1, *, expected_tail: Cursor | int | None = None) -> list[M]:
        """Take the newest messages out and return them, oldest first. Each is handed out at most once."""
        check_number(count, "count", least=1)
        life, tail = self._position(expected_tail)
        outcome = await self.commit(self._write(pop=count, expected_tail=tail, life=life, must_exist=True))
        return [self.decode(record) for record in outcome.removed]

    async def truncate_after(self, seq: Cursor | int) -> int:
        """Take out everything behind `seq` (0: everything); how many messages that were."""
        life, place = self._position(seq)
        outcome = await self.commit(self._write(truncate_after=place, life=life, must_exist=True))
        return len(outcome.removed)

    async def replace_prefix(self, upto: Cursor | int, messages: Iterable[M] = ()) -> Appended:
        """Put messages in the place of everything at or below `upto`, in one atomic step: compaction.

        Messages appended meanwhile survive. The new ones take the last of the places that become free, so there may not
        be more of them. Give the cursor of what was read, ``history.end``: it loses against another compaction since
        then with a `ConflictError`. A bare number replaces whatever stands there now.
        """
        life, place = self._position(upto)
        expected = upto.rewrite if isinstance(upto, Cursor) else None
        return await self._replace(Replace(place, self._records(messages), expected), life)

    async def clear(self) -> None:
        """Take out every message, in one atomic step. The session, its state and its other logs stay."""
        await self._replace(Replace(None), None)

    async def replace(self, seq: Cursor | int, message: M) -> None:
        """Put a message in the place of the one at `seq`: an edit. A message without an id keeps the old one's."""
        life, record = await self._at(seq)
        (new,) = self._records([message])
        new = new._replace(seq=record.seq, id=new.id or record.id, created_at=record.created_at)
        await self.commit(self._write(rewrite=Rewrite(new), life=life))

    async def redact(self, seq: Cursor | int, text: str = "[redacted]") -> None:
        """Put `text` in the place of what the message at `seq` says; its role, ids and tool calls' names stay."""
        for _ in range(ATTEMPTS):
            life, record = await self._at(seq)
            (new,) = self._records([self._codec.blank(self.decode(record), text)])
            new = new._replace(seq=record.seq, id=record.id, created_at=record.created_at)
            try:
                await self.commit(self._write(rewrite=Rewrite(new, record.payload), life=life))
            except ConflictError as error:
                conflict = error
                continue
            return
        raise conflict

    async def records(self, span: Span = ALL) -> RecordPage:
        """What is stored, undecoded: for tools."""
        return await self._store.connection.read(self._store.backend.read, self._key, self._name, span)

    async def verify(self) -> list[Finding]:
        """What is wrong: damaged records, unknown formats, tool calls without results and results without calls."""
        findings, _, _ = await verify(self)
        return findings

    async def repair(self) -> list[Finding]:
        """Take what `verify` finds out of the conversation; what that was. Nothing is deleted.

        The records stay where they are, in quarantine: `messages` leaves them out, `records` still has them.
        """
        return await repair(self)

    # How messages become records and back

    def _records(self, messages: Iterable[M]) -> list[Record]:
        """Records without a place. Every limit is checked here, before anything is written."""
        options, codec, dumps = self._store.options, self._codec, self._store.serializer.dumps
        form = format_of(codec)
        records: list[Record] = []
        total = 0
        for index, message in enumerate(messages):
            role, name, starts_turn, text, data = codec.encode(message)
            payload = dumps(data, path=f"messages[{index}]")
            if len(payload) > options.max_message_bytes:
                raise MessageTooLargeError(
                    f"messages[{index}] takes {len(payload)} bytes; max_message_bytes is {options.max_message_bytes}"
                )
            total += len(payload)
            if name is not None:
                check_id(name, f"the id of messages[{index}]")
            if role not in ROLES:
                check_id(role, f"the role of messages[{index}]", NAME_BYTES)
            kept = text.encode("utf-8", "replace").decode() if text is not None and options.store_text else None
            records.append(Record(0, name, role, starts_turn, form, None, kept, payload))
        if total > options.max_batch_bytes:
            raise MessageTooLargeError(
                f"the batch takes {total} bytes; max_batch_bytes is {options.max_batch_bytes}: append it in parts"
            )
        return records

    def decode(self, record: Record) -> M:
        """The record's message. A damaged one is a `CorruptRecordError` whose `record` is what is stored."""
        try:
            if record.format not in self._codec.accepts:
                raise ValueError(f"it {refusal(self._codec, record.format)}")
            return self._codec.decode(self._store.serializer.loads(record.payload), record)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise CorruptRecordError(
                f"message {record.seq} of session {self._key.session!r} cannot be read: {error}", record=record
            ) from error

    def _messages(self, records: Sequence[Record]) -> tuple[list[M | Record], list[int], int]:
        """What the records say, their seqs, and how many damaged ones were skipped, by `on_corrupt`."""
        accepts = self._codec.accepts
        if all(record.format in accepts for record in records):
            try:
                values = self._store.serializer.loads_many([record.payload for record in records])
                messages: list[M | Record] = [*decode_all(self._codec, values, records)]
                return messages, [record.seq for record in records], 0
            except (ValueError, TypeError, LookupError, RecursionError):
                logger.debug("reading session %r one by one: a record is damaged", self._key.session)
        return self._one_by_one(records)

    def _one_by_one(self, records: Sequence[Record]) -> tuple[list[M | Record], list[int], int]:
        found: list[M | Record] = []
        seqs: list[int] = []
        skipped = 0
        for record in records:
            if record.format == QUARANTINE:
                continue
            try:
                found.append(self.decode(record))
            except CorruptRecordError as error:
                if self._store.options.on_corrupt == "raise":
                    raise
                if self._store.options.on_corrupt == "skip":
                    logger.warning("skipped: %s", error)
                    skipped += 1
                    continue
                found.append(record)
            seqs.append(record.seq)
        return found, seqs, skipped

    # How the backend is called

    def _position(self, place: Cursor | int | None) -> tuple[str | None, int | None]:
        """The life and the seq that a caller's cursor or number means."""
        if place is None:
            return None, None
        if isinstance(place, Cursor):
            return place.life, place.seq
        return None, check_number(place, "a position that is no Cursor")

    def _write(self, **changes: Any) -> Write:
        return Write(os.urandom(16), **changes)

    async def commit(self, write: Write) -> Outcome:
        """Commit a write on this log or its session, under the store's expiry and this handle's guards."""
        life = self._held_to(write.life)
        return await self._commit(
            write._replace(log=self._name, expiry=self._store.expiry, life=life, fence=self._fence)
        )

    def _held_to(self, life: str | None) -> str | None:
        """The one life that a write may happen in: that of its caller's cursor, or this handle's own."""
        if self._life is None:
            return life
        if life not in (None, self._life):
            raise ConflictError(f"session {self._key.session!r} has begun anew since it was read")
        return self._life

    async def _commit(self, write: Write) -> Outcome:
        outcome = await self._store.connection.write(self._store.backend.commit, self._key, write)
        if outcome.life == ABSENT and (write.expected_tail or write.life):
            raise ConflictError(f"session {self._key.session!r} does not exist", tail=Cursor(ABSENT, 0))
        return outcome

    async def _replace(self, replace: Replace, life: str | None) -> Appended:
        ids = [record.id for record in replace.records if record.id]
        if len(set(ids)) < len(ids):
            raise DuplicateIdError("two of the new messages have the same id")
        outcome = await self.commit(self._write(replace=replace, life=life, must_exist=True))
        if outcome.life == ABSENT and replace.records:
            raise ValueError(
                f"{len(replace.records)} messages cannot take the place of none: the session does not exist"
            )
        return Appended(Cursor(outcome.life, outcome.log.tail, outcome.log.rewrite), outcome.seqs, len(replace.records))

    async def _at(self, place: Cursor | int) -> tuple[str, Record]:
        """The record at a place, and the life it was read in."""
        life, seq = self._position(place)
        page = await self.records(Span(after=(seq or 0) - 1, limit=1))
        self._check_life(life or self._life, page.head)
        if page.head is None or not page.records or page.records[0].seq != seq:
            raise MessageNotFoundError(f"there is no message {seq} in session {self._key.session!r}")
        return page.head.life, page.records[0]

    def _check_life(self, life: str | None, head: Head | None) -> None:
        """Refuse what was found for a cursor of another life."""
        if life and (head is None or head.life != life):
            raise ConflictError(f"session {self._key.session!r} has ended or begun anew since the cursor was made")

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
        page = await self.records(span)
        self._check_life(life, page.head)
        messages, seqs, skipped = self._messages(page.records)
        first = page
        while span.limit is not None and len(messages) < span.limit and page.more:
            missing = span.limit - len(messages)
            if span.newest:
                span = span._replace(before=page.records[0].seq)
            else:
                span = span._replace(after=page.records[-1].seq)
            page = await self.records(span._replace(limit=missing))
            further, places, more_skipped = self._messages(page.records)
            messages, seqs = (further + messages, places + seqs) if span.newest else (messages + further, seqs + places)
            skipped += more_skipped
        if page.head is not None:
            await self._store.renew(self._key)
        return History(cast("list[M]", messages), seqs, first._replace(more=page.more), self._name, skipped)
