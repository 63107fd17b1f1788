"""How the command ends, and what it lets out: exit codes, errors in one line, no secrets, no traceback, no noise."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from chatkeep import errors
from chatkeep.factory import DEFAULT_URL
from chatkeep_cli import failures
from chatkeep_cli.main import EXIT_CODES

URL = "sqlite:///chat.db"
HELLO = {"role": "user", "content": "Hello"}
COMMANDS = ("demo", "backends", "ping", "sessions", "show", "add")


def in_terminal(command: list[str], columns: int, **environment: str) -> str:
    """What the command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    more = {"TERM": "xterm-256color"} | environment
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | more)
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed.
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert process.wait(60) == 0
    return written.decode().replace("\r\n", "\n")


def test_help_lists_the_commands_and_the_exit_codes(chatkeep: Any) -> None:
    for arguments in (["--help"], ["-h"]):
        shown = chatkeep.process(*arguments)
        assert (shown.code, shown.err) == (0, "")
        for name in COMMANDS:
            assert re.search(rf"^  {name} +[A-Z][^.]+\.$", shown.out, re.MULTILINE), name
        for code in failures.Code:
            assert re.search(rf"^ +{code.value}  ", shown.out, re.MULTILINE), code
            assert re.search(rf"^  {code.value}  ", EXIT_CODES, re.MULTILINE), code


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_s_help_has_examples_that_are_command_lines(chatkeep: Any, command: str) -> None:
    shown = chatkeep(command, "--help")
    assert shown.code == 0
    assert f"    chatkeep {command}" in shown.out or f"| chatkeep {command}" in shown.out
    if command not in ("demo", "backends"):
        assert DEFAULT_URL in " ".join(shown.out.split())


def test_without_a_command_it_shows_its_help_as_a_usage_error(chatkeep: Any) -> None:
    shown = chatkeep()
    assert shown.code == 2
    assert shown.out == chatkeep("--help").out


