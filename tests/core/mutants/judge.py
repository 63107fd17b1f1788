"""The judge of a trial: a pytest plugin that says what became of each mutant, and why.

The first test that fails kills a mutant, and the rest of its tests are spared; those that have killed others quickly
come first, so that few are needed. It must fail as a broken promise makes it fail: by an assertion, an error of
chatkeep's, or something that the test could not do with what it was given. Any other error, or a mutant that is no
store at all, is an error of the mutant's own.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from chatkeep import ChatkeepError, arguments
from chatkeep.testing import clauses
from chatkeep.testing.examples import Examples

from . import Mutant, all_mutants
from .decoys import DECOYS, ENDS
from .trial import TestTrial

HERE = Path(__file__).parent
CONTRACT = Path(clauses.__file__).parent
CHECKS = Path(arguments.__file__)
"""Where what is passed to chatkeep is refused with a plain ValueError."""
SOUND = TestTrial.test_it_is_a_store_all_the_same.__name__

Step = Generator[None, Any, Any]


class Verdict(NamedTuple):
    """What became of a mutant before one clause's tests."""

    mutant: str
    clause: int
    mistake: str
    end: Literal["killed", "survived", "in error"] = "survived"
    test: str = ""
    """The one that ended it."""
    how: str = ""


class Judge:
    """Runs a clause's tests on each mutant that breaks the clause, up to the first failure."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.mutants = mutants
        self.verdicts: list[Verdict] = []
        self.control: list[str] = []
        """How tests that have killed a mutant have failed without one."""
        self._failure: BaseException | None = None
        self._kills = Counter[str]()
        self._seconds = dict[str, float]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests: list[Any] = [test for test in session.items if suits(test)]
        sound = [test for test in tests if test.originalname == SOUND]
        for mutant in self.mutants:
            for clause in mutant.clauses:
                shown = [test for test in tests if clause in getattr(test.function, "clauses", ())]
                shown.sort(key=self._rank)
                self.verdicts.append(self._tried(mutant, clause, [*sound, *shown]))
        for test in [*sound, *(test for test in tests if self._kills[test.name])]:
            if failure := self._run(test, None):
                self.control.append(f"{test.name}: {described(failure)}")
        return True

    def _tried(self, mutant: Mutant, clause: int, tests: list[Any]) -> Verdict:
        verdict = Verdict(mutant.name, clause, mutant.mistake)
        for test in tests:
            failure = self._run(test, mutant)
            if failure is None:
                continue
            if test.originalname == SOUND or not broken_promise(failure):
                return verdict._replace(end="in error", test=test.name, how=described(failure))
            self._kills[test.name] += 1
            return verdict._replace(end="killed", test=test.name, how=described(failure))
        return verdict

    def _rank(self, test: Any) -> tuple[float, float]:
        """First the tests that have killed many in little time, then the others, the quickest first."""
        seconds = self._seconds.get(test.name, 0.0)
        return -self._kills[test.name] / max(seconds, 0.001), seconds

    def _run(self, test: Any, mutant: Mutant | None) -> BaseException | None:
        """What the test failed with, first of all."""
        TestTrial.mutant, self._failure = mutant, None
        began = time.monotonic()
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=None)
        self._seconds[test.name] = time.monotonic() - began
        return self._failure

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: Any) -> Step:
        return (yield from self._watched())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Step:
        return (yield from self._watched())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: Any) -> Step:
        return (yield from self._watched())

    def _watched(self) -> Step:
        try:
            return (yield)
        except (KeyboardInterrupt, pytest.exit.Exception, pytest.skip.Exception):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever ends a test is judged
            self._failure = self._failure or error


def suits(test: Any) -> bool:
    """Whether a test can kill a mutant, and will do so each time.

    Those that need other processes cannot, since no mutant is there; those that draw their examples may or may not.
    """
    return "reachable" not in test.fixturenames and Examples.__name__ not in test.function.__code__.co_names


def broken_promise(failure: BaseException) -> bool:
    """Whether a test fails like this because it did not get what is promised."""
    if isinstance(failure, BaseExceptionGroup):
        return all(map(broken_promise, failure.exceptions))
    if isinstance(failure, ChatkeepError | pytest.fail.Exception | TimeoutError | asyncio.CancelledError):
        return True
    last = Path(traceback.extract_tb(failure.__traceback__)[-1].filename)
    if isinstance(failure, AssertionError):
        return last.parent != HERE
    return last.parent == CONTRACT or last == CHECKS


def described(failure: BaseException) -> str:
    """The failure in one line, with its place."""
    place = traceback.extract_tb(failure.__traceback__)[-1]
    text = " ".join(str(failure).split())
    return f"{Path(place.filename).name}:{place.lineno}: {type(failure).__name__}: {text}"[:200]


def hold_trial(report: Path, chosen: Sequence[str] = ()) -> int:
    """Try mutants in this process: those of the chosen names and clauses, or all. The report says what became of them.

    It is an object in JSON: the `verdicts`, and as `trouble` how the trial itself went wrong, if it did.
    """
    mutants = [each for each in all_mutants() if not chosen or {each.name, *map(str, each.clauses)} & {*chosen}]
    judge = Judge([*DECOYS, *mutants])
    options = ["--assert=plain", "--timeout=120", "-W", "ignore"]  # mutants leave things unawaited and unclosed
    for plugin in ("cacheprovider", "unraisableexception", "threadexception", "terminalreporter"):
        options += ["-p", f"no:{plugin}"]
    code = pytest.main([str(HERE / "trial.py"), *options], plugins=[judge])
    verdicts = [verdict for verdict in judge.verdicts if verdict.mutant not in ENDS]
    ends = {verdict.mutant: verdict.end for verdict in judge.verdicts if verdict.mutant in ENDS}
    trouble = [f"without a mutant: {failure}" for failure in judge.control]
    if ends != ENDS:
        trouble.append(f"the decoys should end as {ENDS}, and ended as {ends}")
    content = {"verdicts": [verdict._asdict() for verdict in verdicts], "trouble": trouble}
    report.write_text(json.dumps(content), encoding="utf-8")
    return int(code)
