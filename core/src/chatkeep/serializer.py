"""The stored form of values: the one place that knows it.

A value is stored as JSON text in UTF-8; what JSON has no word for, in the reserved envelope of `chatkeep.envelope`.
Data of a caller's that has the envelope's key is escaped, so that it can never pass for one.

Subclasses of str, int, float, dict and list that are not registered are stored as their base value. An instance of a
registered type comes back as that type. Only types that the reader has registered are ever built: stored data names no
code to import.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, NoReturn
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from .envelope import COLLECTIONS, ENVELOPE, READ_ERRORS, READERS, WRITERS
from .errors import ConfigError, CorruptRecordError, SerializationError
from .paths import Path, render
from .registered import (
    RegisteredType,
    Registration,
    adapter,
    base_value,
    content,
    first_failure,
    first_line,
    full_name,
    has_fields,
    is_named_tuple,
    same,
    type_name,
)

__all__ = ["DEPTH_LIMIT", "FORMAT", "FORMAT_TAG", "RegisteredType", "SessionSerializer"]

FORMAT = 1
"""The version of the stored form that this module writes. It reads this one and every earlier one."""
FORMAT_TAG = f"json/{FORMAT}"
DEPTH_LIMIT = 500
"""How many levels of arrays and objects a stored value may have; a tuple or another envelope takes two."""

_MARKER = f'{ENVELOPE}"'.encode()  # Sought by rfind, which looks for the rare first character: twice as quick as `in`.
_ATOMS = frozenset({bool, type(None)})
_SCALARS = frozenset({str, bool, type(None), int, float})
_BUILT_IN = _SCALARS | WRITERS.keys() | {dict, list, tuple, set, frozenset}
_LARGEST_INT = 2**2048  # Python may be set to read no more than 640 digits; this has 617.
_QUICK_CONTAINERS = 100_000  # Also ends the quick look at a value that contains itself.
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SOUGHT_AT_ONCE = 64  # Values that are joined to be searched: never a copy of a whole history.
_BETWEEN_SURROGATES = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")


class SessionSerializer:
    """Turns values into versioned bytes and back.

    `types` are the types to register: a class, a pair of a name and a class, or a `RegisteredType`.
    """

    def __init__(self, types: Iterable[type | tuple[str, type] | RegisteredType] = ()) -> None:
        self._by_type: dict[type, Registration] = {}
        self._by_name: dict[str, Registration] = {}
        self._trusted: set[type] = set()
        for entry in types:
            if isinstance(entry, RegisteredType):
                self.register(entry.type, entry.name, dump=entry.dump, load=entry.load)
            elif isinstance(entry, tuple):
                self.register(entry[1], entry[0])
            else:
                self.register(entry)

    def register(self, type: Any, name: str | None = None, *, dump: Any = None, load: Any = None) -> None:
        """Let instances of the class `type` be stored and come back as what they were.

        Without `dump` and `load` the type is a pydantic model, a dataclass, an Enum or a NamedTuple. `name` stands in
        the stored data and is the class's ``__name__`` if not given: keep it when the class is renamed. A name that
        another type has, or a type that cannot be registered, is a ConfigError.
        """
        if not isinstance(type, _CLASS):
            raise ConfigError(f"types= takes classes, and {type!r} is none; give the class itself: types=[Booking]")
        if type in _BUILT_IN:
            raise ConfigError(f"{type.__name__} is stored as it is; only classes of your own can be registered")
        registration = Registration(type.__name__ if name is None else name, type, dump, load)
        holder = self._by_name.setdefault(registration.name, registration)
        if holder.type is not type:
            raise ConfigError(
                f"two types under the name {holder.name!r}: {full_name(holder.type)} and {full_name(type)}; "
                f"give one of them another: types=[('other-name', {type.__name__})]"
            )
        known = self._by_type.setdefault(type, registration)
        if known.name != registration.name:
            del self._by_name[registration.name]
            raise ConfigError(
                f"{full_name(type)} is registered as {known.name!r} already, "
                f"and {registration.name!r} would be a second name"
            )
        if known != registration:
            raise ConfigError(f"{full_name(type)} is registered already, with another dump= or load=")
        if dump is not None:
            self._trusted.add(type)

    # To bytes

    def dumps(self, value: Any, *, path: str = "$") -> bytes:
        """The stored form of `value`, which is not changed.

        What would not come back equal is a SerializationError that names the place below `path`: NaN and infinities,
        keys that are no text, types that are neither built in nor registered, more than DEPTH_LIMIT levels.
        """
        plain = _is_plain(value)
        encoded = value if plain else self._encode_all(value, path)
        try:
            return to_json(encoded)
        except ValueError:  # Lone surrogates, or more levels than pydantic_core writes.
            if plain:
                encoded = self._encode_all(value, path)
        try:
            if _SURROGATE_PAIR.search(json.dumps(encoded, ensure_ascii=False)):
                encoded = _split_surrogates(encoded, path)
            return json.dumps(encoded, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
        except RecursionError:
            raise _too_deep_for_stack(path) from None

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        """The tag of the stored form, ``json/1``, and the bytes."""
        return FORMAT_TAG, self.dumps(value)

    # From bytes

    def loads(self, data: bytes) -> Any:
        """The value that `dumps` turned into `data`: a new one at each call.

        Data that `dumps` cannot have written, or that holds a type which is not registered, is a CorruptRecordError.
        """
        try:
            value = from_json(data, allow_inf_nan=False)
        except ValueError:
            value = _parse_slowly(data)
        if data.rfind(_MARKER) < 0:
            return value
        try:
            return self._decode(value)
        except RecursionError:
            raise CorruptRecordError(_TOO_DEEP) from None

    def loads_many(self, datas: Sequence[bytes]) -> list[Any]:
        """``[self.loads(data) for data in datas]``, quicker where most of them are plain.

        The first one that cannot be read raises.
        """
        # Parsing them joined into one array is no quicker (measured), and needs proof that a damaged one cannot shift
        # its neighbours.
        if not _has_marker(datas):
            try:
                return [from_json(data, allow_inf_nan=False) for data in datas]
            except ValueError:
                pass  # Lone surrogates, depth, or damage: `loads` knows which.
        return [self.loads(data) for data in datas]

    def loads_typed(self, tag: str, data: bytes) -> Any:
        """The value behind what `dumps_typed` gave. An unknown tag, or a newer one, is a CorruptRecordError."""
        if tag == FORMAT_TAG:
            return self.loads(data)
        kind, _, version = tag.partition("/")
        if kind == "json" and version.isdecimal() and int(version) > FORMAT:
            raise CorruptRecordError(
                f"the stored form {tag!r} was written by a newer chatkeep, and this one reads {FORMAT_TAG!r}; "
                "upgrade chatkeep"
            )
        raise CorruptRecordError(f"unknown stored form {tag!r}; this chatkeep reads {FORMAT_TAG!r}")

    # One type, by pydantic

    def dump_as(self, type: Any, value: Any) -> Any:
        """`value` as the JSON-like value from which ``load_as(type, …)`` makes an equal one.

        `type` is whatever a pydantic TypeAdapter takes. A value that is not of that type, or that would not come back
        equal, is a SerializationError.
        """
        name = type_name(type)
        writer = adapter(type)
        try:
            dumped = writer.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings="error")
        except ValueError as error:
            # Its text quotes the value where the type is the trouble, and that may be a secret.
            wrong_type = "PydanticSerializationUnexpectedValue" in str(error)
            reason = "it, or a field of it, is not of the type that is announced" if wrong_type else first_line(error)
            raise SerializationError(f"$: this value cannot be stored as {name}: {reason}") from error
        loaded = self.load_as(type, dumped)
        if not same(value, loaded) and value != loaded:
            raise SerializationError(
                f"$: this value would not come back equal as {name}; annotate the fields with what they hold, or give "
                "the model a field_serializer that keeps it"
            )
        return dumped

    def load_as(self, type: Any, value: Any) -> Any:
        """The instance of `type` that `dump_as` turned into `value`, validated by pydantic as JSON.

        A value that does not fit is a SerializationError that names the place.
        """
        validator = adapter(type)
        try:
            # What is more than JSON, or than pydantic_core writes (lone surrogates, depth), is validated as it is.
            text = to_json(value) if _is_plain(value) else None
        except ValueError:
            text = None
        try:
            if text is None:
                return validator.validate_python(value, by_alias=False, by_name=True)
            return validator.validate_json(text, by_alias=False, by_name=True)
        except ValidationError as error:
            place, reason = first_failure(error)
            raise SerializationError(f"{place}: does not fit {type_name(type)}: {reason}", path=place) from error

    # The walk before writing

    def _encode_all(self, value: Any, path: str) -> Any:
        try:
            return self._encode(value, None, 0, False)
        except _RefusedError as refused:
            place = render(path, refused.path)
            raise SerializationError(f"{place}: {refused.reason}", path=place) from refused.__cause__
        except RecursionError:
            raise _too_deep_for_stack(path) from None

    def _encode(self, value: Any, path: Path, depth: int, inside: bool) -> Any:
        """`value` with everything special in envelopes. One frame a level: comprehensions would take a second one.

        With `inside` it belongs to a registered model or dataclass that will validate it when it is read: there a type
        that is not registered itself is written as its plain content.
        """
        kind = type(value)
        if kind is str or kind in _ATOMS:
            return value
        if kind not in _BUILT_IN:
            registration = self._by_type.get(kind)
            if registration is not None:
                return self._encode_registered(value, registration, path, depth, inside)
            value = _built_in_value(value, path, inside)
            kind = type(value)
        if kind is int:
            return value if -_LARGEST_INT < value < _LARGEST_INT else {ENVELOPE: "int", "v": hex(value)}
        if kind is float:
            if not math.isfinite(value):
                raise _RefusedError(path, f"{value!r} has no place in JSON; use None or a text")
            return value
        if kind in _SCALARS:
            return value
        if depth >= DEPTH_LIMIT:
            raise _RefusedError(
                path, f"nested more than {DEPTH_LIMIT} levels deep (or the value contains itself); flatten it"
            )
        if kind is dict:
            escaped = ENVELOPE in value
            below = depth + 2 if escaped else depth + 1
            members: dict[str, Any] = {}
            for key, item in value.items():
                members[_text_key(key, path)] = self._encode(item, (path, key), below, inside)
            return {ENVELOPE: "dict", "v": members} if escaped else members
        if kind is list:
            items = []
            for place, item in enumerate(value):
                items.append(self._encode(item, (path, place), depth + 1, inside))
            return items
        if kind is tuple:
            items = []
            for place, item in enumerate(value):
                items.append(self._encode(item, (path, place), depth + 2, inside))
            return {ENVELOPE: "tuple", "v": items}
        if kind is set or kind is frozenset:
            items = []
            for place, item in enumerate(value):
                items.append(self._encode(item, (path, place), depth + 2, inside))
            return {ENVELOPE: kind.__name__, "v": sorted(items, key=json.dumps)}
        tag, write = WRITERS[kind]
        try:
            return {ENVELOPE: tag, "v": write(value)}
        except ValueError as error:
            raise _RefusedError(path, str(error)) from error

    def _encode_registered(
        self, value: Any, registration: Registration, path: Path, depth: int, inside: bool
    ) -> dict[str, Any]:
        by_fields = registration.dump is None
        encoded = self._encode(registration.content(value), path, depth + 1, by_fields)
        if by_fields and not inside:
            # What was written without its type comes back only as far as the annotations of the fields say.
            try:
                returned = registration.loaded(self._decode(encoded))
            except (CorruptRecordError, ConfigError) as error:
                raise _RefusedError(path, f"this {registration.name} could not be read back: {error}") from error
            if not same(value, returned, self._trusted):
                raise _RefusedError(
                    path,
                    f"this {registration.name} would not come back equal; annotate its fields with what they hold, "
                    "register the types of the fields too, or register it with dump= and load=",
                )
        return {ENVELOPE: f"type:{registration.name}", "v": encoded}

    # The walk after reading

    def _decode(self, value: Any) -> Any:
        """`value` with every envelope opened. One frame a level, as in `_encode`."""
        kind = type(value)
        if kind is dict:
            if ENVELOPE in value:
                return self._open(value)
            members = {}
            for key, item in value.items():
                members[key] = self._decode(item)
            return members
        if kind is list:
            items = []
            for item in value:
                items.append(self._decode(item))  # noqa: PERF401
            return items
        return value

    def _open(self, envelope: dict[str, Any]) -> Any:
        tag = envelope[ENVELOPE]
        if not isinstance(tag, str) or len(envelope) != 2 or "v" not in envelope:
            raise CorruptRecordError(f"an object with the key {ENVELOPE!r} is not the envelope that chatkeep writes")
        content = envelope["v"]
        if tag == "dict" and isinstance(content, dict):
            members = {}
            for key, item in content.items():
                members[key] = self._decode(item)
            return members
        if tag.startswith("type:"):
            name = tag.removeprefix("type:")
            registration = self._by_name.get(name)
            if registration is None:
                raise CorruptRecordError(
                    f"holds a value of the type {name!r}, which is not registered here; "
                    f"register it: open_store(..., types=[({name!r}, TheClass)])"
                )
            return registration.loaded(self._decode(content))
        read = READERS.get(tag)
        if read is None:
            raise CorruptRecordError(f"unknown tag {_short(tag)} in an envelope; if a newer chatkeep wrote it, upgrade")
        try:
            return read(self._decode(content) if tag in COLLECTIONS else content)
        except CorruptRecordError:
            raise
        except READ_ERRORS as error:
            raise CorruptRecordError(f"the content of a {tag!r} envelope is damaged: {error}") from error


class _RefusedError(Exception):
    """What is at `path` cannot be stored."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


