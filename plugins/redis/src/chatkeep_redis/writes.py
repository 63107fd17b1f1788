"""A write as scripts/commit.lua takes it, and what the script answers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from struct import Struct
from typing import Any

from chatkeep import heads
from chatkeep.errors import ConflictError, StoreError
from chatkeep.records import ABSENT, Head, Key, Lease, LogHead, Outcome, Record, StateOp, Write

from .failures import unknown
from .keys import SessionKeys
from .stored import LARGEST, SECOND, damaged, microseconds, newer, record_value, state_value, taken, text_of

Argument = bytes | str | int | float
Reply = list[Any]

_DONE = Struct(">8sQQQQIIIB")
MAY_BEGIN = 3
"""Which argument says whether the write may begin a life."""
REPEATED = 13
"""Which argument says how many microseconds ago the write was sent first, if nobody knows what became of that."""


class AbsentError(Exception):
    """There is no such session, and the write may not begin its life yet: it is not in the catalogue."""


def begins_none(write: Write) -> bool:
    """Whether the write never begins a life."""
    return write.must_exist or write.delete


def arguments(keys: SessionKeys, key: Key, write: Write, memory: int) -> list[Argument]:
    """The script's arguments, in its order. For `memory` milliseconds it remembers its answer."""
    expiry = write.expiry
    flags = (
        ("s" if key.session else "")
        + ("m" if begins_none(write) else "")
        + ("b" if write.batch else "")
        + ("f" if expiry.fixed else "")
        + ("t" if write.is_touch and not write.delete else "")
    )
    found: list[Argument] = [
        write.token,
        keys.name,
        secrets.token_bytes(8),
        b"",
        b"",
        write.log.encode(),
        b"" if write.life is None else b"=" + _life(write.life),
        flags,
        b"" if expiry.ttl is None else microseconds(expiry.ttl),
        b"" if write.expected_tail is None else write.expected_tail,
        b"" if write.expected_rewrite is None else write.expected_rewrite,
        b"" if write.fence is None else write.fence,
        memory,
        b"",
    ]
    found[4] = _kind(write, found)
    if write.meta:
        found.append(len(write.meta))
        for name, value in write.meta.items():
            found += (name.encode(), b"-" if value is None else b"=" + value.encode())
    else:
        found.append(0)
    return found


def _life(life: str) -> bytes:
    """As it is kept; what is no life of ours is equal to none."""
    try:
        packed = bytes.fromhex(life)
    except ValueError:
        return b"none of ours"
    return packed if life in (ABSENT, packed.hex()) else b"none of ours"


def _kind(write: Write, found: list[Argument]) -> str:
    """The one kind of change that the write asks for; its arguments are added to those that were `found`."""
    if write.delete:
        return "delete"
    if write.append:
        keep = write.keep
        found += (
            write.on_conflict,
            b"" if keep.max_messages is None else keep.max_messages,
            b"" if keep.max_age is None else repr(keep.max_age),
            keep.remember_ids,
        )
        return _with_records("append", write.append, found)
    if write.truncate_after is not None:
        found.append(min(write.truncate_after, LARGEST))
        return "truncate"
    if write.replace:
        found.append(b"" if write.replace.upto is None else min(write.replace.upto, LARGEST))
        return _with_records("replace", write.replace.records, found)
    if write.rewrite:
        record, expected = write.rewrite
        found += (min(record.seq, LARGEST), b"" if expected is None else b"=" + expected, record_value(record))
        return "rewrite"
    if write.state:
        found.append(len(write.state))
        for index, operation in enumerate(write.state):
            found += _operation(write, index, operation)
        return "state"
    if write.lease:
        found += (write.lease.owner.encode(), microseconds(write.lease.ttl))
        return "lease"
    return "none"


def _with_records(kind: str, records: Sequence[Record], found: list[Argument]) -> str:
    found.append(len(records))
    found += map(record_value, records)
    return kind


def _operation(write: Write, index: int, operation: StateOp) -> tuple[Argument, ...]:
    key, form, value, expected = operation
    return (
        key.encode(),
        b"" if expected is None else b"=" + expected.encode(),
        write.version(index),
        b"" if value is None else state_value(form, value),
    )


# Answers


