"""The contract notices what breaks it: each mutant of the memory backend is killed. See `mutants`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

CLAUSES = range(1, 29)


@pytest.mark.once
@pytest.mark.timeout(900)
def test_every_mutant_is_killed_by_a_test_of_the_clause_that_it_breaks(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = tmp_path / "report.json"
    run = subprocess.run(
        [sys.executable, "-m", "mutants", str(report)],
        cwd=Path(__file__).parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"the trial broke off: {run.stdout}{run.stderr}"
    found = json.loads(report.read_text(encoding="utf-8"))
    tried, killed = Counter[int](), Counter[int]()
    wrong: list[str] = found["trouble"]
    for verdict in found["verdicts"]:
        tried[verdict["clause"]] += 1
        killed[verdict["clause"]] += verdict["end"] == "killed"
        if verdict["end"] == "survived":
            wrong.append("clause {clause}: {mutant} survived all of its tests: {mistake}".format(**verdict))
        elif verdict["end"] == "in error":
            wrong.append("clause {clause}: {mutant} is itself in error, in {test}: {how}".format(**verdict))
    wrong += [f"clause {clause}: no mutant breaks it" for clause in CLAUSES if not tried[clause]]
    lines = [f"clause {clause:2} -> {killed[clause]} of {tried[clause]} mutants killed" for clause in CLAUSES]
    record_property("told", "\n".join([*lines, f"in all {killed.total()} of {tried.total()}"]))
    assert not wrong, "\n".join(["the contract does not hold them all:", *wrong])
