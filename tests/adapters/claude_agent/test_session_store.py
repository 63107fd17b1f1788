"""`ChatkeepSessionStore` keeps what the SDK's protocol promises, on every backend."""

from __future__ import annotations

import asyncio
import copy
import math
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from claude_agent_sdk import SessionStore, fold_session_summary
from claude_agent_sdk.testing import run_session_store_conformance
from tests.adapters.claude_agent.transcripts import KEY, PROJECT, SESSION, Opener, chained, said, title

import chatkeep.sync
from chatkeep import ChatkeepError, CorruptRecordError, InvalidIdError, SerializationError, open_store
from chatkeep.records import Write
from chatkeep_adapters.claude_agent import ChatkeepSessionStore, EntryCodec

SUB: Any = {**KEY, "subpath": "subagents/agent-1"}


def of(project_key: str, session_id: str = SESSION) -> Any:
    return {"project_key": project_key, "session_id": session_id}


async def test_it_conforms_with_nothing_left_out(url: str) -> None:
    optional = ("list_sessions", "list_session_summaries", "delete", "list_subkeys")
    assert all(getattr(ChatkeepSessionStore, name) is not getattr(SessionStore, name) for name in optional)
    async with open_store(url) as store:
        await run_session_store_conformance(lambda: ChatkeepSessionStore(store, user=uuid.uuid4().hex))


async def test_an_entry_with_a_uuid_is_stored_once_and_others_each_time(opened: Opener) -> None:
    here, there = opened(), opened()
    for key in (KEY, SUB):
        first, second, third = (said(text) for text in ("one", "two", "three"))
        await here.append(key, [first, title("t"), {**first, "changed": True}, second])
        await here.append(key, [first, second])
        await there.append(key, [second, {**first, "changed": True}, third])
        await asyncio.gather(*(each.append(key, [third, title("t")]) for each in (here, there)))
        await there.append(key, [{"type": "mode", "uuid": None}, {"type": "mode", "uuid": ""}, {"type": "mode"}])
        modes = [{"type": "mode", "uuid": None}, {"type": "mode", "uuid": ""}, {"type": "mode"}]
        assert await here.load(key) == [first, title("t"), second, third, title("t"), title("t"), *modes]


async def test_what_many_append_at_once_is_there_once_and_each_batch_stays_together(opened: Opener) -> None:
    stores = [opened(), opened()]
    batches = [[said(f"{writer}/{place}") for place in range(3)] for writer in range(8)]
    await asyncio.gather(*(stores[n % 2].append(KEY, batch) for n, batch in enumerate([*batches, *batches])))
    loaded = await stores[0].load(KEY) or []
    found = [loaded[place : place + 3] for place in range(0, len(loaded), 3)]
    assert sorted(found, key=str) == sorted(batches, key=str)


async def test_the_largest_batch_that_the_sdk_sends_is_one_append(sessions: ChatkeepSessionStore) -> None:
    batch = [said(f"{place} {'x' * 2000}") for place in range(500)]
    await sessions.append(KEY, batch)
    await sessions.append(KEY, [*batch[-20:], title("t")])
    assert await sessions.load(KEY) == [*batch, title("t")]
    assert [each["data"].get("custom_title") for each in await sessions.list_session_summaries(PROJECT)] == ["t"]


async def test_entries_of_any_shape_come_back_equal(opened: Opener) -> None:
    strange: list[Any] = [
        {"type": "of-tomorrow", "uuid": "u", "message": {"role": "oracle", "content": {"deep": [[[{}]]]}}},
        {"type": "user", "uuid": "v", "message": "no object", "text": "\0 \u2028 \U0001f9f3 \ud800"},
        {"type": "user", "uuid": "w", "message": {"role": "user", "content": 5, "tool_calls": "none"}},
        {"type": "assistant", "message": {"role": "tool", "content": [None, 1, {"type": "tool_use"}]}},
        {"type": "user", "uuid": "x", "message": {"role": "x" * 600, "content": "y"}},
        {"type": "user", "uuid": "y", "message": {"role": "", "content": "y"}},
        {"type": 5, "big": 2**4000, "float": 0.1 + 0.2, "": {"$chatkeep": "bytes", "v": "AA=="}, "a.b$c": [True, None]},
        {"type": "custom-title", "customTitle": "\ud800 \0 \U0001f9f3"},
        {"no": "type", "uuid": 7, "timestamp": {}, "customTitle": [], "cwd": 0, "isSidechain": "?"},
        {},
    ]
    given = copy.deepcopy(strange)
    await opened().append(KEY, strange)
    await opened().append(KEY, [said("and on")])
    assert strange == given
    reader = opened()
    assert await reader.load(KEY) == [*strange, said("and on")]
    (summary,) = await reader.list_session_summaries(PROJECT)
    assert summary["data"] == fold_session_summary(None, KEY, [*strange, said("and on")])["data"]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "entries[1].when"),
        ({"deep": [{"pair": (1, 2)}]}, "entries[1].deep[0].pair"),
        ({"data": b"x"}, "entries[1].data"),
        ({"n": [math.nan]}, "entries[1].n[0]"),
        ({"keys": {1: "one"}}, "entries[1].keys"),
        ("no dict", "entries[1]"),
        (None, "entries[1]"),
    ],
)
@pytest.mark.parametrize("key", [KEY, SUB], ids=["main", "subpath"])
async def test_what_is_no_json_is_refused_with_its_place_before_anything_is_written(
    tmp_path: Any, value: Any, path: str, key: Any
) -> None:
    async with ChatkeepSessionStore(f"sqlite:///{tmp_path}/chat.db") as sessions:
        with pytest.raises(SerializationError) as caught:
            await sessions.append(key, [said("fine"), value, said("fine too")])
        assert (caught.value.path, str(caught.value).startswith(f"{path}: ")) == (path, True)
        assert await sessions.load(key) is None
        assert not await sessions.session(**of(PROJECT)).exists()


