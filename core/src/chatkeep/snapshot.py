"""A session without its messages, as one value: to keep in a file, to send, to restore elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from .errors import CorruptRecordError

if TYPE_CHECKING:
    from .serializer import SessionSerializer

KIND = "chatkeep.session"
VERSION = 1
FORMAT = f"{KIND}/{VERSION}"


@dataclass(frozen=True)
class SessionSnapshot:
    """What `Session.snapshot` returns and `Session.restore` takes.

    `state` and `metadata` hold whatever the serializer can store. The messages are in the log and not in here.
    """

    session_id: str
    service_session_id: str | Mapping[str, Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    title: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it, and the version of this form as ``format``. The values are the same objects, not copies."""
        service = self.service_session_id
        return {
            "format": FORMAT,
            "session_id": self.session_id,
            "service_session_id": dict(service) if isinstance(service, Mapping) else service,
            "state": dict(self.state),
            "metadata": dict(self.metadata),
            "title": self.title,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The snapshot that `to_dict` turned into `data`, whatever the order of its members.

        A newer version, an unknown or missing member or one of the wrong kind is a CorruptRecordError naming it.
        """
        if not isinstance(data, Mapping):
            raise CorruptRecordError(f"a session snapshot is an object, and this is of type {type(data).__name__}")
        _check_format(data.get("format"))
        unknown = sorted(str(member) for member in data.keys() - _KINDS.keys() - {"format"})
        if unknown:
            raise CorruptRecordError(
                f"a snapshot of the form {FORMAT!r} has no members {', '.join(map(repr, unknown))}; "
                "put the application's own data into its state or metadata"
            )
        members = {member: data[member] for member in _KINDS if member in data}
        if "session_id" not in members:
            raise CorruptRecordError("this session snapshot has no 'session_id'")
        for member, value in members.items():
            kinds, words = _KINDS[member]
            if not isinstance(value, kinds):
                raise CorruptRecordError(
                    f"a snapshot's {member!r} is {words}, and this is of type {type(value).__name__}"
                )
            if isinstance(value, Mapping):
                members[member] = dict(value)
        return cls(**members)

    def to_bytes(self, serializer: SessionSerializer) -> bytes:
        """`to_dict` in the stored form; what cannot be stored is a SerializationError naming its place."""
        return serializer.dumps(self.to_dict())

    @classmethod
    def from_bytes(cls, data: bytes, serializer: SessionSerializer) -> Self:
        """The snapshot that `to_bytes` turned into `data`; a CorruptRecordError if it is none."""
        return cls.from_dict(serializer.loads(data))


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "session_id": ((str,), "a text"),
    "service_session_id": ((str, Mapping, type(None)), "a text, an object or null"),
    "state": ((Mapping,), "an object"),
    "metadata": ((Mapping,), "an object"),
    "title": ((str, type(None)), "a text or null"),
}


def _check_format(form: Any) -> None:
    if form == FORMAT:
        return
    kind, _, version = form.partition("/") if isinstance(form, str) else ("", "", "")
    if kind == KIND and version.isdecimal() and int(version) > VERSION:
        raise CorruptRecordError(
            f"this session snapshot has the form {form!r} of a newer chatkeep, and this one reads {FORMAT!r}; "
            "upgrade chatkeep"
        )
    raise CorruptRecordError(f"this is no session snapshot: its 'format' is {form!r} and not {FORMAT!r}")
