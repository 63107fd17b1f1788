"""The service's clock, as far as its answers tell it."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from functools import lru_cache


@lru_cache(maxsize=16)
def _moment(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()


class ServerClock:
    """The machine's clock, corrected by the ``Date`` of the answers, which is in whole seconds.

    It is set no further than an answer demands: where the machine's clock is right, and it is where signed requests are
    sent from, it never jumps. Where it is wrong, this one is right to a second and the time that an answer takes.
    """

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()
        """By how much the service's clock is ahead of one of ours that never jumps."""

    def look(self, date: str | None, sent: float, received: float) -> None:
        """An answer with this date, to what was sent and received then by ``time.monotonic``."""
        if date is None:
            return
        try:
            there = _moment(date)
        except ValueError:
            return
        # Its time was within a second of the date at some moment between the two.
        self._ahead = min(max(self._ahead, there - received), there + 1 - sent)

    def time(self) -> float:
        """Seconds since 1970."""
        return time.monotonic() + self._ahead