async def test_what_contains_itself_is_refused(sessions: ChatkeepSessionStore) -> None:
    endless: Any = {"type": "user"}
    endless["self"] = [endless]
    with pytest.raises(SerializationError, match=r"^entries\[0\]: .*contains itself"):
        await sessions.append(KEY, [endless])


async def test_subpaths_are_kept_apart_and_go_with_their_transcript(sessions: ChatkeepSessionStore) -> None:
    paths = ["subagents/agent-1", "subagents/workflows/run-1/agent-2", "subagents/agent-é", "..", "/", "a\0b"]
    for path in paths:
        await sessions.append({**KEY, "subpath": path}, [said("sub", note=path)])
    assert await sessions.load(KEY) is None
    assert await sessions.list_sessions(PROJECT) == [], "a subagent alone is no transcript"
    await sessions.append(KEY, [said("main")])
    assert await sessions.list_subkeys(KEY) == sorted(paths)
    for path in paths:
        assert await sessions.load({**KEY, "subpath": path}) == [said("sub", note=path)]
    await sessions.delete(SUB)
    await sessions.delete({**KEY, "subpath": "never written"})
    assert await sessions.load(SUB) is None
    assert await sessions.list_subkeys(KEY) == sorted(paths[1:])
    await sessions.append(SUB, [said("sub")])
    assert await sessions.load(SUB) == [said("sub")], "what was deleted is forgotten"
    await sessions.delete(KEY)
    assert await sessions.list_subkeys(KEY) == []
    assert [await sessions.load({**KEY, "subpath": path}) for path in paths] == [None] * len(paths)
    await sessions.append(KEY, [said("main")])
    assert (await sessions.load(KEY), await sessions.list_subkeys(KEY)) == ([said("main")], [])


ODD = [
    "-home-a",
    "a/b",
    "a",
    '["a"]',
    'a","b',
    "a\\",
    "a%2Fb",
    "\u00e9",
    "e\u0301",
    "\U0001f9f3",
    " ",
    "a\0",
    "*",
    "{a}:b",
    "A",
]


async def test_project_keys_and_session_ids_are_opaque_and_each_is_its_own(sessions: ChatkeepSessionStore) -> None:
    keys = [of(name, "s") for name in ODD] + [of("p", name) for name in ODD]
    for key in keys:
        await sessions.append(key, [said("x", key=key)])
    for key in keys:
        assert await sessions.load(key) == [said("x", key=key)]
    for name in ODD:
        assert [each["session_id"] for each in await sessions.list_sessions(name)] == ["s"]
    assert {each["session_id"] for each in await sessions.list_session_summaries("p")} == set(ODD)
    await sessions.delete(of("p", "a"))
    assert {each["session_id"] for each in await sessions.list_sessions("p")} == {*ODD} - {"a"}
    assert await sessions.load(of("a", "s")) is not None


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (of(""), "project_key must not be empty"),
        (of("p", ""), "session_id must not be empty"),
        (of("p", 5), "session_id must be a str"),  # type: ignore[arg-type]
        ({**KEY, "subpath": ""}, "subpath must not be empty"),
        ({**KEY, "subpath": "x" * 513}, "a log's name is 513 bytes long"),
        (of("p" * 600, "s" * 600), "project_key and session_id together is 1207 bytes long; at most 1024"),
        (of("\ud800"), "project_key holds a lone surrogate"),
    ],
)
async def test_a_key_that_cannot_be_one_is_refused(key: Any, named: str) -> None:
    async with ChatkeepSessionStore("memory://") as sessions:
        for call in (sessions.append(key, [said("x")]), sessions.load(key), sessions.delete(key)):
            with pytest.raises(InvalidIdError, match=named):
                await call


