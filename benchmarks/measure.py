"""Two sides measured in turns, so that what else the machine does meets both."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

Call = Callable[[], Awaitable[object]]


class Row(NamedTuple):
    """One line of the table."""

    name: str
    ours: float
    """Seconds a call, or a whole round."""
    yardstick: float
    """Seconds that the other side took for the same."""
    bar: float | None = None
    """The most that `ratio` may be; None where there is nothing to hold it to."""

    @property
    def ratio(self) -> float:
        return self.ours / self.yardstick

    @property
    def holds(self) -> bool:
        return self.bar is None or self.ratio <= self.bar


def median_row(rounds: list[Row]) -> Row:
    """The round whose ratio is the median one."""
    return sorted(rounds, key=lambda row: row.ratio)[len(rounds) // 2]


async def seconds(call: Call) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    await call()
    return time.perf_counter() - begin


async def in_turns(*sides: Call, calls: int, warm_up: int = 20) -> list[float]:
    """Each side's median, over `calls` calls of each: first, second, …, and then the other way round."""
    taken: list[list[float]] = [[] for _ in sides]
    gc.collect()
    for turn in range(warm_up + calls):
        for place in range(len(sides))[:: 1 if turn % 2 else -1]:
            spent = await seconds(sides[place])
            if turn >= warm_up:
                taken[place].append(spent)
    return [statistics.median(each) for each in taken]
