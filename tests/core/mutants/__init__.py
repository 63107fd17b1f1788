"""Mutants: the memory backend, or the store around it, with one promise of the contract broken each.

A mutant is a plausible mistake, such as a real store has made. It names the clauses that it breaks, and a test of each
of these clauses must notice: a contract that lets a mutant pass lets a backend pass that has made the mistake. The
modules here are those of `chatkeep.testing`, and each holds the mistakes against the clauses that its namesake shows.

``trial.py`` tries them, in a process of their own; ``python -m mutants`` in the folder above runs it by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

ROOMS = ("order", "retention", "reading", "fidelity", "state", "isolation", "lifecycle", "editing")
"""The modules that hold mutants."""


class Mutant(NamedTuple):
    """One thing of chatkeep's, and what stands in its place while the mutant is tried."""

    name: str
    clauses: tuple[int, ...]
    mistake: str
    """What is broken, in one line."""
    place: str
    """The dotted name of what is replaced."""
    value: Any


MUTANTS: list[Mutant] = []


def mutant(
    *clauses: int, mistake: str, place: str | None = None, kind: Callable[[Any], Any] | None = None
) -> Callable[[T], T]:
    """Let a class or a function stand in `place`; a subclass of one of the memory backend's classes in its base's.

    `kind` is `property` or `staticmethod` where the function is to be one.
    """

    def add(value: Any) -> Any:
        where = place or f"chatkeep.memory.{value.__base__.__name__}"
        MUTANTS.append(Mutant(value.__name__, clauses, mistake, where, kind(value) if kind else value))
        return value

    return add


def swapped(name: str, *clauses: int, mistake: str, place: str, value: Any) -> None:
    """Let a plain value stand in `place`."""
    MUTANTS.append(Mutant(name, clauses, mistake, place, value))


async def meanwhile() -> None:
    """Let others write: the pause between two steps that should have been one."""
    for _ in range(10):
        await asyncio.sleep(0)


def all_mutants() -> list[Mutant]:
    """Every mutant of every room."""
    for room in ROOMS:
        import_module(f"{__name__}.{room}")
    return MUTANTS
