"""What docs/frameworks.md says of the OpenAI Agents SDK."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from tests.adapters.openai_agents.models import ScriptedModel, answer, kinds, user

from chatkeep import open_store
from chatkeep_adapters.openai_agents import ChatkeepSession

ROOT = Path(__file__).parents[3]
HEADING = "## The OpenAI Agents SDK\n"
SECTION = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
PROGRAMS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', SECTION, re.MULTILINE | re.DOTALL))


def test_there_are_two_programs_and_they_are_no_longer_than_promised() -> None:
    lines = {title: len([line for line in text.splitlines() if line]) for title, text in PROGRAMS.items()}
    assert lines == {"openai_agents.py": 7, "openai_import.py": 3}


def test_the_program_remembers_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("chatkeep_sqlite", reason="the program is on SQLite: pip install ./plugins/sqlite")
    model = ScriptedModel("in Oslo", "still in Oslo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agents.models.multi_provider.MultiProvider.get_model", lambda *_: model)
    for _ in range(2):
        exec(PROGRAMS["openai_agents.py"], {})
    assert capsys.readouterr().out == "in Oslo\nstill in Oslo\n"
    assert kinds(model.asked[-1]) == ["user", "assistant", "user"]


async def test_a_session_of_the_sdks_own_is_moved() -> None:
    old = SQLiteSession("s")
    await old.add_items([user("a"), answer("b", "msg_1")])
    names: dict[str, Any] = {"ChatkeepSession": ChatkeepSession}
    exec(PROGRAMS["openai_import.py"], names)
    async with open_store("memory://") as store:
        await names["move"](old, store)
        assert await ChatkeepSession(store, session_id="s").get_items() == await old.get_items()
    old.close()


def test_the_lowest_version_is_the_extras() -> None:
    extras = tomllib.loads((ROOT / "adapters" / "pyproject.toml").read_text(encoding="utf-8"))
    (requirement,) = extras["project"]["optional-dependencies"]["openai-agents"]
    assert f"openai-agents {requirement.partition('>=')[2].partition(',')[0]}.0 and " in SECTION
