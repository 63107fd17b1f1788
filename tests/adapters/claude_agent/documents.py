"""The section of the document that is about this adapter, and its programs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
HEADING = "## The Claude Agent SDK\n"
SECTION = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
PROGRAMS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', SECTION, re.MULTILINE | re.DOTALL))


def documented(title: str) -> str:
    """The code block of that title."""
    return str(PROGRAMS[title])
