"""The framework's messages come back as they were, those of a newer framework too, and a damaged one harms itself."""

from __future__ import annotations

import contextlib
import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_framework import Agent, AgentSession, Content, FunctionTool, Message
from hypothesis import given
from hypothesis import strategies as st

from chatkeep import CorruptRecordError, OpenAIChatCodec, SerializationError, SessionSerializer, Window, open_store
from chatkeep.codecs import Links, check_codec
from chatkeep.records import Record
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider, MessageCodec

GOLDEN = Path(__file__).parent / "golden" / "agent-framework-1.json"
CODEC = MessageCodec()
SERIALIZER = SessionSerializer()
CALL = Content.from_function_call("c1", "weather", arguments='{"city": "Oslo"}')
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def record(data: Any, *, id: str | None = None, form: str = "agent-framework/1") -> Record:
    return Record(7, id, "", False, form, None, None, SERIALIZER.dumps(data))


def read(data: Any, **fields: Any) -> Message:
    return CODEC.decode(data, record(data, **fields))


def again(message: Message) -> Message:
    """The message after a way through the store."""
    payload = SERIALIZER.dumps(CODEC.encode(message).data)
    return read(SERIALIZER.loads(payload))


def form(message: Message) -> str:
    return json.dumps(message.to_dict(), sort_keys=True)


CONTENTS = [
    Content.from_text("Where is my bag?", additional_properties={"tone": "worried"}),
    Content.from_text_reasoning(text="It was in Oslo.", protected_data="sealed"),
    Content.from_data(b"\x00\xff", "image/png"),
    Content.from_uri("https://example.com/bag.png", media_type="image/png"),
    Content.from_error(message="no such bag", error_code="404"),
    CALL,
    Content.from_function_call("c2", "weather", arguments={"city": "Oslo", "day": None}),
    Content.from_function_result("c1", result="sunny"),
    Content.from_function_result("c1", result="broken", exception="LookupError"),
    Content.from_function_approval_request("a1", CALL),
    Content.from_function_approval_response(True, "a1", CALL),
    Content.from_usage({"input_token_count": 5, "output_token_count": 7}),
    Content.from_hosted_file("f1"),
    Content.from_code_interpreter_tool_call(call_id="c3", inputs=[Content.from_text("1 + 1")]),
    Content.from_code_interpreter_tool_result(call_id="c3", outputs=[Content.from_text("2")]),
    Content.from_mcp_server_tool_call("c4", "find", server_name="bags", arguments={"q": "bag"}),
    Content.from_mcp_server_tool_result("c4", output={"type": "text", "found": 3}),
]


def test_it_is_a_codec() -> None:
    assert check_codec(CODEC) is CODEC


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content.type)
def test_every_kind_of_content_comes_back_as_it_was(content: Content) -> None:
    message = Message(
        "assistant", [content, content], author_name="Ann", message_id="m1", additional_properties={"k": [1, None]}
    )
    back = again(message)
    assert form(back) == form(message)
    assert [type(each) for each in back.contents] == [Content, Content]
    nested = ("function_call", "inputs", "outputs", "output", "items")
    for name in nested:
        assert type(getattr(back.contents[0], name)) is type(getattr(content, name))


def test_times_bytes_and_the_like_beside_a_message_come_back_as_what_they_were() -> None:
    beside = {
        "at": datetime(2025, 1, 2, tzinfo=UTC),
        "raw": b"\x00",
        "deep": {"list": [datetime(2025, 1, 3, tzinfo=UTC)]},
    }
    message = Message("user", [Content.from_text("hi", additional_properties=beside)], additional_properties=beside)
    back = again(message)
    assert back.additional_properties == beside
    assert back.contents[0].additional_properties == beside


def test_the_services_own_objects_are_left_out() -> None:
    content = Content.from_text("hi", raw_representation=object())
    content.annotations = [{"type": "citation", "title": "a page", "raw_representation": object()}]
    back = again(Message("assistant", [content], raw_representation=object()))
    assert back.contents[0].annotations == [{"type": "citation", "title": "a page"}]
    assert back.raw_representation is None


def test_what_cannot_be_represented_is_an_error_with_its_path() -> None:
    message = Message("user", ["hi"], additional_properties={"socket": object()})
    with pytest.raises(SerializationError, match="socket"):
        SERIALIZER.dumps(CODEC.encode(message).data)


def test_another_kind_of_message_is_refused_in_words() -> None:
    with pytest.raises(SerializationError, match=r"an agent_framework\.Message, not str: Message\("):
        CODEC.encode("hi")  # type: ignore[arg-type]


