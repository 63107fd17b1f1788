"""How many random examples a test tries, and how it tries them against a store that lives on an event loop.

``CHATKEEP_EXAMPLES=500`` tries 500 of each, other ones in every run. Without it they are few, and the same in every
run. A failure says how it is repeated: with ``CHATKEEP_SEED`` the examples are the same again, and the one that fails
is made small, which can take minutes. Select the same tests: hypothesis takes values from the code that is loaded.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

ANSWER = 60.0
"""How long one step may take, in seconds: it tells what hangs from what is slow."""


class Examples:
    """Random examples for one test: others for each `name`. `default` is how many, where nothing else is asked for."""

    def __init__(self, name: str, default: int, *, steps: int = 50) -> None:
        asked, seed = os.environ.get("CHATKEEP_EXAMPLES", ""), os.environ.get("CHATKEEP_SEED", "")
        self._loop = asyncio.get_running_loop()
        self._seed = int(seed or (secrets.randbits(32) if asked else 1))
        self._source = f"{self._seed} {name}"
        self._number = int(asked or default)
        self._settings = hypothesis.settings(
            max_examples=self._number,
            stateful_step_count=steps,
            database=None,  # which would be a folder in whatever directory the tests run in
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if seed else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            report_multiple_bugs=False,
        )

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises on the test's event loop. From another thread than the loop's."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(ANSWER)
        except TimeoutError:
            if not future.done():
                future.cancel()
                raise AssertionError(f"no answer within {ANSWER:g} s") from None
            raise

    async def hold(self, strategy: SearchStrategy[T], promise: Callable[[T], Awaitable[None]]) -> None:
        """``await promise(value)`` for each of the values."""

        async def kept(value: T) -> None:
            await promise(value)

        @self._settings
        @hypothesis.seed(self._source)
        @given(strategy)
        def try_all(value: T) -> None:
            self.call(kept(value))

        await self._tried(try_all)

    async def run(self, machine: Callable[[], RuleBasedStateMachine]) -> None:
        """Run sequences of the machine's steps."""
        seeded: Any = hypothesis.seed(self._source)(partial(machine))
        await self._tried(lambda: run_state_machine_as_test(seeded, settings=self._settings))

    async def _tried(self, attempt: Callable[[], None]) -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                set_hypothesis_home_dir(folder)  # what it keeps for itself, which else lies where the tests run
                await asyncio.to_thread(attempt)
        except BaseException as error:
            error.add_note(f"CHATKEEP_SEED={self._seed} CHATKEEP_EXAMPLES={self._number} repeats this")
            raise
        finally:
            set_hypothesis_home_dir(None)  # where it was
