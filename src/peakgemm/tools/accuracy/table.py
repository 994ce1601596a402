"""What a report comes to: one line a test and kind of data, one cell a contender."""

from __future__ import annotations

from collections.abc import Sequence

from .suite import Report
from .verdict import FAIL, PASS, SKIPPED, WORSE, Row

ORDER = (PASS, SKIPPED, WORSE, FAIL)
ERRORS = ("random", "long-k", "scaled")  # their cells show errors


def worst(rows: Sequence[Row]) -> str:
    """The worst verdict; ``skipped`` where nothing else happened."""
    verdicts: list[str] = [row["verdict"] for row in rows]
    if all(verdict == SKIPPED for verdict in verdicts):
        return SKIPPED
    return max((verdict for verdict in verdicts if verdict != SKIPPED), key=ORDER.index)


def lines(report: Report, test: str, names: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each kind of data of a test: its name, and a (verdict, text) for each of ``names``."""
    rows = [row for row in report.rows if row["test"] == test]
    if test == "special":
        return [("special values", [_tally([row for row in rows if row["contender"] == name]) for name in names])]
    cells = []
    for family in dict.fromkeys(row["family"] for row in rows):
        group = [row for row in rows if row["family"] == family]
        cells.append((family, [_cell(test, [row for row in group if row["contender"] == name]) for name in names]))
    return cells


def failures(report: Report) -> list[str]:
    """A sentence for each contender and test that did not pass: on what data, at which sizes, and the worst of it."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(report.failures, key=lambda row: report.contenders.index(row["contender"])):
        groups.setdefault((row["contender"], row["test"]), []).append(row)
    sentences = []
    for (contender, test), rows in groups.items():
        tried = [row for row in report.rows if (row["contender"], row["test"]) == (contender, test)]
        parts = []
        for verdict in (FAIL, WORSE):
            of = [row for row in rows if row["verdict"] == verdict]
            families = [_where(family, of, tried) for family in dict.fromkeys(row["family"] for row in of)]
            if families:
                parts.append(f"{verdict} on {', '.join(families)}")
        chief = max(rows, key=lambda row: (ORDER.index(row["verdict"]), float(row.get("max_error", 0.0))))
        sentences.append(f"{contender}, {test}: {'; '.join(parts)}. {chief['family']} {_shape(chief)}: {chief['note']}")
    return sentences


def _where(family: str, rows: Sequence[Row], tried: Sequence[Row]) -> str:
    """The family, and the sizes where these are not all that were tried."""
    shapes = [_shape(row) for row in rows if row["family"] == family]
    return family if len(shapes) == sum(row["family"] == family for row in tried) else f"{family} ({', '.join(shapes)})"


def _shape(row: Row) -> str:
    m, n, k = row["shape"]
    return str(m) if m == n == k else f"{m}x{n}x{k}"


def _cell(test: str, rows: Sequence[Row]) -> tuple[str, str]:
    """The worst verdict of all sizes; errors at the largest one, else the worst figure."""
    if not rows:
        return SKIPPED, "-"
    verdict = worst(rows)
    if test in ERRORS:
        measured = [row for row in rows if "max_error" in row]
        if not measured:
            return verdict, "-"
        last = max(measured, key=lambda row: (row["shape"][2], row["shape"][0]))
        return verdict, f"{_short(last['max_error'])}/{_short(last['mean_error'])}"
    figures = [row for row in rows if "figure" in row]
    if not figures:
        return verdict, "-"
    top = max(figures, key=lambda row: float(row["figure"]))
    if test == "slope":
        return verdict, _short(top["figure"])
    return verdict, "" if top["figure"] == 0 else f"{_short(top['figure'])} {top['unit']}"


def _tally(rows: Sequence[Row]) -> tuple[str, str]:
    tried = [row for row in rows if row["verdict"] != SKIPPED]
    return worst(rows) if rows else SKIPPED, f"{sum(row['verdict'] == PASS for row in tried)} of {len(tried)}"


def _short(x: float) -> str:
    return f"{x:.2g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
