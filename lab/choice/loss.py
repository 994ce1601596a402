"""What the choices of a profile lose to the fastest candidate that was timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

from lab.choice.rows import SCHEME, Row, Rows
from peakgemm.kernels.profile import Machine
from peakgemm.selection.choose import EMULATED_K, Candidate, candidates
from peakgemm.tools.bench.suites import Case


@dataclass(frozen=True, slots=True)
class Loss:
    """What the choices of a profile lose for a product: the time of each over the fastest that was timed, less 1.
    ``passed``: what the models rank higher than any candidate that was timed."""

    case: Case
    ieee: float
    scheme: float | None    # of a scheme that is named
    emulated: float | None  # of precision="emulated", which takes a scheme or FFMA
    chosen: Row
    best: Row
    passed: int


def loss(product: Rows, gpu: Machine) -> Loss:
    """What the choices of the profile of ``gpu`` lose."""
    best = product.of(tensor=False)[0]
    chosen, passed = first(candidates(product.problem, gpu), product, tensor=False)
    taken, ieee = chosen, product.us[chosen[:2]] / product.us[best] - 1
    tensor = product.of(tensor=True)
    if not tensor:
        return Loss(product.case, ieee, None, None, chosen[:2], best, passed)
    scheme, _ = first(candidates(product.problem, gpu, SCHEME), product, tensor=True)
    worth = gpu.profile.emulated.worth_share
    if worth is not None and scheme.us < worth * chosen.us and product.problem.k >= EMULATED_K:
        taken = scheme
    least = min(product.us[best], product.us[tensor[0]])
    return Loss(product.case, ieee, product.us[scheme[:2]] / product.us[tensor[0]] - 1,
                product.us[taken[:2]] / least - 1, chosen[:2], best, passed)


def first(ranked: Sequence[Candidate], product: Rows, tensor: bool) -> tuple[Candidate, int]:
    """The first candidate that was timed, and how many are ranked higher."""
    for i, candidate in enumerate(ranked):
        if candidate[:2] in product.us:
            return candidate, i
    return Candidate(*product.of(tensor)[-1], ranked[0].us), len(ranked)  # a profile whose candidates are all others


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th percentile, geometric mean and the largest, to four decimals."""
    mean = exp(sum(log(1 + value) for value in values) / len(values)) - 1
    found = {"median": median(values), "p90": sorted(values)[int(0.9 * (len(values) - 1) + 0.5)], "mean": mean,
             "largest": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def summary(losses: Sequence[Loss]) -> dict[str, dict[str, float]]:
    """The spread of each precision's losses, with their ``count``."""
    found = {}
    for precision in ("ieee", "scheme", "emulated"):
        if values := [value for each in losses if (value := getattr(each, precision)) is not None]:
            found[precision] = {"count": len(values), **spread(values)}
    return found
