"""What the choices of profiles lose: each against the best that a search finds, all timed in one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Any

from lab.profile.fit import spread
from lab.profile.plan import Planned, label, shapes
from lab.profile.stopwatch import Done, Row, Stopwatch
from peakgemm.kernels.profile import Machine
from peakgemm.selection.choose import candidates
from peakgemm.tools.bench.suites import Case

SEED = 7          # other products than profiles are fitted to
TOP, NEAR = 24, 2.0  # of each profile's candidates: the best so many, at most so many times the best's modelled time
FINALISTS = 5


def plan(machines: Mapping[str, Machine], count: int, seed: int = SEED, top: int = TOP) -> list[Planned]:
    """Drawn products, each with the best candidates of every profile; the choices of all are among them."""
    return [Planned(case, case.problem()[0], tuple(_union(case, machines, top)))
            for case in islice(shapes(seed), count)]


def _union(case: Case, machines: Mapping[str, Machine], top: int) -> list[Row]:
    found: dict[Row, None] = {}
    for gpu in machines.values():
        ranked = candidates(case.problem()[0], gpu)[:top]
        found |= dict.fromkeys((kernel, config) for kernel, config, us in ranked if us <= NEAR * ranked[0][2])
    return list(found)


def losses(planned: Sequence[Planned], machines: Mapping[str, Machine], stopwatch: Stopwatch,
           done: Done) -> Iterator[dict[str, Any]]:
    """Rows of a record: the time of each profile's choice over the least of a search, less 1.

    All candidates are timed once. The quickest and the choices are timed again, and only that counts: the least of
    forty noisy times would be less than any kernel takes.
    """
    for one in planned:
        row = _loss(one, machines, stopwatch)
        done(one.case.size)
        if row is not None:
            yield row


def _loss(one: Planned, machines: Mapping[str, Machine], stopwatch: Stopwatch) -> dict[str, Any] | None:
    choices = {name: candidates(one.problem, gpu)[0][:2] for name, gpu in machines.items()}
    try:
        first = _medians(one.rows, stopwatch.times(one.problem, one.rows))
        finalists = list(dict.fromkeys([*sorted(first, key=lambda row: first[row])[:FINALISTS], *choices.values()]))
        again = _medians(finalists, stopwatch.times(one.problem, finalists))
    except Exception:  # out of memory, say: the other products still run
        return None
    if not all(choice in again for choice in choices.values()):
        return None
    best = min(again, key=lambda row: again[row])
    return {"shape": [one.case.m, one.case.n, one.case.k], "layout": one.case.layout, "batch": one.case.batch,
            "searched": len(first), "best": _words(best), "best_us": again[best],
            "choices": {name: _words(choice) for name, choice in choices.items()},
            "losses": {name: again[choice] / again[best] - 1 for name, choice in choices.items()}}


def _words(row: Row) -> str:
    return f"{label(row[0])} {row[1].label()}"


def _medians(rows: Sequence[Row], times: Sequence[list[float] | None]) -> dict[Row, float]:
    return {row: median(samples) for row, samples in zip(rows, times, strict=True) if samples}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Median and 90th percentile of what each profile's choices lose."""
    return {name: spread([row["losses"][name] for row in rows]) for name in rows[0]["losses"]} if rows else {}
