"""What ``from chatkeep import …`` gives."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import chatkeep
from chatkeep import errors

BUILTINS = (
    ValueError,
    TypeError,
    ImportError,
    PermissionError,
    LookupError,
    RuntimeError,
    ConnectionError,
    TimeoutError,
)


def test_every_error_can_be_imported_from_chatkeep() -> None:
    found = {name: value for name, value in vars(errors).items() if inspect.isclass(value) and name.endswith("Error")}
    assert len(found) == 25
    for name, error in found.items():
        assert issubclass(error, chatkeep.ChatkeepError)
        assert getattr(chatkeep, name) is error
        assert name in chatkeep.__all__


def test_the_tree_in_the_docstring_has_every_error_and_its_builtins() -> None:
    tree = errors.__doc__ or ""
    for name in chatkeep.__all__:
        error = getattr(chatkeep, name)
        if inspect.isclass(error) and issubclass(error, chatkeep.ChatkeepError):
            (line,) = (line for line in tree.splitlines() if line.lstrip(" │├└─").split(" ")[0] == name)
            added = {base.__name__ for base in error.__bases__ if base in BUILTINS}
            assert all(builtin in line for builtin in added), name


def test_every_public_name_is_there() -> None:
    for name in chatkeep.__all__:
        assert hasattr(chatkeep, name), name


@pytest.mark.parametrize("lacking", ["pytest", "pytest_asyncio", "pytest_timeout", "hypothesis"])
def test_the_contract_without_what_it_needs_says_what_to_install(lacking: str) -> None:
    code = f"import sys; sys.modules[{lacking!r}] = None; import chatkeep.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: chatkeep.testing needs hypothesis, pytest, pytest-asyncio and pytest-timeout, and {lacking} is "
        "not installed: pip install 'chatkeep-core[testing]' "
        "(from a checkout of chatkeep: pip install './core[testing]')"
    )
