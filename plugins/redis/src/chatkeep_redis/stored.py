"""The stored form: what scripts/commit.lua keeps, as records, heads and state entries, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct, error
from typing import Any

from chatkeep.errors import CorruptRecordError, StoreError, StoreFormatError
from chatkeep.records import Body, Head, Key, Lease, LogHead, Record, StateEntry

LAYOUT = b"1"
"""The version of the stored form."""
SECOND = 1_000_000
"""Times are kept in microseconds."""
LARGEST = 2**52
"""Larger numbers mean the same: nothing is there."""

_HEAD = Struct(">c8sQQQQII")
_LOG = Struct(">QQQQ")
_RECORD = Struct(">dBHHHI")
_MEMBER = Struct(">QdBHHHI")
"""A seq and the beginning of its record."""
_FORMATS = {b"chat/1": "chat/1"}
"""The usual one, which need not be decoded."""
DAMAGED = "damaged"
"""The format of a record whose lengths do not add up; its payload is all that is kept of it."""
_SEQ = Struct(">Q")
_NO_TEXT = 0xFFFFFFFF
_AFTER_ALL = b"\xff" * 8

text_of: Callable[[bytes], str] = partial(str, encoding="utf-8", errors="replace")
"""What is damaged harms itself alone."""


def microseconds(seconds: float) -> int:
    """A duration, never shorter than it is."""
    whole = int(seconds * SECOND)
    return whole if whole >= seconds * SECOND else whole + 1


# Names in the sorted set of a session


def log_name(log: str) -> bytes:
    """A log's name in front of others: no name begins with another's."""
    name = log.encode()
    return len(name).to_bytes(2, "big") + name


def bounds(log: str, after: int | None, before: int | None) -> tuple[int, bytes, bytes]:
    """What ZRANGEBYLEX takes for the records between two seqs, both exclusive; and where in a name the seq stands."""
    prefix = b"r" + log_name(log)
    lower = _SEQ.pack(min(max(after or 0, 0), LARGEST) + 1)
    upper = _AFTER_ALL if before is None else _SEQ.pack(min(max(before, 0), LARGEST))
    return len(prefix), b"[" + prefix + lower, b"(" + prefix + upper


def state_bounds(prefix: str, after: str | None) -> tuple[bytes, bytes]:
    """What ZRANGEBYLEX takes for the state keys with a prefix, behind a key."""
    begins = prefix.encode()
    lower = b"[k" + begins
    if after is not None and after.encode() >= begins:
        lower = b"(k" + after.encode()
    return lower, b"(k" + begins + b"\xff"  # which UTF-8 has nowhere


# Records


def record_value(record: Record) -> bytes:
    """What is kept of a record, but for its seq."""
    id = record.id.encode() if record.id else b""
    role, form = record.role.encode(), record.format.encode()
    text = b"" if record.text is None else record.text.encode()
    header = _RECORD.pack(
        record.created_at or 0.0,
        record.starts_turn,
        len(id),
        len(role),
        len(form),
        _NO_TEXT if record.text is None else len(text),
    )
    return b"".join((header, id, text, role, form, record.payload))


def record_of(member: bytes, start: int) -> Record:
    """The record of a member whose seq begins at `start`."""
    try:
        created, turn, id, role, form, text = _RECORD.unpack_from(member, start + 8)
    except error:
        return _damaged(member, start)
    (seq,) = _SEQ.unpack_from(member, start)
    at = start + 8 + _RECORD.size
    behind_id = at + id
    behind_text = behind_id + (0 if text == _NO_TEXT else text)
    behind_role = behind_text + role
    behind_form = behind_role + form
    if behind_form > len(member):
        return _damaged(member, start)
    return Record(
        seq,
        text_of(member[at:behind_id]) if id else None,
        text_of(member[behind_text:behind_role]),
        turn == 1,
        text_of(member[behind_role:behind_form]),
        created,
        None if text == _NO_TEXT else text_of(member[behind_id:behind_text]),
        member[behind_form:],
    )


def _damaged(member: bytes, start: int) -> Record:
    seq = int.from_bytes(member[start : start + 8].ljust(8, b"\0"), "big")
    return Record(seq, None, "", False, DAMAGED, 0.0, None, member[start + 8 :])


def bodies_of(members: Iterable[bytes], start: int) -> list[Body]:
    """What messages are made of, of the same members; one loop, since a long history is read by it."""
    unpack, at, known, bodies = _MEMBER.unpack_from, start + _MEMBER.size, _FORMATS, list[Body]()
    for member in members:
        try:
            seq, _, _, id, role, form, text = unpack(member, start)
        except error:
            id, role, form, text = 0, 0, len(member), 0
        begins = at + id + role + (text if text != _NO_TEXT else 0)
        ends = begins + form
        if ends > len(member):
            broken = _damaged(member, start)
            bodies.append((broken.seq, None, DAMAGED, broken.payload))
            continue
        name = member[begins:ends]
        bodies.append(
            (seq, text_of(member[at : at + id]) if id else None, known.get(name) or text_of(name), member[ends:])
        )
    return bodies


# Heads


def check_layout(head: bytes) -> None:
    """Refuse what a later version has written."""
    if head[:1] != LAYOUT:
        raise newer(head[:1])


def newer(layout: bytes) -> StoreFormatError:
    return StoreFormatError(
        f"the session has stored format {text_of(layout)}, and this version of chatkeep knows {text_of(LAYOUT)}: "
        "upgrade chatkeep"
    )


def taken(key: Key) -> StoreError:
    return StoreError(f"the keys of session {key.session!r} are another session's: choose another id")


def damaged(key: Key) -> CorruptRecordError:
    return CorruptRecordError(
        f"the head of session {key.session!r} in {key.scope.address} is damaged: restore a backup, or erase its scope"
    )


def life_of(head: bytes) -> str:
    check_layout(head)
    return head[1:9].hex()


def log_of(fields: bytes) -> LogHead:
    return LogHead(*_LOG.unpack_from(fields))


def flat(fields: Any) -> Sequence[bytes]:
    """Fields and values one behind the other, also where the protocol has them as a mapping."""
    return [part for pair in fields.items() for part in pair] if isinstance(fields, dict) else fields


def head_of(key: Key, name: bytes, fields: Sequence[bytes]) -> Head | None:
    """The head from the fields and values of its hash; None if there are none, a CorruptRecordError if none is made."""
    try:
        return _head_of(key, name, fields) if fields else None
    except error as broken:
        raise damaged(key) from broken


def _head_of(key: Key, name: bytes, fields: Sequence[bytes]) -> Head:
    packed, lease = b"", None
    meta: dict[str, str] = {}
    logs: dict[str, LogHead] = {}
    pairs = iter(fields)
    for field, value in zip(pairs, pairs, strict=True):
        kind = field[:1]
        if field == b"h":
            packed = value
        elif kind == b"L":
            logs[text_of(field[1:])] = log_of(value)
        elif kind == b"M":
            meta[text_of(field[1:])] = text_of(value)
        elif field == b"l":
            lease = Lease(text_of(value[8:]), _SEQ.unpack_from(value)[0] / SECOND)
        elif value != name:
            raise taken(key)
    if packed:
        check_layout(packed)
    _, life, created, updated, expires, ttl, fence, _ = _HEAD.unpack(packed)
    return Head(
        key,
        life.hex(),
        created / SECOND,
        updated / SECOND,
        expires / SECOND if expires else None,
        ttl / SECOND if ttl else None,
        meta,
        logs,
        fence,
        lease,
    )


# State


def state_value(form: str, value: bytes) -> bytes:
    name = form.encode()
    return len(name).to_bytes(2, "big") + name + value


def state_entries(fields: Iterable[bytes]) -> list[StateEntry]:
    """Entries from keys, versions and values, one behind the other."""
    parts = iter(fields)
    entries: list[Any] = []
    for key, version, value in zip(parts, parts, parts, strict=True):
        end = 2 + int.from_bytes(value[:2], "big")
        entries.append(StateEntry(text_of(key), text_of(version), text_of(value[2:end]), value[end:]))
    return entries
