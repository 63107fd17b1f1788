"""The README says what is true: its code runs, its tables are the code's, its links lead somewhere."""

from __future__ import annotations

import builtins
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import chatkeep
from chatkeep import errors
from chatkeep.plugins import KNOWN, installed_backends
from chatkeep.testing import StoreContract
from chatkeep_sqlite import SQLiteOptions

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [match.groups() for match in FENCE.finditer(README)]


def block(title: str) -> str:
    """The code block of that title."""
    (code,) = (code for _, name, code in BLOCKS if name == title)
    return code


def table(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has that heading, without the heading."""
    (found,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", README, re.MULTILINE)
    return [[cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in found.splitlines()]


def codes(cell: str) -> list[str]:
    """What stands in back quotes."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("title", ["support.py", "script.py"])
def test_a_program_runs_as_it_is_prints_what_it_says_and_doubles_nothing(title: str, tmp_path: Path) -> None:
    (tmp_path / title).write_text(block(title), encoding="utf-8")
    (promised,) = re.findall(r"# (\[.*\])$", block(title), re.MULTILINE)
    for _ in range(2):
        program = subprocess.run([sys.executable, title], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (program.stdout.strip(), program.stderr, program.returncode) == (promised, "", 0)
    assert (tmp_path / "chat.db").exists()


def test_the_commands_do_what_is_said_with_the_lines_that_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "messages.jsonl").write_text(block("messages.jsonl"), encoding="utf-8")
    (commands,) = (code for language, _, code in BLOCKS if language == "sh" and code.startswith("chatkeep "))
    printed = []
    for line in commands.splitlines():
        command, _, name = line.removeprefix("chatkeep ").partition(" < ")
        given = (tmp_path / name).read_bytes() if name else b""
        done = subprocess.run(
            [sys.executable, "-m", "chatkeep_cli", *command.split()], input=given, capture_output=True, check=True
        )
        printed.append(done.stdout.decode())
    assert "added 2 messages" in printed[0]
    assert "It comes with the evening flight." in printed[1]
    assert "support-43" in printed[2]


def test_the_contributors_guide_imports_what_there_is(tmp_path: Path) -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lines = re.findall(r"^ *(from chatkeep[\w.]* import .+)$", guide, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        exec(line, {})


def test_the_demo_prints_what_the_readme_shows_but_for_numbers(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "chatkeep_cli", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (shown,) = (code for language, _, code in BLOCKS if language == "text")
    assert shown.count("\n") == len(shown.splitlines()) == 8
    assert without_numbers(shown) in without_numbers(result.stdout)


def without_numbers(text: str) -> str:
    """The text, with 0 for any number, 0 ms for any time, and one space for several: they differ from run to run."""
    return re.sub(r"[\d.,]*\d", "0", re.sub(r"[ \t]+", " ", text)).replace("0 µs", "0 ms")


def test_a_backend_takes_twelve_lines_and_its_test_four(tmp_path: Path) -> None:
    for title, most in (("chatkeep_echo.py", 12), ("test_echo.py", 4)):
        lines = [line for line in block(title).splitlines() if line.strip()]
        imports = sum(line.startswith(("import ", "from ")) for line in lines) if most == 4 else 0
        assert len(lines) - imports <= most, title
        (tmp_path / title).write_text(block(title), encoding="utf-8")
    info = tmp_path / "chatkeep_echo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chatkeep-echo\nVersion: 1.0\n", encoding="utf-8")
    (entry_point,) = re.findall(r"entry point, `([^`]+)`", README)
    (info / "entry_points.txt").write_text("[chatkeep]\n" + entry_point.replace('"', "") + "\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_echo.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (passed,) = re.findall(r"(\d+) passed", result.stdout)
    assert int(passed) >= 100, "the whole contract was run"


def test_the_table_of_backends_has_every_installed_one_with_its_schemes() -> None:
    rows = {row[0]: row for row in table("backend")}
    assert rows.keys() == {backend.name for backend in installed_backends()}
    for backend in installed_backends():
        shown = {url.partition(":")[0] for url in codes(rows[backend.name][1])}
        assert shown == set(backend.schemes)
        assert backend.name == "memory" or set(backend.schemes) <= KNOWN.keys()


def test_every_url_in_the_table_of_backends_opens_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for row in table("backend"):
        for url in codes(row[1]):
            chatkeep.open_store(url)


def test_the_table_of_options_is_that_of_the_code() -> None:
    fields = SQLiteOptions.model_fields
    rows = {codes(row[0])[0]: row for row in table("option")}
    assert rows.keys() == fields.keys()
    for name, field in fields.items():
        default = "none" if field.default is None else f"`{str(field.default).lower()}`"
        if isinstance(field.default, str):
            default = f"`{field.default}`"
        assert rows[name][1:] == [default, field.description], name


def test_the_errors_in_the_table_are_what_they_are_said_to_be() -> None:
    for row in table("error"):
        name, *base = codes(row[0])
        error = getattr(errors, name)
        assert issubclass(error, errors.ChatkeepError)
        for builtin in base:
            assert issubclass(error, getattr(builtins, builtin))


def test_what_a_session_can_do_can_be_done() -> None:
    known = {
        name
        for kind in (chatkeep.Session, chatkeep.ScopedStore, chatkeep.Store, chatkeep.State, chatkeep.Log)
        for name, _ in inspect.getmembers(kind)
    }
    for row in table("you want to"):
        for code in codes(row[1]):
            name = code.partition("(")[0].rpartition(".")[2]
            assert name in known, code


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    if link.startswith("#"):
        headings = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
        assert link[1:] in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    elif not link.startswith("https://"):
        assert (ROOT / link).exists()


def test_every_install_line_has_its_form_for_a_checkout() -> None:
    assert "pip install ./core ./plugins/sqlite ./cli ." in README


def test_the_contract_in_words_has_the_clauses_of_the_tests() -> None:
    words = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    shown = {
        number
        for name, test in inspect.getmembers(StoreContract, inspect.isfunction)
        if name.startswith("test")
        for number in test.clauses
    }
    assert set(map(int, re.findall(r"^(\d+)\. ", words, re.MULTILINE))) == shown == set(range(1, 29))