_CLASS = type  # `type` is the name of a parameter above.
_TOO_DEEP = f"nested more than {DEPTH_LIMIT} levels deep, or more than this thread's stack allows"


def _is_plain(value: Any) -> bool:
    """Whether JSON says `value` exactly, save for lone surrogates and depth; False also where that is long to see."""
    kind = type(value)
    todo = [value] if kind is dict or kind is list else [[value]]
    for item in islice(todo, _QUICK_CONTAINERS):  # `todo` grows meanwhile.
        # The two loops differ in the keys alone. They are the cost of every message: no call in them.
        if type(item) is dict:
            if ENVELOPE in item:
                return False
            for key, member in item.items():
                if type(key) is not str:
                    return False
                kind = type(member)
                if kind is str or kind in _ATOMS:
                    continue
                if kind is dict or kind is list:
                    todo.append(member)
                elif kind is int:
                    if not -_LARGEST_INT < member < _LARGEST_INT:
                        return False
                elif kind is not float or member * 0.0 != 0.0:
                    return False
        else:
            for member in item:
                kind = type(member)
                if kind is str or kind in _ATOMS:
                    continue
                if kind is dict or kind is list:
                    todo.append(member)
                elif kind is int:
                    if not -_LARGEST_INT < member < _LARGEST_INT:
                        return False
                elif kind is not float or member * 0.0 != 0.0:
                    return False
    return len(todo) <= _QUICK_CONTAINERS