async def test_mtimes_are_milliseconds_of_the_last_append_and_listings_begin_with_the_newest(opened: Opener) -> None:
    here, there = opened(), opened()
    began = int(time.time() * 1000)
    for session_id in ("a", "b", "c"):
        await here.append(of(PROJECT, session_id), [said(session_id)])
    for session_id in ("b", "a"):  # within the minute for which some backends keep a session's time
        before = {each["session_id"]: each["mtime"] for each in await there.list_sessions(PROJECT)}
        await asyncio.sleep(0.002)
        await there.append(of(PROJECT, session_id), [said("again")])
        after = {each["session_id"]: each["mtime"] for each in await here.list_sessions(PROJECT)}
        assert {name for name in after if after[name] != before[name]} == {session_id}
        assert after[session_id] == max(after.values())
    listed = await here.list_sessions(PROJECT)
    assert [each["session_id"] for each in listed] == ["a", "b", "c"]
    assert all(type(each["mtime"]) is int and began <= each["mtime"] <= time.time() * 1000 + 10 for each in listed)
    summaries = await here.list_session_summaries(PROJECT)
    assert [(each["session_id"], each["mtime"]) for each in summaries] == [
        (e["session_id"], e["mtime"]) for e in listed
    ]
    await here.append({**of(PROJECT, "c"), "subpath": "subagents/agent-1"}, [said("sub")])
    await here.append(of(PROJECT, "c"), [said("c")])  # it is there
    await here.append(of(PROJECT, "c"), [])
    assert await here.list_sessions(PROJECT) == listed


async def test_a_clock_that_stands_still_or_goes_back_turns_no_order_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store("memory://") as store:
        for now in (1_800_000_000.0, 1_800_000_000.0, 1_700_000_000.0):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda now=now: now)
                sessions = ChatkeepSessionStore(store)  # as another process has one
                for session_id in ("a", "b"):
                    await sessions.append(of(PROJECT, session_id), [title("t")])
            assert [each["session_id"] for each in await sessions.list_sessions(PROJECT)] == ["b", "a"]
        mtimes = [each["mtime"] for each in await sessions.list_sessions(PROJECT)]
        assert mtimes == [1_800_000_000_003, 1_800_000_000_002]


async def test_nothing_leads_out_of_a_scope(url: str) -> None:
    async with open_store(url) as store:
        alice = ChatkeepSessionStore(store, tenant="acme", user="alice")
        bob = ChatkeepSessionStore(store.scoped(tenant="acme", user="bob"))
        await alice.append(KEY, [said("secret")])
        await alice.append(SUB, [said("secret")])
        for other in (bob, ChatkeepSessionStore(store), ChatkeepSessionStore(store, tenant="acme")):
            assert await other.load(KEY) is await other.load(SUB) is None
            assert await other.list_sessions(PROJECT) == await other.list_session_summaries(PROJECT) == []
            assert await other.list_subkeys(KEY) == []
            await other.delete(KEY)
        assert await alice.load(KEY) == [said("secret")]
        assert await alice.list_subkeys(KEY) == ["subagents/agent-1"]


async def damage(sessions: ChatkeepSessionStore, **changes: Any) -> None:
    """Put a record behind the others that is not one of ours."""
    session = sessions.session(**of(PROJECT))
    (record,) = (await session.records()).records[:1]
    await session.commit(Write(uuid.uuid4().bytes, append=[record._replace(seq=0, id=None, **changes)]))


@pytest.mark.parametrize(
    ("changes", "said_of_it"),
    [
        ({"payload": b"{damaged"}, "not JSON"),
        ({"payload": b"[1]"}, "is no object"),
        ({"format": "claude-entry/2"}, "of a newer chatkeep"),
    ],
)
async def test_a_record_that_cannot_be_read_harms_itself_alone(
    opened: Opener, changes: dict[str, Any], said_of_it: str
) -> None:
    sessions = opened()
    await sessions.append(KEY, [said("one")])
    await sessions.append(of(PROJECT, "other"), [said("other")])
    await damage(sessions, **changes)
    await sessions.append(KEY, [said("two")])
    with pytest.raises(CorruptRecordError, match=said_of_it):
        await sessions.load(KEY)
    assert await opened(on_corrupt="skip").load(KEY) == [said("one"), said("two")]
    assert await opened(on_corrupt="raw").load(KEY) == [said("one"), said("two")]
    assert len(await sessions.list_sessions(PROJECT)) == 2
    assert [each["session_id"] for each in await sessions.list_session_summaries(PROJECT)] == ["other"]
    assert len(await sessions.session(**of(PROJECT)).repair()) == 1
    assert await sessions.load(KEY) == [said("one"), said("two")]
    assert len(await sessions.list_session_summaries(PROJECT)) == 2


