"""The kernel that sums thin products by one chain an element: results and bits on the simulator, code, choice."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest

from library_case import LAYOUTS, Case, multiply
from peakgemm.calls import replay
from peakgemm.errors import InvalidValue
from peakgemm.kernels.ffma import chain
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.library import compile_for
from peakgemm.kernels.validity import violations
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import in_parallel
from peakgemm.selection.choose import candidates, chains, choose
from peakgemm.selection.machine import machine
from peakgemm.tools.simulator.library import run_library

pytestmark = pytest.mark.usefixtures("many_lanes")

H100 = "NVIDIA H100 80GB HBM3"
GPU = machine("sm_90", 132, H100)


def few(bm: int, tm: int, tn: int = 1) -> Config:
    """Fewer stages and copying warps than the model names: so that a short K goes round the ring several times."""
    return replace(CHAIN.default, bm=bm, tm=tm, tn=tn, bk=32, stages=3, producers=64)


FOUR, PAIRS = few(4, 1), few(4, 1, 2)
TILES = sorted({replace(config, stages=3, producers=96) for m in (1, 2, 4, 8, 16, 32) for n in (64, 4096, 30000)
                for config in chain.configurations(Problem.contiguous(m, n, 4096), GPU)}, key=Config.label)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edges_in_any_layout(layout: str) -> None:
    """By words; by sixteen bytes, rows of padding among them; X is B, and A; K a multiple of a stage, and not."""
    for config in (FOUR, PAIRS):
        multiply(Case(3, 70, 300, layout, pad=3, shift=1, config=config, kernel=CHAIN))
        multiply(Case(4, 68, 192, layout, pad=4, integers=True, config=config, kernel=CHAIN))
        multiply(Case(70, 3, 133, layout, beta=0.0, config=config, kernel=CHAIN))
        multiply(Case(64, 4, 132, layout, config=config, kernel=CHAIN))


@pytest.mark.parametrize("columns", range(1, 33))
def test_every_number_of_columns(columns: int) -> None:
    config = next(chain.configurations(Problem.contiguous(columns, 4096, 4096), GPU))
    assert config.bm // 2 < columns <= config.bm
    small = replace(config, stages=4)
    multiply(Case(columns, 40, 70, LAYOUTS[columns % 4], config=small, kernel=CHAIN))
    multiply(Case(40, columns, 70, LAYOUTS[columns // 4 % 4], beta=0.0, config=small, kernel=CHAIN))


@pytest.mark.parametrize(("tile", "layout"), [(tile, layout) for tile in TILES for layout in ("NN", "TT")],
                         ids=lambda x: x.label() if isinstance(x, Config) else None)
def test_every_tile(tile: Config, layout: str) -> None:
    multiply(Case(tile.bm, 36, 7 * tile.bk + 4, layout, config=tile, kernel=CHAIN))


def test_batches_and_broadcasts() -> None:
    multiply(Case(1, 33, 40, "NT", batch=(2, 3), config=few(1, 1), kernel=CHAIN))
    multiply(Case(3, 33, 40, "TN", batch=(2, 3), still={"a": (0, 1)}, config=FOUR, kernel=CHAIN))
    multiply(Case(33, 3, 40, pad=3, batch=(3,), still={"b": (0,)}, config=FOUR, kernel=CHAIN))


def operands(m: int, n: int, k: int, layout: str, kind: str) -> tuple[Any, Any]:
    """A and B as stored: values over 120 powers of two, or whose products underflow to zeros of one sign."""
    rng = np.random.default_rng(m + n + k)
    ta, tb = (letter == "T" for letter in layout)
    found = []
    for sign, shape in ((1, (k, m) if ta else (m, k)), (-1, (n, k) if tb else (k, n))):
        values = rng.standard_normal(shape, np.float32)
        values = (sign * abs(values) * np.float32(2.0**-80) if kind == "zeros" else
                  np.ldexp(values, rng.integers(-60, 60, shape)))
        found.append(values.astype(np.float32))
    return found[0], found[1]


@pytest.mark.parametrize("kind", ["wide", "zeros"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 37, 165), (37, 2, 64), (4, 64, 4), (16, 36, 100)])
def test_bits_are_one_chains(m: int, n: int, k: int, layout: str, kind: str) -> None:
    """Products that underflow make -0: zeros behind the last k-step would turn that into +0."""
    a, b = operands(m, n, k, layout, kind)
    problem = Problem(m, n, k, a.shape[1], b.shape[1], n, trans_a=layout[0] == "T", trans_b=layout[1] == "T")
    config = few(16, 4, 2) if m == 16 else FOUR
    assert CHAIN.is_ascending(config, problem)
    c, want = np.full((m, n), np.nan, np.float32), np.empty((m, n), np.float32)
    replay.multiply(a.T if problem.trans_a else a, b.T if problem.trans_b else b, None, 1.0, 0.0, want)
    run_library(CHAIN, config, problem, a, b, c)
    assert (c.view(np.uint32) == want.view(np.uint32)).all()
    assert kind == "wide" or (c.view(np.uint32) == 1 << 31).all()


def test_compiles_without_spill() -> None:
    """Every configuration of the model; layouts and widths of copies take turns."""
    ways = cycle(product((False, True), (False, True), (16, 4)))
    jobs = []
    for m, n, k in ((m, 4096, 4096) for m in (1, 2, 4, 8, 16, 32)):
        for config in chain.configurations(Problem.contiguous(m, n, k), GPU):
            for ta, tb, align in (next(ways) for _ in range(3)):
                problem = Problem(m, n, k, m if ta else k, k if tb else n, n, alignment=(align, align, 16), trans_a=ta,
                                  trans_b=tb)
                jobs.append((config, problem if m % 3 else problem.turned()))
    found = in_parallel(lambda job: compile_for(CHAIN, *job, "sm_90"), jobs)
    assert max(code.spill_bytes for code in found) <= 16  # words that are kept for the end
    for (config, _), code in zip(jobs, found, strict=True):
        assert (code.registers or 0) <= chain.registers(architecture("sm_90")), config.label()
    assert compile_for(CHAIN, FOUR, Problem.contiguous(4, 4096, 4096), "sm_80").spill_bytes == 0


def test_words_of_x_have_banks_of_their_own() -> None:
    """A computing warp's reads of X take as many wavefronts as they have lines of 128 bytes."""
    for layout, wide in (("NN", 1), ("NT", 4)):
        a, b = operands(4, 64, 256, layout, "wide")
        problem = Problem(4, 64, 256, 256, b.shape[1], 64, trans_b=layout == "NT")
        [report] = run_library(CHAIN, FOUR, problem, a, b, np.zeros((4, 64), np.float32))
        reads = [x for x in report.instructions
                 if x.opcode.startswith("ld.shared") and ("v4" in x.opcode) == (wide == 4)]
        assert reads and max(x.wavefronts / x.requests for x in reads) <= wide


