"""The plot of docs/certificate.md: thresholds and bounds over the true error, by family of the accuracy suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peakgemm.tools.report.svg import Chart

# Fields of a record's medians, with the class and the words of each.
MARKS = {"threshold": ("s0", "threshold, over a row's error"), "rigorous": ("s1", "rigorous bound"),
         "likely": ("s2", "probabilistic bound, over an element's")}
CONTENDERS = {"ieee": "IEEE", "emulated": "emulated"}
_STEP, _HEAD, _LABELS = 22, 24, 150  # pixels: of a row, of a heading, of the names


def chart(record: Mapping[str, Any], width: int) -> Chart:
    """A row for each family in each precision; a mark for each K, lines from the least to the largest."""
    rows = record["certificates"]["errors"]["medians"]
    families = list(dict.fromkeys(row["family"] for row in rows))
    height = 64 + len(CONTENDERS) * (_HEAD + _STEP * len(families)) + 50
    drawn = Chart(width, height, "Thresholds and bounds of certificates over the true error", (44, 16, 50, _LABELS))
    values = [row[f"{name} over the error"] for row in rows for name in MARKS if row["contender"] in CONTENDERS]
    x = drawn.x_scale(1, max(value for value in values if value), log=True)
    drawn.x_axis(x, "times the true error, medians for each K from 16 to 4096, logarithmic")
    drawn.legend(list(MARKS.values()), 16)
    y = drawn.top + 6.0
    for contender, said in CONTENDERS.items():
        y += _HEAD
        drawn.say(6, y - 6, said, "bold")
        for family in families:
            own = [row for row in rows if (row["contender"], row["family"]) == (contender, family)]
            drawn.say(6, y + 8, family, "soft small")
            for i, (name, (kind, words)) in enumerate(MARKS.items()):
                level = y + 5 * i - 1
                at = [(row[f"{name} over the error"], row["k"]) for row in own if row[f"{name} over the error"]]
                if at:
                    drawn.line([(x(min(at)[0]), level), (x(max(at)[0]), level)], f"{kind} faint")
                for value, k in at:
                    drawn.dot(x(value), level, kind, f"{family}, K = {k}, {said}: {words} {value:,.0f}", 2.4)
            y += _STEP
    return drawn