async def test_a_redacted_entry_keeps_its_place_in_the_chain(sessions: ChatkeepSessionStore) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "secret"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "secret"}
    entries = chained(
        said("secret"),
        {**said("x", type="assistant"), "message": {"role": "assistant", "content": [call], "id": "msg_1"}},
        {**said("y"), "message": {"role": "user", "content": [result]}, "toolUseResult": {"stdout": "secret"}},
    )
    await sessions.append(KEY, [*entries, {"type": "queue-operation", "content": "secret"}])
    session = sessions.session(**of(PROJECT))
    assert await session.verify() == []
    records = (await session.records()).records
    assert [record.starts_turn for record in records] == [True, False, False, False]
    for record in records:
        await session.redact(record.seq)
    loaded: Any = await sessions.load(KEY)
    assert "secret" not in str(loaded)
    for name in ("uuid", "parentUuid", "type", "sessionId", "timestamp"):
        assert [entry.get(name) for entry in loaded[:3]] == [entry[name] for entry in entries]
    assert await session.verify() == []
    assert "secret" not in str(await sessions.list_session_summaries(PROJECT))


async def test_a_replaced_entry_keeps_the_uuid_of_the_old_one_and_calls_know_their_results(
    sessions: ChatkeepSessionStore,
) -> None:
    session = sessions.session(**of(PROJECT))
    await sessions.append(KEY, [said("one", uuid="u")])
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}]}
    await session.replace(1, {"type": "assistant", "message": call})
    assert await sessions.load(KEY) == [{"type": "assistant", "message": call, "uuid": "u"}]
    await sessions.append(KEY, [said("one", uuid="u"), title("t")])
    assert [(finding.seq, finding.kind) for finding in await session.verify()] == [(1, "call without result")]
    (record,) = (await session.records()).records[:1]
    with pytest.raises(CorruptRecordError, match="'chat/1', and the codec 'claude-entry' reads claude-entry/1"):
        EntryCodec().decode({}, record._replace(format="chat/1"))


async def test_what_is_kept_is_whole_turns(opened: Opener) -> None:
    sessions = opened(max_messages=2)
    for turn in ("a", "b", "c"):
        await sessions.append(KEY, [said(turn), said(f"{turn}!", type="assistant"), title(turn)])
    assert await sessions.load(KEY) == [said("c"), said("c!", type="assistant"), title("c")]
    assert [each["data"]["custom_title"] for each in await sessions.list_session_summaries(PROJECT)] == ["c"]


async def test_all_that_name_one_url_share_a_store_which_the_last_one_closes(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    first, second = ChatkeepSessionStore(url, tenant="a"), ChatkeepSessionStore(url, tenant="b")
    await first.append(KEY, [said("a")])
    assert await second.load(KEY) is None
    assert first.view._store is second.view._store
    await first.aclose()
    await second.append(KEY, [said("b")])
    store = second.view._store
    await second.aclose()
    await second.aclose()
    with pytest.raises(ChatkeepError, match="closed"):
        await store.ping()
    async with ChatkeepSessionStore(url, tenant="a", timeout=5) as third:
        assert await third.load(KEY) == [said("a")]


def test_one_store_serves_one_event_loop_after_the_other(tmp_path: Any) -> None:
    sessions = ChatkeepSessionStore(f"sqlite:///{tmp_path}/chat.db")

    async def run(number: int) -> int:
        await sessions.append(KEY, [said(str(number))])
        found = len(await sessions.load(KEY) or [])
        await sessions.aclose()
        return found

    assert [asyncio.run(run(number)) for number in range(3)] == [1, 2, 3]


def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(TypeError, match="ChatkeepSessionStore takes a store, a scope of one or a URL, not int"):
        ChatkeepSessionStore(5)  # type: ignore[arg-type]
    with chatkeep.sync.open_store("memory://") as blocking, pytest.raises(TypeError, match="the framework is asynch"):
        ChatkeepSessionStore(blocking)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ttl"):
        ChatkeepSessionStore(open_store("memory://"), ttl="30d")


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("memry://", {}, "memory"),
        ("no url", {}, "has no .://. in it"),
        ("memory://", {"tll": "30d"}, "Did you mean ttl"),
        ("memory://", {"tenant": ""}, "tenant must not be empty"),
        ("memory://", {"user": None}, "user must be a str"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_before_a_conversation_begins(url: str, options: Any, named: str) -> None:
    with pytest.raises(ChatkeepError, match=named):
        ChatkeepSessionStore(url, **options)
