"""The table, as text and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import time_text

from .rows import Growth

COLOURS = {"Chatkeep": "#4c8c5a", "File": "#8c96a0", "Redis": "#c0504d"}
"""By the beginning of a provider's name."""


def growth(row: Growth) -> str:
    """A row in short, while it is being measured."""
    return f"{'' if row.missing else f'{row.ratio:.2f}':>7}  {row.job}, {row.provider}"


def table(rows: Sequence[Growth], sizes: Sequence[int]) -> str:
    """One line a row, under its job: a call's time at each length, the longest beside the shortest, the bar."""
    width = max(len(text) for row in rows for text in (row.job, f"  {row.provider}"))
    lines = []
    heading = f"{max(sizes):,} : {min(sizes):,}"
    for job, several in by_job(rows).items():
        lines.append(f"{job:{width}}" + "".join(f"  {size:>9,}" for size in sizes) + f"  {heading:>11}  at most")
        for row in several:
            name = f"  {row.provider:{width - 2}}"
            if row.missing:
                lines.append(f"{name}  not measured: {row.missing}")
                continue
            bar = "" if row.bar is None else f"{row.bar:7.2f}" + ("" if row.holds else "  missed")
            times = "".join(f"  {time_text(row.seconds[size]):>9}" for size in sizes)
            lines.append(f"{name}{times}  {row.ratio:{max(11, len(heading))}.2f}  {bar}".rstrip())
    return "\n".join(lines)


def by_job(rows: Sequence[Growth]) -> dict[str, list[Growth]]:
    """The rows of each job, in the order given."""
    jobs: dict[str, list[Growth]] = {}
    for row in rows:
        jobs.setdefault(row.job, []).append(row)
    return jobs


def picture(rows: Sequence[Growth], path: Path, *, caption: str) -> None:
    """Draw each job's rows as lines over the length. Takes matplotlib, of the dependency group ``bench``."""
    import matplotlib  # noqa: PLC0415 - the table needs none of it

    matplotlib.use("agg")
    from matplotlib import pyplot  # noqa: PLC0415

    jobs = by_job(rows)
    figure, panels = pyplot.subplots(1, len(jobs), figsize=(12, 5.5), layout="constrained", sharey=True, squeeze=False)
    for axes, (job, several) in zip(panels[0], jobs.items(), strict=True):
        shown = [row for row in several if not row.missing]
        for row in shown:
            colour = next(colour for name, colour in COLOURS.items() if row.provider.startswith(name))
            times = [seconds * 1e3 for seconds in row.seconds.values()]
            label = f"{row.provider} (×{row.ratio:.2f})" if row.ratio < 10 else f"{row.provider} (×{row.ratio:.0f})"
            style = "-" if row.bar is not None else "--" if row.provider.startswith("Chatkeep") else "-."
            axes.plot([*row.seconds], times, style, color=colour, marker="o", linewidth=2, label=label)
        gone = [f"{row.provider}: {row.missing}" for row in several if row.missing]
        axes.set_title("\n".join([job, *gone]), fontsize=9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        sizes = sorted({size for row in shown for size in row.seconds})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} ms")
        axes.tick_params(axis="y", labelsize=8, labelleft=True)
        axes.set_xlabel("messages stored", fontsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, frameon=False, title="longest beside shortest in brackets", title_fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(caption, fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
