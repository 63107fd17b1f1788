"""Stored layout 1 of Redis is pinned: what the first version has written is read by every later one.

``golden/layout-1.json`` holds the keys that `write` leaves, every byte in base64. It is never made anew; a later layout
gets a file of its own.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import redis
from hypothesis import given
from hypothesis import strategies as st
from tests.redis.servers import Server

from chatkeep import ChatMessage, OpenAIChatCodec, Scope, Store, open_store
from chatkeep.records import Key, Record
from chatkeep_redis import stored

GOLDEN = Path(__file__).parent / "golden" / "layout-1.json"
CALL = {"id": "call-1", "name": "find_bag", "arguments": '{"tag": "SK 123"}'}
Keys = dict[bytes, dict[bytes, bytes]]
"""For each key its fields and values, or its members and scores."""


async def write(store: Store[Any]) -> None:
    """What the golden file holds."""
    scope = store.scoped(tenant="acme", user="alice")
    session = scope.session("support-42")
    await session.append([ChatMessage.user("Where is my bag? 🧳", id="m-1")], batch_id="first")
    await session.append([ChatMessage.assistant(tool_calls=[CALL]), ChatMessage.tool("Oslo", tool_call_id="call-1")])
    await session.append([ChatMessage.assistant("In Oslo.")])
    await session.log("audit", codec=OpenAIChatCodec()).append([{"role": "user", "content": "lone \ud800 surrogate"}])
    async with open_store(store.connection.name, max_messages=1) as trimming:
        old = trimming.scoped(tenant="acme", user="alice").session("support-42").log("old")
        await old.append([ChatMessage.user("trimmed", id="t-1"), ChatMessage.user("kept", id="t-2")])
    await session.state.set("language", "no")
    await session.state.set("bag", {"weight": 23.5, "photo": b"\x00\xff"})
    await session.update(title="A bag", metadata={"topic": "bags"}, service_session_id={"task": "t-1"})
    await scope.state.set("plan", ["gold", 1])


def dump(client: redis.Redis) -> Keys:
    """All that a server holds, but for what was written last: that is forgotten after a while."""
    found: Keys = {}
    for key in client.scan_iter():
        if key.endswith(b"recent"):
            continue
        if client.type(key) == b"hash":
            found[key] = client.hgetall(key)
        else:
            found[key] = {member: b"%.17g" % score for member, score in client.zrange(key, 0, -1, withscores=True)}
    return found


def load(client: redis.Redis, keys: Keys) -> None:
    for key, fields in keys.items():
        if key.endswith((b"order", b"sessions", b"names")):
            client.zadd(key, {member: float(score) for member, score in fields.items()})
        else:
            client.hset(key, mapping=fields)


def golden() -> Keys:
    text = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return {
        key.encode(): {b64decode(field): b64decode(value) for field, value in fields.items()}
        for key, fields in text.items()
    }


def lasting(keys: Keys) -> Keys:
    """The keys without what is different each time: times, lives and versions."""
    found: Keys = {}
    for key, fields in keys.items():
        kept: dict[bytes, bytes] = {}
        for field, value in fields.items():
            name = field
            if key.endswith(b"order") and field[:1] == b"r":
                at = 3 + int.from_bytes(field[1:3], "big") + 8
                name = field[:at] + field[at + 8 :]
            timed = field == b"h" or field[:1] == b"v" or key.endswith((b"times", b"sessions"))
            kept[name] = value[-8:] if field == b"h" else b"" if timed else value
        found[key] = kept
    return found


async def test_keys_of_layout_1_are_read(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        load(client, golden())
    async with open_store(server.url()) as store:
        (info,) = await store.list_sessions(below=True)
        assert info.scope == Scope(None, "acme", "alice")
        assert (info.id, info.title, info.metadata) == ("support-42", "A bag", {"topic": "bags"})
        assert info.service_session_id == {"task": "t-1"}
        scope = store.scoped(tenant="acme", user="alice")
        session = scope.session("support-42")
        messages = await session.messages()
        assert messages == [
            ChatMessage.user("Where is my bag? 🧳", id="m-1"),
            ChatMessage.assistant(tool_calls=[CALL]),
            ChatMessage.tool("Oslo", tool_call_id="call-1"),
            ChatMessage.assistant("In Oslo."),
        ]
        assert messages.seqs == [1, 2, 3, 4]
        assert await session.log("audit", codec=OpenAIChatCodec()).messages() == [
            {"role": "user", "content": "lone \ud800 surrogate"}
        ]
        assert await session.log("old").messages() == [ChatMessage.user("kept", id="t-2")]
        assert await session.state.items() == {"bag": {"weight": 23.5, "photo": b"\x00\xff"}, "language": "no"}
        assert await scope.state.get("plan") == ["gold", 1]
        assert (await session.append([ChatMessage.user("again")], batch_id="first")).added == 0
        assert (await session.append([ChatMessage.user("Where?", id="m-1")])).added == 0
        assert (await session.log("old").append([ChatMessage.user("again", id="t-1")])).added == 0
        assert (await session.append([ChatMessage.user("And now?")])).seqs == (5,)
        assert (await scope.erase()).sessions == 1
        assert await store.list_sessions(below=True) == []


async def test_what_is_written_now_is_of_the_pinned_layout(server: Server) -> None:
    async with open_store(server.url()) as store:
        await write(store)
    with redis.Redis(port=server.port) as client:
        assert lasting(dump(client)) == lasting(golden())


# Packing

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.floats(allow_nan=False, allow_infinity=False, width=64).filter(bool)
records = st.builds(
    Record,
    seq=st.integers(1, 2**52),
    id=st.none() | texts.filter(bool),
    role=texts,
    starts_turn=st.booleans(),
    format=texts,
    created_at=times,
    text=st.none() | texts,
    payload=st.binary(max_size=50),
)


@given(st.lists(records, max_size=3), texts)
def test_a_record_of_any_bytes_is_packed_and_taken_apart_again(given_records: list[Record], log: str) -> None:
    before, low, high = stored.bounds(log, None, None)
    prefix = low[1:before] + low[before : before + 1]
    members = [prefix + record.seq.to_bytes(8, "big") + stored.record_value(record) for record in given_records]
    assert [stored.record_of(member, before) for member in members] == given_records
    bodies = stored.bodies_of(members, before)
    assert bodies == [(record.seq, record.id, record.format, record.payload) for record in given_records]
    assert all(low[1:] <= member < high[1:] for member in members)


@given(texts, texts, st.integers(0, 2**52), st.integers(0, 2**52), st.integers(1, 2**52))
def test_bounds_hold_the_seqs_between_them_of_one_log_alone(
    log: str, other: str, after: int, before: int, seq: int
) -> None:
    at, low, high = stored.bounds(log, after, before)
    assert (low[:1], high[:1]) == (b"[", b"(")
    for name in {log, other}:
        member = b"r" + stored.log_name(name) + seq.to_bytes(8, "big") + b"any"
        assert (low[1:] <= member < high[1:]) == (name == log and after < seq < before)
    assert low[1:at] == high[1:at]


@given(st.lists(st.tuples(texts, texts, texts, st.binary(max_size=20)), max_size=4))
def test_state_entries_of_any_bytes_are_packed_and_taken_apart_again(
    entries: list[tuple[str, str, str, bytes]],
) -> None:
    fields = [
        part
        for key, version, form, value in entries
        for part in (key.encode(), version.encode(), stored.state_value(form, value))
    ]
    assert [tuple(entry) for entry in stored.state_entries(fields)] == entries


def test_a_session_without_fields_is_none() -> None:
    assert stored.head_of(Key(Scope(), "s"), b"", []) is None
