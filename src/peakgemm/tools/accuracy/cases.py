"""Rows of the suite as a record holds them: a case each, what is of the case once, and a result for each contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .verdict import Row

WHICH = ("test", "family", "shape")
OF_ERRORS = ("draws", "rounding_max", "rounding_mean", "bound")
OF_REFERENCE = {"reference_max": "max_error", "reference_mean": "mean_error"}  # which its own result has
OF_FIGURES = ("limit", "unit")


def cases_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A case for each test, kind of data and size, in the order of ``rows``; `rows_of` gives these back."""
    cases: dict[tuple[str, str, tuple[int, ...]], dict[str, Any]] = {}
    for row in rows:
        key = row["test"], row["family"], tuple(row["shape"])
        case = cases.setdefault(key, {name: row[name] for name in WHICH} | {"results": {}})
        for name in (*OF_ERRORS, *OF_FIGURES):
            if name in row:
                case.setdefault(name, row[name])
        # What differs from the case stays with the result, as does whatever is no field of a case.
        case["results"][row["contender"]] = {
            name: value for name, value in row.items()
            if name not in (*WHICH, "contender", *OF_REFERENCE) and (name == "verdict" or value is not None)
            and not (name in (*OF_ERRORS, *OF_FIGURES) and case[name] == value)}
    return [{**{name: value for name, value in case.items() if name != "results"}, "results": case["results"]}
            for case in cases.values()]


def rows_of(record: Mapping[str, Any]) -> list[Row]:
    """The rows of a record of `peakgemm accuracy`, with infinite errors as numbers again."""
    rows: list[Row] = []
    for case in record["rungs"]:
        for contender, result in case["results"].items():
            own = OF_ERRORS if "max_error" in result else OF_FIGURES if "figure" in result else ()
            row = {**{name: case[name] for name in (*WHICH, *own) if name in case}, "contender": contender,
                   "note": None, **result}
            if "max_error" in result:
                standard = case["results"].get(record["against"], {})
                row |= {name: standard.get(theirs) for name, theirs in OF_REFERENCE.items()}
            rows.append({name: float(value) if value in ("inf", "nan") else value for name, value in row.items()})
    return rows
