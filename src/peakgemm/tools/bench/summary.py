"""What a suite comes to: geometric mean, worst row, share of wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from .variants import Variant

Row = Mapping[str, Any]


def summarise(name: str, variant: Variant, rows: Sequence[Row]) -> dict[str, Any]:
    """Of the ratios of time to cuBLAS, above 1 where ours is faster: one entry of a record's ``suites``.

    ``wins`` is the share of measured rows above 1; ``failed`` counts rows that have none; ``peers`` holds each
    contender's geometric mean, and the share of its rows in which ours is no slower than it.
    """
    measured = [row for row in rows if row.get("ratio_to_cublas")]
    ratios = [row["ratio_to_cublas"] for row in measured]
    worst = min(measured, key=lambda row: float(row["ratio_to_cublas"]), default=None)
    peers: dict[str, list[tuple[float, float]]] = {}
    for row in measured:
        for peer, measures in row.get("peers", {}).items():
            if "ratio_to_cublas" in measures:
                peers.setdefault(peer, []).append((row["ratio_to_cublas"], measures["ratio_to_cublas"]))
    return {
        "suite": name, **variant.fields(), "rows": len(rows), "failed": sum("error" in row for row in rows),
        "geomean": geometric_mean(ratios) if ratios else None,
        "worst": worst and worst["ratio_to_cublas"], "worst_name": worst and worst["name"],
        "wins": sum(ratio > 1 for ratio in ratios) / len(ratios) if ratios else None,
        "peers": {peer: {"geomean": geometric_mean([theirs for _, theirs in pairs]),
                         "not_slower": sum(ours >= theirs for ours, theirs in pairs) / len(pairs)}
                  for peer, pairs in peers.items()},
    }


def summaries(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One for each precision and suite, in the rows' order; of several suites, one for ``all`` behind them."""
    entries = []
    for variant in dict.fromkeys(map(Variant.of, rows)):
        own = [row for row in rows if Variant.of(row) == variant]
        names = list(dict.fromkeys(row["suite"] for row in own))
        entries += [summarise(name, variant, [row for row in own if row["suite"] == name]) for name in names]
        if len(names) > 1:
            entries.append(summarise("all", variant, own))
    return entries
