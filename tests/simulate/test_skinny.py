"""The kernel for at most 16 rows or columns: its results on the simulator, its code, its launches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from peakgemm.errors import InvalidValue
from peakgemm.kernels.ffma import skinny
from peakgemm.kernels.ffma.skinny import SKINNY, SkinnyConfig
from peakgemm.kernels.profile import Machine
from peakgemm.kernels.validity import violations
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import Compiled, in_parallel
from peakgemm.runtime.occupancy import occupancy
from peakgemm.selection.machine import machine
from peakgemm.tools.simulator.launch import run

H100 = architecture("sm_90")
LAYOUTS = tuple(product((False, True), (False, True)))
SENTINEL = -777.25


def compiled(config: Config, problem: Problem, arch: str = "sm_90", kind: Any = "cubin") -> Compiled:
    return SKINNY.recipe(config, problem, arch).make(kind)


def best(problem: Problem, gpu: Machine) -> tuple[float, Config]:
    """The configuration that the model thinks fastest, and its microseconds."""
    return min(((skinny.estimate_us(config, problem, gpu), config)
                for config in skinny.configurations(problem, gpu)), key=lambda pair: pair[0])


def simulated(config: Config, p: Problem, a: Any, b: Any, c: Any, c0: Any) -> None:
    """Run ``config`` on flat arrays; no fault, and partial sums that nobody wrote are NaN."""
    assert list(SKINNY.constraints(config)) == []
    plan = skinny.schedule(config, p, 4)
    partial = np.full(max(plan.workspace_bytes // 4, 1), np.nan, np.float32)
    args = [a, b, c0, c, partial, plan.arguments]
    reports = [run(compiled(config, p, kind="ptx"), grid=plan.blocks, block=config.block_threads, args=args,
                   shared_bytes=SKINNY.shared_bytes(config))]
    if plan.reduce_blocks:
        reports.append(run(SKINNY.reduce_recipe(config, p, "sm_90").make("ptx"), grid=plan.reduce_blocks,
                           block=skinny.REDUCE_THREADS, args=args))
    assert [(r.faults, r.stopped) for r in reports if r.faults or r.stopped] == []


def matrices(flat: Any, batch: Sequence[int], steps: Sequence[int], shape: tuple[int, int],
             strides: tuple[int, int]) -> Any:
    """The batch of matrices in a flat array, as a view."""
    return as_strided(flat, (*batch, *shape), [4 * s for s in (*steps, *strides)])


def check(m: int, n: int, k: int, trans_a: bool, trans_b: bool, config: Config | None = None, *, alpha: float = 1.0,
          beta: float = 0.0, pad: int = 0, shift: int = 0, batch: tuple[int, ...] = (), broadcast: str = "",
          c0: tuple[int, int] | None = None) -> None:
    """A product of small integers comes out exact, and nothing beside C is written."""
    rng = np.random.default_rng(m + 7 * n + 31 * k)

    def steps(size: int, name: str) -> tuple[int, ...]:
        return tuple(0 if name in broadcast else size * prod(batch[i + 1:]) for i in range(len(batch)))

    def operand(rows: int, columns: int, name: str) -> tuple[Any, int, tuple[int, ...]]:
        ld = max(columns, 1) + pad
        flat = rng.integers(-4, 5, max(rows * ld, 1) * prod(batch) + shift).astype(np.float32)
        return flat[shift:], ld, steps(max(rows * ld, 1), name)

    a, lda, sa = operand(k if trans_a else m, m if trans_a else k, "a")
    b, ldb, sb = operand(n if trans_b else k, k if trans_b else n, "b")
    ldc = n + pad
    sc = steps(m * ldc, "c")
    c = np.full(m * ldc * prod(batch), SENTINEL, np.float32)
    result = matrices(c, batch, sc, (m, n), (ldc, 1))
    result[...] = rng.integers(-4, 5, result.shape) if beta else np.nan
    other = rng.integers(-4, 5, m * n).astype(np.float32) if c0 else c
    start = matrices(other, batch, (0,) * len(batch), (m, n), c0) if c0 else result
    op_a = matrices(a, batch, sa, (m, k), (1, lda) if trans_a else (lda, 1)).astype(np.float64)
    op_b = matrices(b, batch, sb, (k, n), (1, ldb) if trans_b else (ldb, 1)).astype(np.float64)
    expected = alpha * (op_a @ op_b) + (beta * start if beta else 0.0)
    problem = Problem(m, n, k, lda, ldb, ldc, alpha, beta, (16 if shift == 0 else 4,) * 2 + (16,), trans_a, trans_b, c0,
                      Batch(batch, sa, sb, sc, (0,) * len(batch) if c0 else sc))
    simulated(config or best(problem, machine("sm_90", 4))[1], problem, a, b, c, other)
    np.testing.assert_array_equal(result, expected)
    result[...] = SENTINEL
    assert (c == SENTINEL).all()


@pytest.mark.parametrize(("trans_a", "trans_b"), LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 300), (64, 1, 300), (16, 68, 257), (36, 7, 130)])
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
def test_layouts(m: int, n: int, k: int, trans_a: bool, trans_b: bool, shift: int) -> None:
    check(m, n, k, trans_a, trans_b, shift=shift, pad=4 - 4 * shift)


@pytest.mark.parametrize("columns", range(1, 17))
def test_every_number_of_columns(columns: int) -> None:
    check(columns, 40, 70, columns % 2 == 0, columns % 3 == 0)
    check(40, columns, 70, columns % 3 == 0, columns % 2 == 0, beta=2.0)


@pytest.mark.parametrize("split", [2, 3, 9, 40])
def test_blocks_share_k(split: int) -> None:
    config = SkinnyConfig(32, 4, 128, 4, 4, slices=32, split=split)
    check(3, 70, 1100, False, False, config, beta=0.5, batch=(2,))
    check(70, 3, 1100, False, False, config, alpha=2.0, c0=(0, 1))


def test_batches_and_broadcasts() -> None:
    check(1, 33, 40, False, True, batch=(2, 3))
    check(5, 33, 40, True, False, batch=(2, 3), broadcast="a", beta=1.0)
    check(33, 5, 40, False, False, batch=(3,), broadcast="b", pad=3)


def test_drawn_products() -> None:
    draw = random.Random(3)
    for _ in range(25):
        small, large = draw.randint(1, 16), draw.choice((1, 3, 17, 33, 64, 100))
        m, n = draw.choice(((small, large), (large, small)))
        k = draw.choice((1, 16, 100, 256, 517))
        trans = draw.choice(LAYOUTS)
        gpu = machine("sm_90", draw.choice((2, 4, 132)))
        every = list(skinny.configurations(Problem.contiguous(m, n, k), gpu))
        check(m, n, k, *trans, draw.choice(every), beta=draw.choice((0.0, 1.0)), pad=draw.choice((0, 3, 4)),
              shift=draw.choice((0, 0, 1)), batch=draw.choice(((), (2,))))


def large(columns: int, swapped: bool, trans_a: bool, trans_b: bool, alignment: int = 16) -> Problem:
    m, n, k = (columns, 8192, 4096) if swapped else (8192, columns, 4096)
    return Problem(m, n, k, m if trans_a else k, k if trans_b else n, n, alignment=(alignment, alignment, 16),
                   trans_a=trans_a, trans_b=trans_b)


def distinct(arch: str, widths: Sequence[int], layouts: Sequence[tuple[bool, bool]]) -> dict[Any, Compiled]:
    """The first configuration for each number of columns, compiled for every way in which the operands may lie."""
    gpu = machine("sm_90", 132)
    jobs = [(next(iter(skinny.configurations(p, gpu))), p) for columns in (1, 2, 4, 8, 16)
            for swapped in (False, True)
            for layout in layouts for alignment in widths for p in [large(columns, swapped, *layout, alignment)]]
    codes = in_parallel(lambda job: compiled(*job, arch), jobs)
    return dict(zip(jobs, codes, strict=True))


@pytest.mark.parametrize(("arch", "widths", "layouts"), [
    ("sm_75", (16,), LAYOUTS[:1]), ("sm_80", (16,), LAYOUTS[:1]), ("sm_90", (16,), LAYOUTS),
    ("sm_90", (4,), LAYOUTS[::3])])
def test_compiles_without_spill(arch: str, widths: Sequence[int], layouts: Sequence[tuple[bool, bool]]) -> None:
    found = distinct(arch, widths, layouts)
    assert len(found) == 10 * len(widths) * len(layouts)
    assert {(c.spill_bytes, c.stack_bytes, c.static_shared) for c in found.values()} == {(0, 0, 0)}
    for (config, _), code in found.items():
        fit = occupancy(architecture(arch), config.block_threads, code.registers or 0, SKINNY.shared_bytes(config))
        assert fit.blocks_per_sm >= config.min_blocks, fit
        if arch == "sm_90":  # bytes on their way in an SM: bandwidth times latency wants 20 KB of each
            patches = config.bk // (4 * config.slices)
            assert fit.warps_per_sm * 32 * 64 * patches >= 32 * 1024


def test_reads_each_sector_of_the_large_operand_once() -> None:
    m, n, k = 1, 128, 256
    problem, c = Problem.contiguous(m, n, k), np.zeros(n, np.float32)
    config = SkinnyConfig(32, 1, 256, 4, 1, slices=32)
    plan = skinny.schedule(config, problem, 132)
    a, b = np.ones(k, np.float32), np.ones(k * n, np.float32)
    report = run(compiled(config, problem, kind="ptx"), grid=plan.blocks, block=256,
                 shared_bytes=SKINNY.shared_bytes(config), args=[a, b, c, c, None, plan.arguments])
    loads = [x for x in report.instructions if x.opcode.startswith("ld.global") and "v4" in x.opcode]
    assert sum(x.sectors for x in loads) == k * n * 4 // 32


def test_sums_meet_in_banks_of_their_own() -> None:
    """Of 16 columns neighbouring rows' sums would meet in one bank, were rows not turned."""
    m, n, k = 64, 16, 512
    problem, config = Problem.contiguous(m, n, k), SkinnyConfig(32, 16, 256, 4, 16, slices=64)
    plan = skinny.schedule(config, problem, 132)
    a, b, c = np.ones((m, k), "f4"), np.ones((k, n), "f4"), np.zeros((m, n), "f4")
    report = run(compiled(config, problem, kind="ptx"), grid=plan.blocks, block=config.block_threads,
                 shared_bytes=SKINNY.shared_bytes(config), args=[a, b, c, c, None, plan.arguments])
    assert report.counters["shared_wavefronts"] == report.counters["shared_wavefronts_ideal"]
    assert report.counters["global_sectors"] == report.counters["global_sectors_ideal"]


