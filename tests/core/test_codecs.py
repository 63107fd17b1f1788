"""Codecs: what is stored of a message, and the way between the two shapes."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatkeep import open_store
from chatkeep.codecs import ChatMessageCodec, Encoded, OpenAIChatCodec, format_of
from chatkeep.errors import ConfigError, CorruptRecordError, SerializationError
from chatkeep.messages import ChatMessage, ToolCall
from chatkeep.records import Record
from chatkeep.serializer import SessionSerializer

GOLDEN = json.loads((Path(__file__).parent / "golden" / "format-1.json").read_text(encoding="utf-8"))["messages"]
chat = ChatMessageCodec()
openai = OpenAIChatCodec()
serializer = SessionSerializer()

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "# Airline Agent Policy\n\nHelp users book, modify or cancel reservations."},
    {"role": "user", "content": "I want to cancel my reservation ZFA04Y."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_reservation_details", "arguments": '{"reservation_id": "ZFA04Y"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "name": "get_reservation_details", "content": '{"cabin": "economy"}'},
    {
        "role": "assistant",
        "content": "Cancelling it now.",
        "tool_calls": [
            {"id": "call_2", "type": "function", "function": {"name": "cancel_reservation", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_2", "name": "cancel_reservation", "content": ""},
    {"role": "assistant", "content": "It is cancelled.", "refusal": None, "annotations": []},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "See "},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "text", "text": "this."},
        ],
        "name": "mei",
        "id": "m8",
    },
]
CHATS = [
    ChatMessage.system("Be brief."),
    ChatMessage.user("Where is my bag?", id="m1", name="mei"),
    ChatMessage.assistant(tool_calls=[ToolCall("call_1", "find_bag", '{"tag": "OSL-77"}')]),
    ChatMessage.tool("In Oslo.", tool_call_id="call_1", name="find_bag"),
    ChatMessage.assistant("In Oslo."),
    ChatMessage.user([{"type": "text", "text": "Thanks"}]),
]
ANTHROPIC_CALL = {
    "role": "assistant",
    "content": [{"type": "text", "text": "Looking."}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}],
}
ANTHROPIC_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "secret"}]}


def record(form: str, seq: int = 7) -> Record:
    return Record(seq, None, "user", False, form, None, None, b"")


def test_the_format_is_name_and_version() -> None:
    assert (format_of(chat), format_of(openai)) == ("chat/1", "openai/1")


def test_what_is_encoded_of_a_chat_message() -> None:
    assert chat.encode(CHATS[1]) == Encoded("user", "m1", True, "Where is my bag?", CHATS[1].data)
    assert chat.encode(CHATS[2]) == Encoded("assistant", None, False, None, CHATS[2].data)


def test_what_is_encoded_of_an_openai_dict() -> None:
    assert openai.encode(CONVERSATION[7]) == Encoded("user", "m8", True, "See this.", CONVERSATION[7])
    assert openai.encode(CONVERSATION[2]) == Encoded("assistant", None, False, None, CONVERSATION[2])
    assert openai.encode({"role": "user", "id": 5}).id is None


@pytest.mark.parametrize(
    ("message", "starts"),
    [
        ({"role": "user", "content": "x"}, True),
        ({"role": "user", "content": []}, True),
        ({"role": "user", "content": None}, True),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, True),
        (ANTHROPIC_RESULT, False),
        ({"role": "user", "content": [*ANTHROPIC_RESULT["content"], {"type": "text", "text": "and this?"}]}, True),
        (ANTHROPIC_CALL, False),
        ({"role": "assistant", "content": "x"}, False),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, False),
        ({"role": "function", "content": "x", "name": "f"}, False),
        ({"role": "system", "content": "x"}, False),
        ({"role": "developer", "content": "x"}, False),
    ],
)
def test_a_user_message_starts_a_turn_and_a_tool_result_never_does(message: dict[str, Any], starts: bool) -> None:
    assert openai.encode(message).starts_turn is starts
    assert chat.encode(ChatMessage.from_dict({k: v for k, v in message.items() if v is not None})).starts_turn is starts


@pytest.mark.parametrize("message", CHATS)
def test_chat_messages_come_back_equal(message: ChatMessage) -> None:
    stored = serializer.loads(serializer.dumps(chat.encode(message).data))
    assert chat.decode(stored, record("chat/1")) == message


@pytest.mark.parametrize("message", [*CONVERSATION, {"role": "x", "unknown": {"$chatkeep": 1}}])
def test_openai_dicts_come_back_whole(message: dict[str, Any]) -> None:
    stored = serializer.loads(serializer.dumps(openai.encode(message).data))
    assert openai.decode(stored, record("openai/1")) == message


def test_a_page_is_decoded_as_one_by_one() -> None:
    datas = [message.data for message in CHATS] + CONVERSATION
    records = [record("chat/1")] * len(CHATS) + [record("openai/1")] * len(CONVERSATION)
    records[1] = records[1]._replace(id="an id that its data does not know")
    bodies = [(each.seq, each.id, each.format, each.payload) for each in records]
    one_by_one = [chat.decode(copy.deepcopy(data), each) for data, each in zip(datas, records, strict=True)]
    assert chat.decode_many(copy.deepcopy(datas), bodies) == one_by_one
    with pytest.raises(CorruptRecordError):
        chat.decode_many([*datas, {"no": "role"}], [*bodies, bodies[0]])


# From one shape to the other


def test_an_openai_message_is_read_as_a_chat_message() -> None:
    call = chat.decode(CONVERSATION[4], record("openai/1"))
    assert call == ChatMessage.assistant(
        "Cancelling it now.", tool_calls=[ToolCall("call_2", "cancel_reservation", "{}")]
    )
    result = chat.decode(CONVERSATION[3], record("openai/1"))
    assert result == ChatMessage.tool('{"cabin": "economy"}', tool_call_id="call_1", name="get_reservation_details")
    answer = chat.decode(CONVERSATION[6], record("openai/1"))
    assert answer.metadata == {"openai": {"refusal": None, "annotations": []}}


@pytest.mark.parametrize(
    "message",
    [
        *CONVERSATION,
        {"role": "assistant", "content": "x", "audio": {"id": "a"}, "metadata": {"a": 1}},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
                {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{}", "strict": True}},
                {"type": "function"},
                "odd",
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "mcp"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "user", "content": ["odd", 1], "name": None, "id": 5},
        {"role": "function", "content": "x", "name": "f"},
    ],
)
def test_an_openai_message_read_as_chat_message_and_back_is_the_same(message: dict[str, Any]) -> None:
    before = copy.deepcopy(message)
    as_chat = chat.decode(message, record("openai/1"))
    assert ChatMessage.from_dict(as_chat.data) == as_chat
    assert openai.decode(as_chat.data, record("chat/1")) == before
    assert message == before


@pytest.mark.parametrize("message", CHATS)
def test_a_chat_message_read_as_openai_dict_and_back_is_the_same(message: ChatMessage) -> None:
    assert chat.decode(openai.decode(message.data, record("chat/1")), record("openai/1")) == message


def test_what_openai_cannot_say_of_a_chat_message_is_left_out_as_documented() -> None:
    message = ChatMessage.assistant(tool_calls=[ToolCall("1", "f", {"a": "é"})], metadata={"trace": 1})
    assert openai.decode(message.data, record("chat/1")) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}],
    }


# Refusals


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": "x"}, r"of type dict; use ChatMessage\.from_dict\(message\)"),
        ("Hello", r"of type str; use ChatMessage\.user\(text\)"),
        (None, r"of type NoneType; use ChatMessage\(role, content\)"),
    ],
)
def test_the_chat_codec_says_what_it_was_given_and_how_to_make_a_message(message: Any, words: str) -> None:
    with pytest.raises(SerializationError, match=words):
        chat.encode(message)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (ChatMessage.user("x"), "of type ChatMessage; open the store with the default codec"),
        ("Hello", "of type str; use {'role': 'user'"),
        ({"content": "x"}, r"\$\.role.*has the members \['content'\]"),
        ({"role": 5}, r"\$\.role"),
        ({"role": "user", "content": 5}, r"^\$\.content: .* not of type int"),
        ({"role": "user", "content": {"text": "x"}}, r"^\$\.content: .* not of type dict"),
        ({"role": "tool", "content": "x"}, r"^\$\.tool_call_id: a tool's message needs the id"),
        ({"role": "tool", "content": "x", "tool_call_id": None}, r"^\$\.tool_call_id"),
        ({"role": "assistant", "tool_calls": "x"}, r"^\$\.tool_calls: .* not of type str"),
        ({"role": "assistant", "tool_calls": {}}, r"^\$\.tool_calls: .* not of type dict"),
    ],
)
def test_the_openai_codec_says_what_it_was_given_and_how_to_make_a_message(message: Any, words: str) -> None:
    with pytest.raises(SerializationError, match=words) as caught:
        openai.encode(message)
    assert str(caught.value).startswith(f"{caught.value.path}: ")


@pytest.mark.parametrize("codec", [OpenAIChatCodec, "openai", {}, object()])
def test_what_is_no_codec_is_refused_at_once(codec: Any) -> None:
    with pytest.raises(ConfigError, match=r"codec=.* (is a class: give an object of it|is no MessageCodec)"):
        open_store("memory://", codec=codec)
    store = open_store("memory://")
    with pytest.raises(ConfigError, match="codec="):
        store.session("s", codec=codec)
    with pytest.raises(ConfigError, match="codec="):
        store.session("s").log("aside", codec=codec)


@pytest.mark.parametrize("codec", [chat, openai])
@pytest.mark.parametrize(
    ("data", "form", "words"),
    [
        ({"role": "user"}, "langchain/1", "seq 7 has the format 'langchain/1'.*reads chat/1, openai/1"),
        ([], "chat/1", "seq 7 is no object with a role"),
        ({"content": "x"}, "openai/1", "seq 7 is no object with a role"),
        ({"role": None}, "chat/1", "seq 7 is no object with a role"),
    ],
)
def test_what_cannot_be_decoded_names_its_seq(codec: Any, data: Any, form: str, words: str) -> None:
    with pytest.raises(CorruptRecordError, match=words) as caught:
        codec.decode(data, record(form))
    assert caught.value.seq == 7


@pytest.mark.parametrize(("codec", "form"), [(chat, "chat/2"), (openai, "openai/12")])
def test_a_newer_format_is_refused_in_words(codec: Any, form: str) -> None:
    with pytest.raises(CorruptRecordError, match=r"newer chatkeep.*upgrade"):
        codec.decode({"role": "user"}, record(form))


# Links and blanks


def test_links_name_the_calls_made_and_answered() -> None:
    assert openai.links(CONVERSATION[2]) == (("call_1",), ())
    assert openai.links(CONVERSATION[3]) == ((), ("call_1",))
    assert chat.links(CHATS[2]) == (("call_1",), ())
    assert chat.links(CHATS[3]) == ((), ("call_1",))
    assert openai.links(ANTHROPIC_CALL) == (("t1",), ())
    assert chat.links(ChatMessage.from_dict(ANTHROPIC_RESULT)) == ((), ("t1",))
    assert openai.links({"role": "user", "content": "x"}) == ((), ())


def strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(strings, value.values()))
    if isinstance(value, list):
        return set().union(*map(strings, value))
    return {value} if isinstance(value, str) else set()


SECRET = "s3cret"
SECRETS: list[dict[str, Any]] = [
    {"role": "user", "content": SECRET, "name": "mei", "id": "m1", "extra": SECRET, "metadata": {"a": SECRET}},
    {
        "role": "user",
        "content": [{"type": "text", "text": SECRET}, {"type": "image_url", "image_url": {"url": SECRET}}],
    },
    {"role": "user", "content": [{"type": "input_text", "text": "x", "annotations": [SECRET]}]},
    {"role": "tool", "content": SECRET, "tool_call_id": "call_1", "name": "f"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": SECRET}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"text": SECRET}]}]},
]
CALLED = {"name": "f", "arguments": json.dumps({"a": SECRET}), "extra": SECRET}
CALLS = [{"id": "call_1", "type": "function", "function": CALLED, "extra": SECRET}]


@pytest.mark.parametrize("message", [*SECRETS, {"role": "assistant", "content": SECRET, "tool_calls": CALLS}])
def test_a_blanked_message_keeps_its_structure_and_nothing_that_was_said(message: dict[str, Any]) -> None:
    as_chat = chat.decode(copy.deepcopy(message), record("openai/1"))
    pairs: list[tuple[Any, Any]] = [(openai, message), (chat, as_chat)]
    for codec, whole in pairs:
        before = copy.deepcopy(whole)
        blanked = codec.blank(whole, "[redacted]")
        encoded, original = codec.encode(blanked), codec.encode(whole)
        assert SECRET not in json.dumps(encoded.data)
        assert "[redacted]" in json.dumps(encoded.data)
        assert (encoded.role, encoded.id, encoded.starts_turn) == (original.role, original.id, original.starts_turn)
        assert encoded.data.get("name") == original.data.get("name")
        assert codec.links(blanked) == codec.links(whole)
        assert whole == before


def test_blanked_arguments_can_still_be_sent_to_a_model() -> None:
    blanked = openai.blank({"role": "assistant", "content": None, "tool_calls": CALLS}, "[redacted]")
    assert blanked["content"] is None
    assert json.loads(blanked["tool_calls"][0]["function"]["arguments"]) == {"text": "[redacted]"}
    custom = [{"id": "1", "type": "custom", "custom": {"name": "sql", "input": SECRET}}]
    legacy = {"role": "assistant", "function_call": {"name": "f", "arguments": SECRET}, "tool_calls": custom}
    assert openai.blank(legacy, "-") == {
        "role": "assistant",
        "function_call": {"name": "f", "arguments": '{"text": "-"}'},
        "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "sql", "input": "-"}}],
    }
    as_object = ChatMessage.assistant(tool_calls=[ToolCall("1", "f", {"a": SECRET})])
    assert chat.blank(as_object, "-").tool_calls == (ToolCall("1", "f", {"text": "-"}),)


# Whatever comes


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "text", "name"]), inner),
    max_leaves=6,
)
members = st.sampled_from(["content", "tool_calls", "name", "id", "tool_call_id", "metadata", "function_call", "extra"])


@example("user", {"content": [{"type": []}]})
@given(st.sampled_from(["user", "assistant", "tool", "odd"]), st.dictionaries(members, odd))
def test_any_dict_with_a_role_is_kept_converted_linked_and_blanked(role: str, rest: dict[str, Any]) -> None:
    message = {"role": role, "content": None, **rest}
    wrong = not isinstance(rest.get("content"), str | list | None) or not isinstance(
        rest.get("tool_calls"), list | None
    )
    wrong = wrong or (role == "tool" and not openai.links(message).answered)
    with pytest.raises(SerializationError) if wrong else nullcontext():
        openai.encode(message)
    openai.blank(message, "x")
    as_chat = chat.decode(copy.deepcopy(message), record("openai/1"))
    assert ChatMessage.from_dict(as_chat.data) == as_chat
    assert openai.decode(as_chat.data, record("chat/1")) == message
    chat.links(as_chat)
    chat.blank(as_chat, "x")


# Pinned


GOLDEN_MESSAGES: dict[str, tuple[Any, Any]] = {
    **{f"chat {place}": (chat, message) for place, message in enumerate(CHATS)},
    **{f"openai {place}": (openai, message) for place, message in enumerate(CONVERSATION)},
}


@pytest.mark.parametrize("name", sorted(GOLDEN_MESSAGES))
def test_messages_are_stored_as_they_always_were(name: str) -> None:
    codec, message = GOLDEN_MESSAGES[name]
    role, id, starts_turn, text, data = codec.encode(message)
    assert [format_of(codec), role, id, starts_turn, text, serializer.dumps(data).decode()] == GOLDEN[name]


@pytest.mark.parametrize("name", sorted(GOLDEN_MESSAGES))
def test_messages_are_read_as_they_always_were(name: str) -> None:
    codec, message = GOLDEN_MESSAGES[name]
    form, *_, payload = GOLDEN[name]
    assert codec.decode(serializer.loads(payload.encode()), record(form)) == message


def test_every_pinned_message_is_checked() -> None:
    assert GOLDEN.keys() == GOLDEN_MESSAGES.keys()
