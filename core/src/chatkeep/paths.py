"""The place of a value inside another, such as ``$.args[2]["a key"]``."""

from __future__ import annotations

import json

# `tuple[Path, …] | None` in truth: from the innermost step outwards, so that a step down costs one small tuple and the
# text is made only when there is something to complain about.
Path = tuple["Path", "str | int"] | None

_SHOWN = 20


def render(root: str, path: Path) -> str:
    """The text of `path`, below the text of its `root`; of very long ones the middle is left out."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, int):
            steps.append(f"[{step}]")
        else:
            steps.append(f".{step}" if step.isidentifier() else f"[{json.dumps(step)}]")
    steps.reverse()
    if len(steps) > 2 * _SHOWN:
        steps[_SHOWN:-_SHOWN] = ["…"]
    return root + "".join(steps)
