"""Clauses 1 to 7 and 9: batches are whole, and their order is the store's own."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chatkeep import ChatMessage, ConflictError, CorruptRecordError, Cursor, MessageNotFoundError, Session, Store
from chatkeep.errors import ChatkeepError, DuplicateIdError, SerializationError
from chatkeep.records import Key, OnConflict, Record, Replace, Scope, StateOp, Write

from .clauses import clause
from .harness import Harness, Opener, texts, turn

Act = Callable[[], Awaitable[object]]


def batch(name: str, size: int = 3) -> list[ChatMessage]:
    """Messages without ids that say which batch they belong to, and where in it they stand."""
    return [ChatMessage.user(f"{name}/{place}/{size}") for place in range(size)]


def names(messages: list[ChatMessage]) -> list[str]:
    """The names of the batches, in order. Fails if one of them is torn or another stands inside it."""
    said = texts(messages)
    found: list[str] = []
    place = 0
    while place < len(said):
        name, first, size = said[place].rsplit("/", 2)
        whole = [f"{name}/{each}/{size}" for each in range(int(size))]
        assert first == "0", f"batch {name!r} begins with its message {first}"
        assert said[place : place + len(whole)] == whole, f"batch {name!r} is torn or interleaved"
        found.append(name)
        place += len(whole)
    return found


def with_ids(*ids: str, content: str = "content of {}") -> list[ChatMessage]:
    """One message per id."""
    return [ChatMessage.user(content.format(id), id=id) for id in ids]


def record(text: str, id: str | None = None) -> Record:
    """A record as the store makes it of a user's message, for writes that go to the backend directly."""
    return Record(0, id, "user", True, "chat/1", None, None, f'{{"role":"user","content":"{text}"}}'.encode())


