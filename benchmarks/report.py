"""The table, as text and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .measure import Row

MET, MISSED, FREE = "#4c8c5a", "#c0504d", "#8c96a0"
"""Colours: a bar that is kept, one that is missed, and a row without one."""


def time_text(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


def table(rows: Sequence[Row]) -> str:
    """One line a row: ours, the other side, their ratio, the bar."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  {'ours':>10}  {'other':>10}  {'ratio':>6}  {'at most':>7}"]
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:7.2f}" + ("" if row.holds else "  missed")
        lines.append(
            f"{row.name:{width}}  {time_text(row.ours):>10}  {time_text(row.yardstick):>10}  {row.ratio:6.2f}  {bar}"
        )
    return "\n".join(line.rstrip() for line in lines)


def picture(rows: Sequence[Row], path: Path, *, caption: str) -> None:
    """Draw the ratios, and a black mark at each bar. Takes matplotlib, of the dependency group ``bench``."""
    import matplotlib  # noqa: PLC0415 - the table needs none of it

    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.42 * len(rows)), layout="constrained")
    colours = [FREE if row.bar is None else MET if row.holds else MISSED for row in rows]
    places = range(len(rows))
    axes.barh(places, [row.ratio for row in rows], color=colours, height=0.6)
    for place, row in zip(places, rows, strict=True):
        if row.bar is not None:
            axes.plot([row.bar, row.bar], [place - 0.42, place + 0.42], color="black", linewidth=2)
        ends = max(row.ratio, row.bar or 0.0)
        label = f" {row.ratio:.2f}  ({time_text(row.ours)} : {time_text(row.yardstick)})"
        axes.text(ends, place, label, va="center", fontsize=8)
    axes.set_yticks(places, [row.name for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(max(row.ratio, row.bar or 0.0) for row in rows))
    axes.set_xlabel("time, ours : the other; shorter is better; black: the most that it may be", fontsize=8)
    axes.set_title(caption, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
