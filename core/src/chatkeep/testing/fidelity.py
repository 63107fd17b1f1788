"""Clauses 15 to 19: what is stored comes back as it was, or is refused in words."""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
import os
import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel

from chatkeep import (
    ChatMessage,
    CorruptRecordError,
    MessageTooLargeError,
    RegisteredType,
    SerializationError,
    Session,
    Store,
    Window,
)
from chatkeep.records import Key, Record, Scope, Select, Span, StateOp, Write

from .clauses import clause
from .harness import Harness, Opener, commit_raw, identical, texts, turn


class Booking(BaseModel):
    flight: str
    seats: int = 1
    paid: Decimal | None = None


@dataclasses.dataclass
class Bag:
    tag: str
    weights: list[float]


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Money:
    """A class that only its own functions know how to write."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    __hash__ = None  # type: ignore[assignment]


TYPES: tuple[Any, ...] = (
    Booking,
    Bag,
    ("contract.colour", Colour),
    Point,
    RegisteredType("contract.money", Money, dump=lambda money: money.cents, load=Money),
)

TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\x01\x1f\x7f\x80\x9f",
    "\u2028\u2029",
    "\ufeff",
    "\ufffe\uffff",
    "é e\u0301",
    "👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "\U0010ffff",
    "\u202eright to left",
    "\ud800",
    "\udfff and \ud83d",
    "\ud83d\ude00",  # two surrogates, and no emoji
    "\r\n\t\b\f",
    "\"\\/'`",
    "</script><!--",
    "'; DROP TABLE messages; --",
    "null",
    "NaN",
    '{"a": 1}',
    "%s %d {} {0} $1 ?",
]

NUMBERS = [
    0,
    -1,
    2**31,
    2**53,
    2**53 + 1,
    -(2**63),
    2**63,
    2**64 - 1,
    2**64 + 1,
    -(10**100),
    10**600,
    2**5000 + 1,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    0.1 + 0.2,
    1e16,
    1e22,
    1e23,
    1.7976931348623157e308,
    2.2250738585072014e-308,
    5e-324,
    math.pi,
    123456789012345.678,
]


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


VALUES: list[Any] = [
    None,
    True,
    False,
    *TEXTS,
    *NUMBERS,
    [],
    {},
    [[]],
    [{}],
    {"": {}},
    {"a": None, "b": [None]},
    {"$set": 1, "$where": "x", "a.b": 2, ".": 3, "": 4, "$": 5, "a": {"$gt": {"": {"..": 1}}}},
    {"_id": 1, "__class__": "os.system", "__proto__": {}, "constructor": {}},
    dict.fromkeys((text for text in TEXTS if text != "\ud83d\ude00"), "value"),
    {"A": 1, "a": 2, "\u00e9": 3, "e\u0301": 4},
    {f"key {number}": number for number in range(1000)},
    list(range(3000)),
    nested(150),
    nested(450),
    [1, 1.0, True, "1", None],
]

TAGGED: list[Any] = [
    b"",
    b"\0\xff" * 50,
    datetime(2024, 2, 29, 23, 59, 59, 999999),  # noqa: DTZ001 - a naive one comes back naive
    datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime.min,  # noqa: DTZ901
    date(1, 1, 1),
    time(23, 59, 59, 1),
    timedelta(days=-1, microseconds=1),
    Decimal("0.10"),
    Decimal("-1E+400"),
    Decimal("123456789012345678901234567890.123456789"),
    UUID(int=0),
    UUID("12345678-1234-5678-1234-567812345678"),
    (),
    (1, ("a", [b"x"])),
    {1, 2},
    frozenset({"a"}),
    Booking(flight="DY1", seats=2, paid=Decimal("12.50")),
    Bag("OSL", [1.5, -0.0]),
    Colour.RED,
    Point(1, -2),
    Money(1250),
    {"list": [Booking(flight="DY2"), {"at": datetime(2024, 1, 1, tzinfo=UTC), "raw": b"\0"}], "n": Decimal(1)},
]

FORGED: list[Any] = [
    {"$chatkeep": "bytes", "v": "AAAA"},
    {"$chatkeep": "type:Booking", "v": {"flight": "DY1"}},
    {"$chatkeep": "type:os.system", "v": ["echo"]},
    {"$chatkeep": "dict", "v": {"$chatkeep": "uuid", "v": "x"}},
    {"$chatkeep": "no such tag", "v": None},
    {"$chatkeep": 1},
    {"$chatkeep": "bytes", "v": "AAAA", "more": 1},
    {"$chatkeep": {"$chatkeep": {}}},
    {"v": 1, "$CHATKEEP": "bytes"},
    ["$chatkeep", "bytes", "AAAA"],
    {"$chatkeep": "decimal", "v": Decimal(1), "at": b"real ones inside"},
]


def _self_containing() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: dict[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "decimal NaN": Decimal("NaN"),
    "object": object(),
    "function": len,
    "generator": (number for number in range(3)),
    "class": Booking,
    "an unregistered model": type("Other", (BaseModel,), {})(),
    "number as key": {1: "a"},
    "None as key": {None: "a"},
    "bytes as key": {b"a": 1},
    "tuple as key": {("a", 1): 1},
    "contains itself": _self_containing(),
    "an exception": ValueError("x"),
    "a file": os,
}
"""None of these can be represented: each stands at ``["deep"][1]`` of the value that is stored."""


class Fidelity(Harness):
    @clause(15)
    @pytest.mark.parametrize("store_text", [False, True])
    async def test_payloads_come_back_equal(self, opened: Opener, store_text: bool) -> None:
        session = opened(store_text=store_text).session("s")
        messages = [_carrying(value) for value in VALUES]
        messages += [ChatMessage.user(text) for text in TEXTS]
        messages += [ChatMessage.user([{"type": "text", "text": text, text: text}]) for text in TEXTS[:12]]
        await session.append(messages)
        assert identical([message.data for message in await session.messages()], [each.data for each in messages])
        assert identical([message.data async for message in session.stream()], [each.data for each in messages])
        assert identical([message.data for message in await session.pop(3)], [each.data for each in messages[-3:]])

    @clause(15)
    async def test_state_and_metadata_come_back_equal(self, opened: Opener) -> None:
        session = opened().session("s")
        await session.state.update({f"key {place}": value for place, value in enumerate(VALUES)})
        for place, value in enumerate(VALUES):
            assert identical(await session.state.get(f"key {place}"), value)
        items = await session.state.items()
        assert identical([items[f"key {place}"] for place in range(len(VALUES))], VALUES)
        for value in VALUES:
            if value is not None and len(repr(value)) < 5000:
                await session.update(metadata={"value": value})
                info = await session.info()
                assert info is not None
                assert identical(info.metadata["value"], value)

    @clause(15)
    async def test_types_beyond_json_come_back_as_what_they_were(self, opened: Opener) -> None:
        store = opened(types=TYPES)
        session = store.session("s")
        await session.append([_carrying(value) for value in TAGGED])
        found = [message.tool_calls[0].arguments for message in await session.messages()]
        assert identical(found, TAGGED)
        for place, value in enumerate(TAGGED):
            await session.state.set(f"key {place:03}", value)
        assert identical(list((await session.state.items()).values()), TAGGED)
        again = await opened(types=TYPES).session("s").messages()
        assert identical([message.tool_calls[0].arguments for message in again], TAGGED)

    @clause(15)
    async def test_a_users_data_cannot_pass_for_the_envelope(self, opened: Opener) -> None:
        session = opened(types=TYPES).session("s")
        await session.append([_carrying(value) for value in FORGED])
        found = [message.tool_calls[0].arguments for message in await session.messages()]
        assert identical(found, FORGED)
        await session.append([ChatMessage("user", [each for each in FORGED if isinstance(each, dict)])])
        (message,) = await session.messages(last=1)
        assert identical(message.content, [each for each in FORGED if isinstance(each, dict)])
        for value in FORGED:
            await session.state.set("k", value)
            assert identical(await session.state.get("k"), value)
            await session.update(metadata={"m": value}, service_session_id={"id": value})
            info = await session.info()
            assert info is not None
            assert identical([info.metadata["m"], info.service_session_id], [value, {"id": value}])

    @clause(15)
    async def test_a_message_is_kept_whole(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        message = ChatMessage(
            "assistant",
            [
                {"type": "text", "text": "a"},
                {"type": "image", "url": "data:,"},
                {"type": "unheard of", "x": {"y": [1]}},
            ],
            tool_calls=[{"id": "c1", "name": "f", "arguments": '{"a":1.0}', "extra": True}],
            tool_call_id="c0",
            name="agent",
            id="m1",
            metadata={"usage": {"tokens": 5}, "model": "m"},
        )
        message.data["refusal"] = None
        await session.append([message])
        (found,) = await session.messages()
        assert identical(found.data, message.data)
        page = await session.records()
        (record,) = page.records
        assert (record.seq, record.id, record.role, record.starts_turn) == (1, "m1", "assistant", False)

    @clause(16)
    @pytest.mark.parametrize("name", REFUSED)
    async def test_what_cannot_be_represented_is_refused_with_its_path_and_nothing_is_written(
        self, store: Store[ChatMessage], name: str
    ) -> None:
        value = {"deep": [0, REFUSED[name]]}
        session, absent = store.session("s"), store.session("absent")
        await session.append(turn(1))
        await session.state.set("k", 1)
        await session.update(metadata={"k": 1})
        before = await session.info()
        with pytest.raises(SerializationError) as caught:
            await session.append([ChatMessage.user("good"), _carrying(value)])
        place = "messages[1].tool_calls[0].arguments.deep[1]"
        assert caught.value.path.startswith(place)
        assert place in str(caught.value)
        for refused in (
            absent.append([ChatMessage.user("good"), _carrying(value)]),
            session.replace(1, _carrying(value)),
            session.replace_prefix(2, [_carrying(value)]),
            session.log("side").append([_carrying(value)]),
            session.state.set("k", value),
            session.state.update({"k": 2, "l": value}),
            absent.state.set("k", value),
            store.state.set("k", value),
            session.update(title="t", metadata={"k": value}),
            session.update(service_session_id=value),
        ):
            with pytest.raises(SerializationError, match=r"deep\[1\]") as caught:
                await refused
            assert ".deep[1]" in caught.value.path
        assert await session.info() == before
        assert (await session.messages(), await session.state.items()) == (turn(1), {"k": 1})
        assert not await absent.exists()
        assert await store.state.keys() == []

    @clause(16)
    async def test_a_value_that_does_not_fit_its_announced_type_is_refused(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        with pytest.raises(SerializationError):
            await session.state.set("k", {"seats": "many"}, type=Booking)
        assert not await session.exists()

    @clause(17)
    async def test_a_message_of_5_mb_works(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        large = ChatMessage.assistant("".join(f"{number:07} é " for number in range(470_000)), id="large")
        await session.append([ChatMessage.user("before"), large, ChatMessage.user("after")])
        assert len(large.text.encode()) > 5_000_000
        assert await session.messages() == [ChatMessage.user("before"), large, ChatMessage.user("after")]
        assert await session.messages(after=1, limit=1) == [large]
        await session.append([large])
        assert await session.count() == 3
        await session.replace(2, large)
        await session.redact(2, "gone")
        assert texts(await session.messages()) == ["before", "gone", "after"]

    @clause(17)
    async def test_a_batch_of_300_messages_works(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        batch = [ChatMessage.user(f"message {number} " + "x" * 5000, id=f"id-{number}") for number in range(300)]
        appended = await session.append(batch)
        assert (list(appended.seqs), appended.added) == (list(range(1, 301)), 300)
        assert await session.messages() == batch
        assert (await session.append(batch)).added == 0
        assert await session.pop(299) == batch[1:]

    @clause(17)
    async def test_a_history_of_10_000_messages_works(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        for start in range(0, 10_000, 500):
            await session.append([ChatMessage.user(f"message {number}") for number in range(start, start + 500)])
        assert await session.count() == 10_000
        expected = [f"message {number}" for number in range(10_000)]
        assert texts(await session.messages()) == expected
        assert texts(await session.messages(last=3)) == expected[-3:]
        assert texts(await session.messages(before=5001, limit=2)) == expected[4998:5000]
        assert texts(await session.messages(after=9000, limit=2)) == expected[9000:9002]
        await session.replace_prefix(9990, [ChatMessage.system("summary")])
        assert texts(await session.messages()) == ["summary", *expected[9990:]]
        assert await session.delete()
        assert await session.messages() == []

    @clause(17)
    async def test_a_message_above_the_limit_is_refused_and_nothing_is_written(self, opened: Opener) -> None:
        store = opened(max_message_bytes=1000)
        session = store.session("s")
        fits = ChatMessage.user("x" * 900)
        for large in (ChatMessage.user("x" * 1000), ChatMessage.user("é" * 500), ChatMessage.user("\ud800" * 170)):
            for refused in (
                session.append([fits, large]),
                session.log("side").append([large]),
                session.state.set("k", large.text),
            ):
                with pytest.raises(MessageTooLargeError, match="max_message_bytes is 1000"):
                    await refused
        with pytest.raises(MessageTooLargeError, match=r"messages\[1\]"):
            await session.append([fits, ChatMessage.user("x" * 1000)])
        assert not await session.exists()
        await session.append([fits])
        with pytest.raises(MessageTooLargeError):
            await session.replace(1, ChatMessage.user("x" * 1000))
        with pytest.raises(MessageTooLargeError):
            await session.replace_prefix(1, [ChatMessage.user("x" * 1000)])
        assert await session.messages() == [fits]

    @clause(17)
    async def test_a_batch_above_the_limit_is_refused_and_nothing_is_written(self, opened: Opener) -> None:
        session = opened(max_batch_bytes=5000).session("s")
        with pytest.raises(MessageTooLargeError, match="max_batch_bytes is 5000"):
            await session.append([ChatMessage.user("x" * 100) for _ in range(50)])
        assert not await session.exists()
        await session.append([ChatMessage.user("x" * 100) for _ in range(30)])
        assert await session.count() == 30

    @clause(18)
    async def test_a_damaged_record_is_an_error_that_names_session_and_seq_and_harms_no_other(
        self, store: Store[ChatMessage]
    ) -> None:
        for name, damage in DAMAGE.items():
            session = store.session(f"s {name}")
            await session.append(turn(1))
            await _store_raw(store, session, damage)
            await session.append(turn(2))
            with pytest.raises(CorruptRecordError, match=f"{session.id!r}") as caught:
                await session.messages()
            assert (caught.value.seq, caught.value.record is not None) == (3, True)
            assert "3" in str(caught.value)
            assert await session.messages(last=2) == turn(2)
            assert await session.messages(before=3) == turn(1)
            assert await session.messages(window=Window(max_messages=2)) == turn(2)
            assert await session.count() == 5
            with pytest.raises(CorruptRecordError):
                await anext(session.stream(after=2))
            await session.append(turn(3))
            assert await session.pop(2) == turn(3)
            await session.replace(3, ChatMessage.user("mended"))
            assert texts(await session.messages(limit=3))[2] == "mended"

    @clause(18)
    async def test_skipped_records_are_logged_and_counted_and_last_n_still_returns_n(
        self, opened: Opener, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = opened(on_corrupt="skip")
        session = store.session("s")
        expected = list[ChatMessage]()
        for number in range(8):
            await session.append(turn(number))
            expected += turn(number)
            for damage in DAMAGE.values():
                await _store_raw(store, session, damage)
        with caplog.at_level(logging.WARNING, logger="chatkeep"):
            history = await session.messages()
        assert history == expected
        assert history.skipped == 8 * len(DAMAGE)
        assert len([record for record in caplog.records if "'s'" in record.getMessage()]) == history.skipped
        step = 2 + len(DAMAGE)
        assert history.seqs == [place for start in range(8) for place in (start * step + 1, start * step + 2)]
        for last in (1, 2, 3, 5, 16):
            newest = await session.messages(last=last)
            assert newest == expected[-last:]
            assert newest.seqs == history.seqs[-last:]
        page, seen = await session.messages(limit=3), list[ChatMessage]()
        while page:
            seen += page
            page = await session.messages(after=page.end, limit=3)
        assert seen == expected
        assert [message async for message in session.stream()] == expected
        assert await session.messages(window=Window(max_messages=4)) == expected[-4:]

    @clause(18)
    async def test_raw_records_are_returned_as_they_are_stored(self, opened: Opener) -> None:
        store = opened(on_corrupt="raw")
        session = store.session("s")
        await session.append(turn(1))
        for damage in DAMAGE.values():
            await _store_raw(store, session, damage)
        found: list[Any] = list(await session.messages())
        assert found[:2] == turn(1)
        assert [(each.payload, each.format) for each in found[2:]] == [
            (each.payload, each.format) for each in DAMAGE.values()
        ]
        window: Window[ChatMessage] = Window(max_messages=5)
        assert await session.messages(window=window) == turn(1)

    @clause(18)
    async def test_a_damaged_state_value_harms_only_itself(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.state.update({"good": 1, "spoilt": 2, "typed": 3})
        operations = [StateOp("spoilt", "json/1", b"{"), StateOp("typed", "pickle/1", pickle.dumps(3))]
        await commit_raw(store, Key(session.scope, session.id), Write(os.urandom(16), state=operations))
        for key in ("spoilt", "typed"):
            with pytest.raises(CorruptRecordError, match=f"{key}.*'s'"):
                await session.state.get(key)
        with pytest.raises(CorruptRecordError):
            await session.state.items()
        assert await session.state.get("good") == 1
        assert await session.state.keys() == ["good", "spoilt", "typed"]
        await session.state.set("spoilt", "mended")
        await session.state.delete("typed")
        assert await session.state.items() == {"good": 1, "spoilt": "mended"}

    @clause(18)
    async def test_verify_finds_what_is_wrong_and_repair_quarantines_it(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        call = ChatMessage.assistant(tool_calls=[{"id": "c1", "name": "look_up", "arguments": "{}"}])
        await session.append(turn(1, tools=2))
        assert await session.verify() == []
        assert await session.repair() == []
        await _store_raw(store, session, DAMAGE["no JSON"])
        await _store_raw(store, session, DAMAGE["an unknown format"])
        await session.append([ChatMessage.tool("nobody asked", tool_call_id="c0"), *turn(2), call])
        before = {record.seq: record for record in (await session.records()).records}
        findings = await session.verify()
        assert [(finding.seq, finding.kind) for finding in findings] == [
            (7, "damaged"),
            (8, "unknown format"),
            (9, "result without call"),
            (12, "call without result"),
        ]
        assert all(finding.detail for finding in findings)
        with pytest.raises(CorruptRecordError):
            await session.messages()
        assert await session.repair() == findings
        history = await session.messages()
        assert history == [*turn(1, tools=2), *turn(2)]
        assert history.seqs == [1, 2, 3, 4, 5, 6, 10, 11]
        assert await session.messages(last=3) == [*turn(1, tools=2)[-1:], *turn(2)]
        stored = (await session.records(Span())).records
        assert [record.seq for record in stored] == list(before)
        for record in stored:
            if record.seq in (7, 8, 9, 12):
                assert record.format == "quarantine/1"
                held = store.serializer.loads(record.payload)
                assert (held["payload"], held["format"]) == (before[record.seq].payload, before[record.seq].format)
            else:
                assert record == before[record.seq]
        assert await session.verify() == []
        assert await session.repair() == []

    @clause(18)
    async def test_a_conversation_that_died_inside_a_tool_goes_on_after_repair(self, opened: Opener) -> None:
        session = opened().session("s")
        asked = [
            ChatMessage.user("question 2"),
            ChatMessage.assistant(
                tool_calls=[{"id": name, "name": "look_up", "arguments": "{}"} for name in ("c1", "c2")]
            ),
            ChatMessage.tool("result 1", tool_call_id="c1", name="look_up"),
        ]
        await session.append([*turn(1, tools=1), *asked])
        later = opened().session("s")
        assert [finding.kind for finding in await later.repair()] == ["call without result", "result without call"]
        await later.append(turn(3, tools=1))
        assert await later.messages() == [*turn(1, tools=1), asked[0], *turn(3, tools=1)]
        assert await later.messages(window=Window(max_messages=5)) == [asked[0], *turn(3, tools=1)]
        assert await later.verify() == []

    @clause(19)
    async def test_a_record_of_stored_form_1_is_read(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        payload = (
            b'{"role":"assistant","content":[{"type":"text","text":"\\u00e9\\u2028\\ud83d\\ude00"}],"tool_calls":'
            b'[{"id":"c","name":"f","arguments":{"at":{"$chatkeep":"datetime","v":"2024-02-29T12:00:00+00:00"},'
            b'"raw":{"$chatkeep":"bytes","v":"AP8="},"big":18446744073709551617,"n":{"$chatkeep":"decimal","v":"1.50"}'
            b'}}],"metadata":{"x":{"$chatkeep":"dict","v":{"$chatkeep":"y"}}},"later member":[1.0]}'
        )
        await _store_raw(store, session, Record(0, "m", "assistant", False, "chat/1", None, None, payload))
        (message,) = await session.messages()
        arguments = {
            "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
            "raw": b"\0\xff",
            "big": 2**64 + 1,
            "n": Decimal("1.50"),
        }
        expected = {
            "role": "assistant",
            "content": [{"type": "text", "text": "é\u2028😀"}],
            "tool_calls": [{"id": "c", "name": "f", "arguments": arguments}],
            "metadata": {"x": {"$chatkeep": "y"}},
            "later member": [1.0],
            "id": "m",  # the record's
        }
        assert identical(message.data, expected)

    @clause(19)
    async def test_state_of_stored_form_1_is_read(self, store: Store[ChatMessage]) -> None:
        operation = StateOp("k", "json/1", b'{"a":[1,1.0,{"$chatkeep":"tuple","v":[null]}]}')
        await commit_raw(store, Key(Scope(), "s"), Write(os.urandom(16), state=[operation]))
        assert identical(await store.session("s").state.get("k"), {"a": [1, 1.0, (None,)]})

    @clause(19)
    async def test_what_is_written_says_its_version(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))
        await session.state.set("k", 1)
        assert {record.format for record in (await session.records()).records} == {"chat/1"}
        page = await store.backend.state(Key(Scope(), "s"), Select())
        assert [entry.format for entry in page.entries] == ["json/1"]

    @clause(19)
    async def test_a_newer_form_is_refused_in_words(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        newer = Record(0, None, "user", True, "chat/2", None, None, b'{"role":"user","content":"from the future"}')
        await _store_raw(store, session, newer)
        with pytest.raises(CorruptRecordError, match=r"newer chatkeep.*upgrade") as caught:
            await session.messages()
        assert caught.value.seq == 1
        operation = StateOp("k", "json/2", b"1")
        await commit_raw(store, Key(Scope(), "s"), Write(os.urandom(16), state=[operation]))
        with pytest.raises(CorruptRecordError, match=r"newer chatkeep.*upgrade"):
            await session.state.get("k")

    @clause(19)
    async def test_stored_data_names_no_code_to_import(self, store: Store[ChatMessage], tmp_path: Any) -> None:
        session = store.session("s")
        witness = tmp_path / "witness"
        payloads = [
            pickle.dumps(_Exploit(str(witness))),
            b'{"role":"user","content":{"$chatkeep":"type:pathlib.Path","v":"x"}}',
            b'{"role":"user","metadata":{"$chatkeep":"type:os.system","v":"true"}}',
            b'{"role":"user","metadata":{"$chatkeep":"python/object:os.system","v":"true"}}',
        ]
        for payload in payloads:
            await _store_raw(store, session, Record(0, None, "user", True, "chat/1", None, None, payload))
            with pytest.raises(CorruptRecordError):
                await session.messages(last=1)
        lc = {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}, "py/object": "os"}
        await session.append([ChatMessage.user("x", metadata=lc)])
        assert identical((await session.messages(last=1))[0].metadata, lc)
        assert not witness.exists()


DAMAGE = {
    "no JSON": Record(0, None, "user", True, "chat/1", None, None, b"\x80\x05 no JSON"),
    "half a JSON text": Record(0, None, "user", True, "chat/1", None, None, b'{"role":"user","content":"ha'),
    "nothing": Record(0, None, "user", True, "chat/1", None, None, b""),
    "no message": Record(0, None, "user", True, "chat/1", None, None, b'["user","hello"]'),
    "NaN": Record(0, None, "user", True, "chat/1", None, None, b'{"role":"user","content":NaN}'),
    "an unknown format": Record(0, None, "user", True, "smoke/1", None, None, b'{"role":"user"}'),
    "an unknown tag": Record(
        0, None, "user", True, "chat/1", None, None, b'{"role":"user","x":{"$chatkeep":"?","v":1}}'
    ),
    "an absent type": Record(
        0, None, "user", True, "chat/1", None, None, b'{"role":"user","x":{"$chatkeep":"type:Absent","v":1}}'
    ),
}


class _Exploit:
    """What would make a file if it were unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def _carrying(value: Any) -> ChatMessage:
    """A message with the value in it."""
    return ChatMessage.assistant(tool_calls=[{"id": "c", "name": "f", "arguments": value}])


async def _store_raw(store: Store[Any], session: Session[Any], record: Record) -> None:
    """Store a record past codec and serializer."""
    await commit_raw(store, Key(session.scope, session.id), Write(os.urandom(16), append=[record]))
