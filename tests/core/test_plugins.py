"""Discovery of plugins: each test installs real distributions (metadata and a module) in a folder of its own."""

from __future__ import annotations

import importlib
import subprocess
import sys
import sysconfig
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chatkeep import open_store, plugins, sync
from chatkeep.backend import Backend, BackendSpec
from chatkeep.errors import (
    BackendBrokenError,
    BackendNotInstalledError,
    ConfigError,
    DuplicateBackendError,
    UnknownSchemeError,
)
from chatkeep.plugins import KNOWN, PLANNED, BackendInfo, installed_backends, spec_for

GOOD = """
    from chatkeep.plugins import hookimpl
    from chatkeep.backend import BackendSpec
    from chatkeep.options import StoreOptions

    calls = []

    @hookimpl
    def chatkeep_backend():
        calls.append(1)
        return BackendSpec({name!r}, {schemes!r}, StoreOptions, lambda url, options, client: None)
"""


def good(name: str, *schemes: str) -> str:
    """The source of a plugin that works."""
    return GOOD.format(name=name, schemes=schemes)


def returning(expression: str) -> str:
    """The source of a plugin whose hook returns what the expression says."""
    return GOOD.partition("        return")[0] + f"        return {expression}\n"


class Site:
    """A folder with installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, entry_points: dict[str, str], *, version: str = "1.0", **modules: str) -> None:
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        if version:
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[chatkeep]\n{lines}")
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Nothing but Python and what a test installs is found; what it imported is forgotten afterwards."""
    standard = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *standard])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(plugins, "_specs", {})
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]
    importlib.invalidate_caches()


def refusal(scheme: str, kind: type[ConfigError]) -> str:
    with pytest.raises(kind) as caught:
        spec_for(scheme)
    assert type(caught.value) is kind
    return str(caught.value)


def test_memory_needs_no_plugin(site: Site) -> None:
    spec = spec_for("memory")
    assert (spec.name, spec.schemes) == ("memory", ("memory",))
    assert installed_backends() == [BackendInfo("memory", ("memory",), "chatkeep-core", None)]


