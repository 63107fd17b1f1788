"""Clauses 27 and 28: edit, regenerate and branch, and the lease that guards a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from chatkeep import ChatMessage, ConflictError, MessageNotFoundError, Session, SessionSnapshot, Store
from chatkeep.errors import DuplicateIdError, FencedError, InvalidIdError, LeaseHeldError
from chatkeep.records import Key, LeaseOp, Scope, Write

from .clauses import clause
from .harness import Harness, Opener, commit_raw, texts, turn

Act = Callable[[], Awaitable[object]]
CARD = "4929-1234-5678-9012"


def say(*said: str) -> list[ChatMessage]:
    """One user's message per text."""
    return [ChatMessage.user(text) for text in said]


class Editing(Harness):
    """What a chat's "edit", "regenerate" and "branch" need, and leases."""

    # 27: truncate_after

    @clause(27)
    async def test_truncate_after_takes_out_everything_behind_a_place(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        await session.append(say("a", "b", "c", "d", "e"))
        assert await session.truncate_after(3) == 2
        history = await other.messages()
        assert (texts(history), history.tail.seq) == (["a", "b", "c"], 3)
        assert await session.truncate_after(3) == 0
        assert await session.truncate_after(100) == 0
        assert list((await session.append(say("f"))).seqs) == [6], "a seq was given out twice"
        assert await session.truncate_after((await session.messages(limit=1)).end) == 3
        assert texts(await other.messages()) == ["a"]
        assert await session.truncate_after(0) == 1
        assert (await other.messages()).tail.seq == 0
        assert await opened().session("absent").truncate_after(0) == 0
        for wrong in (-1, True, 1.5, "1"):
            with pytest.raises((ValueError, TypeError)):
                await session.truncate_after(wrong)  # type: ignore[arg-type]

    @clause(27)
    async def test_truncate_after_takes_whole_batches_of_those_who_append_meanwhile(self, opened: Opener) -> None:
        writer, editor, reader = opened().session("s"), opened().session("s"), opened().session("s")
        await writer.append(say("keep 1", "keep 2"))
        working = True

        async def write() -> None:
            for number in range(40):
                await writer.append(say(f"{number}/0", f"{number}/1", f"{number}/2"))

        async def edit() -> None:
            for _ in range(20):
                await editor.truncate_after(2)
                await asyncio.sleep(0)

        async def read() -> None:
            while working:
                said = texts(await reader.messages())[2:]
                assert len(said) % 3 == 0, "part of a batch is gone"
                await asyncio.sleep(0)

        reading = asyncio.create_task(read())
        await asyncio.gather(write(), edit())
        working = False
        await reading
        found = await editor.messages()
        assert texts(found)[:2] == ["keep 1", "keep 2"]
        rest = texts(found)[2:]
        first = 40 - len(rest) // 3
        assert rest == [f"{number}/{place}" for number in range(first, 40) for place in range(3)]
        await editor.truncate_after(2)
        assert texts(await writer.messages()) == ["keep 1", "keep 2"]

    @clause(27)
    async def test_an_answer_is_regenerated_by_truncating_behind_the_question(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(turn(1))
        asked = await session.append([ChatMessage.user("question 2")])
        await session.append([ChatMessage.assistant("first answer")])
        await session.truncate_after(asked.tail)
        await session.append([ChatMessage.assistant("second answer")], expected_tail=asked.tail)
        assert texts(await session.messages()) == ["question 1", "answer 1", "question 2", "second answer"]

    # 27: replace

    @clause(27)
    async def test_replace_puts_a_message_in_the_place_of_another(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        await session.append([ChatMessage.user("a", id="a"), ChatMessage.assistant("b"), *say("c")])
        before = (await session.records()).records
        await session.replace(1, ChatMessage.user("edited a"))
        await session.replace((await session.messages(limit=2)).end, ChatMessage.assistant("edited b", id="b"))
        history = await other.messages()
        assert (texts(history), history.seqs) == (["edited a", "edited b", "c"], [1, 2, 3])
        after = (await session.records()).records
        assert [record.created_at for record in after] == [record.created_at for record in before]
        assert [record.id for record in after] == ["a", "b", None]
        assert await session.count() == 3
        assert (await session.append([ChatMessage.user("x", id="a"), ChatMessage.user("y", id="b")])).added == 0

    @clause(27)
    async def test_an_edit_may_change_whether_a_turn_starts(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(say("a", "b"))
        await session.replace(2, ChatMessage.assistant("b"))
        assert [(record.role, record.starts_turn) for record in (await session.records()).records] == [
            ("user", True),
            ("assistant", False),
        ]

    @clause(27)
    async def test_an_edit_may_give_a_message_another_id_which_is_known_from_then_on(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append([ChatMessage.user("a", id="a"), ChatMessage.user("b", id="b")])
        await session.replace(1, ChatMessage.user("c", id="c"))
        assert (await session.append([ChatMessage.user("c", id="c")])).added == 0
        with pytest.raises(DuplicateIdError):
            await session.replace(1, ChatMessage.user("x", id="b"))
        assert texts(await session.messages()) == ["c", "b"]
        assert (await session.append([ChatMessage.user("a again", id="a")])).added == 1

    @clause(27)
    async def test_what_is_not_there_cannot_be_edited(self, opened: Opener) -> None:
        session = opened(max_messages=3).session("s")
        await session.append(say("a", "b", "c", "d", "e"))
        await session.pop()
        for seq in (1, 2, 5, 6, 1000):
            for edit in (session.replace(seq, ChatMessage.user("x")), session.redact(seq)):
                with pytest.raises(MessageNotFoundError):
                    await edit
        absent = opened().session("absent")
        with pytest.raises(MessageNotFoundError):
            await absent.redact(1)
        assert not await absent.exists()
        assert texts(await session.messages()) == ["c", "d"]

    @clause(27)
    @pytest.mark.parametrize("wrong", [None, 0, -1, True, 1.0, "1"])
    async def test_what_is_no_position_is_refused_and_nothing_is_changed(
        self, store: Store[ChatMessage], wrong: Any
    ) -> None:
        session = store.session("s")
        await session.append(say("a", "b"))
        edits: list[Callable[[], Awaitable[Any]]] = [
            lambda: session.replace(wrong, ChatMessage.user("x")),
            lambda: session.redact(wrong),
        ]
        if wrong != 0:  # which is the place before the first message
            edits += [lambda: session.truncate_after(wrong), lambda: session.replace_prefix(wrong, [])]
        for edit in edits:
            with pytest.raises(
                ValueError, match=r"a position is a Cursor or an int of . or more \(see history\.seqs\)"
            ):
                await edit()
        assert texts(await session.messages()) == ["a", "b"]

    @clause(27)
    async def test_an_edit_is_seen_whole_or_not_at_all_and_moves_nothing(self, opened: Opener) -> None:
        editor, writer, reader = opened().session("s"), opened().session("s"), opened().session("s")
        await editor.append(say("edit 0", "b"))
        working = True

        async def edit() -> None:
            for number in range(1, 30):
                await editor.replace(1, ChatMessage.user(f"edit {number}"))

        async def write() -> None:
            for number in range(30):
                await writer.append(say(f"more {number}"))

        async def read() -> None:
            newest = 0
            while working:
                seen = texts(await reader.messages())
                number = int(seen[0].removeprefix("edit "))
                assert number >= newest, "an edit came back"
                assert seen[1:] == ["b", *(f"more {place}" for place in range(len(seen) - 2))]
                newest = number
                await asyncio.sleep(0)

        reading = asyncio.create_task(read())
        await asyncio.gather(edit(), write())
        working = False
        await reading
        assert texts(await reader.messages())[:2] == ["edit 29", "b"]
        assert await reader.count() == 32

    # 27: redact

    @clause(27)
    async def test_redact_leaves_nothing_of_what_was_said_and_all_that_links_calls_to_results(
        self, opened: Opener
    ) -> None:
        session = opened(store_text=True).session("s")
        call = {"id": "call-1", "name": "charge", "arguments": f'{{"card": "{CARD}"}}'}
        await session.append(
            [
                ChatMessage.user(f"my card is {CARD}", id="q", metadata={"card": CARD}),
                ChatMessage.assistant(f"I charge {CARD}", tool_calls=[call]),
                ChatMessage.tool(f"charged {CARD}", tool_call_id="call-1", name="charge"),
                ChatMessage.user([{"type": "text", "text": CARD}]),
            ]
        )
        before = (await session.records()).records
        for seq in (1, 2, 3, 4):
            await session.redact(seq)
        after = (await opened().session("s").records()).records
        for record in after:
            assert CARD.encode() not in record.payload
            assert CARD not in (record.text or "")
        kept = [(record.seq, record.id, record.role, record.starts_turn, record.created_at) for record in after]
        assert kept == [(old.seq, old.id, old.role, old.starts_turn, old.created_at) for old in before]
        asked, called, answered, parts = await session.messages()
        assert (asked.text, parts.text) == ("[redacted]", "[redacted]")
        assert [(each.id, each.name) for each in called.tool_calls] == [("call-1", "charge")]
        assert (answered.tool_call_id, answered.text) == ("call-1", "[redacted]")

    @clause(5, 27)
    async def test_what_was_redacted_does_not_come_back_when_it_is_sent_again(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        message = ChatMessage.user(CARD, id="q")
        await session.append([message], batch_id="x")
        await session.redact(1, "gone")
        assert (await session.append([message])).added == 0
        assert (await session.append([message], batch_id="x")).added in (0, 1)
        assert texts(await session.messages()) == ["gone"]

    @clause(27)
    async def test_a_message_that_changes_between_reading_and_redacting_is_redacted_as_it_is_then(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, other = opened(), opened().session("s")
        await other.append(say(CARD, CARD))
        read = store.backend.read
        meanwhile: list[Act] = [lambda: other.replace(1, ChatMessage.assistant(f"my card is {CARD}"))]

        async def read_and_be_overtaken(*args: Any) -> Any:
            page = await read(*args)
            if meanwhile:
                await meanwhile.pop()()
            return page

        monkeypatch.setattr(store.backend, "read", read_and_be_overtaken)
        await store.session("s").redact(1)
        (found,) = await other.messages(limit=1)
        assert (found.role, found.text) == ("assistant", "[redacted]")
        meanwhile.append(other.pop)
        with pytest.raises(MessageNotFoundError):
            await store.session("s").replace(2, ChatMessage.user("edited"))
        assert (await other.messages()).seqs == [1]

    @clause(27)
    async def test_redacting_and_editing_at_once_each_take_effect(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]
        await sessions[0].append([ChatMessage.user(CARD, id="q")])

        async def act(number: int) -> None:
            if number % 2:
                await sessions[number % 2].redact(1)
            else:
                await sessions[number % 2].replace(1, ChatMessage.user(f"edit {number}"))

        await asyncio.gather(*(act(number) for number in range(10)))
        (found,) = await sessions[0].messages()
        assert found.id == "q"
        assert found.text == "[redacted]" or found.text.startswith("edit ")
        await sessions[1].redact(1)
        assert texts(await sessions[0].messages()) == ["[redacted]"]

    @clause(27)
    async def test_editing_works_in_further_logs_and_touches_no_other(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        aside = session.log("aside")
        for log in (session, aside):
            await log.append(say("a", "b", "c"))
        await aside.replace(1, ChatMessage.user("edited"))
        await aside.redact(2)
        await aside.truncate_after(2)
        assert texts(await aside.messages()) == ["edited", "[redacted]"]
        assert texts(await session.messages()) == ["a", "b", "c"]

    # 27: fork

    @clause(27)
    async def test_a_fork_begins_with_the_messages_up_to_a_place(self, opened: Opener) -> None:
        scope = opened().scoped(tenant="acme", user="alice")
        session = scope.session("s")
        await session.append([ChatMessage.user("a", id="a"), *say("b", "c", "d")])
        await session.pop()
        whole = await session.fork("whole")
        half = await session.fork("half", upto=2)
        cursor = await session.fork("cursor", upto=(await session.messages(limit=1)).end)
        nothing = await session.fork("nothing", upto=0)
        found = {
            fork.id: texts(await opened().scoped(tenant="acme", user="alice").session(fork.id).messages())
            for fork in (whole, half, cursor, nothing)
        }
        assert found == {"whole": ["a", "b", "c"], "half": ["a", "b"], "cursor": ["a"], "nothing": []}
        assert await nothing.exists()
        assert half.scope == session.scope
        assert texts(await session.messages()) == ["a", "b", "c"]
        origin, copy = (await session.records()).records, (await whole.records()).records
        assert [each._replace(seq=0) for each in copy] == [each._replace(seq=0) for each in origin]
        assert (await whole.append([ChatMessage.user("a", id="a")])).added == 0

    @clause(27)
    async def test_a_fork_brings_title_and_metadata_and_not_state_logs_or_service_id(
        self, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")
        await session.append(say("a", "b"))
        await session.log("aside").append(say("x"))
        await session.state.set("k", 1)
        await session.update(title="Bag", metadata={"topic": "bags"}, service_session_id="resp_1")
        fork = await session.fork("branch", upto=1)
        info, origin = await fork.info(), await session.info()
        assert info is not None
        assert origin is not None
        assert info.title == "Bag"
        assert info.metadata == {"topic": "bags", "forked_from": {"session": "s", "seq": 1}}
        assert (info.service_session_id, set(info.logs)) == (None, {""})
        assert await fork.state.keys() == []
        assert (origin.metadata, origin.service_session_id) == ({"topic": "bags"}, "resp_1")
        assert info.life != origin.life

    @clause(27)
    async def test_fork_and_origin_go_their_own_ways(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(say("a", "b"))
        fork = await session.fork("branch")
        await fork.append(say("c"))
        await fork.redact(1)
        await session.replace(2, ChatMessage.user("edited"))
        assert texts(await session.messages()) == ["a", "edited"]
        assert texts(await fork.messages()) == ["[redacted]", "b", "c"]
        await session.delete()
        assert await fork.count() == 3

    @clause(27)
    async def test_a_fork_begins_a_session_and_never_joins_one(self, opened: Opener) -> None:
        store, other = opened(), opened()
        session = store.session("s")
        await session.append(say("a"))
        await store.session("taken").append(say("mine"))
        await store.session("stateful").state.set("k", 1)
        for wrong in ("taken", "stateful", "s"):
            with pytest.raises(ConflictError):
                await session.fork(wrong)
        assert texts(await store.session("taken").messages()) == ["mine"]
        assert await store.session("stateful").count() == 0
        for id in ("", 7, None):
            with pytest.raises(InvalidIdError):
                await session.fork(id)  # type: ignore[arg-type]
        with pytest.raises(MessageNotFoundError):
            await store.session("absent").fork("new")
        assert not await store.session("new").exists()
        answers = await asyncio.gather(
            *(each.session("s").fork("branch") for each in (store, other) * 5), return_exceptions=True
        )
        assert sum(isinstance(answer, Session) for answer in answers) == 1
        assert sum(isinstance(answer, ConflictError) for answer in answers) == 9
        assert texts(await store.session("branch").messages()) == ["a"]

    @clause(27)
    async def test_a_fork_made_while_messages_arrive_ends_at_a_batch(self, opened: Opener) -> None:
        writer, forker = opened().session("s"), opened().session("s")
        await writer.append(say("0/0", "0/1", "0/2"))

        async def write() -> None:
            for number in range(1, 30):
                await writer.append(say(f"{number}/0", f"{number}/1", f"{number}/2"))

        async def fork() -> None:
            for number in range(10):
                found = texts(await (await forker.fork(f"branch {number}")).messages())
                assert found == [f"{place // 3}/{place % 3}" for place in range(len(found))]
                assert len(found) % 3 == 0, "a fork has part of a batch"

        await asyncio.gather(write(), fork())

    # 28: leases

    @clause(28)
    async def test_a_lease_has_one_holder_at_a_time(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        async with session.lease(ttl=60 * self.tick) as guarded:
            await guarded.append(say("guarded"))
            for contender in (other, session):
                with pytest.raises(LeaseHeldError):
                    async with contender.lease():
                        pytest.fail("a second holder")
            async with opened().session("another").lease():
                pass
        async with other.lease() as guarded:
            await guarded.append(say("next"))
        assert texts(await session.messages()) == ["guarded", "next"]

    @clause(28)
    async def test_of_many_who_ask_at_once_one_gets_the_lease(self, opened: Opener) -> None:
        sessions = [opened().session("s"), opened().session("s")]
        leases = [sessions[number % 2].lease(ttl=60 * self.tick) for number in range(10)]
        answers = await asyncio.gather(*(lease.__aenter__() for lease in leases), return_exceptions=True)
        assert sum(isinstance(answer, LeaseHeldError) for answer in answers) == 9

    @clause(28)
    async def test_who_waits_gets_the_lease_when_it_is_given_back(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        inside = 0

        async def work(number: int) -> None:
            nonlocal inside
            async with (session, other)[number % 2].lease(ttl=60 * self.tick, wait=60) as guarded:
                inside += 1
                assert inside == 1, "two holders at once"
                await guarded.append(say(str(number)))
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(work(number) for number in range(5)))
        assert sorted(texts(await session.messages())) == ["0", "1", "2", "3", "4"]

    @clause(28)
    async def test_a_lease_is_given_back_when_its_work_fails(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        with pytest.raises(KeyError):
            async with session.lease(ttl=60 * self.tick):
                raise KeyError("the work failed")
        async with session.lease():
            pass

    @clause(28)
    @pytest.mark.parametrize("cancellations", [1, 2])
    async def test_cancelled_while_entering_a_lease_is_given_back_first(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch, cancellations: int
    ) -> None:
        store, other = opened(), opened().session("s")
        lease = store.session("s").lease(ttl=60 * self.tick)
        commit = store.backend.commit
        sent = 0

        async def commit_and_be_cancelled(key: Key, write: Write) -> Any:
            nonlocal sent
            outcome = await commit(key, write)
            sent += 1
            if sent <= cancellations:
                entering.cancel()
            return outcome

        monkeypatch.setattr(store.backend, "commit", commit_and_be_cancelled)
        entering = asyncio.ensure_future(lease.__aenter__())
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert sent == 2
        async with other.lease() as guarded:
            await guarded.append(say("x"))

    @clause(28)
    async def test_cancelled_while_waiting_for_a_lease_nothing_is_taken_from_its_holder(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        holding = session.lease(ttl=60 * self.tick)
        async with holding:
            for moment in range(8):
                entering = asyncio.ensure_future(other.lease(wait=60).__aenter__())
                await asyncio.sleep(moment / 200)
                entering.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await entering
            with pytest.raises(LeaseHeldError):
                await other.lease().__aenter__()
            await holding.renew()

    @clause(28)
    async def test_whose_lease_ran_out_may_write_until_somebody_else_has_it_and_never_after(
        self, opened: Opener
    ) -> None:
        first, second = opened(), opened()
        lease = first.session("s").lease(ttl=2 * self.tick)
        async with lease as late:
            await late.append(say("in time"))
            for store in (first, second):
                await self.pass_time(store, 3 * self.tick)
            await late.append(say("late, and nobody minds"))
            async with second.session("s").lease(ttl=60 * self.tick) as holder:
                await holder.append(say("the new holder"))
                for name, call in guarded_writes(late).items():
                    try:
                        await call()
                    except FencedError:
                        continue
                    pytest.fail(f"{name} under an old token was not refused")
                with pytest.raises(FencedError):
                    await lease.renew()
                await holder.state.set("k", "holder")
            for call in (lambda: late.append(say("x")), lease.renew):
                with pytest.raises(FencedError):
                    await call()
            assert texts(await second.session("s").messages()) == [
                "in time",
                "late, and nobody minds",
                "the new holder",
            ]
            assert await second.session("s").state.items() == {"k": "holder"}
        async with second.session("s").lease():
            pass

    @clause(28)
    async def test_who_had_the_lease_writes_nothing_behind_what_the_next_holder_writes(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")

        async def write_late(former: Session[ChatMessage], turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            with suppress(FencedError):
                await former.append(say("late"))

        async def take_over() -> None:
            async with other.lease(ttl=60 * self.tick) as holder:
                await holder.append(say("holder"))

        for turns in range(10):
            async with session.lease(ttl=60 * self.tick) as former:
                await former.append(say("former"))
            await asyncio.gather(take_over(), *(write_late(former, turns) for _ in range(3)))
            assert texts(await session.messages(last=1)) == ["holder"]

    @clause(28)
    async def test_giving_back_late_takes_nothing_from_the_new_holder(self, opened: Opener) -> None:
        first, second = opened(), opened()
        async with first.session("s").lease(ttl=2 * self.tick):
            for store in (first, second):
                await self.pass_time(store, 3 * self.tick)
            holding = second.session("s").lease(ttl=60 * self.tick)
            await holding.__aenter__()
        with pytest.raises(LeaseHeldError):
            async with first.session("s").lease():
                pass
        await holding.renew()
        await holding.__aexit__(None, None, None)

    @clause(28)
    async def test_only_its_holder_gives_a_lease_back(self, opened: Opener) -> None:
        store = opened()
        key = Key(Scope(), "s")
        async with store.session("s").lease(ttl=60 * self.tick):
            await commit_raw(store, key, Write(b"somebody else: 1", lease=LeaseOp("somebody else", 0)))
            with pytest.raises(LeaseHeldError):
                await commit_raw(store, key, Write(b"somebody else: 2", lease=LeaseOp("somebody else", 30)))

    @clause(28)
    async def test_renewing_keeps_the_lease_beyond_its_first_time(self, opened: Opener) -> None:
        first, second = opened(), opened()
        lease = first.session("s").lease(ttl=3 * self.tick)
        async with lease as guarded:
            for _ in range(2):
                for store in (first, second):
                    if store is first or store.backend is not first.backend:
                        await self.pass_time(store, 2 * self.tick)
                await lease.renew()
            with pytest.raises(LeaseHeldError):
                async with second.session("s").lease():
                    pass
            await guarded.append(say("still mine"))
        with pytest.raises(RuntimeError):
            await lease.renew()

    @clause(28)
    async def test_a_guarded_write_is_refused_in_another_life(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        async with session.lease(ttl=60 * self.tick) as guarded:
            await guarded.append(say("a"))
            await other.delete()
            for again in (False, True):
                if again:
                    await other.append(say("new"))
                for name, call in guarded_writes(guarded).items():
                    try:
                        await call()
                    except ConflictError:
                        continue
                    pytest.fail(f"{name} went into a life that the lease does not know")
        assert texts(await other.messages()) == ["new"]
        assert await other.state.keys() == []

    @clause(28)
    async def test_a_lease_is_optional_and_hinders_nobody_who_does_not_ask(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        async with session.lease(ttl=60 * self.tick) as guarded:
            await other.append(say("unguarded"))
            await other.state.set("k", 1)
            await guarded.append(say("guarded"))
            assert texts(await guarded.messages()) == ["unguarded", "guarded"]
            assert await guarded.state.get("k") == 1
            assert await guarded.log("aside").append(say("x"))
        wrongs: list[Any] = [0, -1, "0s", "-1s", "soon", None, float("nan")]
        for wrong in wrongs:
            with pytest.raises(ValueError, match="ttl"):
                session.lease(ttl=wrong)
            if wrong not in (0, "0s"):
                with pytest.raises(ValueError, match="wait"):
                    session.lease(wait=wrong)

    @clause(28)
    async def test_a_leases_time_is_a_duration_like_every_other(self, opened: Opener) -> None:
        session, other = opened().session("s"), opened().session("s")
        async with session.lease(ttl="1h", wait="1ms"):
            with pytest.raises(LeaseHeldError):
                await other.lease(ttl=timedelta(hours=1)).__aenter__()

    @clause(27, 23)
    async def test_a_fork_does_not_keep_what_is_redacted_or_erased_meanwhile(
        self, store: Store[ChatMessage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scope = store.scoped(user="alice")
        read = store.backend.read

        async def then(change: Callable[[], Awaitable[object]], *args: Any) -> Any:
            page = await read(*args)
            monkeypatch.setattr(store.backend, "read", read)
            await change()
            return page

        session = scope.session("s")
        for change in (lambda: session.redact(1), scope.erase):
            await session.delete()
            await session.append(say("my card is 4111", "thank you"))
            monkeypatch.setattr(store.backend, "read", lambda *args, change=change: then(change, *args))
            with pytest.raises(ConflictError, match="while it was forked"):
                await session.fork("branch")
            assert not await scope.session("branch").exists()

    @clause(28)
    async def test_a_guarded_deletion_is_refused_in_the_step_that_would_delete(self, store: Store[ChatMessage]) -> None:
        session = store.session("s")
        await session.append(say("a"))
        async with session.lease(ttl=60) as former:
            pass
        async with session.lease(ttl=60) as guarded:
            await guarded.append(say("b"))
            with pytest.raises(FencedError):
                await former.delete()
            assert await session.count() == 2
            assert await guarded.delete()
        assert not await session.exists()


def guarded_writes(session: Session[ChatMessage]) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Everything that writes to a session, by name."""
    return {
        "append": lambda: session.append(say("x")),
        "append to a log": lambda: session.log("aside").append(say("x")),
        "pop": session.pop,
        "truncate_after": lambda: session.truncate_after(0),
        "clear": session.clear,
        "replace_prefix": lambda: session.replace_prefix(1, []),
        "update": lambda: session.update(title="late"),
        "state.set": lambda: session.state.set("k", "late"),
        "state.update": lambda: session.state.update({"k": "late"}),
        "state.delete": lambda: session.state.delete("k"),
        "replace": lambda: session.replace(1, ChatMessage.user("late")),
        "redact": lambda: session.redact(1),
        "restore": lambda: session.restore(SessionSnapshot(session.id, title="late")),
        "delete": session.delete,
    }
