"""No fork while a thread is inside SQLite.

There it may hold a lock that every connection of the process needs, and in a child nobody would give it back.
"""

from __future__ import annotations

import os
import threading
import time
from weakref import WeakSet

PATIENCE = 2.0
"""How many seconds a fork waits at most. A thread that takes longer waits for another program's lock as a rule, and
then holds none that a child needs."""

_changing = threading.Lock()
"""Held while a thread is added, and over a fork."""
_inside: WeakSet[threading.Lock] = WeakSet()
_held: list[threading.Lock] = []


def keep_out_of_forks(inside: threading.Lock) -> None:
    """From now on a fork waits for this lock, which a thread holds while it is inside SQLite."""
    with _changing:
        _inside.add(inside)


def _before_fork() -> None:
    _changing.acquire()
    deadline = time.monotonic() + PATIENCE
    _held.extend(inside for inside in _inside if inside.acquire(timeout=max(0, deadline - time.monotonic())))


def _after_fork_in_parent() -> None:
    for inside in _held:
        inside.release()
    _held.clear()
    _changing.release()


def _after_fork_in_child() -> None:
    global _changing  # noqa: PLW0603
    _changing = threading.Lock()
    _inside.clear()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
