"""Emulated products without wgmma (split, then product_mma): their code for sm_80 to sm_120, their results simulated.

Small whole numbers come out exact, whatever the scheme: that checks every index. Errors of other data are counted in
units of 2^-23 |A| |B|, elementwise. The worst case is about 17: 4 of the split (22 bits a factor and the product of
two second planes dropped; bf16x9 has none of this), 11 of truncation (sixteen k-steps are two steps of sm_80's tensor
cores, each of which cuts off nine terms at half a unit and its sum at one), the rest of FP32 additions.
What is random in sign or size stays far below: 1 is demanded of normal data and 3 of uniform data, where all truncation
goes one way, and no more than a chain of FMAs, which is what cuBLAS computes, has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from peakgemm.kernels.emulated.product import OLDER, product_on
from peakgemm.kernels.emulated.schemes import REROUTED, SCHEMES, split_recipe
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import Compiled, compile_source, in_parallel
from peakgemm.runtime.source import KERNELS, assemble
from peakgemm.sass.listing import nvdisasm
from peakgemm.tools.simulator import Report, run
from seldom import exhaustive

pytestmark = pytest.mark.usefixtures("many_lanes")

SPLIT, PRODUCT = KERNELS / "emulated" / "split.cu", KERNELS / "emulated" / "product_mma.cu"
THREADS = 256
SENTINEL = -777.25
LOST_BITS = 16  # HMMAs of those that look at sums where bits were lost


def config_of(name: str, arch: str) -> Config:
    """As many stages as fit; a low raster, so that small products have several groups."""
    return replace(product_on(SCHEMES[name], architecture(arch))[1], raster=2)


def shared_bytes(name: str, config: Config) -> int:
    return OLDER[name].shared_bytes(config)


def product(name: str, arch: str, kind: Any, text: str = "") -> Compiled:
    macros = config_of(name, arch).macros() | {"SCHEME": SCHEMES[name].code}
    return compile_source(text or assemble(PRODUCT), "tensor_product_mma", arch, macros, kind, name=PRODUCT.name)


def split(name: str, arch: str, kind: Any, problem: Problem) -> Compiled:
    macros = split_recipe(SCHEMES[name], problem, arch).macros
    return compile_source(assemble(SPLIT), "tensor_split", arch, macros, kind, name=SPLIT.name)


def run_both(name: str, problem: Problem, a: Any, b: Any, c: Any, c0: Any = None, *, arch: str = "sm_80",
             sms: int = 2, text: str = "") -> tuple[list[Report], int]:
    """Run both kernels; the reports and how many half tiles were rerouted."""
    config = config_of(name, arch)
    plan = OLDER[name].launches(config, problem, arch, sms)
    splitting, multiplying = plan.kernels
    workspace = np.full(plan.workspace_bytes, 0xFF, np.uint8)  # NaN, if it is read before it is written
    args = [a, b, c if c0 is None else c0, c, workspace, multiplying.arguments]
    reports = [
        run(split(name, arch, "ptx", problem), grid=splitting.blocks, block=THREADS, args=args, arch=arch,
            shared_bytes=SCHEMES[name].panel),
        run(product(name, arch, "ptx", text), grid=multiplying.blocks, block=THREADS, args=args, arch=arch,
            shared_bytes=shared_bytes(name, config))]
    return reports, int(workspace[REROUTED:REROUTED + 4].view(np.int32)[0])


def simulate(*args: Any, **options: Any) -> int:
    """Run both kernels, in which no fault is found; how many half tiles were rerouted."""
    reports, rerouted = run_both(*args, **options)
    assert not [str(report) for report in reports if not report.clean]
    return rerouted


def whole_numbers(rng: np.random.Generator, *shape: int) -> Any:
    """1 to 4 of either sign: no zeros, which the guard counts."""
    return (rng.integers(1, 5, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


def check_exact(name: str, m: int, n: int, k: int, trans_a: bool, trans_b: bool, *, alpha: float = 1.0,
                beta: float = 0.0, pad: int = 0, arch: str = "sm_80", sms: int = 2) -> None:
    """A product of small whole numbers is exact, by tensor cores alone, and nothing beside C is written."""
    rng = np.random.default_rng(m + 7 * n + 31 * k)
    a = whole_numbers(rng, *((k, m + pad) if trans_a else (m, k + pad)))
    b = whole_numbers(rng, *((n, k + pad) if trans_b else (k, n + pad)))
    c = np.full((m, n + pad), SENTINEL, np.float32)
    c[:, :n] = whole_numbers(rng, m, n) if beta else np.nan
    op_a = (a[:, :m].T if trans_a else a[:, :k]).astype(np.float64)
    op_b = (b[:, :k].T if trans_b else b[:, :n]).astype(np.float64)
    expected = alpha * (op_a @ op_b) + (beta * c[:, :n] if beta else 0.0)
    problem = Problem(m, n, k, a.shape[1], b.shape[1], c.shape[1], alpha, beta, (16, 16, 16), trans_a, trans_b)
    rerouted = simulate(name, problem, a, b, c, arch=arch, sms=sms)
    np.testing.assert_array_equal(c[:, :n], expected)
    assert (c[:, n:] == SENTINEL).all()
    assert rerouted == 0


@pytest.mark.parametrize(("arch", "names"), [
    ("sm_80", list(SCHEMES)), ("sm_86", list(SCHEMES)), ("sm_89", ["fp16x3"]), ("sm_120", list(SCHEMES))])
def test_code(arch: str, names: list[str]) -> None:
    """No spills but for a few words around the FFMAs' tile, no more shared memory than there is; of 32 bytes of K the
    scheme's products of 4 x 4 fragments, each plane's fragments loaded once."""
    for name, code in zip(names, in_parallel(lambda name: product(name, arch, "cubin"), names), strict=True):
        assert (code.spill_bytes or 0) <= 192, name
        listing, scheme = nvdisasm(code.code, arch, "-c"), SCHEMES[name]
        assert listing.count(" HMMA.") == 16 * scheme.products + LOST_BITS, name
        assert listing.count(" LDSM.") == (4 + 2) * scheme.planes, name
        lines = listing.splitlines()
        tensor = [i for i, line in enumerate(lines) if " HMMA." in line][:-LOST_BITS]
        assert not any(" LDL" in line or " STL" in line for line in lines[tensor[0]:tensor[-1]]), name
        assert code.registers is not None and code.registers <= 255
        assert (code.static_shared or 0) + shared_bytes(name, config_of(name, arch)) <= architecture(
            arch).shared_per_block


@pytest.mark.parametrize(("name", "trans_a", "trans_b"), [
    ("fp16x3", False, False), ("fp16x3", False, True), ("fp16x3", True, False), ("fp16x3", True, True),
    ("tf32x3", False, True), ("tf32x3", True, False), ("bf16x9", False, False), ("bf16x9", True, True)])
def test_layouts(name: str, trans_a: bool, trans_b: bool) -> None:
    """Two tiles for one block, edges in M, N and K."""
    check_exact(name, 140, 60, 77, trans_a, trans_b, alpha=1.5, beta=-0.5, sms=1)


@pytest.mark.parametrize(("m", "n", "k", "pad"), [(1, 1, 1, 0), (5, 257, 40, 3), (66, 3, 129, 4), (64, 64, 400, 4),
                                                  exhaustive(128, 128, 64, 0), exhaustive(128, 128, 400, 4)])
def test_edges(m: int, n: int, k: int, pad: int) -> None:
    check_exact("fp16x3", m, n, k, False, False, pad=pad)


def test_batches_and_broadcasts() -> None:
    """A broadcast along one level, B along the other, C0 a row; four products for one block."""
    rng = np.random.default_rng(3)
    m, n, k = 40, 50, 70
    a, b = whole_numbers(rng, 2, m, k), whole_numbers(rng, 2, k, n)
    c, row = np.full((2, 2, m, n), np.nan, np.float32), whole_numbers(rng, n)
    expected = a.astype(np.float64)[None] @ b.astype(np.float64)[:, None] + 2.0 * row
    problem = Problem(m, n, k, k, n, n, 1.0, 2.0, c0=(0, 1),
                      batch=Batch((2, 2), (0, m * k), (k * n, 0), (2 * m * n, m * n), (0, 0)))
    rerouted = simulate("fp16x3", problem, a, b, c, row, sms=1)
    np.testing.assert_array_equal(c, expected)
    assert rerouted == 0


@lru_cache(maxsize=2)
def operands(kind: str, k: int) -> tuple[Any, Any, Any, Any]:
    """A and B, 64 x ``k`` and ``k`` x 64, the product, and the sums of magnitudes."""
    rng = np.random.default_rng(k)
    a, b = ((rng.standard_normal(s) if kind == "normal" else rng.random(s)).astype(np.float32)
            for s in ((64, k), (k, 64)))
    return a, b, a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)


def chain(a: Any, b: Any) -> Any:
    """The product by FMAs in the order of K."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for i in range(a.shape[1]):
        total = (total + np.outer(a[:, i].astype(np.float64), b[i])).astype(np.float32)
    return total


