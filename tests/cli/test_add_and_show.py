"""What goes in by ``add`` comes out by ``show --json``, and ``show`` can be read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatkeep import ChatMessage, Encoded, OpenAIChatCodec, ToolCall, open_store
from chatkeep.records import Record, Write
from chatkeep_cli.add import read_messages
from chatkeep_cli.conversations import conversations
from chatkeep_cli.failures import CommandError

URL = "sqlite:///chat.db"
HELLO = {"role": "user", "content": "Hello"}

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
    {"id": "c2", "type": "custom", "custom": {"name": "code", "input": "print(1)"}},
]
ODD_CALLS = [None, {"function": "odd"}, {"function": {"arguments": [1]}}]
PICTURE = {"type": "image_url", "image_url": {"url": "x"}}
UNKNOWN = {"audio": {"id": "a"}, "annotations": [], "unknown": {"$chatkeep": 1, "": [None, {}]}}
STRANGE = "NUL \x00 U+2028 \u2028 lone \ud800 emoji 😀"

SHAPES: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE]},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "a cat"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "1"}]},
    {"role": "assistant", "refusal": "I would rather not."},
    {"role": "assistant", "content": "", "function_call": {"name": "old", "arguments": ""}},
    {"role": "function", "name": "old", "content": "done"},
    {"role": "assistant", "content": "ok", **UNKNOWN},
    {"role": "user", "content": STRANGE, "integer": 2**70, "float": 0.1, "large": 1e300},
    {"role": "assistant", "content": "null is no call", "tool_calls": None},
    {"role": "assistant", "tool_calls": ODD_CALLS},
    {"role": "tool", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "it says which itself"}]},
    {"role": "assistant", "content": [None, "text", {"type": 3}], "function_call": 7},
    {"role": "strange role", "content": "x"},
    {"role": "user", "content": "with an id", "id": "m1"},
    {"role": "user"},
]

texts = st.text(st.characters(codec="utf-8") | st.characters(categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    lambda role, content, more: more | {"role": role, "content": content},
    st.sampled_from(["system", "user", "assistant", "function"]),
    values.filter(lambda value: value is None or isinstance(value, str | list)),
    st.dictionaries(texts.filter(lambda name: name != "id"), values, max_size=3),
)


def test_the_shipped_conversations_come_out_equal(chatkeep: Any) -> None:
    for conversation in conversations():
        chatkeep.add(conversation.id, conversation.messages)
        assert chatkeep.shown(conversation.id) == conversation.messages
    assert sum(len(each.messages) for each in conversations()) == 56


def test_every_shape_of_message_comes_out_equal_and_can_be_read(chatkeep: Any) -> None:
    chatkeep.add("shapes", SHAPES)
    assert chatkeep.shown("shapes") == SHAPES
    for options in ([], ["--full"]):
        read = chatkeep("show", URL, "shapes", *options)
        assert (read.code, read.err) == (0, "")
        for words in ("Be brief.", "What is it?", "image_url", "look", '{"at": 1}', "print(1)", "I would rather not."):
            assert words in read.out


@given(st.lists(messages, min_size=1, max_size=3))
def test_any_message_is_read_as_what_it_is(written: list[dict[str, Any]]) -> None:
    lines = [json.dumps(message).encode() + b"\n" for message in written]
    expected = [json.loads(line) for line in lines]
    assert [message for _, message in read_messages(lines)] == expected
    assert [message for _, message in read_messages([json.dumps({"messages": written}).encode()])] == expected


def test_what_show_prints_add_takes_again(chatkeep: Any) -> None:
    chatkeep.add("first", SHAPES)
    printed = chatkeep("show", URL, "first", "--json").out
    assert "added 17 messages" in chatkeep("add", URL, "second", stdin=printed).out
    assert chatkeep.shown("second") == SHAPES


def test_a_line_may_be_an_object_with_messages_and_blank_lines_do_not_count(chatkeep: Any) -> None:
    lines = json.dumps({"id": "x", "messages": [HELLO, HELLO]}) + "\n\n  \n" + json.dumps(HELLO)
    added = chatkeep("add", URL, "s", stdin="\ufeff" + lines)
    assert added.out == "added 3 messages to s in sqlite:///chat.db; it holds 3\n"
    assert chatkeep.shown("s") == [HELLO] * 3


def test_a_batch_id_stores_an_input_once(chatkeep: Any) -> None:
    for expected in ("added 1 message to", "added 0 messages (1 of 1 were stored before) to"):
        assert expected in chatkeep("add", URL, "s", "--batch-id", "monday", stdin=json.dumps(HELLO)).out
    assert chatkeep.shown("s") == [HELLO]


def test_a_message_with_an_id_is_stored_once(chatkeep: Any) -> None:
    for _ in range(2):
        chatkeep.add("s", [HELLO | {"id": "m1"}])
    assert len(chatkeep.shown("s")) == 1


def test_last_shows_the_newest_messages_oldest_first(chatkeep: Any) -> None:
    numbered = [{"role": "user", "content": str(number)} for number in range(5)]
    chatkeep.add("s", numbered)
    assert chatkeep.shown("s", "--last", "2") == numbered[3:]
    assert chatkeep.shown("s", "--last", "0") == []
    assert chatkeep("show", URL, "s", "--last", "1").out.endswith("\n    5 user       4\n")


def test_a_session_of_more_than_one_page_is_shown_whole(chatkeep: Any) -> None:
    numbered = [{"role": "user", "content": str(number)} for number in range(1203)]
    chatkeep.add("s", [{"messages": numbered}])
    assert chatkeep.shown("s") == numbered


def test_a_scope_is_an_address_of_its_own(chatkeep: Any) -> None:
    chatkeep.add("s", [HELLO], "--tenant", "acme", "--user", "alice", "--app", "shop")
    assert chatkeep.shown("s", "--tenant", "acme", "--user", "alice", "--app", "shop") == [HELLO]
    assert chatkeep("show", URL, "s").code == 1
    assert chatkeep("show", URL, "s", "--tenant", "acme").code == 1


def test_a_further_log_is_written_named_and_shown(chatkeep: Any) -> None:
    chatkeep.add("s", [HELLO])
    chatkeep.add("s", [HELLO | {"content": "aside"}], "--log", "subagents/a")
    assert chatkeep.shown("s") == [HELLO]
    assert chatkeep.shown("s", "--log", "subagents/a")[0]["content"] == "aside"
    assert "other logs: subagents/a (1)" in chatkeep("show", URL, "s").out
    absent = chatkeep("show", URL, "s", "--log", "b")
    assert absent.code == 1
    assert "its further logs: subagents/a" in absent.err


def test_without_a_url_the_variable_counts_and_then_the_library_s_default(chatkeep: Any, tmp_path: Path) -> None:
    assert chatkeep("add", "s", stdin=json.dumps(HELLO), CHATKEEP_URL="sqlite:///mine.db").code == 0
    assert "Hello" in chatkeep("show", "s", CHATKEEP_URL="sqlite:///mine.db").out
    assert "Hello" in chatkeep("show", "sqlite:///mine.db", "s", CHATKEEP_URL="sqlite:///other.db").out
    assert chatkeep("add", "s", stdin=json.dumps(HELLO), CHATKEEP_URL="").code == 0
    assert sorted(each.name for each in tmp_path.glob("*.db")) == ["chatkeep.db", "mine.db"]


def test_a_session_that_is_not_there_is_not_found(chatkeep: Any, failure: Any) -> None:
    chatkeep.add("s", [HELLO])
    for options in ([], ["--json"]):
        absent = chatkeep("show", URL, "t", *options)
        assert absent.code == 1
        assert "no session t in sqlite:///chat.db" in failure(absent)
    absent = chatkeep("show", URL, "a\nb [red]\x1b", "--tenant", "acme corp")
    assert '"a\\nb [red]\\u001b" in sqlite:///chat.db at --tenant acme corp' in failure(absent)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("", "holds no messages"),
        ("\n \n", "holds no messages"),
        ('{"role": "user"}\n{"role": "user",\n', "line 2 of standard input: it is no JSON (Expecting property name"),
        ('{"role": "user"}\n{"role": "user",\n', " at column 17): a line is one message"),
        ('{"role": "user"}\n{"role": "user",\r\n', " at column 17): a line is one message"),
        ('\ufeff{"role" "user"}\n', "line 1 of standard input: it is no JSON (Expecting ':' delimiter at column 9)"),
        ('{"role": "user", "content": "é😀" 1}', " at column 34)"),
        ("[\n", "line 1 of standard input: it is no JSON"),
        ('\n\n{"role": "user", "n": NaN}', "line 3 of standard input: it is no JSON (NaN has no place"),
        ("[]", "line 1 of standard input: a list is no message"),
        ("true", "line 1 of standard input: a truth value is no message"),
        ("null", "line 1 of standard input: null is no message"),
        ('"hello"', "line 1 of standard input: a text is no message"),
        ("{}", "line 1 of standard input: $.role"),
        ('{"role": 1}', "line 1 of standard input: $.role"),
        (
            '\n{"role": "user", "content": 5}',
            "line 2 of standard input: $.content: a message's content is a text, a list",
        ),
        ('{"role": "user", "content": {"text": "x"}}', "line 1 of standard input: $.content"),
        ('{"role": "user", "content": true}', "line 1 of standard input: $.content"),
        ('{"role": "tool", "content": "x"}', "line 1 of standard input: $.tool_call_id: a tool's message needs the id"),
        ('{"role": "tool", "content": "x", "tool_call_id": 5}', "line 1 of standard input: $.tool_call_id"),
        (
            '{"role": "assistant", "tool_calls": {"id": "1"}}',
            "line 1 of standard input: $.tool_calls: a message's tool",
        ),
        ('{"role": "assistant", "tool_calls": "none"}', "line 1 of standard input: $.tool_calls"),
        ('{"messages": {}}', 'line 1 of standard input: "messages" is no list'),
        ('{"messages": [{"role": "user"}, 7]}', "line 1 of standard input: a number is no message"),
        ("[" * 100_000, "line 1 of standard input: it is nested too deeply"),
        ('{"role": "user", "n": 1e999}', "line 1 of standard input: messages[0]"),
        ('\n{"role": "user"}\n\n{"role": "user", "id": ""}', "line 4 of standard input: the id of messages[1]"),
    ],
)
def test_input_that_is_none_names_its_line_and_nothing_is_written(
    chatkeep: Any, failure: Any, lines: str, reason: str
) -> None:
    chatkeep.add("s", [HELLO])
    refused = chatkeep("add", URL, "s", stdin=lines)
    assert refused.code == 2
    assert reason in failure(refused)
    assert chatkeep.shown("s") == [HELLO]


def test_input_that_is_no_utf_8_names_its_line_and_byte(chatkeep: Any, failure: Any) -> None:
    refused = chatkeep("add", URL, "s", stdin=b'{"role": "user"}\n{"role": "\xe9"}\n')
    assert "line 2 of standard input: it is no UTF-8, from byte 11 on" in failure(refused)
    refused = chatkeep("add", URL, "s", stdin=b'\xef\xbb\xbf{"role": "\xe9"}\n')
    assert "line 1 of standard input: it is no UTF-8, from byte 14 on" in failure(refused)


def test_a_message_over_the_limit_names_its_line_and_nothing_is_written(chatkeep: Any, failure: Any) -> None:
    lines = json.dumps(HELLO) + "\n" + json.dumps(HELLO | {"content": "x" * 2000})
    refused = chatkeep("add", f"{URL}?max_message_bytes=1KB", "s", stdin=lines)
    assert refused.code == 2
    assert "line 2 of standard input: messages[1] takes" in failure(refused)
    assert chatkeep("show", URL, "s").code == 1


def test_the_first_line_that_is_no_message_ends_the_reading() -> None:
    lines = iter([b'{"role": "user"}\n', b"nonsense\n", b'{"role": "user"}\n'])
    with pytest.raises(CommandError, match="line 2 "):
        list(read_messages(lines))
    assert list(lines) == [b'{"role": "user"}\n']


def store_with_python(folder: Path, codec: Any, *messages: Any) -> None:
    async def store() -> None:
        async with open_store(f"sqlite:///{folder}/chat.db", codec=codec, store_text=True) as opened:
            await opened.session("s").append(messages)

    asyncio.run(store())


def test_messages_of_chatkeep_s_own_kind_are_shown_in_both_forms(chatkeep: Any, tmp_path: Path) -> None:
    call = ToolCall("c1", "look", {"at": 1})
    store_with_python(tmp_path, None, ChatMessage.user("Hi"), ChatMessage.assistant(tool_calls=[call]))
    assert chatkeep.shown("s") == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
        },
    ]
    assert 'calls look {"at": 1}' in chatkeep("show", URL, "s").out


class StrangeCodec(OpenAIChatCodec):
    """Somebody else's, whose messages are texts."""

    name, version, accepts = "strange", 1, frozenset({"strange/1"})

    def encode(self, message: Any) -> Encoded:
        return Encoded("assistant", None, False, message, {"strange": message})


