"""Clauses 10 and 11: what a log keeps, and how long a session lives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chatkeep import ChatMessage, ConflictError, MessageNotFoundError, Session, Store, Window

from .clauses import clause
from .harness import Harness, Opener, texts, turn, turn_of_parts

Placed = tuple[int, ChatMessage]
MOST = 1.05
"""How much longer than its ttl a session may be seen, as a factor."""


class Retention(Harness):
    @clause(10)
    async def test_an_append_leaves_whole_turns_of_the_newest_max_messages(self, opened: Opener) -> None:
        store = opened(max_messages=4)
        session = store.session("s")
        for number in range(4):
            await session.append(turn(number))
        assert texts(await session.messages()) == ["question 2", "answer 2", "question 3", "answer 3"]
        assert await session.count() == 4

    @clause(10)
    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    async def test_a_log_is_cut_at_the_last_turn_start_at_or_before_the_newest_max_messages(
        self, opened: Opener, limit: int
    ) -> None:
        store = opened(max_messages=limit)
        chance = random.Random(limit)  # noqa: S311 - the same batches in every run
        session = store.session("s")
        kept: list[Placed] = []
        last = 0
        for _ in range(40):
            batch = [
                ChatMessage(chance.choice(["user", "assistant", "assistant", "tool"]), f"message {last + place}")
                for place in range(1, chance.randint(2, 6))
            ]
            appended = await session.append(batch)
            kept += [(last + place, message) for place, message in enumerate(batch, 1)]
            last += len(batch)
            place = last - limit + 1
            start = max((seq for seq, message in kept if message.role == "user" and seq <= place), default=0)
            kept = [(seq, message) for seq, message in kept if seq >= start]
            history = await session.messages()
            assert list(zip(history.seqs, history, strict=True)) == kept
            assert (appended.tail.seq, await session.count()) == (last, len(kept))

    @clause(10)
    async def test_a_turn_longer_than_max_messages_stays_whole_with_its_tool_calls(self, opened: Opener) -> None:
        session = opened(max_messages=2).session("s")
        await session.append(turn(1))
        for message in turn(2, tools=3):
            await session.append([message])
        assert await session.messages() == turn(2, tools=3)
        await session.append([ChatMessage.user("question 3")])
        assert await session.messages() == [*turn(2, tools=3), ChatMessage.user("question 3")]
        await session.append([ChatMessage.assistant("answer 3")])
        assert await session.messages() == turn(3)

    @clause(10)
    async def test_a_tools_result_in_the_role_of_a_user_starts_no_turn(self, opened: Opener) -> None:
        session = opened(max_messages=2).session("s")
        await session.append([*turn(1), *turn_of_parts(2)])
        assert await session.messages() == turn_of_parts(2)

    @clause(10)
    async def test_a_log_without_a_turn_start_is_not_cut(self, opened: Opener) -> None:
        session = opened(max_messages=2).session("s")
        for number in range(10):
            await session.append([ChatMessage.assistant(f"thought {number}")])
        assert texts(await session.messages()) == [f"thought {number}" for number in range(10)]

    @clause(10)
    async def test_max_messages_0_keeps_nothing_and_goes_on_counting(self, opened: Opener) -> None:
        session = opened(max_messages=0).session("s")
        assert list((await session.append(turn(1))).seqs) == [1, 2]
        assert (await session.messages(), await session.count()) == ([], 0)
        appended = await session.append([ChatMessage.assistant("no turn start")])
        assert (list(appended.seqs), appended.tail.seq, appended.added) == ([3], 0, 1)
        assert (await session.messages(), await session.count()) == ([], 0)

    @clause(10)
    @pytest.mark.parametrize("wrong", [-1, 1.5, True, "many"])
    async def test_max_messages_that_is_no_count_is_a_value_error(self, opened: Opener, wrong: object) -> None:
        with pytest.raises(ValueError, match="max_messages"):
            opened(max_messages=wrong)

    @clause(10)
    async def test_each_log_is_cut_by_its_own_appends_alone(self, opened: Opener) -> None:
        session = opened().session("s")
        await session.append([*turn(1), *turn(2), *turn(3)])
        limited = opened(max_messages=2).session("s")
        for number in range(4, 8):
            await limited.log("side").append(turn(number))
        assert await session.messages() == [*turn(1), *turn(2), *turn(3)]
        assert await session.log("side").messages() == turn(7)

    @clause(10)
    async def test_no_reader_sees_more_than_the_append_leaves(self, opened: Opener) -> None:
        writer, reader = opened(max_messages=4).session("s"), opened().session("s")
        sizes = set[int]()
        done = asyncio.Event()

        async def write() -> None:
            for number in range(60):
                await writer.append(turn(number))
            done.set()

        async def read() -> None:
            while not done.is_set():
                history = await reader.messages()
                assert not history or history[0].role == "user"
                sizes.add(len(history))
                await asyncio.sleep(0)

        await asyncio.gather(write(), read())
        assert sizes <= {0, 2, 4}

    @clause(10)
    async def test_what_was_cut_leaves_the_rest_readable_by_its_seq(self, opened: Opener) -> None:
        session = opened(max_messages=2).session("s")
        for number in range(5):
            await session.append(turn(number))
        history = await session.messages()
        assert history.seqs == [9, 10]
        assert history.tail.seq == 10
        assert await session.messages(after=0, limit=1) == [ChatMessage.user("question 4")]

    @clause(10)
    async def test_max_age_cuts_whole_turns_that_are_older(self, opened: Opener) -> None:
        age = 4 * self.tick
        store = opened(max_age=age)
        session, began = store.session("s"), self.time(store)
        await session.append(turn(1))
        await session.append(turn(2))
        await self.pass_time(store, 0.6 * age)
        await session.append(turn(3))
        if self.time(store) < began + age:
            assert await session.messages() == [*turn(1), *turn(2), *turn(3)]
        later = self.time(store)
        await self.pass_time(store, 0.6 * age)
        await session.append(turn(4))
        if self.time(store) < later + age:
            assert await session.messages() == [*turn(3), *turn(4)]

    @clause(10)
    async def test_max_age_keeps_a_turn_whole_that_goes_on(self, opened: Opener) -> None:
        age = 4 * self.tick
        store = opened(max_age=age)
        session = store.session("s")
        await session.append(turn(1))
        await session.append([ChatMessage.user("question 2")])
        await self.pass_time(store, 1.1 * age)
        began = self.time(store)
        await session.append([ChatMessage.assistant("answer 2")])
        await session.append([ChatMessage.user("question 3")])
        if self.time(store) < began + age:
            assert await session.messages() == [*turn(2), ChatMessage.user("question 3")]
        await self.pass_time(store, 1.1 * age)
        await session.append([ChatMessage.assistant("answer 3")])
        assert await session.messages() == turn(3)

    @clause(11)
    async def test_every_write_renews_the_whole_session_and_its_expiry_takes_all_of_it(self, opened: Opener) -> None:
        ttl = 4 * self.tick
        store = opened(ttl=ttl)
        sessions = {name: store.session(name) for name in WRITES}
        await store.open()
        seeded = self.time(store)
        for session in sessions.values():
            await session.append([*turn(1), *turn(2)])
            await session.log("side").append(turn(3))
            await session.state.set("kept", 1)
            await session.state.set("gone", 2)
            await session.update(title="kept", metadata={"kept": True}, service_session_id=f"service {session.id}")
        await self.pass_time(store, 0.6 * ttl)
        began = self.time(store)
        for name, session in sessions.items():
            await WRITES[name](session)
        renewed = self.time(store) < seeded + ttl
        await self.pass_time(store, 0.9 * ttl)
        for name, session in sessions.items():
            seen = await _seen(store, session)
            if renewed and self.time(store) < began + ttl:
                assert seen == SEEN, name
        await self.pass_time(store, (MOST - 0.9 + 0.05) * ttl)
        for name, session in sessions.items():
            assert not any(await _seen(store, session)), name

    @clause(11)
    async def test_what_has_expired_reads_as_absent(self, opened: Opener) -> None:
        ttl = 2 * self.tick
        store = opened(ttl=ttl)
        view = store.scoped(tenant="acme", user="alice")
        session = view.session("s")
        await session.append([ChatMessage.user("one", id="id-1"), ChatMessage.assistant("two")])
        await session.update(title="t", metadata={"a": 1}, service_session_id="service")
        version = await session.state.set("k", 1)
        history = await session.messages()
        await self.pass_time(store, MOST * ttl + self.tick)
        assert (await session.exists(), await session.info(), await session.count()) == (False, None, 0)
        assert (await session.messages(), [message async for message in session.stream()]) == ([], [])
        assert await session.messages(window=Window(max_messages=5)) == []
        assert (await session.state.get("k"), await session.state.entry("k")) == (None, None)
        assert (await session.state.keys(), await session.state.items()) == ([], {})
        assert await view.list_sessions() == await store.list_sessions(below=True) == []
        assert [info async for info in store.iter_sessions(below=True)] == []
        assert await view.find_by_service_id("service") is None
        assert (await session.snapshot()).state == {}
        assert (await session.pop(), await session.truncate_after(0)) == ([], 0)
        await session.state.delete("k")
        with pytest.raises(MessageNotFoundError):
            await session.replace(1, ChatMessage.user("three"))
        with pytest.raises(MessageNotFoundError):
            await session.fork("branch")
        with pytest.raises(ConflictError):
            await session.append([ChatMessage.user("three")], expected_tail=history.tail)
        with pytest.raises(ConflictError):
            await session.messages(after=history.end)
        with pytest.raises(ConflictError):
            await session.state.set("k", 2, expected=version)
        assert await session.exists() is False
        assert await session.delete() is False

    @clause(11)
    @pytest.mark.parametrize("first", ["append", "append to a further log", "state", "metadata"])
    async def test_a_write_to_what_has_expired_begins_a_new_life(self, opened: Opener, first: str) -> None:
        ttl = 2 * self.tick
        store = opened(ttl=ttl)
        session = store.session("s")
        await session.append([ChatMessage.user("old", id="id-1")], batch_id="batch")
        await session.log("side").append([ChatMessage.user("old", id="id-1")])
        await session.state.set("old", 1)
        await session.update(title="old", metadata={"old": 1}, service_session_id="old")
        before = await session.info()
        await self.pass_time(store, MOST * ttl + self.tick)
        if first == "append":
            appended = await session.append([ChatMessage.user("new", id="id-1")], batch_id="batch")
            assert (list(appended.seqs), appended.added) == ([1], 1)
        elif first == "append to a further log":
            assert list((await session.log("side").append([ChatMessage.user("new", id="id-1")])).seqs) == [1]
        elif first == "state":
            await session.state.set("new", 1)
        else:
            await session.update(metadata={"new": 1})
        info = await session.info()
        assert before is not None
        assert info is not None
        assert info.life != before.life
        assert info.title is info.service_session_id is None
        assert info.metadata == ({"new": 1} if first == "metadata" else {})
        assert await session.state.items() == ({"new": 1} if first == "state" else {})
        assert texts(await session.messages()) == (["new"] if first == "append" else [])
        assert texts(await session.log("side").messages()) == (["new"] if first == "append to a further log" else [])
        assert await store.find_by_service_id("old") is None

    @clause(11)
    async def test_reading_renews_too_where_the_policy_says_so(self, opened: Opener) -> None:
        ttl = 4 * self.tick
        store = opened(ttl=ttl, ttl_policy="read")
        sessions = {name: store.session(name) for name in READS}
        await store.open()
        seeded = self.time(store)
        for session in sessions.values():
            await session.append(turn(1))
            await session.state.set("k", 1)
        await self.pass_time(store, 0.6 * ttl)
        began = self.time(store)
        for name, session in sessions.items():
            await READS[name](session)
        renewed = self.time(store) < seeded + ttl
        await self.pass_time(store, 0.6 * ttl)
        for name, session in sessions.items():
            exists = await session.exists()
            if renewed and self.time(store) < began + ttl:
                assert exists, name
        await self.pass_time(store, (MOST - 0.6 + 0.05) * ttl)
        for name, session in sessions.items():
            assert not await session.exists(), name

    @clause(11)
    async def test_a_read_does_not_renew_unless_the_policy_says_so(self, opened: Opener) -> None:
        ttl = 4 * self.tick
        store = opened(ttl=ttl)
        session = store.session("s")
        await session.append(turn(1))
        await session.state.set("k", 1)
        await self.pass_time(store, 0.6 * ttl)
        for read in READS.values():
            await read(session)
        await self.pass_time(store, (MOST - 0.6 + 0.05) * ttl)
        assert not await session.exists()

    @clause(11)
    async def test_nothing_renews_a_fixed_lifetime(self, opened: Opener) -> None:
        ttl = 4 * self.tick
        store = opened(ttl=ttl, ttl_policy="fixed")
        session, began = store.session("s"), self.time(store)
        await session.append(turn(1))
        await self.pass_time(store, 0.6 * ttl)
        await session.append(turn(2))
        await session.state.set("k", 1)
        history = await session.messages()
        if self.time(store) < began + ttl:
            assert history == [*turn(1), *turn(2)]
        await self.pass_time(store, (MOST - 0.6 + 0.05) * ttl)
        assert not await session.exists()
        began = self.time(store)
        await session.append(turn(3))
        await self.pass_time(store, 0.9 * ttl)
        history = await session.messages()
        if self.time(store) < began + ttl:
            assert history == turn(3)

    @clause(11)
    async def test_a_store_without_a_ttl_renews_by_what_the_session_has(self, opened: Opener) -> None:
        session, other = opened(ttl=1000).session("s"), opened().session("s")
        await session.append(turn(1))
        await other.append(turn(2))
        assert await _lifetime(other) == pytest.approx(1000, rel=MOST - 1)
        await opened(ttl=5000).session("s").append(turn(3))
        assert await _lifetime(other) == pytest.approx(5000, rel=MOST - 1)
        untimed = opened().session("untimed")
        await untimed.append(turn(1))
        assert await _lifetime(untimed) is None

    @clause(11)
    async def test_sweeping_takes_nothing_that_lives(self, opened: Opener) -> None:
        ttl = 2 * self.tick
        store = opened()
        for number in range(5):
            await store.session(f"for ever {number}").append(turn(1))
        short = opened(ttl=ttl)
        for number in range(5):
            await short.session(f"short {number}").append(turn(1))
        await self.pass_time(store, MOST * ttl + self.tick)
        for _ in range(3):
            await store.sweep()
        found = sorted(info.id for info in await store.list_sessions())
        assert found == [f"for ever {number}" for number in range(5)]
        assert all([await store.session(name).messages() == turn(1) for name in found])

    @clause(10)
    async def test_what_was_taken_back_does_not_count_as_kept(self, opened: Opener) -> None:
        """The last answer is asked for again and again: the history before it must not pay for it."""
        session = opened(max_messages=6).session("s")
        for number in range(4):
            await session.append(turn(number))
        for again in range(10):
            await session.pop()
            await session.append([ChatMessage.assistant(f"another {again}")])
        assert texts(await session.messages()) == [
            "question 1", "answer 1", "question 2", "answer 2", "question 3", "another 9",
        ]  # fmt: skip
        await session.append(turn(4))
        assert texts(await session.messages())[0] == "question 2"

    @clause(10)
    async def test_what_is_kept_is_the_same_however_it_came_about(self, opened: Opener) -> None:
        """Appends, takings and edits at random, against a plain list."""
        source = random.Random(10)  # noqa: S311 - for a test, and the same each time
        for most in (1, 2, 3, 7):
            session, plain = opened(max_messages=most).session(f"s{most}"), list[ChatMessage]()
            for number in range(120):
                if plain and source.random() < 0.3:
                    count = source.randint(1, 3)
                    assert await session.pop(count) == plain[-count:]
                    del plain[-count:]
                    continue
                if plain and source.random() < 0.1:
                    place, message = source.randrange(len(plain)), ChatMessage.user(f"edited {number}")
                    await session.replace((await session.messages()).seqs[place], message)
                    plain[place] = message
                said = turn(number, tools=source.choice((0, 0, 1))) if source.random() < 0.7 else turn(number)[1:]
                await session.append(said)
                plain += said
                starts = [place for place, each in enumerate(plain) if each.role == "user"]
                del plain[: max((place for place in starts if place <= len(plain) - most), default=0)]
                assert await session.messages() == plain


async def _append(session: Session[ChatMessage]) -> None:
    await session.append(turn(4))


async def _append_to_a_log(session: Session[ChatMessage]) -> None:
    await session.log("other").append(turn(4))


async def _pop(session: Session[ChatMessage]) -> None:
    assert len(await session.pop()) == 1


async def _truncate(session: Session[ChatMessage]) -> None:
    assert await session.truncate_after(2) == 2


async def _compact(session: Session[ChatMessage]) -> None:
    await session.replace_prefix(2, [ChatMessage.system("summary")])


async def _clear(session: Session[ChatMessage]) -> None:
    await session.clear()


async def _replace(session: Session[ChatMessage]) -> None:
    await session.replace(1, ChatMessage.user("edited"))


async def _redact(session: Session[ChatMessage]) -> None:
    await session.redact(1)


async def _set(session: Session[ChatMessage]) -> None:
    await session.state.set("other", 1)


async def _unset(session: Session[ChatMessage]) -> None:
    await session.state.delete("gone")


async def _update(session: Session[ChatMessage]) -> None:
    await session.update(metadata={"other": 1})


async def _lease(session: Session[ChatMessage]) -> None:
    async with session.lease():
        pass


WRITES: dict[str, Callable[[Session[ChatMessage]], Awaitable[None]]] = {
    "append": _append,
    "append to a further log": _append_to_a_log,
    "pop": _pop,
    "truncate_after": _truncate,
    "replace_prefix": _compact,
    "clear": _clear,
    "replace": _replace,
    "redact": _redact,
    "state.set": _set,
    "state.delete": _unset,
    "update": _update,
    "lease": _lease,
}

SEEN = (True, ["question 3", "answer 3"], 1, "kept", True, True)


async def _seen(store: Store[ChatMessage], session: Session[ChatMessage]) -> tuple[object, ...]:
    """What no write of WRITES changes, by each way of reading."""
    info = await session.info()
    listed = await store.list_sessions(metadata={"kept": True}, limit=1000)
    return (
        await session.exists(),
        texts(await session.log("side").messages()),
        await session.state.get("kept"),
        info and info.title,
        session.id in [each.id for each in listed],
        await store.find_by_service_id(f"service {session.id}") is not None,
    )


async def _read_messages(session: Session[ChatMessage]) -> None:
    assert await session.messages(last=1)


async def _read_stream(session: Session[ChatMessage]) -> None:
    assert [message async for message in session.stream()] == turn(1)


async def _read_window(session: Session[ChatMessage]) -> None:
    assert await session.messages(window=Window(max_messages=2)) == turn(1)


async def _read_state(session: Session[ChatMessage]) -> None:
    assert await session.state.get("k") == 1


async def _read_items(session: Session[ChatMessage]) -> None:
    assert await session.state.items() == {"k": 1}


READS: dict[str, Callable[[Session[ChatMessage]], Awaitable[None]]] = {
    "messages": _read_messages,
    "stream": _read_stream,
    "window": _read_window,
    "state.get": _read_state,
    "state.items": _read_items,
}


async def _lifetime(session: Session[Any]) -> float | None:
    info = await session.info()
    assert info is not None
    return None if info.expires_at is None else (info.expires_at - info.updated_at).total_seconds()
