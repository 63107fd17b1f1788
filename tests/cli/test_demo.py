"""``chatkeep demo``, as a newcomer runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from chatkeep_cli.conversations import conversations
from chatkeep_cli.demo import DEFAULT_URL

PROCESS = re.compile(r"Process (\d+) connects")
SCOPE = ("--tenant", "airline-demo")


def test_it_stores_and_resumes_in_two_processes_and_shows_what_it_did(chatkeep: Any, tmp_path: Path) -> None:
    shown = chatkeep.process("demo", CHATKEEP_URL="sqlite:///mine.db")
    assert (shown.code, shown.err) == (0, "")
    first, second = PROCESS.findall(shown.out)
    assert first != second
    assert [each.name for each in tmp_path.glob("*.db")] == ["chatkeep-demo.db"]
    for words in (
        "an airline agent's conversations, in sqlite:///chatkeep-demo.db",
        "airline-02-0  5 turns 24 messages",
        "finds airline-18-0: 13 messages",
        "with one more turn",
        "calls get_reservation_details",
        "a window of 400 tokens starts here",
        "Window   messages 10 to 16: 382 of 400 tokens",
        'State    customer = "amelia_rossi_1297"',
        "nothing is doubled",
    ):
        assert words in shown.out
    lines = shown.out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert "Process" in lines[7]
    costs = re.findall(r"airline-\d\d-0 .*?([\d.,]+ (?:ms|µs)) +([\d,]+ µs) a turn", shown.out)
    assert len(costs) == 3


def test_the_conversations_are_stored_whole_and_running_it_again_doubles_nothing(chatkeep: Any) -> None:
    for new in ("all new", "0 new, none doubled"):
        shown = chatkeep.process("demo")
        assert shown.out.count(new) == 3
    assert "finds airline-18-0: 16 messages" in shown.out
    assert "an earlier run has stored: not doubled" in shown.out
    for conversation in conversations():
        stored = chatkeep("show", DEFAULT_URL, conversation.id, *SCOPE, "--json")
        assert len(stored.out.splitlines()) == len(conversation.messages)
    assert chatkeep("sessions", DEFAULT_URL, *SCOPE).out.count("airline-") == 3


def test_what_it_says_to_run_next_works(chatkeep: Any) -> None:
    shown = chatkeep.process("demo", "sqlite:///other.db?ttl=30d")
    sessions, show = re.findall(r"^  chatkeep (.*)$", shown.out, re.MULTILINE)
    assert chatkeep(*sessions.replace("'", "").split()).out.count("airline-") == 3
    assert "downgrade" in chatkeep(*show.replace("'", "").split()).out


def test_its_second_part_alone_is_one_more_process(chatkeep: Any) -> None:
    chatkeep.process("demo")
    again = chatkeep("demo", "--part", "resume")
    assert again.code == 0
    assert "finds airline-18-0: 16 messages" in again.out


@pytest.mark.parametrize("url", ["memory://", "sqlite://"])
def test_a_database_that_ends_with_its_process_is_refused_with_the_mend(chatkeep: Any, url: str) -> None:
    shown = chatkeep.process("demo", url)
    assert shown.code == 2
    assert "use a database that outlives a process, such as sqlite:///chatkeep-demo.db" in shown.err
    assert shown.err.count("\n") == 1


def test_a_database_that_cannot_be_opened_is_told_once(chatkeep: Any, failure: Any) -> None:
    shown = chatkeep.process("demo", "sqlite:///missing/x.db")
    assert shown.code == 3
    assert "missing" in failure(shown)


def test_modules_in_the_current_folder_are_not_imported(chatkeep: Any, tmp_path: Path) -> None:
    (tmp_path / "chatkeep_sqlite.py").write_text("raise SystemExit('imported')")
    (tmp_path / "statistics.py").write_text("raise SystemExit('imported')")
    # As the script does that pip makes: its own folder comes first on the path, not the current one.
    line = [sys.executable, "-P", *chatkeep.line("demo")[1:]]
    shown = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_each_conversation_s_turns_are_all_of_it_and_begin_with_the_user() -> None:
    assert [each.id for each in conversations()] == ["airline-02-0", "airline-12-0", "airline-18-0"]
    for conversation in conversations():
        assert [message for turn in conversation.turns for message in turn] == conversation.messages
        assert [turn[0]["role"] for turn in conversation.turns[1:]] == ["user"] * (len(conversation.turns) - 1)
        assert [message["role"] for message in conversation.turns[0]][:2] == ["system", "user"]
        assert conversation.state["customer"]


def test_the_notice_of_the_conversations_is_shipped_with_them() -> None:
    notice = files("chatkeep_cli").joinpath("data", "NOTICE.md").read_text(encoding="utf-8")
    assert "Copyright (c) 2024 Sierra" in notice
    assert "made up by that benchmark" in notice
