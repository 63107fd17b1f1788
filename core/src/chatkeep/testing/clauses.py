"""Which test shows which clause, and how a backend says that it cannot keep one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

import pytest

T = TypeVar("T", bound=Callable[..., Any])

MORE = ("CHATKEEP_KILLS", "CHATKEEP_EXAMPLES")
"""The environment variables that ask for more than usual."""
PATIENCE = 0 if any(map(os.environ.get, MORE)) else 120
"""Seconds after which a test is taken to hang. 0: never, for whoever asks for more takes the time for it."""


def clause(*numbers: int) -> Callable[[T], T]:
    """Mark a test of the contract with the clauses that it shows: ``pytest -k clause_05`` runs those of clause 5."""

    def mark(test: T) -> T:
        test.clauses = numbers  # type: ignore[attr-defined]
        vars(test).update(dict.fromkeys((f"clause_{number:02}" for number in numbers), True))  # names for pytest's -k
        return test

    return mark


def xfail(*, reason: str) -> Any:
    """In a subclass of `StoreContract`: this test cannot pass, and why. It must fail: a pass is reported as a failure.

    ::

        class TestEcho(StoreContract):
            test_a_name_of_the_contract = xfail(reason="Echo has no atomic batch above 25 items")
    """
    if not reason.strip():
        raise TypeError("xfail needs a reason that a user of the backend understands")
    return Excuse(reason)


class Excuse:
    """What `xfail` leaves in a class body until the class is made."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Clauses:
    """A part of the contract. A subclass may not replace, lose or quietly skip a test of it: only `xfail` one."""

    pytestmark: ClassVar = [pytest.mark.asyncio, pytest.mark.timeout(PATIENCE)]

    @pytest.fixture(autouse=True)
    def _clauses(self, request: pytest.FixtureRequest) -> None:
        """Say in the report of a failure what was to be shown."""
        numbers = getattr(request.function, "clauses", ())
        shown = " and ".join(f"clause {number}" for number in numbers)
        request.node.add_report_section("call", "contract", f"{shown} of the contract: docs/contract.md of chatkeep")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        owners: dict[str, str] = {}
        for base in cls.__mro__[1:]:
            for name in _tests(base):
                owner = owners.setdefault(name, base.__name__)
                if owner != base.__name__ and not _excuses(getattr(cls, name)):
                    raise TypeError(f"{owner}.{name} hides {base.__name__}.{name}: rename one of them")
        inherited = owners.keys()
        for name in _own_tests(cls):
            value = cls.__dict__[name]
            if isinstance(value, Excuse):
                if name not in inherited:
                    raise TypeError(
                        f"{cls.__name__}.{name} excuses no test of the contract: there is none of that name"
                    )
                setattr(cls, name, _expected_to_fail(getattr(super(cls, cls), name), value.reason))
            elif name in inherited:
                raise TypeError(
                    f"{cls.__name__}.{name} would replace a test of the contract: rename it, "
                    "or say why the backend cannot keep the clause with xfail(reason=…)"
                )


def _own_tests(cls: type) -> Iterable[str]:
    return [name for name in cls.__dict__ if name.startswith("test")]


def _tests(cls: type) -> Iterable[str]:
    return _own_tests(cls) if issubclass(cls, Clauses) else ()


def _excuses(test: Callable[..., Any]) -> bool:
    return any(mark.name == "xfail" for mark in getattr(test, "pytestmark", ()))


def _expected_to_fail(test: Callable[..., Any], reason: str) -> Callable[..., Any]:
    @pytest.mark.xfail(reason=reason, strict=True)
    @wraps(test)
    async def excused(*args: Any, **kwargs: Any) -> None:
        await test(*args, **kwargs)

    return cast("Callable[..., Any]", excused)
