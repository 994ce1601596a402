"""The tensor-core kernels on the simulator: results, races, rerouted tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peakgemm.kernels.emulated.model import FOUR_TIMES, TWICE
from peakgemm.kernels.emulated.product import PRODUCTS, half_as_high
from peakgemm.kernels.emulated.schemes import HEAD, ROWS, SCHEMES
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.problem import Batch, Problem
from peakgemm.tools.simulator.core.floats import fma32
from peakgemm.tools.simulator.launch import run
from peakgemm.tools.simulator.library import run_counted
from seldom import exhaustive

SEED = 7
CONFIGS = {"64 rows": half_as_high(SCHEMES["fp16x3"]), "tf32x3 of 64": half_as_high(SCHEMES["tf32x3"]),
           "bf16x9 of 64": half_as_high(SCHEMES["bf16x9"]), "narrow": streamed(64),
           "turned": replace(streamed(128), trans_c=True), "turned fused": replace(FUSED.default, trans_c=True)}
KERNELS = {**PRODUCTS, **dict.fromkeys(CONFIGS, FUSED), "64 rows": PRODUCTS["fp16x3"],
           "tf32x3 of 64": PRODUCTS["tf32x3"], "bf16x9 of 64": PRODUCTS["bf16x9"], "fused": FUSED,
           **dict.fromkeys(("streamed", "narrow", "turned"), STREAMED)}


pytestmark = pytest.mark.usefixtures("many_lanes")


def normal(*shape: int, seed: int = SEED) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(name: str, problem: Problem, a: Any, b: Any, c: Any, c0: Any = None, *, sms: int = 4, **kw: Any) -> int:
    """Run it; every check of the simulator has to be silent. How many half tiles were rerouted."""
    kernel = KERNELS[name]
    config = CONFIGS.get(name, kernel.default)
    reports, rerouted = run_counted(kernel, replace(config, **kw), problem, a, b, c, c0, sm_count=sms)
    for report in reports:
        assert not report.faults, report.faults[:3]
    return int(rerouted.sum())


def products(name: str, a: Any, b: Any, *, trans_a: bool = False, apart: int = 0, **kw: Any) -> tuple[Any, list[int]]:
    """C of several cases, computed as a batch, each with four SMs; and how many half tiles of each were rerouted.

    ``apart``: elements, NaN, between one A and the next. Every check of the simulator has to be silent. Kernels that
    read panels count all cases together: which half tiles they reroute is seen in their bits, which FFMAs alone make.
    """
    kernel, (cases, m, k), n = KERNELS[name], a.shape, b.shape[2]
    config = CONFIGS.get(name, kernel.default)
    config = replace(config, **kw)
    memory, c = np.full(cases * (m * k + apart) - apart, np.nan, np.float32), np.full((cases, m, n), np.nan, np.float32)
    for case in range(cases):
        begin = case * (m * k + apart)
        memory[begin:begin + m * k] = (a[case].T if trans_a else a[case]).ravel()
    batch = Batch.merged((cases,), (m * k + apart,), (k * n,), (m * n,), (m * n,))
    problem = Problem(m, n, k, m if trans_a else k, n, n, trans_a=trans_a, batch=batch)
    reports, counters = run_counted(kernel, config, problem, memory, np.ascontiguousarray(b), c, sm_count=4 * cases)
    for report in reports:
        assert not report.faults, report.faults[:3]
    if len(counters) > 1:
        return c, counters.reshape(cases, -1).sum(axis=1).tolist()
    alike = (c == ffmas(a, b))
    rerouted = [sum(bool(alike[case, i:i + 64, j:j + config.bn].all() and c[case, i:i + 64, j:j + config.bn].any())
                    for i in range(0, m, 64) for j in range(0, n, config.bn)) for case in range(cases)]
    assert counters.tolist() == [sum(rerouted)]
    return c, rerouted


def ffmas(a: Any, b: Any) -> Any:
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


def within(got: Any, a: Any, b: Any, units: float = 3.0) -> None:
    """|C - AB| <= units 2^-24 |A||B|: two splits of 22 bits, what is left out, truncation inside a chunk."""
    exact, scale = a.astype(np.float64) @ b, abs(a).astype(np.float64) @ abs(b)
    assert (abs(got - exact) <= units * 2.0**-24 * scale).all(), (abs(got - exact) / scale).max() * 2**24


VARIANTS = [*SCHEMES, "64 rows", "tf32x3 of 64", "bf16x9 of 64", "fused", "streamed", "narrow", "turned",
            "turned fused"]
LAYOUTS = ("NN", "NT", "TN", "TT")


@pytest.mark.parametrize(("name", "layout"), [  # for every change: each kernel once, each layout of some
    (name, layout) if j == i % 4 else exhaustive(name, layout)
    for i, name in enumerate(VARIANTS) for j, layout in enumerate(LAYOUTS)])
def test_layouts(name: str, layout: str) -> None:
    """More than one tile, chunk and stage, with ragged edges; each operand stored either way, rows padded."""
    m, n = {"NN": (130, 131), "NT": (70, 131), "TN": (130, 67), "TT": (70, 131)}[layout]
    k = 70
    a, b, c = normal(m, k), normal(k, n, seed=1), np.full((m, n + 3), np.nan, np.float32)
    stored_a = np.pad(np.ascontiguousarray(a.T if layout[0] == "T" else a), ((0, 0), (0, 3)))
    stored_b = np.pad(np.ascontiguousarray(b.T if layout[1] == "T" else b), ((0, 0), (0, 2)))
    problem = Problem(m, n, k, stored_a.shape[1], stored_b.shape[1], n + 3, trans_a=layout[0] == "T",
                      trans_b=layout[1] == "T", alignment=(4, 4, 4))
    assert product(name, problem, stored_a, stored_b, c) == 0
    within(c[:, :n], a, b)
    assert np.isnan(c[:, n:]).all()


@pytest.mark.parametrize(("name", "split", "times"), [
    ("fp16x3", 1, 2), exhaustive("fp16x3", 0, 1), ("fp16x3", 3, 4), ("tf32x3", 2, 1),
    ("64 rows", 0, 2), exhaustive("64 rows", 3, 4), ("bf16x9 of 64", 1, 1),
    exhaustive("fused", 1, 2), ("fused", 0, 1), exhaustive("fused", 3, 4),
    ("streamed", 1, 2), exhaustive("streamed", 0, 1), exhaustive("streamed", 3, 4), exhaustive("narrow", 2, 1),
    ("turned", 1, 4), exhaustive("turned", 3, 1), exhaustive("turned fused", 0, 2),
    exhaustive("turned fused", 2, 1)])
def test_scales_and_persistence(name: str, split: int, times: int) -> None:
    """Several tiles a block, K shared or not, alpha, beta and another C0; sums carried over once or twice a chunk."""
    m, n, k = 140, 200, 130
    a, b, c0 = normal(m, k), normal(k, n, seed=1), normal(m, n, seed=2)
    c = np.full((m, n), np.nan, np.float32)
    problem = Problem(m, n, k, k, n, n, alpha=-1.5, beta=0.5, c0=(n, 1))
    assert product(name, problem, a, b, c, c0, sms=2, accumulations=times, split=split) == 0
    exact = -1.5 * (a.astype(np.float64) @ b) + 0.5 * c0
    scale = 1.5 * (abs(a).astype(np.float64) @ abs(b)) + 0.5 * abs(c0)
    assert (abs(c - exact) <= 4 * 2.0**-24 * scale).all()


@pytest.mark.parametrize("name", ["fp16x3", exhaustive("64 rows"), "fused", "streamed", "narrow", exhaustive("turned"),
                                  "turned fused"])
def test_batch(name: str) -> None:
    """Two products that share B: a split pass takes it once."""
    a, b, c = normal(2, 70, 40), normal(40, 50, seed=1), np.full((2, 70, 50), np.nan, np.float32)
    problem = Problem(70, 50, 40, 40, 50, 50, batch=Batch((2,), (70 * 40,), (0,), (70 * 50,), (70 * 50,)))
    assert product(name, problem, a, b, c) == 0
    for i in range(2):
        within(c[i], a[i], b)


@pytest.mark.parametrize("name", ["fp16x3", exhaustive("64 rows"), "fused", "streamed", "narrow"])
def test_what_the_guard_reroutes(name: str) -> None:
    """Infinities, few terms and spans beyond the split's reach: those half tiles come out as IEEE's."""
    columns = 64 if name in ("fused", "narrow") else 128
    m, n, k, across = 130, columns + 2, 64, 2
    # A row with few terms, or of too large a span, is refused in its half tile; both halves are for an infinity in one,
    # but for those who split rows for their own half alone. A tiny element does no harm where the others make the sums.
    own = KERNELS[name] in (FUSED, STREAMED)
    cases = {"infinity": across if own else 2 * across, "identity": across, "huge": 3 * across, "tiny": 0,
             "span": across}
    operands = {}
    for planted in cases:
        a, b = normal(m, k), normal(k, n, seed=1)
        if planted == "infinity":
            a[3, 5] = np.inf
        elif planted == "identity":
            a = np.eye(m, k, dtype=np.float32)
        elif planted == "tiny":
            a[3, 5] = 1e-12
        elif planted == "span":  # the only large element of the row meets a zero
            a[3] *= 2.0**-30
            a[3, 5], b[5] = 1.0, 0.0
        else:
            a *= np.float32(2.0**99)
            b *= np.float32(2.0**20)
        operands[planted] = a, b
    every_c, rerouted = products(name, *(np.stack(x) for x in zip(*operands.values(), strict=True)))
    assert dict(zip(cases, rerouted, strict=True)) == cases
    for (planted, (a, b)), c in zip(operands.items(), every_c, strict=True):
        if planted == "infinity":
            with np.errstate(all="ignore"):
                want = a.astype(np.float64) @ b
            assert np.isinf(c[3]).all() and (c[3] == want[3]).all()
            within(np.delete(c, 3, 0), np.delete(a, 3, 0), b, 8)
        elif planted == "identity":
            assert (c[:k] == b).all() and (c[k:] == 0).all()
        else:
            within(c, a, b, 16)


@pytest.mark.parametrize(("name", "times"), [
    exhaustive("streamed", 1), ("streamed", TWICE), exhaustive("streamed", FOUR_TIMES)])
def test_every_strip_of_columns_is_asked(name: str, times: int) -> None:
    """The only large element of a row meets a zero in one column, wherever that is."""
    m, n, k, columns = 64, 128, 64, (7, 39, 71, 103)
    a, b = np.stack([normal(m, k)] * len(columns)), np.stack([normal(k, n, seed=1)] * len(columns))
    a[:, 3] *= 2.0**-30
    a[:, 3, 5], b[range(len(columns)), 5, columns] = 1.0, 0.0
    c, rerouted = products(name, a, b, accumulations=times)
    assert dict(zip(columns, rerouted, strict=True)) == dict.fromkeys(columns, 1)
    for case in zip(c, a, b, strict=True):
        within(*case, 8)


@pytest.mark.parametrize(("name", "times"), [exhaustive("streamed", 1), ("streamed", TWICE),
                                             exhaustive("streamed", FOUR_TIMES),
                                             ("narrow", 1)])
def test_columns_of_one_scale_are_promoted_by_it(name: str, times: int) -> None:
    """Where they have several each is read, in any chunk; either may come after the other."""
    m, n, k = 64, 64, 256
    a, one = normal(m, k), normal(k, n, seed=1)
    several = one * np.exp2(np.arange(n) % 7).astype(np.float32)
    both = np.where(np.arange(k)[:, None] // 64 % 2, one, several)
    loads = []
    for b in (one, both, several):
        c = np.full((m, n), np.nan, np.float32)
        config = replace(CONFIGS.get(name, STREAMED.default), accumulations=times)
        reports, rerouted = run_counted(STREAMED, config, Problem.contiguous(m, n, k), a, b, c, sm_count=4)
        assert not any(report.faults for report in reports) and not rerouted.any()
        within(c, a, b)
        loads.append(reports[1].counters["shared_loads"])
    assert loads[0] < loads[1] < loads[2]


@pytest.mark.parametrize(("name", "planted"), [
    ("fp16x3", "a"), ("fp16x3", "b"), exhaustive("64 rows", "a"), exhaustive("64 rows", "b"), ("fused", "b"),
    exhaustive("fused", "a"), ("streamed", "a"), exhaustive("streamed", "b"), exhaustive("narrow", "a"),
    exhaustive("narrow", "b"), exhaustive("turned", "a"), exhaustive("turned", "b"), exhaustive("turned fused", "a"),
    exhaustive("turned fused", "b")])
def test_rows_of_elements_that_lose_bits(name: str, planted: str) -> None:
    """Four large elements of each chunk of a row, and all others far smaller, in every row of an operand: no matter as
    long as the large ones meet something, a half tile by FFMAs where they meet zeros."""
    m, n, k = 60, 64, 128
    cases = {(20, False, "all"): 0, (32, True, "all"): 0, (32, False, "one"): 1, (32, True, "one"): 0}
    operands = []
    for orders, met, which in cases:
        rows = slice(None) if which == "all" else slice(5, 6)
        x, y = normal(m, k), normal(k, n, seed=1)
        x[rows] = np.random.default_rng(SEED).uniform(1, 2, x[rows].shape) * 2.0**-orders
        x[rows, ::16] = 1.5
        if not met:
            y[::16] = 0
        operands.append((x, y) if planted == "a" else (y.T, x.T))
    a, b = (np.stack(x) for x in zip(*operands, strict=True))
    c, rerouted = products(name, a, b, trans_a=name == "narrow")
    assert dict(zip(cases, rerouted, strict=True)) == cases
    for case in zip(c, a, b, strict=True):
        within(*case, 8)  # eight products make some of the sums, and whatever is promised for few


@pytest.mark.parametrize(("apart", "shared", "times"), [
    (3, True, 1), (4, False, 1), (3, True, TWICE), (9, False, TWICE), (0, True, FOUR_TIMES), (4, False, FOUR_TIMES)])
def test_columns_that_share_a_scale(apart: int, shared: bool, times: int) -> None:
    """Columns of B 2^``apart`` apart do or do not; sums are right by one factor a row, and by each column's."""
    m, n, k = 66, 70, 70
    a = np.random.default_rng(SEED).uniform(1, 2, (m, k)).astype(np.float32)
    b = np.random.default_rng(1).uniform(1, 2, (k, n)).astype(np.float32)
    b[:, 5::8] *= np.float32(2.0**apart)
    b[:, 3] = 0
    problem = Problem.contiguous(m, n, k)
    scales = np.ascontiguousarray(tails_of_b(problem, a, b)[:, :ROWS * 4]).view(np.float32)
    assert (scales[:, 3] == 0).all()
    assert (len(np.unique(np.delete(scales[:, :n], 3, 1))) == 1) == shared
    c = np.full((m, n), np.nan, np.float32)
    assert product("fp16x3", problem, a, b, c, accumulations=times) == 0
    assert (c[:, 3] == 0).all()
    within(c, a, b, 8)  # of one sign, so that what is cut off adds up