@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_when_it_is_taken(turned: bool) -> None:
    """Where products must be chains, few rows or columns, on GPUs with cp.async; never else."""
    for columns, layout in product((1, 2, 5, 16, 32), ("NN", "NT")):
        p = Problem(columns, 4096, 4096, 4096, 4096, 4096, trans_b=layout == "NT")
        p = replace(p.turned(), trans_c=False, ldc=columns) if turned else p
        found = choose(p, "sm_90", 132, H100, "reproducible")
        assert found.kernel is CHAIN and found.config.bm >= columns
        assert choose(p, "sm_80", 108, "", "reproducible").kernel is CHAIN
        assert CHAIN not in {kernel for kernel, _, _ in candidates(p, GPU)}
        assert choose(p, "sm_75", 40, "", "reproducible").kernel is not CHAIN
    assert CHAIN not in {kernel for kernel, _, _ in chains(Problem.contiguous(100, 100, 100), GPU)}


def test_what_is_refused() -> None:
    limits = architecture("sm_90")
    for change, said in (({"bn": 64}, "a lane has a row"), ({"tn": 4}, "a lane has a row"),
                         ({"bm": 24, "tm": 6}, "power of two"), ({"bm": 64, "tm": 8}, "32 at most"),
                         ({"bm": 32, "tm": 16}, "TM = 16"), ({"bk": 16}, "BK = 16"), ({"producers": 48}, "whole warps"),
                         ({"stages": 2}, "a stage of 2"), ({"stages": 24}, "shared memory")):
        assert said in "; ".join(violations(CHAIN, replace(CHAIN.default, **change), limits)), change
    assert "cp.async" in violations(CHAIN, CHAIN.default, architecture("sm_75"))[0]
    with pytest.raises(InvalidValue, match="the smaller side is 5, BM = 4 holds no more"):
        chain.schedule(FOUR, Problem.contiguous(5, 40, 40), 132)
    with pytest.raises(InvalidValue, match="the limit is"):
        chain.schedule(FOUR, replace(Problem.contiguous(1, 2**31 - 1024, 1), batch=Batch((64,), *((0,),) * 4)), 132)
