"""Clauses 12 to 14: pages, streams and windows, and that what is returned is a copy."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta
from typing import Any

import pytest

from chatkeep import (
    ChatMessage,
    ConflictError,
    MessageCodec,
    MessageNotFoundError,
    Store,
    Window,
    drop_tool_bodies,
    estimate_tokens,
    summarise,
)
from chatkeep.errors import WindowError

from .clauses import clause
from .harness import Harness, Opener, texts, turn, turn_of_parts


class Reading(Harness):
    @clause(12)
    async def test_last_is_the_newest_n_oldest_first(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user(f"message {number}") for number in range(1, 8)])
        await session.append([ChatMessage.assistant("message 8")])
        for last in (1, 2, 7, 8, 9, 1000):
            history = await session.messages(last=last)
            expected = list(range(max(1, 9 - last), 9))
            assert texts(history) == [f"message {number}" for number in expected]
            assert history.seqs == expected
            assert history.more is (last < 8)
            assert (history.start.seq, history.end.seq, history.tail.seq) == (expected[0], 8, 8)

    @clause(12)
    async def test_last_0_is_empty(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))
        history = await session.messages(last=0)
        assert (history, history.seqs, history.tail.seq) == ([], [], 2)
        assert await session.messages(limit=0) == []
        assert await session.messages(before=2, limit=0) == []

    @clause(12)
    @pytest.mark.parametrize("wrong", [-1, 1.5, True, "3"])
    async def test_a_number_of_messages_that_is_none_is_a_value_error(
        self, store: Store[ChatMessage], wrong: Any
    ) -> None:
        session = store.session("s")
        await session.append(turn(1))
        with pytest.raises(ValueError, match="last"):
            await session.messages(last=wrong)
        with pytest.raises(ValueError, match="limit"):
            await session.messages(limit=wrong)
        with pytest.raises(ValueError, match="last"):
            await store.session("absent").messages(last=wrong)

    @clause(12)
    @pytest.mark.parametrize("wrong", [-1, 1.5, True, "life.3.0"])
    async def test_a_place_that_is_none_is_refused_with_the_mend(self, store: Store[ChatMessage], wrong: Any) -> None:
        session = store.session("s")
        await session.append(turn(1))
        mend = r"Cursor\.parse\(text\)" if isinstance(wrong, str) else r"history\.seqs"
        for place in ({"after": wrong}, {"before": wrong}):
            with pytest.raises(ValueError, match=mend):
                await session.messages(**place)

    @clause(13)
    @pytest.mark.parametrize("wrong", [8000, "8000", {"max_tokens": 8000}, Window])
    async def test_a_window_that_is_none_is_refused_with_the_mend(self, store: Store[ChatMessage], wrong: Any) -> None:
        await store.session("s").append(turn(1))
        with pytest.raises(TypeError, match=r"window must be a Window, not .*: window=Window\(max_tokens=8000\)"):
            await store.session("s").messages(window=wrong)

    @clause(2, 12)
    async def test_a_cursor_of_another_session_is_refused_and_says_so(self, store: Store[ChatMessage]) -> None:
        session, other = store.session("s"), store.session("other")
        place = (await session.append(turn(1))).tail
        await other.append(turn(1))
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: other.messages(after=place),
            lambda: other.append(turn(2), expected_tail=place),
            lambda: other.truncate_after(place),
            lambda: other.replace_prefix(place, []),
            lambda: other.replace(place, ChatMessage.user("x")),
            lambda: other.fork("fork", upto=place),
            lambda: store.session("absent").pop(expected_tail=place),
        ]
        for use in uses:
            with pytest.raises(
                ConflictError, match=r"(other|absent)' has ended or begun anew .* is of another session"
            ):
                await use()
        assert await other.messages() == turn(1)

    @clause(12)
    async def test_ways_of_reading_that_exclude_each_other_are_refused(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))
        with pytest.raises(ValueError, match="last cannot be combined"):
            await session.messages(last=1, after=1)
        with pytest.raises(ValueError, match="last cannot be combined"):
            await session.messages(last=1, limit=1)
        with pytest.raises(ValueError, match="window cannot be combined"):
            await session.messages(last=1, window=Window(max_messages=1))

    @clause(12)
    async def test_an_absent_session_reads_as_empty_and_stays_absent(self, store: Store[ChatMessage]) -> None:
        session = store.session("absent")
        history = await session.messages()
        assert (history, history.seqs, history.tail.seq, history.more) == ([], [], 0, False)
        assert [message async for message in session.stream()] == []
        assert (await session.info(), await session.exists(), await session.count()) == (None, False, 0)
        assert (await session.log("side").messages(), await session.log("side").count()) == ([], 0)
        assert await session.pop() == []
        assert await store.list_sessions() == []

    @clause(12)
    async def test_paging_forward_does_not_drift_while_messages_arrive(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user(f"message {number}") for number in range(23)])
        seen, place, arrived = list[str](), None, 23
        while True:
            page = await session.messages(after=place, limit=5)
            seen += texts(page)
            if not page.more:
                break
            assert len(page) == 5
            place = page.end
            if arrived < 30:
                await session.append([ChatMessage.user(f"message {arrived}")])
                arrived += 1
        assert seen == [f"message {number}" for number in range(arrived)]

    @clause(12)
    async def test_paging_backward_does_not_drift_while_messages_arrive(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user(f"message {number}") for number in range(23)])
        page = await session.messages(last=5)
        seen = texts(page)
        while page.more:
            await session.append([ChatMessage.user("arrived"), ChatMessage.assistant("meanwhile")])
            page = await session.messages(before=page.start, limit=5)
            seen = texts(page) + seen
        assert seen == [f"message {number}" for number in range(23)]

    @clause(12)
    async def test_paging_goes_on_behind_its_place_while_the_beginning_is_trimmed(self, opened: Opener) -> None:
        session, trimming = opened().session("s"), opened(max_messages=20).session("s")
        for number in range(10):
            await session.append(turn(number))
        page = await session.messages(limit=4)
        seen = page.seqs
        for number in range(10, 14):
            await trimming.append(turn(number))
        while page.more:
            page = await session.messages(after=page.end, limit=4)
            seen += page.seqs
        assert seen == [1, 2, 3, 4, *range(9, 29)]

    @clause(12)
    async def test_both_cursors_are_exclusive_and_their_text_is_a_place_too(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user(f"{number}") for number in range(1, 8)])
        assert (await session.messages(after=2, before=6)).seqs == [3, 4, 5]
        assert (await session.messages(after=2, before=6, limit=2)).seqs == [3, 4]
        assert (await session.messages(before=6, limit=2)).seqs == [4, 5]
        assert (await session.messages(after=7)).seqs == []
        assert (await session.messages(after=1000)).seqs == []
        assert (await session.messages(before=1)).seqs == []
        history = await session.messages(limit=3)
        again = type(history.end).parse(str(history.end))
        assert (await session.messages(after=again, limit=1)).seqs == [4]

    @clause(12)
    async def test_stream_gives_every_message_once_in_order(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        expected = [f"message {number}" for number in range(1203)]
        for start in range(0, 1203, 401):
            await session.append([ChatMessage.user(text) for text in expected[start : start + 401]])
        assert [message.text async for message in session.stream()] == expected
        assert [message.text async for message in session.stream(after=700)] == expected[700:]
        assert [message.text async for message in session.stream(after=1203)] == []
        await session.replace_prefix(600, [])
        assert [message.text async for message in session.stream()] == expected[600:]

    @clause(12)
    async def test_stream_does_not_drift_while_messages_arrive(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user(f"message {number}") for number in range(1100)])
        seen = list[str]()
        async for message in session.stream():
            seen.append(message.text)
            if len(seen) in (1, 700, 1099):
                await session.append([ChatMessage.user(f"message {1100 + (len(seen) > 1) + (len(seen) > 700)}")])
        assert seen[:1100] == [f"message {number}" for number in range(1100)]
        assert seen == [f"message {number}" for number in range(len(seen))]

    @clause(12)
    async def test_no_cap_is_hidden_anywhere(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        for start in range(0, 2400, 600):
            await session.append([ChatMessage.user(f"{number}") for number in range(start, start + 600)])
        for number in range(120):
            await session.log(f"log {number}").append([ChatMessage.user("first")])
        assert texts(await session.messages()) == [f"{number}" for number in range(2400)]
        assert texts(await session.messages(last=2300)) == [f"{number}" for number in range(100, 2400)]
        assert texts(await session.messages(limit=2300)) == [f"{number}" for number in range(2300)]
        assert len(await session.messages(window=Window(max_messages=2399))) == 2399
        info = await session.info()
        assert info is not None
        assert len(info.logs) == 121
        for number in range(249):
            await store.session(f"session {number:03}").state.set("k", number)
        listed = [each.id async for each in store.iter_sessions()]
        assert sorted(listed) == ["s", *(f"session {number:03}" for number in range(249))]
        assert len(await store.list_sessions(limit=250)) == 250

    @clause(12)
    async def test_info_exists_and_count_say_what_is_there(self, store: Store[ChatMessage]) -> None:
        session = store.scoped(tenant="acme", user="alice").session("s")
        await session.append(turn(1), batch_id="one")
        first = await session.info()
        await session.log("side").append([*turn(2), *turn(3)])
        await session.append(turn(4))
        await session.pop()
        info = await session.info()
        assert first is not None
        assert info is not None
        assert (info.id, tuple(info.scope), info.life) == ("s", (None, "acme", "alice"), first.life)
        assert (info.messages, await session.count(), await session.exists()) == (3, 3, True)
        assert await session.log("side").count() == 4
        assert {name: (log.tail.seq, log.size) for name, log in info.logs.items()} == {"": (3, 3), "side": (4, 4)}
        assert info.logs[""].tail == (await session.messages()).tail
        assert info.created_at == first.created_at <= first.updated_at <= info.updated_at
        assert info.created_at.tzinfo is info.updated_at.tzinfo is UTC
        assert info.updated_at - info.created_at < timedelta(hours=1)
        assert (info.title, info.metadata, info.service_session_id, info.expires_at) == (None, {}, None, None)

    @clause(12)
    async def test_the_main_log_and_named_ones_are_read_apart(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))
        await session.log("a").append(turn(2))
        await session.log("a/b").append(turn(3))
        assert await session.messages() == turn(1)
        assert await session.log("a").messages() == turn(2)
        assert await session.log("a/b").messages(last=1) == turn(3)[-1:]
        assert await session.log("b").messages() == []
        await session.log("a").clear()
        assert (await session.messages(), await session.log("a/b").messages()) == (turn(1), turn(3))

    @clause(13)
    @pytest.mark.parametrize("seed", range(4))
    async def test_a_window_is_the_longest_end_that_fits_and_starts_a_turn(
        self, store: Store[ChatMessage], seed: int
    ) -> None:
        chance = random.Random(seed)  # noqa: S311 - the same logs in every run
        session = store.session("s")
        log = _conversation(chance, 140)
        await session.append(log)

        def size(message: ChatMessage) -> int:
            return len(message.text)

        for _ in range(40):
            window: Window[ChatMessage] = Window(
                max_messages=chance.choice([None, 0, 1, 5, 12, 60, 140, 500]),
                max_tokens=chance.choice([0, 40, 150, 700, 2500, 100_000]),
                count=size,
            )
            expected = _longest_fitting(log, window, size)
            if expected is None:
                with pytest.raises(WindowError):
                    await session.messages(window=window)
            else:
                history = await session.messages(window=window)
                assert history == expected
                assert history.seqs == list(range(141 - len(expected), 141))
                assert history.more is (len(expected) < 140)

    @clause(13)
    async def test_a_window_reaches_over_many_pages(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        for start in range(0, 900, 300):
            await session.append([message for number in range(start, start + 300) for message in turn(number)])
        history = await session.messages(window=Window(max_messages=1301))
        assert history == [message for number in range(250, 900) for message in turn(number)]
        history = await session.messages(window=Window(max_tokens=1301, count=lambda message: 1))
        assert len(history) == 1300
        assert await session.messages(window=Window(max_tokens=1, count=lambda message: 0)) == await session.messages()

    @clause(13)
    async def test_a_system_message_at_the_beginning_hides_no_cut_pair(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([ChatMessage.system("be brief"), *turn(1, tools=2), *turn(2, tools=1)])
        for most in range(4, 10):
            history = await session.messages(window=Window(max_messages=most))
            assert history == turn(2, tools=1)
        assert len(await session.messages(window=Window(max_messages=10))) == 10
        assert len(await session.messages(window=Window(max_messages=11))) == 11

    @clause(13)
    async def test_no_window_begins_with_a_tools_result_in_the_role_of_a_user(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([*turn(1), *turn_of_parts(2)])
        assert await session.messages(window=Window(max_messages=5)) == turn_of_parts(2)
        assert await session.messages(window=Window(max_messages=2, overflow="keep")) == turn_of_parts(2)

    @clause(13)
    async def test_a_newest_turn_over_the_budget_is_an_error_or_what_overflow_says(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append([*turn(1), *turn(2, tools=4)])
        with pytest.raises(WindowError, match="does not fit"):
            await session.messages(window=Window(max_messages=3))
        assert await session.messages(window=Window(max_messages=3, overflow="keep")) == turn(2, tools=4)
        assert await session.messages(window=Window(max_messages=3, overflow="empty")) == []
        assert await session.messages(window=Window(max_messages=0)) == []
        assert await store.session("absent").messages(window=Window(max_messages=3)) == []

    @clause(13)
    async def test_without_a_count_of_the_callers_own_tokens_are_estimated(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append([*turn(1), *turn(2), *turn(3)])
        budget = sum(map(estimate_tokens, [*turn(2), *turn(3)]))
        assert await session.messages(window=Window(max_tokens=budget)) == [*turn(2), *turn(3)]
        assert await session.messages(window=Window(max_tokens=budget - 1)) == turn(3)

    @clause(13)
    async def test_reducers_run_in_order_before_the_cut_and_leave_the_log_as_it_is(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        stored = [*turn(1, tools=1), *turn(2, tools=1), *turn(3)]
        await session.append(stored)

        def summary(older: list[ChatMessage]) -> ChatMessage:
            return ChatMessage.user("so far: " + ", ".join(texts(older)))

        def loud(messages: list[ChatMessage], codec: MessageCodec[ChatMessage]) -> list[ChatMessage]:
            return [ChatMessage(message.role, message.text.upper()) for message in messages]

        async def without_the_first(messages: list[ChatMessage], codec: MessageCodec[ChatMessage]) -> list[ChatMessage]:
            return messages[1:]

        dropped = await session.messages(window=Window(reducers=[drop_tool_bodies(keep_last=1)]))
        assert [message.text for message in dropped if message.role == "tool"] == ["[dropped]", "result 2.0"]
        assert [message.role for message in dropped] == [message.role for message in stored]
        shorter = await session.messages(
            window=Window(max_messages=3, reducers=[drop_tool_bodies(keep_last=0), summarise(summary, 1), loud])
        )
        assert texts(shorter) == [
            "SO FAR: QUESTION 1, , [DROPPED], ANSWER 1, QUESTION 2, , [DROPPED], ANSWER 2",
            "QUESTION 3",
            "ANSWER 3",
        ]
        kept = await session.messages(window=Window(max_messages=2, reducers=[loud, without_the_first]))
        assert texts(kept) == ["QUESTION 3", "ANSWER 3"]
        assert await session.messages() == stored

    @clause(13)
    async def test_what_a_reducer_or_count_raises_reaches_the_caller(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))

        def broken(*given: object) -> Any:
            raise ZeroDivisionError("the caller's own")

        with pytest.raises(ZeroDivisionError):
            await session.messages(window=Window(reducers=[broken]))
        with pytest.raises(ZeroDivisionError):
            await session.messages(window=Window(max_tokens=5, count=broken))

    @clause(14)
    async def test_changing_a_returned_message_changes_nothing_stored(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        original = ChatMessage.user([{"type": "text", "text": "hello"}], metadata={"tags": ["a"], "deep": {"n": 1}})
        before = original.to_dict()
        await session.append([original])
        _spoil(original)
        window: Window[ChatMessage] = Window(max_messages=5)
        for history in (
            await session.messages(),
            await session.messages(last=1),
            await session.messages(window=window),
        ):
            assert history[0].data == before
            _spoil(history[0])
            history.clear()
        async for message in session.stream():
            assert message.data == before
            _spoil(message)
        assert [message.data for message in await session.messages()] == [before]
        popped = await session.pop()
        assert popped[0].data == before

    @clause(14)
    async def test_changing_a_returned_value_changes_nothing_stored(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        value: dict[str, Any] = {"list": [1, {"deep": [2]}]}
        service = {"conversation": {"id": "c-1"}}
        await session.state.set("k", value)
        await session.update(title="t", metadata={"m": value}, service_session_id=service)
        value["list"].append(3)
        service["conversation"]["id"] = "changed"
        expected = {"list": [1, {"deep": [2]}]}

        async def returned() -> list[Any]:
            info = await session.info()
            snapshot = await session.snapshot()
            (listed,) = await store.list_sessions()
            assert info is not None
            info.logs.clear()
            assert info.service_session_id == snapshot.service_session_id == {"conversation": {"id": "c-1"}}
            entry = await session.state.entry("k")
            assert entry is not None
            return [
                await session.state.get("k"),
                entry.value,
                (await session.state.items())["k"],
                info.metadata["m"],
                listed.metadata["m"],
                snapshot.state["k"],
                snapshot.metadata["m"],
            ]

        for each in await returned():
            assert each == expected
            each["list"][1]["deep"].append("spoilt")
            each["more"] = True
        assert await returned() == [expected] * 7

    @clause(12)
    async def test_numbers_too_large_for_a_database_mean_all_of_it(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))
        for large in (2**31, 2**63 - 1, 2**63, 10**30):
            assert len(await session.messages(last=large)) == 2
            assert len(await session.messages(limit=large)) == 2
            assert len(await session.messages(before=large)) == 2
            assert await session.messages(after=large) == []
            assert len(await store.list_sessions(limit=large)) == 1
            assert await session.truncate_after(large) == 0
            with pytest.raises(ValueError, match="beyond"):
                await session.replace_prefix(large)
            with pytest.raises(MessageNotFoundError):
                await session.redact(large)
        assert len(await session.pop(10**30)) == 2


def _conversation(chance: random.Random, size: int) -> list[ChatMessage]:
    """Turns of various length with tool calls, behind two messages that belong to none."""
    messages = [ChatMessage.system("s" * 30), ChatMessage.assistant("a" * 20)]
    while len(messages) < size:
        for message in turn(len(messages), tools=chance.choice([0, 0, 1, 2, 5])):
            padded = message.to_dict()
            padded["content"] = message.text + "." * chance.randint(0, 60)
            messages.append(ChatMessage.from_dict(padded))
    return messages[:size]


def _longest_fitting(
    log: list[ChatMessage], window: Window[ChatMessage], size: Callable[[ChatMessage], int]
) -> list[ChatMessage] | None:
    """What the window must be, found by trying every place; None where no turn fits."""
    if window.max_messages == 0 or window.max_tokens == 0:
        return []
    for start, message in enumerate(log):
        rest = log[start:]
        starts = start == 0 or message.role == "user"
        few = window.max_messages is None or len(rest) <= window.max_messages
        if starts and few and (window.max_tokens is None or sum(map(size, rest)) <= window.max_tokens):
            return rest
    return None


def _spoil(message: ChatMessage) -> None:
    message.data["metadata"]["tags"].append("spoilt")
    message.data["metadata"]["deep"]["n"] = 2
    message.data["content"][0]["text"] = "spoilt"
    message.data["role"] = "spoilt"