@pytest.mark.parametrize("name", list(SCHEMES))
@pytest.mark.parametrize(("kind", "k", "most"), [("normal", 128, 1.0), ("uniform", 64, 3.0),
                                                exhaustive("uniform", 384, 3.0)])
def test_accuracy(name: str, kind: str, k: int, most: float) -> None:
    """A second plane left out would cost thousands of units; sums that stay in the tensor cores grow with K."""
    a, b, exact, magnitudes = operands(kind, k)
    c = np.full((64, 64), np.nan, np.float32)
    rerouted = simulate(name, Problem(64, 64, k, k, 64, 64), a, b, c)
    assert rerouted == 0
    ours, plain = (np.abs(x - exact) / (magnitudes * 2.0**-23) for x in (c, chain(a, b)))
    assert ours.max() < min(most, plain.max())
    assert ours.mean() < plain.mean()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reroutes_its_tile(bad: float) -> None:
    """One block computes both tiles: the one with the bad row as IEEE would, the other one as if nothing had been."""
    a, b, _, _ = operands("normal", 40)
    a = np.concatenate([a, a, -a])  # 192 rows: the second tile has one half
    clean, c = np.full((2, 192, 64), np.nan, np.float32)
    problem = Problem(192, 64, 40, 40, 64, 64)
    assert simulate("fp16x3", problem, a, b, clean, sms=1) == 0
    a[70, 3] = bad
    rerouted = simulate("fp16x3", problem, a, b, c, sms=1)
    assert rerouted == 2  # the halves of the first tile, which share panels
    np.testing.assert_array_equal(c[128:], clean[128:])
    np.testing.assert_array_equal(c[70], bad * np.sign(b[3]))  # an infinity keeps its sign
    others = np.arange(128) != 70
    with np.errstate(invalid="ignore"):
        exact, magnitudes = a[:128].astype(np.float64) @ b, np.abs(a[:128]).astype(np.float64) @ np.abs(b)
        errors = np.abs(c[:128] - exact)
    assert (errors[others] < 2 * 2.0**-23 * magnitudes[others]).all()


