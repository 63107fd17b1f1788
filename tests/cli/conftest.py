"""The command in a folder of its own: within the tests' process, which is quick, or as a process, which is real."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chatkeep_cli.main import main

URL = "sqlite:///chat.db"
HINTS = ("CHATKEEP_URL", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING", "TTY_COMPATIBLE")
"""Variables of the environment that change what the command does or how it looks."""


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


class Command:
    """``chatkeep`` in `folder`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        for name in HINTS:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PYTHONUTF8", "1")

    def __call__(self, *arguments: str, stdin: str | bytes = "", encoding: str = "utf-8", **environment: str) -> Ended:
        """Run it within this process."""
        given = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin))
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="") for _ in range(2))
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", given)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main(arguments)
            printed = [stream.detach().getvalue().decode(encoding) for stream in (out, err) if not stream.flush()]
        return Ended(code, *printed)

    def process(self, *arguments: str, stdin: str = "", **environment: str) -> Ended:
        """Run it as a process of its own."""
        process = subprocess.run(
            self.line(*arguments),
            input=stdin.encode(),
            capture_output=True,
            env=os.environ | environment,
            check=False,
            timeout=60,
        )
        return Ended(process.returncode, process.stdout.decode(), process.stderr.decode())

    @staticmethod
    def line(*arguments: str) -> list[str]:
        """The command line of that process."""
        return [sys.executable, "-m", "chatkeep_cli", *arguments]

    def add(self, session: str, messages: Iterable[Any], *options: str) -> None:
        """Store messages with ``chatkeep add``."""
        lines = "".join(json.dumps(message) + "\n" for message in messages)
        added = self("add", *options, "--", URL, session, stdin=lines)
        assert added.code == 0, added.err

    def shown(self, session: str, *options: str) -> list[Any]:
        """The lines of ``chatkeep show --json``."""
        shown = self("show", "--json", *options, "--", URL, session)
        assert (shown.code, shown.err) == (0, "")
        return [json.loads(line) for line in shown.out.split("\n")[:-1]]


@pytest.fixture
def chatkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tmp_path, monkeypatch)


@pytest.fixture
def failure() -> Callable[[Ended], str]:
    """The one line on standard error of a command that failed and printed nothing else."""

    def line(ended: Ended) -> str:
        assert ended.code != 0
        assert ended.out == ""
        assert ended.err.startswith("chatkeep: ")
        assert ended.err.count("\n") == 1
        return ended.err.strip()

    return line
