"""The reserved envelope: what JSON has no word for, as an object of exactly two members.

::

    {"$chatkeep": "<tag>", "v": ...}

========================  ==================================================================================
tag                       ``v``
========================  ==================================================================================
``bytes``                 base64 text
``datetime`` ``time``     ISO 8601 text; with a fold or a named time zone
                          ``{"at": text, "fold": 0, "zone": "Europe/Oslo"}``
``date``                  ISO 8601 text
``timedelta``             ``[days, seconds, microseconds]``
``decimal`` ``uuid``      text
``int``                   hexadecimal text of an integer above 2048 bits, which JSON parsers refuse
``tuple``                 the members
``set`` ``frozenset``     the members, ordered by their stored form
``str``                   pieces of a text, cut between two lone surrogates that JSON would join into one character
``dict``                  the members of an object that itself has the key ``$chatkeep``
``type:<name>``           what a registered type made of its value
========================  ==================================================================================

A time zone that the reader's machine does not know comes back as its fixed offset: the same instant.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

ENVELOPE = "$chatkeep"

_Moment = TypeVar("_Moment", datetime, time)


def _write_moment(value: datetime | time) -> Any:
    zone = value.tzinfo.key if type(value.tzinfo) is ZoneInfo else None
    offset = value.utcoffset()
    if zone is None and value.tzinfo is not None and offset is None:
        raise ValueError(f"the time zone {value.tzinfo!r} gives no offset; use datetime.timezone or zoneinfo.ZoneInfo")
    if offset and abs(offset) < timedelta(seconds=1):  # Python reads it as UTC.
        raise ValueError(f"the time zone {value.tzinfo!r} is less than a second off UTC; use datetime.UTC")
    if zone is None and not value.fold:
        return value.isoformat()
    return {"at": value.isoformat(), "fold": value.fold, "zone": zone}


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value!r} is no number; use None or a text")
    return str(value)


WRITERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode("ascii")),
    datetime: ("datetime", _write_moment),
    date: ("date", date.isoformat),
    time: ("time", _write_moment),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("decimal", _write_decimal),
    UUID: ("uuid", str),
}
"""By exact type: the tag, and what makes ``v``; a ValueError says why a value cannot be stored."""


def _read_moment(kind: type[_Moment], content: Any) -> _Moment:
    if isinstance(content, str):
        return kind.fromisoformat(content)
    moment = kind.fromisoformat(content["at"]).replace(fold=content["fold"])
    if content["zone"] is None:
        return moment
    try:
        return moment.replace(tzinfo=ZoneInfo(content["zone"]))
    except ZoneInfoNotFoundError:
        return moment


def _read_timedelta(content: Any) -> timedelta:
    days, seconds, microseconds = content
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _read_text(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError(f"it must be a text, not of type {type(content).__name__}")
    return content


def _read_list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError(f"it must be a list, not of type {type(content).__name__}")
    return content


READERS: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda content: base64.b64decode(_read_text(content), validate=True),
    "datetime": functools.partial(_read_moment, datetime),
    "date": date.fromisoformat,
    "time": functools.partial(_read_moment, time),
    "timedelta": _read_timedelta,
    "decimal": lambda content: Decimal(_read_text(content)),
    "uuid": lambda content: UUID(_read_text(content)),
    "int": lambda content: int(_read_text(content), 16),
    "str": lambda content: "".join(_read_list(content)),
    "tuple": lambda content: tuple(_read_list(content)),
    "set": lambda content: set(_read_list(content)),
    "frozenset": lambda content: frozenset(_read_list(content)),
}
"""By tag: what makes the value of ``v``. Damaged content ends as one of `READ_ERRORS`."""

READ_ERRORS = (ValueError, TypeError, KeyError, ArithmeticError)
COLLECTIONS = frozenset({"tuple", "set", "frozenset"})
"""The tags whose members may hold envelopes themselves."""
