"""Mistakes against clauses 10 and 11: turns cut in two, histories that end early, and sessions that end in parts."""

from __future__ import annotations

from typing import Any

from chatkeep import heads
from chatkeep.memory import Log, MemoryBackend, Session
from chatkeep.records import (
    Expiry,
    Head,
    HeadPage,
    Keep,
    Key,
    Listing,
    Outcome,
    RecordPage,
    Scope,
    Select,
    Span,
    StatePage,
    SweepReport,
    Write,
)
from chatkeep.state import State

from . import meanwhile, mutant

renewed = heads.renewed
entries = State._entries


def forget(log: Log, count: int) -> None:
    """Cut the oldest `count` records off, as `Log.trim` does."""
    log.trimmed += [record.id for record in log.records[:count] if record.id]
    del log.records[:count]


# 10: what a log keeps


@mutant(10, mistake="the cut is at the N-th newest message, and parts a tool's result from its call")
class CutAnywhere(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(max_messages=None), now)
        if keep.max_messages is not None:
            forget(self, max(0, len(self.records) - keep.max_messages))


@mutant(10, mistake="the cut is at the first turn start within the N newest messages, and leaves fewer")
class CutAtTheNextTurn(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(max_messages=None), now)
        if keep.max_messages:
            least = max(0, len(self.records) - keep.max_messages)
            starts = (place for place in range(least, len(self.records)) if self.records[place].starts_turn)
            forget(self, next(starts, 0))


@mutant(10, mistake="a turn that is longer than max_messages is cut all the same")
class LongTurnIsCut(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep, now)
        if keep.max_messages and self.records and not any(record.starts_turn for record in self.records[1:]):
            forget(self, max(0, len(self.records) - keep.max_messages))


@mutant(10, mistake="a log without a turn start is cut at the N-th newest message")
class CutWithoutATurn(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep, now)
        if keep.max_messages and not any(record.starts_turn for record in self.records):
            forget(self, max(0, len(self.records) - keep.max_messages))


@mutant(10, mistake="max_messages=0 is no limit")
class ZeroIsNoLimit(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(max_messages=keep.max_messages or None), now)