def test_vector_loads_only_where_addresses_allow() -> None:
    plain = large(4, False, False, False)
    assert skinny.width(plain) == 4
    for change in ({"alignment": (8, 16, 16)}, {"lda": 4097}, {"batch": Batch((2,), (2,), (0,), (8192 * 4,), (0,))}):
        assert skinny.width(replace(plain, **change)) == 1, change
    assert skinny.width(replace(plain, alignment=(16, 4, 4), ldb=5)) == 4  # the small operand's do not matter
    assert skinny.width(replace(plain, m=8191)) == 4
    # Along the rows a last float4 must not end past the last row.
    assert skinny.width(Problem(8191, 4, 64, 8192, 4, 4, trans_a=True)) == 1


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8192, 8192), (8192, 1, 8192), (16, 4096, 4096), (4096, 8, 4096)])
def test_large_products_take_one_launch(m: int, n: int, k: int) -> None:
    us, config = best(Problem.contiguous(m, n, k), machine("sm_90", 132))
    plan = skinny.schedule(config, Problem.contiguous(m, n, k), 132)
    assert (plan.parts, plan.reduce_blocks, plan.workspace_bytes) == (1, 0, 0)
    assert plan.blocks >= 120
    # Measured: 88.9, 91.4, 28.4 and 25.9 us; 3.1 TB/s is what a copy reaches.
    assert 1 < us / (4 * m * n * k / min(m, n) / 3.1e6) < 1.5


