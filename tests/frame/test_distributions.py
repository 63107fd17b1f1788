"""The distributions fit together: one version, pinned to each other, complete, and known to every list of them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def table(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


WORKSPACE = table(ROOT)["tool"]["uv"]["workspace"]["members"]
MEMBERS = sorted(
    project.parent.relative_to(ROOT) for member in WORKSPACE for project in ROOT.glob(f"{member}/pyproject.toml")
)
"""Every distribution that holds code."""
PLUGINS = [folder for folder in MEMBERS if folder.parts[0] == "plugins"]
STRANGERS = sorted(project.parent.relative_to(ROOT) for project in ROOT.glob("tests/thirdparty/*/pyproject.toml"))
"""Distributions of backends that are tested as somebody else's."""
PROJECTS: dict[Path, dict[str, Any]] = {folder: table(ROOT / folder)["project"] for folder in [*MEMBERS, Path()]}
ADAPTERS = Path("adapters")
FRAMEWORKS = set(PROJECTS[ADAPTERS]["optional-dependencies"]) - {"all"}
"""The agent frameworks that there are adapters for."""
ADAPTED = {"claude-agent-sdk": "claude_agent", "openai-agents": "openai_agents"}
"""The adapters that are not named as their extra is."""

each_distribution = pytest.mark.parametrize("folder", PROJECTS, ids=str)
each_member = pytest.mark.parametrize("folder", MEMBERS, ids=str)
each_stranger = pytest.mark.parametrize("folder", STRANGERS, ids=str)
each_plugin = pytest.mark.parametrize("folder", PLUGINS, ids=str)


def requirements(project: dict[str, Any]) -> list[Requirement]:
    """All that a distribution depends on, by whatever extra."""
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for texts in (project.get("dependencies", []), *extras) for text in texts]


def package(folder: Path) -> str:
    """The import package in a distribution's folder."""
    if folder in STRANGERS:
        return folder.name.replace("-", "_")
    return "chatkeep" if folder == Path("core") else f"chatkeep_{folder.name}"


def test_all_distributions_have_one_version() -> None:
    assert len({project["version"] for project in PROJECTS.values()}) == 1


@each_distribution
def test_distributions_are_pinned_to_each_other_at_that_version(folder: Path) -> None:
    ours = {project["name"] for project in PROJECTS.values()}
    project = PROJECTS[folder]
    for requirement in requirements(project):
        if requirement.name == project["name"]:
            assert requirement.extras, "a distribution refers to itself for its extras alone"
        elif requirement.name.startswith("chatkeep"):
            assert requirement.name in ours
            assert str(requirement.specifier) == f"=={project['version']}"


@each_distribution
def test_every_dependency_from_elsewhere_has_a_lower_bound(folder: Path) -> None:
    for requirement in requirements(PROJECTS[folder]):
        if not requirement.name.startswith("chatkeep"):
            assert any(bound.operator == ">=" for bound in requirement.specifier), requirement


@each_distribution
def test_what_is_said_of_a_distribution_is_said_of_all(folder: Path) -> None:
    root = PROJECTS[Path()]
    for field in ("requires-python", "license", "license-files", "authors", "readme"):
        assert PROJECTS[folder][field] == root[field]
    pythons = [line for line in root["classifiers"] if line.startswith(("Programming", "Development"))]
    assert set(pythons) <= set(PROJECTS[folder]["classifiers"])
    assert table(ROOT / folder)["build-system"] == table(ROOT)["build-system"]


@each_distribution
def test_every_distribution_has_the_licence_and_a_readme_of_its_own(folder: Path) -> None:
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (ROOT / folder / "README.md").read_text(encoding="utf-8").startswith(f"# {PROJECTS[folder]['name']}\n")


@each_member
def test_every_import_package_is_typed_and_is_what_the_wheel_holds(folder: Path) -> None:
    source = ROOT / folder / "src" / package(folder)
    assert (source / "__init__.py").is_file()
    assert (source / "py.typed").is_file()
    assert table(ROOT / folder)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"src/{package(folder)}"]
    assert [path.name for path in (ROOT / folder / "src").iterdir() if path.name.isidentifier()] == [package(folder)]


def test_the_root_distribution_holds_no_code() -> None:
    assert table(ROOT)["tool"]["hatch"]["build"]["targets"]["wheel"] == {"bypass-selection": True}
    assert not (ROOT / "src").exists()


def test_core_depends_on_pydantic_and_pluggy_alone() -> None:
    names = {Requirement(text).name for text in PROJECTS[Path("core")]["dependencies"]}
    assert names == {"pydantic", "pluggy"}


@each_plugin
def test_a_plugin_has_one_name_everywhere(folder: Path) -> None:
    project = PROJECTS[folder]
    assert project["name"] == f"chatkeep-{folder.name}"
    assert project["entry-points"] == {"chatkeep": {folder.name: package(folder)}}
    assert {f"{project['name']}=={project['version']}"} == set(
        PROJECTS[Path()]["optional-dependencies"][folder.name]
    ), "the root distribution's extra is named as the plugin is"


