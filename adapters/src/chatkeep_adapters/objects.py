"""Messages that are JSON objects of a framework's own, of any shape: they come back equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from chatkeep import CorruptRecordError, Encoded, OpenAIChatCodec, SerializationError
from chatkeep.codecs import Links, refusal
from chatkeep.log import ROLES
from chatkeep.paths import Path, render
from chatkeep.records import Body, Record

_CHAT = OpenAIChatCodec()
"""What role, text, calls and results of a message are: other services' have the same members and parts."""


class ObjectCodec:
    """For dicts that hold JSON. A subclass gives its name and formats, and says where in a dict the id is."""

    name: str
    version = 1
    accepts: frozenset[str]
    id_member: ClassVar[str]
    """The member that names a message: it is stored once."""
    kept: ClassVar[Sequence[str]]
    """The members that a redaction leaves as they are."""

    def message(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """What was said, with its role and content, as the member ``message`` holds it; None if nothing was."""
        message = data.get("message")
        return message if isinstance(message, dict) else None

    def id(self, data: dict[str, Any]) -> str | None:
        """The id, if there is one."""
        value = data.get(self.id_member)
        return value if isinstance(value, str) and value else None

    def encode(self, message: dict[str, Any]) -> Encoded:
        check_json(message)
        role, starts_turn, text = "system", False, None
        if said := self.message(message):
            with suppress(SerializationError):  # of a shape that nobody here knows: it is kept all the same
                encoded = _CHAT.encode(said)
                if encoded.role in ROLES:
                    role, starts_turn, text = encoded.role, encoded.starts_turn, encoded.text
        return Encoded(role, self.id(message), starts_turn, text, message)

    def decode(self, data: Any, record: Record) -> dict[str, Any]:
        if record.format not in self.accepts:
            raise CorruptRecordError(f"the message at seq {record.seq} {refusal(self, record.format)}", record=record)
        if not isinstance(data, dict):
            raise CorruptRecordError(f"the message at seq {record.seq} is no object", record=record)
        return data if record.id is None else {self.id_member: record.id, **data}

    def decode_many(self, datas: Sequence[Any], bodies: Sequence[Body]) -> list[dict[str, Any]]:
        """As `decode`, in one loop."""
        name = self.id_member
        return [
            data
            if type(data) is dict and (id is None or name in data)
            else self.decode(data, Record(seq, id, "", False, form, None, None, payload))
            for data, (seq, id, form, payload) in zip(datas, bodies, strict=True)
        ]

    def links(self, message: dict[str, Any]) -> Links:
        return _CHAT.links(self.message(message) or {})

    def blank(self, message: dict[str, Any], text: str) -> dict[str, Any]:
        blanked = {name: message[name] for name in (self.id_member, *self.kept) if name in message}
        if said := self.message(message):
            blanked["message"] = _CHAT.blank(said, text)
        return blanked


def check_json(value: Any, root: str = "$") -> None:
    """Refuse what is no JSON object, or holds what JSON has no word for, or would give back as something else.

    A `SerializationError` names the place below `root`. chatkeep's own serializer takes more, such as a tuple.
    """
    if not isinstance(value, dict):
        raise _refusal(f"a dict is needed, and this is of type {type(value).__qualname__}", root, None)
    try:
        _check(value, root, None)
    except RecursionError:
        raise _refusal("nested more deeply than the stack allows, or it contains itself", root, None) from None


def _check(value: Any, root: str, path: Path) -> None:
    """One frame a level."""
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise _refusal(
                    f"the key {key!r} is of type {type(key).__name__}, and JSON's keys are texts", root, path
                )
            if type(member) is not str:
                _check(member, root, (path, key))
    elif isinstance(value, list):
        for place, member in enumerate(value):
            if type(member) is not str:
                _check(member, root, (path, place))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refusal(f"{value!r} has no place in JSON; use None or a text", root, path)
    elif not (value is None or isinstance(value, str | int)):
        raise _refusal(f"{type(value).__qualname__} is no JSON; use texts, numbers, lists and dicts", root, path)


def _refusal(reason: str, root: str, path: Path) -> SerializationError:
    place = render(root, path)
    return SerializationError(f"{place}: {reason}", path=place)
