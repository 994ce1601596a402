"""Tensor-core kernels on the simulator: which half tiles their guard reroutes to FFMA, that results are right either
way, and what else is theirs alone: scales, panels, clusters, operands read from any address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peakgemm.kernels.emulated.model import FOUR_TIMES, TWICE
from peakgemm.kernels.emulated.product import PRODUCTS, half_as_high
from peakgemm.kernels.emulated.schemes import HEAD, ROWS, SCHEMES, operand
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.kernels.family import Launches
from peakgemm.problem import Batch, Problem
from peakgemm.tools.simulator.core.floats import fma32
from peakgemm.tools.simulator.launch import run
from peakgemm.tools.simulator.library import run_counted
from seldom import exhaustive

SEED = 7
FP16X3 = PRODUCTS["fp16x3"]
VARIANTS = {**{name: (kernel, kernel.default) for name, kernel in PRODUCTS.items()},
            "64 rows": (FP16X3, half_as_high(SCHEMES["fp16x3"])), "fused": (FUSED, FUSED.default),
            "streamed": (STREAMED, STREAMED.default), "narrow": (STREAMED, streamed(64)),
            "turned": (STREAMED, replace(streamed(128), trans_c=True)),
            "turned fused": (FUSED, replace(FUSED.default, trans_c=True))}

pytestmark = pytest.mark.usefixtures("many_lanes")


def normal(*shape: int, seed: int = SEED) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(name: str, problem: Problem, a: Any, b: Any, c: Any, *, sms: int = 4, **changes: Any) -> Any:
    """Run it; every check of the simulator has to be silent. The counters of half tiles that were rerouted."""
    kernel, config = VARIANTS[name]
    reports, rerouted = run_counted(kernel, replace(config, **changes), problem, a, b, c, sm_count=sms)
    assert all(report.clean for report in reports), "\n".join(map(str, reports))
    return rerouted


def together(name: str, a: Any, b: Any, *, trans_a: bool = False, apart: int = 0,
             **changes: Any) -> tuple[Any, list[int]]:
    """C of several products, computed as a batch, and how many half tiles of each were rerouted.

    ``apart``: elements, NaN, between one A and the next. Kernels that read panels count all products together: which
    half tiles they reroute is seen in their bits, which FFMAs alone make; where blocks share K, one counts for each.
    """
    (count, m, k), n = a.shape, b.shape[2]
    memory, c = np.full(count * (m * k + apart) - apart, np.nan, np.float32), np.full((count, m, n), np.nan, np.float32)
    for case in range(count):
        begin = case * (m * k + apart)
        memory[begin:begin + m * k] = (a[case].T if trans_a else a[case]).ravel()
    batch = Batch.merged((count,), (m * k + apart,), (k * n,), (m * n,), (m * n,))
    problem = Problem(m, n, k, m if trans_a else k, n, n, trans_a=trans_a, batch=batch)
    counters = product(name, problem, memory, np.ascontiguousarray(b), c, sms=4 * count, **changes)
    if len(counters) > 1:
        return c, counters.reshape(count, -1).sum(axis=1).tolist()
    columns = VARIANTS[name][1].bn
    alike = c == by_ffmas(a, b)
    tiles = [[np.s_[case, i:i + 64, j:j + columns] for i in range(0, m, 64) for j in range(0, n, columns)]
             for case in range(count)]
    rerouted = [sum(bool(alike[tile].all() and c[tile].any()) for tile in each) for each in tiles]
    assert counters.tolist() == [sum(rerouted)]
    return c, rerouted


def by_ffmas(a: Any, b: Any) -> Any:
    """What ieee_tile.cuh computes, to the bit: FFMAs of 32 k-steps, added up with compensation."""
    total = excess = np.zeros((*a.shape[:2], b.shape[2]), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, a.shape[2], 32):
            part = np.zeros_like(total)
            for step in range(start, min(start + 32, a.shape[2])):
                part = fma32(a[:, :, step, None], b[:, None, step], part)
            following = part - excess
            before, total = total, total + following
            excess = np.where(np.isfinite(total), total - before - following, np.float32(0))
    return total


def within(got: Any, a: Any, b: Any, units: float) -> None:
    """|C - AB| <= units 2^-24 |A||B| where A and B are finite, else the class of IEEE's result."""
    with np.errstate(all="ignore"):
        exact, scale = a.astype(np.float64) @ b, abs(a).astype(np.float64) @ abs(b)
        finite = np.isfinite(scale)
        off = abs(got - exact)[finite] / np.maximum(scale[finite], 1e-300) * 2**24
    assert (off <= units).all(), off.max()
    np.testing.assert_array_equal(got[~finite], exact[~finite])


