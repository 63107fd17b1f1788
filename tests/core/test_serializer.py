"""The stored form: what goes in comes out, and what cannot is refused with its place."""

# ruff: noqa: DTZ001 - times without a zone are stored too

from __future__ import annotations

import dataclasses
import json
import math
import struct
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field

from chatkeep.errors import ConfigError, CorruptRecordError, SerializationError
from chatkeep.serializer import DEPTH_LIMIT, RegisteredType, SessionSerializer

GOLDEN = json.loads((Path(__file__).parent / "golden" / "format-1.json").read_text(encoding="utf-8"))
OSLO = ZoneInfo("Europe/Oslo")
plain = SessionSerializer()


class Cabin(Enum):
    ECONOMY = "economy"
    BUSINESS = "business"


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Seat(NamedTuple):
    row: int
    letter: str


@dataclasses.dataclass(frozen=True)
class Passenger:
    name: str
    born: date
    cabin: Cabin = Cabin.ECONOMY


class Tags(RootModel[list[str]]):
    pass


class Booking(BaseModel):
    code: str = Field(alias="bookingCode")
    at: datetime
    price: Decimal
    passengers: list[Passenger]
    seat: Seat
    ticket: bytes
    page: AnyUrl
    tags: Tags
    known: set[UUID]

    @computed_field
    def size(self) -> int:
        return len(self.passengers)


def a_booking() -> Booking:
    return Booking(
        bookingCode="ZFA04Y",
        at=datetime(2024, 5, 15, 15, 0, tzinfo=UTC),
        price=Decimal("1.10"),
        passengers=[Passenger("Ivan", date(1990, 1, 2), Cabin.BUSINESS)],
        seat=Seat(12, "C"),
        ticket=b"\x00\xff",
        page=AnyUrl("https://example.org/b"),
        tags=Tags(["late"]),
        known={UUID(int=1)},
    )


GOLDEN_TYPES = SessionSerializer([Cabin, Passenger])
GOLDEN_VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "text": 'a "quoted" \\ \x00 \u2028 é 😀',
    "lone surrogate": "a\ud800b",
    "two surrogates": ["\ud83d\ude00"],
    "integers": [0, -1, 2**63, 2**64, -(2**200)],
    "huge integer": -(2**2048),
    "floats": [0.1, -0.0, 1.5, 1e-5, 5e-324, 100.0],  # spelled alike by all releases of pydantic
    "empty": {"": [], "a": {}},
    "keys": {"$a": 1, "a.b": 2, "\x00": 3},
    "bytes": b"\x00\xff",
    "datetime": datetime(2024, 5, 15, 15, 0, 0, 7),
    "datetime utc": datetime(2024, 5, 15, 15, 0, tzinfo=UTC),
    "datetime fold": datetime(2024, 10, 27, 2, 30, fold=1),
    "datetime zone": datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=OSLO),
    "date": date(2024, 2, 29),
    "time": time(23, 59, 59, 999999),
    "timedelta": timedelta(days=-1, seconds=5, microseconds=7),
    "decimal": Decimal("-0.00"),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "tuple": (1, ("a",)),
    "set": {"b", "a", (2, 1), 10, 9},
    "frozenset": frozenset({frozenset({1})}),
    "escaped": {"$chatkeep": "bytes", "v": {"$chatkeep": b"x"}},
    "enum": Cabin.BUSINESS,
    "dataclass": [Passenger("Ivan", date(1990, 1, 2))],
    "message": {
        "role": "assistant",
        "tool_calls": [{"id": "call_1", "name": "find_bag", "arguments": '{"tag": "OSL-77"}'}],
    },
    "deep": [[[[[[{"a": [(), b""]}]]]]]],
}


