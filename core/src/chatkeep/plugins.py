"""Which backend serves a URL's scheme: the plugins that are installed, found when they are needed.

A plugin is a distribution with an entry point in the group ``chatkeep`` that names a module with one hook. Complete::

    # pyproject.toml
    [project.entry-points.chatkeep]
    cassandra = "chatkeep_cassandra"

    # chatkeep_cassandra/__init__.py
    from chatkeep import hookimpl
    from chatkeep.backend import BackendSpec
    from chatkeep.options import StoreOptions

    def open_backend(url, options, client):
        from .backend import CassandraBackend       # the driver is imported here, not above
        return CassandraBackend(url, options, client)

    @hookimpl
    def chatkeep_backend():
        return BackendSpec("cassandra", ("cassandra",), StoreOptions, open_backend)

How a scheme finds its backend: ``memory`` is core's own. A scheme in `KNOWN` loads the one entry point of that name,
whoever else may claim it. Any other scheme loads the plugins that `KNOWN` does not name, and only if none of them
claims it the rest; two claimants are an error. A plugin that does not load is in nobody's way but its own.

This module imports pluggy and importlib.metadata, so nothing that ``import chatkeep`` runs may import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from threading import RLock
from typing import NamedTuple, Protocol

import pluggy

from .backend import BackendSpec
from .errors import (
    BackendBrokenError,
    BackendNotInstalledError,
    ConfigError,
    DuplicateBackendError,
    UnknownSchemeError,
)
from .memory import SPEC as MEMORY
from .options import StoreOptions

PROJECT = "chatkeep"
"""pluggy's project name and the entry points' group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's `chatkeep_backend` function."""

CORE = "chatkeep-core"

KNOWN: Mapping[str, str] = {
    "sqlite": "sqlite",
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+sentinel": "redis",
    "redis+cluster": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
    "dynamodb": "dynamodb",
}
"""Scheme to entry point, extra and folder: what to load alone, and what to install."""

PLANNED: frozenset[str] = frozenset()
"""The names in `KNOWN` that nothing can be installed for yet. A plugin that is there all the same is used."""
PLANNED_WORDS = "planned, not part of this version"

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")

_specs: dict[str, BackendSpec] = {}
"""What each scheme was found to mean. Failures are not kept: what is mended meanwhile works on the next call."""
_loading = RLock()


class BackendHooks(Protocol):
    """The hook that a plugin implements; the module's docstring has a complete example."""

    @hookspec
    def chatkeep_backend(self) -> BackendSpec:
        """The plugin's backend: its name, schemes, options, and how to open it. Called once; does no I/O."""
        ...


class BackendInfo(NamedTuple):
    """One installed backend."""

    name: str
    schemes: tuple[str, ...]
    """Empty if it does not load."""
    distribution: str
    version: str | None
    """None if the distribution does not say, as when core runs from a source tree that is not installed."""
    error: str | None = None
    """Why it cannot be used, in one line; None if it can."""


class _Plugin(NamedTuple):
    """An entry point with what came of loading it: a spec or an error."""

    entry: EntryPoint
    spec: BackendSpec | None
    error: ConfigError | None

    @property
    def schemes(self) -> tuple[str, ...]:
        return self.spec.schemes if self.spec else ()


def spec_for(scheme: str) -> BackendSpec:
    """The backend that serves `scheme` (lower case). Imports as few plugins as possible; safe from any thread.

    Raises `UnknownSchemeError`, `BackendNotInstalledError`, `BackendBrokenError` or `DuplicateBackendError`, all
    `ConfigError`, each with the mend.
    """
    if found := _specs.get(scheme):
        return found
    with _loading:
        found = _specs[scheme] = _specs.get(scheme) or _find(scheme)
    return found


def installed_backends() -> list[BackendInfo]:
    """Every backend that is installed, core's memory first, then by name. Loads all of them; raises nothing.

    One that does not load, or whose schemes belong to another, is in the list with its error.
    """
    own = BackendInfo(MEMORY.name, MEMORY.schemes, CORE, _core_version())
    with _loading:
        entries = _entries()
        plugins = [_try_load(entry) for entry in entries]
    return [own, *(_info(plugin, plugins) for plugin in plugins)]