def test_the_extra_all_is_every_backend() -> None:
    extras = PROJECTS[Path()]["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == {folder.name for folder in PLUGINS}
    assert set(extras) == everything.extras | FRAMEWORKS | {"testing", "all"}


def test_every_framework_has_an_extra_an_adapter_and_tests_of_one_name() -> None:
    extras = PROJECTS[ADAPTERS]["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == FRAMEWORKS == set(extras) - {"all"}
    source = ROOT / ADAPTERS / "src" / "chatkeep_adapters"
    adapters = {ADAPTED.get(name, name.replace("-", "_")) for name in FRAMEWORKS}
    assert adapters >= {path.parent.name for path in source.glob("*/__init__.py")}
    assert all((source / name).is_dir() or (source / f"{name}.py").is_file() for name in adapters)
    assert all((ROOT / "tests" / "adapters" / name).is_dir() for name in adapters)
    for name in FRAMEWORKS:
        (through,) = map(Requirement, PROJECTS[Path()]["optional-dependencies"][name])
        assert (through.name, through.extras) == (PROJECTS[ADAPTERS]["name"], {name})


def test_the_frameworks_that_are_checked_are_those_that_the_extras_name() -> None:
    extras = PROJECTS[ADAPTERS]["optional-dependencies"]
    assert groups("frameworks") == {text for name in FRAMEWORKS for text in extras[name]}


@pytest.mark.parametrize("name", ["core", *(folder.name for folder in PLUGINS)])
def test_every_backend_is_tested_by_the_contract(name: str) -> None:
    assert "StoreContract" in (ROOT / "tests" / name / "test_contract.py").read_text(encoding="utf-8")


def test_there_is_a_strangers_backend() -> None:
    assert STRANGERS


@each_stranger
def test_a_strangers_backend_is_a_distribution_of_its_own_that_depends_on_core_alone(folder: Path) -> None:
    project = table(ROOT / folder)["project"]
    assert project["name"] == folder.name
    assert project["name"] not in {ours["name"] for ours in PROJECTS.values()}
    assert [Requirement(text).name for text in project["dependencies"]] == ["chatkeep-core"]
    assert project["entry-points"] == {"chatkeep": {folder.name.removeprefix("chatkeep-"): package(folder)}}
    assert (ROOT / folder / "src" / package(folder) / "py.typed").is_file()
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@each_stranger
def test_four_lines_put_a_strangers_backend_through_the_contract(folder: Path) -> None:
    name = folder.name.removeprefix("chatkeep-")
    lines = (ROOT / folder / "tests" / f"test_{name}.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line]) == 4
    assert f"class Test{name.title()}(StoreContract):" in lines


def test_the_tests_of_a_strangers_backend_are_no_part_of_those_of_this_checkout() -> None:
    others = [
        f"--ignore={folder}" for folder in (ROOT / "tests").iterdir() if folder.name not in ("frame", "thirdparty")
    ]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *others]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/frame" in found
    assert "thirdparty" not in found


def test_uv_takes_every_distribution_from_the_workspace() -> None:
    tool = table(ROOT)["tool"]["uv"]
    assert tool["sources"] == {project["name"]: {"workspace": True} for project in PROJECTS.values()}
    assert tool["default-groups"] == []


@each_member
def test_uv_builds_a_distribution_anew_when_its_sources_change(folder: Path) -> None:
    keys = table(ROOT / folder)["tool"]["uv"]["cache-keys"]
    assert keys == [{"file": "pyproject.toml"}, {"file": "src/**/*"}]


def test_the_tools_look_at_every_distribution() -> None:
    tool = table(ROOT)["tool"]
    sources = {f"{folder.as_posix()}/src" for folder in [*MEMBERS, *STRANGERS]}
    assert set(tool["mypy"]["mypy_path"]) == sources
    files = [Path(file) for file in tool["mypy"]["files"]]
    assert all(any(Path(source).is_relative_to(file) for file in files) for source in sources)
    packages = {package(folder) for folder in [*MEMBERS, *STRANGERS]}
    assert set(tool["ruff"]["lint"]["isort"]["known-first-party"]) == packages


def groups(name: str) -> set[str]:
    """The requirements of one of the root's dependency groups, and of those that it includes."""
    found: set[str] = set()
    for entry in table(ROOT)["dependency-groups"][name]:
        found |= {entry} if isinstance(entry, str) else groups(entry["include-group"])
    return found


def test_requirements_dev_is_pips_twin_of_the_workspace() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    editable = {line.removeprefix("-e ") for line in entries if line.startswith("-e ")}
    assert editable == {".", "./core[testing]"} | {f"./{folder.as_posix()}" for folder in MEMBERS} - {"./core"}
    assert {line for line in entries if not line.startswith("-e ")} == groups("dev")


def test_the_tests_tools_are_the_ones_that_the_extra_testing_names() -> None:
    assert set(PROJECTS[Path("core")]["optional-dependencies"]["testing"]) <= groups("test")


def test_a_lock_file_stays_out_of_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    for name in ("uv.lock", ".venv/x", "chatkeep.db"):
        assert subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT, check=False).returncode == 0, name
