"""Whether a product keeps the promise of ``reproducible=True``: bits of an element depend on one row and one column.

`check` holds a function to it by products of one row alone, of one element, within another batch, in other layouts, and
beside neighbours of NaN, and to `peakgemm.replay` on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import api
from ...problem import Problem
from ...runtime.compile import in_parallel
from ...runtime.device import Gpu
from ...selection.choose import choose
from .arrays import Arrays

Gemm = Callable[..., Any]  # (a, b, c, *, alpha, beta) -> result
KINDS = ("normal", "wide", "tiny", "special")
_ROWS, _COLUMNS = 3, 5  # of a result that are replayed
_MOST = 1 << 20  # elements of an operand
_LARGE = 100  # one of so many cases is large enough for tiles that are handed on from block to block
_AHEAD = 400  # cases whose kernels are compiled ahead; others meet few new ones


@dataclass(frozen=True, slots=True)
class Case:
    """One product: ``batch`` of ``m x n x k``, drawn from ``seed``; ``turned``: which operands are stored transposed.

    ``kind``: ``normal``; ``wide``, exponents over 2^-60 to 2^60; ``tiny``, whose products underflow; ``special``, with
    infinities, NaN and zeros of either sign strewn in.
    """

    batch: int
    m: int
    n: int
    k: int
    kind: str
    alpha: float
    beta: float
    turned: tuple[bool, bool]
    seed: int

    def __str__(self) -> str:
        layout = "".join("NT"[x] for x in self.turned)
        return (f"{self.batch} of {self.m} x {self.n} x {self.k} {layout} {self.kind}, alpha {self.alpha:g}, beta "
                f"{self.beta:g}, seed {self.seed}")

    def operands(self) -> tuple[Any, Any, Any]:
        """A ``(batch, M, K)``, B ``(batch, K, N)`` and C, on the host, packed."""
        rng = np.random.default_rng(self.seed)
        shapes = ((self.batch, self.m, self.k), (self.batch, self.k, self.n), (self.batch, self.m, self.n))
        drawn = []
        for shape in shapes:
            x = rng.standard_normal(shape, np.float32)
            if self.kind == "wide":
                x = np.ldexp(x, rng.integers(-60, 60, shape)).astype(np.float32)
            elif self.kind == "tiny":
                x *= np.float32(2.0**-75)
            elif self.kind == "special":
                for value in (np.inf, np.nan, -0.0, 0.0):
                    x[rng.random(shape) < 0.5 / max(self.k, 4)] = value
            drawn.append(x)
        return drawn[0], drawn[1], drawn[2]


def draw(count: int, seed: int = 0) -> list[Case]:
    """So many cases: sizes log-uniform to 1500, K to 4000, many of them odd; every hundredth 1000 to 4000 a side, with
    a short K."""
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        m, n, k = (round(2 ** rng.uniform(0, top)) for top in (10.5, 10.5, 12))
        if rng.random() < 0.4:
            m, n, k = (max(4, x - x % 4) for x in (m, n, k))
        while max(m * k, k * n, m * n) > _MOST:
            m, n, k = m // 2 + 1, n // 2 + 1, k // 2 + 1
        if number % _LARGE == _LARGE - 1:
            own = np.random.default_rng((seed, number))
            m, n, k = (round(2 ** own.uniform(*ends)) for ends in ((10, 12), (10, 12), (5, 9)))
        batch = int(rng.integers(2, 5)) if rng.random() < 0.25 and max(m * k, k * n, m * n) < _MOST // 8 else 1
        alpha, beta = ((1.0, 0.0), (1.0, 1.0), (-0.7, 0.0), (2.5, -0.3))[rng.choice(4, p=(0.5, 0.15, 0.2, 0.15))]
        turned = bool(rng.random() < 0.4), bool(rng.random() < 0.4)
        cases.append(Case(batch, m, n, k, str(rng.choice(KINDS, p=(0.5, 0.2, 0.2, 0.1))), alpha, beta, turned,
                          seed * 1_000_003 + number))
    return cases


def check(case: Case, gemm: Gemm, arrays: Arrays) -> Iterator[str]:
    """What of the promise ``gemm`` breaks for a case, in words; nothing where it keeps it."""
    xp, rng = arrays.xp, np.random.default_rng(case.seed)
    a, b, c = case.operands()
    left, right, added = (arrays.take(x) for x in (a, b, c))
    scales: dict[str, Any] = {"alpha": case.alpha, "beta": case.beta}

    def stored(x: Any, turned: bool) -> Any:
        return xp.swapaxes(arrays.copy(xp.swapaxes(x, -1, -2)), -1, -2) if turned else x

    def run(x: Any, y: Any, z: Any) -> Any:
        result = gemm(x, y, z if case.beta else None, **scales)
        return arrays.host(arrays.bits(arrays.copy(result)))

    whole = run(stored(left, case.turned[0]), stored(right, case.turned[1]), added)
    i, r, s = int(rng.integers(case.batch)), int(rng.integers(case.m)), int(rng.integers(case.n))
    rows = np.unique(rng.integers(0, case.m, _ROWS))
    columns = np.unique(rng.integers(0, case.n, _COLUMNS))
    picked = np.ix_(rows, columns)
    flipped = not case.turned[0], not case.turned[1]
    more, at = int(rng.integers(1, 70)), int(rng.integers(0, 70))
    tall, beside = (np.full((more + at, width), np.nan, np.float32) for width in (case.k, case.n))
    tall[at], beside[at] = a[i, r], c[i, r]
    padded = np.full((case.k + 1, case.n + 3), np.nan, np.float32)
    padded[:case.k, 1 + s] = b[i, :, s]
    one, other, third, mine = left[i], right[i], added[i], whole[i]
    replayed = api.replay(a[i][rows], b[i][:, columns], c[i][picked] if case.beta else None, **scales).view(np.int32)
    for what, got, want in (
            ("elements differ from replay's on the CPU", mine[picked], replayed),
            (f"row {r} alone differs", run(one[r:r + 1], other, third[r:r + 1])[0], mine[r]),
            (f"column {s} alone differs", run(one, other[:, s:s + 1], third[:, s:s + 1])[:, 0], mine[:, s]),
            (f"element {r}, {s} alone differs", run(one[r:r + 1], other[:, s:s + 1], third[r:r + 1, s:s + 1])[0, 0],
             mine[r, s]),
            ("the other layouts differ", run(stored(one, flipped[0]), stored(other, flipped[1]), third), mine),
            (f"row {r} between rows of NaN differs", run(arrays.take(tall), other, arrays.take(beside))[at], mine[r]),
            (f"column {s} between columns of NaN, at another address, differs",
             run(one, arrays.take(padded)[:case.k, 1:case.n + 1], third)[:, s], mine[:, s])):
        if not np.array_equal(got, want):
            yield what


def compile_ahead(cases: list[Case], gpu: Gpu) -> int:
    """Compile in parallel what the first cases run, alone and in other layouts; how many kernels that was."""
    each = {}
    for case in cases[:_AHEAD]:
        ta, tb = case.turned
        for m, n, first, second in ((case.m, case.n, ta, tb), (case.m, case.n, not ta, not tb), (1, case.n, ta, tb),
                                    (case.m, 1, ta, tb)):
            problem = Problem(m, n, case.k, m if first else case.k, case.k if second else n, n, trans_a=first,
                              trans_b=second)
            choice = choose(problem, gpu.arch, gpu.sm_count, gpu.name, "reproducible")
            made = choice.kernel.recipe(choice.config, problem, gpu.arch)
            each[made.name] = made
    in_parallel(lambda made: made.make("cubin"), list(each.values()))
    return len(each)
