"""Codecs: one kind of message to what is stored of it, and back.

A record's format is the name and the version of the codec that wrote it, such as ``chat/1``. Both codecs here read what
the other wrote; `ChatMessageCodec` and `OpenAIChatCodec` say what is lost on the way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from .errors import ConfigError, CorruptRecordError, SerializationError
from .messages import ChatMessage, is_content, is_text_part, text_of
from .records import Body, Record

M = TypeVar("M")

TOOL_RESULT_PARTS = ("tool_result", "function_result", "function_call_output")
"""The types of content parts that are a tool's answer, also in a message of the role ``user``."""
TOOL_CALL_PARTS = ("tool_use", "function_call")
"""The types of content parts that call a tool."""
_MEMBERS = ("name", "version", "accepts", "encode", "decode", "links", "blank")
"""Of a codec."""
_TOOL_ROLES = frozenset({"tool", "function"})


class Encoded(NamedTuple):
    """What is stored of a message."""

    role: str
    id: str | None
    starts_turn: bool
    text: str | None
    """For display and search; None if nothing was said."""
    data: Any
    """The payload before the serializer has it: a JSON-like value."""


class Links(NamedTuple):
    """The ids of the tool calls that a message makes, and of those that it answers."""

    made: tuple[str, ...]
    answered: tuple[str, ...]


class MessageCodec(Protocol[M]):
    """Turns one kind of message into what is stored of it, and back.

    ``encode`` of anything else is a SerializationError, ``decode`` of damaged data or of a format outside `accepts` is
    a CorruptRecordError with the record's seq. A codec may also have ``decode_many(datas, bodies)``, which is quicker
    for a whole page and gets the records' `Body`; if it raises, they are decoded one by one.
    """

    name: str
    version: int
    accepts: frozenset[str]
    """The formats that it decodes."""

    def encode(self, message: M) -> Encoded: ...

    def decode(self, data: Any, record: Record) -> M:
        """The message. Where its data has no id, ``record.id`` is its id: that of the message which it replaced."""
        ...

    def links(self, message: M) -> Links: ...

    def blank(self, message: M, text: str) -> M:
        """The message with `text` in the place of everything that was said, called with or returned.

        Role, ids, names and the number of calls stay; the rest, metadata included, goes. `message` is not changed.
        """
        ...


def check_codec(codec: MessageCodec[M]) -> MessageCodec[M]:
    """`codec` if it has what a codec needs, else a `ConfigError`."""
    if isinstance(codec, type):
        raise ConfigError(f"codec={codec.__name__} is a class: give an object of it, codec={codec.__name__}()")
    lacking = [name for name in _MEMBERS if not hasattr(codec, name)]
    if lacking:
        raise ConfigError(
            f"codec={codec!r} is no MessageCodec (it has no {', '.join(lacking)}): use one such as "
            "chatkeep.OpenAIChatCodec(), or leave it out for ChatMessage"
        )
    return codec


def format_of(codec: MessageCodec[Any]) -> str:
    """The format of the records that the codec writes, such as ``chat/1``."""
    return f"{codec.name}/{codec.version}"


def refusal(codec: MessageCodec[Any], form: str) -> str:
    """Why the codec does not read a record of that format, and the mend."""
    name, _, version = str(form).partition("/")  # that of a damaged record may be no text
    if name == codec.name and version.isdecimal() and int(version) > codec.version:
        return (
            f"has the format {form!r} of a newer chatkeep, and this one reads up to {format_of(codec)!r}; "
            "upgrade chatkeep"
        )
    return (
        f"has the format {form!r}, and the codec {codec.name!r} reads {', '.join(sorted(codec.accepts))}; "
        "read it with the codec that wrote it"
    )


class ChatMessageCodec:
    """For `ChatMessage`, which is stored as its ``data``.

    Of an OpenAI dict that it reads, everything is kept: members that ChatMessage has no place for are in
    ``metadata["openai"]``, from where `OpenAIChatCodec` puts them back.
    """

    name = "chat"
    version = 1
    accepts = frozenset({"chat/1", "openai/1"})

    def encode(self, message: ChatMessage) -> Encoded:
        if not isinstance(message, ChatMessage):
            raise SerializationError(_not_a_chat_message(message))
        data = message.data
        return Encoded(data["role"], data.get("id"), _starts_turn(data), text_of(data.get("content")) or None, data)

    def decode(self, data: Any, record: Record) -> ChatMessage:
        _check_stored(self, data, record)
        return ChatMessage.wrap(_with_id(data if record.format == "chat/1" else _chat_from_openai(data), record))

    def decode_many(self, datas: Sequence[Any], bodies: Sequence[Body]) -> list[ChatMessage]:
        """As `decode`, in one loop: a history of 10,000 is read by it."""
        new = ChatMessage.__new__
        messages = []
        for data, (seq, id, form, payload) in zip(datas, bodies, strict=True):
            if form == "chat/1" and type(data) is dict and type(data.get("role")) is str and id is None:
                message = new(ChatMessage)
                message.data = data
            else:
                message = self.decode(data, Record(seq, id, "", False, form, None, None, payload))
            messages.append(message)
        return messages

    def links(self, message: ChatMessage) -> Links:
        return _links(message.data)

    def blank(self, message: ChatMessage, text: str) -> ChatMessage:
        data = message.data
        blanked: dict[str, Any] = {
            member: data[member] for member in ("role", "id", "name", "tool_call_id") if member in data
        }
        if "content" in data:
            blanked["content"] = _blank_content(data["content"], text)
        if "tool_calls" in data:
            blanked["tool_calls"] = [
                {"id": call["id"], "name": call["name"], "arguments": _blank_arguments(call["arguments"], text)}
                for call in data["tool_calls"]
            ]
        return ChatMessage.wrap(blanked)


