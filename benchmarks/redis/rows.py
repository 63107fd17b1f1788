"""What is measured, each row with its bar. ``url`` names a server; keys are taken out again after each round."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, islice
from typing import Any

from benchmarks.measure import Row, in_turns, seconds
from benchmarks.turns import Turn, turns
from chatkeep import ChatMessage, Session, Store, open_store

from . import peers
from .raw import Raw, encoded

CALLS = 500
"""How often each side of a row is called in one round."""
LONG = 10_000
"""Messages in a long history."""
BATCH = 250
"""Messages in an append while a history is made."""
KEEP = 200
"""How many messages both sides keep where a row is about trimming."""

Measurement = Callable[[str], Awaitable[Row]]


def messages(turn: Turn) -> list[ChatMessage]:
    question, answer = turn
    return [ChatMessage.user(question), ChatMessage.assistant(answer)]


@asynccontextmanager
async def both(url: str, *, keep: int = 1_000_000, **options: Any) -> AsyncIterator[tuple[Store[ChatMessage], Raw]]:
    """A store of ours and the yardstick, each with keys of its own."""
    ours, raws = (f"chatkeep-bench-{uuid.uuid4().hex}:" for _ in range(2))
    async with open_store(url, prefix=ours, **options) as store, Raw(url, raws, keep=keep) as raw:
        try:
            yield store, raw
        finally:
            await store.purge(0)
            await raw.client.unlink(*[key async for key in raw.client.scan_iter(match=f"{raws}*", count=1000)] or ["-"])


async def fill(session: Session[ChatMessage], size: int) -> None:
    """Give the session a history of `size` messages."""
    source = (message for turn in turns() for message in messages(turn))
    for begin in range(0, size, BATCH):
        await session.append(islice(source, min(BATCH, size - begin)))


async def fill_raw(raw: Raw, session: str, size: int) -> None:
    """The same history for the yardstick."""
    source = (message for turn in turns() for message in encoded(turn))
    for begin in range(0, size, BATCH):
        await raw.fill(session, list(islice(source, min(BATCH, size - begin))))


def appending(session: Session[ChatMessage]) -> Callable[[], Awaitable[object]]:
    source = turns()
    return lambda: session.append(messages(next(source)))


def appending_raw(raw: Raw, session: str) -> Callable[[], Awaitable[object]]:
    source = turns()
    return lambda: raw.append(session, next(source))


# An append


async def append(url: str) -> Row:
    async with both(url, keep=KEEP, max_messages=KEEP) as (store, raw):
        await fill(store.session("s"), KEEP)
        await fill_raw(raw, "s", KEEP)
        ours, yardstick = await in_turns(appending(store.session("s")), appending_raw(raw, "s"), calls=CALLS)
    return Row("append a turn and trim, beside a raw script that pushes and trims", ours, yardstick, 1.5)


async def append_with_options(url: str) -> Row:
    """With all that an append can be asked for: an expiry, trimming, a batch id."""
    source, batch = turns(), count()
    async with both(url, keep=KEEP, max_messages=KEEP, ttl="30d") as (store, raw):
        session = store.session("s")
        await fill(session, KEEP)
        await fill_raw(raw, "s", KEEP)
        ours, yardstick = await in_turns(
            lambda: session.append(messages(next(source)), batch_id=f"batch-{next(batch)}"),
            appending_raw(raw, "s"),
            calls=CALLS,
        )
    return Row("append with ttl, max_messages and batch_id, beside the same script", ours, yardstick)


async def append_with_ids(url: str) -> Row:
    source, number = turns(), count()

    def identified() -> list[ChatMessage]:
        question, answer = next(source)
        return [
            ChatMessage.user(question, id=f"message-{next(number)}"),
            ChatMessage.assistant(answer, id=f"message-{next(number)}"),
        ]

    async with both(url) as (store, raw):
        session = store.session("s")
        ours, yardstick = await in_turns(lambda: session.append(identified()), appending_raw(raw, "s"), calls=CALLS)
    return Row("append with message ids, beside the same script", ours, yardstick)


# A conversation that grows


async def long_and_short(url: str) -> Row:
    """An append at 10,000 stored messages beside one at 10, in the same store."""
    async with both(url) as (store, _):
        long, source = store.session("long"), turns()
        await fill(long, LONG)
        short = [store.session(f"short-{number}") for number in range(CALLS + 20)]
        await asyncio.gather(*(fill(session, 10) for session in short))
        rest = iter(short)
        at_long, at_short = await in_turns(
            appending(long), lambda: next(rest).append(messages(next(source))), calls=CALLS
        )
    return Row("append a turn at 10,000 messages, beside at 10", at_long, at_short, 1.3)


async def newest_of_long_and_short(url: str) -> Row:
    async with both(url) as (store, _):
        long, short = store.session("long"), store.session("short")
        await fill(long, LONG)
        await fill(short, 20)
        at_long, at_short = await in_turns(lambda: long.messages(last=20), lambda: short.messages(last=20), calls=CALLS)
    return Row("read the newest 20 of 10,000, beside of 20", at_long, at_short, 1.3)


# Reading


def newest(limit: int, name: str, bar: float | None) -> Measurement:
    async def measure(url: str) -> Row:
        async with both(url) as (store, raw):
            session = store.session("s")
            await fill(session, LONG)
            await fill_raw(raw, "s", LONG)
            ours, yardstick = await in_turns(
                lambda: session.messages(last=limit),
                lambda: raw.newest("s", limit),
                calls=min(CALLS, 200_000 // limit),
                warm_up=2,
            )
        return Row(f"{name}, beside raw redis-py", ours, yardstick, bar)

    return measure


# Many conversations at once

SESSIONS = 100
TURNS_EACH = 20


async def at_once(url: str) -> Row:
    said = list(islice(turns(), TURNS_EACH))
    async with both(url, keep=KEEP, max_messages=KEEP) as (store, raw):

        async def converse(session: Session[ChatMessage]) -> None:
            for turn in said:
                await session.append(messages(turn))

        async def converse_raw(session: str) -> None:
            for turn in said:
                await raw.append(session, turn)

        names = [f"session-{number}" for number in range(SESSIONS)]
        warm = [f"warm-{number}" for number in range(SESSIONS)]
        await asyncio.gather(*map(converse_raw, warm))  # every connection is there
        await store.ping()
        yardstick = await seconds(lambda: asyncio.gather(*map(converse_raw, names)))
        ours = await seconds(lambda: asyncio.gather(*(converse(store.session(name)) for name in names)))
    written = SESSIONS * TURNS_EACH
    name = "100 sessions × 20 turns at once, a turn, beside raw with a connection per call"
    return Row(name, ours / written, yardstick / written, 1 / 1.5)


# Beside what frameworks have


def distinct(source: Iterator[Turn]) -> Iterator[Turn]:
    """Turns no two of which are alike: some take an equal one for the same one."""
    return ((f"{number}: {question}", f"{number}: {answer}") for number, (question, answer) in enumerate(source))


def beside(peer: peers.Peer, name: str, bar: float, *, stored: int) -> Measurement:
    """An append of ours beside a framework's, with so many messages stored on both sides."""

    async def measure(url: str) -> Row:
        source, theirs_source = distinct(turns()), distinct(turns())
        async with AsyncExitStack() as stack:
            append = await stack.enter_async_context(peer(url, f"chatkeep-bench-{uuid.uuid4().hex}"))
            store, _ = await stack.enter_async_context(both(url))
            session = store.session("s")
            for _ in range(stored // 2):
                await append(next(theirs_source))
                await session.append(messages(next(source)))
            ours, theirs = await in_turns(
                lambda: session.append(messages(next(source))),
                lambda: append(next(theirs_source)),
                calls=min(CALLS, 50_000 // stored),
            )
        return Row(f"append a turn at {stored:,}, beside {name}", ours, theirs, bar)

    return measure


def at_once_beside(peer: peers.Peer, name: str, bar: float) -> Measurement:
    """Many conversations at once, ours in one store, beside a framework's, each with an object of its own."""

    async def measure(url: str) -> Row:
        names = [f"chatkeep-bench-{uuid.uuid4().hex}" for _ in range(SESSIONS)]
        said = list(islice(distinct(turns()), 2 * TURNS_EACH))

        async def converse(append: peers.Append, these: list[Turn]) -> None:
            for turn in these:
                await append(turn)

        async with AsyncExitStack() as stack:
            theirs = [await stack.enter_async_context(peer(url, each)) for each in names]
            store, _ = await stack.enter_async_context(both(url))
            sessions = [store.session(each) for each in names]
            ours: list[peers.Append] = [lambda turn, to=to: to.append(messages(turn)) for to in sessions]
            taken = []
            for sides in (theirs, ours):
                for these in (said[:2], said[TURNS_EACH:]):  # the first ones connect
                    spent = await seconds(lambda: asyncio.gather(*(converse(each, these) for each in sides)))  # noqa: B023
                taken.append(spent / SESSIONS / TURNS_EACH)
        return Row(f"{SESSIONS} sessions × {TURNS_EACH} turns at once, a turn, beside {name}", taken[1], taken[0], bar)

    return measure


def measurements() -> dict[str, Measurement]:
    """Every row with a bar that needs nothing but redis-py, in the order of the table, by a short name."""
    return {
        "append": append,
        "append-at-10,000": long_and_short,
        "newest-20": newest(20, "read the newest 20 of 10,000", 1.4),
        "newest-20-at-10,000": newest_of_long_and_short,
        "at-once": at_once,
    }


def further_measurements() -> dict[str, Measurement]:
    """Rows without a bar, and those that need a framework: a `MissingError` says where one is not installed."""
    return {
        "options": append_with_options,
        "ids": append_with_ids,
        "all-10,000": newest(LONG, "read all 10,000", None),
        "langchain": beside(peers.langchain, "LangChain's RedisChatMessageHistory", 1 / 2, stored=100),
        "openai-agents": beside(peers.openai_agents, "the OpenAI Agents SDK's RedisSession", 1 / 3.5, stored=100),
        "langchain-at-once": at_once_beside(peers.langchain, "LangChain's", 1 / 2),
        "openai-agents-at-once": at_once_beside(peers.openai_agents, "the OpenAI Agents SDK's", 1 / 3.5),
        "agent-framework": beside(
            peers.agent_framework, "the Agent Framework's RedisHistoryProvider", 1 / 20, stored=1000
        ),
    }
