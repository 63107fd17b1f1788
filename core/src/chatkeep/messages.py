"""The portable message: what every model and framework can say, in one small shape."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from pydantic_core import core_schema

TEXT_PARTS = ("text", "input_text", "output_text")
"""The types of content parts whose ``text`` is what was said. No set: a part's type may be anything that JSON has."""


class ToolCall(NamedTuple):
    """One call of a tool by the model."""

    id: str
    name: str
    arguments: Any
    """The JSON text as the model wrote it, or a JSON value."""


class ChatMessage:
    """One message of a conversation: a thin view of its own JSON object, ``data``.

    ========================  ===========================================================================
    member                    what it holds
    ========================  ===========================================================================
    ``role``                  ``user``, ``assistant``, ``system``, ``tool`` or a framework's own
    ``content``               a text, or a list of parts such as ``{"type": "text", "text": …}``
    ``tool_calls``            a list of ``{"id", "name", "arguments"}``
    ``tool_call_id``          in a tool's result: the call that it answers
    ``name``                  of the tool or the participant
    ``id``                    the message's own; a message with an id is stored once, however often it is sent
    ``metadata``              the application's own object
    ========================  ===========================================================================

    What is not set is not in ``data``. Members that chatkeep does not know are kept. A wrong shape is a TypeError or
    a ValueError naming the member.
    """

    __slots__ = ("data",)

    data: dict[str, Any]

    def __init__(
        self,
        role: str,
        content: str | list[dict[str, Any]] | None = None,
        *,
        tool_calls: Iterable[ToolCall | Mapping[str, Any]] = (),
        tool_call_id: str | None = None,
        name: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        data: dict[str, Any] = {"role": role}
        if content is not None:
            data["content"] = content
        if tool_calls != ():
            calls = [call._asdict() if isinstance(call, ToolCall) else call for call in tool_calls]
            if calls:
                data["tool_calls"] = calls
        if (tool_call_id, name, id, metadata) != (None, None, None, None):
            named = {"tool_call_id": tool_call_id, "name": name, "id": id, "metadata": metadata}
            data |= {member: value for member, value in named.items() if value is not None}
        _check(data)
        self.data = data

    @classmethod
    def user(cls, content: str | list[dict[str, Any]], **members: Any) -> Self:
        """What the user said; `members` as for the class itself."""
        return cls("user", content, **members)

    @classmethod
    def assistant(cls, content: str | list[dict[str, Any]] | None = None, **members: Any) -> Self:
        """What the model said, or the tools it calls, or both; `members` as for the class itself."""
        return cls("assistant", content, **members)

    @classmethod
    def system(cls, content: str | list[dict[str, Any]], **members: Any) -> Self:
        """An instruction to the model; `members` as for the class itself."""
        return cls("system", content, **members)

    @classmethod
    def tool(cls, content: str | list[dict[str, Any]], *, tool_call_id: str, **members: Any) -> Self:
        """What a tool returned to the call `tool_call_id`; `members` as for the class itself."""
        return cls("tool", content, tool_call_id=tool_call_id, **members)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The message that `to_dict` turned into `data`."""
        if not isinstance(data, Mapping):
            raise TypeError(f"a message is made from a dict, not from {type(data).__name__}")
        copied = copy.deepcopy(dict(data))
        _check(copied)
        return cls.wrap(copied)

    @classmethod
    def wrap(cls, data: dict[str, Any]) -> Self:
        """The view of `data` itself, unchecked and not copied: for data that is known to be a message's."""
        message = cls.__new__(cls)
        message.data = data
        return message

    @property
    def role(self) -> str:
        role: str = self.data["role"]
        return role

    @property
    def content(self) -> str | list[dict[str, Any]] | None:
        return self.data.get("content")

    @property
    def text(self) -> str:
        """What was said: the texts of all text parts, joined; "" if there are none."""
        return text_of(self.data.get("content"))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in self.data.get("tool_calls", ()))

    @property
    def tool_call_id(self) -> str | None:
        return self.data.get("tool_call_id")

    @property
    def name(self) -> str | None:
        return self.data.get("name")

    @property
    def id(self) -> str | None:
        return self.data.get("id")

    @property
    def metadata(self) -> dict[str, Any]:
        """The application's own object; empty, and not kept when changed, if there is none."""
        metadata: dict[str, Any] = self.data.get("metadata", {})
        return metadata

    def to_dict(self) -> dict[str, Any]:
        """A copy of ``data``."""
        return copy.deepcopy(self.data)

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, ChatMessage) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        text = self.text
        shown = [repr(self.role)]
        if text or not self.tool_calls:
            shown.append(repr(text if len(text) <= 60 else text[:59] + "…"))
        shown += [f"{call.name}({_shortened(call.arguments)})" for call in self.tool_calls]
        if self.tool_call_id is not None:
            shown.append(f"tool_call_id={self.tool_call_id!r}")
        if self.id is not None:
            shown.append(f"id={self.id!r}")
        return f"<ChatMessage {' '.join(shown)}>"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        from_dict = core_schema.chain_schema(
            [
                core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()),
                core_schema.no_info_plain_validator_function(_validated(cls)),
            ]
        )
        return core_schema.json_or_python_schema(
            json_schema=from_dict,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), from_dict]),
            serialization=core_schema.plain_serializer_function_ser_schema(
                cls.to_dict, return_schema=core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
            ),
        )