class Order(Harness):
    """What readers and writers of one log can rely on."""

    # 1 to 4: whole batches in one order

    @clause(1, 2, 3)
    async def test_every_reading_is_a_beginning_of_the_final_log_made_of_whole_batches(self, opened: Opener) -> None:
        writers = [opened(), opened()]
        readers = [writers[0], opened()]
        readings: list[list[str]] = []
        newest: list[list[int]] = []
        writing = True

        async def write(store: Store[ChatMessage], name: str) -> None:
            for number in range(20):
                await store.session("s").append(batch(f"{name}.{number}", size=1 + number % 5))

        async def read(store: Store[ChatMessage]) -> None:
            while writing:
                history = await store.session("s").messages()
                assert history.seqs == list(range(1, len(history) + 1)), "a hole that may fill in later"
                readings.append(names(history))
                newest.append((await store.session("s").messages(last=7)).seqs)
                readings.append(names([message async for message in store.session("s").stream()]))
                await asyncio.sleep(0)  # a backend in this process may never wait by itself

        reading = [asyncio.create_task(read(store)) for store in readers]
        await asyncio.gather(*(write(store, f"{place}-{one}") for place, store in enumerate(writers) for one in "ab"))
        writing = False
        await asyncio.gather(*reading)
        final = names(await opened().session("s").messages())
        assert len(final) == 80
        for seen in readings:
            assert seen == final[: len(seen)]
        for seqs in newest:
            assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True

    @clause(2, 4)
    async def test_twenty_writers_of_fifty_batches_lose_double_and_interleave_nothing(self, opened: Opener) -> None:
        stores = [opened(), opened()]
        places: dict[str, list[int]] = {}

        async def write(writer: int) -> None:
            session = stores[writer % 2].session("s")
            for number in range(50):
                name = f"{writer}.{number}"
                appended = await session.append(batch(name, size=2))
                places[name] = list(appended.seqs)
                assert appended.added == 2

        await asyncio.gather(*(write(writer) for writer in range(20)))
        history = await opened().session("s").messages()
        order = names(history)
        assert Counter(order) == Counter(f"{writer}.{number}" for writer in range(20) for number in range(50))
        for writer in range(20):
            mine = [name for name in order if name.startswith(f"{writer}.")]
            assert mine == [f"{writer}.{number}" for number in range(50)], "one writer's order is lost"
        assert history.seqs == list(range(1, 2001))
        assert [seq for name in order for seq in places[name]] == history.seqs, "an answer names another place"

    @clause(2)
    async def test_the_order_is_that_of_the_appends_whatever_the_clocks_say(self, opened: Opener) -> None:
        late, early = opened(), opened()
        for number in range(4):
            if hasattr(early.backend, "clock"):  # the two may have one clock, which then goes back each time
                await self.pass_time(early, -3600)
            await (late, early)[number % 2].session("s").append(batch(str(number)))
        assert names(await late.session("s").messages()) == ["0", "1", "2", "3"]
        assert names(await early.session("s").messages(last=6)) == ["2", "3"]

    @clause(2)
    async def test_every_store_and_every_way_of_reading_shows_the_same_order(self, opened: Opener) -> None:
        one, other = opened().session("s"), opened().session("s")
        await asyncio.gather(*((one, other)[n % 2].append(batch(str(n))) for n in range(10)))
        seen = texts(await one.messages())
        assert texts(await other.messages()) == seen
        assert [message.text async for message in other.stream()] == seen
        assert texts(await one.messages(last=30)) == seen
        paged: list[str] = []
        page = await other.messages(limit=7)
        while page:
            paged += texts(page)
            page = await other.messages(after=page.end, limit=7)
        assert paged == seen

    @clause(2)
    async def test_a_batch_stands_at_consecutive_places_in_the_order_it_was_given(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        first, second = await session.append(batch("a", size=4)), await session.append(batch("b", size=1))
        assert [*first.seqs, *second.seqs] == [1, 2, 3, 4, 5]
        assert (first.tail.seq, second.tail.seq) == (4, 5)
        assert texts(await session.messages()) == ["a/0/4", "a/1/4", "a/2/4", "a/3/4", "b/0/1"]

    @clause(2)
    async def test_each_log_counts_for_itself(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(batch("main"))
        appended = await session.log("aside").append(batch("aside", size=2))
        assert list(appended.seqs) == [1, 2]
        assert list((await session.append(batch("more", size=1))).seqs) == [4]
        assert names(await session.log("aside").messages()) == ["aside"]
        assert names(await session.messages()) == ["main", "more"]

    @clause(2, 7)
    async def test_a_seq_is_never_given_out_twice_in_one_life(self, opened: Opener) -> None:
        session = opened(max_messages=4).session("s")
        given: list[int] = []

        async def append(size: int = 3) -> None:
            given.extend((await session.append(batch("b", size=size))).seqs)

        takings: list[Act] = [
            session.pop,
            lambda: session.pop(100),
            lambda: session.truncate_after(0),
            session.clear,
            lambda: session.replace_prefix(given[-1], []),
            lambda: session.replace_prefix(given[-1], [ChatMessage.system("summary")]),
            lambda: append(size=10),
        ]
        await append()
        for take in takings:
            await take()
            await append()
        assert given == list(range(1, len(given) + 1))

    @clause(2, 5, 7)
    async def test_an_append_that_adds_nothing_moves_neither_the_tail_nor_the_next_seq(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append(with_ids("a", "b"))
        await session.pop()
        known = await session.append(with_ids("a"))
        assert (list(known.seqs), known.tail.seq) == ([1], 1)
        assert (await session.messages()).tail == known.tail
        assert list((await session.append(with_ids("c"), expected_tail=known.tail)).seqs) == [3]

    @clause(2)
    async def test_what_is_never_given_twice_is_remembered_by_the_database_and_not_by_the_store(
        self, opened: Opener
    ) -> None:
        await opened().session("s").append(batch("a"))
        assert len(await opened().session("s").pop(3)) == 3
        assert list((await opened().session("s").append(batch("b"))).seqs) == [4, 5, 6]

    @clause(2)
    async def test_a_place_of_a_former_life_is_a_conflict(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        await session.append(batch("former", size=3))
        history = await session.messages()
        tail, end, start = history.tail, history.end, history.start
        await other.delete()
        for again in (False, True):
            if again:
                await other.append(batch("new", size=2))
            acts: list[Act] = [
                lambda: session.messages(after=end),
                lambda: session.messages(before=start, limit=3),
                lambda: session.messages(after=start, before=end),
                lambda: anext(session.stream(after=end)),
                lambda: session.append(batch("more"), expected_tail=tail),
                lambda: session.pop(expected_tail=tail),
                lambda: session.truncate_after(start),
                lambda: session.replace_prefix(end, [ChatMessage.system("summary")]),
                lambda: session.replace(end, ChatMessage.user("edited")),
                lambda: session.redact(start),
                lambda: session.fork("branch", upto=end),
            ]
            for act in acts:
                with pytest.raises(ConflictError):
                    await act()
        assert names(await session.messages()) == ["new"]
        assert not await opened().session("branch").exists()

    @clause(2)
    async def test_a_cursor_is_the_same_place_after_it_was_text(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        appended = await session.append(batch("a"))
        assert Cursor.parse(str(appended.tail)) == appended.tail
        await session.append(batch("b"))
        assert names(await session.messages(after=Cursor.parse(str(appended.tail)))) == ["b"]
        await session.redact(1)
        end = (await session.messages()).end
        assert Cursor.parse(str(end)) == end
        await session.replace_prefix(Cursor.parse(str(end)), [ChatMessage.system("summary")])
        assert texts(await session.messages()) == ["summary"]

    # 5: once

    @clause(5)
    async def test_a_message_with_an_id_is_stored_once_however_often_it_is_sent(self, opened: Opener) -> None:
        session = opened().session("s")
        first = await session.append(with_ids("a", "b"))
        for sender in (session, opened().session("s")):
            again = await sender.append(with_ids("a", "b"))
            assert (list(again.seqs), again.added) == (list(first.seqs), 0)
            assert again.tail.seq == first.tail.seq
        mixed = await session.append([*with_ids("b"), ChatMessage.user("no id"), *with_ids("c", "a")])
        assert (list(mixed.seqs), mixed.added) == ([2, 3, 4, 1], 2)
        assert texts(await session.messages()) == ["content of a", "content of b", "no id", "content of c"]

    @clause(5)
    async def test_a_whole_transcript_sent_again_on_each_save_does_not_grow(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        transcript: list[ChatMessage] = []
        for number in range(10):
            transcript += with_ids(f"q{number}", f"a{number}")
            assert (await session.append(transcript)).added == 2
        assert await session.count() == 20
        assert texts(await session.messages()) == texts(transcript)

    @clause(5)
    async def test_one_message_sent_by_many_at_once_is_stored_once(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]
        answers = await asyncio.gather(*(sessions[n % 2].append(with_ids("a", "b")) for n in range(20)))
        assert {tuple(answer.seqs) for answer in answers} == {(1, 2)}
        assert sum(answer.added for answer in answers) == 2
        assert texts(await sessions[0].messages()) == ["content of a", "content of b"]

    @clause(5)
    async def test_an_id_twice_in_one_batch_is_one_message(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        appended = await session.append(with_ids("a", "b", "a"))
        assert (list(appended.seqs), appended.added) == ([1, 2, 1], 2)
        assert texts(await session.messages()) == ["content of a", "content of b"]

    @clause(5)
    async def test_other_content_under_a_known_id_is_kept_out_unless_told_otherwise(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append(with_ids("a", "b"))
        other = with_ids("a", content="other {}")
        for answer in (await session.append(other), await session.append(other, on_conflict="keep")):
            assert (list(answer.seqs), answer.added) == ([1], 0)
        assert texts(await session.messages()) == ["content of a", "content of b"]

    @clause(5)
    async def test_replace_puts_other_content_in_its_place(self, opened: Opener) -> None:
        session = opened().session("s")
        await session.append(with_ids("a", "b"))
        before = (await session.records()).records
        answer = await session.append([ChatMessage.assistant("other a", id="a"), *with_ids("c")], on_conflict="replace")
        assert (list(answer.seqs), answer.added) == ([1, 3], 1)
        history = await opened().session("s").messages()
        assert (texts(history), history.seqs) == (["other a", "content of b", "content of c"], [1, 2, 3])
        assert (history[0].role, history[0].id) == ("assistant", "a")
        assert (await session.records()).records[0].created_at == before[0].created_at
        assert (await session.append(with_ids("a"))).added == 0, "the id is forgotten"

    @clause(5)
    async def test_the_last_of_two_in_one_batch_wins_with_replace(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(
            [*with_ids("a", content="one {}"), *with_ids("b"), *with_ids("a", content="two {}")], on_conflict="replace"
        )
        assert texts(await session.messages()) == ["two a", "content of b"]

    @clause(5)
    async def test_error_refuses_the_whole_batch_for_other_content_alone(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(with_ids("a"))
        assert (await session.append(with_ids("a", "b"), on_conflict="error")).added == 1
        with pytest.raises(DuplicateIdError):
            await session.append([*with_ids("c"), *with_ids("a", content="other {}")], on_conflict="error")
        assert texts(await session.messages()) == ["content of a", "content of b"]
        appended = await session.append(with_ids("c"))
        assert list(appended.seqs) == [3], "the refused batch left an id or a gap"

    @clause(5)
    async def test_strict_takes_new_messages_alone_and_says_where_the_others_are(self, opened: Opener) -> None:
        session = opened(max_messages=3).session("s")
        await session.append([*with_ids("a", "b"), ChatMessage.user("nameless"), *with_ids("c", "d")])
        for batch, known in (
            (with_ids("new", "c"), {"c": 4}),  # the same content
            (with_ids("c", "new", "d", content="other {}"), {"c": 4, "d": 5}),
            (with_ids("d", "a"), {"d": 5, "a": 1}),  # trimmed, and remembered
        ):
            with pytest.raises(DuplicateIdError, match=r"session 's': .* at seq \d already.*: give ") as caught:
                await session.append(batch, on_conflict="strict")
            assert caught.value.seqs == known
        with pytest.raises(DuplicateIdError, match="two of the new messages") as caught:
            await session.append(with_ids("x", "y", "x"), on_conflict="strict")
        assert caught.value.seqs == {}
        answer = await session.append([*with_ids("new"), ChatMessage.user("nameless")], on_conflict="strict")
        assert (list(answer.seqs), answer.added) == ([6, 7], 2), "a refused batch left an id or a gap"

    @clause(5)
    async def test_a_strict_append_that_is_sent_again_under_its_batch_id_is_stored_once(self, opened: Opener) -> None:
        session = opened().session("s")
        answers = [await session.append(with_ids("a", "b"), batch_id="run", on_conflict="strict") for _ in range(3)]
        assert [(list(answer.seqs), answer.added) for answer in answers] == [([1, 2], 2), ([1, 2], 0), ([1, 2], 0)]
        assert texts(await session.messages()) == ["content of a", "content of b"]

    @clause(5)
    @pytest.mark.parametrize("wrong", ["skip", "Keep", "", None, True])
    async def test_an_unknown_way_to_meet_a_conflict_is_refused_and_nothing_is_written(
        self, store: Store[ChatMessage], wrong: Any
    ) -> None:
        session = store.session("s")
        with pytest.raises(ValueError, match=r"on_conflict must be 'keep', 'replace', 'error' or 'strict', not"):
            await session.append([ChatMessage.user("x", id="1")], on_conflict=wrong)
        assert not await session.exists()

    @clause(2)
    async def test_the_places_of_an_append_are_a_tuple_of_ints(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        made = [
            await session.append([]),
            await session.append(turn(1)),
            await session.append([ChatMessage.user("x", id="1")]),
            await session.append([ChatMessage.user("x", id="1")]),
            await session.append(turn(2), batch_id="b"),
            await session.append(turn(2), batch_id="b"),
            await session.replace_prefix(2, [ChatMessage.system("summary")]),
        ]
        assert [appended.seqs for appended in made] == [(), (1, 2), (3,), (3,), (4, 5), (4, 5), (2,)]
        assert {type(seq) for appended in made for seq in appended.seqs} == {int}

    @clause(5)
    async def test_the_ids_of_the_last_thousand_trimmed_messages_are_known(self, opened: Opener) -> None:
        session = opened(max_messages=1).session("s")
        ids = [f"m{number}" for number in range(1001)]
        await session.append(with_ids(*ids))
        assert await session.count() == 1
        for lower in range(0, 1001, 250):
            answer = await session.append(with_ids(*ids[lower : lower + 250]))
            assert (answer.added, answer.seqs[0]) == (0, lower + 1)
        assert texts(await session.messages()) == ["content of m1000"]
        modes: list[OnConflict] = ["replace", "error"]
        for mode in modes:
            answer = await session.append(with_ids("m0", content="other {}"), on_conflict=mode)
            assert answer.added == 0, "of a trimmed message there is nothing left to differ from"

    @clause(5)
    async def test_how_many_trimmed_ids_are_known_is_an_option(self, opened: Opener) -> None:
        session = opened(max_messages=1, remember_ids=2).session("s")
        for id in ("a", "b", "c", "d"):
            await session.append(with_ids(id))
        assert (await session.append(with_ids("d", "c", "b"))).added == 0
        forgetful = opened(max_messages=1, remember_ids=0).session("t")
        await forgetful.append(with_ids("a", "b"))
        assert (await forgetful.append(with_ids("b"))).added == 0
        assert (await forgetful.append(with_ids("a"))).added == 1

    @clause(5)
    async def test_what_is_taken_out_is_forgotten_and_can_be_stored_again(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")

        async def replace_all() -> object:
            return await session.replace_prefix((await session.messages()).end, [])

        takings: list[Act] = [
            lambda: session.pop(2),
            lambda: session.truncate_after(0),
            session.clear,
            replace_all,
            session.delete,
        ]
        for number, take in enumerate(takings):
            await session.append(with_ids("a", "b"), batch_id="x")
            await take()
            assert await session.count() == 0
            again = await session.append(with_ids("a", "b"), batch_id="x")
            assert again.added == 2, f"after taking number {number} the ids or the batch are still known"
            await session.clear()

    @clause(5)
    async def test_what_is_left_after_a_taking_is_still_known(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(with_ids("a", "b", "c"))
        await session.pop()
        await session.replace_prefix((await session.messages(limit=1)).end, [])
        answer = await session.append(with_ids("a", "b", "c"))
        assert answer.added == 2
        assert texts(await session.messages()) == ["content of b", "content of a", "content of c"]

    @clause(5)
    async def test_an_id_is_known_in_its_own_log_alone(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(with_ids("a"), batch_id="x")
        assert (await session.log("aside").append(with_ids("a"), batch_id="x")).added == 1
        assert (await store.session("t").append(with_ids("a"), batch_id="x")).added == 1
        assert (await store.scoped(user="u").session("s").append(with_ids("a"), batch_id="x")).added == 1

    @clause(5)
    async def test_a_batch_with_a_batch_id_is_stored_once(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        first = await session.append(batch("a"), batch_id="turn-1")
        await session.append(batch("b"))
        for sender in (session, other):
            again = await sender.append(batch("a"), batch_id="turn-1")
            assert (list(again.seqs), again.tail.seq) == (list(first.seqs), 6)
        await session.append(batch("something else"), batch_id="turn-1")
        assert names(await session.messages()) == ["a", "b"]

    @clause(5)
    async def test_one_batch_sent_by_many_at_once_is_stored_once(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]
        answers = await asyncio.gather(*(sessions[n % 2].append(batch("a"), batch_id="x") for n in range(20)))
        assert {tuple(answer.seqs) for answer in answers} == {(1, 2, 3)}
        assert names(await sessions[0].messages()) == ["a"]

    @clause(5)
    async def test_the_last_128_batch_ids_of_a_log_are_known(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        for number in range(128):
            await session.append(batch(str(number), size=1), batch_id=f"b{number}")
        await session.log("aside").append(batch("aside", size=1), batch_id="other")
        for number in range(128):
            await session.append(batch(str(number), size=1), batch_id=f"b{number}")
        assert names(await session.messages()) == [str(number) for number in range(128)]

    @clause(5)
    async def test_a_batch_that_was_trimmed_or_popped_in_part_is_still_known(self, opened: Opener) -> None:
        session = opened(max_messages=2).session("s")
        await session.append(batch("a"), batch_id="a")
        await session.pop()
        await session.append(batch("a"), batch_id="a")
        assert texts(await session.messages()) == ["a/1/3"]
        await session.append(batch("b"), batch_id="b")
        await session.append(batch("a"), batch_id="a")
        assert texts(await session.messages()) == ["b/1/3", "b/2/3"]

    @clause(5)
    async def test_a_write_committed_again_with_its_own_token_is_committed_once(self, opened: Opener) -> None:
        store = opened()
        key = Key(Scope(), "s")

        async def commit(**changes: Any) -> None:
            write = Write(os.urandom(16), **changes)
            first = await store.backend.commit(key, write)
            assert await store.backend.commit(key, write) == first
            several = await asyncio.gather(*(store.backend.commit(key, write) for _ in range(5)))
            assert several == [first] * 5

        await store.open()
        await commit(append=[record("a"), record("b"), record("c")])
        await commit(append=[record("c")], expected_tail=3)
        await commit(append=[record("d", id="d")])
        assert texts(await store.session("s").messages()) == ["a", "b", "c", "c", "d"]
        await commit(truncate_after=4)
        await commit(truncate_after=3)
        assert texts(await store.session("s").messages()) == ["a", "b", "c"]
        await commit(replace=Replace(2, [record("ab")]), expected_rewrite=0)
        assert texts(await store.session("s").messages()) == ["ab", "c"]
        await commit(state=[StateOp("k", "json/1", b"1", expected="")])
        assert await store.session("s").state.keys() == ["k"]

    @clause(5)
    async def test_one_token_many_times_at_once_is_one_write(self, opened: Opener) -> None:
        store = opened()
        await store.open()
        write = Write(os.urandom(16), append=[record("a"), record("b")])
        outcomes = await asyncio.gather(*(store.backend.commit(Key(Scope(), "s"), write) for _ in range(20)))
        assert {(outcome.life, tuple(outcome.seqs)) for outcome in outcomes} == {(outcomes[0].life, (1, 2))}
        assert await store.session("s").count() == 2

    @clause(5)
    async def test_equal_content_is_never_a_duplicate(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        for _ in range(3):
            await session.append([ChatMessage.user("ok"), ChatMessage.user("ok")])
        await asyncio.gather(*(session.append([ChatMessage.user("ok")]) for _ in range(4)))
        assert texts(await session.messages()) == ["ok"] * 10

    # 6: on an expected tail

    @clause(6)
    async def test_an_append_on_the_expected_tail_is_written_and_on_another_it_is_not(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        first = await session.append(batch("a"), expected_tail=0)
        second = await other.append(batch("b"), expected_tail=first.tail)
        await session.append(batch("c"), expected_tail=second.tail.seq)
        for expected in (first.tail, second.tail, 0, 1, 8, 10, 100):
            with pytest.raises(ConflictError) as conflict:
                await session.append(batch("d"), expected_tail=expected)
            assert conflict.value.tail is not None
            assert conflict.value.tail == (await session.messages()).tail
        assert names(await session.messages()) == ["a", "b", "c"]
        await session.append(batch("d"), expected_tail=conflict.value.tail)
        assert names(await session.messages()) == ["a", "b", "c", "d"]

    @clause(6)
    async def test_a_conflict_names_the_session_the_log_and_the_tails(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        for log, place in ((session, "session 's'"), (session.log("aside"), "session 's', log 'aside'")):
            await log.append(turn(1))
            await log.append([ChatMessage.user("x", id="1")])
            with pytest.raises(ConflictError) as caught:
                await log.append(turn(2), expected_tail=2)
            assert str(caught.value).startswith(f"{place}: the tail is 3, not 2: ")
            with pytest.raises(ConflictError, match="session 's'"):
                await log.pop(expected_tail=1)
            with pytest.raises(DuplicateIdError, match=f"{place}.*'1'.* at seq 3 already: give .*on_conflict='keep'"):
                await log.append([ChatMessage.user("y", id="1")], on_conflict="error")
            read = await log.messages()
            await log.replace_prefix(read.end, [ChatMessage.system("summary")])
            with pytest.raises(ConflictError, match=f"{place}.* replaced or edited since it was read: read it again"):
                await log.replace_prefix(read.end, [])

    @clause(6)
    async def test_a_conflict_with_a_former_life_or_an_absent_session_carries_the_current_tail(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        former = (await session.append(batch("former"))).tail
        await session.delete()
        for _ in range(2):
            with pytest.raises(ConflictError) as conflict:
                await session.append(batch("x"), expected_tail=former)
            assert conflict.value.tail is not None
            assert conflict.value.tail == (await session.messages()).tail
            await session.append(batch("new"))
        with pytest.raises(ConflictError):
            await store.session("absent").append(batch("x"), expected_tail=3)
        assert not await store.session("absent").exists()

    @clause(6)
    async def test_a_tail_that_was_read_where_nothing_is_means_that_nothing_may_be_there(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        nothing = (await session.messages()).tail
        await session.append(batch("a"), expected_tail=nothing)
        with pytest.raises(ConflictError):
            await session.append(batch("b"), expected_tail=nothing)
        assert names(await session.messages()) == ["a"]

    @clause(6)
    async def test_of_many_who_expect_one_tail_one_appends(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]
        tail = (await sessions[0].append(batch("a"))).tail
        for round in range(5):
            answers = await asyncio.gather(
                *(sessions[n % 2].append(batch(f"{round}.{n}"), expected_tail=tail) for n in range(10)),
                return_exceptions=True,
            )
            won = [answer for answer in answers if not isinstance(answer, BaseException)]
            lost = [answer for answer in answers if isinstance(answer, ConflictError)]
            assert (len(won), len(lost)) == (1, 9)
            assert {error.tail for error in lost} == {won[0].tail}
            tail = won[0].tail
        assert len(names(await sessions[0].messages())) == 6

    @clause(6)
    async def test_a_refused_append_leaves_neither_ids_nor_batch_id_nor_a_gap(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(with_ids("a"))
        with pytest.raises(ConflictError):
            await session.append(with_ids("b"), batch_id="x", expected_tail=7)
        appended = await session.append(with_ids("b"), batch_id="x")
        assert (list(appended.seqs), appended.added) == ([2], 1)

    @clause(5, 6)
    async def test_a_conditional_append_that_was_stored_is_no_conflict_when_sent_again(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        tail = (await session.append(batch("a"))).tail
        first = await session.append(batch("b"), batch_id="x", expected_tail=tail)
        again = await session.append(batch("b"), batch_id="x", expected_tail=tail)
        assert list(again.seqs) == list(first.seqs)
        assert names(await session.messages()) == ["a", "b"]

    @clause(6)
    async def test_the_tail_is_that_of_the_visible_messages(self, opened: Opener) -> None:
        session = opened(max_messages=3).session("s")
        await session.append(batch("a", size=5))
        await session.pop()
        await session.append(batch("b", size=1), expected_tail=4)
        await session.clear()
        assert (await session.messages()).tail.seq == 0
        appended = await session.append(batch("c", size=1), expected_tail=0)
        assert list(appended.seqs) == [7]
        nothing = opened(max_messages=0).session("t")
        assert (await nothing.append(batch("d"), expected_tail=0)).tail.seq == 0
        assert (await nothing.append(batch("d"), expected_tail=0)).tail.seq == 0

    @clause(6)
    async def test_an_append_without_expectations_never_conflicts(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]

        async def disturb() -> None:
            for _ in range(10):
                await sessions[0].pop()
                await sessions[1].clear()
                await sessions[1].delete()
                await sessions[0].state.set("k", 1)

        await asyncio.gather(disturb(), *(sessions[n % 2].append(batch(str(n))) for n in range(40)))

    @clause(6, 4)
    async def test_writers_of_different_sessions_never_conflict(self, opened: Opener) -> None:
        stores = [opened(), opened()]

        async def converse(number: int) -> None:
            session = stores[number % 2].scoped(app="shop").session(str(number))
            tail: Cursor | int = 0
            for each in range(3):
                tail = (await session.append(batch(str(each)), expected_tail=tail)).tail
                await session.state.set("turns", each)

        await asyncio.gather(*map(converse, range(50)))
        for info in await stores[0].scoped(app="shop").list_sessions(limit=50):
            assert info.messages == 3 * len(batch("0"))

    # 7: pop

    @clause(7)
    async def test_pop_hands_out_the_newest_oldest_first(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(batch("a", size=5))
        assert texts(await session.pop()) == ["a/4/5"]
        assert texts(await session.pop(2)) == ["a/2/5", "a/3/5"]
        assert await session.count() == 2
        assert texts(await session.pop(10)) == ["a/0/5", "a/1/5"]
        assert await session.pop() == []
        assert await store.session("absent").pop() == []
        assert not await store.session("absent").exists()
        for count in (0, -1):
            with pytest.raises(ValueError, match="count"):
                await session.pop(count)

    @clause(7)
    async def test_each_message_is_handed_out_at_most_once(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]
        await sessions[0].append(batch("a", size=60))
        taken = await asyncio.gather(*(sessions[n % 2].pop(1 + n % 3) for n in range(40)))
        said = [text for messages in taken for text in texts(messages)]
        assert sorted(said) == sorted(texts(batch("a", size=60)))
        for messages in taken:
            places = [int(text.split("/")[1]) for text in texts(messages)]
            assert places == list(range(places[0], places[0] + len(places))) if places else True

    @clause(7)
    async def test_pop_takes_nothing_that_has_come_since_it_looked(self, opened: Opener) -> None:
        popper, writer = opened().session("s"), opened().session("s")
        await popper.append(batch("first", size=10))
        taken: list[str] = []

        async def pop() -> None:
            for _ in range(20):
                taken.extend(texts(await popper.pop(2)))

        async def write() -> None:
            for number in range(40):
                await writer.append(batch(str(number)))

        await asyncio.gather(pop(), write())
        said = texts(batch("first", size=10)) + [text for number in range(40) for text in texts(batch(str(number)))]
        assert sorted(taken + texts(await writer.messages())) == sorted(said)

    @clause(7)
    async def test_with_an_expected_tail_pop_is_conditional(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        tail = (await session.append(batch("a"))).tail
        await other.append(batch("b"))
        for expected in (tail, tail.seq, 0):
            with pytest.raises(ConflictError) as conflict:
                await session.pop(expected_tail=expected)
        assert await session.count() == 6
        assert conflict.value.tail is not None
        assert texts(await session.pop(expected_tail=conflict.value.tail)) == ["b/2/3"]
        answers = await asyncio.gather(
            *(each.pop(expected_tail=5) for each in (session, other) * 5), return_exceptions=True
        )
        assert sum(isinstance(answer, list) for answer in answers) == 1
        assert await session.count() == 4

    @clause(7)
    async def test_after_a_pop_the_tail_goes_back_and_the_next_seq_does_not(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(batch("a", size=4))
        await session.pop(2)
        assert (await session.messages()).tail.seq == 2
        info = await session.info()
        assert info is not None
        assert (info.logs[""].tail.seq, info.messages) == (2, 2)
        appended = await session.append(batch("b", size=1))
        assert (list(appended.seqs), appended.tail.seq) == ([5], 5)
        await session.pop(10)
        assert (await session.messages()).tail.seq == 0
        assert list((await session.append(batch("c", size=1))).seqs) == [6]

    # 9: the beginning, replaced

    @clause(9)
    async def test_messages_appended_meanwhile_survive_a_compaction(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        await session.append(batch("a", size=6))
        history = await session.messages()
        await other.append(batch("b"))
        answer = await session.replace_prefix(history.end, [ChatMessage.system("summary")])
        after = await other.messages()
        assert texts(after) == ["summary", *texts(batch("b"))]
        assert after.seqs == [6, 7, 8, 9]
        assert (list(answer.seqs), answer.tail) == ([6], after.tail)

    @clause(9)
    async def test_the_new_messages_take_the_last_places_and_survivors_keep_theirs(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append(batch("a", size=4))
        await session.pop()
        await session.append(batch("b", size=4))
        assert (await session.messages()).seqs == [1, 2, 3, 5, 6, 7, 8]
        answer = await session.replace_prefix(6, [ChatMessage.user(text) for text in "xyz"])
        history = await session.messages()
        assert (texts(history), history.seqs) == (["x", "y", "z", "b/2/4", "b/3/4"], [3, 5, 6, 7, 8])
        assert list(answer.seqs) == [3, 5, 6]
        assert await session.count() == 5
        await session.replace_prefix(4, [])
        assert (await session.messages()).seqs == [5, 6, 7, 8]
        await session.replace_prefix(0, [])
        assert (await session.messages()).seqs == [5, 6, 7, 8]

    @clause(9)
    async def test_more_than_were_replaced_or_beyond_the_end_is_refused(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(batch("a", size=3))
        for upto, size in ((2, 3), (0, 1), (4, 1), (-1, 0)):
            with pytest.raises(ValueError, match=r"cannot take the place|beyond|position"):
                await session.replace_prefix(upto, batch("new", size=size))
        with pytest.raises(ValueError, match="cannot take the place"):
            await store.session("absent").replace_prefix(0, batch("new", size=1))
        assert texts(await session.messages()) == texts(batch("a", size=3))
        assert not await store.session("absent").exists()

    @clause(9)
    async def test_of_two_compactions_of_one_prefix_one_wins(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]
        await sessions[0].append(batch("a", size=8))
        for round in range(5):
            history = await sessions[0].messages()
            answers = await asyncio.gather(
                *(sessions[n % 2].replace_prefix(history.end, [ChatMessage.system(f"{round}.{n}")]) for n in range(6)),
                return_exceptions=True,
            )
            won = [place for place, answer in enumerate(answers) if not isinstance(answer, BaseException)]
            assert len(won) == 1
            assert sum(isinstance(answer, ConflictError) for answer in answers) == 5
            assert texts(await sessions[1].messages()) == [f"{round}.{won[0]}"]
            await sessions[0].append(batch("more"))

    @clause(9)
    async def test_a_compaction_loses_against_one_of_a_shorter_prefix_made_since(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append(batch("a", size=6))
        whole, half = await session.messages(), await session.messages(limit=3)
        await session.replace_prefix(half.end, [ChatMessage.system("half")])
        with pytest.raises(ConflictError) as conflict:
            await session.replace_prefix(whole.end, [ChatMessage.system("whole")])
        assert conflict.value.tail == (await session.messages()).tail
        assert texts(await session.messages()) == ["half", "a/3/6", "a/4/6", "a/5/6"]

    @clause(9)
    async def test_compactions_among_appends_lose_nothing_and_are_never_seen_halfway(self, opened: Opener) -> None:
        writer, compactor, reader = opened().session("s"), opened().session("s"), opened().session("s")
        writing = True

        def counted(messages: list[ChatMessage]) -> int:
            """How many messages there were: a summary says how many it stands for."""
            return sum(int(message.text) if message.role == "system" else 1 for message in messages)

        async def append() -> None:
            for number in range(40):
                await writer.append(batch(str(number)))

        async def compact() -> None:
            while writing:
                history = await compactor.messages()
                if len(history) > 4:
                    await compactor.replace_prefix(history.end, [ChatMessage.system(str(counted(history)))])
                await asyncio.sleep(0)

        async def read() -> None:
            most = 0
            while writing:
                history = await reader.messages()
                seen = counted(history)
                assert seen >= most, "what was there is gone: a compaction was seen halfway"
                assert seen == history.tail.seq, "a message is lost or doubled"
                assert [message.role for message in history].count("system") <= 1
                most = seen
                await asyncio.sleep(0)

        others = [asyncio.create_task(compact()), asyncio.create_task(read())]
        await append()
        writing = False
        await asyncio.gather(*others)
        assert counted(await reader.messages()) == 120

    @clause(9)
    async def test_ids_in_a_compaction_may_be_those_it_replaces_and_no_others(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(with_ids("a", "b", "c"))
        await session.replace_prefix(2, with_ids("b", content="shorter {}"))
        assert texts(await session.messages()) == ["shorter b", "content of c"]
        assert (await session.append(with_ids("b"))).added == 0
        for wrong in (with_ids("c"), with_ids("x", "x")):
            with pytest.raises((DuplicateIdError, ValueError)):
                await session.replace_prefix(2, wrong)
        assert texts(await session.messages()) == ["shorter b", "content of c"]
        assert (await session.append(with_ids("a"))).added == 1, "the id of a replaced message is forgotten"

    @clause(9)
    async def test_clear_is_one_boundary_and_leaves_the_rest_of_the_session(self, opened: Opener) -> None:
        session = opened().session("s")
        await session.append(batch("a"))
        await session.log("aside").append(batch("aside"))
        await session.state.set("k", 1)
        await session.update(title="Bag")
        await session.clear()
        info = await session.info()
        assert info is not None
        assert (info.title, info.messages, info.logs["aside"].size) == ("Bag", 0, 3)
        assert await session.state.get("k") == 1
        assert await session.messages() == []
        other = opened().session("s")

        async def clear() -> None:
            for _ in range(10):
                await other.clear()

        async def append() -> None:
            for number in range(40):
                appended = await session.append(batch(str(number)))
                seen = await session.messages()
                names(seen)
                assert seen.seqs in ([], list(range(seen.tail.seq - len(seen) + 1, appended.tail.seq + 1)))

        await asyncio.gather(append(), clear())

    @clause(9)
    async def test_clearing_what_is_not_there_does_nothing(self, store: Store[ChatMessage]) -> None:
        session: Session[ChatMessage] = store.session("absent")
        await session.clear()
        assert not await session.exists()
        await session.state.set("k", 1)
        await session.clear()
        await session.log("aside").clear()
        assert await session.state.get("k") == 1
        with pytest.raises(MessageNotFoundError):
            await session.replace(1, ChatMessage.user("x"))

    @clause(1, 6)
    async def test_a_refused_batch_leaves_nothing_behind(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        bad: list[Any] = [ChatMessage.user("good"), "no message"]
        with pytest.raises((ChatkeepError, TypeError)):
            await session.append(bad)
        assert not await session.exists()
        assert (await session.append([])).added == 0
        assert not await session.exists()

    @clause(1)
    async def test_metadata_that_is_given_with_messages_is_there_whenever_they_are(self, opened: Opener) -> None:
        session, reader = opened().session("s"), opened().session("s")
        seen: list[tuple[int, dict[str, Any]]] = []
        writing = True

        async def read() -> None:
            while writing:
                if info := await reader.info():
                    seen.append((info.messages, info.metadata))
                await asyncio.sleep(0)

        reading = asyncio.create_task(read())
        for number in range(1, 21):
            await session.append([ChatMessage.user("x")], metadata={"messages": number})
            await asyncio.sleep(0)
        writing = False
        await reading
        assert all(metadata == {"messages": messages} for messages, metadata in seen), "one came without the other"
        await session.log("aside").append([ChatMessage.user("x")], metadata={"aside": True})
        info = await reader.info()
        assert info is not None
        assert (info.messages, info.metadata) == (20, {"messages": 20, "aside": True})

    @clause(1, 5, 6)
    async def test_metadata_that_is_given_with_messages_is_refused_with_them_and_merged_where_they_are_known(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")

        async def metadata() -> dict[str, Any]:
            info = await session.info()
            return {} if info is None else info.metadata

        with pytest.raises(SerializationError):
            await session.append(with_ids("a"), metadata={"k": float("nan")})
        assert not await session.exists()
        await session.append(with_ids("a"), metadata={"k": 1, "kept": True})
        with pytest.raises(ConflictError):
            await session.append(with_ids("b"), expected_tail=0, metadata={"k": 2})
        with pytest.raises(DuplicateIdError):
            await session.append(with_ids("a", "b"), on_conflict="strict", metadata={"k": 2})
        with pytest.raises(SerializationError):
            await session.append([ChatMessage.user("x", metadata={"n": float("nan")})], metadata={"k": 2})
        with pytest.raises(ValueError, match="metadata="):
            await session.append([], metadata={"k": 2})
        assert await metadata() == {"k": 1, "kept": True}
        assert (await session.append(with_ids("a"), metadata={"k": None, "known": 1})).added == 0
        assert await metadata() == {"kept": True, "known": 1}
        for number in (1, 0):
            appended = await session.append(batch("b", size=2), batch_id="b", metadata={"known": number})
            assert (appended.added, await metadata()) == (2 * number, {"kept": True, "known": number})
        await session.delete()
        await session.log("aside").append(with_ids("a"))
        info = await session.info()
        assert info is not None
        assert (info.metadata, info.tail) == ({}, Cursor(info.life, 0))
        appended = await session.append(with_ids("a"), expected_tail=info.tail)
        info = await session.info()
        assert info is not None
        assert info.tail == appended.tail

    @clause(7, 18)
    async def test_pop_takes_nothing_that_it_cannot_hand_out(self, opened: Opener) -> None:
        store = opened()
        session = store.session("s")
        await session.append(turn(1))
        damaged = Record(0, None, "user", True, "chat/1", None, None, b"{damaged")
        await store.open()
        await store.backend.commit(Key(Scope(), "s"), Write(os.urandom(16), append=[damaged]))
        await session.append([ChatMessage.assistant("whole")])
        with pytest.raises(CorruptRecordError) as caught:
            await session.pop(3)
        assert caught.value.seq == 3
        assert await session.count() == 4
        assert texts(await session.pop()) == ["whole"]
        await session.append([ChatMessage.assistant("whole again")])
        await session.repair()
        assert texts(await session.pop(2)) == ["answer 1", "whole again"]
        assert texts(await session.messages()) == ["question 1"]

    @clause(6)
    async def test_an_append_of_nothing_on_another_tail_is_a_conflict_too(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        tail = (await session.append(batch("a"))).tail
        assert (await session.append([], expected_tail=tail)).tail == tail
        with pytest.raises(ConflictError):
            await session.append([], expected_tail=99)

    @clause(9)
    @pytest.mark.parametrize("edit", ["redact", "replace", "append"])
    async def test_a_compaction_loses_against_an_edit_of_what_it_was_made_from(
        self, store: Store[ChatMessage], edit: str
    ) -> None:
        session = store.session("s")
        await session.append(with_ids(*"abcdef"))
        read = await session.messages()
        edits: dict[str, Act] = {
            "redact": lambda: session.redact(read.seqs[0]),
            "replace": lambda: session.replace(read.seqs[0], ChatMessage.user("edited")),
            "append": lambda: session.append(with_ids("a", content="edited {}"), on_conflict="replace"),
        }
        await edits[edit]()
        with pytest.raises(ConflictError, match="edited"):
            await session.replace_prefix(read.end, [ChatMessage.system("a summary that knows what was edited")])
        assert await session.count() == 6
