"""Mistakes against clauses 27 and 28: edits that leave what was said, forks that share it, and leases held by two."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from chatkeep import ChatMessage, heads
from chatkeep.codecs import ChatMessageCodec
from chatkeep.errors import FencedError, MessageNotFoundError
from chatkeep.lease import Lease as StoreLease
from chatkeep.log import Log as StoreLog
from chatkeep.memory import Log, MemoryBackend, Session
from chatkeep.records import ABSENT, Head, Key, Lease, LeaseOp, LogHead, Outcome, Record, Rewrite, Write
from chatkeep.session import Session as StoreSession
from chatkeep.state import State

from . import meanwhile, mutant

check_life = heads.check_life
check_rewrite = heads.check_rewrite
leased = heads.leased
replace = StoreLog.replace
fork = StoreSession.fork
blank = ChatMessageCodec.blank
start_lease = StoreLease.__init__
end_lease = StoreLease.__aexit__


# 27: edits


@mutant(27, mistake="truncate_after takes the message at its place, too")
class TruncatesInclusively(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        if write.truncate_after and write.expected_tail is None:
            write = write._replace(truncate_after=write.truncate_after - 1)
        return await super().commit(key, write)


@mutant(27, mistake="truncate_after takes messages out one by one", place="chatkeep.log.Log.truncate_after")
async def truncates_one_by_one(self: Any, seq: Any) -> int:
    life, place = self._place(seq)
    self._check_life(life, await self._store.connection.read(self._store.backend.head, self._key))
    removed = 0
    for last in [each for each in reversed((await self.messages()).seqs) if each > place]:
        removed += (await self.commit(self._write(truncate_after=last - 1, life=life, must_exist=True))).removed
    return removed


@mutant(27, mistake="truncate_after keeps as many messages as its place says")
class TruncatesByCount(Log):
    def place(self, seq: int) -> int:
        return min(seq - 1, len(self.records)) if 0 < seq <= self.last + 1 else super().place(seq)


@mutant(27, mistake="an edited message moves to the end")
class EditMovesToTheEnd(Log):
    def rewrite(self, change: Rewrite) -> None:
        super().rewrite(change)
        record = self.records.pop(self.place(change.record.seq))
        self.last += 1
        self.records.append(record._replace(seq=self.last))
        self.ids.update({record.id: self.last} if record.id else {})


@mutant(27, mistake="an edited message is as new as its edit", place="chatkeep.heads.check_rewrite")
def edit_is_new(change: Rewrite, known: Record | None) -> Record:
    return check_rewrite(change, known)._replace(created_at=1.0)


@mutant(27, mistake="an edited message loses its id if the new one has none", place="chatkeep.log.Log.replace")
async def edit_loses_the_id(self: Any, seq: Any, message: Any) -> None:
    life, place = self._place(seq, least=1)
    (new,) = self._records([message])
    await self.commit(self._write(rewrite=Rewrite(new._replace(seq=place)), life=life, must_exist=True))


@mutant(27, mistake="the id of what was edited stays known")
class FormerIdIsKnown(Log):
    def rewrite(self, change: Rewrite) -> None:
        former = self.held(change.record.seq)
        super().rewrite(change)
        if former and former.id:
            self.ids[former.id] = former.seq


@mutant(27, mistake="an edit may give a message the id of another one")
class IdOfAnother(Log):
    def rewrite(self, change: Rewrite) -> None:
        id = change.record.id
        if id and self.ids.get(id, change.record.seq) != change.record.seq:
            self.ids.pop(id)
        super().rewrite(change)


@mutant(27, mistake="an edit keeps the old role, and whether a turn starts")
class OldRole(Log):
    def rewrite(self, change: Rewrite) -> None:
        known = self.held(change.record.seq)
        record = change.record
        if known and record.format == known.format:
            record = record._replace(role=known.role, starts_turn=known.starts_turn)
        super().rewrite(change._replace(record=record))


@mutant(27, mistake="an edit of what is not there is stored at the end", place="chatkeep.log.Log.replace")
async def edit_of_nothing(self: Any, seq: Any, message: Any) -> None:
    try:
        await replace(self, seq, message)
    except MessageNotFoundError:
        await self.append([message])


@mutant(
    27, mistake="an edit takes the message out and puts the new one in, in two steps", place="chatkeep.log.Log.replace"
)
async def edit_in_two_steps(self: Any, seq: Any, message: Any) -> None:
    await self.redact(seq, "")
    await meanwhile()
    await replace(self, seq, message)


@mutant(27, mistake="a redaction leaves the text that is kept beside the payload")
class TextIsLeft(Log):
    def rewrite(self, change: Rewrite) -> None:
        known = self.held(change.record.seq)
        text = known.text if known and change.expected else change.record.text
        super().rewrite(change._replace(record=change.record._replace(text=text)))


@mutant(27, mistake="a redaction leaves what tools were called with", place="chatkeep.codecs._blank_arguments")
def arguments_are_left(arguments: Any, text: str) -> Any:
    return arguments


@mutant(27, mistake="a redaction leaves the metadata", place="chatkeep.codecs.ChatMessageCodec.blank")
def metadata_is_left(self: ChatMessageCodec, message: ChatMessage, text: str) -> ChatMessage:
    blanked = blank(self, message, text)
    kept = {name: item for name, item in message.data.items() if name == "metadata"}
    return ChatMessage.wrap({**blanked.data, **kept})


@mutant(
    27, mistake="a redaction leaves the parts of a content that are no texts", place="chatkeep.codecs._blank_content"
)
def parts_are_left(content: Any, text: str) -> Any:
    return text if isinstance(content, str) else content


@mutant(27, mistake="a redaction takes the tool calls away", place="chatkeep.codecs.ChatMessageCodec.blank")
def calls_are_gone(self: ChatMessageCodec, message: ChatMessage, text: str) -> ChatMessage:
    data = blank(self, message, text).data
    return ChatMessage.wrap({name: item for name, item in data.items() if name not in ("tool_calls", "tool_call_id")})


@mutant(27, mistake="a redaction forgets the id, and what was redacted comes back when it is sent again")
class RedactedIsForgotten(Log):
    def rewrite(self, change: Rewrite) -> None:
        super().rewrite(change)
        if change.expected:
            self.ids.pop(change.record.id, None)


@mutant(
    27,
    mistake="a redaction blanks what was read before, whatever stands there now",
    place="chatkeep.heads.check_rewrite",
)
def blanks_what_was_read(change: Rewrite, known: Record | None) -> Record:
    return check_rewrite(change._replace(expected=None), known)


@mutant(27, mistake="editing reaches the main log alone")
class EditsTheMainLog(Session):
    def apply(self, write: Write, now: float) -> Outcome:
        if write.rewrite and "" in self.logs:
            return super().apply(write._replace(log=""), now)
        return super().apply(write, now)


# 27: forks


@mutant(27, mistake="a fork ends before its place", place="chatkeep.session.Session.fork")
async def fork_ends_before(self: Any, new_id: str, *, upto: Any = None) -> Any:
    _, place = self._position(upto)
    return await fork(self, new_id, upto=upto if not place else place - 1)


@mutant(27, mistake="a fork joins a session that is there", place="chatkeep.heads.check_life")
def fork_joins(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    check_life(write if write.life != ABSENT else write._replace(life=None), head, session, log)


@mutant(27, mistake="a fork shares its log with what it came from", place="chatkeep.session.Session.fork")
async def fork_shares_its_log(self: Any, new_id: str, *, upto: Any = None) -> Any:
    forked = await fork(self, new_id, upto=upto)
    held = getattr(self._store.backend, "held", {})
    if upto is None and (branch := held.get(Key(self.scope, new_id))):
        branch.logs[""] = held[Key(self.scope, self.id)].logs[""]
    return forked


@mutant(27, mistake="a fork brings the state along", place="chatkeep.session.Session.fork")
async def fork_with_state(self: Any, new_id: str, *, upto: Any = None) -> Any:
    forked = await fork(self, new_id, upto=upto)
    await forked.state.update(await self.state.items())
    return forked


@mutant(27, mistake="a fork brings the service session id along", place="chatkeep.session.Session.fork")
async def fork_with_the_service_id(self: Any, new_id: str, *, upto: Any = None) -> Any:
    forked = await fork(self, new_id, upto=upto)
    info = await self.info()
    if info and info.service_session_id:
        await forked.update(service_session_id=info.service_session_id)
    return forked


@mutant(27, mistake="a fork is read page by page, each from another instant", place="chatkeep.session.Session.fork")
async def fork_by_pages(self: Any, new_id: str, *, upto: Any = None) -> Any:
    forked = await fork(self, new_id, upto=(await self.messages(limit=2)).end if upto is None else upto)
    if upto is None:
        rest = await self.messages(after=(await forked.count()))
        await forked.append(list(rest))
    return forked


@mutant(
    27,
    mistake="whether what was forked was redacted meanwhile is not asked",
    place="chatkeep.session.Session._standing",
    kind=staticmethod,
)
def fork_of_what_was_redacted(head: Head | None) -> None:
    return None


@mutant(27, mistake="a fork lies in the root scope", place="chatkeep.session.Session.fork")
async def fork_in_the_root(self: Any, new_id: str, *, upto: Any = None) -> Any:
    forked = await fork(self, new_id, upto=upto)
    moved = self._store.session(new_id)
    if self.scope.depth:
        await moved.append(list(await forked.messages()))
        await forked.delete()
    return moved


# 28: leases


@mutant(28, mistake="a lease is given to whoever asks", place="chatkeep.heads.leased")
def lease_for_everyone(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    return leased(head if change.ttl == 0 else head._replace(lease=None), change, now)


@mutant(28, mistake="a lease is looked up before it is taken, in a step of its own")
class LeaseLookedUpBefore(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        if write.lease and write.lease.ttl:
            if session:
                heads.leased(session.head, write.lease, self.clock())
            await meanwhile()
            if session := self.live(key):
                session.head = session.head._replace(lease=None)
        return await super().commit(key, write)


@mutant(28, mistake="a lease has no end until it is given back", place="chatkeep.heads.leased")
def lease_without_an_end(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    return leased(head, change, 0.0)


@mutant(28, mistake="whoever comes gives a lease back", place="chatkeep.heads.leased")
def anybody_gives_back(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    return leased(head, change, now) if change.ttl else (head.fence, None)


@mutant(28, mistake="a new holder gets the old one's token", place="chatkeep.heads.leased")
def one_token_for_all(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    _, lease = leased(head, change, now)
    return head.fence or 1, lease


@mutant(28, mistake="renewing makes the holder's own token old", place="chatkeep.heads.leased")
def renewing_fences_its_holder(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    fence, lease = leased(head, change, now)
    return (head.fence + 1 if change.ttl else fence), lease


@mutant(28, mistake="renewing does not lengthen a lease", place="chatkeep.heads.leased")
def renewing_does_nothing(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    fence, lease = leased(head, change, now)
    mine = head.lease and head.lease.owner == change.owner
    return fence, head.lease if mine and change.ttl else lease


@mutant(28, mistake="no write looks at its fencing token", place="chatkeep.heads.check_life")
def no_fence(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    check_life(write._replace(fence=None), head, session, log)


@mutant(28, mistake="appends look at their fencing token, and other writes do not", place="chatkeep.heads.check_life")
def fence_for_appends(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    check_life(write if write.append else write._replace(fence=None), head, session, log)


@mutant(28, mistake="a deletion does not look at its fencing token", place="chatkeep.heads.check_life")
def no_fence_for_deletions(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    check_life(write._replace(fence=None) if write.delete else write, head, session, log)


@mutant(28, mistake="state writes do not look at their fencing token", place="chatkeep.heads.check_life")
def no_fence_for_state(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    check_life(write._replace(fence=None) if write.state else write, head, session, log)


@mutant(28, mistake="a fencing token is compared before the write, in a step of its own")
class FenceComparedBefore(MemoryBackend):
    guarded = 0

    async def commit(self, key: Key, write: Write) -> Outcome:
        if write.fence is not None and (session := self.live(key)) and write.fence >= session.head.fence:
            self.guarded += 1
            if self.guarded % 3:
                await meanwhile()
            write = write._replace(fence=None)
        return await super().commit(key, write)


@mutant(28, mistake="whose lease ran out may not write, although nobody else has it")
class FencedByTime(MemoryBackend):
    async def commit(self, key: Key, write: Write) -> Outcome:
        session = self.live(key)
        lease = session.head.lease if session else None
        if write.fence is not None and not write.lease and lease and lease.until <= self.clock():
            raise FencedError(f"the lease of session {key.session!r} has run out")
        return await super().commit(key, write)


@mutant(28, mistake="while a lease is held nobody else may write", place="chatkeep.heads.check_life")
def unguarded_writes_are_refused(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    check_life(write, head, session, log)
    if head and head.lease and write.fence is None and not write.lease:
        raise FencedError(f"the lease of session {session!r} is held")


@mutant(28, mistake="a guarded write goes into whatever life there is", place="chatkeep.session.Session.guarded")
def guarded_in_any_life(self: Any, life: str, fence: int) -> Any:
    return StoreSession(self._store, Key(self.scope, self.id), self._codec, fence=fence)


@mutant(
    28,
    mistake="the log is guarded, and the state beside it is not",
    place="chatkeep.session.Session.state",
    kind=property,
)
def state_without_a_guard(self: Any) -> State:
    return State(self._store, self._key)


@mutant(28, mistake="the holder of a lease is its process", place="chatkeep.lease.Lease.__init__")
def held_by_the_process(self: Any, session: Any, *, ttl: float, wait: float) -> None:
    start_lease(self, session, ttl=ttl, wait=wait)
    self._owner = f"process {os.getpid()}"


@mutant(28, mistake="a lease whose work fails is not given back", place="chatkeep.lease.Lease.__aexit__")
async def kept_when_the_work_fails(
    self: Any, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
) -> None:
    if error is None:
        await end_lease(self, kind, error, traceback)


@mutant(28, mistake="who is cancelled while entering keeps the lease", place="chatkeep.lease.Lease._take")
async def kept_when_cancelled(self: Any) -> Outcome:
    return await self._commit(self._session, self._ttl)  # type: ignore[no-any-return]


@mutant(28, mistake="wait= does not wait", place="chatkeep.lease.Lease.__init__")
def waits_for_nobody(self: Any, session: Any, *, ttl: float, wait: float) -> None:
    start_lease(self, session, ttl=ttl, wait=0)


@mutant(28, mistake="the main log is guarded, and further ones are not", place="chatkeep.session.Session.log")
def log_without_a_guard(self: Any, name: str, *, codec: Any = None) -> Any:
    return StoreLog(self._store, self._key, codec or self._codec, name=name)
