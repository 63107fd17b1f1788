"""The document algorithm under a scheduler that decides by chance, and with each of its mistakes.

``CHATKEEP_EXAMPLES=500`` tries 20,000 schedules, other ones in every run; a failure says which one it was, and
``CHATKEEP_SEED`` repeats the run.
"""

from __future__ import annotations

import logging
import os
import secrets

import pytest
from tests.core.documents.mutants import MUTANTS, Mutant
from tests.core.documents.simulation import schedules, short_and_long

EXAMPLES = int(os.environ.get("CHATKEEP_EXAMPLES") or 8)
ASKED = "CHATKEEP_EXAMPLES" in os.environ
FIRST = int(os.environ.get("CHATKEEP_SEED") or (secrets.randbits(32) if ASKED else 0)) * 1_000_000
NUMBER = 40 * EXAMPLES
ENOUGH = 3000
"""Schedules within which a mistake must have been noticed."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What is not deleted yet is told thousands of times."""
    caplog.set_level(logging.ERROR, "chatkeep.documents")


@pytest.mark.timeout(0 if ASKED else 120)
def test_whatever_the_order_of_the_steps_the_crashes_and_the_lost_answers_there_is_one_history() -> None:
    for simulation in schedules(NUMBER, FIRST):
        simulation.run()


@pytest.mark.timeout(0 if ASKED else 120)
def test_many_calls_of_two_processes_come_to_long_logs_and_lists_of_lists() -> None:
    for simulation in schedules(NUMBER // 20, FIRST, processes=2, calls=60):
        simulation.run()


@pytest.mark.once
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.owner, mutant.attribute, mutant.value)
    for simulation in short_and_long(ENOUGH):
        try:
            simulation.run()
        except Exception:  # noqa: BLE001 - however it is noticed
            return
    pytest.fail(f"nobody notices that {mutant.mistake}")