def _has_marker(datas: Sequence[bytes]) -> bool:
    """Whether an envelope may be in one of them. One that stands across two of them is none, and costs time alone."""
    for begin in range(0, len(datas), _SOUGHT_AT_ONCE):
        if b"".join(datas[begin : begin + _SOUGHT_AT_ONCE]).rfind(_MARKER) >= 0:
            return True
    return False


def _text_key(key: Any, path: Path) -> str:
    if type(key) is str:
        return key
    if isinstance(key, str):
        return str.__str__(key)
    raise _RefusedError(
        path,
        f"the key {_short(key)} is of type {type(key).__name__}, and keys are texts; use str(key), or a list of pairs",
    )


def _built_in_value(value: Any, path: Path, inside: bool) -> Any:
    """What stands for a value whose type is neither built in nor registered."""
    kind = type(value)
    if inside and has_fields(kind):
        held = content(value)
        return held if type(held) in _BUILT_IN else _built_in_value(held, path, inside)
    base = base_value(value)
    if base is not None:
        return base
    if inside:
        try:
            return to_jsonable_python(value)
        except PydanticSerializationError as error:
            raise _RefusedError(path, f"{full_name(kind)} cannot be stored as it is; {_mend(value)}") from error
    raise _RefusedError(path, f"{full_name(kind)} cannot be stored as it is; {_mend(value)}")


