"""Which products and candidates are timed: shapes drawn by chance, none of a suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from lab.choice.rows import SCHEME, Row
from peakgemm.kernels.library import recipes
from peakgemm.kernels.profile import Machine
from peakgemm.kernels.recipe import Recipe
from peakgemm.problem import Problem
from peakgemm.selection.choose import candidates
from peakgemm.tools.bench.drawn import log_uniform
from peakgemm.tools.bench.suites import Case, cases, distinct, drawn_cases, suites

NEAR = 5.0         # times the modelled best: what is modelled to be slower is not timed
LEAST_K = 32       # of products that are timed on tensor cores too
_LARGE = 7         # one in so many is a product of millions of results: few of those drawn are


@dataclass(frozen=True, slots=True)
class Planned:
    """A product and what is timed of it."""

    case: Case
    problem: Problem
    rows: tuple[Row, ...]


def products(suite: str, seed: int, count: int) -> list[Case]:
    """Products to time: drawn ones that are in no suite, or the cases of a suite."""
    chosen = shapes(seed) if suite == "drawn" else (case for some in suites(suite).values() for case in some)
    return list(islice(chosen, count))


def shapes(seed: int) -> Iterator[Case]:
    """Drawn products without end, none of a suite."""
    known = {case.problem()[0] for case in distinct(suites("all,drawn"))}
    ordinary, large = drawn_cases(seed), _large(seed)
    turn = 0
    while True:
        turn += 1
        case = next(large if turn % _LARGE == 0 else ordinary)
        if case.problem()[0] not in known:
            yield case


def _large(seed: int) -> Iterator[Case]:
    draw = Random(f"large {seed}").random
    while True:
        m, n, k = (log_uniform(draw, low, 6144) for low in (1024, 1024, 128))
        layout = ("NN", "NT", "TN", "TT")[int(draw() * 4)]
        step = (1, 4, 32)[int(draw() * 3)]
        yield cases(f"{m - m % step}x{n - n % step}x{k - k % step}:{layout}")[0]


def plan(chosen: Iterable[Case], gpu: Machine, near: float = NEAR) -> list[Planned]:
    """Every candidate of FFMAs and of tensor cores for each product, but for those modelled to be far from the best."""
    return [Planned(case, case.problem()[0], tuple(_rows(case.problem()[0], gpu, near))) for case in chosen]


def _rows(problem: Problem, gpu: Machine, near: float) -> Iterator[Row]:
    for scheme in (None, SCHEME) if problem.k >= LEAST_K and gpu.arch.has_cp_async else (None,):
        ranked = candidates(problem, gpu, scheme)
        yield from ((kernel, config) for kernel, config, us in ranked if us <= near * ranked[0].us)


def programs(planned: Iterable[Planned], gpu: Machine) -> dict[tuple[object, ...], Recipe]:
    """Every compilation of a plan once, in its order."""
    found: dict[tuple[object, ...], Recipe] = {}
    for product in planned:
        for kernel, config in product.rows:
            for made in recipes(kernel, config, product.problem, gpu.arch.name, gpu.sms):
                found.setdefault((made.file, made.entry, made.arch, *made.macros.items()), made)
    return found
