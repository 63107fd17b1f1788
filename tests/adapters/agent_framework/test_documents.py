"""The document's programs and the example do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import agent_framework
import pytest
from agent_framework import Message

from chatkeep_adapters.agent_framework import ChatkeepHistoryProvider

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "agent-framework.md").read_text(encoding="utf-8")


def program(title: str) -> dict[str, Any]:
    """What the code block of that title defines."""
    (code,) = re.findall(rf'^```python title="{re.escape(title)}"\n(.*?)^```$', DOCUMENT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


async def test_an_agent_remembers_after_the_lines_of_the_document(
    scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client = scripted("In Oslo.", "Still in Oslo.")
    assert await program("remember.py")["main"](client) == "In Oslo."
    assert await program("remember.py")["main"](client) == "Still in Oslo."
    assert [message.text for message in client.asked[-1]] == ["Where is my bag?", "In Oslo.", "Where is my bag?"]
    assert (tmp_path / "chat.db").exists()


@pytest.mark.filterwarnings("ignore:.*FILE_HISTORY")  # the framework says that its file history is an experiment
async def test_histories_move_from_another_provider_once(url: str, tmp_path: Path) -> None:
    old: Any = ChatkeepHistoryProvider("memory://")
    if hasattr(agent_framework, "FileHistoryProvider"):  # not in the oldest versions
        old = agent_framework.FileHistoryProvider(tmp_path / "files")
    async with ChatkeepHistoryProvider(url) as new:
        for name in ("a", "b"):
            await old.save_messages(name, [Message("user", [f"I am {name}"]), Message("assistant", ["Hello"])])
        for _ in range(2):
            await program("move.py")["move"](old, new, ["a", "b"])
        for name in ("a", "b"):
            assert [message.text for message in await new.get_messages(name)] == [f"I am {name}", "Hello"]


def test_the_example_goes_on_in_another_process_and_lets_nobody_else_in() -> None:
    example = ROOT / "examples" / "agent_framework_resume.py"
    environment = {name: value for name, value in os.environ.items() if name not in ("OPENAI_API_KEY", "CHATKEEP_URL")}
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = re.sub(r"Process \d+", "Process", done.stdout).splitlines()
    assert len(set(re.findall(r"Process \d+", done.stdout))) == 3
    assert said == [
        "Process, alice: How is the weather in Oslo?",
        "  the model is shown 1 messages: user",
        "  the model is shown 3 messages: user, assistant, tool",
        "  It is sunny in Oslo.",
        "Process, alice: And what did I ask you first?",
        "  the model is shown 5 messages: user, assistant, tool, assistant, user",
        "  You asked: How is the weather in Oslo?",
        "Process, bob: What did Alice ask you?",
        "  session trip-42: not found",
    ]
