"""A log: a session's messages in order, and everything that can be done with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar, cast, get_args

from . import heads
from . import metadata as about
from .arguments import NAME_BYTES, check_id, check_number
from .codecs import format_of
from .errors import (
    ConflictError,
    DuplicateIdError,
    FencedError,
    MessageNotFoundError,
    MessageTooLargeError,
    SerializationError,
)
from .integrity import Finding, repair, verify
from .reading import LogReader
from .records import ABSENT, Cursor, Head, LogHead, OnConflict, Outcome, Record, Replace, Rewrite, Span, Write

M = TypeVar("M")
ROLES = frozenset({"user", "assistant", "system", "tool"})
"""The usual ones, which need no check."""
ON_CONFLICT = get_args(OnConflict)
ATTEMPTS = 10
"""How often an edit starts over because the message was changed meanwhile."""


class Appended(NamedTuple):
    """What an append did."""

    tail: Cursor
    """The newest visible message now: give it to the next append as `expected_tail`."""
    seqs: tuple[int, ...]
    """One per message: where it is stored, now or since before."""
    added: int
    """How many were new."""


class Log(LogReader[M]):
    """One log of a session: a cheap handle, no I/O until a method is called."""

    __slots__ = ()

    async def append(
        self,
        messages: Iterable[M],
        *,
        batch_id: str | None = None,
        expected_tail: Cursor | int | None = None,
        on_conflict: OnConflict = "keep",
        metadata: Mapping[str, Any] | None = None,
    ) -> Appended:
        """Add messages at the end, all of them or none, in one atomic step.

        A message with an id that is stored already is not stored again: with ``on_conflict="keep"`` what is there
        stays, with ``"replace"`` it is replaced in its place, with ``"error"`` other content is a `DuplicateIdError`.
        With ``"strict"`` every message must be new: whatever it says, an id that the log knows, or that stands twice in
        the batch, is a `DuplicateIdError`, whose ``seqs`` say where the known ones are.
        `batch_id` does the same for messages without ids: the log remembers its last 128. It compares no content:
        whatever is sent again under a batch id that the log remembers is taken as stored, and ``added`` is 0.

        `expected_tail` makes it conditional: a `ConflictError`, which carries the current tail, if anything was added
        or taken away since.

        Where the store has ``max_messages`` or ``max_age``, what they no longer keep goes in the same step: whole
        turns, the oldest first. A system message in front belongs to no turn and goes before them: keep the prompt with
        the agent, not in the log.

        `metadata` is merged into the session's in the same step, as `Session.update` does it: with the messages, also
        where all of them are stored already, or not at all.
        """
        if type(messages) is not list and (
            isinstance(messages, (str, bytes, dict)) or not isinstance(messages, Iterable)
        ):
            raise TypeError(f"append takes a list of messages, not {type(messages).__name__}: append([message])")
        if on_conflict not in ON_CONFLICT:
            raise ValueError(f"on_conflict must be 'keep', 'replace', 'error' or 'strict', not {on_conflict!r}")
        records = self._records(messages)
        entries = about.changes(self._store.serializer, metadata=metadata)
        if on_conflict == "strict":
            _check_distinct(records)
        if not records:
            if entries:
                raise ValueError("metadata= goes with messages, and there are none: use session.update(metadata=…)")
            head = await self._store.connection.read(self._store.backend.head, self._key)
            log = self._check_tail(expected_tail, head)
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
                meta=entries or None,
                expiry=self._store.expiry,
                life=self._held_to(life),
                fence=self._fence,
            )
        )
        tail_now = Cursor(outcome.life, outcome.log.tail, outcome.log.rewrite)
        return Appended(tail_now, tuple(outcome.seqs), outcome.added)

    async def pop(self, count: int = 1, *, expected_tail: Cursor | int | None = None) -> list[M]:
        """Take the newest messages out and return them, oldest first. Each is handed out at most once.

        They are read first and taken only if nothing has changed since: one that cannot be read is a
        `CorruptRecordError`, and stays. Records in quarantine that stand among them go, too.
        """
        count = check_number(count, "count", least=1)
        while True:
            head, records = await self._newest(count)
            log = self._check_tail(expected_tail, head)
            if head is None or not records:
                return []
            messages = [self._decode_or_raw(record) for record in records]
            write = self._write(
                truncate_after=records[0].seq - 1,
                expected_tail=log.tail,
                expected_rewrite=log.rewrite,
                life=head.life,
                must_exist=True,
            )
            try:
                await self.commit(write)
            except FencedError:
                raise
            except ConflictError:
                continue  # an edit, perhaps: whether the tail is the expected one still is looked at anew
            return cast("list[M]", messages)

    async def truncate_after(self, seq: Cursor | int) -> int:
        """Take out everything behind `seq` (0: everything); how many messages that were."""
        life, place = self._place(seq)
        outcome = await self.commit(self._write(truncate_after=place, life=life, must_exist=True))
        return outcome.removed

    async def replace_prefix(self, upto: Cursor | int, messages: Iterable[M] = ()) -> Appended:
        """Put messages in the place of everything at or below `upto`, in one atomic step: compaction.

        Messages appended meanwhile survive. The new ones take the last of the places that become free, so there may not
        be more of them. Give the cursor of what was read, ``history.end``: it loses against another compaction, or
        an edit, since then with a `ConflictError`. A bare number replaces whatever stands there now.
        """
        life, place = self._place(upto)
        rewrite = upto.rewrite if isinstance(upto, Cursor) else None
        return await self._replace(Replace(place, self._records(messages)), life, rewrite)

    async def clear(self) -> None:
        """Take out every message, in one atomic step. The session, its state and its other logs stay."""
        await self._replace(Replace(None), None, None)

    async def replace(self, seq: Cursor | int, message: M) -> None:
        """Put a message in the place of the one at `seq`: an edit. A message without an id keeps the old one's."""
        (given,) = self._records([message])

        def edited(record: Record) -> tuple[Record, bytes | None]:
            if given.id or not record.id:
                return given, None
            # Stored as it will be read, so that the same message is known again when it is sent anew.
            named = self._codec.decode(self.serializer.loads(given.payload), given._replace(id=record.id))
            (new,) = self._records([named])
            return new._replace(id=record.id), record.payload

        await self._edit(seq, edited)

    async def redact(self, seq: Cursor | int, text: str = "[redacted]") -> None:
        """Put `text` in the place of what the message at `seq` says; its role, ids and tool calls' names stay."""

        def blanked(record: Record) -> tuple[Record, bytes]:
            try:
                (new,) = self._records([self._codec.blank(self.decode(record), text)])
            except (TypeError, LookupError, AttributeError) as error:
                raise self._corrupt(record, error) from error
            return new._replace(id=record.id), record.payload

        await self._edit(seq, blanked)

    async def verify(self) -> list[Finding]:
        """What is wrong: damaged records, unknown formats, tool calls without results and results without calls."""
        findings, _, _ = await verify(self)
        return findings

    async def repair(self) -> list[Finding]:
        """Take what `verify` finds out of the conversation; what that was. Nothing is deleted.

        The records stay where they are, in quarantine: `messages` leaves them out, `records` still has them.
        """
        return await repair(self)

    # How messages become records

    def _records(self, messages: Iterable[M]) -> list[Record]:
        """Records without a place. Every limit is checked here, before anything is written."""
        options, codec, dumps = self._store.options, self._codec, self._store.serializer.dumps
        form = format_of(codec)
        records: list[Record] = []
        total = 0
        for index, message in enumerate(messages):
            try:
                role, name, starts_turn, text, data = codec.encode(message)
            except SerializationError as error:
                raise error.below(f"messages[{index}]") from error.__cause__
            payload = dumps(data, path=f"messages[{index}]")
            if len(payload) > options.max_message_bytes:
                raise MessageTooLargeError(
                    f"messages[{index}] takes {len(payload)} bytes; max_message_bytes is {options.max_message_bytes}: "
                    "raise it, or keep the file elsewhere and its address in the message"
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

    # How the backend is called

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
            raise ConflictError(heads.other_life(self._key.session))
        return self._life

    async def _commit(self, write: Write) -> Outcome:
        try:
            outcome = await self._store.connection.write(self._store.backend.commit, self._key, write)
        except (ConflictError, MessageNotFoundError) as error:
            heads.name_place(error, self._key, self._name)
            raise
        if outcome.life == ABSENT and (write.expected_tail or write.life):
            raise ConflictError(heads.other_life(self._key.session), tail=Cursor(ABSENT, 0))
        return outcome

    def _check_tail(self, expected: Cursor | int | None, head: Head | None) -> LogHead:
        """Where the log stands by a head that was read, checked against what the caller expects."""
        life, tail = self._position(expected)
        self._check_life(life, head)
        self._check_life(self._life, head)
        log = head.logs.get(self._name, LogHead()) if head else LogHead()
        try:
            heads.check_tail(Write(b"", expected_tail=tail), head.life if head else ABSENT, log)
        except ConflictError as error:
            heads.name_place(error, self._key, self._name)
            raise
        return log

    async def _replace(self, replace: Replace, life: str | None, rewrite: int | None) -> Appended:
        _check_distinct(replace.records)
        write = self._write(replace=replace, expected_rewrite=rewrite, life=life, must_exist=True)
        outcome = await self.commit(write)
        if outcome.life == ABSENT and replace.records:
            raise ValueError(
                f"{len(replace.records)} messages cannot take the place of none: the session does not exist"
            )
        tail = Cursor(outcome.life, outcome.log.tail, outcome.log.rewrite)
        return Appended(tail, tuple(outcome.seqs), len(replace.records))

    async def _edit(self, place: Cursor | int, change: Callable[[Record], tuple[Record, bytes | None]]) -> None:
        """Put what `change` makes of a record in its place; anew if it no longer holds the payload given with that."""
        for _ in range(ATTEMPTS):
            life, record = await self._at(place)
            new, expected = change(record)
            rewrite = Rewrite(new._replace(seq=record.seq, created_at=record.created_at), expected)
            try:
                await self.commit(self._write(rewrite=rewrite, life=life))
            except FencedError:
                raise
            except ConflictError as error:
                if expected is None:
                    raise
                conflict = error
                continue
            return
        raise conflict

    async def _at(self, place: Cursor | int) -> tuple[str, Record]:
        """The record at a place, and the life it was read in."""
        life, seq = self._place(place, least=1)
        page = await self.records(Span(after=seq - 1, limit=1))
        self._check_life(self._life if life is None else life, page.head)
        if page.head is None or not page.records or page.records[0].seq != seq:
            raise MessageNotFoundError(
                f"there is no message at seq {seq} of {heads.place(self._key, self._name)}: "
                "the seqs of a history are those that there are"
            )
        return page.head.life, page.records[0]


def _check_distinct(records: Sequence[Record]) -> None:
    ids = [record.id for record in records if record.id]
    if len(set(ids)) < len(ids):
        raise DuplicateIdError("two of the new messages have the same id: give each its own, or none")