@pytest.mark.parametrize("problem", [Problem.contiguous(1, 1, 1 << 24), Problem.contiguous(256, 1, 65536)],
                         ids=["dot", "few rows"])
def test_long_k_is_shared(problem: Problem) -> None:
    _, config = best(problem, machine("sm_90", 132))
    plan = skinny.schedule(config, problem, 132)
    assert plan.blocks >= 120 and plan.parts > 1
    assert plan.workspace_bytes == plan.blocks * config.bm * config.bn * 4


def test_every_configuration_is_valid() -> None:
    for m, n, k in product((1, 3, 16, 5000), (1, 2, 7, 16), (1, 64, 5000, 10**6)):
        for config in skinny.configurations(Problem.contiguous(m, n, k), machine("sm_90", 132)):
            assert list(SKINNY.constraints(config)) == []
            assert SKINNY.shared_bytes(config) * config.min_blocks <= H100.shared_per_sm - 1024 * config.min_blocks
            assert SKINNY.shared_bytes(config) <= architecture("sm_75").shared_per_block


@pytest.mark.parametrize(("change", "words"), [
    ({"tm": 8}, "TM = 8"), ({"bn": 3, "tn": 3}, "BN = 3"), ({"bm": 48}, "powers of two"),
    ({"slices": 512}, "slices = 4096 threads must be a multiple of 32, 1024 at most"), ({"slices": 4}, "64 to 1024"),
    ({"bm": 4, "slices": 16}, "slices = 16 threads must be a multiple of 32"),
    ({"bm": 256, "slices": 4, "bk": 16}, "slices = 4"), ({"bk": 384}, "BK = 384"),
    ({"bk": 2048}, "1024 at most"), ({"split": 0}, "split = 0")])
def test_constraints(change: dict[str, int], words: str) -> None:
    good = SkinnyConfig(32, 4, 128, 4, 4, slices=32)
    assert violations(SKINNY, good, H100) == []
    assert any(words in said for said in violations(SKINNY, replace(good, **change), H100))


def test_refusals() -> None:
    config = SkinnyConfig(32, 4, 128, 4, 4, slices=32)
    with pytest.raises(InvalidValue, match="BN = 4"):
        skinny.schedule(config, Problem.contiguous(5, 100, 8), 132)
    batch = Batch((2**31 - 1,), (0,), (0,), (100,), (100,))
    with pytest.raises(InvalidValue, match="split the product"):
        skinny.schedule(config, replace(Problem.contiguous(1, 100, 8), batch=batch), 132)


@pytest.mark.parametrize("problem", [
    Problem.contiguous(0, 5, 3), Problem.contiguous(5, 0, 3),
    replace(Problem.contiguous(2, 5, 3), batch=Batch((0,), (0,), (0,), (10,), (10,)))])
def test_nothing_to_do(problem: Problem) -> None:
    assert skinny.schedule(SkinnyConfig(32, 4, 128, 4, 4, slices=32), problem, 132).blocks == 0
