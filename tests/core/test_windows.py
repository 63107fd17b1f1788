"""Windows fit their budget and start where a turn starts; reducers leave no tool result without its call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatkeep.codecs import ChatMessageCodec, OpenAIChatCodec
from chatkeep.errors import SerializationError, WindowError
from chatkeep.messages import ChatMessage, ToolCall
from chatkeep.windows import Fitter, Window, cut, drop_tool_bodies, estimate_tokens, reduced, summarise

codec = ChatMessageCodec()


def log(shape: str) -> list[ChatMessage]:
    """One message a letter: s(ystem), u(ser), a(ssistant), c(all), r(esult)."""
    made = []
    for place, letter in enumerate(shape):
        made.append(
            {
                "s": lambda at: ChatMessage.system(f"policy {at}"),
                "u": lambda at: ChatMessage.user(f"question {at}"),
                "a": lambda at: ChatMessage.assistant(f"answer {at}"),
                "c": lambda at: ChatMessage.assistant(tool_calls=[ToolCall(f"call_{at}", "find", "{}")]),
                "r": lambda at: ChatMessage.tool(f"result {at}", tool_call_id=f"call_{at - 1}"),
            }[letter](place)
        )
    return made


def starts_of(messages: list[ChatMessage]) -> list[bool]:
    return [codec.encode(message).starts_turn for message in messages]


def cut_at(shape: str, *, complete: bool = True, **limits: Any) -> int | None:
    messages = log(shape)
    return cut(messages, starts_of(messages), window=Window(**limits), codec=codec, complete=complete)


shapes = st.lists(st.sampled_from(["s", "ua", "ucra", "ucrcra", "u", "a", "uu"]), max_size=12).map("".join)


@given(shapes, st.integers(0, 40) | st.none(), st.integers(0, 400) | st.none(), st.booleans())
def test_a_window_fits_and_starts_where_a_turn_starts_and_is_the_largest_that_does(
    shape: str, most: int | None, tokens: int | None, complete: bool
) -> None:
    if most is None and tokens is None:
        return
    messages = log(shape)
    starts = starts_of(messages)

    def fits(index: int) -> bool:
        rest = messages[index:]
        return (most is None or len(rest) <= most) and (tokens is None or sum(map(estimate_tokens, rest)) <= tokens)

    window = Window[ChatMessage](max_messages=most, max_tokens=tokens)
    found = cut(messages, starts, window=window, codec=codec, complete=complete)
    if 0 in (most, tokens):
        assert found == len(messages)
        return
    possible = [index for index in range(len(messages)) if starts[index] and fits(index)]
    if complete and fits(0):
        assert found == 0
    else:
        assert found == (possible[0] if possible else None)


@given(shapes, st.integers(1, 40), st.sampled_from(["error", "keep", "empty"]))
def test_paging_backwards_reads_no_more_than_it_needs_and_finds_the_same(shape: str, most: int, overflow: Any) -> None:
    messages = log(shape)
    starts = starts_of(messages)
    window = Window[ChatMessage](max_messages=most, overflow=overflow)
    fitter = Fitter(window, codec)
    for message, start in zip(reversed(messages), reversed(starts), strict=True):
        if fitter.done:
            break
        fitter.add(message, start)
    complete = fitter.messages == len(messages)
    if True in starts[-most:]:
        assert fitter.messages <= most + 1
    expected = cut(messages, starts, window=window, codec=codec, complete=True)
    fitting = fitter.fitting(complete=complete)
    assert (None if fitting is None else len(messages) - fitting) == expected
    if expected is None and overflow == "error":
        with pytest.raises(WindowError):
            fitter.taken(complete=complete)
    elif expected is None and overflow == "empty":
        assert fitter.taken(complete=complete) == 0
    elif expected is None:
        newest = max((index for index, start in enumerate(starts) if start), default=0)
        assert fitter.taken(complete=complete) == len(messages) - newest
    else:
        assert fitter.taken(complete=complete) == fitting


@pytest.mark.parametrize(
    ("shape", "most", "complete", "found"),
    [
        ("", 5, True, 0),
        ("uaua", 4, True, 0),
        ("uaua", 4, False, 0),
        ("uaua", 3, True, 2),
        ("suaua", 4, True, 1),
        ("sua", 3, True, 0),
        ("sua", 3, False, 1),
        ("ucra", 3, True, None),
        ("ucraua", 5, True, 4),
        ("aaa", 3, True, 0),
        ("aaa", 3, False, None),
        ("aaa", 2, True, None),
        ("ua", 0, True, 2),
    ],
)
def test_where_a_window_starts(shape: str, most: int, complete: bool, found: int | None) -> None:
    assert cut_at(shape, complete=complete, max_messages=most) == found


def test_with_keep_the_beginning_of_a_turn_over_the_budget_is_looked_for() -> None:
    messages = log("uaucrcra")
    fitter = Fitter(Window[ChatMessage](max_messages=2, overflow="keep"), codec)
    for message in reversed(messages):
        if fitter.done:
            break
        fitter.add(message, codec.encode(message).starts_turn)
    assert fitter.messages == fitter.taken(complete=False) == 6


def test_both_budgets_are_kept() -> None:
    assert cut_at("uauaua", max_messages=4, max_tokens=1000) == 2
    assert cut_at("uauaua", max_messages=6, max_tokens=15) == 4


def test_the_callers_count_is_used() -> None:
    assert cut_at("uauaua", max_tokens=4, count=lambda message: 1) == 2


@pytest.mark.parametrize("returned", [-1, 1.5, True, None, "3"])
def test_a_count_that_is_none_is_refused(returned: Any) -> None:
    with pytest.raises(ValueError, match="count must return an int of 0 or more"):
        cut_at("ua", max_tokens=4, count=lambda message: returned)


def test_the_window_error_says_the_sizes_and_the_mend() -> None:
    messages = log("ucrcra")
    fitter = Fitter(Window[ChatMessage](max_messages=3, max_tokens=30), codec)
    for message in reversed(messages):
        fitter.add(message, codec.encode(message).starts_turn)
    with pytest.raises(
        WindowError,
        match=r"^the newest turn does not fit the window: its newest 6 messages, about \d\d tokens, are over "
        r"max_messages=3 and max_tokens=30\. Raise the budget",
    ):
        fitter.taken(complete=True)


@pytest.mark.parametrize(
    ("shape", "window", "words"),
    [
        ("ucr", Window(max_messages=2), "its newest 3 messages are over max_messages=2. Raise"),
        (
            "ucr",
            Window(max_messages=9, max_tokens=2, count=lambda _: 1),
            "its newest 3 messages, 3 tokens, are over max_tokens=2. Raise",
        ),
        ("u", Window(max_tokens=2, count=lambda _: 3), "its newest message, 3 tokens, is over max_tokens=2. Raise"),
    ],
)
def test_the_window_error_names_the_budgets_that_are_exceeded_alone(
    shape: str, window: Window[ChatMessage], words: str
) -> None:
    fitter = Fitter(window, codec)
    for message in reversed(log(shape)):
        fitter.add(message, codec.encode(message).starts_turn)
    with pytest.raises(WindowError) as caught:
        fitter.taken(complete=True)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs max_messages=, max_tokens= or reducers="),
        ({"max_messages": -1}, "max_messages must be an int of 0 or more, not -1"),
        ({"max_messages": True}, "max_messages must be an int"),
        ({"max_tokens": 1.5}, "max_tokens must be an int"),
        ({"max_tokens": "9"}, "max_tokens must be an int"),
        ({"max_tokens": 9, "count": 3}, "count must be a function"),
        ({"max_messages": 9, "count": len}, "count= is used for max_tokens= alone"),
        ({"max_messages": 9, "reducers": drop_tool_bodies()}, "sequence of functions"),
        ({"max_messages": 9, "reducers": [None]}, "sequence of functions"),
        ({"max_messages": 9, "overflow": "drop"}, 'overflow must be "error", "keep" or "empty"'),
    ],
)
def test_a_window_that_makes_no_sense_is_refused_in_words(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Window(**options)


# The estimate


def test_the_estimate_counts_what_is_said_called_and_returned() -> None:
    assert estimate_tokens(ChatMessage.user("x" * 40)) == 4 + 10
    assert estimate_tokens(ChatMessage.user([{"type": "text", "text": "x" * 41}])) == 4 + 11
    call = ChatMessage.assistant(tool_calls=[ToolCall("id" * 50, "name" * 50, "x" * 40)])
    assert estimate_tokens(call) == 4 + 10
    assert estimate_tokens(OpenAIChatCodec().decode(call.data, _record("chat/1"))) == 4 + 10
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t" * 99, "content": "x" * 40}]}
    assert estimate_tokens(result) == 4 + 10
    assert estimate_tokens(ChatMessage.user("", metadata={"text": "x" * 4000})) == 4
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 4000}}]}
    assert estimate_tokens(image) == 4


def test_arguments_that_are_an_object_count_about_as_much_as_their_text() -> None:
    as_object = estimate_tokens(ChatMessage.assistant(tool_calls=[ToolCall("1", "f", {"a": "x" * 100})]))
    as_text = estimate_tokens(ChatMessage.assistant(tool_calls=[ToolCall("1", "f", '{"a": "' + "x" * 100 + '"}')]))
    assert abs(as_object - as_text) <= 1


# Reducers


def _record(form: str) -> Any:
    from chatkeep.records import Record

    return Record(1, None, "user", False, form, None, None, b"")


async def reduce(messages: list[Any], *reducers: Any, by: Any = codec) -> list[Any]:
    return await reduced(messages, window=Window(max_messages=1, reducers=reducers), codec=by)


@pytest.mark.parametrize(
    ("keep_last", "left"),
    [
        (0, ["[dropped]", "[dropped]"]),
        (1, ["[dropped]", "result 5"]),
        (2, ["result 2", "result 5"]),
        (9, ["result 2", "result 5"]),
    ],
)
async def test_tool_bodies_are_dropped_but_for_the_newest_and_every_call_keeps_its_answer(
    keep_last: int, left: list[str]
) -> None:
    messages = log("ucracrua")
    result = await reduce(messages, drop_tool_bodies(keep_last=keep_last))
    assert [message.text for message in result if message.role == "tool"] == left
    assert [codec.links(message) for message in result] == [codec.links(message) for message in messages]
    others = [(new, old) for new, old in zip(result, messages, strict=True) if old.role != "tool"]
    assert all(new is old for new, old in others)
    assert [message.text for message in messages if message.role == "tool"] == ["result 2", "result 5"]


async def test_tool_bodies_are_dropped_from_anthropic_style_results_and_words_of_the_user_stay() -> None:
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "long"}]}
    mixed = {"role": "user", "content": [*result["content"], {"type": "text", "text": "and?"}]}
    dropped = await reduce([result, mixed], drop_tool_bodies(0, "-"), by=OpenAIChatCodec())
    assert dropped == [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "-"}]},
        mixed,
    ]


async def test_older_turns_become_one_message_before_the_kept_ones() -> None:
    messages = log("suaucrauaua")
    seen: list[Any] = []

    async def tell(older: list[ChatMessage]) -> ChatMessage:
        seen.extend(older)
        return ChatMessage.system(f"{len(older)} messages earlier")

    result = await reduce(messages, summarise(tell, keep_turns=2))
    assert seen == messages[1:7]
    assert result == [messages[0], ChatMessage.system("6 messages earlier"), *messages[7:]]


async def test_a_summary_may_be_made_without_awaiting_and_of_everything() -> None:
    messages = log("uaua")
    assert await reduce(messages, summarise(lambda older: older[-1], keep_turns=0)) == [messages[-1]]


async def test_without_older_turns_nothing_is_summarised() -> None:
    messages = log("suaua")
    assert await reduce(messages, summarise(lambda older: pytest.fail("called"), keep_turns=2)) == messages


async def test_a_summary_that_is_no_message_is_refused() -> None:
    with pytest.raises(SerializationError, match=r"ChatMessage\.user\(text\)"):
        await reduce(log("uaua"), summarise(lambda older: "a text", keep_turns=1))


async def test_reducers_run_in_order_and_get_lists_of_their_own() -> None:
    messages = log("uaua")

    def drop_first(given: list[Any], codec: Any) -> list[Any]:
        del given[0]
        return given

    async def drop_last(given: list[Any], codec: Any) -> list[Any]:
        return given[:-1]

    assert await reduce(messages, drop_first, drop_last) == messages[1:3]
    assert messages == log("uaua")


async def test_a_reducer_that_returns_no_list_is_named() -> None:
    def forgetful(messages: list[Any], codec: Any) -> None:
        return None

    with pytest.raises(
        TypeError, match="the reducer forgetful must return a list of messages, and it returned NoneType"
    ):
        await reduce(log("ua"), forgetful)


@pytest.mark.parametrize("number", [-1, True, 1.5])
def test_how_much_a_reducer_keeps_is_checked(number: Any) -> None:
    with pytest.raises(ValueError, match="keep_last must be an int of 0 or more"):
        drop_tool_bodies(number)
    with pytest.raises(ValueError, match="keep_turns must be an int of 0 or more"):
        summarise(max, number)
