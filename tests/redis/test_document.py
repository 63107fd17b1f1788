"""docs/redis.md says what is true: its program runs, its tables are the code's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.redis import servers
from tests.redis.servers import Secured

import chatkeep.sync
from chatkeep import open_store
from chatkeep.options import StoreOptions, own_keys
from chatkeep_redis.options import SCHEMES, RedisOptions

pytestmark = pytest.mark.once

DOCUMENT = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has that heading, without the heading."""
    (found,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    return [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in found.splitlines()]


def program(title: str) -> str:
    (code,) = re.findall(rf'^```python title="{title}"\n(.*?)^```$', DOCUMENT, re.MULTILINE | re.DOTALL)
    return str(code)


def test_the_program_runs_as_it_is_printed_and_the_command_line_sees_what_it_stored(tmp_path: Path) -> None:
    mine = servers.shared().url(prefix=servers.prefix())
    code, theirs = program("support.py"), "redis://localhost:6379/0?prefix=shop:"
    assert theirs in code
    assert f"'{theirs}'" in DOCUMENT, "quoted"
    (tmp_path / "support.py").write_text(code.replace(theirs, mine))
    ran = subprocess.run([sys.executable, "support.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("['Where is my bag?', 'In Oslo.']\n", "")
    with chatkeep.sync.open_store(mine) as store:
        assert [info.id for info in store.list_sessions(below=True)] == ["support-42"]


def test_no_program_has_the_name_of_a_module_that_it_needs() -> None:
    for title in re.findall(r'^```python title="(.*?)\.py"', DOCUMENT, re.MULTILINE):
        assert importlib.util.find_spec(title) is None


async def test_the_program_with_a_client_of_its_own_runs() -> None:
    names: dict[str, Any] = {}
    exec(program("own_client.py"), names)
    assert (await names["main"](port=servers.shared().port)).startswith(("Redis ", "Valkey "))


def test_the_table_of_options_is_that_of_the_backend() -> None:
    shown = {name.strip("`"): default.strip("`") for name, default, _ in table("option")}
    assert shown.keys() == own_keys(RedisOptions) - own_keys(StoreOptions)
    defaults = {name: RedisOptions.model_fields[name].default for name in shown}
    assert shown == {name: "" if default is None else str(default) for name, default in defaults.items()}


def test_every_scheme_is_shown_with_a_url_that_opens() -> None:
    urls = re.findall(r"`([a-z+]+://[^`]*)`", DOCUMENT)
    assert {url.partition(":")[0] for url in urls} == set(SCHEMES)
    for url in urls:
        if not url.endswith("://"):
            open_store(url)


def test_the_users_rules_are_those_that_the_tests_live_with() -> None:
    (line,) = re.findall(r"^user app on >… (.*)$", DOCUMENT, re.MULTILINE)
    assert line.replace("~shop:", "~app:") == Secured.RULES
    assert f"In a cluster, `{Secured.CLUSTER_RULES}` besides" in DOCUMENT