def same(left: Any, right: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, -0.0 from 0.0, a tuple from a list, and looks at the order of keys."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, datetime):
        return bool(left == right) and left.fold == right.fold and str(left) == str(right)
    if isinstance(left, Decimal):
        return str(left) == str(right)
    return bool(left == right)


texts = st.text(st.characters(codec=None, exclude_categories=())) | st.sampled_from(
    ["$chatkeep", "v", "", "\ud83d\ude00", "\ud800", "\x00", "type:Cabin"]
)
keys = st.text(st.characters(codec="utf-8")) | st.sampled_from(["$chatkeep", "v", "", ".", "$", "\ud800"])
offsets = (
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23))
    .filter(lambda offset: not offset or abs(offset) >= timedelta(seconds=1))
    .map(timezone)
)
zones = st.none() | offsets | st.just(OSLO)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**3000), 2**3000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
hashables = (
    scalars
    | st.binary()
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=st.none() | offsets)
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
)
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=25)
values = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.lists(inner).map(tuple)
        | st.sets(hashables)
        | st.frozensets(hashables)
    ),
    max_leaves=25,
)


def nested(levels: int, leaf: Any = 0, wrap: Any = lambda inner: [inner]) -> Any:
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


# Round trips


@given(json_values)
def test_json_values_come_back_the_same(value: Any) -> None:
    assert same(plain.loads(plain.dumps(value)), value)


@given(values)
def test_values_beyond_json_come_back_the_same(value: Any) -> None:
    assert same(plain.loads(plain.dumps(value)), value)


@given(json_values)
def test_what_is_stored_is_json_in_utf8_for_any_reader(value: Any) -> None:
    json.loads(plain.dumps(value).decode("utf-8"), parse_constant=pytest.fail)


@given(values)
def test_one_value_has_one_stored_form_and_stays_as_it_was(value: Any) -> None:
    before = repr(value)
    assert plain.dumps(value) == plain.dumps(value)
    assert repr(value) == before