def tails_of_b(problem: Problem, a: Any, b: Any) -> Any:
    """The bytes that the split pass writes behind the planes of the one row of panels that B has, each 64 of K's."""
    kernel, scheme = PRODUCTS["fp16x3"], SCHEMES["fp16x3"]
    plan = kernel.launches(kernel.default, problem, "sm_90", 4)
    workspace, split = np.zeros(plan.workspace_bytes // 4, np.float32), plan.kernels[0]
    run(split.recipe.make("ptx"), grid=split.blocks, block=split.threads, arch=split.recipe.arch,
        args=[a, b, b, b, workspace, split.arguments], shared_bytes=split.shared_bytes)
    chunks = -(-problem.k // scheme.chunk)
    panels = workspace[HEAD // 4:].view(np.uint8)[chunks * scheme.panel:2 * chunks * scheme.panel]
    return panels.reshape(chunks, scheme.panel)[:, scheme.planes * ROWS * 128:]


def test_bits_lost_in_a_lower_half_and_far_along_k() -> None:
    """Sums are asked for of the half tile, the matrix and the chunk that have lost bits, be it the thirty-fourth."""
    m, n, k = 70, 16, 64 * 34
    a, b = normal(2, m, k), normal(2, k, n, seed=1)
    a[1, 67, -64:] *= np.float32(2.0**-30)
    a[1, 67, -10], b[1, -10] = 1, 0
    c = np.full((2, m, n), np.nan, np.float32)
    problem = replace(Problem.contiguous(m, n, k), batch=Batch.merged((2,), (m * k,), (k * n,), (m * n,), (m * n,)))
    assert product("fp16x3", problem, a, b, c) == 1
    for each in range(2):
        within(c[each], a[each], b[each], 8)


@pytest.mark.parametrize("name", ["tf32x3", "bf16x9"])
def test_bits_lost_beyond_2_to_the_112(name: str) -> None:
    """Schemes with FP32's exponents lose bits so far below a row's largest, which is a matter if that meets zeros."""
    k = SCHEMES[name].chunk
    for met, rerouted in ((True, 0), (False, 1)):
        a, b = normal(20, k), normal(k, 16, seed=1)
        a[5] *= np.float32(2.0**-118)
        a[5, 7] = 1
        if not met:
            b[7] = 0
        c = np.full((20, 16), np.nan, np.float32)
        assert product(name, Problem.contiguous(20, 16, k), a, b, c) == rerouted
        within(c, a, b, 8)


@pytest.mark.parametrize("name", ["fp16x3", "fused", exhaustive("streamed"), exhaustive("narrow")])
def test_what_is_rerouted_is_added_up_with_compensation(name: str) -> None:
    """Thirty-two products that make 2^110, then sums of 32 of which none changes that by itself: in all 5.6 of its last
    places."""
    m, n, k = 64, 64, 512
    a, b = np.full((m, k), 2.0**105, np.float32), np.ones((k, n), np.float32)
    b[32:] = 0.375 * 2.0**-23
    c = np.full((m, n), np.nan, np.float32)
    assert product(name, Problem.contiguous(m, n, k), a, b, c) > 0
    last_place = 2.0 ** (110 - 23)
    exact = 2.0**110 + 15 * 0.375 * last_place
    assert (a.astype(np.float64) @ b == exact).all()
    assert (abs(c - exact) <= last_place).all()


@pytest.mark.parametrize("name", ["fp16x3", "fused", *map(exhaustive, ("64 rows", "streamed", "narrow", "turned",
                                                                        "turned fused"))])
def test_the_guard_where_blocks_share_k(name: str) -> None:
    """A part of K by FFMAs and the others not; a row with few terms in each part is judged by all of K."""
    m, n, k = 64, 64, 200
    panels = name in ("fp16x3", "64 rows")
    # Of the lower half tile there are no rows. A span is there in each part but the last, and who looks at panels
    # counts parts.
    cases, operands = {"infinity": 1, "span": 3 if panels else 1, "few": 1, "enough": 0}, {}
    for planted in cases:
        a, b = normal(m, k), normal(k, n, seed=1)
        if planted == "infinity":
            a[3, 5] = np.inf
        elif planted == "span":
            a[3] *= 2.0**-30
            a[3, ::25], b[::25] = 1, 0
        else:  # fewer than 32 in each of four parts, 20 or 100 in all
            a[3, np.arange(k) % (10 if planted == "few" else 2) > 0] = 0
        operands[planted] = a, b
    if panels:  # of which one counter tells, and of parts no bits of C
        every_c = [np.full((m, n), np.nan, np.float32) for _ in cases]
        rerouted = [product(name, Problem.contiguous(m, n, k), *operands[planted], c, split=4)
                    for planted, c in zip(cases, every_c, strict=True)]
    else:
        every_c, rerouted = products(name, *(np.stack(x) for x in zip(*operands.values(), strict=True)), split=4)
    assert dict(zip(cases, rerouted, strict=True)) == cases
    for (planted, (a, b)), c in zip(operands.items(), every_c, strict=True):
        if planted == "infinity":
            assert (c[3] == np.copysign(np.inf, b[5])).all()
            a, c = np.delete(a, 3, 0), np.delete(c, 3, 0)
        within(c, a, b, 8)


@pytest.mark.parametrize(("name", "cases"), [
    exhaustive("streamed", {(-4, 27, -4, 10): 0, (0, 31, 0, -31): 1}), ("streamed", {(None, -36, 0): 1}),
    exhaustive("narrow", {(-4, 27, -4, 10): 0, (0, 31, 0, -31): 1}),
    ("narrow", {(0, 16, -16): 0, (0, 30, -30): 1, (0, 25, -8): 1, (0, -32, 32): 1, (None, -36, -30): 0,
                (None, None, 40): 0, (None, -36, 0): 1})])
def test_a_row_whose_scales_lie_far_apart(name: str, cases: dict[tuple[int | None, ...], int]) -> None:
    """By how many binary orders its chunks differ (None: zeros); beyond 32 sums could leave FP32's range."""
    m, n, k = 64, 64, 64 * len(next(iter(cases)))
    want = {(orders, scale): rerouted for orders, rerouted in cases.items() for scale in (1.0, 2.0**45)}
    a = np.stack([np.random.default_rng(SEED).uniform(1, 2, (m, k)).astype(np.float32)] * len(want))
    b = np.stack([normal(k, n, seed=1) * np.float32(scale) for _, scale in want])
    for case, (orders, _) in enumerate(want):
        a[case, 5] *= np.repeat([0 if order is None else 2.0**order for order in orders], 64)
    c, rerouted = products(name, a, b)
    assert dict(zip(want, rerouted, strict=True)) == want
    for each in zip(c, a, b, strict=True):
        within(*each, 16)


@pytest.mark.parametrize("k", [70, exhaustive(97)])
@pytest.mark.parametrize("name", ["streamed", "narrow"])
def test_the_next_row_past_the_end_of_k(name: str, k: int) -> None:
    """Rows that lie close together are copied on into the next one: neither its zeros nor its elements count for the
    row before, and an infinity at the head of a tile does no harm to the last row of the tile before."""
    m, n = 140, 64
    # The half tile above an infinity has copied it: it comes out by FFMAs, and right.
    cases = {"nothing": 0, "few": 1, "enough": 0, "infinity": 2}
    every_a, b = np.stack([normal(m, k)] * len(cases)), normal(k, n, seed=1)
    for planted, a in zip(cases, every_a, strict=True):
        if planted in ("few", "enough"):
            a[5, 10 if planted == "few" else 40:] = 0
        elif planted == "infinity":
            a[128, 0] = np.inf
    # NaN behind each last row but the last one, behind which there is no memory
    every_c, rerouted = products(name, every_a, np.stack([b] * len(cases)), apart=4)
    assert dict(zip(cases, rerouted, strict=True)) == cases
    for a, c in zip(every_a, every_c, strict=True):
        finite = np.isfinite(a).all(1)
        within(c[finite], a[finite], b, 8)
        assert (c[~finite] == np.copysign(np.inf, b[0])).all()


@pytest.mark.parametrize(("m", "k", "lda", "trans"), [
    (1, 40, 1, True), (1, 40, 2, True), (30, 2, 2, False), (30, 1, 1, False), (5, 40, 40, False),
    (40, 3, 40, True)])
def test_nothing_is_read_before_a(m: int, k: int, lda: int, trans: bool) -> None:
    """Lines from an odd address, the first ones of which lie in the 16 bytes where A begins."""
    a, b, c = normal(m, k), normal(k, 64, seed=1), np.full((m, 64), np.nan, np.float32)
    memory = np.full(1 + lda * max(m, k) + 4, np.nan, np.float32)[1:]
    rows, columns = (1, lda) if trans else (lda, 1)
    np.lib.stride_tricks.as_strided(memory, (m, k), (4 * rows, 4 * columns))[...] = a
    problem = Problem(m, 64, k, lda, 64, 64, trans_a=trans, alignment=(4, 16, 16))
    assert product("narrow", problem, memory, b, c) == 0
    within(c, a, b, 8)


@pytest.mark.parametrize(("k", "ld", "begin"), [
    (200, 200, 3), exhaustive(200, 201, 0), exhaustive(192, 193, 0), (193, 194, 3), exhaustive(195, 195, 1),
    exhaustive(195, 199, 0)])
def test_rows_are_read_the_same_wherever_they_start(k: int, ld: int, begin: int) -> None:
    """By the 16 bytes in which they lie, some of which are other rows', or by words at either end of the memory."""
    m, n = 140, 70
    a, bt, c = normal(m, k), normal(n, k, seed=1), np.zeros((2, m, n), np.float32)
    assert product("fp16x3", Problem(m, n, k, k, k, n, trans_b=True, alignment=(16, 16, 16)), a, bt, c[0]) == 0
    memory = np.full(begin + ld * (m - 1) + k, np.nan, np.float32)
    there = np.lib.stride_tricks.as_strided(memory[begin:], (m, k), (4 * ld, 4))
    there[:] = a
    problem = Problem(m, n, k, ld, k, n, trans_b=True, alignment=(4, 16, 16))
    assert product("fp16x3", problem, there, bt, c[1]) == 0
    assert (c[0] == c[1]).all()


def test_blocks_of_a_cluster_that_share_copies_of_b() -> None:
    """The same bits as each by itself; the last cluster's second block has no rows."""
    m, n, k = 300, 131, 449
    a, b, c = normal(m, k), normal(k, n, seed=1), np.zeros((2, m, n), np.float32)
    problem = Problem(m, n, k, k, n, n, alignment=(4, 4, 4))
    for cluster in (1, 2):
        assert product("fp16x3", problem, a, b, c[cluster - 1], cluster=cluster) == 0
    assert (c[0] == c[1]).all()


def test_integers_are_exact() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-64, 65, shape).astype(np.float32) for shape in ((64, 200), (200, 64)))
    for name in ("fp16x3", "bf16x9", "fused"):
        c = np.full((64, 64), np.nan, np.float32)
        assert product(name, Problem.contiguous(64, 64, 200), a, b, c) == 0
        assert (c == a @ b).all()