def test_importing_chatkeep_touches_no_plugin_machinery() -> None:
    code = """
        import sys
        import chatkeep, chatkeep.url, chatkeep.options, chatkeep.backend
        print([name for name in ("pluggy", "chatkeep.plugins", "aiosqlite", "typer") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_known_scheme_loads_its_own_plugin_and_no_other(site: Site) -> None:
    site.install(
        "chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis", "rediss", "redis+cluster")
    )
    site.install("chatkeep-mongodb", {"mongodb": "fake_mongodb"}, fake_mongodb=good("mongodb", "mongodb"))
    site.install("stranger", {"stranger": "fake_stranger"}, fake_stranger=good("stranger", "strange"))
    assert spec_for("redis+cluster").name == "redis"
    assert spec_for("rediss") is spec_for("rediss")
    assert not {"fake_mongodb", "fake_stranger"} & set(sys.modules)


def test_a_strangers_scheme_loads_no_plugin_of_chatkeeps_own(site: Site) -> None:
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis"))
    site.install("stranger", {"stranger": "fake_stranger"}, fake_stranger=good("stranger", "strange"))
    assert spec_for("strange").name == "stranger"
    assert "fake_redis" not in sys.modules


def test_a_stranger_may_serve_a_known_scheme_whose_own_plugin_is_not_there(site: Site) -> None:
    site.install("fast-redis", {"fast": "fake_fast"}, fake_fast=good("fast", "redis"))
    assert spec_for("redis").name == "fast"


def test_a_known_scheme_belongs_to_its_own_plugin_and_the_rival_is_reported(site: Site) -> None:
    site.install("fast-redis", {"fast": "fake_fast"}, fake_fast=good("fast", "redis"))
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis"))
    assert spec_for("redis").name == "redis"
    errors = {info.name: info.error for info in installed_backends()}
    assert errors == {
        "memory": None,
        "redis": None,
        "fast": "redis:// is claimed twice, by chatkeep-redis (fake_redis) and fast-redis (fake_fast): "
        "uninstall one of them",
    }
    assert spec_for("redis").name == "redis"


def test_a_known_plugin_may_serve_a_scheme_that_this_core_does_not_know_yet(site: Site) -> None:
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis", "keydb"))
    assert spec_for("keydb").name == "redis"


@pytest.mark.parametrize("scheme", ["dynamodb", "mongodb+srv"])
def test_a_planned_backend_is_said_to_be_no_part_of_this_version(
    site: Site, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "PLANNED", frozenset({"dynamodb", "mongodb"}))
    site.install("chatkeep-sqlite", {"sqlite": "fake_sqlite"}, fake_sqlite=good("sqlite", "sqlite"))
    text = refusal(scheme, BackendNotInstalledError)
    assert text == (
        f"the backend for {scheme}:// is planned, not part of this version: use another one. Installed: memory, sqlite"
    )
    assert "fake_sqlite" not in sys.modules
    with pytest.raises(ImportError):
        spec_for(scheme)


def test_every_known_backend_is_planned_or_a_folder_of_this_checkout() -> None:
    folders = {folder.name for folder in (Path(__file__).parents[2] / "plugins").iterdir() if folder.is_dir()}
    assert set(KNOWN.values()) == PLANNED | folders
    assert not PLANNED & folders


@pytest.mark.parametrize("scheme", sorted(KNOWN))
def test_a_known_backend_that_is_not_installed_says_what_to_install(site: Site, scheme: str) -> None:
    name = KNOWN[scheme]
    text = refusal(scheme, BackendNotInstalledError)
    assert text == (
        f"the backend for {scheme}:// is not installed: pip install 'chatkeep[{name}]' "
        f"(from a checkout of chatkeep: pip install ./core ./plugins/{name})"
    )
    with pytest.raises(ImportError):
        spec_for(scheme)


def test_what_is_installed_meanwhile_is_found(site: Site) -> None:
    refusal("redis", BackendNotInstalledError)
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis"))
    assert spec_for("redis").name == "redis"


def test_an_unknown_scheme_names_the_installed_and_the_one_that_was_meant(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "PLANNED", frozenset({"dynamodb"}))
    site.install("stranger", {"stranger": "fake_stranger"}, fake_stranger=good("stranger", "strange", "stranger"))
    site.install("chatkeep-sqlite", {"sqlite": "fake_sqlite"}, fake_sqlite=good("sqlite", "sqlite"))
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis"))
    site.install("half", {"half": "fake_half"}, fake_half="import no_such_driver")
    text = refusal("reddis", UnknownSchemeError)
    assert text.startswith("no backend for reddis://. Did you mean 'redis'? Installed: memory (memory://); ")
    assert "sqlite (sqlite://)" in text
    assert "stranger (strange://, stranger://)" in text
    assert "Installed, but not loading: the backend 'half' (half 1.0)." in text
    assert text.endswith("Planned, not part of this version: dynamodb.")
    assert "To be had with pip install: 'chatkeep[mongodb]'." in text
    assert "chatkeep[sqlite]" not in text
    assert "Did you mean" not in refusal("zzzz", UnknownSchemeError)
    assert "Did you mean 'strange'?" in refusal("strang", UnknownSchemeError)


def test_an_unknown_scheme_names_what_is_to_be_had(site: Site) -> None:
    text = refusal("zzz", UnknownSchemeError)
    wanted = "'chatkeep[dynamodb]', 'chatkeep[mongodb]', 'chatkeep[redis]', 'chatkeep[sqlite]'"
    assert text.endswith(f"To be had with pip install: {wanted}.")


@pytest.mark.parametrize(
    ("source", "cause", "text"),
    [
        ("import no_such_driver", ModuleNotFoundError, "ModuleNotFoundError: No module named 'no_such_driver'"),
        ("raise RuntimeError('no\\n  luck')", RuntimeError, "RuntimeError: no luck"),
        ("raise RuntimeError", RuntimeError, "RuntimeError. Mend it"),
        ("raise SystemExit(3)", SystemExit, "SystemExit: 3"),
        ("def", SyntaxError, "SyntaxError: "),
        (returning("1 / 0"), ZeroDivisionError, "ZeroDivisionError: division by zero"),
        (
            good("redis", "redis").replace("chatkeep_backend()", "chatkeep_backend(url)"),
            Exception,
            "PluginValidationError",
        ),
    ],
)
def test_a_plugin_that_does_not_load_is_told_with_its_cause_and_hurts_only_itself(
    site: Site, source: str, cause: type[BaseException], text: str
) -> None:
    site.install("chatkeep-redis", {"redis": "fake_redis"}, version="0.3", fake_redis=source)
    site.install("chatkeep-sqlite", {"sqlite": "fake_sqlite"}, fake_sqlite=good("sqlite", "sqlite"))
    site.install("stranger", {"stranger": "fake_stranger"}, fake_stranger=good("stranger", "strange"))
    with pytest.raises(BackendBrokenError) as caught:
        spec_for("redis")
    message = str(caught.value)
    assert message.startswith("the backend 'redis' (chatkeep-redis 0.3) is installed, but does not load: ")
    assert text in message
    assert message.endswith("or reinstall it: pip install --force-reinstall 'chatkeep-redis'")
    assert isinstance(caught.value.__cause__, cause)
    assert isinstance(caught.value, ImportError)
    assert spec_for("sqlite").name == "sqlite"
    assert spec_for("strange").name == "stranger"
    found = {info.name: info for info in installed_backends()}
    assert set(found) == {"memory", "redis", "sqlite", "stranger"}
    assert found["redis"] == BackendInfo("redis", (), "chatkeep-redis", "0.3", message)
    assert {info.error for name, info in found.items() if name != "redis"} == {None}


def test_a_broken_plugin_works_as_soon_as_it_is_mended(site: Site) -> None:
    site.install(
        "chatkeep-redis",
        {"redis": "fake_redis"},
        fake_redis="import fake_driver\n" + textwrap.dedent(good("redis", "redis")),
    )
    refusal("redis", BackendBrokenError)
    (site.folder / "fake_driver.py").touch()
    importlib.invalidate_caches()
    assert spec_for("redis").name == "redis"


@pytest.mark.parametrize(
    ("entry", "source"),
    [
        ("fake_redis", "x = 1"),
        ("fake_redis", "def chatkeep_backend(): raise SystemError"),
        ("fake_redis", good("redis", "redis").replace("def chatkeep_backend", "def chatkeep_backends")),
        ("fake_redis:chatkeep_backend", good("redis", "redis")),
    ],
)
def test_a_plugin_without_a_hook_is_told_what_its_entry_point_must_name(site: Site, entry: str, source: str) -> None:
    site.install("chatkeep-redis", {"redis": entry}, fake_redis=source)
    text = refusal("redis", BackendBrokenError)
    assert f"its entry point {entry!r} has no hook: it must name a module with a function chatkeep_backend()" in text


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("None", "returned NoneType, not a chatkeep.backend.BackendSpec"),
        ("{'name': 'redis'}", "returned dict, not a chatkeep.backend.BackendSpec"),
        ("BackendSpec('', ('redis',), StoreOptions, print)", "with the name ''"),
        ("BackendSpec('redis', 'redis', StoreOptions, print)", "with the schemes 'redis': it must be a tuple"),
        ("BackendSpec('redis', (), StoreOptions, print)", "with the schemes ()"),
        ("BackendSpec('redis', ('Redis',), StoreOptions, print)", "with the schemes ('Redis',)"),
        ("BackendSpec('redis', ('redis',), dict, print)", "whose options are no subclass of"),
        ("BackendSpec('redis', ('redis',), StoreOptions(), print)", "whose options are no subclass of"),
        ("BackendSpec('redis', ('redis',), StoreOptions, None)", "whose open cannot be called"),
    ],
)
def test_a_hook_that_returns_no_proper_spec_is_told_what_is_wrong(site: Site, expression: str, fault: str) -> None:
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=returning(expression))
    text = refusal("redis", BackendBrokenError)
    assert text.startswith(
        "the backend 'redis' (chatkeep-redis 1.0) is installed, but its hook chatkeep_backend() returned"
    )
    assert fault in text


@pytest.mark.parametrize(
    ("opened", "lacking"),
    [("None", "a NoneType, has no driver_errors, translate, open"), ("object()", "a object, has no")],
)
def test_a_backend_that_lacks_something_is_told_what_before_it_is_used(site: Site, opened: str, lacking: str) -> None:
    plugin = returning(f"BackendSpec('redis', ('redis',), StoreOptions, lambda *_: {opened})")
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=plugin)
    with pytest.raises(BackendBrokenError, match=f"that the redis plugin opens, {lacking}"):
        open_store("redis://localhost")


def test_a_backend_that_inherits_and_lacks_something_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"abstract method.*\bhead\b"):
        type("Partly", (Backend,), {})()


def test_an_outdated_plugin_is_told_to_upgrade(site: Site) -> None:
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis", "rediss"))
    assert refusal("valkey", BackendBrokenError) == (
        "the backend 'redis' (chatkeep-redis 1.0) is installed, but does not answer to valkey:// (only to redis://, "
        "rediss://): upgrade it, pip install --upgrade 'chatkeep-redis'"
    )


def test_a_strangers_broken_plugin_is_told_by_its_name(site: Site) -> None:
    site.install("strange-plugin", {"strange": "fake_strange"}, fake_strange="import no_such_driver")
    assert "No module named 'no_such_driver'" in refusal("strange", BackendBrokenError)


def test_two_claimants_for_one_scheme_are_both_named(site: Site) -> None:
    site.install("one-plugin", {"one": "fake_one"}, fake_one=good("one", "one", "shared"))
    site.install("two-plugin", {"two": "fake_two"}, fake_two=good("two", "two", "shared"))
    text = "shared:// is claimed twice, by one-plugin (fake_one) and two-plugin (fake_two): uninstall one of them"
    assert refusal("shared", DuplicateBackendError) == text
    assert spec_for("one").name == "one"
    assert spec_for("two").name == "two"
    assert {info.name: info.error for info in installed_backends()} == {"memory": None, "one": text, "two": text}


def test_two_distributions_under_one_name_are_both_named_and_neither_is_loaded(site: Site) -> None:
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=good("redis", "redis"))
    site.install("other-redis", {"redis": "fake_other"}, fake_other=good("redis", "redis"))
    text = refusal("redis", DuplicateBackendError)
    assert text == (
        "the backend name 'redis' is claimed twice, by chatkeep-redis (fake_redis) and other-redis (fake_other): "
        "uninstall one of them"
    )
    assert not {"fake_redis", "fake_other"} & set(sys.modules)
    assert [info.error for info in installed_backends()] == [None, text, text]


def test_one_module_under_two_names_is_one_backend(site: Site) -> None:
    site.install("double", {"double": "fake_double", "alias": "fake_double"}, fake_double=good("double", "double"))
    assert spec_for("double").name == "double"
    assert [info.name for info in installed_backends()] == ["memory", "double"]


def test_one_module_left_by_a_renamed_distribution_is_one_backend(site: Site) -> None:
    site.install("old-redis", {"redis": "fake_redis"})
    site.install("chatkeep-redis", {"redis": "fake_redis", "aaa": "fake_redis"}, fake_redis=good("redis", "redis"))
    site.install("fast-redis", {"fast": "fake_fast"}, fake_fast=good("fast", "redis"))
    assert spec_for("redis").name == "redis"
    assert [info.name for info in installed_backends() if not info.error] == ["memory", "redis"]


@pytest.mark.parametrize("name", ["memory", "evil", "redis"])
def test_a_plugin_cannot_take_memory_from_core(site: Site, name: str) -> None:
    site.install("evil-plugin", {name: "fake_evil"}, fake_evil=good(name, "memory", "redis"))
    assert spec_for("memory").options.__module__ == "chatkeep.options"
    assert spec_for("memory").open.__module__ == "chatkeep.memory"
    text = "memory:// is claimed twice, by chatkeep-core and evil-plugin (fake_evil): uninstall the latter"
    assert refusal("redis", DuplicateBackendError) == text
    assert [info.error for info in installed_backends()] == [None, text]


def test_a_distribution_without_metadata_is_still_told_apart(site: Site) -> None:
    site.install("nameless", {"strange": "fake_strange"}, version="", fake_strange=good("strange", "strange"))
    assert installed_backends()[1:] == [BackendInfo("strange", ("strange",), "a distribution without a name", None)]
    assert spec_for("strange").name == "strange"


def test_entry_points_of_other_groups_and_nonsense_values_are_in_nobodys_way(site: Site) -> None:
    site.install("nonsense", {"nonsense": "not a module!"})
    site.install("chatkeep-sqlite", {"sqlite": "fake_sqlite"}, fake_sqlite=good("sqlite", "sqlite"))
    assert spec_for("sqlite").name == "sqlite"
    error = {info.name: info.error for info in installed_backends()}["nonsense"]
    assert error is not None
    assert "the backend 'nonsense' (nonsense 1.0) is installed, but does not load" in error


def test_the_first_load_from_many_threads_calls_the_hook_once(site: Site) -> None:
    source = good("redis", "redis").replace("calls.append(1)", "calls.append(1); __import__('time').sleep(0.05)")
    site.install("chatkeep-redis", {"redis": "fake_redis"}, fake_redis=source)
    barrier, found = threading.Barrier(16), list[BackendSpec]()

    def find() -> None:
        barrier.wait()
        found.append(spec_for("redis"))

    threads = [threading.Thread(target=find) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len({id(spec) for spec in found}) == 1
    assert sys.modules["fake_redis"].calls == [1]


@pytest.mark.parametrize(
    ("scheme", "meant"),
    [
        ("valkey+cluster", r"'redis\+cluster'\?"),
        ("rediss+cluster", r"'redis\+cluster' with ssl=true"),
        ("valkeys+sentinel", r"'redis\+sentinel' with ssl=true"),
        ("redis-sentinel", r"'redis\+sentinel'\?"),
        ("redis+unix", r"'unix'\?"),
        ("redis+socket", r"'unix'\?"),
    ],
)
def test_other_names_for_kinds_of_redis_are_told_ours(scheme: str, meant: str) -> None:
    with pytest.raises(UnknownSchemeError, match=f"Did you mean {meant}"):
        open_store(f"{scheme}://host")


@pytest.mark.parametrize("open_one", [open_store, sync.open_store])
def test_a_client_of_ones_own_without_a_url_is_asked_for_its_backends(
    open_one: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHATKEEP_URL", raising=False)
    with pytest.raises(ConfigError, match=r"the URL of its backend.*redis://"):
        open_one(client=object())
    monkeypatch.setenv("CHATKEEP_URL", "memory://")
    with pytest.raises(ConfigError, match="memory backend takes no client"):
        open_one(client=object())
