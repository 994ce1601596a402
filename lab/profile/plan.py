"""Which products and kernels `lab.profile` times: shapes drawn by chance, and for each the model's best and those
that have been planned least often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.ffma import chain
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.library import EMULATED, recipes
from peakgemm.kernels.library import KERNELS as IEEE
from peakgemm.kernels.profile import Machine
from peakgemm.kernels.recipe import Recipe
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem, varied
from peakgemm.selection.choose import Candidate, candidates
from peakgemm.tools.bench.drawn import log_uniform
from peakgemm.tools.bench.suites import Case, cases, distinct, drawn_cases, suites

SEED = 2026      # of the products that profiles are fitted to; suites have others
SHAPES = 280
_LARGE = 7       # one in so many is a product of millions of results: few of those drawn are
_BEST, _MORE = 6, 5       # of a shape's IEEE candidates: the model's best, and those planned least often
_EMULATED = 3, 2          # the same of tensor cores
_NEAR = 2.0      # times the modelled best, at most
_LEAST_K = 32    # of products for tensor cores


@dataclass(frozen=True, slots=True)
class Planned:
    """A product and what is timed of it."""

    case: Case
    problem: Problem
    rows: tuple[tuple[Kernel, Config], ...]


def plan(gpu: Machine, count: int = SHAPES, seed: int = SEED) -> list[Planned]:
    """So many products, none of a suite, in an order of which any first part covers what there is."""
    coverage: Counter[object] = Counter()
    return [Planned(case, case.problem()[0], tuple(_rows(case.problem()[0], gpu, coverage)))
            for case in islice(shapes(seed), count)]


def shapes(seed: int) -> Iterator[Case]:
    """Drawn products without end, none of a suite."""
    known = {case.problem()[0] for case in distinct(suites(",".join(("all", "drawn"))))}
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


def _rows(problem: Problem, gpu: Machine, coverage: Counter[object]) -> Iterator[tuple[Kernel, Config]]:
    ranked = list(candidates(problem, gpu))
    yield from _picked(ranked, _BEST, _MORE, coverage)
    yield from ((CHAIN, config) for config in chain.configurations(problem, gpu))
    if gpu.arch.has_cp_async and problem.k >= _LEAST_K:
        tensor = list(candidates(problem, gpu, SCHEMES["fp16x3"]))
        if tensor[0][2] <= _NEAR * ranked[0][2]:
            yield from _picked(tensor, *_EMULATED, coverage)


def _picked(ranked: list[Candidate], best: int, more: int, coverage: Counter[object]) -> list[tuple[Kernel, Config]]:
    """The model's ``best`` and, of those near, ``more`` that have been planned least often; deterministic."""
    near = [one for one in ranked[best:] if one[2] <= _NEAR * ranked[0][2]]
    rare = sorted(near, key=lambda one: (coverage[_class(*one[:2])], one[2]))  # those planned least often first
    chosen: list[tuple[Kernel, Config]] = []
    for kernel, config, _ in [*ranked[:best], *rare[:more]]:
        coverage[_class(kernel, config)] += 1
        chosen.append((kernel, config))
    return chosen


def _class(kernel: Kernel, config: Config) -> tuple[str, Config]:
    """What has numbers of its own: a tile, whole, in ranges or in parts."""
    return label(kernel), varied(config, split=min(config.split, 2))


def label(kernel: Kernel) -> str:
    """A kernel of the library by a name that no other has: several of a scheme share theirs."""
    return f"{kernel.name} {kernel.family.name}".rstrip()


KERNELS = {label(kernel): kernel for kernel in (*IEEE, *EMULATED)}


def compilations(kernel: Kernel, config: Config, problem: Problem, gpu: Machine) -> list[Recipe]:
    """What the launches of a kernel are compiled from."""
    return list(recipes(kernel, config, problem, gpu.arch.name, gpu.sms))


def programs(planned: Iterable[Planned], gpu: Machine) -> dict[tuple[object, ...], Recipe]:
    """Every compilation of a plan once, in its order."""
    found: dict[tuple[object, ...], Recipe] = {}
    for one in planned:
        for kernel, config in one.rows:
            for made in compilations(kernel, config, one.problem, gpu):
                found.setdefault(key(made), made)
    return found


def key(made: Recipe) -> tuple[object, ...]:
    """What tells a compilation from others."""
    return made.file, made.entry, made.arch, *made.macros.items()