def _validated(cls: type[ChatMessage]) -> Any:
    def build(data: dict[str, Any]) -> ChatMessage:
        try:
            return cls.from_dict(data)
        except TypeError as error:  # pydantic reports ValueErrors with their place.
            raise ValueError(str(error)) from error

    return build


def text_of(content: Any) -> str:
    """What was said in a message's content: the text itself, or the texts of its text parts, joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(part["text"] for part in content if is_text_part(part))


def is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str)


def is_content(content: Any) -> bool:
    """Whether it is what a ChatMessage may hold as its content."""
    return isinstance(content, str) or (isinstance(content, list) and all(isinstance(part, dict) for part in content))


_SAID = frozenset({"role", "content"})
"""All that most messages have."""


def _check(data: dict[str, Any]) -> None:
    role = data.get("role")
    if not isinstance(role, str):
        raise TypeError(f"a message's role must be a text such as 'user', not {_shown(role)}")
    if not role:
        raise ValueError("a message's role is empty; use 'user', 'assistant', 'system' or 'tool'")
    content = data.get("content", "")
    if not is_content(content):
        raise TypeError(f"a message's content must be a text or a list of dicts, not {_shown(content)}")
    if data.keys() <= _SAID:
        return
    for member in ("tool_call_id", "name", "id"):
        if member in data and not isinstance(data[member], str):
            raise TypeError(f"a message's {member} must be a text, not {_shown(data[member])}")
    if "metadata" in data:
        if not isinstance(data["metadata"], Mapping):
            raise TypeError(f"a message's metadata must be a dict, not {_shown(data['metadata'])}")
        data["metadata"] = dict(data["metadata"])
    calls = data.get("tool_calls", [])
    if not isinstance(calls, list):
        raise TypeError(f"a message's tool_calls must be a list, not {_shown(calls)}")
    if "tool_calls" in data:
        data["tool_calls"] = [_checked_call(place, call) for place, call in enumerate(calls)]


def _checked_call(place: int, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not {"id", "name", "arguments"} <= call.keys():
        mend = "use ToolCall(id, name, arguments)"
        if isinstance(call, Mapping) and "function" in call:
            mend = "this is an OpenAI call: use ToolCall(call['id'], **call['function']), or OpenAIChatCodec"
        raise TypeError(f"tool_calls[{place}] must have id, name and arguments; {mend}")
    for member in ("id", "name"):
        if not isinstance(call[member], str):
            raise TypeError(f"tool_calls[{place}].{member} must be a text, not {_shown(call[member])}")
    return dict(call)


def _shown(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _shortened(arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, default=repr)
    return text if len(text) <= 60 else text[:59] + "…"
