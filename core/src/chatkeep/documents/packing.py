"""Records and state entries as bytes, and back: the stored form of what documents hold.

Several rows at a time: the number of the form, the length of a JSON text, that text, and behind it the payloads. A row
is what a record or an entry says besides its payload, and at its end the payload's length, or where it lies instead.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic_core import from_json

from chatkeep.errors import StoreError, StoreFormatError
from chatkeep.records import Body as MessageBody
from chatkeep.records import Record, StateEntry

FORM = 1
"""The number of this stored form, in heads and in parts. A newer one is refused."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_BEGIN = struct.Struct(">BI")


class Body(NamedTuple):
    """Where a payload lies that is too large to stand beside its record: in that many parts, a text before it."""

    name: bytes
    parts: int
    text: int
    """The length of the record's `text`; -1 if it has none."""
    size: int


class DamagedError(StoreError):
    """A part in the database, or what a head holds packed, is not what was stored there."""


class ElsewhereError(Exception):
    """A payload lies elsewhere: `unpack_records` says where."""


class Stored(NamedTuple):
    """A record, whose `payload` and `text` are empty if they lie elsewhere."""

    record: Record
    body: Body | None = None


class Value(NamedTuple):
    """A state entry, whose `value` is empty if it lies elsewhere."""

    entry: StateEntry
    body: Body | None = None


class Ref(NamedTuple):
    """A leaf of a log, or a list of such, and what there is to know of it without reading it."""

    name: bytes
    level: int
    """0 is a leaf, which holds records; others hold refs."""
    first: int
    """The first visible seq. A leaf may hold older ones, which have been trimmed."""
    last: int
    size: int
    """How many visible records it holds."""
    start: int
    """The first seq that starts a turn; 0 if there is none."""
    turn: int
    """The last seq that starts a turn; 0 if there is none."""
    closed: float
    """When the last record was created."""
    ids: bool
    """Whether a record in it has an id."""
    bodies: bool
    """Whether the payload of a record in it lies elsewhere."""
    parts: int = 1


def check_form(number: object, what: str) -> None:
    """Refuse what a later version of chatkeep has stored."""
    if number != FORM:
        raise StoreFormatError(
            f"{what} was stored in form {number}, and this version of chatkeep knows form {FORM}: install a newer one"
        )


def _pack(rows: Sequence[Any], payloads: Iterable[bytes]) -> bytes:
    text = _encode(rows).encode("utf-8", "surrogatepass")
    return b"".join((_BEGIN.pack(FORM, len(text)), text, *payloads))


def _unpack(data: bytes) -> tuple[list[Any], int]:
    """The rows, and where the payloads begin."""
    try:
        form, length = _BEGIN.unpack_from(data)
    except struct.error as error:
        raise DamagedError("a part in the database is damaged: it is too short") from error
    check_form(form, "a part of a session")
    end = _BEGIN.size + length
    text = data[_BEGIN.size : end]
    try:
        return from_json(text), end
    except ValueError:  # lone surrogates, or damage
        pass
    try:
        return json.loads(text.decode("utf-8", "surrogatepass")), end
    except ValueError as error:
        raise DamagedError(f"a part in the database is damaged: {error}") from error


def _where(size: int, body: Body | None) -> Any:
    return size if body is None else [body.name.hex(), *body[1:]]


def _body(where: list[Any]) -> Body:
    name, parts, text, size = where
    return Body(bytes.fromhex(name), parts, text, size)


def pack_records(records: Iterable[Stored]) -> bytes:
    """Records in order of seq."""
    rows, payloads = [], []
    for (seq, id, role, starts_turn, form, created_at, text, payload), body in records:
        rows.append((seq, id, role, int(starts_turn), form, created_at, text, _where(len(payload), body)))
        payloads.append(payload)
    return _pack(rows, payloads)


def unpack_records(data: bytes, *, whole: bool = True) -> tuple[Stored, ...]:
    """What `pack_records` was given. Not `whole`: as far as that can be told, where payloads were cut."""
    rows, place = _unpack(data)
    found = []
    try:
        for seq, id, role, starts_turn, form, created_at, text, where in rows:
            body, size = (None, where) if type(where) is int else (_body(where), 0)
            payload = data[place : place + size]
            place += size
            found.append(Stored(Record(seq, id, role, starts_turn == 1, form, created_at, text, payload), body))
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a part in the database is damaged: {error}") from error
    if whole and place != len(data):
        raise DamagedError("a part in the database is damaged: its payloads have another length")
    return tuple(found)


def unpack_bodies(data: bytes) -> list[MessageBody]:
    """What the messages are made of; an `ElsewhereError` if not all of it is in `data`."""
    rows, place = _unpack(data)
    found = list[MessageBody]()
    try:
        for seq, id, _, _, form, _, _, where in rows:
            if type(where) is not int:
                raise ElsewhereError
            found.append((seq, id, form, data[place : place + where]))
            place += where
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a part in the database is damaged: {error}") from error
    if place != len(data):
        raise DamagedError("a part in the database is damaged: its payloads have another length")
    return found


unpack_entry = lru_cache(maxsize=1024)(unpack_records)
"""The same, for what a head holds: each append looks at much that the one before has looked at."""


def pack_state(values: Iterable[Value]) -> bytes:
    """State entries in the byte order of their keys."""
    rows, payloads = [], []
    for (key, version, form, value), body in values:
        rows.append((key, version, form, _where(len(value), body)))
        payloads.append(value)
    return _pack(rows, payloads)


def unpack_state(data: bytes) -> list[Value]:
    """What `pack_state` was given."""
    rows, place = _unpack(data)
    found = []
    try:
        for key, version, form, where in rows:
            body, size = (None, where) if type(where) is int else (_body(where), 0)
            found.append(Value(StateEntry(key, version, form, data[place : place + size]), body))
            place += size
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a part in the database is damaged: {error}") from error
    return found


def pack_refs(refs: Iterable[Ref]) -> bytes:
    """Refs in order of seq."""
    return _pack([plain_ref(ref) for ref in refs], ())


def unpack_refs(data: bytes) -> list[Ref]:
    """What `pack_refs` was given."""
    rows, _ = _unpack(data)
    try:
        return [make_ref(row) for row in rows]
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedError(f"a part in the database is damaged: {error}") from error


def plain_ref(ref: Ref) -> list[Any]:
    """A ref as a head holds it."""
    return [ref.name.hex(), *ref[1:]]


def make_ref(row: Sequence[Any]) -> Ref:
    """The ref that `plain_ref` was given."""
    return Ref(bytes.fromhex(row[0]), *row[1:])


class StateLeaf(NamedTuple):
    """A part that holds state entries."""

    key: str
    """The first key that belongs there."""
    name: bytes
    parts: int


def pack_directory(leaves: Iterable[StateLeaf]) -> bytes:
    """The leaves of a state in the order of their keys."""
    return _pack([(key, name.hex(), parts) for key, name, parts in leaves], ())


def unpack_directory(data: bytes) -> list[StateLeaf]:
    """What `pack_directory` was given."""
    rows, _ = _unpack(data)
    try:
        return [StateLeaf(key, bytes.fromhex(name), parts) for key, name, parts in rows]
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a part in the database is damaged: {error}") from error