def _mend(value: Any) -> str:
    kind = type(value)
    if is_named_tuple(kind):
        return f"use tuple(value), or register it: open_store(..., types=[{kind.__name__}])"
    if has_fields(kind):
        return f"register it: open_store(..., types=[{kind.__name__}]), or pass type={kind.__name__} to state.set"
    if isinstance(value, bytearray | memoryview):
        return "use bytes(value)"
    if isinstance(value, date | time | timedelta | Decimal | UUID | tuple | set | frozenset | bytes):
        return "use the built-in type that it extends, or register it with dump= and load="
    name = kind.__name__
    return f"use JSON values, or register it: open_store(..., types=[RegisteredType({name!r}, {name}, dump=…, load=…)])"


def _parse_slowly(data: bytes) -> Any:
    """JSON that pydantic_core does not read: lone surrogates, and more than 200 levels."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise CorruptRecordError(_TOO_DEEP) from None
    except ValueError as error:
        raise CorruptRecordError(f"not JSON in UTF-8: {error}") from error


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _split_surrogates(encoded: Any, path: str) -> Any:
    """Texts that JSON would change, in pieces: a pair of lone surrogates would come back as one character."""
    if isinstance(encoded, str):
        if _SURROGATE_PAIR.search(encoded) is None:
            return encoded
        return {ENVELOPE: "str", "v": _BETWEEN_SURROGATES.split(encoded)}
    if isinstance(encoded, list):
        items = []
        for item in encoded:
            items.append(_split_surrogates(item, path))  # noqa: PERF401
        return items
    if isinstance(encoded, dict):
        members = {}
        for key, item in encoded.items():
            if _SURROGATE_PAIR.search(key):
                raise SerializationError(
                    f"{path}: the key {_short(key)} holds two surrogates in a row, which JSON would join; "
                    "join them first: key.encode('utf-16', 'surrogatepass').decode('utf-16')",
                    path=path,
                )
            members[key] = _split_surrogates(item, path)
        return members
    return encoded


def _too_deep_for_stack(path: str) -> SerializationError:
    return SerializationError(f"{path}: {_TOO_DEEP}; flatten it", path=path)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
