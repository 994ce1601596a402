"""The rows of `peakgemm bench` as an SVG: a panel a suite and precision, each case's ratio of time to cuBLAS."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MissingComponent
from .variants import Variant

Row = Mapping[str, Any]


def require_matplotlib() -> None:
    """Refuse before the measurements, not after them.

    Raises:
        MissingComponent: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingComponent("--svg needs matplotlib; run: pip install 'peakgemm[plot]'") from None


def svg(rows: Sequence[Row], title: str) -> str:
    """Bars from 1, with the 10th to 90th percentile; contenders as dots. Rows that have no figure are left out.

    Raises:
        MissingComponent: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    measured = [row for row in rows if row.get("ratio_to_cublas")]
    panels: dict[tuple[str, Variant], list[Row]] = {}
    for row in measured:
        panels.setdefault((row["suite"], Variant.of(row)), []).append(row)
    heights = [1.2 + len(panel) for panel in panels.values()] or [1.0]
    figure = Figure(figsize=(9, 0.6 + 0.22 * sum(heights)), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(len(heights), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})
    for axes, ((suite, variant), panel) in zip(grid[:, 0], panels.items(), strict=False):
        _panel(axes, variant.name(suite), panel)
    grid[-1, 0].set_xlabel("time of cuBLAS FP32 over ours", fontsize=8)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _panel(axes: Any, title: str, rows: Sequence[Row]) -> None:
    at = range(len(rows))
    ratios = [row["ratio_to_cublas"] for row in rows]
    spread = [[r - row["ratio_spread"][0] for r, row in zip(ratios, rows, strict=True)],
              [row["ratio_spread"][1] - r for r, row in zip(ratios, rows, strict=True)]]
    axes.barh(at, [r - 1 for r in ratios], left=1, height=0.7, xerr=[[max(x, 0) for x in side] for side in spread],
              color=["tab:green" if r > 1 else "tab:red" for r in ratios], error_kw={"lw": 0.7})
    for marker, peer in zip("osD^", sorted({name for row in rows for name in row.get("peers", {})}), strict=False):
        points = [(row["peers"][peer]["ratio_to_cublas"], y) for y, row in enumerate(rows)
                  if "ratio_to_cublas" in row.get("peers", {}).get(peer, {})]
        if points:
            axes.plot(*zip(*points, strict=True), marker, ms=3, mfc="none", color="black", label=peer, ls="")
            axes.legend(fontsize=6, loc="lower right")
    axes.axvline(1, color="black", lw=0.8)
    axes.set_yticks(list(at), [row["name"] for row in rows], fontsize=6)
    axes.tick_params(axis="x", labelsize=7)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=8, loc="left")