def has_written(reply: bytes | Reply) -> bool:
    """Whether the script has done the write, now or before. Else it has only looked."""
    return isinstance(reply, bytes) or reply[0] == b"gone"


def outcome(key: Key, write: Write, reply: bytes | Reply) -> tuple[Outcome, bool]:
    """What the write did, and whether it began a life; or the error that it met. `AbsentError`: see there."""
    if isinstance(reply, bytes):
        return _done(write, reply)
    match reply[0]:
        case b"gone":
            return Outcome(reply[1].hex()), False
        case b"none":
            return Outcome(ABSENT), False
        case b"absent":
            raise AbsentError
        case b"layout":
            raise newer(reply[1])
        case b"taken":
            raise taken(key)
        case b"damaged":
            raise damaged(key)
        case b"evicted":
            raise StoreError(
                f"{heads.place(key, write.log)}: its messages are gone from the server, and nothing was written. Does "
                "the server evict keys? Set its maxmemory-policy to noeviction, and restore a backup, or delete the "
                "session"
            )
        case b"unknown":
            raise unknown(f"{heads.place(key, write.log)}: the answer was lost, and too many writes came since")
        case _:
            raise _refused(key, write, reply[1:])


def _done(write: Write, reply: bytes) -> tuple[Outcome, bool]:
    life, tail, last, size, rewrite, added, removed, fence, flags = _DONE.unpack_from(reply)
    rest = reply[_DONE.size :]
    seqs: Sequence[int] = ()
    if flags & 2:
        first = int.from_bytes(rest, "big")
        seqs = range(first, first + len(write.append))
    elif rest:
        start, dash, end = rest.partition(b"-")
        seqs = range(int(start), int(end) + 1) if dash else [*map(int, rest.split(b","))]
    log = LogHead(tail, last, size, rewrite)
    return Outcome(life.hex(), log, seqs, added, removed, _versions(write), fence), flags & 1 == 1


def _versions(write: Write) -> Sequence[str | None]:
    """One for each key, as the operations leave it."""
    if not write.state:
        return ()
    versions: dict[str, str | None] = {}
    for index, operation in enumerate(write.state):
        versions[operation.key] = None if operation.value is None else write.version(index)
    return [*versions.values()]


def _refused(key: Key, write: Write, reply: Reply) -> Exception:
    """What the script met, in the words of whoever holds the head in their hand."""
    life, log_exists, tail, last, size, rewrite, fence, what, *rest = reply
    log = LogHead(tail, last, size, rewrite)
    head = Head(key, life.hex(), 0.0, 0.0, None, None, {}, {}, fence) if life else None
    try:
        match what:
            case b"head":
                heads.check_life(write, head, key.session, log if log_exists else None)
                heads.check_tail(write, life.hex(), log)
            case b"strict":
                known = {str(write.append[at - 1].id): seq for at, seq in zip(rest[::2], rest[1::2], strict=True)}
                heads.check_new(write, known)
            case b"duplicate":
                _check_duplicate(write, *rest)
            case b"replace" if write.replace:
                heads.check_replace(write.replace, log, *rest)
            case b"rewrite" if write.rewrite:
                other = (write.rewrite.expected or b"") + b"\0"
                heads.check_rewrite(write.rewrite, write.rewrite.record._replace(payload=other) if rest[0] else None)
            case b"state":
                operation, version = write.state[rest[0] - 1], text_of(rest[1])
                raise heads.state_conflict(operation.key, version or None, operation.expected or "")
            case b"lease" if head and write.lease:
                ends, now = rest
                held = head._replace(lease=Lease(write.lease.owner + " ", ends / SECOND))
                heads.leased(held, write.lease, now / SECOND)
    except (ConflictError, LookupError, ValueError) as error:
        return error
    return StoreError(
        f"{heads.place(key, write.log)}: the script commit refused a write without a reason that is known"
    )


def _check_duplicate(write: Write, number: int, seq: int) -> None:
    if write.rewrite:
        raise heads.duplicate(write.rewrite.record, seq)
    if write.replace:
        raise heads.duplicate(write.replace.records[number - 1], seq)
    raise heads.duplicate(write.append[number - 1], seq, ", or append with on_conflict='keep' or 'replace'")