@pytest.mark.parametrize("levels", [1, 199, 200, 201, 254, 255, 256, DEPTH_LIMIT])
def test_values_are_stored_up_to_the_depth_limit(levels: int) -> None:
    for wrap in (lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: OrderedDict(a=inner)):
        value = nested(levels, "\ud83d\ude00", wrap)
        assert plain.loads(plain.dumps(value)) == value
    value = nested(levels // 2, 0, lambda inner: (inner,))
    assert plain.loads(plain.dumps(value)) == value


def test_lone_surrogates_beside_values_in_envelopes_come_back() -> None:
    value = {"a": b"x", "b": "\ud800", "c": {"$chatkeep": ("\ud83d\ude00",)}}
    assert same(plain.loads(plain.dumps(value)), value)


def test_integers_of_any_size_come_back_where_python_reads_few_digits() -> None:
    values: list[Any] = [10**5000, {"a": 10**5000}, [-(10**5000)], {"a": [2**2048, 2**2048 - 1, 10**700]}]
    usual = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        for value in values:
            assert plain.loads(plain.dumps(value)) == value
            assert plain.loads(plain.dumps(["\ud800", value])) == ["\ud800", value]
    finally:
        sys.set_int_max_str_digits(usual)


def test_a_tuple_takes_two_levels() -> None:
    with pytest.raises(SerializationError, match=f"more than {DEPTH_LIMIT} levels"):
        plain.dumps(nested(DEPTH_LIMIT // 2 + 1, 0, lambda inner: (inner,)))


@pytest.mark.parametrize("levels", [DEPTH_LIMIT + 1, 100_000])
def test_deeper_values_are_refused_and_not_a_recursion_error(levels: int) -> None:
    for wrap in (lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: (inner,)):
        with pytest.raises(SerializationError, match=f"more than {DEPTH_LIMIT} levels"):
            plain.dumps(nested(levels, 0, wrap))


def test_a_value_that_contains_itself_is_refused() -> None:
    cycle: dict[str, Any] = {}
    cycle["a"] = [cycle, cycle]
    with pytest.raises(SerializationError, match="contains itself"):
        plain.dumps(cycle)


def test_a_stack_that_is_nearly_full_is_a_serialization_error_too() -> None:
    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        else:
            plain.dumps(nested(400, b"x"))

    with pytest.raises(SerializationError, match="stack"):
        descend(800)


def test_what_is_read_is_new_at_each_call() -> None:
    data = plain.dumps({"a": [1], "b": (b"x",)})
    first = plain.loads(data)
    first["a"].append(2)
    assert plain.loads(data) == {"a": [1], "b": (b"x",)}


def test_several_threads_may_use_one_serializer() -> None:
    value = {"a": [1, b"x", nested(300)]}
    done: list[bool] = []

    def work() -> None:
        done.append(all(plain.loads(plain.dumps(value)) == value for _ in range(50)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 4


def test_many_containers_are_stored_as_well() -> None:
    value = [[number] for number in range(150_000)]
    assert plain.loads(plain.dumps(value)) == value
    with pytest.raises(SerializationError, match=r"\$\[150000\]\[0\]"):
        plain.dumps([*value, [math.nan]])


# Subclasses


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (type("Text", (str,), {})("x"), "x"),
        (type("Number", (float,), {})(1.5), 1.5),
        (type("Row", (list,), {})([1]), [1]),
    ],
)
def test_subclasses_of_json_types_are_stored_as_their_base_value(value: Any, stored: Any) -> None:
    assert same(plain.loads(plain.dumps(value)), stored)
    assert same(plain.loads(plain.dumps([value, b""]))[0], stored)


def test_an_ordered_dict_keeps_the_order_that_it_shows() -> None:
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    assert list(plain.loads(plain.dumps(ordered))) == ["b", "a"]


# Refusals


class NoOffset(tzinfo):
    def utcoffset(self, when: datetime | None) -> None:
        return None

    dst = utcoffset
    tzname = utcoffset


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        (math.nan, "$", "use None or a text"),
        ({"args": [1, 2, {"x": math.inf}]}, "$.args[2].x", "-?inf"),
        ({"args": [1, 2, {"x": -math.inf}]}, "$.args[2].x", "-inf"),
        ({"a": b"x", "b": [math.nan]}, "$.b[0]", "nan"),
        ({"a": "\ud800", "b": [math.nan]}, "$.b[0]", "nan"),
        ([{"a": {1: "x"}}], "$[0].a", r"the key 1 is of type int.*str\(key\)"),
        ({"a": {None: 1}}, "$.a", "NoneType"),
        ({"a": {(1, 2): 1}}, "$.a", "tuple"),
        ({"a key": [object()]}, '$["a key"][0]', "object cannot be stored"),
        ((1, {"x": {2, 3, Decimal("NaN")}}), "$[1].x[*]", "NaN"),
        (Decimal("Infinity"), "$", "Infinity"),
        (bytearray(b"x"), "$", r"use bytes\(value\)"),
        (Cabin.ECONOMY, "$", r"register it: open_store\(\.\.\., types=\[Cabin\]\), or pass type=Cabin to state\.set"),
        ([Passenger("x", date(2000, 1, 1))], "$[0]", r"types=\[Passenger\]"),
        ({"b": a_booking()}, "$.b", r"types=\[Booking\]"),
        (Seat(1, "A"), "$", r"use tuple\(value\), or register it"),
        (iter(()), "$", "tuple_iterator cannot be stored"),
        (type("Moment", (datetime,), {})(2024, 1, 1), "$", "built-in type that it extends"),
        (datetime(2024, 1, 1, tzinfo=NoOffset()), "$", "gives no offset"),
        (time(1, 2, tzinfo=NoOffset()), "$", "gives no offset"),
        ([datetime(2024, 1, 1, tzinfo=timezone(timedelta(microseconds=-1)))], "$[0]", "less than a second off UTC"),
        (Booking, "$", "ModelMetaclass cannot be stored"),
        ({"x\ud83d\ude00": 1}, "$", "two surrogates in a row"),
        (3 + 4j, "$", r"RegisteredType\('complex', complex, dump=…, load=…\)"),
    ],
)
def test_what_cannot_come_back_is_refused_with_its_place(value: Any, path: str, words: str) -> None:
    with pytest.raises(SerializationError, match=words) as caught:
        plain.dumps(value)
    head, _, _ = path.partition("*")
    assert caught.value.path.startswith(head) if "*" in path else caught.value.path == path
    assert str(caught.value).startswith(f"{caught.value.path}: ")


def test_the_place_begins_with_the_prefix_that_the_caller_gives() -> None:
    with pytest.raises(SerializationError) as caught:
        plain.dumps({"args": [math.nan]}, path="messages[3]")
    assert caught.value.path == "messages[3].args[0]"


@given(st.lists(keys | st.integers(0, 3), max_size=6), st.sampled_from([math.nan, 1j, Cabin.ECONOMY]))
def test_the_place_leads_to_the_value(steps: list[Any], bad: Any) -> None:
    value = bad
    for step in reversed(steps):
        value = {"other": 1, step: value} if isinstance(step, str) else [0] * step + [value]
    with pytest.raises(SerializationError) as caught:
        plain.dumps(value)
    place = "$"
    for step in steps:
        place += f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{json.dumps(step)}]"
    assert caught.value.path == place


