"""``chatkeep backends``: what is installed, what does not load, and what could be installed."""

from __future__ import annotations

from collections.abc import Iterable

from chatkeep.plugins import KNOWN, PLANNED, PLANNED_WORDS, BackendInfo, installed_backends

from .screen import Screen, write_json
from .text import in_one_line


def show_backends(*, json: bool) -> None:
    """Print the installed backends and those that chatkeep knows of; with `json` one object a line."""
    installed = installed_backends()
    lacking = _lacking(installed)
    if json:
        for info in installed:
            write_json({"installed": True, **info._asdict()})
        for name, schemes in lacking.items():
            write_json({"installed": False, "name": name, "schemes": schemes, "install": _install(name)})
        return
    screen = Screen()
    columns = ("BACKEND", "VERSION", "URLS", "DISTRIBUTION")
    working = [info for info in installed if info.error is None]
    screen.table(
        columns, [(info.name, info.version or "?", _urls(info.schemes), info.distribution) for info in working]
    )
    for info in installed:
        if info.error is not None:
            screen.put_line()
            screen.put_line((f"{in_one_line(info.name)} cannot be used: ", "bold red"), in_one_line(info.error))
    if lacking:
        screen.put_line()
        screen.table(
            ("NOT INSTALLED", "URLS", "INSTALL"),
            [(name, _urls(schemes), _install(name) or PLANNED_WORDS) for name, schemes in lacking.items()],
        )
        if lacking.keys() - PLANNED:
            screen.put_line(("From a checkout of chatkeep: pip install ./core ./plugins/NAME", "dim"))


def _lacking(installed: Iterable[BackendInfo]) -> dict[str, list[str]]:
    """The backends that chatkeep knows and that are not here, with their schemes."""
    here = {info.name for info in installed}
    found: dict[str, list[str]] = {}
    for scheme, name in KNOWN.items():
        if name not in here:
            found.setdefault(name, []).append(scheme)
    return found


def _urls(schemes: Iterable[str]) -> str:
    return " ".join(f"{scheme}://" for scheme in schemes)


def _install(name: str) -> str | None:
    """The line that installs it; None for one that is planned."""
    return None if name in PLANNED else f"pip install 'chatkeep[{name}]'"
