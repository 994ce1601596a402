"""What is demanded, and what each figure is called for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log2
from statistics import linear_regression
from typing import Any

from .fixed import Finding
from .measure import Figures

Row = dict[str, Any]
PASS, WORSE, FAIL, SKIPPED = "pass", "worse", "fail", "skipped"
MARGIN = 1.1  # on the largest error: one element in millions, which the order of a sum decides
STEEPEST = 1.0  # largest error against n, both in logarithms


def against(ours: Figures, reference: Figures | None, least: Figures, bound: float) -> tuple[str, str]:
    """Verdict and reason: ``fail`` beyond the bound of float32 arithmetic; ``worse`` within it, but less accurate than
    the reference: largest error above 1.1 times the reference's, or mean error above the reference's. ``least``, what
    rounding the exact result once may err by, is never held against anyone.
    """
    if not ours.largest <= bound:
        return FAIL, f"largest error {ours.largest:.3g} eps; float32 arithmetic makes {bound:g} at most"
    if reference is None:
        return WORSE, "the reference failed, there is nothing to compare with"
    if not ours.largest <= max(MARGIN * reference.largest, least.largest):
        return WORSE, f"largest error {ours.largest:.3g} eps, the reference's {reference.largest:.3g}"
    if not ours.mean <= max(reference.mean, least.mean):
        return WORSE, f"mean error {ours.mean:.3g} eps, the reference's {reference.mean:.3g}"
    return PASS, ""


def of_finding(finding: Finding) -> tuple[str, str]:
    """Verdict and reason of a test with a bound of its own."""
    if finding.passed:
        return PASS, finding.note
    return FAIL, "; ".join(x for x in (f"{finding.figure:.3g} {finding.unit}, {finding.limit:g} at most", finding.note)
                           if x)


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of log error against log size; None of less than three points that have a logarithm."""
    logs = [(log2(x), log2(y)) for x, y in points if y > 0 and isfinite(y)]
    return linear_regression(*zip(*logs, strict=True)).slope if len(logs) > 2 else None


def slopes(rows: Sequence[Row]) -> list[Row]:
    """A row for each family and contender of `random`: the largest error grows no faster than n."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["test"] == "random" and "max_error" in row:
            groups.setdefault((row["family"], row["contender"]), []).append(row)
    steepest = []
    for (family, contender), group in groups.items():
        steepness = slope([(row["shape"][0], row["max_error"]) for row in group])
        if steepness is None:
            continue
        sizes = [row["shape"][0] for row in group]
        steepest.append({"test": "slope", "family": family, "shape": [max(sizes)] * 3, "contender": contender,
                      "verdict": PASS if steepness <= STEEPEST else FAIL,
                      "note": f"log(largest error) against log(n), n = {min(sizes)} to {max(sizes)}",
                      "figure": steepness, "limit": STEEPEST, "unit": "slope"})
    return steepest