@given(output=PLAIN)
def test_what_a_tool_returned_comes_back_equal_even_if_it_looks_like_a_content(output: Any) -> None:
    for value in (output, {"type": "text", "text": output}, [{"type": "function_call", "name": output}]):
        content = Content("mcp_server_tool_result", call_id="c", output=value)
        assert again(Message("tool", [content])).contents[0].output == value


# Who starts a turn, what is said, who calls and who answers


@pytest.mark.parametrize(
    ("role", "contents", "starts"),
    [
        ("user", ["hi"], True),
        ("user", [Content.from_uri("https://example.com/a.png", media_type="image/png")], True),
        ("user", [], True),
        ("user", [Content.from_function_result("c1", result="sunny")], False),
        ("user", [Content.from_function_result("c1", result="sunny"), "thanks"], False),
        ("user", [Content.from_function_approval_response(True, "a1", CALL)], False),
        ("tool", [Content.from_function_result("c1", result="sunny")], False),
        ("assistant", ["hello"], False),
        ("system", ["be kind"], False),
    ],
)
def test_a_turn_starts_where_a_user_speaks_and_answers_no_call(role: str, contents: list[Any], starts: bool) -> None:
    assert CODEC.encode(Message(role, contents)).starts_turn is starts


def test_the_text_is_what_was_said() -> None:
    assert CODEC.encode(Message("assistant", ["a", Content.from_text_reasoning(text="hm"), "b"])).text == "a b"
    assert CODEC.encode(Message("assistant", [CALL])).text is None


def test_calls_and_answers_are_linked_by_their_ids() -> None:
    asked = Content.from_function_call("c2", "weather")
    assert CODEC.links(Message("assistant", ["hm", CALL, asked])) == Links(("c1", "c2"), ())
    assert CODEC.links(Message("tool", [Content.from_function_result("c1", result="x")])) == Links((), ("c1",))


@pytest.mark.parametrize(("id", "known"), [("m1", "m1"), (None, None), ("", None), ("x" * 2_000, None)])
def test_a_message_is_known_by_an_id_that_can_be_one_and_keeps_any(id: str | None, known: str | None) -> None:
    message = Message("user", ["hi"], message_id=id)
    assert CODEC.encode(message).id == known
    assert again(message).message_id == id


def test_a_message_without_an_id_has_that_of_the_one_which_it_replaced() -> None:
    assert read({"role": "user", "contents": []}, id="m1").message_id == "m1"


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content.type)
def test_nothing_of_what_was_said_is_left_in_a_blanked_message_and_its_links_stay(content: Content) -> None:
    message = Message("assistant", [content], author_name="Ann", message_id="m1", additional_properties={"k": "Oslo"})
    before = form(message)
    blanked = again(CODEC.blank(message, "[gone]"))
    assert form(message) == before
    assert CODEC.links(blanked) == CODEC.links(message)
    assert (blanked.role, blanked.author_name, blanked.message_id) == ("assistant", "Ann", "m1")
    for word in ("bag", "Oslo", "sealed", "sunny", "broken", "worried", "404", "1 + 1"):
        assert word not in form(blanked)
    if content.type in ("function_approval_request", "function_approval_response"):
        (kept,) = blanked.contents
        assert (kept.type, kept.id, kept.approved) == (content.type, content.id, content.approved)
        assert kept.function_call is not None
        assert (kept.function_call.call_id, kept.function_call.name) == ("c1", "weather")
    for each in blanked.contents:
        call = each.function_call or each
        if call.type == "function_call" and isinstance(call.arguments, str):
            assert json.loads(call.arguments) == {"text": "[gone]"}


# Other versions of the framework


NEWER: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "contents": [
        {"type": "text", "text": "look", "depth": {"x": 1}, "additional_properties": {}},
        {"type": "hologram", "beam": [1, 2], "text": "a bag", "additional_properties": {}},
        {
            "type": "function_approval_request",
            "id": "a1",
            "function_call": {
                "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}", "urgency": 3,
                "additional_properties": {},
            },
            "additional_properties": {},
        },
    ],
    "mood": {"happy": True},
    "additional_properties": {},
}  # fmt: skip


def test_what_a_newer_framework_has_written_is_read_and_stored_again_whole() -> None:
    message = read(copy.deepcopy(NEWER))
    assert message.text == "look"
    assert [content.type for content in message.contents] == ["text", "hologram", "function_approval_request"]
    assert CODEC.encode(copy.copy(message)).data.keys() == NEWER.keys()
    stored = CODEC.encode(copy.deepcopy(message)).data
    assert stored["mood"] == NEWER["mood"]
    for kept, written in zip(stored["contents"], NEWER["contents"], strict=True):
        assert {name: kept[name] for name in written if name != "function_call"} == {
            name: value for name, value in written.items() if name != "function_call"
        }
    assert stored["contents"][2]["function_call"]["urgency"] == 3


