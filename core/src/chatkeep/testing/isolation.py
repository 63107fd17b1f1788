"""Clauses 22 to 24: what one scope can see and do, and what listing, deleting, erasing and purging reach."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from chatkeep import (
    ChatMessage,
    ConflictError,
    InvalidIdError,
    MessageNotFoundError,
    Scope,
    ScopedStore,
    SessionSnapshot,
    Store,
)
from chatkeep.errors import LeaseHeldError, ScopeRequiredError
from chatkeep.records import Key, LeaseOp, Receipt, Write

from .clauses import clause
from .harness import Harness, Opener, texts, turn

HOSTILE = [
    "a",
    "A",
    "aa",
    "ab",
    "a ",
    " a",
    " ",
    "a:b",
    "a::b",
    "a/b",
    "a/../b",
    "../a",
    ".",
    "..",
    "a.b",
    "a.",
    "a,b",
    'a","b',
    'a",null]',
    "a|b",
    "a-b",
    "a=b&c=d",
    "a?b#c",
    "a%3Ab",
    "a%00",
    "*",
    "a*",
    "?",
    "[a]",
    "[a-z]",
    "%",
    "a%",
    "_",
    "a_",
    "\\",
    "a\\",
    "\\0",
    "{a}",
    "{a",
    "a}",
    "{}",
    "$",
    "$a",
    "$gt",
    "^a.*$",
    "'",
    "a'",
    "''",
    '"',
    "`a`",
    "a; --",
    "'; DROP TABLE chatkeep_sessions; --",
    "' OR '1'='1",
    "[null,null,null]",
    '[null,null,"a"]',
    '["a",null,null]',
    '{"$gt":""}',
    '{"a":1}',
    "null",
    "None",
    "true",
    "0",
    "00",
    "1",
    "1.0",
    "-1",
    "1e3",
    "__proto__",
    "\0",
    "a\0",
    "a\0b",
    "\n",
    "a\n",
    "a\nb",
    "a\r\n",
    "\t",
    "\x1f",
    "\x7f",
    "\u00e9",
    "e\u0301",
    "\u00df",
    "SS",
    "\u0130",
    "\u2028",
    "\u200b",
    "\u202ea",
    "\ufeff",
    "\ufeffa",
    "\ufffd",
    "\uffff",
    "\ud7ff",
    "\ue000",
    "😀",
    "👩‍👩‍👧",
    "\U0010ffff",
    "x" * 511,
    "x" * 512,
    "y" + "x" * 511,
    "é" * 256,
    "😀" * 128,
]
"""Names that any backend might mix up, take apart or take for something else; each at most 512 bytes."""

LONG = ["x" * 513, "x" * 1023, "x" * 1024, "y" + "x" * 1023, "x" * 1023 + "y", "é" * 512, "😀" * 256, "/" * 1024]
"""At most 1,024 bytes."""

REFUSED: dict[str, Any] = {
    "nothing": "",
    "a lone surrogate": "\ud800",
    "a surrogate inside": "a\udfffb",
    "a surrogate pair that is none": "\ud83d\ude00",
    "an operator": {"$gt": ""},
    "an int": 5,
    "None": None,
    "bytes": b"a",
    "a list": ["a"],
    "True": True,
}


@dataclass
class Plan:
    """A type that one store knows and another does not."""

    name: str


class Isolation(Harness):
    @clause(22)
    async def test_session_ids_are_opaque_and_each_is_its_own(self, store: Store[ChatMessage]) -> None:
        ids = HOSTILE + LONG
        view = store.scoped(tenant="acme", user="alice")
        for place, name in enumerate(ids):
            await view.session(name).append([ChatMessage.user(f"{place}")])
            await view.session(name).state.set("k", place)
        for place, name in enumerate(ids):
            assert texts(await view.session(name).messages()) == [f"{place}"]
            assert await view.session(name).state.get("k") == place
            info = await view.session(name).info()
            assert info is not None
            assert info.id == name
        listed = [info.id async for info in view.iter_sessions()]
        assert sorted(listed) == sorted(ids)
        for name in ids[::2]:
            assert await view.session(name).delete() is True
        listed = [info.id async for info in view.iter_sessions()]
        assert sorted(listed) == sorted(ids[1::2])
        for place, name in enumerate(ids):
            assert texts(await view.session(name).messages()) == ([f"{place}"] if place % 2 else [])

    @clause(22)
    @pytest.mark.parametrize("field", Scope._fields)
    async def test_scope_fields_are_opaque_and_each_is_its_own(self, store: Store[ChatMessage], field: str) -> None:
        names = HOSTILE + LONG
        views = [store.scoped(**{field: name}) for name in names]
        for place, view in enumerate(views):
            await view.session("s").append([ChatMessage.user(f"{place}")])
            await view.state.set("k", place)
        for place, view in enumerate(views):
            assert texts(await view.session("s").messages()) == [f"{place}"]
            assert await view.state.items() == {"k": place}
            (info,) = await view.list_sessions(below=True)
            assert (info.id, getattr(info.scope, field)) == ("s", names[place])
        below = [info.scope async for info in store.iter_sessions(below=True)]
        assert sorted(getattr(scope, field) for scope in below) == sorted(names)
        for view in views[::2]:
            receipt = await view.erase()
            assert (receipt.sessions, receipt.messages, receipt.state_keys) == (1, 1, 1)
        for place, view in enumerate(views):
            assert texts(await view.session("s").messages()) == ([f"{place}"] if place % 2 else [])
            assert await view.state.get("k") == (place if place % 2 else None)

    @clause(22)
    async def test_fields_of_a_scope_are_not_mixed_up_with_one_another_or_with_the_session_id(
        self, store: Store[ChatMessage]
    ) -> None:
        parts = (None, "a", "b", "a:b", "null")
        addresses = [Scope(app, tenant, user) for app in parts for tenant in parts for user in parts]
        for place, scope in enumerate(addresses):
            for name in ("s", "a", "b"):
                await store.at(scope).session(name).append([ChatMessage.user(f"{place} {name}")])
        for place, scope in enumerate(addresses):
            assert sorted(info.id for info in await store.at(scope).list_sessions()) == ["a", "b", "s"]
            for name in ("s", "a", "b"):
                assert texts(await store.at(scope).session(name).messages()) == [f"{place} {name}"]
        for scope in addresses:
            below = [info.scope async for info in store.at(scope).iter_sessions(below=True)]
            assert sorted(map(repr, below)) == sorted(repr(each) for each in addresses * 3 if _lies_in(scope, each))
        await store.scoped(app="a", tenant="b").erase()
        for scope in addresses:
            gone = scope[:2] == ("a", "b")
            assert await store.at(scope).session("s").exists() is not gone

    @clause(22)
    async def test_log_names_are_opaque_and_each_is_its_own(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user("main", id="id")])
        for place, name in enumerate(HOSTILE):
            await session.log(name).append([ChatMessage.user(f"{place}", id="id")])
        for place, name in enumerate(HOSTILE):
            history = await session.log(name).messages()
            assert (texts(history), history.seqs) == ([f"{place}"], [1])
        info = await session.info()
        assert info is not None
        assert sorted(info.logs) == sorted(["", *HOSTILE])
        for name in HOSTILE[::2]:
            assert len(await session.log(name).pop()) == 1
        for place, name in enumerate(HOSTILE):
            assert await session.log(name).count() == place % 2
        assert texts(await session.messages()) == ["main"]

    @clause(22)
    @pytest.mark.parametrize("level", ["session", "scope"])
    async def test_state_keys_are_opaque_and_each_is_its_own(self, store: Store[ChatMessage], level: str) -> None:
        state = store.session("s").state if level == "session" else store.scoped(user="u").state
        for place, name in enumerate(HOSTILE):
            await state.set(name, place)
        assert await state.items() == {name: place for place, name in enumerate(HOSTILE)}
        assert await state.keys() == sorted(HOSTILE, key=str.encode)
        for place, name in enumerate(HOSTILE):
            assert await state.get(name) == place
            assert await state.keys(name) == sorted((each for each in HOSTILE if each.startswith(name)), key=str.encode)
        for name in HOSTILE[::2]:
            await state.delete(name)
        assert await state.items() == {name: place for place, name in enumerate(HOSTILE) if place % 2}

    @clause(22)
    async def test_message_and_batch_ids_are_opaque_and_each_is_its_own(self, store: Store[ChatMessage]) -> None:
        ids = HOSTILE + LONG
        session = store.session("s")
        messages = [ChatMessage.user(f"{place}", id=name) for place, name in enumerate(ids)]
        for log in (session, session.log("one by one")):
            for batch in [messages] if log is session else [[message] for message in messages]:
                assert (await log.append(batch)).added == len(batch)
            again = await log.append(list(reversed(messages)))
            assert (again.added, again.seqs) == (0, tuple(range(len(ids), 0, -1)))
            assert [message.id for message in await log.messages()] == ids
        log = session.log("batches")
        for added in (1, 0):
            for name in ids:
                assert (await log.append([ChatMessage.user("same")], batch_id=name)).added == added
        assert await log.count() == len(ids)

    @clause(22)
    async def test_metadata_keys_titles_and_service_ids_are_opaque_and_each_is_its_own(
        self, store: Store[ChatMessage]
    ) -> None:
        keys = [name for name in HOSTILE if len(name.encode()) <= 500]
        for place, name in enumerate(keys):
            await store.session(f"s{place}").update(title=name, metadata={name: name}, service_session_id=name)
        for place, name in enumerate(keys):
            info = await store.session(f"s{place}").info()
            assert info is not None
            assert (info.title, info.metadata, info.service_session_id) == (name, {name: name}, name)
            assert [each.id for each in await store.list_sessions(title=name)] == [f"s{place}"]
            assert [each.id for each in await store.list_sessions(metadata={name: name})] == [f"s{place}"]
            found = await store.find_by_service_id(name)
            assert found is not None
            assert found.id == f"s{place}"
        one = store.session("all")
        for start in range(0, len(keys), 20):
            await one.update(metadata=dict.fromkeys(keys[start : start + 20], 1))
        info = await one.info()
        assert info is not None
        assert info.metadata == dict.fromkeys(keys, 1)

    @clause(22)
    @pytest.mark.parametrize("name", REFUSED)
    async def test_what_cannot_be_an_id_is_refused_before_anything_is_asked(
        self, store: Store[ChatMessage], name: str
    ) -> None:
        wrong = REFUSED[name]
        session = store.session("s")
        attempts: dict[str, Callable[[], Any]] = {
            "session id": lambda: store.session(wrong),
            "log name": lambda: session.log(wrong),
            "state.get": lambda: session.state.get(wrong),
            "state.set": lambda: session.state.set(wrong, 1),
            "state.update": lambda: session.state.update({wrong: 1}),
            "state.delete": lambda: session.state.delete(wrong),
            "scope state": lambda: store.scoped(user="u").state.set(wrong, 1),
            "metadata": lambda: session.update(metadata={wrong: 1}),
            "a filter": lambda: store.list_sessions(metadata={wrong: 1}),
            "fork": lambda: session.fork(wrong),
            "restore": lambda: store.restore(SessionSnapshot(wrong)),
        }
        if wrong:
            attempts |= {
                "app": lambda: store.scoped(app=wrong),
                "tenant": lambda: store.scoped(tenant=wrong),
                "user": lambda: store.scoped(tenant="acme", user=wrong),
                "a prefix": lambda: session.state.keys(wrong),
                "batch id": lambda: session.append(turn(1), batch_id=wrong),
                "a given scope": lambda: store.at(Scope(user=wrong)),
                "title": lambda: session.update(title=wrong),
            }
        if isinstance(wrong, str):
            attempts["message id"] = lambda: session.append([ChatMessage.user("x", id=wrong)])
        if isinstance(wrong, dict | list):
            for unhashable in ("state.update", "metadata", "a filter"):
                del attempts[unhashable]
        for attempt, call in attempts.items():
            try:
                result = call()
                if isinstance(result, Awaitable):
                    await result
            except InvalidIdError:
                continue
            pytest.fail(f"{wrong!r} was taken for {attempt}")
        assert not await session.exists()
        assert await store.list_sessions(below=True) == []

    @clause(22)
    async def test_ids_that_are_too_long_are_refused(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        for wrong in ("x" * 1025, "é" * 513, "😀" * 257):
            with pytest.raises(InvalidIdError, match="1024"):
                store.session(wrong)
            with pytest.raises(InvalidIdError, match="1024"):
                store.scoped(tenant=wrong)
            with pytest.raises(InvalidIdError, match="1024"):
                await session.append([ChatMessage.user("x", id=wrong)])
        for wrong in ("x" * 513, "é" * 257, "😀" * 129):
            with pytest.raises(InvalidIdError, match="512"):
                session.log(wrong)
            with pytest.raises(InvalidIdError, match="512"):
                await session.state.set(wrong, 1)
        assert not await session.exists()

    @clause(22)
    async def test_no_other_scope_can_read_write_or_detect_a_session(self, store: Store[ChatMessage]) -> None:
        owner = store.scoped(app="shop", tenant="acme", user="alice")
        session = owner.session("s")
        await session.append([ChatMessage.user("secret", id="m1"), ChatMessage.assistant("indeed")], batch_id="b")
        await session.log("side").append(turn(1))
        await session.state.set("k", "secret")
        await session.update(title="secret", metadata={"a": 1}, service_session_id="resp_1")
        await owner.state.set("k", "secret")
        history = await session.messages()
        entry = await session.state.entry("k")
        assert entry is not None
        before = await session.info()
        token = (await owner.list_sessions(limit=1)).next
        assert token is None
        for other in _others(store):
            stranger = other.session("s")
            assert (await stranger.exists(), await stranger.info(), await stranger.count()) == (False, None, 0)
            assert (await stranger.messages(), await stranger.log("side").messages()) == ([], [])
            assert (await stranger.state.get("k"), await stranger.state.keys()) == (None, [])
            assert (await other.state.get("k"), await other.state.keys()) == (None, [])
            assert await other.list_sessions() == []
            assert await other.list_sessions(title="secret") == await other.list_sessions(metadata={"a": 1}) == []
            assert await other.find_by_service_id("resp_1") is None
            assert (await stranger.snapshot()).state == {}
            assert (await stranger.pop(), await stranger.truncate_after(0)) == ([], 0)
            assert await stranger.delete() is False
            await stranger.state.delete("k")
            await stranger.clear()
            with pytest.raises(MessageNotFoundError):
                await stranger.replace(1, ChatMessage.user("mine"))
            with pytest.raises(MessageNotFoundError):
                await stranger.redact(1)
            with pytest.raises(MessageNotFoundError):
                await stranger.fork("branch")
            for refused in (
                stranger.messages(after=history.start),
                stranger.append([ChatMessage.user("mine")], expected_tail=history.tail),
                stranger.state.set("k", "mine", expected=entry.version),
                stranger.pop(expected_tail=history.tail),
                stranger.truncate_after(history.start),
            ):
                with pytest.raises(ConflictError):
                    await refused
            assert not await stranger.exists()
        assert await session.info() == before
        assert await session.messages() == history
        assert await session.state.items() == await owner.state.items() == {"k": "secret"}

    @clause(22)
    async def test_what_another_scope_writes_under_the_same_id_is_its_own(self, store: Store[ChatMessage]) -> None:
        owner = store.scoped(app="shop", tenant="acme", user="alice")
        session = owner.session("s")
        await session.append([ChatMessage.user("owner's", id="m1")], batch_id="b")
        await session.state.set("k", "owner's")
        before = await session.info()
        for place, other in enumerate(_others(store)):
            stranger = other.session("s")
            appended = await stranger.append([ChatMessage.user(f"{place}", id="m1")], batch_id="b")
            assert (list(appended.seqs), appended.added) == ([1], 1)
            await stranger.state.set("k", place)
            async with session.lease(), stranger.lease() as guarded:
                await guarded.update(metadata={"guarded": True})
            info = await stranger.info()
            assert before is not None
            assert info is not None
            assert info.life != before.life
        for place, other in enumerate(_others(store)):
            assert texts(await other.session("s").messages()) == [f"{place}"]
            assert await other.session("s").delete() is True
        assert texts(await session.messages()) == ["owner's"]
        assert await session.state.items() == {"k": "owner's"}

    @clause(22)
    async def test_a_lease_is_held_in_its_own_scope_alone(self, store: Store[ChatMessage]) -> None:
        alice, bob = (store.scoped(tenant="acme", user=user).session("s") for user in ("alice", "bob"))
        async with alice.lease(), bob.lease():
            with pytest.raises(LeaseHeldError):
                await store.backend.commit(Key(alice.scope, "s"), Write(os.urandom(16), lease=LeaseOp("somebody", 5.0)))

    @clause(22)
    async def test_scoped_narrows_and_never_changes_what_is_set(self, store: Store[ChatMessage]) -> None:
        shop = store.scoped(app="shop")
        acme = shop.scoped(tenant="acme")
        assert acme.scoped(user="alice").scope == Scope("shop", "acme", "alice")
        assert acme.scoped(tenant="acme", user="alice").scope == Scope("shop", "acme", "alice")
        assert store.scoped(app="shop", user="alice").scope == Scope("shop", None, "alice")
        wrong: list[tuple[ScopedStore[ChatMessage], dict[str, Any]]] = [
            (acme, {"tenant": "other"}),
            (acme, {"tenant": "other", "user": "alice"}),
            (acme, {"app": "other"}),
            (shop, {"app": "shop2", "tenant": "acme"}),
            (acme.scoped(user="alice"), {"user": "bob"}),
            (store.scoped(user="alice"), {"tenant": "acme"}),
            (store.scoped(tenant="acme"), {"app": "shop"}),
            (acme, {}),
            (store, {"tenant": None, "user": "alice"}),
        ]
        for view, fields in wrong:
            with pytest.raises(InvalidIdError):
                view.scoped(**fields)

    @clause(22)
    async def test_an_app_and_a_tenant_given_to_the_store_are_its_root(self, opened: Opener) -> None:
        shop, bank = opened(app="shop"), opened(app="bank")
        acme = opened(app="shop", tenant="acme")
        for place, store in enumerate((shop, bank, acme)):
            await store.session("s").append([ChatMessage.user(f"{place}")])
            await store.state.set("k", place)
        for place, store in enumerate((shop, bank, acme)):
            assert texts(await store.session("s").messages()) == [f"{place}"]
            assert await store.state.get("k") == place
        assert len(await shop.list_sessions(below=True)) == 2
        assert len(await bank.list_sessions(below=True)) == len(await acme.list_sessions(below=True)) == 1
        assert texts(await shop.scoped(tenant="acme").session("s").messages()) == ["2"]
        for scope in (Scope(), Scope("shop"), Scope("bank", "acme"), Scope(None, "acme"), Scope("bank")):
            with pytest.raises(InvalidIdError):
                acme.at(scope)
        for fields in ({"app": "bank"}, {"tenant": "other"}):
            with pytest.raises(InvalidIdError):
                acme.scoped(**fields)
        assert (await acme.erase()).sessions == 1
        assert (await shop.purge(older_than=0)).sessions == 1
        assert texts(await bank.session("s").messages()) == ["1"]

    @clause(22)
    async def test_a_store_that_requires_a_scope_has_no_sessions_of_its_own(self, opened: Opener) -> None:
        store = opened(require_scope=True)
        for refused in (lambda: store.session("s"), lambda: store.state):
            with pytest.raises(ScopeRequiredError):
                refused()
        with pytest.raises(ScopeRequiredError):
            await store.restore(SessionSnapshot("s"))
        session = store.scoped(tenant="acme").session("s")
        await session.append(turn(1))
        assert [info.id for info in await store.list_sessions(below=True)] == ["s"]

    @clause(23)
    async def test_sessions_are_listed_by_last_write_newest_first(self, store: Store[ChatMessage]) -> None:
        names = [f"s{number}" for number in range(6)]
        for name in names:
            await store.session(name).append(turn(1))
            await self._pass_a_minute(store)
        assert {info.id for info in await store.list_sessions()} == set(names)
        if not _settable(store):
            return
        assert [info.id for info in await store.list_sessions()] == names[::-1]
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: store.session("s0").append(turn(2)),
            lambda: store.session("s1").state.set("k", 1),
            lambda: store.session("s2").update(title="t"),
            lambda: store.session("s3").log("side").append(turn(1)),
            lambda: store.session("s4").pop(),
        ]
        for place, write in enumerate(writes):
            await write()
            await self._pass_a_minute(store)
            assert (await store.list_sessions())[0].id == f"s{place}"
        assert [info.id for info in await store.list_sessions()] == ["s4", "s3", "s2", "s1", "s0", "s5"]
        await store.session("s5").messages()
        await store.scoped(user="u").session("s9").append(turn(1))
        await self._pass_a_minute(store)
        assert [info.id for info in await store.list_sessions(below=True, limit=2)] == ["s9", "s4"]

    @clause(23)
    async def test_reading_moves_no_session_in_a_listing_also_where_it_renews(self, opened: Opener) -> None:
        store = opened(ttl="1d", ttl_policy="read")
        for name in ("a", "b"):
            await store.session(name).append(turn(1))
            await store.session(name).state.set("k", 1)
            await self._pass_a_minute(store)
        before = await store.session("a").info()
        await store.session("a").messages()
        await store.session("a").state.get("k")
        after = await store.session("a").info()
        assert before is not None
        assert after is not None
        assert after.updated_at == before.updated_at
        if _settable(store):
            assert [info.id for info in await store.list_sessions()] == ["b", "a"]

    @clause(23)
    async def test_sessions_written_at_one_time_are_listed_by_id(self, store: Store[ChatMessage]) -> None:
        if not _settable(store):
            return
        _stop_the_clock(store)
        names = ["b", "a", "é", "B", "10", "9", "\U0010ffff", "\uffff", "\0"]
        for name in names:
            await store.session(name).state.set("k", 1)
        expected = sorted(names, key=str.encode)
        assert [info.id for info in await store.list_sessions()] == expected
        page = await store.list_sessions(limit=4)
        seen = [info.id for info in page]
        while page.next:
            page = await store.list_sessions(limit=4, after=page.next)
            seen += [info.id for info in page]
        assert seen == expected

    @clause(23)
    @pytest.mark.parametrize("below", [False, True])
    async def test_a_session_not_written_while_you_page_appears_exactly_once(
        self, store: Store[ChatMessage], below: bool
    ) -> None:
        views: list[ScopedStore[ChatMessage]] = [store]
        if below:
            views += [store.scoped(tenant="t"), store.scoped(tenant="t", user="u")]
        quiet = {(view.scope, f"quiet {number:02}") for view in views for number in range(20)}
        for scope, name in sorted(quiet, key=repr):
            await store.at(scope).session(name).state.set("k", 1)
            await store.at(scope).session(f"busy {name}").state.set("k", 1)
        seen, after, number = list[tuple[Scope, str]](), None, 0
        while True:
            page = await store.list_sessions(limit=7, after=after, below=below)
            seen += [(info.scope, info.id) for info in page]
            after = page.next
            if after is None:
                break
            assert len(page) == 7
            for name in (f"busy quiet {number % 20:02}", f"busy quiet {(number + 10) % 20:02}", f"new {number}"):
                await views[number % len(views)].session(name).state.set("k", 2)
            number += 1
            assert number < 1000
        assert sorted([each for each in seen if each in quiet], key=repr) == sorted(quiet, key=repr)

    @clause(23)
    async def test_a_listing_is_of_the_sessions_of_its_scope_alone(self, store: Store[ChatMessage]) -> None:
        for scope in SCOPES:
            await store.at(scope).session(f"s of {scope.address}").state.set("k", 1)
        for scope in SCOPES:
            listed = await store.at(scope).list_sessions()
            assert [(info.id, info.scope) for info in listed] == [(f"s of {scope.address}", scope)]
            below = {info.scope for info in await store.at(scope).list_sessions(below=True)}
            assert below == {each for each in SCOPES if _lies_in(scope, each)}

    @clause(23)
    async def test_a_place_in_one_listing_opens_no_other(self, store: Store[ChatMessage]) -> None:
        acme, other = store.scoped(tenant="acme"), store.scoped(tenant="other")
        for number in range(4):
            await acme.session(f"acme {number}").state.set("k", 1)
            await other.session(f"other {number}").state.set("k", 1)
        place = (await acme.list_sessions(limit=1)).next
        assert place is not None
        found = await other.list_sessions(after=place)
        assert all(info.scope == other.scope for info in found)

    @clause(23)
    @pytest.mark.parametrize("wrong", ["", "nonsense", "[]", "[1]", "{", '["a","b","c"]', "[null,null,null]", "0"])
    async def test_a_place_that_no_listing_gave_is_refused(self, store: Store[ChatMessage], wrong: str) -> None:
        await store.session("s").state.set("k", 1)
        with pytest.raises(ValueError, match="cursor"):
            await store.list_sessions(after=wrong)

    @clause(23)
    @pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "5"])
    async def test_a_limit_of_a_listing_that_is_none_is_refused(self, store: Store[ChatMessage], wrong: Any) -> None:
        with pytest.raises(ValueError, match="limit"):
            await store.list_sessions(limit=wrong)

    @clause(23)
    async def test_delete_takes_the_whole_session_and_nothing_else(self, store: Store[ChatMessage]) -> None:
        session, neighbour = store.session("s"), store.session("s2")
        for each in (session, neighbour):
            await each.append([ChatMessage.user("one", id="m1")], batch_id="b")
            await each.log("side").append(turn(2))
            await each.state.set("k", 1)
            await each.update(title="t", service_session_id=each.id)
        await store.state.set("k", 1)
        before = await session.info()
        assert await session.delete() is True
        assert await session.delete() is False
        assert (await session.info(), await session.messages(), await session.state.items()) == (None, [], {})
        assert await session.log("side").messages() == []
        assert await store.find_by_service_id("s") is None
        assert [info.id for info in await store.list_sessions()] == ["s2"]
        appended = await session.append([ChatMessage.user("one", id="m1")], batch_id="b")
        assert (list(appended.seqs), appended.added) == ([1], 1)
        again = await session.info()
        assert before is not None
        assert again is not None
        assert again.life != before.life
        assert (again.title, again.service_session_id, list(again.logs)) == (None, None, [""])
        assert texts(await neighbour.messages()) == ["one"]
        assert await neighbour.log("side").messages() == turn(2)
        assert await neighbour.state.items() == await store.state.items() == {"k": 1}

    @clause(23)
    @pytest.mark.parametrize(
        "scope", [Scope("a"), Scope("a", "t"), Scope("a", "t", "u"), Scope(None, "t"), Scope("a", None, "u")]
    )
    async def test_erase_takes_a_scope_and_what_is_below_it_and_says_what(
        self, store: Store[ChatMessage], scope: Scope
    ) -> None:
        for each in SCOPES:
            view = store.at(each)
            await view.session("one").append([*turn(1), *turn(2)])
            await view.session("one").log("side").append(turn(3))
            await view.session("one").state.update({"k": 1, "l": 2})
            await view.session("two").append(turn(1))
            await view.state.set("k", each.address)
        doomed = [each for each in SCOPES if _lies_in(scope, each)]
        expected = (2 * len(doomed), 8 * len(doomed), 3 * len(doomed))
        dry = await store.at(scope).erase(dry_run=True)
        assert (dry.sessions, dry.messages, dry.state_keys, dry.dry_run) == (*expected, True)
        assert len([info async for info in store.iter_sessions(below=True)]) == 2 * len(SCOPES)
        receipt = await store.at(scope).erase()
        assert (receipt.sessions, receipt.messages, receipt.state_keys, receipt.dry_run) == (*expected, False)
        for each in SCOPES:
            view, gone = store.at(each), each in doomed
            assert await view.session("one").exists() is not gone
            assert await view.session("one").messages() == ([] if gone else [*turn(1), *turn(2)])
            assert await view.session("one").log("side").messages() == ([] if gone else turn(3))
            assert await view.session("one").state.items() == ({} if gone else {"k": 1, "l": 2})
            assert await view.state.get("k") == (None if gone else each.address)
            assert len(await view.list_sessions()) == (0 if gone else 2)
        again = await store.at(scope).erase()
        assert (again.sessions, again.messages, again.state_keys) == (0, 0, 0)

    @clause(23)
    async def test_erase_and_purge_take_any_number_of_sessions(self, store: Store[ChatMessage]) -> None:
        view = store.scoped(user="u")
        removals: list[Callable[[], Awaitable[Receipt]]] = [view.erase, lambda: view.purge(older_than=0)]
        for remove in removals:
            await asyncio.gather(*(view.session(f"s{number}").state.set("k", 1) for number in range(250)))
            receipt = await remove()
            assert (receipt.sessions, receipt.state_keys) == (250, 250)
            assert await view.list_sessions() == []
            assert await view.session("s249").state.get("k") is None

    @clause(23)
    async def test_a_whole_store_is_not_erased_by_mistake(self, store: Store[ChatMessage]) -> None:
        await store.session("s").append(turn(1))
        await store.state.set("k", 1)
        with pytest.raises(
            ScopeRequiredError, match=r"scoped.*purge\(older_than=0\), which .* leaves the state of scopes"
        ):
            await store.erase()
        assert await store.session("s").messages() == turn(1)
        assert (await store.purge(older_than=0)).sessions == 1
        assert await store.state.items() == {"k": 1}

    @clause(23)
    async def test_erase_takes_all_that_was_acknowledged_before_it_began(self, opened: Opener) -> None:
        stores = [opened().scoped(tenant="acme", user="alice"), opened().scoped(tenant="acme", user="alice")]
        acknowledged = set[str]()
        enough, stop = asyncio.Event(), asyncio.Event()

        async def write(number: int) -> None:
            step = 0
            while not stop.is_set():
                text = f"{number} {step}"
                await stores[number % 2].session(f"s{step % 3}").append([ChatMessage.user(text)])
                await stores[number % 2].session(f"s{step % 3}").state.set(text, 1)
                acknowledged.add(text)
                step += 1
                if step % 10 == 0:
                    enough.set()

        writers = [asyncio.create_task(write(number)) for number in range(4)]
        for _ in range(5):
            await enough.wait()
            enough.clear()
            before = set(acknowledged)
            await stores[0].erase()
            for name in ("s0", "s1", "s2"):
                session = stores[1].session(name)
                assert not before & set(texts(await session.messages()))
                assert not before & set(await session.state.keys())
        stop.set()
        await asyncio.gather(*writers)
        await stores[0].erase()
        assert await stores[1].list_sessions() == []

    @clause(23)
    async def test_purge_takes_what_was_not_written_for_so_long(self, opened: Opener) -> None:
        store = opened()
        acme, other = store.scoped(tenant="acme"), store.scoped(tenant="other")
        for view in (acme, acme.scoped(user="u"), other):
            await view.state.set("k", 1)
            for name in ("old", "renewed"):
                await view.session(name).append(turn(1))
                await view.session(name).state.set("k", 1)
        await self.pass_time(store, 5 * self.tick)
        for view in (acme, acme.scoped(user="u"), other):
            await view.session("renewed").state.set("l", 1)
            await view.session("new").append(turn(1))
        age = 4 * self.tick
        dry = await acme.purge(older_than=age, dry_run=True)
        assert (dry.sessions, dry.messages, dry.state_keys, dry.dry_run) == (2, 4, 2, True)
        assert len(await store.list_sessions(below=True)) == 9
        receipt = await acme.purge(older_than=age)
        assert (receipt.sessions, receipt.messages, receipt.state_keys, receipt.dry_run) == (2, 4, 2, False)
        for view in (acme, acme.scoped(user="u")):
            assert {info.id for info in await view.list_sessions()} == {"new", "renewed"}
            assert not await view.session("old").exists()
            assert await view.session("renewed").messages() == turn(1)
            assert await view.state.get("k") == 1
        assert {info.id for info in await other.list_sessions()} == {"old", "new", "renewed"}
        assert (await store.purge(older_than="30d")).sessions == 0
        assert (await store.purge(older_than="0s")).sessions == 7
        assert [await view.state.get("k") for view in (acme, acme.scoped(user="u"), other)] == [1, 1, 1]

    @clause(23)
    async def test_purge_without_an_age_takes_the_expired_alone(self, opened: Opener) -> None:
        short, store = opened(ttl=2 * self.tick), opened()
        await store.session("for ever").append(turn(1))
        await short.session("short").append(turn(1))
        await self.pass_time(short, 3 * self.tick)
        await short.purge()
        assert [info.id for info in await store.list_sessions()] == ["for ever"]
        assert await store.session("for ever").messages() == turn(1)

    @clause(23)
    async def test_purge_takes_what_was_written_in_this_very_instant(self, store: Store[ChatMessage]) -> None:
        if _settable(store):
            await store.open()
            _stop_the_clock(store)
        await store.session("s").append(turn(1))
        assert (await store.purge(older_than=0)).sessions == 1
        assert await store.list_sessions() == []

    @clause(23)
    @pytest.mark.parametrize("wrong", [-1, "soon", True, "-1d", None, [1]])
    async def test_a_purge_by_no_age_at_all_is_refused(self, store: Store[ChatMessage], wrong: Any) -> None:
        await store.session("s").append(turn(1))
        if wrong is None:
            await store.purge(older_than=None)
        else:
            with pytest.raises(ValueError, match="duration"):
                await store.purge(older_than=wrong)
        assert await store.session("s").messages() == turn(1)

    @clause(24)
    async def test_a_service_session_id_is_found_through_ones_own_scope_alone(self, store: Store[ChatMessage]) -> None:
        for place, scope in enumerate(SCOPES):
            await store.at(scope).session(f"s{place}").update(service_session_id="resp_1")
            await store.at(scope).session(f"t{place}").update(service_session_id=f"resp of {place}")
        for place, scope in enumerate(SCOPES):
            found = await store.at(scope).find_by_service_id("resp_1")
            assert found is not None
            assert (found.id, found.scope) == (f"s{place}", scope)
            for other in range(len(SCOPES)):
                found = await store.at(scope).find_by_service_id(f"resp of {other}")
                assert (found is not None) is (other == place)

    @clause(24)
    async def test_a_service_session_id_is_no_key(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))
        await session.update(service_session_id="resp_1")
        other = store.session("resp_1")
        assert (await other.exists(), await other.messages()) == (False, [])
        assert await other.delete() is False
        await other.append(turn(2))
        await other.update(service_session_id="s")
        found = await store.find_by_service_id("s")
        assert found is not None
        assert found.id == "resp_1"
        assert await session.messages() == turn(1)

    @clause(24)
    async def test_a_service_session_id_is_a_text_or_a_mapping_and_found_by_equal_ones(
        self, store: Store[ChatMessage]
    ) -> None:
        ids: list[Any] = [
            "a",
            '{"a":1}',
            {"a": 1},
            {"a": "1"},
            {"a": 1, "b": {"y": 1, "x": [1, {"d": 1, "c": 2}]}},
            {"a": None},
            {"": ""},
            {"text": "é \0 😀 ' \" \\ \u2028"},
            "x" * 1024,
            {"x": "x" * 5000},
        ]
        for place, service in enumerate(ids):
            await store.session(f"s{place}").update(service_session_id=service)
        ids[4] = {"b": {"x": [1, {"c": 2, "d": 1}], "y": 1}, "a": 1}
        for place, service in enumerate(ids):
            found = await store.find_by_service_id(service)
            assert found is not None
            assert found.id == f"s{place}"
            info = await found.info()
            assert info is not None
            assert info.service_session_id == service
        for absent in ("b", "A", {"a": 1.0}, {"a": True}, {"A": 1}, {}, {"a": 1, "b": 2}, "%", {"$gt": ""}):
            assert await store.find_by_service_id(absent) is None
        for wrong in (5, None, ["a"], b"a", "", "\ud800"):
            with pytest.raises((TypeError, ValueError)):
                await store.find_by_service_id(wrong)  # type: ignore[arg-type]
            if wrong is not None:
                with pytest.raises((TypeError, ValueError)):
                    await store.session("s").update(service_session_id=wrong)  # type: ignore[arg-type]
        assert not await store.session("s").exists()

    @clause(24)
    async def test_a_service_session_id_that_is_gone_is_not_found(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.update(service_session_id="one")
        await session.update(service_session_id="two")
        assert await store.find_by_service_id("one") is None
        await session.update(service_session_id=None)
        assert await store.find_by_service_id("two") is None
        await session.update(service_session_id="three")
        await session.delete()
        assert await store.find_by_service_id("three") is None
        await session.append(turn(1))
        assert await store.find_by_service_id("three") is None

    @clause(24)
    async def test_of_several_sessions_with_one_service_session_id_the_last_written_is_found(
        self, store: Store[ChatMessage]
    ) -> None:
        for name in ("a", "b", "c"):
            await store.session(name).update(service_session_id="shared")
            await self._pass_a_minute(store)
        await store.session("b").append(turn(1))
        found = await store.find_by_service_id("shared")
        assert found is not None
        assert found.id in ("a", "b", "c")
        if _settable(store):
            assert found.id == "b"

    async def _pass_a_minute(self, store: Store[Any]) -> None:
        """Let as much time pass as a listing may be inexact by, if the clock can be set."""
        if _settable(store):
            await self.pass_time(store, 61.0)

    @clause(23, 18)
    async def test_metadata_that_cannot_be_read_here_spoils_no_listing(self, opened: Opener) -> None:
        there = opened(types=[Plan])
        await there.session("a").update(metadata={"plan": Plan("gold"), "topic": "bags"})
        await there.session("b").append([ChatMessage.user("x")])
        listed = {info.id: info.metadata for info in await opened().list_sessions()}
        assert listed.keys() == {"a", "b"}
        assert listed["a"]["topic"] == "bags"
        assert "gold" in listed["a"]["plan"]
        info = await there.session("a").info()
        assert info is not None
        assert info.metadata["plan"] == Plan("gold")

    @clause(23)
    @pytest.mark.parametrize(
        "cursor", ["", "x", "[]", "[1]", "[" * 100_000, '[1,2,"\\ud800"]', f'[{"9" * 400},"a","b"]']
    )
    async def test_what_is_no_cursor_of_a_listing_is_refused(self, store: Store[ChatMessage], cursor: str) -> None:
        await store.session("s").append([ChatMessage.user("x")])
        with pytest.raises(ValueError, match="is no cursor of a listing"):
            await store.list_sessions(after=cursor)


SCOPES = [
    Scope(),
    Scope("a"),
    Scope("b"),
    Scope("a", "t"),
    Scope("a", "t2"),
    Scope("a", "t", "u"),
    Scope("a", "t", "u2"),
    Scope("a", "u"),
    Scope("a", None, "u"),
    Scope("b", "t", "u"),
    Scope(None, "t"),
    Scope(None, "t", "u"),
    Scope(None, "a"),
    Scope(None, None, "u"),
    Scope(None, None, "a"),
    Scope("null", "t", "u"),
]


def _lies_in(scope: Scope, other: Scope) -> bool:
    """Whether `other` is `scope` or below it: not by `Scope.contains`, which is on trial."""
    fields = list(scope)
    while fields and fields[-1] is None:
        fields.pop()
    return list(other[: len(fields)]) == fields


def _others(store: Store[ChatMessage]) -> list[ScopedStore[ChatMessage]]:
    """Every kind of scope beside, above and below the one of shop, acme and alice."""
    return [
        store,
        store.scoped(app="shop"),
        store.scoped(app="shop", tenant="acme"),
        store.scoped(app="shop", tenant="acme", user="bob"),
        store.scoped(app="shop", tenant="acme", user="alice2"),
        store.scoped(app="shop", tenant="acme", user="ALICE"),
        store.scoped(app="shop", tenant="other", user="alice"),
        store.scoped(app="bank", tenant="acme", user="alice"),
        store.scoped(tenant="acme", user="alice"),
        store.scoped(app="shop", user="alice"),
        store.scoped(user="alice"),
        store.scoped(app="*", tenant="*", user="*"),
        store.scoped(app="shop", tenant="acme", user="%"),
        store.scoped(app="acme", tenant="shop", user="alice"),
    ]


def _settable(store: Store[Any]) -> bool:
    return getattr(store.backend, "clock", None) is not None


def _stop_the_clock(store: Store[Any]) -> None:
    backend: Any = store.backend
    now = backend.clock()
    backend.clock = lambda: now
