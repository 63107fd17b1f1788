"""What a head decides, as plain functions: backends that hold the head in their hand share them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .errors import ConflictError, DuplicateIdError, FencedError, LeaseHeldError, MessageNotFoundError
from .records import (
    ABSENT,
    Cursor,
    Expiry,
    Head,
    Key,
    Lease,
    LeaseOp,
    LogHead,
    Record,
    Replace,
    Rewrite,
    StateEntry,
    Write,
)


def place(key: Key, log: str = "") -> str:
    """How an error names a session, a further log of it, or a scope."""
    if not key.session:
        return f"scope {key.scope.address}"
    return f"session {key.session!r}" + (f", log {log!r}" if log else "")


def name_place(error: Exception, key: Key, log: str = "") -> None:
    """Put the session, or the scope, into the text of a backend's error that does not name it."""
    text = str(error)
    if place(key) not in text:
        error.args = (f"{place(key, log)}: {text}",)


def other_life(session: str) -> str:
    """Why a cursor cannot be used."""
    return (
        f"session {session!r} has ended or begun anew since the cursor was made, or the cursor is of another session: "
        "read it again"
    )


def check_life(write: Write, head: Head | None, session: str, log: LogHead | None) -> None:
    """The write's `life` and `fence` against the live head; `log` is where the write's log stands, if there is one.

    Where there is no head the write's conditions on the log are checked, too: against none, and not against a life that
    begins in vain.
    """
    life = head.life if head else ABSENT
    if write.life not in (None, life):
        about_log = not (write.state or write.lease)
        raise ConflictError(
            other_life(session) if write.life else f"session {session!r} exists already",
            tail=Cursor(life, *(log.tail, log.rewrite) if log else (0,)) if about_log else None,
        )
    if head is None:
        check_tail(write, ABSENT, LogHead())
    elif write.fence is not None and write.fence < head.fence:
        raise FencedError(f"the lease of session {session!r} has passed to a newer holder")


def check_tail(write: Write, life: str, log: LogHead) -> None:
    """The write's `expected_tail` and `expected_rewrite` against the log."""
    current = Cursor(life, log.tail, log.rewrite)
    if write.expected_tail not in (None, log.tail):
        raise ConflictError(
            f"the tail is {log.tail}, not {write.expected_tail}: messages were added or taken away meanwhile; "
            "read it again",
            tail=current,
        )

    if write.expected_rewrite not in (None, log.rewrite):
        raise ConflictError("what the log holds was replaced or edited since it was read: read it again", tail=current)


def check_replace(replace: Replace, log: LogHead, places: int) -> None:
    """A replacement against the log and the number of places at or below `upto`."""
    if replace.upto is not None and replace.upto > log.last:
        raise ValueError(f"upto={replace.upto} is beyond the last position of the log, {log.last}")
    if len(replace.records) > places:
        raise ValueError(f"{len(replace.records)} messages cannot take the place of {places}")


def check_rewrite(rewrite: Rewrite, known: Record | None) -> Record:
    """A rewrite against the record at its place: what is to be stored."""
    seq = rewrite.record.seq
    if known is None:
        raise MessageNotFoundError(f"there is no message at seq {seq}")
    if rewrite.expected not in (None, known.payload):
        raise ConflictError(f"the message at seq {seq} was changed since it was read: read it again")
    return rewrite.record._replace(created_at=rewrite.record.created_at or known.created_at)


def state_changes(write: Write, current: Mapping[str, StateEntry]) -> dict[str, StateEntry | None]:
    """What the write's state operations put in place of the current entries, all versions checked. None: deleted."""
    changes: dict[str, StateEntry | None] = {}
    for index, (key, form, value, expected) in enumerate(write.state):
        version = current[key].version if key in current else None
        if expected not in (None, version or ABSENT):
            raise state_conflict(key, version, expected)
        changes[key] = None if value is None else StateEntry(key, write.version(index), form, value)
    return changes


def state_conflict(key: str, version: str | None, expected: str | None) -> ConflictError:
    """A state key whose current version (None: absent) is not the expected one."""
    if version is None:
        reason = "is not there (any more): expected=ABSENT sets it where there is none"
    elif expected == ABSENT:
        reason = "is there already: read its entry, and give that version as expected"
    else:
        reason = "has another version, for it was set since it was read: read its entry again"
    return ConflictError(f"state key {key!r} {reason}", version=version)


def duplicate(record: Record, seq: int, mend: str = "") -> DuplicateIdError:
    """A message whose id another one has; `mend` is what else can be done about it."""
    return duplicates({str(record.id): seq}, mend)


def duplicates(seqs: Mapping[str, int], mend: str = "") -> DuplicateIdError:
    """Messages whose ids others have at these seqs."""
    id, seq = next(iter(seqs.items()))
    more = f", and {len(seqs) - 1} more of the ids are known" if len(seqs) > 1 else ""
    return DuplicateIdError(
        f"a message with the id {id!r} is stored at seq {seq} already{more}: give the new one another id{mend}",
        seqs=seqs,
    )


def check_new(write: Write, seqs: Mapping[str, int]) -> None:
    """A strict append against the seqs of those of its ids that the log knows, also of what was trimmed."""
    if write.on_conflict == "strict" and seqs:
        raise duplicates(seqs, " or none, or append with on_conflict='keep'")


def meet(write: Write, record: Record, known: Record | None, seq: int) -> Record | None:
    """What an append puts at `seq`, where `record`'s id is stored already; None: what is there stays.

    `known` is None where it was trimmed: there is nothing left to replace or to differ from.
    """
    if known is None or write.on_conflict == "keep" or known.same_content(record):
        return None
    if write.on_conflict == "error":
        raise duplicate(record, seq, ", or append with on_conflict='keep' or 'replace'")
    return record._replace(seq=seq, created_at=known.created_at)


def renewed(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    """The ttl and the instant of expiry after a write."""
    if not head.key.session:
        return None, None
    if expiry.ttl is None:
        return head.ttl, head.expires_at if head.ttl is None else now + head.ttl
    return (None, head.created_at + expiry.ttl) if expiry.fixed else (expiry.ttl, now + expiry.ttl)


def leased(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    """The fence and the lease after a lease operation."""
    lease = head.lease
    mine = lease is not None and lease.owner == change.owner
    if not change.ttl:
        return head.fence, None if mine else lease
    if lease and not mine and lease.until > now:
        left = lease.until - now
        raise LeaseHeldError(f"another holder has the lease of session {head.key.session!r} for {left:.1f} s more")
    return head.fence + (not mine), Lease(change.owner, now + change.ttl)


def merged(meta: Mapping[str, str], changes: Mapping[str, str | None] | None) -> Mapping[str, str]:
    """The metadata after a write."""
    return {name: value for name, value in {**meta, **changes}.items() if value is not None} if changes else meta


def listing_place(head: Head) -> tuple[float, str, str]:
    """Where a session stands in a listing: by its last write, newest first, then by its id and its scope."""
    return -head.updated_at, head.key.session, head.key.scope.address


def listing_cursor(head: Head) -> str:
    """The text that goes on behind a session."""
    return json.dumps(listing_place(head))


def listing_after(cursor: str) -> tuple[float, str, str]:
    """The place that a cursor means; a `ValueError` if it is none."""
    try:
        updated, session, address = json.loads(cursor)
        f"{session}{address}".encode()
        return float(updated), str(session), str(address)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{cursor!r} is no cursor of a listing: use the `next` of a page") from error
