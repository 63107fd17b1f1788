"""Every fault that docs/faults.md lists is held off by tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chatkeep.testing import StoreContract

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| what went wrong")
]
OWN = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_fault_names_the_tests_that_hold_it_off(row: list[str]) -> None:
    _, _, promise, tests = row
    assert promise
    names = [name.strip().strip("`") for name in tests.split(",")]
    assert [name for name in names if name not in OWN and not hasattr(StoreContract, name)] == []


def test_there_are_faults() -> None:
    assert len(ROWS) > 30