@mutant(10, mistake="the log is trimmed after the append, in a step of its own")
class TrimmedInAStepOfItsOwn(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        outcome = await super().commit(key, write._replace(keep=Keep()))
        await meanwhile()
        session = self.live(key)
        if write.append and session and write.log in session.logs:
            log = session.logs[write.log]
            log.trim(write.keep, self.clock())
            session.head = session.head._replace(logs={**session.head.logs, write.log: log.head()})
            outcome = outcome._replace(log=log.head())
        return outcome


@mutant(10, mistake="the N newest are told by their seq, and what was popped counts among them")
class CutBySeq(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(max_messages=None if keep.max_messages else keep.max_messages), now)
        if keep.max_messages:
            newest = self.last - keep.max_messages + 1
            starts = [record.seq for record in self.records if record.starts_turn and record.seq <= newest]
            forget(self, self.place(max(starts, default=0)))


@mutant(10, mistake="an append to one log cuts them all")
class EveryLogIsCut(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        outcome = super().apply(write, now)
        for log in self.logs.values() if write.append else ():
            log.trim(write.keep, now)
        return outcome


@mutant(10, mistake="seqs are counted from the oldest message that was kept")
class CountedFromTheOldest(Log):
    def trim(self, keep: Keep, now: float) -> None:
        before = len(self.records)
        super().trim(keep, now)
        if len(self.records) < before:
            self.records = [record._replace(seq=seq) for seq, record in enumerate(self.records, 1)]


@mutant(10, mistake="max_age is not looked at")
class NothingGrowsOld(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(max_age=None), now)


@mutant(10, mistake="max_age cuts single messages, and leaves the end of a turn behind")
class OldMessagesAreCut(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(max_age=None), now)
        if keep.max_age is not None:
            forget(self, sum((record.created_at or now) < now - keep.max_age for record in self.records))


@mutant(10, mistake="a turn that goes on is as old as its question")
class AsOldAsItsQuestion(Log):
    def trim(self, keep: Keep, now: float) -> None:
        super().trim(keep._replace(max_age=None), now)
        if keep.max_age is not None:
            oldest = now - keep.max_age
            starts = (place for place, each in enumerate(self.records) if each.starts_turn)
            young = (place for place in starts if (self.records[place].created_at or now) >= oldest)
            forget(self, next(young, 0))


@mutant(
    10,
    13,
    mistake="whatever comes in the role of a user starts a turn, a tool's result too",
    place="chatkeep.codecs._starts_turn",
)
def results_start_turns(data: dict[str, Any]) -> bool:
    return bool(data["role"] == "user")


# 11: how long a session lives


@mutant(11, mistake="a session ends before its time is over", place="chatkeep.heads.renewed")
def ends_early(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    ttl, expires = renewed(head, expiry, now)
    return ttl, expires and expires - (ttl or 0) / 5


@mutant(11, mistake="what has expired is there until somebody looks, ten seconds later", place="chatkeep.heads.renewed")
def ends_late(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    ttl, expires = renewed(head, expiry, now)
    return ttl, expires and expires + 10


@mutant(11, mistake="a write does not renew: the time counts from the first one", place="chatkeep.heads.renewed")
def always_fixed(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    return renewed(head, expiry._replace(fixed=True), now)


@mutant(11, mistake="a write renews a fixed lifetime, too", place="chatkeep.heads.renewed")
def never_fixed(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    return renewed(head, expiry._replace(fixed=False), now)


@mutant(11, mistake="a store without a ttl takes the session's away", place="chatkeep.heads.renewed")
def no_ttl_is_for_ever(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    return renewed(head, expiry, now) if expiry.ttl else (None, None)


@mutant(11, mistake="messages renew a session's time, and state does not")
class StateDoesNotRenew(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        expires = self.head.expires_at
        outcome = super().apply(write, now)
        if write.state and expires:
            self.head = self.head._replace(expires_at=expires)
        return outcome


@mutant(11, mistake="taking messages out does not renew a session's time")
class TakingDoesNotRenew(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        expires = self.head.expires_at
        outcome = super().apply(write, now)
        if write.truncate_after is not None and expires:
            self.head = self.head._replace(expires_at=expires)
        return outcome


@mutant(11, mistake="each log expires for itself, and the oldest part of a session goes first")
class EachLogExpires(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        outcome = await super().commit(key, write)
        self.written = {**getattr(self, "written", {}), (key, write.log): self.clock()}
        return outcome

    async def read(self, key: Key, log: str, span: Span) -> RecordPage:
        page = await super().read(key, log, span)
        ttl = page.head and page.head.ttl
        return page._replace(records=[]) if ttl and self.written[key, log] + ttl < self.clock() else page


@mutant(11, mistake="state that has expired is read until it is swept")
class ExpiredStateIsRead(MemoryBackend):
    async def state(self, key: Key, select: Select) -> StatePage:
        if session := self.held.get(key):
            session.head, head = session.head._replace(expires_at=None), session.head
            page = await super().state(key, select)
            session.head = head
            return page
        return await super().state(key, select)


@mutant(11, mistake="sessions that have expired are listed until they are swept")
class ExpiredIsListed(MemoryBackend):
    listing = False

    def live(self, key: Key) -> Session | None:
        return self.held.get(key) if self.listing else super().live(key)

    async def sessions(self, scope: Scope, listing: Listing) -> HeadPage:
        self.listing = True
        try:
            return await super().sessions(scope, listing)
        finally:
            self.listing = False


@mutant(11, mistake="what has expired is there for whoever asks until it is swept")
class ExpiredIsThere(MemoryBackend):
    def live(self, key: Key) -> Session | None:
        return self.held.get(key)


@mutant(11, mistake="a write to what has expired brings it back")
class ExpiredComesBack(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.held.get(key)
        if session and not self.live(key) and not write.must_exist:
            session.head = session.head._replace(expires_at=None)
        return await super().commit(key, write)


@mutant(11, mistake="a new life finds the state of the one that has expired")
class StateOutlivesItsSession(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        former = self.held.get(key)
        outcome = await super().commit(key, write)
        if former and self.held.get(key, former) is not former:
            self.held[key].state = {**former.state, **self.held[key].state}
        return outcome


@mutant(11, mistake="reading renews a session's time, whatever the policy", place="chatkeep.store.Store.renew")
async def reading_renews(self: Any, key: Key) -> None:
    if key.session:
        await self.connection.write(
            self.backend.commit, key, Write(b"renewed %f" % self.backend.clock(), expiry=self.expiry, must_exist=True)
        )


@mutant(
    11,
    mistake="with the policy 'read' messages renew when they are read, and state does not",
    place="chatkeep.state.State._entries",
)
async def reading_state_does_not_renew(self: State, prefix: str) -> Any:
    page = await self._store.connection.read(self._store.backend.state, self._key, Select(prefix=prefix))
    return page.entries


@mutant(11, mistake="a sweep takes sessions without a time for expired")
class SweepTakesTheTimeless(MemoryBackend):
    async def sweep(self, budget: int = 100) -> SweepReport:
        gone = [key for key, session in self.held.items() if (session.head.expires_at or 0) <= self.clock()]
        for key in gone:
            del self.held[key]
        return SweepReport(len(gone))