async def test_a_newer_message_does_not_take_the_history_down(url: str, scripted: Any) -> None:
    async with open_store(url) as store, ChatkeepHistoryProvider(store) as provider:
        session = AgentSession(session_id="newer")
        client = scripted("fine")
        agent = Agent(client, context_providers=[provider])
        await agent.run("Hello?", session=session)
        await provider.log("newer").append([read(copy.deepcopy(NEWER))])
        await agent.run("Still there?", session=session)
        assert len(client.asked[-1]) == 4
        assert CODEC.encode((await provider.get_messages("newer"))[2]).data["mood"] == NEWER["mood"]
        assert await provider.log("newer").verify() == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("hi", "no role"),
        ({"role": 7, "contents": []}, "no role"),
        ({"role": "user", "contents": "hi"}, "no list of objects"),
        ({"role": "user", "contents": ["hi"]}, "no list of objects"),
        ({"role": "user", "contents": [], "additional_properties": []}, "no object"),
        ({"role": "user", "contents": [{"text": "no type"}]}, "type"),
        ({"role": "user", "contents": [{"type": "text", "text": "hi", "additional_properties": 5}]}, ""),
    ],
)
def test_what_is_no_message_is_said_to_be_damaged(data: Any, reason: str) -> None:
    log = open_store("memory://").session("damaged", codec=CODEC)
    with pytest.raises(CorruptRecordError, match=f"message 7 of session 'damaged' cannot be read: .*{reason}"):
        log.decode(record(data))


@given(st.dictionaries(st.sampled_from(["role", "contents", "message_id", "additional_properties", "x"]), PLAIN))
def test_whatever_is_stored_it_is_read_or_said_to_be_damaged(data: dict[str, Any]) -> None:
    log = open_store("memory://").session("any", codec=CODEC)
    contents = [{"type": "text", **data}] if data.get("x") else data.get("contents", [])
    for stored in (data, {"role": "user", "contents": [data]}, {"role": "user", **data, "contents": contents}):
        with contextlib.suppress(CorruptRecordError):
            assert isinstance(log.decode(record(stored)), Message)


def test_a_record_of_another_codec_is_refused_in_words() -> None:
    with pytest.raises(CorruptRecordError, match=r"'openai/1'.*the codec 'agent-framework' reads agent-framework/1"):
        read({"role": "user", "content": "hi"}, form="openai/1")
    with pytest.raises(CorruptRecordError, match="of a newer chatkeep"):
        read({"role": "user"}, form="agent-framework/2")
    with pytest.raises(CorruptRecordError, match="'agent-framework/1'"):
        OpenAIChatCodec().decode({"role": "user"}, record({"role": "user"}))


def test_the_stored_form_is_pinned() -> None:
    """The file is never changed: what version 1 has written is read for ever."""
    written = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for stored in written:
        message = read(SERIALIZER.loads(json.dumps(stored).encode()))
        data = CODEC.encode(message).data
        assert {name: data[name] for name in stored if name != "contents"} == {
            name: value for name, value in stored.items() if name != "contents"
        }
        for kept, golden in zip(data["contents"], stored["contents"], strict=True):
            assert {name: kept[name] for name in golden} == golden


# A turn that waits for its user


async def test_a_call_that_waits_for_approval_goes_on_in_another_process(url: str, scripted: Any) -> None:
    sent: list[str] = []

    def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    tool = FunctionTool(name="send", description="Sends it.", func=send, approval_mode="always_require")
    session = AgentSession(session_id="approval")
    async with open_store(url) as store:
        ask = scripted([Content.from_function_call("c1", "send", arguments='{"to": "Oslo"}')])
        asked = Agent(ask, tools=[tool], context_providers=[ChatkeepHistoryProvider(store)])
        response = await asked.run("Send it to Oslo", session=session)
        (request,) = response.user_input_requests
        session = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
        answer = scripted("It is on its way.")
        provider = ChatkeepHistoryProvider(store, window=Window(max_messages=50))
        answering = Agent(answer, tools=[tool], context_providers=[provider])
        approval = Message("user", [request.to_function_approval_response(True)])
        done = await answering.run(approval, session=session)
        assert (done.text, sent) == ("It is on its way.", ["Oslo"])
        kept = await provider.get_messages("approval")
        assert [message.text for message in kept if message.text] == ["Send it to Oslo", "It is on its way."]
        records = (await provider.log("approval").records()).records
        assert [record.starts_turn for record in records] == [True] + [False] * (len(records) - 1)
        bye = scripted("Bye.")
        await Agent(bye, tools=[tool], context_providers=[provider]).run("Bye", session=session)
        assert sent == ["Oslo"], "an approval is used once"