# ---- what the guard reroutes -------------------------------------------------------------------------------

# A product with something planted: changes A and B in place; how many half tiles come out as IEEE's. Where threads
# split rows for their own half tile alone (``own``) an infinity reroutes that one, else both, in each strip of columns.
Plant = Callable[[Any, Any, bool], int]


def nothing(a: Any, b: Any, own: bool) -> int:
    return 0


def infinity(a: Any, b: Any, own: bool) -> int:
    a[3, 5] = np.inf
    return 2 if own else 4


def identity(a: Any, b: Any, own: bool) -> int:
    a[:] = np.eye(*a.shape)
    return 2


def huge(a: Any, b: Any, own: bool) -> int:
    a *= np.float32(2.0**99)
    b *= np.float32(2.0**20)
    return 6


def tiny(a: Any, b: Any, own: bool) -> int:
    """One element, which does no harm where the others make the sums."""
    a[3, 5] = 1e-12
    return 0


def span(a: Any, b: Any, own: bool, column: Any = slice(None), orders: int = 30, strips: int = 2) -> int:
    """The only large element of a row meets a zero, in one column or all."""
    a[3] *= 2.0**-orders
    a[3, 5], b[5, column] = 1.0, 0.0
    return strips


def spread(orders: int, met: bool, rows: Any, rerouted: int) -> Plant:
    """Four large elements of each chunk of a row, and all others far smaller: no matter as long as the large ones meet
    something, a half tile by FFMAs where they meet zeros."""
    def plant(a: Any, b: Any, own: bool) -> int:
        a[rows] = np.random.default_rng(SEED).uniform(1, 2, a[rows].shape) * 2.0**-orders
        a[rows, ::16] = 1.5
        if not met:
            b[::16] = 0
        return rerouted
    return plant


def of_b(plant: Plant) -> Plant:
    """The same of B."""
    return lambda a, b, own: plant(b.T, a.T, own)


def scales(orders: tuple[int | None, ...], scale: float, rerouted: int) -> Plant:
    """A row whose chunks differ by binary orders (None: zeros); beyond 32, sums could leave FP32's range."""
    def plant(a: Any, b: Any, own: bool) -> int:
        a[:] = np.random.default_rng(SEED).uniform(1, 2, a.shape)
        a[5] *= np.repeat([0 if order is None else 2.0**order for order in orders], 64)
        b *= np.float32(scale)
        return rerouted
    return plant


