"""`ChatkeepSession` by itself: order, limits, pops, what is refused, what harms only itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agents import RunContextWrapper
from agents.memory import Session, SessionSettings
from tests.adapters.openai_agents.models import Opener, answer, called, few_backends, returned, user

from chatkeep import CorruptRecordError, OpenAIChatCodec, SerializationError, Window, open_store
from chatkeep_adapters.openai_agents import ChatkeepSession

ODD: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "nul \0, \u2028, 🧳, a lone \ud83e, مرحبا"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 1000, "content": None},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1.0}', "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:,"}]},
    {"type": "a_kind_of_2031", "$ref": 1, "a.b": {"": [{}, [], None, True, 10**30, 0.1]}, "role": {"name": 7}},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "…"},
    {"role": "developer", "content": "be brief", "provider_data": {"chatkeep": 1}},
    {},
]


async def test_it_is_a_session_of_the_sdk(session: ChatkeepSession) -> None:
    assert isinstance(session, Session)
    assert (session.session_id, session.session_settings) == ("bags", SessionSettings())
    context: Any = RunContextWrapper(context=None)
    await session.add_items([user("hi")], wrapper=context)
    assert await session.get_items(wrapper=context) == [await session.pop_item(wrapper=context)] == [user("hi")]
    await session.clear_session(wrapper=context)


async def test_items_of_any_shape_come_back_equal_and_in_order(opened: Opener) -> None:
    session = opened()
    await session.add_items(ODD[:3])
    await session.add_items(ODD[3:])
    for reader in (session, opened()):
        found = await reader.get_items()
        assert json.dumps(found, sort_keys=True) == json.dumps(ODD, sort_keys=True)
        assert type(found) is list
    for item in reversed(ODD):
        assert await session.pop_item() == item
    assert await session.pop_item() is None


async def test_the_limit_counts_the_newest_items_oldest_first(session: ChatkeepSession) -> None:
    items = [user(str(number)) for number in range(12)]
    await session.add_items(items)
    assert await session.get_items(3) == items[-3:]
    assert await session.get_items(limit=0) == []
    assert await session.get_items(100) == await session.get_items(2_147_483_647) == items
    session.session_settings = SessionSettings(limit=2)
    assert await session.get_items() == items[-2:]
    assert await session.get_items(5) == items[-5:]
    session.session_settings = None
    assert await session.get_items() == items
    with pytest.raises(ValueError, match="last must be an int of 0 or more, not -1"):
        await session.get_items(-1)


async def test_settings_may_be_a_dict() -> None:
    async with open_store("memory://") as store:
        session = ChatkeepSession(store, session_id="s", session_settings={"limit": 1})
        await session.add_items([user("a"), user("b")])
        assert await session.get_items() == [user("b")]


@few_backends
async def test_equal_items_are_no_duplicates_and_nothing_is_no_write(session: ChatkeepSession) -> None:
    await session.add_items([])
    assert not await session.session().exists()
    await session.add_items([user("ok")])
    await session.add_items([user("ok"), user("ok")])
    assert await session.get_items() == [user("ok")] * 3


async def test_an_item_with_a_known_id_is_stored_once_where_that_is_asked_for(opened: Opener) -> None:
    batch = [user("hi"), answer("one", "msg_1"), answer("two", "__fake_id__"), answer("three", "i" * 2000)]
    plain, once = opened(session_id="plain"), opened(session_id="once", unique_ids=True)
    for session in (plain, once):
        await session.add_items(batch)
        await session.add_items(batch[1:])
    assert await plain.get_items() == batch + batch[1:]
    assert await once.get_items() == batch + batch[2:], (
        "what the SDK calls every item by is no id, nor what is too long"
    )
    while await once.pop_item() != batch[1]:
        pass
    await once.add_items([batch[1]])
    assert await once.get_items() == batch[:2], "what was taken out may come back"


@few_backends
async def test_sessions_scopes_and_logs_of_others_are_apart(url: str) -> None:
    async with open_store(url) as store:
        alice = ChatkeepSession(store, session_id="s", tenant="acme", user="alice")
        bob = ChatkeepSession(store, session_id="s", tenant="acme", user="bob")
        other = ChatkeepSession(store, session_id="s2", tenant="acme", user="alice")
        await alice.add_items([user("hi")])
        await bob.add_items([user("ho")])
        assert await other.get_items() == []
        await bob.clear_session()
        assert (await alice.get_items(), await bob.get_items()) == ([user("hi")], [])


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": b"x"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": float("nan")}, "messages[1].content"),
        ({"role": "user", "at": {1, 2}}, "messages[1].at"),
        ("hello", "messages[1]"),
        ([user("a")], "messages[1]"),
    ],
    ids=["bytes", "nan", "set", "text", "list"],
)
async def test_what_is_no_json_is_refused_by_its_place_before_anything_is_written(item: Any, path: str) -> None:
    async with open_store("memory://") as store:
        session = ChatkeepSession(store, session_id="s")
        with pytest.raises(SerializationError) as refused:
            await session.add_items([user("fine"), item])
        assert str(refused.value).startswith(f"{path}: ")
        assert await session.get_items() == []


async def test_what_json_has_a_form_for_is_kept_in_that_form() -> None:
    async with open_store("memory://") as store:
        session = ChatkeepSession(store, session_id="s")
        item: Any = {"role": "user", "content": ({"type": "input_text", "text": "a"},), "more": {1: "b"}}
        await session.add_items([item])
        assert await session.get_items() == [json.loads(json.dumps(item))]


@few_backends
async def test_what_callers_do_with_items_does_not_reach_the_store(session: ChatkeepSession) -> None:
    mine = user("hi")
    await session.add_items([mine])
    mine["content"] = "changed"
    (await session.get_items())[0]["content"] = "changed"  # type: ignore[index,typeddict-unknown-key]
    assert await session.get_items() == [user("hi")]


# Many at once


async def test_batches_of_many_writers_stay_whole_and_contiguous(opened: Opener) -> None:
    sessions = [opened() for _ in range(2)]
    batches = [[user(f"{writer}"), called(f"{writer}"), returned(f"{writer}")] for writer in range(12)]
    await asyncio.gather(*(sessions[place % 2].add_items(batch) for place, batch in enumerate(batches)))
    found = await sessions[0].get_items()
    assert sorted(json.dumps(found[at : at + 3]) for at in range(0, len(found), 3)) == sorted(map(json.dumps, batches))


async def test_each_item_is_popped_once_however_many_pop(opened: Opener) -> None:
    sessions = [opened() for _ in range(2)]
    items = [user(str(number)) for number in range(8)]
    await sessions[0].add_items(items)
    popped = await asyncio.gather(*(sessions[place % 2].pop_item() for place in range(10)))
    assert sorted(item["content"] for item in popped if item) == [item["content"] for item in items]
    assert popped.count(None) == 2


async def test_a_clear_is_one_boundary_for_those_who_add(opened: Opener) -> None:
    one, other = opened(), opened()
    await one.add_items([user("before")] * 3)
    await asyncio.gather(one.clear_session(), *(other.add_items([user(f"{n}"), returned(f"{n}")]) for n in range(6)))
    found = await one.get_items()
    assert user("before") not in found
    assert [item["call_id"] for item in found[1::2]] == [item["content"] for item in found[::2]]
    await other.clear_session()
    await other.clear_session()
    assert await one.get_items() == []


async def test_a_write_that_is_cancelled_is_whole_or_not_there_when_the_cancellation_goes_on(opened: Opener) -> None:
    session, reader = opened(), opened()
    await reader.get_items()
    for turns in range(6):
        batch = [user(f"{turns}"), *(returned(f"{n}") for n in range(20))]
        writing = asyncio.ensure_future(session.add_items(batch))
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        at_once = await reader.get_items()
        assert len(at_once) % 21 == 0
        await asyncio.sleep(0.01)
        assert await reader.get_items() == at_once


# What cannot be read


async def damage(session: ChatkeepSession) -> None:
    """Two items, a record of another format between them, and one more at the end."""
    log = session.view.session(session.session_id, codec=OpenAIChatCodec())
    for content in ("one", "two"):
        await session.add_items([user(content)])
        await log.append([{"role": "user", "content": "of another kind"}])


@few_backends
async def test_a_record_of_an_unknown_format_harms_only_itself(opened: Opener) -> None:
    await damage(opened())
    with pytest.raises(CorruptRecordError, match=r"message 2 of session 'bags'.*has the format 'openai/1'"):
        await opened().get_items()
    for on_corrupt in ("skip", "raw"):
        session = opened(on_corrupt=on_corrupt)
        assert await session.get_items() == [user("one"), user("two")]
        with pytest.raises(CorruptRecordError):
            await session.pop_item()
    assert len((await opened().session().records()).records) == 4, "nothing is deleted unasked"
    session = opened()
    assert len(await session.session().repair()) == 2
    assert [await session.pop_item(), await session.pop_item(), await session.pop_item()] == [
        user("two"),
        user("one"),
        None,
    ]


@few_backends
async def test_with_the_damaged_ones_left_out_the_limit_counts_what_is_given(opened: Opener) -> None:
    await damage(opened())
    assert await opened(on_corrupt="skip").get_items(2) == [user("one"), user("two")]


# Turns


TURNS = [user("q1"), called("a"), returned("a"), answer("r1"), user("q2"), called("b"), called("c"), returned("b")]
TURNS += [returned("c"), answer("r2"), user("q3"), answer("r3")]


@few_backends
async def test_a_limit_may_cut_a_turn_and_a_window_does_not(opened: Opener) -> None:
    session = opened(window=Window(max_messages=7))
    await session.add_items(TURNS)
    assert await session.get_items(4) == TURNS[-4:]
    assert await session.get_items() == TURNS[-2:]
    session.window = Window(max_messages=8)
    assert await session.get_items() == TURNS[-8:]
    session.session_settings = SessionSettings(limit=3)
    assert await session.get_items() == TURNS[-3:], "a limit goes before the window"


@few_backends
async def test_a_window_holds_no_output_without_its_call(opened: Opener) -> None:
    late: list[Any] = [user("q1"), called("a"), user("meanwhile"), returned("a"), answer("r")]
    session = opened(window=Window(max_messages=3))
    await session.add_items(late)
    assert await session.get_items() == [late[2], late[4]]
    session.window = Window(max_messages=5)
    assert await session.get_items() == late


@few_backends
async def test_a_store_that_keeps_so_many_messages_keeps_whole_turns(url: str) -> None:
    async with ChatkeepSession(url, session_id="s", max_messages=7) as session:
        await session.add_items(TURNS)
        assert await session.get_items() == TURNS[4:]


@few_backends
async def test_a_session_is_verified_redacted_and_titled_as_any_other(session: ChatkeepSession) -> None:
    approval: list[Any] = [
        {"type": "mcp_approval_request", "id": "m", "name": "n", "arguments": "{}", "server_label": "l"},
        {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "secret"}]},
    ]
    await session.add_items([*TURNS, *approval])
    log = session.session()
    assert await log.verify() == []
    for seq in range(1, len(TURNS) + len(approval) + 1):
        await log.redact(seq, "gone")
    found = await session.get_items()
    assert found[:3] == [user("gone"), called("a") | {"arguments": '{"text": "gone"}'}, returned("a", "gone")]
    assert found[3] == answer("gone")
    assert found[-1]["summary"] == [{"type": "summary_text", "text": "gone"}]  # type: ignore[typeddict-item]
    assert await log.verify() == []
    await log.update(title="Bags")
    await session.clear_session()
    info = await log.info()
    assert info is not None
    assert (info.title, info.messages) == ("Bags", 0)


@few_backends
async def test_a_call_without_its_output_is_found(session: ChatkeepSession) -> None:
    await session.add_items([user("q"), called("a")])
    assert [finding.seq for finding in await session.session().verify()] == [2]


def test_what_is_given_is_checked_at_once() -> None:
    with pytest.raises(TypeError, match="ChatkeepSession takes a store, a scope of one or a URL, not int"):
        ChatkeepSession(7, session_id="s")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="session_id"):
        ChatkeepSession("memory://", session_id="")
    with pytest.raises(TypeError, match="window must be a Window"):
        ChatkeepSession("memory://", session_id="s", window=20)  # type: ignore[arg-type]
