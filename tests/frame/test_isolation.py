"""In an environment made for one backend, nothing of the others is there: what passes here passes for a user of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ONLY = os.environ.get("CHATKEEP_ONLY", "")

pytestmark = pytest.mark.skipif(not ONLY, reason="CHATKEEP_ONLY is set by nox -s tests, for an environment of its own")


def test_only_core_and_the_one_backend_are_installed() -> None:
    ours = {name.lower() for found in importlib.metadata.distributions() if (name := found.name).startswith("chatkeep")}
    assert ours == {"chatkeep-core"} | ({f"chatkeep-{ONLY}"} - {"chatkeep-memory"})


def test_no_driver_of_another_backend_and_no_command_line_library_can_be_imported() -> None:
    others = [path for path in [*ROOT.glob("plugins/*"), ROOT / "cli"] if path.name != ONLY]
    drivers = {
        Requirement(text).name
        for folder in others
        if (folder / "pyproject.toml").is_file()
        for text in tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    }
    assert not {name for name in drivers - {"chatkeep-core"} if importlib.util.find_spec(name.replace("-", "_"))}


def test_the_packages_come_from_the_environment_and_not_from_the_checkout() -> None:
    for package in {"chatkeep", f"chatkeep_{ONLY}"} - {"chatkeep_memory"}:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        assert not Path(spec.origin).is_relative_to(ROOT / "core")
        assert not Path(spec.origin).is_relative_to(ROOT / "plugins")
