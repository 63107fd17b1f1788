"""What is measured: a save, and a whole run of an agent, at growing lengths of the history."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    HistoryProvider,
    Message,
)

from benchmarks.measure import Call, in_turns
from benchmarks.turns import turns
from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

from .providers import MissingError, Opener, chatkeep, chatkeep_window, files, redis

SIZES = (10, 100, 1_000, 10_000)
"""Messages that are stored when a call is measured."""
CALLS = 100
"""How often each length is called in one round of a row with a bar."""
FEW = 10
"""And of one without: there a call may take a second."""
WARM_UP = 4
TURN = 4
"""Messages of a turn: a question, a call of a tool, its result, an answer."""
BAR = 1.3
"""The most that the longest history may cost, beside the shortest."""


class Growth(NamedTuple):
    """One line of the table."""

    job: str
    provider: str
    seconds: dict[int, float]
    """A call's, by the length of the history, the shortest first; empty where `missing` says why."""
    bar: float | None = None
    """The most that `ratio` may be; None where there is nothing to hold it to."""
    missing: str = ""

    @property
    def ratio(self) -> float:
        """The longest history's time beside the shortest's."""
        return self.seconds[max(self.seconds)] / self.seconds[min(self.seconds)]

    @property
    def holds(self) -> bool:
        return self.bar is None or self.ratio <= self.bar


# What is said


def conversation(name: str) -> Iterator[list[Message]]:
    """Turns with a call of a tool each, no two alike, nor any in two conversations: alike can be taken for a replay."""
    for number, (question, answer) in zip(count(), turns(), strict=False):
        call = f"{name}-{number}"
        yield [
            Message("user", [question]),
            Message("assistant", [Content.from_function_call(call, "look_up", arguments=json.dumps({"at": number}))]),
            Message("tool", [Content.from_function_result(call, result=look_up(number))]),
            Message("assistant", [answer]),
        ]


def look_up(at: int) -> str:
    """Look a reservation up."""
    return f"Reservation {at}: DEN to BOS, May 17, basic economy, 159 dollars."


class OfflineClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A model that looks something up once in a turn, and then answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = (answer for _, answer in turns())
        self.calls = count()

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, options: Any, **kwargs: Any) -> Any:
        return self._answered(messages[-1].role)

    async def _answered(self, last: str) -> ChatResponse:
        if last == "tool":
            return ChatResponse(messages=[Message("assistant", [next(self.answers)])])
        number = next(self.calls)
        call = Content.from_function_call(f"asked-{number}", "look_up", arguments=json.dumps({"at": number}))
        return ChatResponse(messages=[Message("assistant", [call])])


# What is done with it


def saving(provider: HistoryProvider, sessions: Sequence[str]) -> Call:
    """Save a turn, in the next session with each call."""
    source = conversation("saved")
    rest = iter([(session, next(source)) for session in sessions])
    return lambda: provider.save_messages(*next(rest))


def running(provider: HistoryProvider, sessions: Sequence[str]) -> Call:
    """Let an agent read the history, call its tool, answer, and save the turn, in the next session with each call."""
    agent: Any = Agent(OfflineClient(), tools=[look_up], context_providers=[provider])
    rest = iter([(question, session) for session, (question, _) in zip(sessions, turns(), strict=False)])

    async def run() -> None:
        question, session = next(rest)
        await agent.run(question, session=AgentSession(session_id=session))

    return run


Job = Callable[[HistoryProvider, Sequence[str]], Call]

SAVE, RUN = "save a turn of four messages", "agent.run with a call of a tool"
JOBS: dict[str, Job] = {SAVE: saving, RUN: running}
ROWS: list[tuple[str, str, Opener, float | None]] = [
    (SAVE, "ChatkeepHistoryProvider, SQLite", chatkeep, BAR),
    (SAVE, "FileHistoryProvider", files, None),
    (SAVE, "RedisHistoryProvider", redis, None),
    (RUN, "ChatkeepHistoryProvider, window of 10", chatkeep_window, BAR),
    (RUN, "ChatkeepHistoryProvider, all is shown", chatkeep, None),
    (RUN, "FileHistoryProvider, all is shown", files, None),
    (RUN, "RedisHistoryProvider, all is shown", redis, None),
]


# How it is measured


async def histories(provider: HistoryProvider, size: int, calls: int) -> list[str]:
    """Sessions of `size` messages, an even number, one for each call.

    A session is used again until it has grown by a tenth: a short one for one call alone.
    """
    uses = max(1, size // (10 * TURN))
    sessions = [f"chat-{size}-{number}" for number in range(math.ceil(calls / uses))]
    source = conversation("stored")
    for session in sessions:
        said = [message for turn in islice(source, math.ceil(size / TURN)) for message in turn]
        if len(said) > size:
            del said[1:3]  # a first turn without a call
        await provider.save_messages(session, said)
    return [session for session in sessions for _ in range(uses)][:calls]


async def stored(provider: HistoryProvider, session: str) -> int:
    """How many messages of a session are stored, whatever the model is shown."""
    if isinstance(provider, ChatkeepHistoryProvider):
        return len(await provider.log(session).messages())
    return len(await provider.get_messages(session))


async def one_round(
    job: str, opened: Opener, folder: Path, *, sizes: Sequence[int] = SIZES, calls: int = CALLS
) -> dict[int, float]:
    """The median of each length's calls. Raises a MissingError where there is no such provider here."""
    async with opened(folder) as provider:
        sessions = [await histories(provider, size, WARM_UP + calls) for size in sizes]
        sides = [JOBS[job](provider, each) for each in sessions]
        medians = await in_turns(*sides, calls=calls, warm_up=WARM_UP)
        for size, each in zip(sizes, sessions, strict=True):
            for session in (each[0], each[-1]):
                found, expected = await stored(provider, session), size + TURN * each.count(session)
                if found != expected:
                    raise RuntimeError(f"{job}, {type(provider).__name__}: {found} messages stored, not {expected}")
    return dict(zip(sizes, medians, strict=True))


async def measured(
    rounds: int,
    *,
    sizes: Sequence[int] = SIZES,
    calls: int | None = None,
    tell: Callable[[Growth], None] = lambda _: None,
) -> list[Growth]:
    """Every row, of so many rounds; `tell` is called with what each round has found."""
    found: dict[tuple[str, str], list[Growth]] = {}
    for _ in range(rounds):
        for job, name, opened, bar in ROWS:
            with tempfile.TemporaryDirectory() as folder:
                times = calls or (FEW if bar is None else CALLS)
                try:
                    row = Growth(job, name, await one_round(job, opened, Path(folder), sizes=sizes, calls=times), bar)
                except MissingError as reason:
                    row = Growth(job, name, {}, bar, missing=str(reason))
            tell(row)
            found.setdefault((job, name), []).append(row)
    return [median_growth(each) for each in found.values()]


def median_growth(rounds: Sequence[Growth]) -> Growth:
    """The round whose ratio is the median one; one that is missing, if any is."""
    gone = [each for each in rounds if each.missing]
    return gone[0] if gone else sorted(rounds, key=lambda each: each.ratio)[len(rounds) // 2]
