"""What a head decides, as plain functions: backends that hold the head in their hand share them."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import ConflictError, DuplicateIdError, FencedError, LeaseHeldError, MessageNotFoundError
from .records import ABSENT, Cursor, Expiry, Head, Keep, Lease, LeaseOp, LogHead, Record, Replace, Rewrite, Write


def check_life(write: Write, head: Head | None, session: str) -> None:
    """The write's `life` and `fence` against the live head."""
    if write.life not in (None, head.life if head else ABSENT):
        raise ConflictError(
            f"session {session!r} has ended or begun anew since it was read"
            if write.life
            else f"session {session!r} exists already"
        )
    if head and write.fence is not None and write.fence < head.fence:
        raise FencedError(f"the lease of session {session!r} has passed to a newer holder")


def check_tail(write: Write, life: str, log: LogHead) -> None:
    """The write's `expected_tail` against the log."""
    if write.expected_tail not in (None, log.tail):
        current = Cursor(life, log.tail, log.rewrite)
        raise ConflictError(f"the log's tail is {log.tail}, not {write.expected_tail}", tail=current)


def check_replace(replace: Replace, life: str, log: LogHead, places: int) -> None:
    """A replacement against the log and the number of places at or below `upto`."""
    if replace.expected_rewrite not in (None, log.rewrite):
        current = Cursor(life, log.tail, log.rewrite)
        raise ConflictError("the log's beginning was replaced since it was read: read it again", tail=current)
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
        raise ConflictError(f"the message at seq {seq} was changed since it was read")
    return rewrite.record._replace(created_at=rewrite.record.created_at or known.created_at)


def check_version(key: str, expected: str | None, current: str | None) -> None:
    """A state operation's `expected` version against the current one."""
    if expected not in (None, current or ABSENT):
        raise ConflictError(f"state key {key!r} has changed since it was read", version=current)


def duplicate(record: Record, seq: int) -> DuplicateIdError:
    return DuplicateIdError(f"a message with id {record.id!r} is stored at seq {seq} already")


def renewed(head: Head, expiry: Expiry, now: float) -> tuple[float | None, float | None]:
    """The ttl and the instant of expiry after a write."""
    if not head.key.session:
        return None, None
    if expiry.ttl is None:
        return head.ttl, head.expires_at if head.ttl is None else now + head.ttl
    return (None, head.created_at + expiry.ttl) if expiry.fixed else (expiry.ttl, now + expiry.ttl)


def leased(head: Head, change: LeaseOp, now: float) -> tuple[int, Lease | None]:
    """The fence and the lease after a lease operation."""
    held = head.lease if head.lease and head.lease.until > now else None
    mine = held is not None and held.owner == change.owner
    if not change.ttl:
        return head.fence, None if mine else held
    if held and not mine:
        left = held.until - now
        raise LeaseHeldError(f"another holder has the lease of session {head.key.session!r} for {left:.1f} s more")
    return head.fence + (not mine), Lease(change.owner, now + change.ttl)


def merged(meta: Mapping[str, str], changes: Mapping[str, str | None] | None) -> Mapping[str, str]:
    """The metadata after a write."""
    return {name: value for name, value in {**meta, **changes}.items() if value is not None} if changes else meta
