"""The programs of the documents, for the tests that run them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "agent-framework.md"
TITLED = re.compile(r'^```python(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def programs() -> dict[str, str]:
    """The code blocks of the document by their titles."""
    return dict(TITLED.findall(DOCUMENT.read_text(encoding="utf-8")))


@pytest.fixture
def program(programs: dict[str, str]) -> Callable[[str], dict[str, Any]]:
    """``program(title)`` is what the code block of that title defines."""

    def run(title: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec(programs[title], names)
        return names

    return run