# The envelope


@given(json_values, st.sampled_from(["bytes", "datetime", "dict", "type:Cabin", "no such", 1, None]))
def test_data_cannot_pass_for_an_envelope(content: Any, tag: Any) -> None:
    for forged in ({"$chatkeep": tag, "v": content}, {"$chatkeep": tag}, {"v": content, "$chatkeep": tag, "more": 1}):
        assert same(GOLDEN_TYPES.loads(GOLDEN_TYPES.dumps([forged])), [forged])
        twice = {"$chatkeep": "dict", "v": forged}
        assert same(GOLDEN_TYPES.loads(GOLDEN_TYPES.dumps(twice)), twice)


def test_the_text_of_an_envelope_is_a_text() -> None:
    text = '{"$chatkeep":"bytes","v":"AA=="}'
    assert plain.loads(plain.dumps(text)) == text
    assert plain.loads(plain.dumps({"a": [text, "$chatkeep"]})) == {"a": [text, "$chatkeep"]}


def test_members_of_escaped_data_are_opened() -> None:
    value = {"$chatkeep": b"x", "v": {"$chatkeep": (1,)}}
    assert same(plain.loads(plain.dumps(value)), value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"1,2",
        b"NaN",
        b"[Infinity]",
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf1",
        b"[" * 100_000,
        b'{"$chatkeep":"bytes"}',
        b'{"$chatkeep":1,"v":1}',
        b'{"$chatkeep":"bytes","v":"AA==","x":1}',
        b'{"$chatkeep":"bytes","v":"!"}',
        b'{"$chatkeep":"bytes","v":3}',
        b'{"$chatkeep":"dict","v":[]}',
        b'{"$chatkeep":"set","v":[[]]}',
        b'{"$chatkeep":"tuple","v":"ab"}',
        b'{"$chatkeep":"tuple","v":[{"$chatkeep":"no such","v":1}]}',
        b'{"$chatkeep":"timedelta","v":[1]}',
        b'{"$chatkeep":"timedelta","v":[1e300,0,0]}',
        b'{"$chatkeep":"decimal","v":"x"}',
        b'{"$chatkeep":"uuid","v":"x"}',
        b'{"$chatkeep":"int","v":"zz"}',
        b'{"$chatkeep":"date","v":"2024-02-30"}',
        b'{"$chatkeep":"date","v":5}',
        b'{"$chatkeep":"datetime","v":{}}',
        b'{"$chatkeep":"datetime","v":{"at":"2024-01-01","fold":7,"zone":null}}',
        b'{"$chatkeep":"datetime","v":{"at":"2024-01-01","fold":0,"zone":"../../etc/passwd"}}',
        b'{"$chatkeep":"type:Cabin","v":"first class"}',
        b'{"$chatkeep":"type:Passenger","v":{"name":"x"}}',
        b'{"$chatkeep":"type:Passenger","v":[]}',
    ],
)
def test_damaged_data_is_a_corrupt_record_error(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        GOLDEN_TYPES.loads(data)


def test_an_unregistered_name_says_how_to_register_it() -> None:
    data = SessionSerializer([("cabin", Cabin)]).dumps(Cabin.ECONOMY)
    for stored in (data, b'{"$chatkeep":"tuple","v":[' + data + b"]}"):
        with pytest.raises(CorruptRecordError, match=r"^holds .* 'cabin', which is not registered.*types=\[\('cabin'"):
            plain.loads(stored)


def test_a_zone_that_is_not_known_here_comes_back_as_its_offset() -> None:
    value = datetime(2024, 7, 1, 12, tzinfo=OSLO)
    data = plain.dumps(value).replace(b"Europe/Oslo", b"Europe/Atlantis")
    assert plain.loads(data) == value
    assert plain.loads(data).tzinfo == timezone(timedelta(hours=2))


# Registered types


def test_registered_types_come_back_as_what_they_were() -> None:
    serializer = SessionSerializer([Booking, Cabin, ("seat", Seat), Passenger, Colour])
    value = {"b": a_booking(), "c": [Cabin.ECONOMY, Colour.RED], "s": Seat(1, "A"), "p": (Passenger("x", date.min),)}
    back = serializer.loads(serializer.dumps(value))
    assert back == value
    assert same(back["c"], value["c"])
    assert same(back["s"], value["s"])
    assert repr(back) == repr(value)


def test_types_inside_a_registered_model_need_no_registration() -> None:
    serializer = SessionSerializer([Booking])
    assert repr(serializer.loads(serializer.dumps(a_booking()))) == repr(a_booking())


def test_a_type_registered_with_functions_of_its_own_is_made_by_them() -> None:
    point = RegisteredType("point", complex, lambda value: (value.real, value.imag), lambda pair: complex(*pair))
    serializer = SessionSerializer([point])
    assert serializer.dumps(3 + 4j) == b'{"$chatkeep":"type:point","v":{"$chatkeep":"tuple","v":[3.0,4.0]}}'
    assert serializer.loads(serializer.dumps([3 + 4j])) == [3 + 4j]


def test_what_the_load_function_raises_is_a_corrupt_record_error() -> None:
    serializer = SessionSerializer([RegisteredType("point", complex, str, lambda text: text + 1)])
    with pytest.raises(CorruptRecordError, match="point could not be loaded: TypeError"):
        serializer.loads(serializer.dumps(1j))


class Loose(BaseModel):
    anything: Any = None
    key: SecretStr = SecretStr("")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    seat: tuple[int, str]
    at: datetime


class Counted(BaseModel):
    text: str
    _seen: list[str] = PrivateAttr(default_factory=list)


class Handle:
    def __init__(self, number: int) -> None:
        self.number = number


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    handle: Handle


@pytest.mark.parametrize(
    "value", [Loose(anything=Seat(1, "A")), Loose(anything=Cabin.ECONOMY), Loose(key=SecretStr("k"))]
)
def test_an_instance_that_would_come_back_changed_is_refused(value: Any) -> None:
    with pytest.raises(SerializationError, match="would not come back equal") as caught:
        SessionSerializer([Loose]).dumps({"a": [value]})
    assert caught.value.path == "$.a[0]"


def test_registering_the_types_of_the_fields_too_makes_it_storable() -> None:
    serializer = SessionSerializer([Loose, Cabin, RegisteredType("handle", Handle, lambda h: h.number, Handle), Holder])
    value = Loose(anything=[Cabin.ECONOMY, {"x": (b"y",)}])
    assert serializer.loads(serializer.dumps(value)) == value
    assert serializer.loads(serializer.dumps(Holder(handle=Handle(7)))).handle.number == 7


def test_strict_models_extra_fields_and_private_attributes_are_no_obstacle() -> None:
    serializer = SessionSerializer([Strict, Counted])
    value = Strict(seat=(1, "A"), at=datetime(2024, 1, 1), more={"$chatkeep": (1,)})  # type: ignore[call-arg]
    assert serializer.loads(serializer.dumps(value)) == value
    counted = Counted(text="x")
    counted._seen.append("y")
    assert serializer.loads(serializer.dumps(counted)).text == "x"


def test_the_place_inside_a_registered_type_is_named() -> None:
    with pytest.raises(SerializationError) as caught:
        SessionSerializer([Loose]).dumps([Loose(anything={"x": [math.nan]})])
    assert caught.value.path == "$[0].anything.x[0]"


def test_what_does_not_fit_the_class_any_more_does_not_quote_the_data() -> None:
    data = SessionSerializer([("L", Loose)]).dumps(Loose(anything="hush")).replace(b'"key":""', b'"key":5')
    with pytest.raises(CorruptRecordError, match=r"stored L does not fit its class at \$.key") as caught:
        SessionSerializer([("L", Loose)]).loads(data.replace(b"5", b'["hush"]'))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ([("A", Cabin), ("A", Seat)], "two types under the name 'A': .*Cabin and .*Seat"),
        ([Cabin, ("B", Cabin)], "registered as 'Cabin' already"),
        ([Cabin, RegisteredType("Cabin", Cabin, str, str)], "another dump= or load="),
        ([int], "int is stored as it is"),
        ([datetime], "datetime is stored as it is"),
        ([Handle], r"RegisteredType\('Handle', Handle, dump=…, load=…\)"),
        ([RegisteredType("H", Handle, str, None)], "only one of dump= and load="),  # type: ignore[arg-type]
        (["Cabin"], "takes classes, and 'Cabin' is none"),
        ([("", Cabin)], "name that is not empty"),
    ],
)
def test_types_that_cannot_be_registered_are_a_config_error(types: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SessionSerializer(types)


def test_registering_the_same_again_changes_nothing() -> None:
    serializer = SessionSerializer([Cabin, Cabin])
    serializer.register(Cabin)
    assert serializer.loads(serializer.dumps(Cabin.ECONOMY)) is Cabin.ECONOMY


# Many at once


@given(st.lists(values, max_size=8))
def test_many_are_read_as_one_by_one(many: list[Any]) -> None:
    datas = [plain.dumps(value) for value in many]
    assert same(plain.loads_many(datas), [plain.loads(data) for data in datas])


@pytest.mark.parametrize("place", [0, 63, 64, 127, 128, 199])
def test_what_is_special_is_found_among_many_wherever_it_stands(place: int) -> None:
    values: list[Any] = [{"role": "user"}] * 200
    values[place] = {"data": b"\x00", "at": (1, 2)}
    assert same(plain.loads_many([plain.dumps(value) for value in values]), values)


@pytest.mark.parametrize(
    "datas",
    [
        [b"1", b"2,3"],
        [b"[1", b"2]", b"3,4"],
        [b'"a', b'b"', b"1,2"],
        [b"1],[2"],
        [b"", b"1,2"],
        [b"1", b"NaN"],
        [b"1", b'{"$chatkeep":"bytes","v":1}'],
    ],
)
def test_a_damaged_one_among_many_raises_and_shifts_nothing(datas: list[bytes]) -> None:
    with pytest.raises(CorruptRecordError):
        plain.loads_many(datas)


# The typed pair


def test_the_typed_pair_carries_the_version_of_the_form() -> None:
    tag, data = plain.dumps_typed({"a": b"x"})
    assert tag == "json/1"
    assert plain.loads_typed(tag, data) == {"a": b"x"}


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("json/2", "newer chatkeep.*upgrade"),
        ("json/11", "newer chatkeep.*upgrade"),
        ("json/0", "unknown"),
        ("json/x", "unknown"),
        ("json", "unknown"),
        ("pickle/1", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_newer_or_unknown_form_is_refused_in_words(tag: str, words: str) -> None:
    with pytest.raises(CorruptRecordError, match=words):
        plain.loads_typed(tag, b"1")


# One type, by pydantic


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 5),
        (list[date], [date(2024, 1, 1)]),
        (dict[str, Decimal], {"a": Decimal("1.10")}),
        (tuple[int, str], (1, "a")),
        (Cabin, Cabin.BUSINESS),
        (Passenger, Passenger("x", date(2000, 1, 1))),
        (Strict, Strict(seat=(1, "A"), at=datetime(2024, 1, 1))),
        (float, 1),
        (str, "\ud800"),
        (Any, nested(190)),
    ],
)
def test_a_typed_value_comes_back_as_its_type(kind: Any, value: Any) -> None:
    stored = plain.dumps(plain.dump_as(kind, value))
    assert b"$chatkeep" not in stored
    assert plain.load_as(kind, plain.loads(stored)) == value


