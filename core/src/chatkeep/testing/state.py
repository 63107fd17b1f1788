"""Clauses 20 and 21: state, title, metadata and snapshots."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from chatkeep import (
    ABSENT,
    ChatMessage,
    ConflictError,
    CorruptRecordError,
    InvalidIdError,
    MessageTooLargeError,
    SerializationError,
    SessionSnapshot,
    State,
    Store,
)

from .clauses import clause
from .harness import Harness, Opener, identical, turn


class Profile(BaseModel):
    name: str
    limits: list[Decimal] = []
    since: datetime | None = None


LEVELS = ("app", "tenant", "user", "root", "session")
WHOSE = {
    "app": 'scope ["shop",null,null]',
    "tenant": 'scope ["shop","acme",null]',
    "user": 'scope ["shop","acme","alice"]',
    "root": "scope [null,null,null]",
    "session": "session 's'",
}
"""How an error names them."""


class StateClauses(Harness):
    @clause(20)
    @pytest.mark.parametrize("level", LEVELS)
    async def test_state_maps_keys_to_values(self, store: Store[ChatMessage], level: str) -> None:
        state = _state(store, level)
        assert (await state.get("k"), await state.get("k", "default"), await state.entry("k")) == (
            None,
            "default",
            None,
        )
        assert (await state.keys(), await state.items()) == ([], {})
        version = await state.set("k", {"a": [1]})
        assert await state.get("k", "default") == {"a": [1]}
        assert await state.entry("k") == ({"a": [1]}, version)
        await state.set("k", None)
        assert await state.get("k", "default") is None
        assert (await state.keys(), await state.items()) == (["k"], {"k": None})
        await state.delete("k")
        assert (await state.get("k", "default"), await state.keys()) == ("default", [])

    @clause(20)
    @pytest.mark.parametrize("level", LEVELS)
    async def test_no_version_is_given_twice(self, store: Store[ChatMessage], level: str) -> None:
        state = _state(store, level)
        versions = [await state.set("k", 1) for _ in range(5)]
        await state.delete("k")
        versions += [await state.set("k", 1), await state.set("other", 1)]
        for session in (store.session("s"), store.session("t")):
            versions.append(await session.state.set("k", 1))
            await session.delete()
            versions.append(await session.state.set("k", 1))
        await state.update({"a": 1, "b": 1})
        for key in ("a", "b"):
            entry = await state.entry(key)
            assert entry is not None
            versions.append(entry.version)
        assert len(set(versions)) == len(versions)
        assert all(versions)

    @clause(20)
    @pytest.mark.parametrize("level", LEVELS)
    async def test_a_conditional_write_happens_on_that_version_alone(
        self, store: Store[ChatMessage], level: str
    ) -> None:
        state = _state(store, level)
        await state.set("other", 0)
        with pytest.raises(ConflictError) as caught:
            await state.set("k", 1, expected="no version")
        assert caught.value.version is None
        with pytest.raises(ConflictError):
            await state.delete("k", expected="no version")
        first = await state.set("k", 1, expected=ABSENT)
        for wrong in (ABSENT, "no version"):
            with pytest.raises(ConflictError) as caught:
                await state.set("k", 2, expected=wrong)
            assert caught.value.version == first
            with pytest.raises(ConflictError) as caught:
                await state.delete("k", expected=wrong)
            assert caught.value.version == first
        assert await state.entry("k") == (1, first)
        second = await state.set("k", 2, expected=first)
        with pytest.raises(ConflictError):
            await state.set("k", 3, expected=first)
        with pytest.raises(ConflictError):
            await state.delete("k", expected=first)
        assert await state.entry("k") == (2, second)
        await state.delete("k", expected=second)
        with pytest.raises(ConflictError) as caught:
            await state.set("k", 3, expected=second)
        assert caught.value.version is None
        assert await state.items() == {"other": 0}
        await state.delete("k", expected=ABSENT)
        await state.set("k", 4, expected=ABSENT)
        assert await state.get("k") == 4

    @clause(20)
    @pytest.mark.parametrize("level", LEVELS)
    async def test_a_conflict_says_whose_key_it_is_and_what_has_become_of_it(
        self, store: Store[ChatMessage], level: str
    ) -> None:
        state = _state(store, level)
        version = await state.set("k", 1)
        for expected, reason in ((ABSENT, "is there already"), ("no version", "has another version")):
            with pytest.raises(ConflictError) as caught:
                await state.set("k", 2, expected=expected)
            assert f"state key 'k' {reason}" in str(caught.value)
            assert WHOSE[level] in str(caught.value)
        await state.delete("k")
        await state.set("other", 1)
        for refused in (state.set("k", 2, expected=version), state.delete("k", expected=version)):
            with pytest.raises(ConflictError) as caught:
                await refused
            assert "state key 'k' is not there (any more)" in str(caught.value)
            assert WHOSE[level] in str(caught.value)

    @clause(20)
    async def test_a_version_of_a_former_life_does_not_count(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        version = await session.state.set("k", 1)
        await session.delete()
        for refused in (session.state.set("k", 2, expected=version), session.state.delete("k", expected=version)):
            with pytest.raises(ConflictError):
                await refused
        assert not await session.exists()
        await session.state.set("k", 1)
        with pytest.raises(ConflictError):
            await session.state.set("k", 2, expected=version)

    @clause(20)
    async def test_pydantic_checks_and_builds_typed_values(self, store: Store[ChatMessage]) -> None:
        state = store.session("s").state
        profile = Profile(name="Alice", limits=[Decimal("1.50")], since=datetime(2024, 1, 1, tzinfo=UTC))
        version = await state.set("profile", profile, type=Profile)
        await state.set("profiles", [profile], type=list[Profile])
        await state.set("number", "five")
        assert identical(await state.get("profile", type=Profile), profile)
        assert await state.entry("profile", type=Profile) == (profile, version)
        assert await state.get("profiles", type=list[Profile]) == [profile]
        assert await state.items("profile", type=Profile | list[Profile]) == {"profile": profile, "profiles": [profile]}
        assert await state.get("absent", type=Profile) is None
        assert await state.get("absent", profile, type=Profile) is profile
        plain = await state.get("profile")
        assert plain["name"] == "Alice"
        with pytest.raises(SerializationError, match="int") as caught:
            await state.get("number", type=int)
        assert isinstance(caught.value.__cause__, ValidationError)
        with pytest.raises(SerializationError):
            await state.set("profile", {"limits": "none"}, type=Profile)
        assert await state.get("profile", type=Profile) == profile

    @clause(20)
    @pytest.mark.parametrize("level", ["session", "user"])
    async def test_keys_are_listed_in_the_order_of_their_bytes_by_prefix(
        self, store: Store[ChatMessage], level: str
    ) -> None:
        state = _state(store, level)
        keys = [
            "",
            "a",
            "A",
            "a/b",
            "a/c",
            "a0",
            "b",
            "é",
            "z",
            "~",
            "ÿ",
            "\uffff",
            "😀",
            "😀a",
            "a%",
            "a%b",
            "a_",
            "a*",
            "\x7f",
        ]
        keys = [*keys[1:], "a\U0010ffff", "\U0010ffff", "\U0010ffffb", "\ud7ff", "a\0", "\0"]
        ordered = sorted(keys, key=str.encode)
        for key in reversed(ordered):
            await state.set(key, key)
        assert await state.keys() == ordered
        assert list(await state.items()) == ordered
        for prefix in [*keys, "a/", "nothing", "\U0010fffe"]:
            expected = [key for key in ordered if key.startswith(prefix)]
            assert await state.keys(prefix) == expected
            assert await state.items(prefix) == {key: key for key in expected}

    @clause(20)
    async def test_writes_to_different_keys_never_lose_each_other(self, opened: Opener) -> None:
        stores = [opened(), opened()]

        async def write(number: int) -> None:
            for step in range(5):
                await stores[number % 2].session("s").state.set(f"key {number}", step)

        await asyncio.gather(*(write(number) for number in range(20)))
        assert await stores[0].session("s").state.items() == {f"key {number}": 4 for number in range(20)}

    @clause(20)
    async def test_of_conditional_writes_to_one_key_each_version_lets_one_pass(self, opened: Opener) -> None:
        stores = [opened(), opened()]
        await stores[0].session("s").state.set("n", 0)

        async def count(number: int) -> None:
            state = stores[number % 2].session("s").state
            for _ in range(5):
                while True:
                    entry = await state.entry("n")
                    assert entry is not None
                    try:
                        await state.set("n", entry.value + 1, expected=entry.version)
                    except ConflictError:
                        continue
                    break

        await asyncio.gather(*(count(number) for number in range(8)))
        assert await stores[0].session("s").state.get("n") == 40
        won = await asyncio.gather(
            *(store.session("s").state.set("first", 1, expected=ABSENT) for store in stores * 5), return_exceptions=True
        )
        assert sum(isinstance(each, str) for each in won) == 1
        assert sum(isinstance(each, ConflictError) for each in won) == 9

    @clause(20)
    async def test_several_keys_are_set_in_one_step(self, opened: Opener) -> None:
        writer, reader = opened().session("s").state, opened().session("s").state
        await writer.update({})
        assert await writer.keys() == []
        done = asyncio.Event()

        async def write() -> None:
            for number in range(60):
                await writer.update({"a": number, "b": number, "c": number})
            done.set()

        async def read() -> None:
            while not done.is_set():
                assert len({*(await reader.items()).values()}) <= 1
                await asyncio.sleep(0)

        await asyncio.gather(write(), read())
        assert await reader.items() == {"a": 59, "b": 59, "c": 59}
        with pytest.raises(SerializationError):
            await writer.update({"a": 60, "b": object()})
        assert await reader.get("a") == 59

    @clause(20)
    async def test_a_set_is_acknowledged_only_in_the_life_in_which_it_is_visible(self, opened: Opener) -> None:
        one, other = opened().session("s"), opened().session("s")
        for number in range(30):
            await one.append(turn(1))
            await asyncio.gather(one.state.set("k", number), other.delete())
            info = await one.info()
            assert await one.state.get("k") == (number if info else None)
            assert await one.messages() == []
            await one.delete()

    @clause(20)
    async def test_a_value_of_1_mb_works(self, store: Store[ChatMessage]) -> None:
        state = store.session("s").state
        text = "".join(f"{number:07} é " for number in range(95_000))
        assert len(text.encode()) > 1_000_000
        value = {"text": text, "list": list(range(1000))}
        version = await state.set("large", value)
        await state.set("small", 1)
        assert await state.entry("large") == (value, version)
        assert await state.items() == {"large": value, "small": 1}
        await state.set("large", {**value, "more": True}, expected=version)
        assert await state.get("large") == {**value, "more": True}
        await state.delete("large")
        assert await state.keys() == ["small"]

    @clause(20)
    async def test_10_000_keys_work(self, store: Store[ChatMessage]) -> None:
        state = store.session("s").state
        keys = [f"key/{number:05}" for number in range(10_000)]
        for start in range(0, 10_000, 250):
            await state.update({key: number for number, key in enumerate(keys[start : start + 250], start)})
        assert await state.keys() == keys
        assert await state.keys("key/0123") == keys[1230:1240]
        assert list((await state.items()).values()) == list(range(10_000))
        assert await state.get("key/09999") == 9999
        await state.set("key/05000", "changed")
        await state.delete("key/00000")
        assert (await state.get("key/05000"), len(await state.keys())) == ("changed", 9999)
        assert await store.session("s").delete()
        assert await state.keys() == []

    @clause(20)
    async def test_deleting_what_is_not_there_does_nothing(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.state.delete("k")
        assert not await session.exists()
        await session.state.set("other", 1)
        await session.state.delete("k")
        assert await session.state.items() == {"other": 1}

    @clause(20)
    async def test_state_alone_makes_a_session(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.state.set("k", 1)
        info = await session.info()
        assert info is not None
        assert (info.messages, await session.messages(), await session.exists()) == (0, [], True)
        assert [each.id for each in await store.list_sessions()] == ["s"]
        await session.append(turn(1))
        again = await session.info()
        assert again is not None
        assert again.life == info.life
        assert await session.state.get("k") == 1

    @clause(20)
    async def test_the_state_of_a_scope_belongs_to_no_session_and_to_no_other_scope(
        self, store: Store[ChatMessage]
    ) -> None:
        states = {level: _state(store, level) for level in LEVELS}
        for level, state in states.items():
            await state.set("k", level)
            await state.set(f"only {level}", 1)
        for level, state in states.items():
            assert await state.items() == {"k": level, f"only {level}": 1}
        assert [info.id for info in await store.list_sessions(below=True)] == ["s"]
        await states["tenant"].delete("k")
        assert [await state.get("k") for state in states.values()] == ["app", None, "user", "root", "session"]

    @clause(20)
    async def test_the_state_of_a_scope_does_not_expire_and_is_erased_with_it(self, opened: Opener) -> None:
        store = opened(ttl=2 * self.tick)
        view = store.scoped(tenant="acme", user="alice")
        await view.state.set("k", 1)
        await store.scoped(tenant="acme").state.set("k", 2)
        await store.scoped(tenant="other").state.set("k", 3)
        await view.session("s").state.set("k", 4)
        await self.pass_time(store, 3 * self.tick)
        assert await view.session("s").state.get("k") is None
        assert await view.state.get("k") == 1
        await view.purge(older_than=0)
        await store.sweep()
        assert await view.state.get("k") == 1
        receipt = await store.scoped(tenant="acme").erase()
        assert receipt.state_keys == 2
        assert (await view.state.keys(), await store.scoped(tenant="acme").state.keys()) == ([], [])
        assert await store.scoped(tenant="other").state.get("k") == 3
        await view.state.set("k", 5, expected=ABSENT)
        assert await view.state.get("k") == 5

    @clause(21)
    async def test_a_snapshot_holds_ids_state_title_and_metadata(self, opened: Opener) -> None:
        store = opened()
        session = store.scoped(tenant="acme").session("s")
        for service in ("resp_1", {"conversation": "c", "branch": {"n": 1}}):
            await session.append(turn(1))
            await session.state.update({f"key {number}": [number] for number in range(600)})
            await session.update(title="Bag", metadata={"n": 1.0, "tags": ["a"]}, service_session_id=service)
            snapshot = await session.snapshot()
            assert snapshot.session_id == "s"
            assert (snapshot.title, snapshot.metadata) == ("Bag", {"n": 1.0, "tags": ["a"]})
            assert snapshot.service_session_id == service
            assert snapshot.state == {f"key {number}": [number] for number in range(600)}
            assert SessionSnapshot.from_dict(snapshot.to_dict()) == snapshot
            data = snapshot.to_bytes(store.serializer)
            assert SessionSnapshot.from_bytes(data, store.serializer) == snapshot

    @clause(21)
    async def test_a_snapshot_is_restored_elsewhere_and_replaces_what_was_there(self, opened: Opener) -> None:
        store, other = opened(), opened().scoped(tenant="elsewhere")
        session = store.session("s")
        await session.state.update({"k": (1, Decimal("1.5")), "deep": {"$chatkeep": [b"x"]}})
        await session.update(title="Bag", metadata={"n": 1}, service_session_id={"id": "c-1"})
        snapshot = await session.snapshot()
        assert identical(snapshot.state, {"k": (1, Decimal("1.5")), "deep": {"$chatkeep": [b"x"]}})
        target = other.session("s")
        await target.append(turn(1))
        await target.state.update({"stale": 1, "k": 2})
        await target.update(title="Old", metadata={"n": 0, "stale": True}, service_session_id="old")
        restored = await other.restore(
            SessionSnapshot.from_bytes(snapshot.to_bytes(store.serializer), store.serializer)
        )
        assert restored.id == "s"
        assert await target.snapshot() == snapshot
        assert identical((await target.snapshot()).state, snapshot.state)
        assert await target.messages() == turn(1)
        assert await other.find_by_service_id("old") is None
        found = await other.find_by_service_id({"id": "c-1"})
        assert found is not None
        assert found.id == "s"

    @clause(21)
    async def test_an_empty_snapshot_empties_and_an_absent_session_has_an_empty_one(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        empty = await session.snapshot()
        assert empty == SessionSnapshot("s")
        assert not await session.exists()
        await session.state.set("k", 1)
        await session.update(title="t", metadata={"a": 1}, service_session_id="x")
        await session.restore(empty)
        assert await session.snapshot() == empty

    @clause(21)
    async def test_what_is_no_snapshot_or_a_newer_one_is_refused(self, store: Store[ChatMessage]) -> None:
        good = SessionSnapshot("s", state={"k": 1}).to_dict()
        with pytest.raises(CorruptRecordError, match="newer chatkeep"):
            SessionSnapshot.from_dict({**good, "format": "chatkeep.session/2"})
        with pytest.raises(CorruptRecordError):
            SessionSnapshot.from_bytes(os.urandom(20), store.serializer)
        for wrong in ({**good, "state": [1]}, {**good, "more": 1}, {"format": good["format"]}, {}):
            with pytest.raises(CorruptRecordError):
                SessionSnapshot.from_dict(wrong)
        with pytest.raises(InvalidIdError):
            await store.restore(SessionSnapshot("\ud800"))

    @clause(21)
    async def test_title_and_metadata_are_merged_and_none_removes(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.update()
        assert not await session.exists()
        await session.update(title="First", metadata={"a": 1, "b": {"deep": [None]}})
        await session.update(metadata={"c": "x", "a": 2})
        info = await session.info()
        assert info is not None
        assert (info.title, info.metadata) == ("First", {"a": 2, "b": {"deep": [None]}, "c": "x"})
        await session.update(title=None, metadata={"a": None, "absent": None}, service_session_id="r")
        info = await session.info()
        assert info is not None
        assert (info.title, info.metadata, info.service_session_id) == (None, {"b": {"deep": [None]}, "c": "x"}, "r")
        await session.update(service_session_id=None)
        info = await session.info()
        assert info is not None
        assert info.service_session_id is None

    @clause(21)
    @pytest.mark.parametrize("wrong", ["channel", ["channel"], [("channel", "web")], 1])
    async def test_metadata_that_is_no_mapping_is_refused(self, store: Store[ChatMessage], wrong: Any) -> None:
        with pytest.raises(TypeError, match="metadata must be a mapping"):
            await store.session("s").update(title="x", metadata=wrong)
        with pytest.raises(TypeError, match="metadata must be a mapping"):
            await store.list_sessions(metadata=wrong)
        assert not await store.session("s").exists()

    @clause(21)
    async def test_metadata_of_different_keys_is_not_lost_among_writers(self, opened: Opener) -> None:
        stores = [opened(), opened()]
        await asyncio.gather(
            *(stores[number % 2].session("s").update(metadata={f"key {number}": number}) for number in range(20))
        )
        info = await stores[0].session("s").info()
        assert info is not None
        assert info.metadata == {f"key {number}": number for number in range(20)}

    @clause(21)
    async def test_listing_filters_on_title_and_metadata_by_exact_value(self, store: Store[ChatMessage]) -> None:
        values: dict[str, Any] = {
            "int": 1,
            "float": 1.0,
            "true": True,
            "text": "1",
            "list": [1],
            "dict": {"b": 2, "a": {"y": 1, "x": [{"d": 1, "c": 2}]}},
            "empty": "",
            "like": "%",
            "long": "x" * 3000,
            "quotes": 'it\'s "quoted" \\ \n \0 é 😀',
            "bytes": b"1",
        }
        for name, value in values.items():
            await store.session(name).update(title=f"title {name}", metadata={"value": value, "all": "yes"})
        await store.session("none").append(turn(1))
        for name, value in values.items():
            assert [each.id for each in await store.list_sessions(metadata={"value": value})] == [name]
            assert [each.id for each in await store.list_sessions(title=f"title {name}")] == [name]
        reordered = {"a": {"x": [{"c": 2, "d": 1}], "y": 1}, "b": 2}
        assert [each.id for each in await store.list_sessions(metadata={"value": reordered})] == ["dict"]
        both = await store.list_sessions(title="title int", metadata={"value": 1, "all": "yes"})
        assert [each.id for each in both] == ["int"]
        assert len(await store.list_sessions(metadata={"all": "yes"})) == len(values)
        for nothing in ({"all": "no"}, {"value": "yes"}, {"value": 1, "all": "no"}, {"title": "title int"}, {"v": 1}):
            assert await store.list_sessions(metadata=nothing) == []
        assert await store.list_sessions(title="title%") == await store.list_sessions(title="title") == []
        with pytest.raises(ValueError, match="None"):
            await store.list_sessions(metadata={"value": None})

    @clause(21)
    async def test_filtered_listings_are_paged_too(self, store: Store[ChatMessage]) -> None:
        for number in range(25):
            await store.session(f"s{number:02}").update(metadata={"odd": bool(number % 2)})
        seen, after = list[str](), None
        while True:
            page = await store.list_sessions(metadata={"odd": True}, limit=5, after=after)
            seen += [info.id for info in page]
            after = page.next
            if after is None:
                break
        assert sorted(seen) == [f"s{number:02}" for number in range(1, 25, 2)]
        assert len(seen) == len(set(seen))

    @clause(21)
    async def test_too_much_metadata_is_refused_and_nothing_is_written(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        with pytest.raises(MessageTooLargeError):
            await session.update(title="t", metadata={"a": "x" * 20_000})
        with pytest.raises(InvalidIdError):
            await session.update(title="t" * 2000)
        assert not await session.exists()

    @clause(20)
    async def test_all_entries_are_from_one_instant(self, opened: Opener) -> None:
        store = opened()
        state, names = store.session("s").state, [f"k{number:04}" for number in range(1200)]
        await state.update(dict.fromkeys(names, 0))
        writing = asyncio.create_task(self._write_ends(opened().session("s").state, names))
        while not writing.done():
            items = await state.items()
            assert items[names[0]] == items[names[-1]]
        await writing

    async def _write_ends(self, state: State, names: list[str]) -> None:
        for number in range(30):
            await state.update({names[0]: number, names[-1]: number})

    @clause(20)
    @pytest.mark.parametrize("prefix", [None, 0, b"k", "\ud800"])
    async def test_a_prefix_that_is_none_is_refused(self, store: Store[ChatMessage], prefix: Any) -> None:
        with pytest.raises(InvalidIdError):
            await store.state.keys(prefix)


def _state(store: Store[Any], level: str) -> State:
    views = {
        "app": store.scoped(app="shop"),
        "tenant": store.scoped(app="shop", tenant="acme"),
        "user": store.scoped(app="shop", tenant="acme", user="alice"),
        "root": store,
    }
    return views[level].state if level in views else store.session("s").state
