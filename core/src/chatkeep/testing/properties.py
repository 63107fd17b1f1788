"""Clauses 15 to 19 and 22, for values, sizes, bytes and ids that nobody thought of."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import unicodedata
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

from chatkeep import (
    ChatMessage,
    CorruptRecordError,
    InvalidIdError,
    Log,
    MessageTooLargeError,
    Scope,
    SerializationError,
    Session,
    Store,
    Window,
)
from chatkeep.records import ABSENT, Key, Record, StateOp, Write

from .clauses import clause
from .examples import Examples
from .harness import Harness, Opener, commit_raw, identical, texts

# Values

TELLING = (
    "",
    "\0",
    "\u2028",
    "\ufeff",
    "\ud800",
    "\udc00",
    "$chatkeep",
    "v",
    "$set",
    "a.b",
    ".",
    "1",
    "null",
    "\U0010ffff",
)
TEXT = st.one_of(st.text(st.characters(exclude_categories=()), max_size=20), st.sampled_from(TELLING))
KEY = TEXT.filter(lambda key: re.search("[\ud800-\udbff][\udc00-\udfff]", key) is None)
"""JSON would join two surrogates, so that no key holds such a pair."""
NUMBER = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, -0.0, 1e308, 5e-324, 2**53 + 1, 2**64 + 1, -(10**600), 2**5000 + 1]),
)
ZONE = st.one_of(
    st.none(), st.just(UTC), st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
)
BEYOND_JSON = st.one_of(
    st.binary(max_size=20),
    st.datetimes(timezones=ZONE),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
)
HASHABLE = st.one_of(TEXT, st.integers(), st.binary(max_size=5), st.booleans())
TAG = st.one_of(
    TEXT, st.sampled_from(["bytes", "datetime", "decimal", "int", "str", "dict", "tuple", "set", "type:os.system"])
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    forged = st.builds(lambda tag, value: {"$chatkeep": tag, "v": value}, st.one_of(TAG, inner), inner)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEY, inner, max_size=4),
        forged,
        st.builds(lambda envelope, key, value: {**envelope, key: value}, forged, KEY, inner),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(HASHABLE, max_size=3),
        st.sets(HASHABLE, max_size=3),
    )


VALUE = st.recursive(st.one_of(st.none(), st.booleans(), TEXT, NUMBER, BEYOND_JSON), _containers, max_leaves=12)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.text(max_size=5), st.integers(-5, 5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)

# What cannot be represented, and where it stands

IMPOSSIBLE: dict[str, Callable[[], Any]] = {
    "NaN": lambda: math.nan,
    "infinity": lambda: -math.inf,
    "decimal NaN": lambda: Decimal("NaN"),
    "object": object,
    "function": lambda: len,
    "generator": lambda: (number for number in range(3)),
    "number as key": lambda: {1: "a"},
    "bytearray": lambda: bytearray(b"a"),
}
STEP = st.one_of(st.integers(0, 3), st.sampled_from(["a", "b_c", "a b", "", "0", "$chatkeep", 'quote"', "é", "a.b"]))


def _placed(steps: list[int | str], value: Any) -> tuple[Any, str]:
    """A structure with `value` at the end of the steps, and the path to it."""
    path = ""
    for step in steps:
        named = isinstance(step, str) and step.isidentifier()
        path += f".{step}" if named else f"[{json.dumps(step)}]"
    for step in reversed(steps):
        value = {"beside": 1, step: value} if isinstance(step, str) else [*range(step), value, None]
    return value, path


# Ids

ID_TEXT = st.text(min_size=1, max_size=12)
SEPARATORS = (
    *":/|,.;-_=&?#%*\\'\"`{}[]()<>$^~@! \t\n\0\x1f\x7f",
    "::",
    "{a}",
    "é",
    "e\u0301",
    "\u200b",
    "😀",
    "\uffff",
)
PIECES = st.lists(st.one_of(st.sampled_from(["a", "b", "A", *SEPARATORS]), ID_TEXT), min_size=1, max_size=5)


CHANGES: tuple[Callable[[str, str], str], ...] = (
    lambda id, text: id,
    lambda id, text: id + text,
    lambda id, text: text + id,
    lambda id, text: id[:-1],
    lambda id, text: id.swapcase(),
    lambda id, text: id.casefold(),
    lambda id, text: unicodedata.normalize("NFC", id),
    lambda id, text: unicodedata.normalize("NFD", id),
    lambda id, text: unicodedata.normalize("NFKC", id),
    lambda id, text: id + " ",
    lambda id, text: id + "\0",
    lambda id, text: id + "\0" + text,
    lambda id, text: "\n" + id,
    lambda id, text: id[:-1] + "%",
    lambda id, text: id[:1] + "*",
    lambda id, text: json.dumps(id),
    lambda id, text: id + id,
    lambda id, text: text,
)
"""How other ids come from one, and from some text, that something might take for the same."""


def _filled(text: str, limit: int) -> str:
    """The text, repeated to exactly `limit` bytes."""
    repeated = (text * (limit // len(text.encode()) + 1)).encode()[:limit].decode(errors="ignore")
    return repeated + "x" * (limit - len(repeated.encode()))


def _family(pieces: list[str], text: str, long: bool) -> list[str]:
    first = _filled("".join(pieces), 500) if long else "".join(pieces)
    return [id for id in dict.fromkeys(change(first, text) for change in CHANGES) if 0 < len(id.encode()) <= 512]


FAMILY = st.builds(_family, PIECES, st.one_of(st.sampled_from(SEPARATORS), ID_TEXT), st.booleans())
"""Ids that are legal for everything, all different, and much alike."""

EXAMPLES = 20


class Properties(Harness):
    @clause(15)
    async def test_any_value_comes_back_identical_from_wherever_it_is_kept(self, opened: Opener) -> None:
        store, again = opened(), opened()
        numbers = itertools.count()

        async def kept(values: list[Any]) -> None:
            session = store.session(f"s{next(numbers)}")
            mapping = {f"key {place}": value for place, value in enumerate(values)}
            messages = [_carrying(value) for value in values]
            messages += [ChatMessage.user([{"type": "text", "text": "x", "more": mapping}], metadata=mapping)]
            await session.append(messages)
            await session.state.update(mapping)
            reader = again.session(session.id)
            assert identical([message.data for message in await reader.messages()], [each.data for each in messages])
            assert identical(await reader.state.items(), mapping)
            await session.replace(1, messages[-1])
            assert identical((await reader.messages(limit=1))[0].data, messages[-1].data)
            about = {name: value for name, value in mapping.items() if value is not None and len(repr(value)) < 1000}
            await session.update(metadata=about, service_session_id={"id": about})
            info = await reader.info()
            assert info is not None
            assert identical((info.metadata, info.service_session_id), (about, {"id": about}))
            snapshot = await reader.snapshot()
            assert identical(
                type(snapshot).from_bytes(snapshot.to_bytes(store.serializer), store.serializer).state, mapping
            )

        await Examples("values", EXAMPLES).hold(st.lists(VALUE, min_size=1, max_size=15), kept)

    @clause(16)
    async def test_what_cannot_be_represented_is_refused_by_its_path_wherever_it_stands(
        self, store: Store[ChatMessage]
    ) -> None:
        session, absent = store.session("s"), store.session("absent")
        await session.append([ChatMessage.user("one")])
        before = await session.info()

        async def refused(where: tuple[list[int | str], str]) -> None:
            steps, name = where
            value, path = _placed(steps, IMPOSSIBLE[name]())
            for place, write in (
                ("messages[1].tool_calls[0].arguments", absent.append([ChatMessage.user("x"), _carrying(value)])),
                ("messages[0].tool_calls[0].arguments", session.replace(1, _carrying(value))),
                ("messages[0].metadata.m", session.append([ChatMessage.user("x", metadata={"m": value})])),
                ("state['k']", session.state.set("k", value)),
                ("state['k']", absent.state.update({"j": 1, "k": value})),
                ("state['k']", store.state.set("k", value)),
                ("metadata['m']", absent.update(title="t", metadata={"m": value})),
            ):
                with pytest.raises(SerializationError) as caught:
                    await write
                assert caught.value.path == place + path
                assert place + path in str(caught.value)
            assert not await absent.exists()
            assert await session.info() == before
            assert await store.state.keys() == []

        where = st.tuples(st.lists(STEP, max_size=6), st.sampled_from(sorted(IMPOSSIBLE)))
        await Examples("impossible values", EXAMPLES).hold(where, refused)

    @clause(17)
    async def test_sizes_around_the_limits_are_stored_whole_or_not_at_all(self, opened: Opener) -> None:
        store = opened(max_message_bytes=1000, max_batch_bytes=2500)
        numbers = itertools.count()

        async def whole_or_not(contents: list[tuple[str, int]]) -> None:
            session = store.session(f"s{next(numbers)}")
            messages = [ChatMessage.user(text * (size // len(text.encode()))) for text, size in contents]
            sizes = [
                len(json.dumps(each.data, ensure_ascii=False, separators=(",", ":")).encode()) for each in messages
            ]
            if max(sizes) <= 1000 and sum(sizes) <= 2500:
                await session.append(messages)
                assert await session.messages() == messages
            else:
                with pytest.raises(MessageTooLargeError):
                    await session.append(messages)
                assert not await session.exists()
            value = messages[0].text
            if len(json.dumps(value, ensure_ascii=False).encode()) <= 1000:
                await session.state.set("k", value)
                assert await session.state.get("k") == value
            else:
                with pytest.raises(MessageTooLargeError):
                    await session.state.set("k", value)

        overhead = len('{"role":"user","content":""}')
        size = st.one_of(st.integers(1, 1100), st.integers(-2, 2).map(lambda by: 1000 - overhead + by))
        contents = st.lists(st.tuples(st.sampled_from(["x", "é", "😀"]), size), min_size=1, max_size=4)
        await Examples("sizes", 2 * EXAMPLES).hold(contents, whole_or_not)

    @clause(18)
    async def test_any_bytes_in_the_place_of_a_message_harm_themselves_alone(self, opened: Opener) -> None:
        strict, skipping, raw = (opened(on_corrupt=mode) for mode in ("raise", "skip", "raw"))
        numbers = itertools.count()
        good = [ChatMessage.user("before", id="b"), ChatMessage.user("after"), ChatMessage.assistant("last")]

        async def alone(payload: bytes) -> None:
            session = strict.session(f"s{next(numbers)}")
            await session.append(good[:1])
            record = Record(0, None, "user", False, "chat/1", None, None, payload)
            await _store_raw(strict, session, record)
            await session.append(good[1:])
            found: list[Any] = list(await raw.session(session.id).messages())
            damaged = isinstance(found[1], Record)
            assert [found[0], *found[2:]] == good
            assert not damaged or found[1].payload == payload
            history = await skipping.session(session.id).messages()
            assert (history.skipped, len(history), history.seqs[0], history[-2:]) == (damaged, 4 - damaged, 1, good[1:])
            if damaged:
                with pytest.raises(CorruptRecordError) as caught:
                    await session.messages()
                assert caught.value.seq == 2
                assert caught.value.record is not None
            else:
                assert await session.messages() == found
            assert await session.messages(before=2) == good[:1]
            assert await session.messages(after=2) == await session.messages(window=Window(max_messages=2)) == good[1:]
            assert ("damaged" in {finding.kind for finding in await session.verify() if finding.seq == 2}) is damaged
            fork = await session.fork(f"{session.id} forked")
            assert [each.payload for each in (await fork.records()).records][1] == payload
            try:
                await session.redact(2, "gone")
            except CorruptRecordError:
                await session.replace(2, ChatMessage.user("mended"))
            mended = texts(await session.messages(limit=2))[1]
            assert mended == "mended" or not mended.replace("gone", "")
            assert await session.pop(2) == good[1:]

        whole = json.dumps(good[0].data).encode()
        member = st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "id", "name", "metadata"])
        shapes = st.dictionaries(member, JSON).map(lambda data: json.dumps({"role": "user", **data}).encode())
        cut = st.integers(0, len(whole)).map(lambda end: whole[:end])
        spoilt = st.builds(
            lambda place, byte: whole[:place] + byte + whole[place + 1 :],
            st.integers(0, len(whole) - 1),
            st.binary(min_size=1, max_size=2),
        )
        other = JSON.map(lambda value: json.dumps(value).encode())
        await Examples("bytes", 2 * EXAMPLES).hold(st.one_of(st.binary(max_size=40), cut, spoilt, shapes, other), alone)

    @clause(18)
    async def test_any_bytes_in_the_place_of_a_state_value_harm_themselves_alone(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.state.set("good", [1])

        async def alone(value: bytes) -> None:
            await commit_raw(
                store, Key(session.scope, "s"), Write(os.urandom(16), state=[StateOp("k", "json/1", value)])
            )
            try:
                found = await session.state.get("k")
            except CorruptRecordError:
                with pytest.raises(CorruptRecordError):
                    await session.state.items()
            else:
                assert identical(await session.state.items(), {"good": [1], "k": found})
            assert (await session.state.get("good"), await session.state.keys()) == ([1], ["good", "k"])
            await session.state.set("k", "mended")
            assert await session.state.items() == {"good": [1], "k": "mended"}

        forged = st.builds(lambda tag, value: json.dumps({"$chatkeep": tag, "v": value}).encode(), TAG, JSON)
        await Examples("values of a state", EXAMPLES).hold(st.one_of(st.binary(max_size=30), forged), alone)

    @clause(19)
    async def test_any_other_format_is_refused_in_words_and_kept(self, opened: Opener) -> None:
        store, raw = opened(), opened(on_corrupt="raw")
        numbers = itertools.count()

        async def refused(form: tuple[str, str, str]) -> None:
            kind, slash, version = form
            session, name = store.session(f"s{next(numbers)}"), kind + slash + version
            newer = slash == "/" and version.isdecimal() and int(version) > 1
            words = r"newer chatkeep.*upgrade" if newer and kind == "chat" else "reads"
            record = Record(0, None, "user", True, name, None, None, b'{"role":"user","content":"x"}')
            await _store_raw(store, session, record)
            if name in ("chat/1", "openai/1"):
                assert texts(await session.messages()) == ["x"]
            else:
                with pytest.raises(CorruptRecordError, match=words) as caught:
                    await session.messages()
                assert repr(name) in str(caught.value)
                kept: list[Any] = list(await raw.session(session.id).messages())
                assert [(each.format, each.payload) for each in kept] == [(name, record.payload)]
                assert [finding.kind for finding in await session.verify()] == ["unknown format"]
            stated = ("json" if kind == "chat" else kind) + slash + version
            key = Key(session.scope, session.id)
            await commit_raw(store, key, Write(os.urandom(16), state=[StateOp("k", stated, b"1")]))
            if stated == "json/1":
                assert await session.state.get("k") == 1
            else:
                words = r"newer chatkeep.*upgrade" if newer and kind == "chat" else "unknown stored form"
                with pytest.raises(CorruptRecordError, match=words):
                    await session.state.get("k")

        version = st.one_of(st.integers(0, 99).map(str), st.sampled_from(["", "1.0", " 1", "-1", "x", "٢", "²", "1/1"]))
        form = st.tuples(
            st.sampled_from(["chat", "openai", "Chat", "pickle", ""]), st.sampled_from(["/", "/", "-"]), version
        )
        await Examples("formats", EXAMPLES).hold(form, refused)

    @clause(22)
    async def test_no_two_ids_ever_meet(self, store: Store[ChatMessage]) -> None:
        numbers = itertools.count()

        async def apart(ids: list[str]) -> None:
            view = store.scoped(app=f"ids {next(numbers)}")
            state, log, batches = view.session("k").state, view.session("m"), view.session("b")
            places: list[Callable[[str], Log[ChatMessage]]] = [
                view.session,
                lambda id: view.scoped(tenant=id).session("s"),
                lambda id: view.scoped(tenant="t", user=id).session("s"),
                view.session("l").log,
            ]
            for id, of in itertools.product(ids, places):
                appended = await of(id).append([ChatMessage.user(id, id="m")], batch_id="b")
                assert (appended.added, list(appended.seqs)) == (1, [1])
            for number, id in enumerate(ids):
                await view.session(id).state.set("k", id)
                await state.set(id, number, expected=ABSENT)
                assert (await batches.append([ChatMessage.user("x")], batch_id=id)).added == 1
            assert (await log.append([ChatMessage.user("x", id=id) for id in ids])).added == len(ids)
            assert [message.id for message in await log.messages()] == ids
            listed = {info.id for info in await view.list_sessions()}
            assert listed == {*ids, "k", "m", "b", "l"}
            assert await state.keys() == sorted(ids, key=str.encode)
            assert await state.keys(ids[0]) == sorted((id for id in ids if id.startswith(ids[0])), key=str.encode)
            for id in ids[::2]:
                await state.delete(id)
                assert await view.session(id).delete()
                assert (await view.scoped(tenant=id).erase()).sessions == 1
                await view.session("l").log(id).clear()
            for number, id in enumerate(ids):
                left = number % 2
                assert (await batches.append([ChatMessage.user("x")], batch_id=id)).added == 0
                assert await state.get(id) == (number if left else None)
                assert await view.session(id).state.get("k") == (id if left else None)
                for of in (places[0], places[1], places[3]):
                    assert texts(await of(id).messages()) == ([id] if left else [])

        names = FAMILY.filter(lambda ids: not {"k", "m", "b", "l", "t"} & set(ids))
        await Examples("ids", EXAMPLES // 4).hold(names, apart)

    @clause(22)
    async def test_text_that_moves_between_the_fields_of_an_address_makes_another_one(
        self, store: Store[ChatMessage]
    ) -> None:
        numbers = itertools.count()

        async def apart(cuts: tuple[list[str], list[tuple[int, int, int]]]) -> None:
            pieces, places = cuts
            begin, text = f"{next(numbers)} ", "".join(pieces)
            addresses = {
                (begin + text[:app], text[app:tenant], text[tenant:user], text[user:] or "s")
                for app, tenant, user in (sorted(place % (len(text) + 1) for place in each) for each in places)
            }
            views = [(Scope(app, tenant or None, user or None), id) for app, tenant, user, id in sorted(addresses)]
            for place, (scope, id) in enumerate(views):
                assert not await store.at(scope).session(id).exists()
                await store.at(scope).session(id).append([ChatMessage.user(f"{place}")])
            for place, (scope, id) in enumerate(views):
                assert texts(await store.at(scope).session(id).messages()) == [f"{place}"]

        place = st.tuples(*[st.integers(0, 50)] * 3)
        await Examples("addresses", EXAMPLES).hold(st.tuples(PIECES, st.lists(place, min_size=2, max_size=6)), apart)

    @clause(22)
    async def test_ids_of_exactly_the_most_bytes_are_taken_and_longer_ones_refused(
        self, store: Store[ChatMessage]
    ) -> None:
        numbers = itertools.count()

        async def taken_or_refused(pieces: list[str]) -> None:
            view = store.scoped(app=f"long {next(numbers)}")
            text = "".join(pieces)
            longest, name = _filled(text, 1024), _filled(text, 512)
            session = view.scoped(tenant=longest, user=longest).session(longest)
            await session.append([ChatMessage.user("x", id=longest)], batch_id=longest)
            await session.log(name).append([ChatMessage.user("y")])
            await session.state.set(name, 1)
            assert [message.id for message in await session.messages()] == [longest]
            assert texts(await session.log(name).messages()) == ["y"]
            assert await session.state.items(name) == {name: 1}
            before = await session.info()
            for wrong in (longest + "x", "x" + longest):
                await _is_refused(partial(view.session, wrong))
                await _is_refused(partial(view.scoped, tenant=wrong))
                await _is_refused(partial(session.append, [ChatMessage.user("x", id=wrong)]))
                await _is_refused(partial(session.append, [ChatMessage.user("x")], batch_id=wrong))
            await _is_refused(lambda: session.log(name + "x"))
            await _is_refused(lambda: session.state.set(name + "x", 1))
            await _is_refused(lambda: session.state.update({"k": 1, name + "x": 1}))
            assert await session.info() == before

        await Examples("long ids", EXAMPLES // 2).hold(PIECES, taken_or_refused)

    @clause(22)
    async def test_text_that_utf_8_cannot_encode_is_no_id_wherever_it_stands(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")

        async def refused(parts: tuple[str, str, str]) -> None:
            wrong = "".join(parts)
            for attempt in (
                lambda: store.session(wrong),
                lambda: store.scoped(user=wrong),
                lambda: session.log(wrong),
                lambda: session.state.set(wrong, 1),
                lambda: session.state.keys(wrong),
                lambda: session.update(title=wrong),
                lambda: session.update(metadata={wrong: 1}),
                lambda: session.append([ChatMessage.user("x"), ChatMessage.user("x", id=wrong)]),
                lambda: session.append([ChatMessage.user("x")], batch_id=wrong),
                lambda: session.fork(wrong),
            ):
                await _is_refused(attempt)
            assert not await session.exists()

        surrogate = st.integers(0xD800, 0xDFFF).map(chr)
        text = st.text(max_size=5)
        await Examples("surrogates", EXAMPLES).hold(st.tuples(text, surrogate, text), refused)


async def _is_refused(attempt: Callable[[], Any]) -> None:
    with pytest.raises(InvalidIdError):
        await _made(attempt)


async def _made(attempt: Callable[[], Any]) -> None:
    result = attempt()
    if isinstance(result, Awaitable):
        await result


def _carrying(value: Any) -> ChatMessage:
    """A message with the value in it."""
    return ChatMessage.assistant(tool_calls=[{"id": "c", "name": "f", "arguments": value}])


async def _store_raw(store: Store[Any], session: Session[Any], record: Record) -> None:
    """Store a record past codec and serializer."""
    await commit_raw(store, Key(session.scope, session.id), Write(os.urandom(16), append=[record]))
