"""No fork while a thread is inside SQLite.

There it may hold a lock that every connection of the process needs, and in a child nobody would give it back.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any
from weakref import WeakSet

PATIENCE = 2.0
"""How many seconds a fork waits at most. A thread that takes longer waits for another program's lock as a rule, and
then holds none that a child needs."""

_changing = threading.RLock()
"""Held while a thread is added, and over a fork."""
_inside: WeakSet[Any] = WeakSet()
"""What `threading.RLock` makes, which knows whose it is; its type has another name in every version."""


def keep_out_of_forks(inside: Any) -> None:
    """From now on a fork waits for this lock, which a thread holds while it is inside SQLite."""
    with _changing:
        _inside.add(inside)


# Python ignores what a signal handler raises in these: whatever was taken by then, and nothing else, is given back.


def _before_fork() -> None:
    _changing.acquire()
    deadline = time.monotonic() + PATIENCE
    for inside in _inside:
        inside.acquire(timeout=max(0, deadline - time.monotonic()))


def _after_fork_in_parent() -> None:
    try:
        for inside in _inside:
            _give_back(inside)
    finally:
        for inside in _inside:
            _give_back(inside)
        _give_back(_changing)


def _give_back(lock: Any) -> None:
    if lock._is_owned():  # threading.Condition relies on it, too
        lock.release()


def _after_fork_in_child() -> None:
    global _changing  # noqa: PLW0603
    _changing = threading.RLock()
    _inside.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
