"""Errors against K as an SVG: a panel for each kind of data, a line for each contender."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import isfinite
from typing import Any

from ..bench.plot import require_matplotlib
from ..errors import InvalidValue
from .verdict import Row

WIDE = 3  # panels in a row


def drawn(rows: Sequence[Row]) -> list[Row]:
    """The rows that a plot shows: of `long-k`, without any of `random`."""
    for test in ("long-k", "random"):
        found = [row for row in rows if row["test"] == test and "max_error" in row]
        if found:
            return found
    return []


def svg(rows: Sequence[Row], title: str) -> str:
    """Largest error (line) and mean error (dashed) in eps |A||B| against K, both logarithmic; dotted: what rounding the
    exact result once may err by. Errors of 0 and infinite ones have no point.

    Raises:
        MissingComponent: matplotlib is not installed.
        InvalidValue: neither `random` nor `long-k` is among the rows.
    """
    require_matplotlib()
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    shown = drawn(rows)
    if not shown:
        raise InvalidValue("--plot shows errors against K; run the test random or long-k")
    families = list(dict.fromkeys(row["family"] for row in shown))
    names = list(dict.fromkeys(row["contender"] for row in shown))
    high, wide = -(-len(families) // WIDE), min(len(families), WIDE)
    figure = Figure(figsize=(3.4 * wide + 1.4, 2.8 * high + 0.5), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(high, wide, squeeze=False)
    for axes, family in zip(grid.flat, families, strict=False):
        _panel(axes, family, names, [row for row in shown if row["family"] == family])
    for axes in grid.flat[len(families):]:
        axes.set_axis_off()
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _panel(axes: Any, family: str, names: Sequence[str], rows: Sequence[Row]) -> None:
    for i, name in enumerate(names):
        own = sorted((row for row in rows if row["contender"] == name), key=lambda row: int(row["shape"][2]))
        for key, style, label in (("max_error", "-o", name), ("mean_error", "--", None)):
            points = [(row["shape"][2], row[key]) for row in own if row[key] > 0 and isfinite(row[key])]
            axes.plot([x for x, _ in points], [y for _, y in points], style, ms=3, lw=1, color=f"C{i}", label=label)
    least = sorted({(row["shape"][2], row["rounding_max"]) for row in rows})
    axes.plot(*zip(*least, strict=True), ":", lw=1, color="black", label="one rounding")
    axes.set(xscale="log", yscale="log")
    axes.set_xscale("log", base=2)
    axes.set_title(family, fontsize=8, loc="left")
    axes.set_xlabel("K", fontsize=7)
    axes.set_ylabel("error, eps |A||B|: largest -, mean --", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
