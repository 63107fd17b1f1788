"""What is measured, each row with its bar. ``folder`` is an empty one to put the round's files in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

from chatkeep import ChatMessage, Session, Store, open_store

from .measure import Row, in_turns, seconds
from .raw import InProcess, OneHop
from .turns import Turn, turns

CALLS = 300
"""How often each side of a row is called in one round."""
LONG = 10_000
"""Messages in a long history."""
BATCH = 250
"""Messages in an append while a history is made."""

Measurement = Callable[[Path], Awaitable[Row]]


def messages(turn: Turn) -> list[ChatMessage]:
    question, answer = turn
    return [ChatMessage.user(question), ChatMessage.assistant(answer)]


def opened(folder: Path, *, synchronous: str = "FULL", **options: Any) -> Store[ChatMessage]:
    return open_store(f"sqlite:///{folder}/ours.db", synchronous=synchronous, **options)


async def fill(session: Session[ChatMessage], size: int) -> None:
    """Give the session a history of `size` messages."""
    source = (message for turn in turns() for message in messages(turn))
    for begin in range(0, size, BATCH):
        await session.append(islice(source, min(BATCH, size - begin)))


async def fill_raw(raw: OneHop, session: str, size: int) -> None:
    """The same history for the yardstick."""
    for turn in islice(turns(), size // 2):
        await raw.append(session, turn)


@asynccontextmanager
async def both(folder: Path, size: int, *, synchronous: str, **options: Any) -> Any:
    """A session of ours and the yardstick, with a history of `size` messages each."""
    async with (
        opened(folder, synchronous=synchronous, **options) as store,
        OneHop(folder / "raw.db", synchronous=synchronous) as raw,
    ):
        session = store.session("s")
        await fill(session, size)
        await fill_raw(raw, "s", size)
        yield session, raw


def appending(session: Session[ChatMessage]) -> Callable[[], Awaitable[object]]:
    source = turns()
    return lambda: session.append(messages(next(source)))


def appending_raw(raw: OneHop) -> Callable[[], Awaitable[object]]:
    source = turns()
    return lambda: raw.append("s", next(source))


# A conversation that grows


async def long_and_short(folder: Path) -> Row:
    """An append at 10,000 stored messages beside one at 10, in the same store."""
    async with opened(folder) as store:
        long, source = store.session("long"), turns()
        await fill(long, LONG)
        short = [store.session(f"short-{number}") for number in range(CALLS + 20)]
        await asyncio.gather(*(fill(session, 10) for session in short))
        rest = iter(short)
        at_long, at_short = await in_turns(
            appending(long), lambda: next(rest).append(messages(next(source))), calls=CALLS
        )
    return Row("append a turn at 10,000 messages, beside at 10", at_long, at_short, 1.3)


# An append


def append(synchronous: str) -> Measurement:
    async def measure(folder: Path) -> Row:
        async with both(folder, 10, synchronous=synchronous) as (session, raw):
            ours, yardstick = await in_turns(appending(session), appending_raw(raw), calls=CALLS)
        return Row(f"append a turn, {synchronous}, beside raw aiosqlite", ours, yardstick, 1.5)

    return measure


async def append_with_options(folder: Path) -> Row:
    """With all that an append can be asked for: an expiry, trimming, a batch id."""
    source, batch = turns(), count()
    async with both(folder, 200, synchronous="NORMAL", ttl="30d", max_messages=200) as (session, raw):
        ours, yardstick = await in_turns(
            lambda: session.append(messages(next(source)), batch_id=f"batch-{next(batch)}"),
            appending_raw(raw),
            calls=CALLS,
        )
    return Row("append, NORMAL, with ttl, max_messages and batch_id", ours, yardstick)


async def append_with_ids(folder: Path) -> Row:
    source, number = turns(), count()

    def identified() -> list[ChatMessage]:
        question, answer = next(source)
        return [
            ChatMessage.user(question, id=f"message-{next(number)}"),
            ChatMessage.assistant(answer, id=f"message-{next(number)}"),
        ]

    async with both(folder, 10, synchronous="NORMAL") as (session, raw):
        ours, yardstick = await in_turns(lambda: session.append(identified()), appending_raw(raw), calls=CALLS)
    return Row("append, NORMAL, with message ids", ours, yardstick)


async def append_in_memory(folder: Path) -> Row:
    async with (
        open_store("memory://") as store,
        OneHop(folder / "raw.db", synchronous="NORMAL") as raw,
    ):
        ours, yardstick = await in_turns(appending(store.session("s")), appending_raw(raw), calls=CALLS)
    return Row("append to memory://, beside raw aiosqlite, NORMAL", ours, yardstick)


# Many conversations at once

SESSIONS = 100
TURNS_EACH = 20


def at_once(synchronous: str, bar: float) -> Measurement:
    async def measure(folder: Path) -> Row:
        said = list(islice(turns(), TURNS_EACH))
        raw = InProcess(folder / "raw.db", synchronous=synchronous)
        begin = time.perf_counter()
        for turn in said:
            for number in range(SESSIONS):
                raw.append(f"session-{number}", turn)
        yardstick = time.perf_counter() - begin
        raw.close()

        async def converse(session: Session[ChatMessage]) -> None:
            for turn in said:
                await session.append(messages(turn))

        async with opened(folder, synchronous=synchronous) as store:
            await store.ping()
            sessions = [store.session(f"session-{number}") for number in range(SESSIONS)]
            ours = await seconds(lambda: asyncio.gather(*map(converse, sessions)))
        written = SESSIONS * TURNS_EACH
        return Row(
            f"100 sessions × 20 turns at once, {synchronous}, a turn, beside sqlite3",
            ours / written,
            yardstick / written,
            bar,
        )

    return measure


# Reading


def newest(limit: int, name: str, bar: float) -> Measurement:
    async def measure(folder: Path) -> Row:
        async with both(folder, LONG, synchronous="NORMAL") as (session, raw):
            ours, yardstick = await in_turns(
                lambda: session.messages(last=limit),
                lambda: raw.newest("s", limit),
                calls=min(CALLS, 200_000 // limit),
                warm_up=2,
            )
        return Row(f"{name}, beside raw aiosqlite", ours, yardstick, bar)

    return measure


def measurements() -> dict[str, Measurement]:
    """Every row with a bar, in the order of the table, by a short name."""
    return {
        "append-at-10,000": long_and_short,
        "append-full": append("FULL"),
        "append-normal": append("NORMAL"),
        "at-once-full": at_once("FULL", 1 / 2),
        "at-once-normal": at_once("NORMAL", 1 / 0.6),
        "newest-20": newest(20, "read the newest 20 of 10,000", 1.5),
        "all-10,000": newest(LONG, "read all 10,000", 1.3),
    }


def further_measurements() -> dict[str, Measurement]:
    """Rows without a bar."""
    return {"options": append_with_options, "ids": append_with_ids, "memory": append_in_memory}
