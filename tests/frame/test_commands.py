"""The set-up commands in README are the ones that CI runs, and nox keeps its word about interpreters and versions."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("nox", reason="nox is not installed: pip install -r requirements-dev.txt")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def noxfile() -> Iterator[ModuleType]:
    """The noxfile as a module, loaded once (nox refuses a session twice); what it does to the environment is undone."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("PATH", "UV_NO_SOURCES", "UV_PYTHON_DOWNLOADS"):
            monkeypatch.setenv(name, os.environ.get(name, ""))
        for name in ("CHATKEEP_REQUIRE", "CHATKEEP_REQUIRE_PYTHONS"):
            monkeypatch.delenv(name, raising=False)
        spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m venv .venv && .venv/bin/pip install -q ./core ./plugins/sqlite ./cli . && .venv/bin/chatkeep demo",
        "python3 -m venv .venv && .venv/bin/pip install -q -r requirements-dev.txt && .venv/bin/nox -s quick",
    ],
)
def test_ci_runs_the_set_up_commands_that_readme_gives(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["uv run chatkeep demo", "uv run --all-packages --group dev nox -s quick"])
def test_readme_gives_uvs_twins_of_them(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")


def test_command_one_installs_every_distribution_that_chatkeep_needs(noxfile: ModuleType) -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if ".venv/bin/chatkeep demo" in line]
    words = shlex.split(line.split("pip install -q")[1].split("&&")[0])
    pinned = {text.partition("==")[0] for text in noxfile.project(ROOT)["dependencies"]}
    needed = [folder for folder in noxfile.DISTRIBUTIONS if noxfile.project(folder)["name"] in {"chatkeep", *pinned}]
    assert words == list(map(noxfile.path, needed))


def test_the_newest_release_that_pyenv_keeps_is_taken(noxfile: ModuleType, tmp_path: Path) -> None:
    for name in ("3.10.1", "3.12.9", "3.12.10", "3.13.0rc1", "3.13-dev"):
        program = tmp_path / "versions" / name / "bin" / f"python{name.rpartition('.')[0]}"
        program.parent.mkdir(parents=True)
        program.touch()
    (tmp_path / "versions" / "3.11.4").mkdir()
    assert noxfile.interpreter_folders(tmp_path) == {"3.12": tmp_path / "versions" / "3.12.10" / "bin"}


def test_the_lowest_versions_are_the_lower_bounds(noxfile: ModuleType) -> None:
    wanted = noxfile.lowest_versions(["aiosqlite>=0.22,<0.23", "rich[jupyter]>=13.7", "pluggy~=1.5", "attrs", "six<2"])
    assert list(wanted) == ["aiosqlite==0.22", "rich==13.7", "pluggy==1.5"]


def test_a_name_that_nobody_knows_is_refused_with_the_ones_there_are(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHATKEEP_REQUIRE_PYTHONS", "3.11, 3.7")
    with pytest.raises(ValueError, match=r"^CHATKEEP_REQUIRE_PYTHONS names 3\.7: here there are 3\.11, 3\.12, 3\.13$"):
        noxfile.names("CHATKEEP_REQUIRE_PYTHONS", known=noxfile.PYTHONS)


def test_an_interpreter_that_is_not_here_is_said_to_be_missing(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert not noxfile.present("3.99"), "a shim of pyenv is a program that fails"
    assert not noxfile.present("3.98")


def test_what_measures_speed_runs_alone_after_the_rest_and_arguments_are_obeyed_in_one_process(
    noxfile: ModuleType,
) -> None:
    class Recorder:
        def __init__(self, name: str, *arguments: str) -> None:
            self.name = name
            self.posargs = list(arguments)
            self.runs: list[tuple[str, ...]] = []

        def run(self, *command: str, env: dict[str, str], success_codes: tuple[int, ...] = (0,)) -> None:
            self.runs.append(command[3:])  # python -m pytest

    quick, asked = Recorder("quick"), Recorder("quick", "tests/frame", "-k", "window")
    lowest, no_speed = Recorder("lowest"), Recorder("tests-3.11(memory)")
    for session in (quick, asked):
        noxfile.pytest(session, require=set())
    noxfile.pytest(lowest, "tests/sqlite", require=set())
    noxfile.pytest(no_speed, "tests/core", require=set())
    assert quick.runs == [("-m", "not speed", *noxfile.SIDE_BY_SIDE), ("-m", "speed")]
    assert asked.runs == [("tests/frame", "-k", "window")]
    rest = ("-m", "not speed and not once", *noxfile.SIDE_BY_SIDE)
    assert lowest.runs == [("tests/sqlite", *rest), ("tests/sqlite", "-m", "speed")]
    assert no_speed.runs == [("tests/core", *rest)]


def test_what_measures_speed_lies_in_files_of_one_name() -> None:
    mark = ".mark." + "speed"
    files = [path for path in ROOT.glob("tests/*/**/test_*.py") if mark in path.read_text(encoding="utf-8")]
    assert {path.name for path in files} == {"test_speed.py"}


def test_every_session_is_among_those_that_plain_nox_runs_but_four(noxfile: ModuleType) -> None:
    import nox

    known = set(nox.registry.get())
    assert set(nox.options.sessions or ()) == known - {"quick", "bench", "endurance", "servers", "valkey"}
    assert noxfile.BACKENDS[0] == "memory"
