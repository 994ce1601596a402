"""Successive halving: all candidates briefly, the better half for twice as long, until a few are left.

Each is timed against the default, interleaved (`bench.timer`), so that a drifting clock favours nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ...selection.choose import Candidate
from ..bench.records import first_line
from ..bench.timer import BURST_MS, MAX_PAIRS, MIN_PAIRS, Comparison

FINALISTS = 3
MARGIN = 1.01  # a gain below this is not worth a choice that may differ from the next run's

Compare = Callable[[Candidate, float], Comparison]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search decided.

    Attributes:
        winner: the default, unless another is better by more than the noise.
        ratio: time of the default over the best finalist's, median of the pairs.
        spread: 10th and 90th percentile of the pairs.
        best: that finalist; None where there was none.
        replaced: whether it is the winner.
        timed: candidates that were timed, the default left out.
        refused: those that failed, and why.
    """

    winner: Candidate
    ratio: float
    spread: tuple[float, float]
    best: Candidate | None
    replaced: bool
    timed: int
    refused: list[str] = field(default_factory=list)


def rounds(count: int, seconds: float) -> list[tuple[int, float]]:
    """(candidates, seconds each) of every round; the last is the finalists', at ``seconds``."""
    sizes = [count]
    while sizes[-1] > FINALISTS:
        sizes.append(max(FINALISTS, -(-sizes[-1] // 2)))
    return [(size, seconds / 2 ** (len(sizes) - 1 - i)) for i, size in enumerate(sizes) if size]


def estimate_s(candidates: Sequence[Candidate], seconds: float) -> float:
    """About how long a search over compiled candidates, the default in front, takes: pairs and warm-up."""
    total = 0.0
    us = sorted(c.us for c in candidates[1:])
    for size, each in rounds(len(us), seconds):
        for own in us[:size]:
            pair = sum(max(BURST_MS, t / 1e3) for t in (own, candidates[0].us)) / 1e3
            total += pair * (min(MAX_PAIRS, max(MIN_PAIRS, round(each / pair))) + 4)
    return total


def halve(candidates: Sequence[Candidate], compare: Compare, error: Callable[[Candidate], str | None], seconds: float
          ) -> Outcome:
    """Search among candidates, the default in front.

    Args:
        candidates: the default, then the others, in the order that decides between equals.
        compare: times a candidate against the default for so many seconds; what it raises takes
            the candidate out of the search.
        error: why a finalist's product is wrong, or None.
        seconds: of the last round.
    """
    default, alive = candidates[0], list(candidates[1:])
    refused: list[str] = []
    scores: list[tuple[float, tuple[float, float], Candidate]] = []
    timed = len(alive)
    for size, each in rounds(len(alive), seconds):
        scores = []
        for candidate in alive[:size]:
            try:
                compared = compare(candidate, each)
                scores.append((median(compared.ratios), compared.spread, candidate))
            except Exception as why:  # a compiler's or a driver's refusal: the others go on
                refused.append(f"{candidate.label}: {first_line(why)}")
        scores.sort(key=lambda score: -score[0])  # stable: equals stay in the model's order
        alive = [candidate for _, _, candidate in scores]
    for ratio, spread, candidate in scores:
        wrong = error(candidate)
        if wrong is not None:
            refused.append(f"{candidate.label}: {wrong}")
            continue
        replaced = ratio >= MARGIN and spread[0] > 1
        return Outcome(candidate if replaced else default, ratio, spread, candidate, replaced, timed, refused)
    return Outcome(default, 1.0, (1.0, 1.0), None, False, timed, refused)