class OpenAIChatCodec:
    """For the dicts of OpenAI's chat completions, stored whole: unknown members come back too.

    Of a ChatMessage that it reads, the metadata is left out (the API takes no such member), except for
    ``metadata["openai"]``, which goes back to where it came from. Call arguments that are no text become JSON text.
    ``content`` is always there, None if nothing was said.

    Refused with a SerializationError: a message without a role, a content that is neither a text, a list nor None,
    tool_calls that are no list, and a tool's message that does not say which call it answers.
    """

    name = "openai"
    version = 1
    accepts = frozenset({"chat/1", "openai/1"})

    def encode(self, message: dict[str, Any]) -> Encoded:
        if not isinstance(message, dict):
            raise SerializationError(_not_an_openai_dict(message))
        role = message.get("role")
        if not isinstance(role, str):
            raise SerializationError(
                f"$.role: a message needs a role, a text such as 'user'; this one has the members "
                f"{sorted(map(str, message))}",
                path="$.role",
            )
        if fault := _openai_fault(message):
            raise SerializationError(f"{fault[0]}: {fault[1]}", path=fault[0])
        id = message.get("id")
        text = text_of(message.get("content"))
        return Encoded(role, id if isinstance(id, str) else None, _starts_turn(message), text or None, message)

    def decode(self, data: Any, record: Record) -> dict[str, Any]:
        _check_stored(self, data, record)
        return _with_id(data if record.format == "openai/1" else _openai_from_chat(data), record)

    def links(self, message: dict[str, Any]) -> Links:
        return _links(message)

    def blank(self, message: dict[str, Any], text: str) -> dict[str, Any]:
        blanked: dict[str, Any] = {
            member: message[member] for member in ("role", "id", "name", "tool_call_id") if member in message
        }
        if "content" in message:
            blanked["content"] = _blank_content(message["content"], text)
        if isinstance(message.get("tool_calls"), list):
            blanked["tool_calls"] = [_blank_openai_call(call, text) for call in message["tool_calls"]]
        if isinstance(message.get("function_call"), dict):
            blanked["function_call"] = _blank_function(message["function_call"], text)
        return blanked


def _openai_fault(message: dict[str, Any]) -> tuple[str, str] | None:
    """The path of a member that no chat-completions message has in this form, and the mend."""
    content, calls = message.get("content"), message.get("tool_calls")
    if not (content is None or isinstance(content, str | list)):
        return "$.content", f"a message's content is a text, a list of parts or null, not {_kind(content)}"
    if not (calls is None or isinstance(calls, list)):
        return "$.tool_calls", f"a message's tool_calls are a list of calls, not {_kind(calls)}"
    if message["role"] == "tool" and not _links(message).answered:
        return "$.tool_call_id", "a tool's message needs the id of the call that it answers, a text"
    return None


# What both shapes have in common


def _starts_turn(data: dict[str, Any]) -> bool:
    if data["role"] != "user":
        return False
    content = data.get("content")
    if isinstance(content, str):
        return True
    return not (isinstance(content, list) and content and all(_is_part(part, TOOL_RESULT_PARTS) for part in content))


def _with_id(data: dict[str, Any], record: Record) -> dict[str, Any]:
    """A message that replaced another kept its id, of which its own data may know nothing."""
    if record.id is not None and "id" not in data:
        data["id"] = record.id
    return data


def _is_part(part: Any, types: tuple[str, ...]) -> bool:
    return isinstance(part, dict) and part.get("type") in types


def _links(data: dict[str, Any]) -> Links:
    content = data.get("content")
    parts = content if isinstance(content, list) else []
    calls = data.get("tool_calls")
    made = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    made += [part.get("call_id", part.get("id")) for part in parts if _is_part(part, TOOL_CALL_PARTS)]
    answered = [data.get("tool_call_id")]
    answered += [part.get("call_id", part.get("tool_use_id")) for part in parts if _is_part(part, TOOL_RESULT_PARTS)]
    return Links(
        tuple(id for id in made if isinstance(id, str)),
        tuple(id for id in answered if isinstance(id, str)),
    )


