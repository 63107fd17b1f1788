"""``chatkeep demo``: real conversations, stored by one process and resumed by the next.

The command itself opens nothing. It starts two processes one after the other: the first one stores every turn but the
last of one conversation and ends (`demo_store`); the second one knows nothing but the URL (`demo_resume`).
"""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum

DEFAULT_URL = "sqlite:///chatkeep-demo.db"
"""A file of the demo's own, in the current folder. $CHATKEEP_URL does not count here: it may be a real store."""
TENANT = "airline-demo"
RESUMED = "airline-18-0"
"""The conversation whose last turn the second process adds."""


class Part(StrEnum):
    """The two processes, in order."""

    STORE = "store"
    RESUME = "resume"


def run(url: str, *, debug: bool) -> int:
    """Both parts, a process each; the exit code of the one that failed, or 0."""
    for part in Part:
        sys.stdout.flush()
        # -P: the current folder holds the user's files, and none of them is to be imported.
        command = [sys.executable, "-P", "-m", __package__, *(["--debug"] if debug else []), "demo", "--part", part]
        code = subprocess.run([*command, "--", url], check=False).returncode  # noqa: S603 - this very program
        if code:
            return code if code > 0 else 128 - code
    return 0