def test_half_tiles_are_rerouted_by_themselves() -> None:
    """A row with few elements that are not zero: its half tile alone."""
    rng = np.random.default_rng(5)
    a, b = whole_numbers(rng, 128, 96), whole_numbers(rng, 96, 128)
    a[100, 31:] = 0
    c = np.full((128, 128), np.nan, np.float32)
    rerouted = simulate("tf32x3", Problem(128, 128, 96, 96, 128, 128), a, b, c)
    assert rerouted == 1
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b)


@pytest.mark.parametrize(("huge", "rerouted"), [(1.0, 0), (1e9, 1)])
def test_lossy_rows_are_looked_up(huge: float, rerouted: int) -> None:
    """An element too small for FP16 is harmless, unless a column of B holds something huge for it alone."""
    a, b, _, _ = operands("normal", 64)
    a, b = np.abs(a), np.abs(b)
    a[5, 3], b[3, 7] = 1e-10, b[3, 7] * huge
    exact, magnitudes = a.astype(np.float64) @ b, a.astype(np.float64) @ b
    c = np.full((64, 64), np.nan, np.float32)
    found = simulate("fp16x3", Problem(64, 64, 64, 64, 64, 64), a, b, c)
    assert found == rerouted
    assert (np.abs(c - exact) / (magnitudes * 2.0**-23)).max() < (8 if rerouted else 3)


def test_whoever_does_not_wait_is_reported() -> None:
    """The checks that the other tests rely on do find a missing wait and a missing barrier."""
    text = assemble(PRODUCT)
    for line in ("copies_wait<STAGES - 2>();", "__syncthreads();  // all have this half"):
        assert text.count(line) == 1
        a, b, _, _ = operands("normal", 224)
        c = np.full((64, 64), np.nan, np.float32)
        broken = text.replace(line, "//" if "//" in line else "")
        reports, _ = run_both("fp16x3", Problem(64, 64, 224, 224, 64, 64), a, b, c, text=broken)
        assert {fault.kind for fault in reports[1].faults} & {"cp_async_race", "shared_race"}, line