def is_tool_result(codec: MessageCodec[M], message: M) -> bool:
    """Whether the message is a tool's answer and nothing else."""
    encoded = codec.encode(message)
    return not encoded.starts_turn and (encoded.role in _TOOL_ROLES or bool(codec.links(message).answered))


def _blank_content(content: Any, text: str) -> Any:
    if content is None:
        return None
    return [_blank_part(part, text) for part in content] if isinstance(content, list) else text


def _blank_part(part: Any, text: str) -> dict[str, Any]:
    """A part of the same type if that is needed to link calls and answers, else a text part."""
    if _is_part(part, TOOL_CALL_PARTS + TOOL_RESULT_PARTS):
        blanked = {
            member: part[member] for member in ("type", "id", "call_id", "tool_use_id", "name") if member in part
        }
        body = {member: _blank_arguments(part[member], text) for member in ("input", "arguments") if member in part}
        body |= {member: text for member in ("content", "output", "result") if member in part}
        return blanked | body
    return {"type": part["type"] if is_text_part(part) else "text", "text": text}


def _blank_arguments(arguments: Any, text: str) -> Any:
    """An object, and as JSON text where it was a text: models and frameworks insist on it when it is sent again."""
    blanked = {"text": text}
    return json.dumps(blanked) if isinstance(arguments, str) else blanked


def _blank_openai_call(call: Any, text: str) -> Any:
    blanked = {member: call[member] for member in ("id", "type") if member in call} if isinstance(call, dict) else {}
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        blanked["function"] = _blank_function(call["function"], text)
    if isinstance(call, dict) and isinstance(call.get("custom"), dict):
        blanked["custom"] = {"name": call["custom"].get("name"), "input": text}
    return blanked


def _blank_function(function: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": function.get("name"), "arguments": _blank_arguments(function.get("arguments"), text)}


# From one shape to the other


def _chat_from_openai(message: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"role": message["role"]}
    extra: dict[str, Any] = {}
    for member, value in message.items():
        if member == "role":
            continue
        if member == "content" and (value is None or is_content(value)):
            if value is not None:
                data["content"] = value
        elif member in ("tool_call_id", "name", "id") and isinstance(value, str):
            data[member] = value
        elif member == "tool_calls" and isinstance(value, list) and value:
            calls = [_chat_call(call) for call in value]
            data["tool_calls"] = [call for call in calls if call is not None]
            if [_openai_call(call) for call in data["tool_calls"]] != value:
                extra["tool_calls"] = value
            if not data["tool_calls"]:
                del data["tool_calls"]
        else:
            extra[member] = value
    if extra:
        data["metadata"] = {"openai": extra}
    return data


def _chat_call(call: Any) -> dict[str, Any] | None:
    """None for a call that has no name or id; it is kept whole in the metadata."""
    if not isinstance(call, dict):
        return None
    called = call.get("function", call.get("custom"))
    if not isinstance(called, dict) or not isinstance(call.get("id"), str) or not isinstance(called.get("name"), str):
        return None
    return {"id": call["id"], "name": called["name"], "arguments": called.get("arguments", called.get("input"))}


def _openai_from_chat(data: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": data["role"], "content": data.get("content")}
    if "tool_calls" in data:
        message["tool_calls"] = [_openai_call(call) for call in data["tool_calls"]]
    message |= {member: data[member] for member in ("tool_call_id", "name", "id") if member in data}
    extra = data.get("metadata", {}).get("openai")
    return message | extra if isinstance(extra, dict) else message


def _openai_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


# Words


def _check_stored(codec: MessageCodec[Any], data: Any, record: Record) -> None:
    if record.format not in codec.accepts:
        raise CorruptRecordError(f"the message at seq {record.seq} {refusal(codec, record.format)}", record=record)
    if not isinstance(data, dict) or not isinstance(data.get("role"), str):
        raise CorruptRecordError(
            f"the message at seq {record.seq} is no object with a role, as {record.format!r} says", record=record
        )


def _kind(value: Any) -> str:
    return f"of type {type(value).__name__}"


def _not_a_chat_message(message: Any) -> str:
    given = type(message).__name__
    if isinstance(message, dict) and "role" in message:
        mend = "use ChatMessage.from_dict(message), or OpenAIChatCodec to keep OpenAI's dicts as they are"
    elif isinstance(message, str):
        mend = "use ChatMessage.user(text)"
    else:
        mend = "use ChatMessage(role, content), or a store opened with the codec of your framework"
    return f"$: a ChatMessage is needed, and this is of type {given}; {mend}"


def _not_an_openai_dict(message: Any) -> str:
    given = type(message).__name__
    if isinstance(message, ChatMessage):
        mend = "open the store with the default codec to keep ChatMessages"
    elif hasattr(message, "model_dump"):
        mend = "use message.model_dump(exclude_unset=True)"
    else:
        mend = "use {'role': 'user', 'content': text}"
    return f"$: a chat-completions dict is needed, and this is of type {given}; {mend}"