def columns_of_several_scales(chunks: int) -> Plant:
    """In every chunk, or every second one: each column's scale is read, where they share one that alone."""
    def plant(a: Any, b: Any, own: bool) -> int:
        scaled = b * np.exp2(np.arange(b.shape[1]) % 7).astype(np.float32)
        np.copyto(b, scaled, where=np.arange(len(b))[:, None] // 64 % chunks == 0)
        return 0
    return plant


def few(terms: int, rerouted: int) -> Plant:
    """A row with so many terms, side by side."""
    def plant(a: Any, b: Any, own: bool) -> int:
        a[5, terms:] = 0
        return rerouted
    return plant


def lost_far_along_k(a: Any, b: Any, own: bool) -> int:
    """In a lower half tile, in the thirty-fourth chunk."""
    a[67, -64:] *= np.float32(2.0**-30)
    a[67, -10], b[-10] = 1, 0
    return 1


def later_infinity(a: Any, b: Any, own: bool) -> int:
    """At the head of a tile: the last row of the tile before has copied it, and is right."""
    a[128, 0] = np.inf
    return 2


def in_parts(which: str) -> Plant:
    """Where four blocks share K: a part by FFMAs and the others not. Of rows with few terms in each part all of K
    decides; who looks at panels counts parts, and a span is in each but the last."""
    def plant(a: Any, b: Any, own: bool) -> int:
        if which == "infinity":
            a[3, 5] = np.inf
        elif which == "span":
            a[3] *= 2.0**-30
            a[3, ::25], b[::25] = 1, 0
        else:
            a[3, np.arange(a.shape[1]) % (10 if which == "few" else 2) > 0] = 0
        return {"infinity": 1, "span": 1 if own else 3, "few": 1, "enough": 0}[which]
    return plant


LOST = [spread(20, False, np.s_[:], 0), spread(32, True, np.s_[:], 0), spread(32, False, np.s_[5:6], 1),
        spread(32, True, np.s_[5:6], 0)]
GUARDED: dict[str, tuple[tuple[int, int | None, int | None], float, list[Plant], dict[str, Any]]] = {
    # M, N (None: a strip of columns, and two), K (None: a chunk); units; what is planted; how it is run.
    "values": ((130, None, 64), 16, [infinity, identity, huge, tiny, span], {}),
    "strips": ((64, 128, 64), 8, [lambda a, b, own, j=j: span(a, b, own, j, strips=1) for j in (7, 39, 71, 103)], {}),
    "bits of A": ((60, 64, 128), 8, LOST, {}),
    "bits of B": ((64, 60, 128), 8, [*map(of_b, LOST)], {}),
    "scales of 2": ((64, 64, 128), 16, [
        scales(orders, scale, rerouted) for scale in (1.0, 2.0**45) for orders, rerouted in (
            ((0, 31), 0), ((0, -36), 1), ((None, 40), 0))], {}),
    "scales of 3": ((64, 64, 192), 16, [
        scales(orders, scale, rerouted) for scale in (2.0**45,) for orders, rerouted in (
            ((0, 16, -16), 0), ((0, 30, -30), 1), ((0, 25, -8), 1), ((0, -32, 32), 1), ((None, -36, -30), 0),
            ((None, None, 40), 0), ((None, -36, 0), 1))], {}),
    "scales of 4": ((64, 64, 256), 16, [
        scales(orders, scale, rerouted) for scale in (1.0, 2.0**45) for orders, rerouted in (
            ((-4, 27, -4, 10), 0), ((0, 31, 0, -31), 1))], {}),
    "several scales": ((64, 64, 192), 3, [nothing, columns_of_several_scales(1), columns_of_several_scales(2)],
                       {"accumulations": TWICE}),
    # Rows that lie close together are copied on into the next one: neither its zeros nor its elements count.
    "next row": ((140, 64, 70), 8, [nothing, few(10, 1), few(40, 0), later_infinity], {"apart": 4}),
    # Schemes with FP32's exponents lose bits so far below a row's largest, which is a matter if that meets zeros.
    "exponents": ((20, 16, None), 8, [lambda a, b, own: span(a, b, own, [], orders=118, strips=0),
                                      lambda a, b, own: span(a, b, own, orders=118, strips=1)], {}),
    "far along K": ((70, 16, 64 * 34), 8, [nothing, lost_far_along_k], {}),
    "parts of K": ((64, 64, 200), 8, [*map(in_parts, ("infinity", "span", "few", "enough"))], {"split": 4}),
}


@pytest.mark.parametrize(("name", "group"), [
    ("fp16x3", "values"), *(exhaustive(name, "values") for name in ("64 rows", "fused", "streamed")),
    ("narrow", "values"), ("streamed", "strips"), ("fp16x3", "bits of A"), ("fused", "bits of B"),
    exhaustive("streamed", "bits of A"), exhaustive("fp16x3", "bits of B"), ("narrow", "scales of 3"),
    exhaustive("streamed", "next row"), ("narrow", "next row"), ("fused", "parts of K"), ("fp16x3", "parts of K"),
    ("streamed", "several scales"), exhaustive("narrow", "several scales"), ("tf32x3", "exponents"),
    exhaustive("bf16x9", "exponents"), exhaustive("fp16x3", "far along K"),
    *(exhaustive(name, f"bits of {x}") for name in ("64 rows", "narrow", "turned", "turned fused") for x in "AB"),
    *(exhaustive(name, f"scales of {count}") for name in ("streamed", "narrow") for count in (2, 3, 4)
      if (name, count) != ("narrow", 3)),
    *(exhaustive(name, "parts of K") for name in ("64 rows", "streamed", "narrow", "turned", "turned fused"))])
def test_what_is_rerouted(name: str, group: str) -> None:
    (m, n, k), units, plants, how = GUARDED[group]
    kernel, config = VARIANTS[name]
    own = kernel in (FUSED, STREAMED)
    n, k = config.bn + 2 if n is None else n, config.bk if k is None else k
    operands = [(normal(m, k), normal(k, n, seed=1)) for _ in plants]
    want = [plant(a, b, own) for plant, (a, b) in zip(plants, operands, strict=True)]
    if how.get("split") and not own:  # of parts no bits of C tell, and one counter of all products
        every_c = [np.full((m, n), np.nan, np.float32) for _ in plants]
        rerouted = [int(product(name, Problem.contiguous(m, n, k), *each, c, **how).sum())
                    for each, c in zip(operands, every_c, strict=True)]
    else:
        every_c, rerouted = together(name, *(np.stack(x) for x in zip(*operands, strict=True)),
                                     trans_a=(name, group) == ("narrow", "bits of A"), **how)
    assert rerouted == want
    for (a, b), c in zip(operands, every_c, strict=True):
        within(c, a, b, units)


def panels(plan: Launches, a: Any, b: Any) -> Any:
    """What the split pass writes, in bytes."""
    workspace, split = np.zeros(plan.workspace_bytes // 4 + 64, np.float32), plan.kernels[0]
    run(split.recipe.make("ptx"), grid=split.blocks, block=split.threads, arch=split.recipe.arch,
        args=[a, b, b, b, workspace, split.arguments], shared_bytes=split.shared_bytes)
    return workspace[HEAD // 4:].view(np.uint8)


@pytest.mark.parametrize(("apart", "shared", "times"), [
    (3, True, 1), exhaustive(4, False, TWICE), exhaustive(3, True, TWICE), exhaustive(9, False, TWICE),
    exhaustive(0, True, FOUR_TIMES), (4, False, FOUR_TIMES)])
def test_columns_that_share_a_scale(apart: int, shared: bool, times: int) -> None:
    """Columns of B 2^``apart`` apart do or do not; sums are right by one factor a row, and by each column's."""
    m, n, k = 66, 70, 70
    a = np.random.default_rng(SEED).uniform(1, 2, (m, k)).astype(np.float32)
    b = np.random.default_rng(1).uniform(1, 2, (k, n)).astype(np.float32)
    b[:, 5::8] *= np.float32(2.0**apart)
    b[:, 3] = 0
    problem, scheme = Problem.contiguous(m, n, k), SCHEMES["fp16x3"]
    chunks = -(-k // scheme.chunk)
    of_b = panels(FP16X3.launches(FP16X3.default, problem, "sm_90", 4), a, b)[chunks * scheme.panel:]
    tails = of_b[:chunks * scheme.panel].reshape(chunks, scheme.panel)[:, scheme.planes * ROWS * 128:]
    factors = np.ascontiguousarray(tails[:, :ROWS * 4]).view(np.float32)
    assert (factors[:, 3] == 0).all()
    assert (len(np.unique(np.delete(factors[:, :n], 3, 1))) == 1) == shared
    c = np.full((m, n), np.nan, np.float32)
    assert not product("fp16x3", problem, a, b, c, accumulations=times).any()
    assert (c[:, 3] == 0).all()
    within(c, a, b, 8)  # of one sign, so that what is cut off adds up


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_operands_split_beforehand(layout: str) -> None:
    """Their panels are those that a product's own split pass leaves."""
    m, n, k = 130, 40, 96
    ta, tb = (letter == "T" for letter in layout)
    a, b = normal(*((k, m) if ta else (m, k))), normal(*((n, k) if tb else (k, n)), seed=1)
    problem = Problem(m, n, k, m if ta else k, k if tb else n, n, trans_a=ta, trans_b=tb)
    both = panels(FP16X3.launches(FP16X3.default, problem, "sm_90", 4), a, b)
    of_a, of_b = (operand(SCHEMES["fp16x3"], rows, k, (), ()).bytes for rows in (m, n))
    for x, want, ready in ((b, both[of_a:of_a + of_b], {"ready_a": 1}), (a, both[:of_a], {"ready_b": 1})):
        alone = panels(FP16X3.launches(FP16X3.default, problem, "sm_90", 4, **ready), x, x)
        assert (alone[:want.size] == want).all() and want.any()


@pytest.mark.parametrize("name", ["fp16x3", *map(exhaustive, ("fused", "streamed", "narrow"))])
def test_what_is_rerouted_is_added_up_with_compensation(name: str) -> None:
    """Thirty-two products that make 2^110, then sums of 32 of which none changes that by itself: in all 5.6 of its last
    places."""
    a, b = np.full((64, 512), 2.0**105, np.float32), np.ones((512, 64), np.float32)
    b[32:] = 0.375 * 2.0**-23
    c = np.full((64, 64), np.nan, np.float32)
    assert product(name, Problem.contiguous(64, 64, 512), a, b, c).any()
    assert (abs(c - a.astype(np.float64) @ b) <= 2.0 ** (110 - 23)).all()
