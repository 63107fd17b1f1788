"""docs/redis.md says what is true: its program runs, its tables are the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.redis import servers
from tests.redis.servers import Secured

from chatkeep import open_store
from chatkeep.options import StoreOptions, own_keys
from chatkeep_redis.options import SCHEMES, RedisOptions

pytestmark = pytest.mark.once

DOCUMENT = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has that heading, without the heading."""
    (found,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    return [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in found.splitlines()]


async def test_the_program_runs() -> None:
    (code,) = re.findall(r'^```python title="redis.py"\n(.*?)^```$', DOCUMENT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace('prefix="shop:"', f'prefix="{servers.prefix()}"'), names)
    assert await names["main"](servers.shared().url()) == ["Where is my bag?", "In Oslo."]


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
