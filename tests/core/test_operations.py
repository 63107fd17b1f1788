"""What the contract cancels at every await is everything that can wait."""

from __future__ import annotations

import inspect

from chatkeep import Session, Store
from chatkeep.lease import Lease
from chatkeep.state import State
from chatkeep.testing.operations import CLOSINGS, OPERATIONS

ENTRANCES = ("__aenter__", "__aexit__")


def waiting(*classes: type) -> set[str]:
    """The coroutine functions and asynchronous iterators that these classes offer, as Class.name."""
    return {
        f"{owner.__name__}.{name}"
        for cls in classes
        for owner in cls.__mro__
        for name, value in vars(owner).items()
        if name in ENTRANCES or not name.startswith("_")
        if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
    }


def test_every_public_operation_that_can_wait_is_cancelled_by_the_contract() -> None:
    named = {name.split(" ")[0] for name in OPERATIONS | CLOSINGS}
    assert named == waiting(Store, Session, State, Lease)


def test_an_operation_without_an_entry_is_noticed() -> None:
    class Larger(Session[object]):
        async def summarize(self) -> None:
            return None

        async def each(self) -> object:
            yield self

        async def _inside(self) -> None:
            return None

    assert waiting(Larger) - waiting(Session) == {"Larger.summarize", "Larger.each"}
