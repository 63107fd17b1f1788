"""`AgentSession.state` as a value that chatkeep stores, and back.

An object that the framework's codecs know, its own `Message` or a type given to `register_state_type`, is stored as the
payload that its codec makes, in an envelope of exactly two members. Data that has the envelope's key is escaped::

    {"$agent_framework": "state", "v": {"type": "message", "role": "user", ...}}
    {"$agent_framework": "dict", "v": {...}}

So a dict that only looks like such a payload comes back as the dict that it was. The framework's own snapshot has no
such mark, and takes every object with a registered ``type`` for one of that type.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from agent_framework import AgentSession

from chatkeep import CorruptRecordError, SerializationError, SessionSerializer
from chatkeep.paths import Path, render

ENVELOPE = "$agent_framework"
_BUILT_IN = (str, int, float, list, tuple, Mapping)
"""What the serializer would take an instance of a subclass for."""
_IMPLICIT = "Implicit registration of Pydantic"
"""How the framework's warning begins that another process would not know a model's class."""
_UNSUPPORTED = "AgentSession state value at"
"""How its warning begins about a value that JSON has no word for; chatkeep's serializer has one, or refuses it."""
_TOO_DEEP = "nested more deeply than this thread's stack allows, or it contains itself; flatten it"


class StateWriter:
    """Makes values that a store's serializer takes of a session's state."""

    def __init__(self, serializer: SessionSerializer) -> None:
        self._serializer = serializer
        self._trusted: set[type] = set()

    def write(self, state: Mapping[str, Any], *, root: str = "$.state") -> dict[str, Any]:
        """`state`, which is not changed, with an envelope round every object of the framework's.

        What would not come back as what it is, is a SerializationError that names its place below `root`; the
        serializer finds the rest (NaN, keys that are no text, what is nested too deeply) when it gets the result.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _IMPLICIT, DeprecationWarning)
            warnings.filterwarnings("ignore", _UNSUPPORTED, RuntimeWarning)
            try:
                return self._members(state, root, None)
            except RecursionError:
                raise SerializationError(f"{root}: {_TOO_DEEP}", path=root) from None

    def _members(self, members: Mapping[Any, Any], root: str, path: Path) -> dict[Any, Any]:
        written = {key: self._value(item, root, (path, str(key))) for key, item in members.items()}
        return {ENVELOPE: "dict", "v": written} if ENVELOPE in members else written

    def _value(self, value: Any, root: str, path: Path) -> Any:
        kind = type(value)
        if kind in (str, int, float, bool, type(None)):
            return value
        if kind is dict:
            return self._members(value, root, path)
        if kind in (list, tuple):
            return kind(self._value(item, root, (path, place)) for place, item in enumerate(value))
        built_in = isinstance(value, _BUILT_IN)
        if not built_in and self._storable(value):
            return value
        payload = self._payload(value, render(root, path))
        if payload is not None:
            return {ENVELOPE: "state", "v": self._members(payload, root, path)}
        if isinstance(value, Mapping):
            return self._members(value, root, path)
        if isinstance(value, list):
            return self._value(list(value), root, path)
        if built_in:
            return value
        place = render(root, path)
        raise SerializationError(
            f"{place}: this {kind.__qualname__} would not come back as what it is; register its class where it is "
            f"defined: register_state_type({kind.__name__})",
            path=place,
        )

    def _storable(self, value: Any) -> bool:
        """Whether the serializer stores it without the framework: a time, bytes, a type that the store was told of."""
        try:
            self._serializer.dumps(value)
        except SerializationError:
            return False
        return True

    def _payload(self, value: Any, place: str) -> Mapping[str, Any] | None:
        """What the framework's codec makes of an object; None if the framework would not give the object back."""
        kind = type(value)
        payload = self._dumped(value, place)
        if payload is None or kind in self._trusted:
            return payload
        try:
            if type(_loaded(copy.deepcopy(payload), place)) is not kind:
                return None
        except CorruptRecordError:
            return None
        self._trusted.add(kind)
        return payload

    def _dumped(self, value: Any, place: str) -> Mapping[str, Any] | None:
        """What the framework's own snapshot holds for an object; None if that is no payload with a type."""
        session = AgentSession(session_id="-")
        session.state = {place: value}
        try:
            payload = session.to_dict()["state"][place]
        except DeprecationWarning:
            return None
        except RecursionError:
            raise
        except Exception as error:  # Whatever the type's own codec raises.
            raise SerializationError(
                f"{place}: the codec of {type(value).__qualname__} failed: {error!r}", path=place
            ) from error
        return payload if isinstance(payload, Mapping) and "type" in payload else None


def read(state: Mapping[str, Any], *, root: str = "$.state") -> dict[str, Any]:
    """The state that `StateWriter.write` made `state` of: new objects at each call.

    An envelope of no known form, or with an object whose type is not registered in this process, is a
    CorruptRecordError that names its place.
    """
    try:
        opened = _read(state, root, None)
    except RecursionError:
        raise CorruptRecordError(f"{root}: {_TOO_DEEP}") from None
    if not isinstance(opened, dict):
        raise CorruptRecordError(f"{root}: it must be an object, and is of type {type(opened).__name__}")
    return opened


def _read(value: Any, root: str, path: Path) -> Any:
    if isinstance(value, dict):
        if ENVELOPE in value:
            return _open(value, root, path)
        return {key: _read(item, root, (path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_read(item, root, (path, place)) for place, item in enumerate(value))
    return value


def _open(envelope: dict[str, Any], root: str, path: Path) -> Any:
    place = render(root, path)
    tag, content = envelope[ENVELOPE], envelope.get("v")
    if len(envelope) != 2 or tag not in ("dict", "state") or not isinstance(content, dict):
        raise CorruptRecordError(
            f"{place}: an object with the key {ENVELOPE!r} is not the envelope that is written here"
        )
    members = {key: _read(item, root, (path, key)) for key, item in content.items()}
    if tag == "dict":
        return members
    loaded = _loaded(members, place)
    if type(loaded) is dict:
        raise CorruptRecordError(
            f"{place} is of the type {members.get('type')!r}, which is not registered in this process: import the "
            "module that registers it with register_state_type before sessions are read"
        )
    return loaded


def _loaded(payload: Mapping[str, Any], place: str) -> Any:
    """What the framework makes of a payload: the object, or the dict where it knows no such type."""
    try:
        return AgentSession.from_dict({"session_id": "-", "state": {place: payload}}).state[place]
    except Exception as error:  # Whatever the type's own codec raises.
        raise CorruptRecordError(f"{place}: the codec of {payload.get('type')!r} failed: {error!r}") from error
