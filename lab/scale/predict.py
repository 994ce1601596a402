"""A model of scale: what products on several GPUs should take, by one GPU's times and the links' speeds.

Formulas only. Whoever calls gives the times of one GPU, measured or from the cost models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from peakgemm.integrations.overlap import Link, SharedProduct, Way, best

FLOAT = 4
# Squares for strong and weak scaling, and the rows of A past which one weight passes.
SQUARES = (4096, 8192, 16384)
ROWS = tuple(1 << i for i in range(15))
WIDTH = 8192  # N and K of that weight
HOST_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 30000)

Time = Callable[[int, int, int, str], float]  # (m, n, k, precision) -> us on one GPU


class Case(NamedTuple):
    """A product of the suite, by what one of ``world`` GPUs has: ``rows`` of M in all, its ``n`` columns or share of K.

    ``scaling``: ``strong``, a square shared by all; ``weak``, a square for each; ``rows``, one weight and M rows.
    """

    call: str
    scaling: str
    m: int
    n: int
    k: int
    precision: str

    @property
    def flops(self) -> int:
        """Of one GPU."""
        return 2 * self.m * self.n * self.k


Choose = Callable[[Case], Way]


def cases(world: int, precisions: Sequence[str], quick: bool = False) -> Iterator[Case]:
    """The suite for ``world`` GPUs; sizes that they do not divide are left out."""
    for precision in precisions:
        for size in SQUARES[:2] if quick else SQUARES:
            if size % world == 0:
                for scaling, part in (("strong", size // world), ("weak", size)):
                    yield Case("all_gather_matmul", scaling, size, part, size, precision)
                yield Case("matmul_reduce_scatter", "strong", size, size, size // world, precision)
                yield Case("matmul_reduce_scatter", "weak", size, size, size, precision)
        for rows in ROWS[::3] if quick else ROWS:
            if rows % world == 0:
                yield Case("all_gather_matmul", "rows", rows, WIDTH, WIDTH, precision)


def shared(case: Case, world: int, time: Time, link: Link) -> SharedProduct:
    """``case`` as ``world`` GPUs share it."""
    def product(rows: int) -> float:
        return time(rows, case.n, case.k, case.precision)

    scatter = case.call != "all_gather_matmul"
    return SharedProduct(world, case.m // world, FLOAT * (case.n if scatter else case.k), product, link, scatter)


def shapes(found: Sequence[Case], world: int, choose: Choose | None = None) -> list[tuple[int, int, int, str]]:
    """The products of one GPU whose times `predicted` asks for."""
    asked: dict[tuple[int, int, int, str], None] = {}

    def note(m: int, n: int, k: int, precision: str) -> float:
        asked[m, n, k, precision] = None
        return 1.0

    for case in found:
        predicted(case, world, note, Link(1, 1, 1, 1, 1, 1, 1), choose)
    return list(asked)


def alone(case: Case, world: int) -> tuple[int, int, int, str]:
    """The product that one GPU would compute: the whole of a strong case, its own part of another."""
    m, n, k = case.m, case.n, case.k
    if case.scaling == "strong":
        n, k = (n * world, k) if case.call == "all_gather_matmul" else (n, k * world)
    return m, n, k, case.precision


def predicted(case: Case, world: int, time: Time, link: Link, choose: Choose | None = None) -> dict[str, Any]:
    """A row of the record: the way that is chosen, its time, and the efficiency: one GPU's time over that of all, by
    the work of each. ``choose``: what chooses the way, None: the times given."""
    product = shared(case, world, time, link)
    if choose is None:
        found = product.ways()
        chosen = best(found)
    else:
        found = [way._replace(us=product.us(way))
                 for way in dict.fromkeys((Way(0, 0.0), choose(case)._replace(us=0.0)))]
        chosen = found[-1]
    one, share = time(*alone(case, world)), world if case.scaling == "strong" else 1
    return {**case._asdict(), "gpus": world, "chosen": chosen.name, "predicted_ms": chosen.us / 1e3,
            "ways_ms": {way.name: way.us / 1e3 for way in found}, "one_gpu_ms": one / 1e3,
            "predicted_efficiency": one / share / chosen.us}


def pays_from(rows: Sequence[dict[str, Any]], precision: str) -> int | None:
    """From how many rows of A on overlap pays, by predictions of one weight; None: at none of them."""
    found = sorted((row["m"], row["chosen"] != "plain") for row in rows
                   if row["scaling"] == "rows" and row["precision"] == precision)
    last = next((i for i in range(len(found) - 1, -1, -1) if not found[i][1]), -1)
    return found[last + 1][0] if last + 1 < len(found) else None
