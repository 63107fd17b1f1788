"""Several processes at once on one database."""

from __future__ import annotations

import asyncio
import atexit
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from itertools import groupby
from typing import Any, cast

import pytest
import pytest_asyncio

from chatkeep import ChatMessage, Store

from . import child
from .clauses import clause
from .harness import Harness, Opener

PATIENCE = 100
"""Seconds after which a job is taken to hang."""
SOON = 0.1
"""Seconds from now to the instant at which several processes begin."""


class Process:
    """Another process, which does one job at a time; see `chatkeep.testing.child`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - this package's own program
            [sys.executable, "-P", child.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.busy = False

    def ask(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line that it reports."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the process ended with code {self.process.wait()} in the middle of a job")
        return cast("dict[str, Any]", json.loads(line))

    def wait_until_ready(self) -> Process:
        assert self.answer() == {"ready": True}
        return self

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


AT_ONCE = 4
"""How many processes the tests use."""
started: list[Process] = []
"""Those that wait for jobs, for all tests: starting one takes longer than most jobs."""


@atexit.register
def end_all() -> None:
    """Nobody will come with a job any more."""
    for process in started:
        process.end()


class Work:
    """A job under way in another process. Awaited, it gives the result."""

    def __init__(self, process: Process, **request: Any) -> None:
        self.process = process
        self.events: list[Any] = []
        """What it has reported so far, in order."""
        self._said_something = asyncio.Event()
        process.busy = True
        process.ask(**request)
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> Any:
        while True:
            line = await asyncio.to_thread(self.process.answer)
            self._said_something.set()
            if "event" in line:
                self.events.append(line["event"])
                continue
            if "failed" in line:
                raise AssertionError(f"in another process:\n{line['failed']}")
            self.process.busy = False
            return line["result"]

    async def first_event(self) -> None:
        """Wait until it has reported something, or ended."""
        async with asyncio.timeout(PATIENCE):
            await self._said_something.wait()

    async def _result(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            return await self._task

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    def stop(self) -> Work:
        """Tell a stoppable job to come to its end."""
        self.process.ask()
        return self


Elsewhere = Callable[..., Work]


class Processes(Harness):
    """What holds when several processes use one database."""

    @pytest_asyncio.fixture
    async def elsewhere(self, url: str, reachable: dict[str, Any]) -> AsyncIterator[Elsewhere]:
        """``elsewhere(job, …)`` is a job of `chatkeep.testing.child`, under way in a process that has no other."""
        jobs: list[Work] = []
        new = [Process() for _ in range(AT_ONCE - len(started))]
        started.extend(process.wait_until_ready() for process in new)

        def start(job: str, **fields: Any) -> Work:
            idle = next(process for process in started if not process.busy)
            jobs.append(Work(idle, job=job, url=url, options=reachable, **fields))
            return jobs[-1]

        yield start
        for process in [process for process in started if process.busy]:  # the test or the job has failed
            process.end()
            started.remove(process)
        await asyncio.gather(*(job._task for job in jobs), return_exceptions=True)

    @clause(4, 2)
    async def test_writers_in_several_processes_lose_double_and_interleave_nothing(
        self, elsewhere: Elsewhere, opened: Opener
    ) -> None:
        at = time.time() + SOON
        jobs = [
            elsewhere("append", session="s", writers=[f"{p}-{w}" for w in range(5)], batches=50, at=at)
            for p in range(4)
        ]
        places = _joined(await asyncio.gather(*jobs))
        history = await opened().session("s").messages()
        assert history.seqs == list(range(1, len(history) + 1))
        found = list(zip(history.seqs, [message.text for message in history], strict=True))
        assert batches(found) == [name for name, _ in sorted(places.items(), key=lambda each: each[1])]
        for name, seqs in places.items():
            assert [message.text for message in history[seqs[0] - 1 : seqs[-1]]] == texts_of(name, len(seqs))
        _check_order(batches(found), writers=20, batches=50)

    @clause(1, 3)
    async def test_readers_in_other_processes_see_whole_batches_and_no_hole_that_fills_in(
        self, elsewhere: Elsewhere
    ) -> None:
        readers = [elsewhere("watch", session="s", stoppable=True) for _ in range(2)]
        await asyncio.gather(*(reader.first_event() for reader in readers))
        writers = [elsewhere("append", session="s", writers=[f"{p}-0", f"{p}-1"], batches=25) for p in range(2)]
        places = _joined(await asyncio.gather(*writers))
        for reader in readers:
            changes = await reader.stop()
            assert changes
            seen: list[tuple[int, str]] = []
            for same, further in changes:
                assert same == len(seen), (seen[same:], further)
                seen += [(seq, text) for seq, text in further]
                batches(seen)
            assert [seq for seq, _ in seen] == list(range(1, sum(map(len, places.values())) + 1))

    @clause(9, 1)
    async def test_what_several_processes_append_survives_the_compactions_of_another(
        self, elsewhere: Elsewhere, opened: Opener
    ) -> None:
        helpers = [elsewhere(job, session="s", stoppable=True) for job in ("watch", "compact")]
        await helpers[0].first_event()
        writers = [
            elsewhere("append", session="s", writers=[f"{p}-0", f"{p}-1", f"{p}-2"], batches=60) for p in range(2)
        ]
        places = _joined(await asyncio.gather(*writers))
        await opened().session("s").append([ChatMessage.user("the end.0/0/1")])
        changes, compactions = await asyncio.gather(*(helper.stop() for helper in helpers))
        assert compactions > 0
        history = await opened().session("s").messages()
        surviving = dict(zip(history.seqs, [message.text for message in history], strict=True))
        for name, seqs in places.items():
            if seqs[0] in surviving and surviving[seqs[0]][0] != "{":
                assert [surviving[seq] for seq in seqs] == texts_of(name, len(seqs))
        seen: list[tuple[int, str]] = []
        for same, further in changes:
            seen[same:] = [(seq, text) for seq, text in further]
            numbers = accounted_for(seen)
        assert numbers == {f"{p}-{w}": 60 for p in range(2) for w in range(3)} | {"the end": 1}

    @clause(3, 12, 20, 23)
    async def test_what_another_process_has_written_is_seen_at_once_by_whoever_has_read_before(
        self, elsewhere: Elsewhere, store: Store[ChatMessage]
    ) -> None:
        session = store.session("s")

        async def seen() -> tuple[Any, ...]:
            info, found = await session.info(), await store.find_by_service_id("new")
            return (
                info and (info.messages, info.title, sorted(info.logs)),
                await session.exists(),
                await session.count(),
                [message.text for message in await session.messages(last=2)],
                await session.log("beside").count(),
                await session.state.items(),
                sorted(each.id for each in await store.list_sessions()),
                found and found.id,
            )

        await session.append([ChatMessage.user("old")])
        await session.state.set("key", "old")
        old = ((1, None, [""]), True, 1, ["old"], 0, {"key": "old"}, ["s"], None)
        assert await seen() == old
        await elsewhere("change", session="s")
        added = texts_of("added", 2)
        new = ((3, "new", ["", "beside"]), True, 3, added, 1, {"key": "new"}, ["further", "s"], "s")
        assert await seen() == new
        await elsewhere("delete", session="s")
        assert await seen() == (None, False, 0, [], 0, {}, ["further"], None)
        assert (await session.append([ChatMessage.user("another life")])).seqs == (1,)

    @clause(5)
    async def test_messages_that_several_processes_send_under_the_same_ids_are_stored_once(
        self, elsewhere: Elsewhere, opened: Opener
    ) -> None:
        jobs = [
            elsewhere("append", session="s", writers=["a", "b"], batches=20, ids=True, at=time.time() + SOON)
            for _ in range(4)
        ]
        first, *others = await asyncio.gather(*jobs)
        assert others == [first] * 3
        history = await opened().session("s").messages()
        assert sorted(message.id or "" for message in history) == sorted(
            text for name, seqs in first.items() for text in texts_of(name, len(seqs))
        )

    @clause(6)
    async def test_appends_on_an_expected_tail_are_each_made_on_what_was_read(
        self, elsewhere: Elsewhere, opened: Opener
    ) -> None:
        jobs = [
            elsewhere("append_on_tail", session="s", writer=f"{process}", batches=15, at=time.time() + SOON)
            for process in range(3)
        ]
        await asyncio.gather(*jobs)
        said = [json.loads(message.text) for message in await opened().session("s").messages()]
        assert [length for _, length in said] == list(range(45))
        assert len({name for name, _ in said}) == 45

    @clause(7)
    async def test_what_several_processes_pop_is_handed_out_once(self, elsewhere: Elsewhere, opened: Opener) -> None:
        texts = [str(number) for number in range(120)]
        await opened().session("s").append([ChatMessage.user(text) for text in texts])
        popped = await asyncio.gather(*(elsewhere("pop", session="s", at=time.time() + SOON) for _ in range(4)))
        assert sorted(text for each in popped for text in each) == sorted(texts)

    @clause(20)
    async def test_state_that_several_processes_change_loses_nothing(
        self, elsewhere: Elsewhere, opened: Opener
    ) -> None:
        await asyncio.gather(
            *(elsewhere("add_up", session="s", key="sum", times=15, at=time.time() + SOON) for _ in range(4))
        )
        state = await opened().session("s").state.items()
        assert state.pop("sum") == 60
        assert sorted(state.values()) == sorted([*range(15)] * 4)

    @clause(28)
    async def test_a_lease_is_held_by_one_process_at_a_time(self, elsewhere: Elsewhere, opened: Opener) -> None:
        await asyncio.gather(*(elsewhere("take_turns", session="s", times=4, at=time.time() + SOON) for _ in range(3)))
        said = [message.text.split() for message in await opened().session("s").messages()]
        assert [word for _, word in said] == ["in", "out"] * 12
        assert [name for name, _ in said[::2]] == [name for name, _ in said[1::2]]

    @clause(25, 4)
    @pytest.mark.parametrize("attempt", range(8))
    async def test_a_fresh_database_is_opened_by_several_processes_at_the_same_instant(
        self, elsewhere: Elsewhere, opened: Opener, attempt: int
    ) -> None:
        at = time.time() + SOON
        jobs = [elsewhere("append", session="s", writers=[f"{p}"], batches=2, at=at) for p in range(3)]
        await asyncio.gather(*jobs)
        history = await opened().session("s").messages()
        assert sorted(batches(list(zip(history.seqs, [message.text for message in history], strict=True)))) == sorted(
            f"{process}.{number}" for process in range(3) for number in range(2)
        )

    @clause(23)
    async def test_erasing_while_other_processes_begin_sessions_takes_all_that_was_acknowledged(
        self, elsewhere: Elsewhere, opened: Opener
    ) -> None:
        store, address = opened(), {"tenant": "acme", "user": "alice"}
        scope = store.scoped(**address)
        await store.scoped(tenant="acme", user="bob").session("other").append([ChatMessage.user("stays")])
        jobs = [elsewhere("begin", scope=address, writer=f"{p}", stoppable=True) for p in range(2)]
        await asyncio.gather(*(job.first_event() for job in jobs))  # to import a driver may take longer than to erase
        removed = 0
        for _ in range(12):
            known = [name for job in jobs for name in job.events]
            removed += (await scope.erase()).sessions
            found = {info.id async for info in scope.iter_sessions()}
            assert not found & set(known)
            for name in known[-20:]:
                assert not await scope.session(name).exists()
            await asyncio.sleep(0.01)
        await asyncio.gather(*(job.stop() for job in jobs))
        begun = [name for job in jobs for name in job.events]
        assert begun
        found = {info.id async for info in scope.iter_sessions()}
        assert found == {name for name in begun if await scope.session(name).exists()}
        removed += (await scope.erase()).sessions
        assert removed == len(begun)
        assert await scope.list_sessions() == []
        assert await store.scoped(tenant="acme", user="bob").session("other").count() == 1


def _joined(results: Sequence[dict[str, list[int]]]) -> dict[str, list[int]]:
    return {name: seqs for result in results for name, seqs in result.items()}


def texts_of(name: str, size: int) -> list[str]:
    return [message.text for message in child.batch(name, size)]


def batches(found: list[tuple[int, str]]) -> list[str]:
    """The names of the batches that messages came in, each of which must be whole and in one piece."""
    names = []
    for name, group in groupby(found, key=lambda each: each[1].partition("/")[0]):
        seqs, texts = zip(*group, strict=True)
        assert list(texts) == texts_of(name, len(texts)), "torn, or with something in between"
        assert list(seqs) == list(range(seqs[0], seqs[0] + len(seqs)))
        names.append(name)
    assert len(set(names)) == len(names), "doubled, or with something in between"
    return names


def _check_order(names: list[str], *, writers: int, batches: int) -> None:
    numbers: dict[str, list[int]] = {}
    for name in names:
        writer, _, number = name.rpartition(".")
        numbers.setdefault(writer, []).append(int(number))
    assert list(numbers.values()) == [list(range(batches))] * writers


def accounted_for(found: list[tuple[int, str]]) -> dict[str, int]:
    """How many batches of each writer there are, in a summary or as they were: from the first, none missing."""
    assert [seq for seq, _ in found] == sorted({seq for seq, _ in found})
    counts: dict[str, int] = {}
    if found and found[0][1][0] == "{":
        counts, found = json.loads(found[0][1]), found[1:]
    for name in batches(found):
        writer, _, number = name.rpartition(".")
        assert int(number) == counts.get(writer, 0), f"{name} comes after {counts.get(writer, 0)} batches of {writer}"
        counts[writer] = counts.get(writer, 0) + 1
    return counts
