"""Mistakes against clauses 1 to 9: torn batches, clocks, doubles, losses, and writes that outlive their caller."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from chatkeep import Cursor, heads
from chatkeep.arguments import check_number
from chatkeep.connection import Connection
from chatkeep.errors import ConflictError, CorruptRecordError, OutcomeUnknownError, StoreTimeoutError
from chatkeep.integrity import QUARANTINE
from chatkeep.log import Appended
from chatkeep.log import Log as StoreLog
from chatkeep.memory import Log, MemoryBackend, Session
from chatkeep.metadata import changes
from chatkeep.records import (
    ABSENT,
    Head,
    Keep,
    Key,
    LogHead,
    Outcome,
    Record,
    RecordPage,
    Replace,
    Rewrite,
    Scope,
    Span,
    Write,
)

from . import meanwhile, mutant, swapped

append = StoreLog.append
pop = StoreLog.pop
check_life = heads.check_life
check_tail = heads.check_tail
check_new = heads.check_new
check_replace = heads.check_replace
meet = heads.meet
write = Connection.write


# 1 to 4: whole batches in one order


@mutant(1, 4, mistake="a batch is written message by message, and others get a turn in between")
class BatchInSteps(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if len(write.append) < 2 or write.batch:
            return await super().commit(key, write)
        first = await super().commit(key, write._replace(token=os.urandom(16), append=write.append[:1]))
        await meanwhile()
        rest = await super().commit(key, write._replace(append=write.append[1:], expected_tail=None, life=None))
        return rest._replace(seqs=[*first.seqs, *rest.seqs], added=first.added + rest.added)


@mutant(1, mistake="metadata that is given with messages is a write of its own", place="chatkeep.log.Log.append")
async def metadata_in_a_write_of_its_own(self: Any, messages: Any, *, metadata: Any = None, **options: Any) -> Appended:
    if metadata:
        await self.commit(Write(os.urandom(16), meta=changes(self.serializer, metadata=metadata)))
    return await append(self, messages, **options)


@mutant(
    1,
    16,
    17,
    mistake="a batch is encoded and stored one message at a time, up to the one that is refused",
    place="chatkeep.log.Log.append",
)
async def messages_one_at_a_time(
    self: Any, messages: Iterable[Any], *, metadata: Any = None, **options: Any
) -> Appended:
    appended = await append(self, [], **options)
    for message in messages if isinstance(messages, list) else list(messages):
        one = await append(self, [message], metadata=metadata)
        appended = Appended(one.tail, (*appended.seqs, *one.seqs), appended.added + one.added)
    return appended


@mutant(2, mistake="messages are ordered by the clock of whoever wrote them")
class OrderOfTheClock(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        page = await super().read(key, log, span)
        return page._replace(records=sorted(page.records, key=lambda record: record.created_at or 0))


@mutant(2, mistake="a batch has one timestamp, and its messages are ordered by that and their content")
class OrderOfContent(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        page = await super().read(key, log, span)
        return page._replace(records=sorted(page.records, key=lambda each: (each.created_at, -len(each.payload))))


@mutant(2, 7, mistake="the next seq is the newest message's and one more, also after a pop")
class SeqGivenTwice(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        self.last = self.records[-1].seq if self.records else 0
        return super().append(write, now)


@mutant(2, mistake="all logs of a session count together")
class OneCounterForAllLogs(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        if write.append and write.log not in self.logs:
            self.logs[write.log] = Log()
        if write.append:
            self.logs[write.log].last = max(log.last for log in self.logs.values())
        return super().apply(write, now)


@mutant(2, mistake="seq is a float, as one driver returns every number")
class SeqIsAFloat(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        outcome = super().apply(write, now)
        return outcome._replace(seqs=[float(seq) for seq in outcome.seqs])  # type: ignore[misc]


@mutant(2, mistake="the count begins anew with each store that is opened", place="chatkeep.memory.MemoryBackend.open")
async def counts_from_what_it_finds(self: Any) -> None:
    for session in self.held.values():
        for log in session.logs.values():
            log.last = log.head().tail


@mutant(2, mistake="a cursor is a number: reading asks for no life", place="chatkeep.reading.LogReader._check_life")
def reads_in_any_life(self: Any, life: str | None, head: Head | None) -> None:
    return None


@mutant(2, mistake="a cursor is a number: a write asks for no life", place="chatkeep.heads.check_life")
def writes_in_any_life(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    check_life(write._replace(life=write.life if write.life == ABSENT else None), head, session, log)


@mutant(2, mistake="a life is named after its session, and the next one is the same")
class LifeNamedAfterItsSession(Session):
    def __init__(self, key: Key, life: str, now: float) -> None:
        super().__init__(key, "the life of " + key.session, now)


@mutant(2, mistake="a cursor's text leaves out how often the log was edited", place="chatkeep.records.Cursor.__str__")
def text_of_half_a_cursor(self: Cursor) -> str:
    return f"{self.life}.{self.seq}.0"


@mutant(3, mistake="a seq is drawn in one step and its message stored in a later one")
class SeqDrawnBefore(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        log = session.logs.get(write.log) if session else None
        if session is None or log is None or not write.append or write.batch or any(each.id for each in write.append):
            return await super().commit(key, write)
        seqs = list(range(log.last + 1, log.last + 1 + len(write.append)))
        log.last = seqs[-1]
        for _ in range(random.Random(seqs[0]).randrange(4)):
            await asyncio.sleep(0)
        place = log.place(seqs[0])
        log.records[place:place] = [
            record._replace(seq=seq, created_at=self.clock()) for seq, record in zip(seqs, write.append, strict=True)
        ]
        session.head = session.head._replace(logs={**session.head.logs, write.log: log.head()})
        return Outcome(session.head.life, log.head(), seqs, len(seqs))


@mutant(4, mistake="the log is read, added to and written back whole")
class WrittenBackWhole(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        log = session.logs.get(write.log) if session else None
        if session is None or log is None or not write.append:
            return await super().commit(key, write)
        records, last = list(log.records), log.last
        await meanwhile()
        log.records, log.last = records, last
        return await super().commit(key, write)


@mutant(4, 5, mistake="a write whose answer is late is sent again as a new one")
class SentAgainAsNew(MemoryBackend):
    count = 0

    async def commit(self, key: Key, write: Write) -> Outcome:
        type(self).count += 1
        if self.count % 7 == 0 and not write.batch:
            await super().commit(key, write._replace(token=os.urandom(16)))
        return await super().commit(key, write)


# 5: once


@mutant(5, mistake="whether an id is known is looked up before the write, in a step of its own")
class IdLookedUpBefore(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        known = set(session.logs[write.log].ids) if session and write.log in session.logs else set()
        if any(record.id for record in write.append):
            await meanwhile()
        if (session := self.live(key)) and (log := session.logs.get(write.log)):
            for record in write.append:
                if record.id not in known:
                    log.ids.pop(record.id, None)
        return await super().commit(key, write)


@mutant(5, mistake="ids of one batch are compared with what is stored, and not with one another")
class IdTwiceInABatch(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        seqs, added = list[int](), 0
        for record in write.append:
            known = record.id in self.ids and self.ids[record.id] <= self.last - added
            if not known:
                self.ids.pop(record.id, None)
            one, more = super().append(write._replace(append=[record], batch=False), now)
            seqs, added = [*seqs, *one], added + more
        if write.batch:
            self.batches[write.token] = seqs
        return seqs, added


@mutant(5, mistake="ids go with the messages that are trimmed")
class TrimmedIsForgotten(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(remember_ids=0), now)


@mutant(5, mistake="a thousand ids of trimmed messages are remembered, whatever remember_ids says")
class RemembersAThousand(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(remember_ids=1000), now)


@mutant(
    5,
    mistake="a write puts other content under a known id without being told to: an upsert",
    place="chatkeep.heads.meet",
)
def upsert(write: Write, record: Record, known: Record | None, seq: int) -> Record | None:
    return meet(
        write._replace(on_conflict="replace" if write.on_conflict == "keep" else write.on_conflict), record, known, seq
    )


@mutant(5, mistake="on_conflict='replace' deletes the old message and adds the new one at the end")
class ReplacesAtTheEnd(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        for record in write.append:
            seq = self.ids.get(record.id, 0) if record.id else 0
            held = self.held(seq)
            if held and write.on_conflict == "replace" and not held.same_content(record):
                self.take(self.place(seq), self.place(seq) + 1)
        return super().append(write, now)


@mutant(5, mistake="what on_conflict='replace' puts in place is as new as the write", place="chatkeep.heads.meet")
def replaced_is_new(write: Write, record: Record, known: Record | None, seq: int) -> Record | None:
    better = meet(write, record, known, seq)
    return better and better._replace(created_at=1.0)


@mutant(5, mistake="on_conflict='error' compares ids and no content", place="chatkeep.heads.meet")
def error_without_a_look(write: Write, record: Record, known: Record | None, seq: int) -> Record | None:
    if known and write.on_conflict == "error":
        raise heads.duplicate(record, seq)
    return meet(write, record, known, seq)


@mutant(5, mistake="on_conflict='error' stops at the conflict, with what stood before it stored")
class ErrorHalfway(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        if write.on_conflict != "error" or write.batch:
            return super().append(write, now)
        answers = [super(ErrorHalfway, self).append(write._replace(append=[record]), now) for record in write.append]
        return [seq for seqs, _ in answers for seq in seqs], sum(added for _, added in answers)


@mutant(5, mistake="on_conflict='strict' looks at nothing, and replaces", place="chatkeep.heads.check_new")
def strict_is_replace(write: Write, seqs: Mapping[str, int]) -> None:
    del write, seqs


@mutant(5, mistake="on_conflict='strict' names one of the known ids alone", place="chatkeep.heads.check_new")
def strict_names_one(write: Write, seqs: Mapping[str, int]) -> None:
    check_new(write, dict([*seqs.items()][:1]))


@mutant(5, mistake="on_conflict='strict' forgets what was trimmed")
class StrictForgets(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        kept = self.ids
        if write.on_conflict == "strict":
            self.ids = {id: seq for id, seq in self.ids.items() if self.held(seq)}
        try:
            return super().append(write, now)
        finally:
            self.ids = {**kept, **self.ids}


@mutant(5, mistake="pop leaves the ids behind, and nothing that was taken out can be stored again")
class TakenIsStillKnown(Log):
    def take(self, start: int, end: int, upto: float = inf) -> list[Record]:
        ids, batches = dict(self.ids), dict(self.batches)
        gone = super().take(start, end, upto)
        if start:
            self.ids, self.batches = ids, batches
        return gone


@mutant(5, 9, mistake="replace_prefix leaves the ids of what it replaced behind")
class ReplacedIsStillKnown(Log):
    def replace(self, change: Replace, now: float) -> list[int]:
        gone = {record.id: record.seq for record in self.records if change.upto and record.seq <= change.upto}
        seqs = super().replace(change, now)
        self.ids = {**gone, **self.ids}
        return seqs


@mutant(5, mistake="clear forgets the messages' ids and not the batches'")
class ClearedBatchIsStillKnown(Log):
    def replace(self, change: Replace, now: float) -> list[int]:
        batches = dict(self.batches)
        seqs = super().replace(change, now)
        self.batches = batches
        return seqs


@mutant(5, mistake="one table remembers the writes of all sessions, under the batch id alone")
class BatchOfAnotherSession(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if write.batch and (seen := self.recent.get((Key(Scope(), ""), write.token))):
            return seen
        outcome = await super().commit(key, write)
        if write.batch:
            self.recent[Key(Scope(), ""), write.token] = outcome
        return outcome


swapped(
    "sixty_four_batches", 5, mistake="a log remembers its last 64 batch ids", place="chatkeep.records.BATCHES", value=64
)


@mutant(5, mistake="a batch id counts only where the content is the same")
class BatchComparesContent(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        log = self.logs.get(write.log)
        if log and write.batch and (seqs := log.batches.get(write.token)):
            stored = [held.payload for seq in seqs if (held := log.held(seq))]
            if stored and stored != [record.payload for record in write.append]:
                write = write._replace(token=os.urandom(16))
        return super().apply(write, now)


@mutant(5, mistake="a batch is forgotten as soon as one of its messages is taken out")
class BatchForgottenInPart(Log):
    def take(self, start: int, end: int, upto: float = inf) -> list[Record]:
        gone = super().take(start, end, upto)
        seqs = {record.seq for record in gone}
        self.batches = {token: at for token, at in self.batches.items() if not seqs & set(at)}
        return gone


@mutant(5, mistake="a write that comes twice, after a lost answer, is committed twice")
class NoTokenIsRemembered(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        self.recent.clear()
        return await super().commit(key, write)


@mutant(5, mistake="what says the same as the message before it is taken for a replay")
class EqualContentIsADuplicate(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        last = self.records[-1] if self.records else None
        if last and not write.batch and all(record.id is None and last.same_content(record) for record in write.append):
            return [last.seq] * len(write.append), 0
        return super().append(write, now)


@mutant(5, mistake="a message without an id gets one from its content")
class IdFromContent(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        named = [each if each.id else each._replace(id=f"hash of {each.payload!r}") for each in write.append]
        return super().append(write._replace(append=named), now)


# 6: on an expected tail


@mutant(6, mistake="the expected tail is compared before the write, in a step of its own")
class TailComparedBefore(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        if session and write.append and write.expected_tail is not None:
            log = session.logs.get(write.log, Log())
            if write.token not in log.batches:
                heads.check_tail(write, session.head.life, log.head())
            await meanwhile()
            write = write._replace(expected_tail=None)
        return await super().commit(key, write)


@mutant(6, mistake="a conflict carries the tail that was expected", place="chatkeep.heads.check_tail")
def conflict_with_the_wrong_tail(write: Write, life: str, log: LogHead) -> None:
    try:
        check_tail(write, life, log)
    except ConflictError as error:
        raise ConflictError(str(error), tail=Cursor(life, write.expected_tail or 0, log.rewrite)) from error


@mutant(6, 7, mistake="the tail is the newest seq ever given, also after a pop")
class TailIsTheNewestEver(Log):
    def head(self) -> LogHead:
        return super().head()._replace(tail=self.last)


@mutant(6, mistake="an expected tail of 0 is no expectation", place="chatkeep.heads.check_tail")
def zero_is_no_expectation(write: Write, life: str, log: LogHead) -> None:
    check_tail(write._replace(expected_tail=write.expected_tail or None), life, log)


@mutant(6, mistake="every write is held against the version of the session that was read before it")
class StaleSession(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        before = session.head if session else None
        await meanwhile()
        session = self.live(key)
        if write.append and before is not (session.head if session else None):
            raise ConflictError("the session is stale")
        return await super().commit(key, write)


@mutant(6, mistake="a refused append leaves its batch id behind")
class RefusedAndRemembered(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        try:
            return super().apply(write, now)
        except ConflictError:
            log = self.logs.get(write.log)
            if log and write.batch:
                log.batches[write.token] = [log.last + 1]
            raise


@mutant(6, mistake="an append of nothing expects nothing", place="chatkeep.log.Log._check_tail")
def nothing_expects_nothing(self: Any, expected: Any, head: Head | None) -> LogHead:
    return head.logs.get(self.name, LogHead()) if head else LogHead()


@mutant(6, mistake="the expected tail is compared after the messages are in")
class TailComparedAfter(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        before = self.logs[write.log].head() if write.log in self.logs else LogHead()
        outcome = super().apply(write._replace(expected_tail=None), now)
        if outcome.added or not write.append:
            heads.check_tail(write, self.head.life, before)
        return outcome


# 7: pop


@mutant(7, mistake="messages are read, and then deleted without another look", place="chatkeep.log.Log.pop")
async def pop_without_a_look(self: Any, count: int = 1, *, expected_tail: Any = None) -> list[Any]:
    count = check_number(count, "count", least=1)
    head, records = await self._newest(count)
    self._check_tail(expected_tail, head)
    messages = [self.decode(record) for record in records]
    if records:
        await self.truncate_after(records[0].seq - 1)
    return messages


@mutant(
    7,
    mistake="after a conflict pop looks whether its messages are still there, and takes them with all that has come",
    place="chatkeep.log.Log.pop",
)
async def pop_takes_what_came_meanwhile(self: Any, count: int = 1, *, expected_tail: Any = None) -> list[Any]:
    count = check_number(count, "count", least=1)
    while True:
        head, records = await self._newest(count)
        log = self._check_tail(expected_tail, head)
        if not records:
            return []
        place, messages = records[0].seq - 1, [self.decode(record) for record in records]
        try:
            await self.commit(self._write(truncate_after=place, expected_tail=log.tail, life=head.life))
        except ConflictError:
            page = await self.records(Span(after=place))
            if expected_tail is not None or list(page.records[: len(records)]) != records:
                continue
            await self.truncate_after(place)
        return messages


@mutant(7, mistake="pop returns the newest first", place="chatkeep.log.Log.pop")
async def pop_newest_first(self: Any, *args: Any, **options: Any) -> list[Any]:
    return list(reversed(await pop(self, *args, **options)))


@mutant(7, mistake="pop takes first and reads afterwards: what cannot be read is gone", place="chatkeep.log.Log.pop")
async def pop_takes_before_it_reads(self: Any, count: int = 1, *, expected_tail: Any = None) -> list[Any]:
    decode = self._decode_or_raw
    try:
        return await pop(self, count, expected_tail=expected_tail)
    except CorruptRecordError:
        _, records = await self._newest(count)
        await self.truncate_after(records[0].seq - 1)
        return [decode(record) for record in records]


@mutant(7, mistake="pop takes no notice of expected_tail", place="chatkeep.log.Log.pop")
async def pop_on_any_tail(self: Any, count: int = 1, *, expected_tail: Any = None) -> list[Any]:
    return await pop(self, count)


@mutant(7, mistake="pop counts what is in quarantine, and hands out less", place="chatkeep.reading.LogReader._newest")
async def quarantine_is_counted(self: Any, count: int) -> Any:
    page = await self.records(Span(limit=count, newest=True))
    return page.head, [record for record in page.records if record.format != QUARANTINE]


# 8: cancelled


@mutant(
    8,
    mistake="a write that is cancelled stops where it is, with half of the batch stored",
    place="chatkeep.connection.Connection.write",
)
async def stops_halfway(self: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 2 and isinstance(args[1], Write) and len(args[1].append) > 1 and not args[1].batch:
        key, whole = args
        first = await write(self, call, key, whole._replace(token=os.urandom(16), append=whole.append[:1]))
        rest = await write(self, call, key, whole._replace(append=whole.append[1:], expected_tail=None))
        return rest._replace(seqs=[*first.seqs, *rest.seqs], added=first.added + rest.added)
    return await write(self, call, *args, **kwargs)


swapped(
    "goes_on_in_the_background",
    8,
    mistake="the cancellation goes on at once, and the write in the background",
    place="chatkeep.backend.Settling.cancel",
    value=asyncio.Future.cancel,
)


@mutant(8, mistake="whoever is cancelled twice waits no longer", place="chatkeep.backend.Settling.cancel")
def settles_once(self: Any, msg: Any | None = None) -> bool:
    asked, self.asked = getattr(self, "asked", False), True
    return asked and asyncio.Future.cancel(self, msg)


@mutant(8, mistake="the cancellation of a write is swallowed", place="chatkeep.connection.Connection.write")
async def cancellation_is_swallowed(self: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    writing = asyncio.ensure_future(write(self, call, *args, **kwargs))
    while not writing.done():
        try:
            await asyncio.wait({writing})
        except asyncio.CancelledError:
            continue
    return writing.result()


@mutant(8, mistake="a write that is late is said to have failed", place="chatkeep.connection.Connection.unknown")
def late_is_failed(self: Any, reason: str) -> StoreTimeoutError:
    return StoreTimeoutError(f"{self.name} {reason}")


@mutant(
    8,
    mistake="who is cancelled is not told that the outcome is unknown",
    place="chatkeep.connection.Connection.write",
)
async def cancelled_without_a_word(self: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return await write(self, call, *args, **kwargs)
    except OutcomeUnknownError as error:
        raise error.__cause__ or error from error


# 9: the beginning, replaced


@mutant(
    9,
    mistake="a compaction reads what is to stay, clears the log and stores it again",
    place="chatkeep.log.Log.replace_prefix",
)
async def cleared_and_stored_again(self: Any, upto: Any, messages: Iterable[Any] = ()) -> Appended:
    kept = await self.messages(after=upto)
    await self.clear()
    return await append(self, [*messages, *kept])


@mutant(9, mistake="the new messages take the first of the places that become free")
class FirstPlaces(Log):
    def replace(self, change: Replace, now: float) -> list[int]:
        free = [record.seq for record in self.records if change.upto is None or record.seq <= change.upto]
        seqs = super().replace(change, now)
        for place, seq in enumerate(free[: len(seqs)]):
            self.records[place] = self.records[place]._replace(seq=seq)
        return free[: len(seqs)]


@mutant(9, mistake="after a compaction the log is numbered anew from 1")
class NumberedAnew(Log):
    def replace(self, change: Replace, now: float) -> list[int]:
        seqs = super().replace(change, now)
        self.records = [record._replace(seq=seq) for seq, record in enumerate(self.records, 1)]
        self.ids = {record.id: record.seq for record in self.records if record.id}
        return list(range(1, len(seqs) + 1))


@mutant(9, mistake="whether the log was compacted since it was read is not asked", place="chatkeep.heads.check_tail")
def every_compaction_wins(write: Write, life: str, log: LogHead) -> None:
    check_tail(write._replace(expected_rewrite=None), life, log)


@mutant(9, mistake="a redaction does not count as a change of what was read")
class EditsDoNotCount(Log):
    def rewrite(self, change: Rewrite) -> None:
        super().rewrite(change)
        self.rewrites -= 1


@mutant(9, mistake="an append that replaces content does not count as a change of what was read")
class ReplacingAppendsDoNotCount(Log):
    def append(self, write: Write, now: float) -> tuple[Sequence[int], int]:
        rewrites = self.rewrites
        answer = super().append(write, now)
        self.rewrites = rewrites
        return answer


@mutant(9, mistake="clear deletes the session", place="chatkeep.log.Log.clear")
async def clear_deletes(self: Any) -> None:
    await self.commit(self._write(delete=True, must_exist=True))


@mutant(9, mistake="clear takes the messages out one by one", place="chatkeep.log.Log.clear")
async def cleared_one_by_one(self: Any) -> None:
    for seq in (await self.messages()).seqs:
        await self.commit(self._write(replace=Replace(seq), must_exist=True))


@mutant(9, mistake="a reading takes where the log stands from an instant before its messages")
class HeadOfAnotherInstant(MemoryBackend):
    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        head = await self.head(key)
        await meanwhile()
        return (await super().read(key, log, span))._replace(head=head)


@mutant(9, mistake="an upto beyond the end is taken for the end", place="chatkeep.heads.check_replace")
def beyond_is_the_end(replace: Replace, log: LogHead, places: int) -> None:
    check_replace(replace._replace(upto=None), log, places)


@mutant(9, mistake="a compaction takes what came meanwhile, too")
class ReplacesToTheEnd(Log):
    def replace(self, change: Replace, now: float) -> list[int]:
        return super().replace(change._replace(upto=None), now)
