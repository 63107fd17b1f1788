"""The framework's messages, and what is stored of them.

Stored is what ``Message.to_dict()`` gives, so that other readers of that form understand it. Two things differ:
``additional_properties`` are kept as they are (the framework turns times into text and leaves out what is no JSON), and
what a newer framework has written comes back whole, although this one has no place for it.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from agent_framework import Content, Message

from chatkeep import CorruptRecordError, Encoded, InvalidIdError, SerializationError
from chatkeep.arguments import check_id
from chatkeep.codecs import Links, refusal
from chatkeep.records import Record

from .naming import is_unnamed, mark_unnamed

_UNKNOWN: Final = "_chatkeep_unknown"
"""The attribute of a message or a content that holds the fields for which this version of the framework has no place.

It begins with an underscore, so that the framework copies it and neither sends nor serialises it.
"""
_SEQ: Final = "_chatkeep_seq"
"""The attribute of a message that was read: the seq of its record."""

_MESSAGE_FIELDS = frozenset({"type", "role", "contents", "author_name", "message_id", "additional_properties"})
_CONTENT_FIELDS = frozenset(inspect.signature(Content.__init__).parameters) - {"self"}
_NESTED = ("function_call", "screenshot", "inputs", "items")
"""The fields of a content that hold contents."""
_OUTPUTS = ("outputs", "output")
"""Those that hold contents or whatever a tool has returned."""
_NOTES = frozenset({"additional_properties", "annotations"})
_ANSWERS = frozenset({"function_result", "function_approval_response"})
"""What continues the turn in which it was asked for, also in the role of a user."""


class MessageCodec:
    """For ``agent_framework.Message``, of any 1.x version."""

    name = "agent-framework"
    version = 1
    accepts = frozenset({"agent-framework/1"})

    def encode(self, message: Message) -> Encoded:
        if not isinstance(message, Message):
            raise SerializationError(
                f"$: a message here is an agent_framework.Message, not {type(message).__name__}: "
                'Message("user", ["Where is my bag?"])'
            )
        text = " ".join(said for said in _texts(message) if said)
        return Encoded(message.role, _id(message), starts_turn(message), text or None, _data(message))

    def decode(self, data: Any, record: Record) -> Message:
        if record.format not in self.accepts:
            raise _corrupt(record, f"it {refusal(self, record.format)}")
        if not isinstance(data, dict) or not isinstance(data.get("role"), str):
            raise _corrupt(record, "it is no message of the Agent Framework: it has no role")
        contents = data.get("contents", [])
        if not isinstance(contents, list) or not all(isinstance(content, dict) for content in contents):
            raise _corrupt(record, "it is no message of the Agent Framework: its contents are no list of objects")
        properties = data.get("additional_properties", {})
        if not isinstance(properties, dict):
            raise _corrupt(record, "it is no message of the Agent Framework: its additional_properties are no object")
        message = Message(
            data["role"],
            [content_from(content) for content in contents],
            author_name=data.get("author_name"),
            message_id=data.get("message_id", record.id),
            additional_properties=properties,
        )
        if unknown := {name: value for name, value in data.items() if name not in _MESSAGE_FIELDS}:
            setattr(message, _UNKNOWN, unknown)
        setattr(message, _SEQ, record.seq)
        if record.id is None and message.message_id:
            mark_unnamed(message)
        return message

    def links(self, message: Message) -> Links:
        made = [c.call_id for c in message.contents if c.type == "function_call" and not is_informational(c)]
        answered = [content.call_id for content in message.contents if content.type == "function_result"]
        return Links(tuple(id for id in made if id), tuple(id for id in answered if id))

    def blank(self, message: Message, text: str) -> Message:
        blanked = Message(
            message.role,
            [_blank(content, text) for content in message.contents],
            author_name=message.author_name,
            message_id=message.message_id,
        )
        if (seq := seq_of(message)) is not None:
            setattr(blanked, _SEQ, seq)
        return blanked


def content_from(data: Mapping[str, Any]) -> Content:
    """The content that ``Content.to_dict()`` gave; fields of a newer framework are kept beside those that are known."""
    known = {name: value for name, value in data.items() if name in _CONTENT_FIELDS}
    for name in _NESTED:
        if name in known:
            known[name] = _nested(known[name])
    outputs = {name: known.pop(name) for name in _OUTPUTS if name in known}
    content = Content.from_dict(known)
    for name, value in outputs.items():
        setattr(content, name, [_output(item) for item in value] if isinstance(value, list) else _output(value))
    if unknown := {name: value for name, value in data.items() if name not in _CONTENT_FIELDS}:
        setattr(content, _UNKNOWN, unknown)
    return content


def seq_of(message: Message) -> int | None:
    """The seq of the record that a message was read from, also of a copy; None if it was not read from a store."""
    seq: int | None = vars(message).get(_SEQ)
    return seq


def said(message: Message) -> tuple[str, list[dict[str, Any]]]:
    """Who said what, whatever the framework has noted beside it: what two messages have in common that say the same."""
    return message.role, [
        {name: value for name, value in _content_data(content).items() if name not in _NOTES}
        for content in message.contents
    ]


def starts_turn(message: Message) -> bool:
    """Whether a user begins something with it, rather than to answer what was asked in a turn."""
    return message.role == "user" and not any(content.type in _ANSWERS for content in message.contents)


def is_informational(content: Content) -> bool:
    """Whether the call is only told of: the service has made it, and nobody answers it. Not in the oldest versions."""
    return bool(getattr(content, "informational_only", False))


def without_notes(message: Message, stored: Callable[[Any], bool]) -> Message:
    """A copy without those entries of ``additional_properties``, in it and its contents, that are not `stored`."""
    copied = copy.copy(message)
    copied.contents = [_lighter(content, stored) for content in message.contents]
    copied.additional_properties = _stored_of(message.additional_properties, stored)
    return copied


def _lighter(value: Any, stored: Callable[[Any], bool]) -> Any:
    if isinstance(value, list):
        return [_lighter(item, stored) for item in value]
    if not isinstance(value, Content):
        return value
    copied = copy.copy(value)
    copied.additional_properties = _stored_of(value.additional_properties, stored)
    if value.annotations:
        copied.annotations = [
            {**each, "additional_properties": _stored_of(each.get("additional_properties") or {}, stored)}
            for each in value.annotations
        ]
    for name in (*_NESTED, *_OUTPUTS):
        if getattr(value, name, None):
            setattr(copied, name, _lighter(getattr(value, name), stored))
    return copied


def _stored_of(notes: Mapping[str, Any], stored: Callable[[Any], bool]) -> dict[str, Any]:
    return {name: value for name, value in notes.items() if stored({name: value})}


def _data(message: Message) -> dict[str, Any]:
    data: dict[str, Any] = {
        "type": "message",
        "role": message.role,
        "contents": [_content_data(content) for content in message.contents],
        "author_name": message.author_name,
        "message_id": message.message_id,
    }
    data = {name: value for name, value in data.items() if value is not None}
    data["additional_properties"] = message.additional_properties
    data.update(vars(message).get(_UNKNOWN, {}))
    return data


def _content_data(content: Content) -> dict[str, Any]:
    data = content.to_dict()
    for annotation in data.get("annotations", ()):
        annotation.pop("raw_representation", None)  # the service's own object: the framework stores none either
    for name in _NESTED:  # once more, for the fields that to_dict does not know
        value = getattr(content, name, None)
        if isinstance(value, Content):
            data[name] = _content_data(value)
        elif isinstance(value, list):
            data[name] = [_content_data(item) if isinstance(item, Content) else item for item in value]
    data.update(vars(content).get(_UNKNOWN, {}))
    return data


def _nested(value: Any) -> Any:
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return content_from(value) if isinstance(value, dict) and isinstance(value.get("type"), str) else value


def _output(value: Any) -> Any:
    """A content if it is one to the last field: what a tool returns may have a type, too, and is none for that."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return value
    try:
        content = content_from(value)
    except (ValueError, TypeError):
        return value
    return content if _content_data(content) == value else value


def _id(message: Message) -> str | None:
    """The message's id if a log can know it by that."""
    if is_unnamed(message):
        return None
    try:
        return check_id(message.message_id, "a message id")
    except InvalidIdError:  # none, or one that is too long: it is stored with the message all the same
        return None


def _texts(message: Message) -> Iterator[str | None]:
    return (content.text for content in message.contents if content.type == "text")


def _blank(content: Content, text: str) -> Content:
    """A content of the same type if that is needed to link calls and answers, else a text."""
    if content.type == "function_call":
        arguments: Any = {"text": text}
        if isinstance(content.arguments, str):
            arguments = json.dumps(arguments)
        return Content("function_call", call_id=content.call_id, name=content.name, id=content.id, arguments=arguments)
    if content.type == "function_result":
        return Content("function_result", call_id=content.call_id, result=text)
    if content.type in ("function_approval_request", "function_approval_response"):
        call = content.function_call
        return Content(
            content.type,
            id=content.id,
            approved=content.approved,
            user_input_request=content.user_input_request,
            function_call=_blank(call, text) if isinstance(call, Content) else None,
        )
    return Content("text", text=text)


def _corrupt(record: Record, reason: str) -> CorruptRecordError:
    return CorruptRecordError(reason, record=record)