def test_help_and_usage_errors_import_neither_chatkeep_nor_rich() -> None:
    code = (
        "import sys; from chatkeep_cli.main import main; main(['--help']); main(['show', '--help']); main(['nope']); "
        "print([name for name in ('chatkeep', 'rich', 'aiosqlite') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"


def test_the_version_is_the_distribution_s(chatkeep: Any) -> None:
    from importlib.metadata import version

    assert chatkeep("--version") == (0, f"chatkeep {version('chatkeep-cli')}\n", "")


def test_every_error_of_the_library_has_an_exit_code() -> None:
    def code(kind: type[Exception]) -> int:
        return failures.report(kind("x"), (), debug=False)

    assert code(errors.MessageNotFoundError) == 1
    for kind in (errors.ConfigError, errors.InvalidURLError, errors.InvalidIdError, errors.SerializationError):
        assert code(kind) == 2
    for kind in (errors.StoreError, errors.StoreUnavailableError, errors.StoreTimeoutError, errors.ConflictError):
        assert code(kind) == 3
    for kind in (errors.CorruptRecordError, errors.StoreFormatError):
        assert code(kind) == 4
    assert code(errors.OutcomeUnknownError) == 5
    assert code(RuntimeError) == 70


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "No such command 'nope'"),
        (["sesions"], "Did you mean 'sessions'"),
        (["show"], "which session?"),
        (["add"], "which session?"),
        (["show", URL], "which session?"),
        (["show", URL, "s", "t"], "unexpected extra argument"),
        (["show", URL, "s", "--last", "-1"], "--last"),
        (["show", URL, "s", "--last", "x"], "--last"),
        (["sessions", URL, "--limit", "0"], "--limit"),
        (["sessions", URL, "--tenant", ""], "tenant must not be empty"),
        (["show", URL, ""], "a session id must not be empty"),
        (["show", URL, "x" * 2000], "a session id is 2000 bytes long"),
        (["ping", ""], "the connection URL is empty"),
        (["ping", "chat.db"], "write sqlite:///chat.db"),
        (["ping", "sqlit:///chat.db"], "Did you mean 'sqlite'"),
        (["ping", "sqlite:///chat.db?ttk=1"], "Did you mean ttl"),
        (["ping", "sqlite:///chat.db?ttl=soon"], "ttl"),
        (["--nope"], "No such option"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(
    chatkeep: Any, failure: Any, arguments: list[str], words: str
) -> None:
    ended = chatkeep(*arguments)
    assert ended.code == 2
    assert words in failure(ended)
    assert not list(chatkeep.folder.iterdir())


@pytest.mark.parametrize("command", ["ping", "sessions", "show", "add"])
def test_a_database_that_cannot_be_opened_is_one_line_and_code_3(
    chatkeep: Any, failure: Any, tmp_path: Path, command: str
) -> None:
    (tmp_path / "text.db").write_text("this is no database\n" * 100)
    (tmp_path / "folder.db").mkdir()
    session = ["s"] if command in ("show", "add") else []
    for name in ("text.db", "folder.db", "missing/chat.db"):
        ended = chatkeep.process(command, f"sqlite:///{name}", *session, stdin=json.dumps(HELLO))
        assert ended.code == 3
        assert name in failure(ended)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to everything: run the tests as another user")
def test_a_file_that_may_not_be_written_is_one_line_and_code_3(chatkeep: Any, failure: Any, tmp_path: Path) -> None:
    chatkeep.add("s", [HELLO])
    (tmp_path / "chat.db").chmod(0o400)
    ended = chatkeep("add", URL, "s", stdin=json.dumps(HELLO))
    assert ended.code == 3
    failure(ended)


def test_no_password_is_ever_shown(chatkeep: Any) -> None:
    url = "redis://alice:hunter2secret@127.0.0.1:1/0?password=otherSecret"
    for arguments in (
        [url],
        ["ping", url],
        ["ping", url, url],
        ["show", url, "s", f"--nope={url}"],
        ["show", "s", url],
        ["add", url, "s"],
        ["demo", "--part", "store", url],
        ["sessions", "--limit", url],
        ["ping", "redis://alice:hunter2secret@host/0#x"],
        ["ping", "nosuch://alice:hunter2secret@host/otherSecret@x"],
        ["redis://alice:hunter2secret@host/otherSecret@x"],
        ["ping", "alice:hunter2secret@host"],
    ):
        for before in ([], ["--debug"]):
            ended = chatkeep(*before, *arguments, stdin=json.dumps(HELLO), CHATKEEP_URL=url)
            assert ended.code in (2, 3)  # a mistake; or nobody there, where the plugin is installed
            for secret in ("hunter2secret", "otherSecret"):
                assert secret not in ended.out + ended.err, arguments


def test_a_driver_that_quotes_the_url_gives_nothing_away(capsys: pytest.CaptureFixture[str]) -> None:
    url = "redis://alice:hunter2secret@host:6379/0"
    error = errors.StoreUnavailableError(f"cannot connect to {url} with 'hunter2secret'\nsecond line")
    assert failures.report(error, ["ping", url], debug=True) == 3
    told = capsys.readouterr().err
    assert told.endswith("chatkeep: cannot connect to redis://alice:***@host:6379/0 with '***' second line\n")
    assert "hunter2secret" not in told


def test_a_driver_that_quotes_the_url_of_the_environment_gives_nothing_away_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHATKEEP_URL", "redis://:hunter2secret@host:6379/0")
    failures.report(errors.StoreUnavailableError("AUTH hunter2secret was refused"), ["ping"], debug=True)
    told = capsys.readouterr().err
    assert told.endswith("chatkeep: AUTH *** was refused\n")
    assert "hunter2secret" not in told


def test_a_traceback_is_shown_with_debug_alone(chatkeep: Any) -> None:
    arguments = ["ping", "sqlite:///missing/chat.db"]
    assert "Traceback" not in chatkeep.process(*arguments).err
    shown = chatkeep.process("--debug", *arguments)
    assert shown.code == 3
    assert "Traceback" in shown.err
    assert shown.err.splitlines()[-1].startswith("chatkeep: ")


def test_what_nobody_foresaw_is_one_line_too(chatkeep: Any, failure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr("chatkeep_cli.backends.installed_backends", fail)
    ended = chatkeep("backends")
    assert ended.code == 70
    assert "RuntimeError: out of luck" in failure(ended)


def test_a_reader_that_has_had_enough_ends_it_quietly(chatkeep: Any) -> None:
    chatkeep.add("s", [{"role": "user", "content": "x" * 1000}] * 500)
    for arguments in (["show", URL, "s"], ["show", URL, "s", "--json"], ["sessions", URL], ["--help"]):
        process = subprocess.Popen(chatkeep.line(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141, arguments
        process.stderr.close()


def test_a_demo_whose_reader_has_had_enough_ends_quietly(chatkeep: Any) -> None:
    process = subprocess.Popen(chatkeep.line("demo"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141
    process.stderr.close()


def test_ctrl_c_ends_it_quietly_with_130(chatkeep: Any) -> None:
    ours, theirs = pty.openpty()
    line = chatkeep.line("add", URL, "s")
    # Where the tests run in the background Ctrl-C is ignored, and a child inherits what is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(line, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr is not None
        assert b"Ctrl-D ends" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert not list(chatkeep.folder.iterdir())


def test_a_terminal_gets_colours_and_no_color_takes_them_away(chatkeep: Any) -> None:
    chatkeep.add("s", [HELLO])
    line = chatkeep.line("show", URL, "s")
    assert "\x1b[" in in_terminal(line, 80)
    assert "\x1b" not in in_terminal(line, 80, NO_COLOR="1")
    assert "\x1b" not in in_terminal(chatkeep.line("sessions", URL), 80, NO_COLOR="1")
    assert "\x1b" not in chatkeep.process("show", URL, "s").out


@pytest.mark.parametrize("columns", [30, 60, 100, 160])
def test_in_a_terminal_of_any_width_everything_is_there_and_nothing_is_wider(chatkeep: Any, columns: int) -> None:
    said = "The quick brown fox jumps over the lazy dog, " * 8 + "🦊狐" * 40
    name = "foxy" * 20
    chatkeep.add(name, [{"role": "user", "content": said}])
    shown = in_terminal(chatkeep.line("show", URL, name), columns, NO_COLOR="1")
    assert re.sub(r"\s", "", said) in re.sub(r"\s", "", shown)
    body = shown.partition("\n\n")[2].splitlines()
    assert body
    assert max(map(cell_len, body)) <= min(columns, 100)
    listed = in_terminal(chatkeep.line("sessions", URL), columns, NO_COLOR="1").splitlines()
    assert max(map(cell_len, listed)) <= columns
    assert name in re.sub(r"[^foxy]", "", "".join(listed))


def test_with_json_nothing_but_data_is_on_standard_output(chatkeep: Any) -> None:
    chatkeep.add("s", [HELLO])
    for arguments in (["show", URL, "s"], ["sessions", URL], ["sessions", URL, "--limit", "1"], ["backends"], ["ping"]):
        shown = chatkeep.process(*arguments, "--json", FORCE_COLOR="1", CHATKEEP_URL=URL)
        assert shown.code == 0
        assert shown.out
        for line in shown.out.splitlines():
            json.loads(line)