def test_a_message_of_an_unknown_format_is_shown_by_its_role_with_a_note(chatkeep: Any, tmp_path: Path) -> None:
    store_with_python(tmp_path, StrangeCodec(), "bonjour")
    chatkeep.add("s", [HELLO])
    read = chatkeep("show", URL, "s")
    assert (read.code, read.err) == (0, "")
    assert "    1 assistant  bonjour\n                 (format strange/1, 21 bytes: it cannot be read here)" in read.out
    assert "    2 user       Hello\n" in read.out


def test_a_message_that_cannot_be_read_is_a_line_with_a_note_and_an_exit_code(chatkeep: Any, tmp_path: Path) -> None:
    store_with_python(tmp_path, StrangeCodec(), "bonjour")
    chatkeep.add("s", [HELLO])
    read = chatkeep("show", URL, "s", "--json")
    note = {"role": "assistant", "content": "bonjour", "chatkeep": {"seq": 1, "format": "strange/1"}}
    assert [json.loads(line) for line in read.out.splitlines()] == [note, HELLO]
    assert read.code == 4
    assert "1 message could not be read" in read.err


def test_a_damaged_message_harms_only_itself(chatkeep: Any, tmp_path: Path) -> None:
    async def damage() -> None:
        async with open_store(f"sqlite:///{tmp_path}/chat.db") as store:
            record = Record(0, None, "user", True, "openai/1", None, None, b"{")
            await store.session("s").commit(Write(b"0123456789abcdef", append=[record]))

    chatkeep.add("s", [HELLO])
    asyncio.run(damage())
    chatkeep.add("s", [HELLO])
    read = chatkeep("show", URL, "s")
    assert read.code == 0
    assert "    2 user       (format openai/1, 1 bytes: it cannot be read here)" in read.out
    assert "    3 user       Hello" in read.out