def _find(scheme: str) -> BackendSpec:
    if scheme in MEMORY.schemes:
        return MEMORY
    entries = _entries()
    known = KNOWN.get(scheme)
    named = [entry for entry in entries if entry.name == known]
    if len(named) > 1:
        raise DuplicateBackendError(_twice(f"the backend name {known!r}", named))
    lacking = ""
    if named:
        spec = _load(named[0])
        if scheme in spec.schemes:
            return _permitted(named[0], spec)
        lacking = _urls(spec.schemes)
    strangers = [_try_load(entry) for entry in entries if entry.name not in KNOWN.values()]
    if claimed := _claimed(scheme, strangers):
        return claimed
    if named:
        raise BackendBrokenError(
            f"{_described(named[0])} is installed, but does not answer to {scheme}:// (only to {lacking}): "
            f"upgrade it, pip install --upgrade '{_distribution(named[0])}'"
        )
    if known in PLANNED:
        here = ", ".join([MEMORY.name, *(entry.name for entry in entries)])
        raise BackendNotInstalledError(
            f"the backend for {scheme}:// is {PLANNED_WORDS}: use another one. Installed: {here}"
        )
    if known:
        raise BackendNotInstalledError(
            f"the backend for {scheme}:// is not installed: pip install 'chatkeep[{known}]' "
            f"(from a checkout of chatkeep: pip install ./core ./plugins/{known})"
        )
    plugins = strangers + [_try_load(entry) for entry in entries if entry.name in KNOWN.values()]
    if claimed := _claimed(scheme, plugins):
        return claimed
    for plugin in plugins:
        if plugin.error and plugin.entry.name == scheme:
            raise plugin.error
    raise UnknownSchemeError(_unknown(scheme, plugins))


def _claimed(scheme: str, plugins: Iterable[_Plugin]) -> BackendSpec | None:
    """The spec of the one plugin that claims `scheme`; a `DuplicateBackendError` if several do."""
    claimants = [(plugin.entry, plugin.spec) for plugin in plugins if plugin.spec and scheme in plugin.spec.schemes]
    if len(claimants) > 1:
        raise DuplicateBackendError(_twice(f"{scheme}://", [entry for entry, _ in claimants]))
    return _permitted(*claimants[0]) if claimants else None


def _permitted(entry: EntryPoint, spec: BackendSpec) -> BackendSpec:
    """`spec`, unless it claims what is core's own."""
    if reserved := set(spec.schemes).intersection(MEMORY.schemes):
        raise DuplicateBackendError(_reserved(entry, reserved))
    return spec


def _entries() -> list[EntryPoint]:
    """Every entry point of the group, by name. One module under several names, or listed twice, is one plugin."""
    found: dict[str, EntryPoint] = {}
    # A name that KNOWN has comes first, so that it is the one that stays.
    for entry in sorted(entry_points(group=PROJECT), key=lambda entry: (entry.name not in KNOWN.values(), entry.name)):
        found.setdefault(entry.value, entry)
    return sorted(found.values(), key=lambda entry: entry.name)


def _try_load(entry: EntryPoint) -> _Plugin:
    try:
        return _Plugin(entry, _load(entry), None)
    except ConfigError as error:
        return _Plugin(entry, None, error)


def _load(entry: EntryPoint) -> BackendSpec:
    # A manager for each: one plugin's mistakes cannot spoil it for the others.
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(BackendHooks)
    try:
        plugin = entry.load()
        manager.register(plugin, name=entry.name)
        returned = manager.hook.chatkeep_backend()
    except (Exception, SystemExit) as error:
        raise BackendBrokenError(
            f"{_described(entry)} is installed, but does not load: {_one_line(error)}. "
            f"Mend it if it is yours, or reinstall it: pip install --force-reinstall '{_distribution(entry)}'"
        ) from error
    if manager.get_hookcallers(plugin) is None or not manager.hook.chatkeep_backend.get_hookimpls():
        raise BackendBrokenError(
            f"{_described(entry)} is installed, but its entry point {entry.value!r} has no hook: it must name a module "
            "with a function chatkeep_backend() marked @chatkeep.hookimpl"
        )
    return _checked(returned[0] if returned else None, entry)


def _checked(spec: object, entry: EntryPoint) -> BackendSpec:
    fault = _fault(spec)
    if fault is None and isinstance(spec, BackendSpec):
        return spec
    raise BackendBrokenError(f"{_described(entry)} is installed, but its hook chatkeep_backend() returned {fault}")


def _fault(spec: object) -> str | None:
    if not isinstance(spec, BackendSpec):
        return f"{type(spec).__name__}, not a chatkeep.backend.BackendSpec"
    # What a plugin put there need not be what the annotations say.
    fields: dict[str, object] = vars(spec)
    if not isinstance(fields["name"], str) or not spec.name:
        return f"a BackendSpec with the name {spec.name!r}: it must be text that is not empty"
    if not _are_schemes(spec.schemes):
        return f"a BackendSpec with the schemes {spec.schemes!r}: it must be a tuple of schemes in lower case"
    if not (isinstance(fields["options"], type) and issubclass(fields["options"], StoreOptions)):
        return "a BackendSpec whose options are no subclass of chatkeep.options.StoreOptions"
    if not callable(fields["open"]):
        return "a BackendSpec whose open cannot be called"
    return None