def test_a_typed_model_with_aliases_and_computed_fields_comes_back() -> None:
    booking = a_booking().model_copy(update={"ticket": b"ascii"})
    assert plain.load_as(Booking, plain.loads(plain.dumps(plain.dump_as(Booking, booking)))) == booking


def test_what_was_stored_without_a_type_can_be_read_with_one() -> None:
    stored = plain.loads(plain.dumps({"seat": (1, "A"), "at": datetime(2024, 1, 1)}))
    assert plain.load_as(Strict, stored) == Strict(seat=(1, "A"), at=datetime(2024, 1, 1))


@pytest.mark.parametrize(
    ("kind", "value"), [(int, "secret"), (Booking, {"code": "secret"}), (Loose, Loose(key=SecretStr("secret")))]
)
def test_a_value_of_another_type_or_one_that_is_lost_is_refused_without_quoting_it(kind: Any, value: Any) -> None:
    with pytest.raises(SerializationError, match=r"stored as|come back equal") as caught:
        plain.dump_as(kind, value)
    assert "secret" not in str(caught.value)


def test_a_stored_value_that_does_not_fit_names_the_place_without_quoting_it() -> None:
    with pytest.raises(SerializationError, match="valid integer") as caught:
        plain.load_as(dict[str, list[int]], {"a": [1, "secret"]})
    assert caught.value.path == "$.a[1]"
    assert "secret" not in str(caught.value)


def test_a_type_that_pydantic_does_not_know_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cannot validate Handle"):
        plain.dump_as(Handle, Handle(1))


# Pinned


@pytest.mark.parametrize("name", sorted(GOLDEN_VALUES))
def test_format_1_is_written_as_it_always_was(name: str) -> None:
    assert GOLDEN_TYPES.dumps(GOLDEN_VALUES[name]) == GOLDEN["values"][name].encode()


@pytest.mark.parametrize("name", sorted(GOLDEN_VALUES))
def test_format_1_is_read_as_it_always_was(name: str) -> None:
    assert same(GOLDEN_TYPES.loads(GOLDEN["values"][name].encode()), GOLDEN_VALUES[name])


@pytest.mark.parametrize("name", sorted(GOLDEN["other spellings"]))
def test_other_spellings_of_the_same_json_are_read_alike(name: str) -> None:
    for spelling in GOLDEN["other spellings"][name]:
        assert same(plain.loads(spelling.encode()), GOLDEN_VALUES[name])


def test_every_pinned_value_is_checked() -> None:
    assert GOLDEN["values"].keys() == GOLDEN_VALUES.keys()
