"""``sessions``, ``ping`` and ``backends``: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chatkeep.plugins import KNOWN, installed_backends

URL = "sqlite:///chat.db"
HELLO = {"role": "user", "content": "Hello"}


def listed(chatkeep: Any, *options: str) -> list[dict[str, Any]]:
    ended = chatkeep("sessions", URL, "--json", *options)
    assert ended.code == 0
    return [json.loads(line) for line in ended.out.splitlines()]


def test_sessions_are_listed_last_written_first_with_what_is_known_of_them(chatkeep: Any) -> None:
    chatkeep.add("a", [HELLO, HELLO])
    chatkeep.add("b", [HELLO])
    second, first = listed(chatkeep)
    assert (first["id"], second["id"]) == ("a", "b")
    assert first["messages"] == 2
    assert first["scope"] == {"app": None, "tenant": None, "user": None}
    assert first["expires_at"] is None
    assert datetime.fromisoformat(first["updated_at"]).tzinfo == UTC
    table = chatkeep("sessions", URL).out.splitlines()
    assert table[0].split() == ["SESSION", "MESSAGES", "LAST", "WRITE", "(UTC)"]
    assert [line.split()[:2] for line in table[1:]] == [["b", "1"], ["a", "2"]]


def test_a_scope_lists_its_own_and_below_the_ones_beneath(chatkeep: Any) -> None:
    chatkeep.add("root", [HELLO])
    chatkeep.add("mine", [HELLO], "--tenant", "acme corp", "--user", "alice")
    assert [each["id"] for each in listed(chatkeep)] == ["root"]
    assert [each["id"] for each in listed(chatkeep, "--tenant", "acme corp")] == []
    assert [each["id"] for each in listed(chatkeep, "--tenant", "acme corp", "--below")] == ["mine"]
    assert {each["id"] for each in listed(chatkeep, "--below")} == {"root", "mine"}
    assert "--tenant acme corp --user alice" in chatkeep("sessions", URL, "--below").out


def test_a_limit_is_kept_and_told(chatkeep: Any) -> None:
    for number in range(3):
        chatkeep.add(f"s{number}", [HELLO])
    cut = chatkeep("sessions", URL, "--limit", "2", "--json")
    assert [json.loads(line)["id"] for line in cut.out.splitlines()] == ["s2", "s1"]
    assert "--limit" in cut.err
    assert chatkeep("sessions", URL, "--limit", "3").err == ""


def test_with_json_all_are_listed_and_a_table_says_when_it_does_not(chatkeep: Any) -> None:
    import asyncio

    from chatkeep import ChatMessage, open_store

    async def fill() -> None:
        async with open_store(URL) as store:
            for number in range(102):
                await store.session(f"s{number}").append([ChatMessage.user("x")])

    asyncio.run(fill())
    assert len(listed(chatkeep)) == 102
    table = chatkeep("sessions", URL)
    assert len(table.out.splitlines()) == 101
    assert "more than these 100 sessions: --limit" in table.err


def test_no_sessions_is_no_error_and_says_where_else_to_look(chatkeep: Any) -> None:
    chatkeep.add("s", [HELLO], "--tenant", "another")
    assert chatkeep("sessions", URL).out == (
        "no sessions in sqlite:///chat.db; --below also looks into the scopes below\n"
    )
    assert chatkeep("sessions", URL, "--tenant", "t", "--below").out == (
        "no sessions in sqlite:///chat.db at --tenant t\n"
    )
    assert chatkeep("sessions", URL, "--json").out == ""


def test_in_a_pipe_no_id_is_cut_or_folded(chatkeep: Any) -> None:
    name = "long " * 60 + "end"
    chatkeep.add(name, [HELLO])
    assert name in chatkeep("sessions", URL).out


@pytest.mark.parametrize(
    "arguments", [["ping", URL], ["sessions", URL], ["sessions", "--json", URL], ["show", URL, "s"], ["ping"]]
)
def test_a_command_that_reads_makes_no_database(chatkeep: Any, failure: Any, arguments: list[str]) -> None:
    asked = chatkeep(*arguments, CHATKEEP_URL=URL)
    assert asked.code == 3
    assert failure(asked) == "chatkeep: there is no file 'chat.db': check the path"
    assert list(chatkeep.folder.iterdir()) == []


def test_a_url_may_say_that_a_reading_command_makes_the_database(chatkeep: Any) -> None:
    assert chatkeep("ping", f"{URL}?create=true").code == 0
    assert (chatkeep.folder / "chat.db").exists()
    assert chatkeep("sessions", "memory://").code == 0


def test_a_command_that_writes_makes_the_database_unless_the_url_says_otherwise(chatkeep: Any, failure: Any) -> None:
    line = json.dumps(HELLO)
    assert "there is no file 'chat.db'" in failure(chatkeep("add", f"{URL}?create=false", "s", stdin=line))
    assert chatkeep("add", URL, "s", stdin=line).code == 0


def test_ping_says_who_answers_and_how_soon(chatkeep: Any) -> None:
    chatkeep.add("s", [HELLO])
    answer = chatkeep("ping", URL)
    assert answer.code == 0
    assert "sqlite:///chat.db answers: SQLite 3." in answer.out
    data = json.loads(chatkeep("ping", "memory://", "--json").out)
    assert (data["url"], data["backend"]) == ("memory://", "memory")
    assert data["ping_ms"] >= 0


def without_dynamodb(monkeypatch: pytest.MonkeyPatch, *, planned: bool) -> None:
    """What the command finds, as if the backend for DynamoDB were not installed."""
    found = [info for info in installed_backends() if info.name != "dynamodb"]
    monkeypatch.setattr("chatkeep_cli.backends.installed_backends", lambda: found)
    monkeypatch.setattr("chatkeep_cli.backends.PLANNED", frozenset({"dynamodb"} if planned else ()))


def test_backends_lists_what_is_installed(chatkeep: Any) -> None:
    table = chatkeep("backends").out
    found = [json.loads(line) for line in chatkeep("backends", "--json").out.splitlines()]
    assert {each["name"] for each in found} == {*KNOWN.values(), *(info.name for info in installed_backends())}
    for info in installed_backends():
        (line,) = (line for line in table.splitlines() if line.startswith(f"{info.name} "))
        assert line.split()[1] == info.version
        assert f"{info.schemes[0]}://" in line


def test_a_planned_backend_is_listed_as_no_part_of_this_version(chatkeep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_dynamodb(monkeypatch, planned=True)
    (line,) = (line for line in chatkeep("backends").out.splitlines() if line.startswith("dynamodb "))
    assert line.rstrip().endswith("planned, not part of this version")
    found = [json.loads(line) for line in chatkeep("backends", "--json").out.splitlines()]
    assert [(each["installed"], each["install"]) for each in found if each["name"] == "dynamodb"] == [(False, None)]


def test_a_backend_to_be_had_is_listed_with_its_install_line(chatkeep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_dynamodb(monkeypatch, planned=False)
    table = chatkeep("backends").out
    (line,) = (line for line in table.splitlines() if line.startswith("dynamodb "))
    assert line.rstrip().endswith("pip install 'chatkeep[dynamodb]'")
    assert "From a checkout of chatkeep: pip install ./core ./plugins/NAME" in table
    found = [json.loads(line) for line in chatkeep("backends", "--json").out.splitlines()]
    assert {each["install"] for each in found if each["name"] == "dynamodb"} == {"pip install 'chatkeep[dynamodb]'"}


def test_a_backend_that_does_not_load_is_listed_with_the_cause(
    chatkeep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "chatkeep_broken-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chatkeep-broken\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[chatkeep]\nbroken = chatkeep_broken\n")
    (tmp_path / "chatkeep_broken.py").write_text("raise RuntimeError('no driver [red] here')")
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = chatkeep("backends")
    assert shown.code == 0
    assert "broken cannot be used: the backend 'broken' (chatkeep-broken 2.0) is installed, but does " in shown.out
    assert "RuntimeError: no driver [red] here" in shown.out
    found = [json.loads(line) for line in chatkeep("backends", "--json").out.splitlines()]
    (broken,) = (each for each in found if each["name"] == "broken")
    assert "no driver" in broken["error"]
    sys.modules.pop("chatkeep_broken", None)