def _are_schemes(schemes: object) -> bool:
    return (
        isinstance(schemes, tuple)
        and len(schemes) > 0
        and all(isinstance(scheme, str) and _SCHEME.fullmatch(scheme) for scheme in schemes)
    )


def _info(plugin: _Plugin, plugins: list[_Plugin]) -> BackendInfo:
    name = plugin.spec.name if plugin.spec else plugin.entry.name
    error = str(plugin.error) if plugin.error else _contested(plugin, plugins)
    return BackendInfo(name, plugin.schemes, _distribution(plugin.entry), _version(plugin.entry), error)


def _contested(plugin: _Plugin, plugins: list[_Plugin]) -> str | None:
    """Why a plugin that loads is refused all the same, or for one of its schemes; None if it is not."""
    entry = plugin.entry
    if twins := [other.entry for other in plugins if other.entry.name == entry.name and other is not plugin]:
        return _twice(f"the backend name {entry.name!r}", [entry, *twins])
    if reserved := set(plugin.schemes).intersection(MEMORY.schemes):
        return _reserved(entry, reserved)
    for scheme in plugin.schemes:
        rivals = [other.entry for other in plugins if scheme in other.schemes and other is not plugin]
        if rivals and KNOWN.get(scheme) != entry.name:
            return _twice(f"{scheme}://", [entry, *rivals])
    return None


def _twice(what: str, entries: Iterable[EntryPoint]) -> str:
    claimants = " and ".join(sorted(f"{_distribution(entry)} ({entry.value})" for entry in entries))
    return f"{what} is claimed twice, by {claimants}: uninstall one of them"


def _reserved(entry: EntryPoint, schemes: Iterable[str]) -> str:
    claimants = f"{CORE} and {_distribution(entry)} ({entry.value})"
    return f"{_urls(sorted(schemes))} is claimed twice, by {claimants}: uninstall the latter"


def _unknown(scheme: str, plugins: Iterable[_Plugin]) -> str:
    loaded = [MEMORY, *(plugin.spec for plugin in plugins if plugin.spec)]
    schemes = {*KNOWN, *(claimed for spec in loaded for claimed in spec.schemes)}
    close = get_close_matches(scheme, sorted(schemes), n=1)
    meant = _meant(scheme) or (repr(close[0]) if close else "")
    parts = [f"no backend for {scheme}://." + (f" Did you mean {meant}?" if meant else "")]
    parts.append("Installed: " + "; ".join(f"{spec.name} ({_urls(spec.schemes)})" for spec in loaded) + ".")
    broken = [_described(plugin.entry) for plugin in plugins if plugin.error]
    if broken:
        parts.append(f"Installed, but not loading: {'; '.join(broken)}.")
    present = {plugin.entry.name for plugin in plugins}
    missing = sorted({name for name in KNOWN.values() if name not in present})
    if there := [f"'chatkeep[{name}]'" for name in missing if name not in PLANNED]:
        parts.append(f"To be had with pip install: {', '.join(there)}.")
    if planned := [name for name in missing if name in PLANNED]:
        parts.append(f"{PLANNED_WORDS.capitalize()}: {', '.join(planned)}.")
    return " ".join(parts)


def _meant(scheme: str) -> str:
    """What is meant by names for Redis that others have, such as rediss+cluster, or would be formed like ours."""
    found = re.fullmatch(r"(?:redis|valkey)(s?)[+-](cluster|sentinel|unix|socket)", scheme)
    if found is None:
        return ""
    secure, kind = found.groups()
    if kind in ("unix", "socket"):
        return "'unix'"
    return f"'redis+{kind}'" + (" with ssl=true in the query" if secure else "")


def _urls(schemes: Iterable[str]) -> str:
    return ", ".join(f"{scheme}://" for scheme in schemes)


def _described(entry: EntryPoint) -> str:
    return f"the backend {entry.name!r} ({_distribution(entry)} {_version(entry) or 'of unknown version'})"


def _distribution(entry: EntryPoint) -> str:
    return _metadata(entry, "Name") or "a distribution without a name"


def _version(entry: EntryPoint) -> str | None:
    return _metadata(entry, "Version")


def _metadata(entry: EntryPoint, field: str) -> str | None:
    # An interrupted uninstall leaves a folder without either file; what reading it gives differs between Pythons.
    files = ("METADATA", "PKG-INFO")
    if entry.dist is None or not any(entry.dist.read_text(file) for file in files):
        return None
    metadata = entry.dist.metadata
    return metadata[field] if field in metadata else None  # noqa: SIM401 - typed as having no get()


def _core_version() -> str | None:
    try:
        return version(CORE)
    except PackageNotFoundError:
        return None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
