"""What stays whole whatever happens at the same time, and what is damaged harms itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.dynamodb import server
from tests.dynamodb.proxy import proxy, through

from chatkeep import ChatMessage, OutcomeUnknownError, Store, StoreUnavailableError, open_store
from chatkeep.errors import CorruptRecordError, StoreFormatError
from chatkeep.testing.harness import Harness
from chatkeep_dynamodb.catalogue import Catalogue
from chatkeep_dynamodb.driver import LIMITS, DynamoDriver

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.once,
    pytest.mark.skipif(server.program() is None, reason=server.MISSING["ministack"]),
]


@pytest.fixture
def url() -> str:
    return server.empty_table()


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[Store[ChatMessage]]:
    async with open_store(url) as opened:
        yield opened


def said(*texts: str) -> list[ChatMessage]:
    return list(map(ChatMessage.user, texts))


def items(url: str) -> list[dict[str, Any]]:
    """Everything in the table."""
    table = url.partition("?")[0].rpartition("/")[2]
    pages = server.client("ministack").get_paginator("scan").paginate(TableName=table)
    return [item for page in pages for item in page["Items"]]


def head_of(url: str, text: str) -> dict[str, Any]:
    """The head that holds this text in plain."""
    (found,) = [each for each in items(url) if text.encode() in str(each.get("in0")).encode()]
    return found


def put(url: str, item: dict[str, Any]) -> None:
    server.client("ministack").put_item(TableName=url.partition("?")[0].rpartition("/")[2], Item=item)


# What is damaged


@pytest.mark.parametrize("what", ["cut", "empty", "without a head", "without a version", "a message"])
async def test_a_damaged_head_is_named_and_keeps_nobody_else_from_listing_sweep_and_erase(
    url: str, store: Store[ChatMessage], what: str
) -> None:
    scope = store.scoped(tenant="t", user="u")
    for name in ("one", "bad", "two"):
        await scope.session(name).append(said(f"in {name}"))
    await scope.session("bad").append([ChatMessage.user("secret", id=f"m{place}") for place in range(60)])
    await scope.session("bad").append(said("in bad, at last"))
    head = head_of(url, "in bad, at last")
    if what == "cut":
        head["head"]["B"] = head["head"]["B"][:-7]
    elif what == "empty":
        head["head"]["B"] = b""
    elif what == "without a version":
        del head["version"], head["head"]
    elif what == "a message":
        head["in0"]["L"][-1]["B"] = b"\1" + head["in0"]["L"][-1]["B"]
    else:
        del head["head"]
    put(url, head)
    async with open_store(url) as other:
        scope = other.scoped(tenant="t", user="u")
        bad = scope.session("bad")
        for call in (bad.messages, lambda: bad.append(said("z"))):
            with pytest.raises(CorruptRecordError, match="'bad'"):
                await call()
        listed = {"one", "two", "bad"} if what == "a message" else {"one", "two"}  # which no listing reads
        assert {info.id for info in await scope.list_sessions(limit=len(listed))} == listed
        assert {info.id for info in await other.list_sessions(below=True)} == listed
        assert (await other.sweep()).expired == 0
        assert (await other.purge(older_than="1d")).sessions == 0
        assert (await scope.erase()).sessions == 3
        left = items(url)
    assert all(item["sk"]["B"] == b"H" or item["pk"]["B"][:1] == b"C" for item in left)
    assert b"in bad" not in str(left).encode()


async def test_a_damaged_session_can_be_deleted_and_begun_anew(url: str, store: Store[ChatMessage]) -> None:
    session = store.session("s")
    await session.append(said(*(f"secret {place}" * 100 for place in range(60))))
    await session.append(said("last"))
    head = head_of(url, "last")
    put(url, {**head, "head": {"B": b"\1damaged"}})
    async with open_store(url) as other:
        await other.session("s").delete()
        assert [item for item in items(url) if item["sk"]["B"][:1] == b"P"] == []
        await other.session("s").append(said("anew"))
        assert [each.text for each in await other.session("s").messages()] == ["anew"]


async def test_what_a_later_version_has_stored_is_neither_purged_nor_erased_and_all_else_is(
    url: str, store: Store[ChatMessage]
) -> None:
    scope = store.scoped(tenant="t")
    for name in ("a", "later", "z"):
        await scope.session(name).append(said(f"in {name}"))
    later = head_of(url, "in later")
    put(url, {**later, "head": {"B": b"\7" + later["head"]["B"]}})
    async with open_store(url) as other:
        scope = other.scoped(tenant="t")
        with pytest.raises(StoreFormatError, match="newer"):
            await scope.session("later").messages()
        assert {info.id for info in await scope.list_sessions()} == {"a", "z"}
        assert (await other.sweep()).expired == 0
        for remove in (lambda: other.purge(older_than="1000d"), scope.erase, scope.session("later").delete):
            with pytest.raises(StoreFormatError, match="newer"):
                await remove()
        assert not await scope.session("a").exists()
        assert not await scope.session("z").exists()
    assert {**later, "head": {"B": b"\7" + later["head"]["B"]}} in items(url)


# Erasing while others write


@pytest.mark.parametrize("hours", [0, 2])
@pytest.mark.parametrize("kind", ["session", "state"])
async def test_what_begins_while_its_scope_is_erased_stays_in_reach(
    url: str, store: Store[ChatMessage], monkeypatch: pytest.MonkeyPatch, kind: str, hours: int
) -> None:
    acme, alice = store.scoped(tenant="acme"), store.scoped(tenant="acme", user="alice")
    await store.open()
    enter = Catalogue.enter

    async def enter_and_be_erased(catalogue: Catalogue, *args: Any) -> None:
        await enter(catalogue, *args)
        monkeypatch.setattr(Catalogue, "enter", enter)
        await Harness().pass_time(store, hours * 3600)  # a machine may have been frozen for so long
        async with open_store(url) as other:
            await Harness().pass_time(other, hours * 3600)  # what has had no session for long is forgotten
            await other.scoped(tenant="acme").erase()

    monkeypatch.setattr(Catalogue, "enter", enter_and_be_erased)
    if kind == "session":
        await alice.session("s").append(said("secret"))
    else:
        await alice.state.set("secret", 1)
    assert Catalogue.enter is enter
    receipt = await acme.erase()
    assert (receipt.sessions, receipt.state_keys) == ((1, 0) if kind == "session" else (0, 1))


async def test_what_begins_anew_while_its_entry_is_taken_out_stays_in_reach(
    url: str, store: Store[ChatMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out, session = Catalogue.take_out, store.scoped(tenant="acme", user="alice").session("s")

    async def begin_before(catalogue: Catalogue, id: bytes, path: bytes) -> None:
        monkeypatch.setattr(Catalogue, "take_out", take_out)
        async with open_store(url) as other:
            await Harness().pass_time(other, 2 * 7200)
            await other.scoped(tenant="acme", user="alice").session("s").append(said("secret"))
        await take_out(catalogue, id, path)

    await session.append(said("x"))
    await session.delete()
    async with open_store(url) as sweeping:
        await Harness().pass_time(sweeping, 2 * 7200)
        monkeypatch.setattr(Catalogue, "take_out", begin_before)
        await sweeping.sweep()
    assert Catalogue.take_out is take_out
    assert (await store.scoped(tenant="acme").erase()).sessions == 1
    assert not await session.exists()


async def test_a_session_whose_writer_died_as_it_began_is_no_obstacle_and_begun_anew_it_is_in_reach(
    url: str, store: Store[ChatMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(url) as other:
        await other.open()
        enter = DynamoDriver._enter

        async def enter_and_die(driver: DynamoDriver, id: bytes, head: Any) -> None:
            await enter(driver, id, head)
            raise StoreUnavailableError("gone")

        monkeypatch.setattr(DynamoDriver, "_enter", enter_and_die)
        with pytest.raises(StoreUnavailableError):
            await other.scoped(tenant="acme").session("s").append(said("x"))
        monkeypatch.setattr(DynamoDriver, "_enter", enter)
    acme = store.scoped(tenant="acme")
    assert (await acme.erase()).sessions == 0
    assert await acme.list_sessions() == []
    await acme.session("s").append(said("x"))
    assert (await acme.erase()).sessions == 1


# Writes whose answers are lost


@pytest.mark.parametrize("others", [5, LIMITS.recent + 5])
async def test_a_write_whose_answer_is_lost_before_many_others_is_stored_once_or_its_outcome_is_unknown(
    others: int,
) -> None:
    async with proxy() as between:
        url = through(between, "timeout=60")
        direct = url.replace(f":{between.port}", f":{server.shared('ministack').port}")
        async with open_store(url) as store, open_store(direct) as other:
            ours, theirs, opened = store.session("s"), other.session("s"), asyncio.Event()
            await ours.append(said("first"))
            passed_on, lost = between._passed_on, asyncio.Event()

            async def hold(head: dict[str, str], body: bytes) -> bytes:
                if head["x-amz-target"].endswith("GetItem"):
                    await opened.wait()
                answer = await passed_on(head, body)
                if head["x-amz-target"].endswith("UpdateItem"):
                    lost.set()
                return answer

            between._passed_on = hold  # type: ignore[method-assign]
            between.once("lost", "UpdateItem")
            write = asyncio.create_task(ours.append(said("once")))
            await lost.wait()
            for number in range(others):
                await theirs.append(said(str(number)))
            opened.set()
            if others > LIMITS.recent:
                with pytest.raises(OutcomeUnknownError, match="batch_id"):
                    await write
            else:
                assert (await write).added == 1
            texts = [message.text for message in await theirs.messages()]
    assert texts == ["first", "once", *map(str, range(others))]
