"""Standard output: a screen for people, made with rich, and lines of data for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .failures import PipeClosedError
from .text import json_text, visible

WIDEST = 100
"""How many columns running text takes at most."""
_UNBOUNDED = 100_000


class Screen(Console):
    """A console that takes every text as it is: no markup, no emoji codes. With NO_COLOR it sends no codes at all."""

    def __init__(self) -> None:
        system = None if os.environ.get("NO_COLOR") else "auto"
        super().__init__(color_system=system, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]

    @property
    def text_width(self) -> int:
        """The columns of running text."""
        return min(self.width, WIDEST)

    def on_broken_pipe(self) -> NoReturn:
        self.quiet = True
        raise PipeClosedError

    def put_line(self, *parts: str | tuple[str, str] | Text) -> None:
        """Print texts, or pairs of text and style, as one line that only a terminal's own edge breaks."""
        self.print(Text.assemble(*parts), soft_wrap=not self.is_terminal)

    def table(self, columns: Iterable[str | tuple[str, str]], rows: Iterable[Iterable[str | Text]]) -> None:
        """Print a table, ``(name, "right")`` for a column of numbers.

        Too wide for a terminal it is folded, and in a pipe it is as wide as it needs to be: nothing is left out.
        """
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for column in columns:
            name, side = (column, "left") if isinstance(column, str) else column
            table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(visible(cell)) if isinstance(cell, str) else cell for cell in row))
        if not self.is_terminal:
            self.width = table.__rich_measure__(self, self.options.update(width=_UNBOUNDED)).maximum
        self.print(table)


def write_json(value: Any, **options: Any) -> None:
    """One line of JSON on standard output. `options` are those of json.dumps."""
    encoding = (sys.stdout.encoding or "").lower().replace("_", "-")
    try:
        sys.stdout.write(json_text(value, ascii=encoding not in ("utf-8", "utf8"), **options) + "\n")
    except BrokenPipeError:
        raise PipeClosedError from None


def when(moment: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"
