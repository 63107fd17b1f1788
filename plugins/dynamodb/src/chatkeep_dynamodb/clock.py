"""The service's clock, as far as its answers tell it."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from functools import lru_cache


@lru_cache(maxsize=16)
def _moment(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()


class ServerClock:
    """The time by the ``Date`` of the answers, which is in whole seconds and never ahead of the service's.

    So the time is taken to be the latest one that any answer has shown: at first up to a second late, and soon less. It
    goes backwards only if the service's clock does.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None
        """By how much the service's clock is at least ahead of ours, which never jumps."""

    def look(self, date: str | None, sent: float, received: float) -> None:
        """An answer with this date, to what was sent and received then by ``time.monotonic``."""
        if date is None:
            return
        try:
            there = _moment(date)
        except ValueError:
            return
        least = there - received
        if self._ahead is None or least > self._ahead or there + 1 < self._ahead + sent:
            self._ahead = least

    def time(self) -> float:
        """Seconds since 1970. The machine's own, where no answer has said any."""
        return time.time() if self._ahead is None else time.monotonic() + self._ahead