def test_values_that_are_more_than_json_are_printed_in_their_stored_form(chatkeep: Any, tmp_path: Path) -> None:
    store_with_python(tmp_path, None, ChatMessage("user", [{"type": "blob", "data": b"\x00"}]))
    ((shown,),) = (line["content"] for line in chatkeep.shown("s"))
    assert shown["type"] == "blob"
    assert shown["data"].keys() == {"$chatkeep", "v"} or "v" in shown["data"]
    assert chatkeep("show", URL, "s").code == 0


def test_long_instructions_and_results_are_shortened_unless_full(chatkeep: Any) -> None:
    long = "word " * 500
    chatkeep.add("s", [{"role": "system", "content": long}, {"role": "user", "content": long}])
    short, full = chatkeep("show", URL, "s").out, chatkeep("show", URL, "s", "--full").out
    assert (short.count("word") < 600, full.count("word")) == (True, 1000)
    assert "… 2,500 characters" in short


def test_a_stored_text_can_neither_move_the_cursor_nor_colour_the_terminal(chatkeep: Any) -> None:
    session = "a\nb [red]x[/red] 😀"
    text = "\x1b[31mred\x1b[0m [bold]kept[/bold] :smile: \x9b1m \u202e\r\nnext\ttab \ud800"
    message = {
        "role": "user\x1b[1m\n",
        "content": text,
        "tool_calls": [{"function": {"name": "\x1b[2m", "arguments": text}}],
    }
    chatkeep.add(session, [message, {"role": "tool", "tool_call_id": "\x1b[2m", "content": text}])
    for arguments in (["show", URL, session], ["show", URL, session, "--full"], ["sessions", URL]):
        shown = chatkeep(*arguments)
        assert shown.code == 0
        assert '"a\\nb [red]x[/red] 😀"' in shown.out
        assert not [each for each in shown.out if not each.isprintable() and each != "\n"]
    assert "\\x1b[31mred\\x1b[0m [bold]kept[/bold] :smile: \\x9b1m \\u202e" in chatkeep("show", URL, session).out
    lines = chatkeep("show", URL, session, "--json").out
    assert not [each for each in lines if not each.isprintable() and each != "\n"]
    assert chatkeep.shown(session)[0] == message


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_output_that_is_not_unicode_still_gets_everything(chatkeep: Any, encoding: str) -> None:
    message = {"role": "user", "content": "é € 😀"}
    chatkeep.add("s", [message])
    lines = chatkeep("show", URL, "s", "--json", encoding=encoding).out
    assert [json.loads(line) for line in lines.splitlines()] == [message]
    read = chatkeep("show", URL, "s", encoding="ascii")
    assert "\\xe9 \\u20ac \\U0001f600" in read.out
