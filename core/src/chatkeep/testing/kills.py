"""Processes that are killed in the middle of their work."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from chatkeep import ChatMessage
from chatkeep.store import ScopedStore

from .clauses import clause
from .harness import Harness, Opener
from .processes import Process, accounted_for, batches, texts_of

KILLS = int(os.environ.get("CHATKEEP_KILLS", "20"))
"""How many processes are killed."""
TOGETHER = 4
"""How many run at once."""
KILLS_A_SCOPE = 20
"""How many leave something in the same sessions, one after the other."""
MAX_MESSAGES = 6


class Lane:
    """What one task of a process that was killed had said of its work: what it began, and what was acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun: dict[str, dict[str, int]] = {"plain": {}, "compacted": {}, "trimmed": {}}
        """By session, the size of each batch by its name."""
        self.acknowledged: dict[str, dict[str, list[int]]] = {"plain": {}, "compacted": {}, "trimmed": {}}
        """By session, where each batch went."""
        self.values = [-1]
        """What its state keys may hold: what was acknowledged last, and what was begun after it."""

    def note(self, line: dict[str, Any]) -> None:
        match line:
            case {"trying": "state", "value": value}:
                self.values.append(value)
            case {"done": "state", "value": value}:
                self.values = [value]
            case {"trying": session, "name": name, "size": size}:
                self.begun[session][name] = size
            case {"done": session, "name": name, "seqs": seqs}:
                self.acknowledged[session][name] = seqs
            case _:
                raise AssertionError(f"{line} is no line of run_until_killed")


def lanes_of(log: Path) -> list[Lane]:
    """What a process said until it was killed, perhaps in the middle of a line."""
    lanes: dict[str, Lane] = {}
    for text in log.read_text().splitlines(keepends=True):
        if not text.endswith("\n"):
            break
        line = json.loads(text)
        if "failed" in line:
            raise AssertionError(f"in a process that was to be killed:\n{line['failed']}")
        name = line["name"].partition(".")[0]
        lanes.setdefault(name, Lane(name)).note(line)
    return list(lanes.values())


class Kills(Harness):
    """What is left of the work of processes that were killed."""

    @pytest_asyncio.fixture
    async def nursery(self) -> AsyncIterator[Process]:
        """A process that forks those that are to be killed. It opens no store itself."""
        process = Process().wait_until_ready()
        yield process
        process.end()

    @clause(1, 4, 9, 10)
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    async def test_nothing_is_lost_torn_or_doubled_when_processes_are_killed(
        self, nursery: Process, url: str, reachable: dict[str, Any], opened: Opener, tmp_path: Path
    ) -> None:
        chance = random.Random()  # noqa: S311 - other instants in every run
        request = {"job": "run_until_killed", "url": url, "options": reachable}
        request["trimming"] = {"url": url, **reachable, "max_messages": MAX_MESSAGES}
        scopes: dict[str, list[Lane]] = {}
        for number in range(0, KILLS, TOGETHER):
            user = f"round {number // KILLS_A_SCOPE}"
            lanes = scopes.setdefault(user, [])
            logs = [tmp_path / f"writer-{number + each}" for each in range(min(TOGETHER, KILLS - number))]
            await let_work(nursery, logs, chance, {**request, "scope": {"user": user}})
            lanes += [lane for log in logs for lane in lanes_of(log)]
            async with opened() as store:
                await check_what_is_left(store.scoped(user=user), lanes)
        async with opened() as store:
            await store.sweep()
            for user, lanes in scopes.items():
                await check_what_is_left(store.scoped(user=user), lanes)


async def let_work(nursery: Process, logs: list[Path], chance: random.Random, request: dict[str, Any]) -> None:
    """Processes that write what they do into `logs`, each killed at some instant of its work."""
    numbers = []
    for log in logs:
        nursery.ask(**request, fork=str(log), writer=log.name, seed=chance.randrange(2**32))
        numbers.append(nursery.answer()["pid"])
    async with asyncio.timeout(60):
        while not all(log.exists() and b'"done"' in log.read_bytes() for log in logs):
            await asyncio.sleep(0.005)
            for log in logs:
                if log.exists():
                    lanes_of(log)
    for number in numbers:
        await asyncio.sleep(chance.uniform(0, 0.15))
        os.kill(number, signal.SIGKILL)
        nursery.ask(wait=number)
        nursery.answer()


async def check_what_is_left(scope: ScopedStore[ChatMessage], lanes: list[Lane]) -> None:
    """Hold what is stored against what was begun and what was acknowledged."""
    for name in ("plain", "trimmed", "compacted"):
        session = scope.session(name)
        assert await session.verify() == []
        history = await session.messages()
        assert history.seqs == sorted(set(history.seqs))
        count = await session.count()
        assert count == len(history), f"session {name!r}: {len(history)} messages, and count() says {count}"
        found = list(zip(history.seqs, [message.text for message in history], strict=True))
        if name == "compacted":
            counts = accounted_for(found)
            for lane in lanes:
                number = counts.pop(lane.name, 0)
                done, begun = len(lane.acknowledged[name]), len(lane.begun[name])
                assert done <= number <= begun, f"of {lane.name}, {done} to {begun} batches should be there: {number}"
            assert not counts
        else:
            check_batches(found, lanes, name)
    assert {info.id async for info in scope.iter_sessions()} <= {"plain", "trimmed", "compacted"}
    state = await scope.session("plain").state.items()
    for lane in lanes:
        assert state.get(f"{lane.name}.one", -1) == state.get(f"{lane.name}.other", -1)
        assert state.get(f"{lane.name}.one", -1) in lane.values


def check_batches(found: list[tuple[int, str]], lanes: list[Lane], session: str) -> None:
    """All that was acknowledged is there, whole, where it was said to be; unless it was trimmed, oldest first."""
    begun = {name: size for lane in lanes for name, size in lane.begun[session].items()}
    acknowledged = {name: seqs for lane in lanes for name, seqs in lane.acknowledged[session].items()}
    assert set(batches(found)) <= begun.keys()
    first = found[0][0] if session == "trimmed" and found else 0
    text_at = dict(found)
    for name, seqs in acknowledged.items():
        if seqs[0] >= first:
            assert [text_at.get(seq) for seq in seqs] == texts_of(name, begun[name]), f"{name} at {seqs}"
    if session == "trimmed":
        starts = [number for number, (_, text) in enumerate(reversed(found), 1) if "/0/" in text]
        enough = next((number for number in starts if number >= MAX_MESSAGES), len(found))
        assert len(found) == enough, f"{len(found)} messages are left, {enough} would do"
