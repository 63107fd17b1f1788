"""The portable message."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from chatkeep.messages import ChatMessage, ToolCall


def test_only_what_is_set_is_in_the_data() -> None:
    assert ChatMessage.user("Where is my bag?").data == {"role": "user", "content": "Where is my bag?"}
    assert ChatMessage.assistant(tool_calls=[ToolCall("call_1", "find_bag", '{"tag": "OSL-77"}')]).data == {
        "role": "assistant",
        "tool_calls": [{"id": "call_1", "name": "find_bag", "arguments": '{"tag": "OSL-77"}'}],
    }
    assert ChatMessage.tool("In Oslo.", tool_call_id="call_1", name="find_bag").data == {
        "role": "tool",
        "content": "In Oslo.",
        "tool_call_id": "call_1",
        "name": "find_bag",
    }
    assert ChatMessage.system("Be brief.", id="m1", metadata={"a": 1}).data == {
        "role": "system",
        "content": "Be brief.",
        "id": "m1",
        "metadata": {"a": 1},
    }


def test_every_member_is_read_back() -> None:
    calls = (ToolCall("call_1", "find_bag", {"tag": "OSL-77"}), ToolCall("call_2", "pay", ""))
    message = ChatMessage("assistant", "One moment.", tool_calls=calls, name="bot", id="m1", metadata={"a": 1})
    assert (message.role, message.content, message.text) == ("assistant", "One moment.", "One moment.")
    assert message.tool_calls == calls
    assert (message.name, message.id, message.metadata, message.tool_call_id) == ("bot", "m1", {"a": 1}, None)
    empty = ChatMessage.assistant()
    assert (empty.content, empty.text, empty.tool_calls, empty.name, empty.id) == (None, "", (), None, None)
    assert empty.metadata == {}


def test_the_text_is_that_of_the_text_parts() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:,x"}, "text": "not said"},
        {"type": "output_text", "text": "b"},
        {"type": "text"},
    ]
    message = ChatMessage.user(parts)
    assert message.text == "ab"
    assert message.content == parts


def test_a_dict_makes_an_equal_message_and_a_dict_of_it_is_a_copy() -> None:
    data: dict[str, Any] = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "name": "f", "arguments": {"a": [1]}}],
        "later": [1],
    }
    message = ChatMessage.from_dict(data)
    assert message.to_dict() == data
    message.to_dict()["later"].append(2)
    data["later"].append(3)
    assert message.data["later"] == [1]
    assert message == ChatMessage.from_dict(message.to_dict())
    assert message != ChatMessage.user("x")
    assert message != data


def test_a_message_is_not_hashable_and_survives_pickling() -> None:
    message = ChatMessage.user("x")
    with pytest.raises(TypeError):
        hash(message)
    assert pickle.loads(pickle.dumps(message)) == message


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({}, TypeError, "role must be a text such as 'user', not None"),
        ({"role": 1}, TypeError, "role must be a text"),
        ({"role": ""}, ValueError, "role is empty"),
        ({"role": "user", "content": 1}, TypeError, "content must be a text or a list of dicts, not of type int"),
        ({"role": "user", "content": ["a"]}, TypeError, "list of dicts"),
        ({"role": "user", "id": 5}, TypeError, "id must be a text"),
        ({"role": "user", "name": None}, TypeError, "name must be a text, not None"),
        ({"role": "tool", "tool_call_id": 5}, TypeError, "tool_call_id must be a text"),
        ({"role": "user", "metadata": []}, TypeError, "metadata must be a dict"),
        ({"role": "assistant", "tool_calls": {}}, TypeError, "tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, TypeError, r"tool_calls\[0\].*use ToolCall"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]},
            TypeError,
            "OpenAI call.*OpenAIChatCodec",
        ),
        ({"role": "assistant", "tool_calls": [{"id": 1, "name": "f", "arguments": ""}]}, TypeError, r"\[0\]\.id must"),
        ("hello", TypeError, "made from a dict, not from str"),
    ],
)
def test_a_wrong_shape_is_refused_naming_the_member(data: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ChatMessage.from_dict(data)


def test_a_message_is_shown_readably_and_briefly() -> None:
    assert repr(ChatMessage.user("Hi")) == "<ChatMessage 'user' 'Hi'>"
    assert len(repr(ChatMessage.user("x" * 1000))) < 100
    call = ChatMessage.assistant(tool_calls=[ToolCall("1", "find", {"tag": 1})])
    assert repr(call) == "<ChatMessage 'assistant' find({\"tag\": 1})>"
    assert repr(ChatMessage.tool("", tool_call_id="1", id="m")) == "<ChatMessage 'tool' '' tool_call_id='1' id='m'>"


class Reply(BaseModel):
    messages: list[ChatMessage]


def test_a_message_works_as_a_field_of_a_pydantic_model() -> None:
    message = ChatMessage.user("Hi")
    reply = Reply(messages=[message, {"role": "tool", "content": "x"}])  # type: ignore[list-item]
    assert reply.messages[0] is message
    text = reply.model_dump_json()
    assert json.loads(text) == {"messages": [message.data, {"role": "tool", "content": "x"}]}
    assert Reply.model_validate_json(text) == reply
    assert TypeAdapter(ChatMessage).json_schema()["type"] == "object"
    assert TypeAdapter(ChatMessage).json_schema(mode="serialization")["type"] == "object"
    with pytest.raises(ValidationError, match="role must be a text"):
        Reply.model_validate({"messages": [{"content": "x"}]})
