"""Small blocks on the simulator: what their guard reroutes, what lies around the operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peakgemm.kernels.posed import TURNED
from peakgemm.kernels.schemes import SMALL_BLOCKS, small_blocks
from peakgemm.problem import Batch, Problem
from peakgemm.simulator.emulated import run_emulated

pytestmark = pytest.mark.usefixtures("many_lanes")

CONFIGS = {"64": small_blocks(64), "32": small_blocks(32), "16": small_blocks(16),
           "16 turned": replace(small_blocks(16), variant=TURNED)}


def normal(*shape: int, seed: int = 7) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(problem: Problem, a: Any, b: Any, c: Any, c0: Any = None, config: str = "64", **kw: Any) -> int:
    """Run it; every check of the simulator has to be silent. How many half tiles were rerouted."""
    reports, rerouted = run_emulated(SMALL_BLOCKS, replace(CONFIGS[config], **kw), problem, a, b, c, c0, sm_count=4)
    for report in reports:
        assert not report.faults, report.faults[:3]
    return rerouted


def within(got: Any, a: Any, b: Any, units: float = 3.0) -> None:
    """|C - AB| <= units 2^-24 |A||B|."""
    exact, scale = a.astype(np.float64) @ b.astype(np.float64), abs(a).astype(np.float64) @ abs(b).astype(np.float64)
    assert (abs(got - exact) <= units * 2.0**-24 * scale).all(), (abs(got - exact) / scale).max() * 2**24


@pytest.mark.parametrize(("planted", "rerouted"), [
    ("infinity", 2), ("nan", 2), ("overflow", 2), ("identity", 2), ("subnormal", 2), ("tiny", 2), ("small", 0),
    ("small by small", 2), ("zeros", 0), ("wide", 0)])
def test_what_the_guard_reroutes(planted: str, rerouted: int) -> None:
    """Of two by two tiles those of the upper rows."""
    m, n, k = 70, 66, 96
    a, b = normal(m, k), normal(k, n, seed=1)
    if planted in ("infinity", "nan"):
        a[3, 5] = {"infinity": np.inf, "nan": np.nan}[planted]
    elif planted == "overflow":
        a[3, :2], b[:2] = 3e38, np.abs(b[:2]) + 2
    elif planted == "identity":
        a[:64] = np.eye(64, k, dtype=np.float32)
    elif planted in ("subnormal", "tiny"):  # which meets something large, that makes all of the sum
        a[3, 5], b[5] = (1e-40 if planted == "subnormal" else 2.0**-99), 2.0**50
        a[3, 6:] = 0
    elif planted == "small":
        a[3, 5] = 2.0**-60
    elif planted == "small by small":
        a[3] *= np.float32(2.0**-55)
        b *= np.float32(2.0**-40)
    elif planted == "zeros":
        a, b = np.maximum(a, 0), np.maximum(b, 0)
        a[10], b[:, 10] = 0, 0
    else:
        a[3] *= np.exp2(np.linspace(-40, 40, k)).astype(np.float32)
    c = np.full((m, n), np.nan, np.float32)
    assert product(Problem.contiguous(m, n, k), a, b, c) == rerouted
    with np.errstate(all="ignore"):
        want = a.astype(np.float64) @ b
    finite = np.isfinite(want).all(1) & (abs(a).astype(np.float64) @ abs(b) < 3e38).all(1)
    assert finite.sum() >= m - 1
    if planted == "identity":
        assert (c[:64] == b[:64]).all()
    within(c[finite], a[finite], b, 8)
    if planted in ("infinity", "nan"):
        assert (np.isnan(c[3]) == np.isnan(want[3])).all() and (np.isnan(want[3]) | (c[3] == want[3])).all()


@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize("config", ["64", "16 turned"])
def test_the_guard_where_blocks_share_k(config: str, layout: str) -> None:
    """A part of K by FFMAs and the others not; a row with few terms in each part is judged by all of K."""
    m, n, k = 30, 16, 200
    a, b = normal(m, k), normal(k, n, seed=1)
    if config.endswith("turned"):
        m, n, a, b = n, m, b.T.copy(), a.T.copy()
    for planted in ("infinity", "few", "enough", "few columns"):
        x, y = a.copy(), b.copy()
        if planted == "infinity":
            x[3, 5] = np.inf
        elif planted == "few columns":
            y[np.arange(k) % 10 > 0, 5] = 0
        else:  # fewer than 32 in each of three parts, 20 or 100 in all
            x[3, np.arange(k) % (10 if planted == "few" else 2) > 0] = 0
        c = np.full((m, n), np.nan, np.float32)
        stored = [np.ascontiguousarray(each.T if way == "T" else each)
                  for each, way in zip((x, y), layout, strict=True)]
        problem = Problem(m, n, k, stored[0].shape[1], stored[1].shape[1], n, trans_a=layout[0] == "T",
                          trans_b=layout[1] == "T")
        assert product(problem, *stored, c, config=config, split=3) == int(planted != "enough"), planted
        if planted == "infinity":
            assert (c[3] == np.copysign(np.inf, y[5])).all()
            x, c = np.delete(x, 3, 0), np.delete(c, 3, 0)
        within(c, x, y, 8)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("config", CONFIGS)
def test_what_lies_between_rows_counts_nowhere(config: str, layout: str) -> None:
    """NaN between rows that start anywhere, of tiles that few rows and columns fill: nothing is rerouted for it."""
    for m, n, k, pad in ((5, 67, 70, 3), (3, 2, 33, 2), (66, 19, 40, 1), (70, 33, 64, 4)):
        a, b, c = normal(m, k), normal(k, n, seed=1), np.full((m, n), np.nan, np.float32)
        stored = [np.pad(np.ascontiguousarray(x.T if way == "T" else x), ((0, 0), (0, pad)), constant_values=np.nan)
                  for x, way in zip((a, b), layout, strict=True)]
        problem = Problem(m, n, k, stored[0].shape[1], stored[1].shape[1], n, trans_a=layout[0] == "T",
                          trans_b=layout[1] == "T", alignment=(4, 4, 4) if pad < 4 else (16, 16, 4))
        assert product(problem, *stored, c, config=config) == 0
        within(c, a, b)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("m", "n", "k", "begin"), [(1, 40, 40, 1), (40, 1, 3, 3), (66, 70, 33, 1), (5, 2, 100, 2)])
def test_nothing_is_read_before_or_after(m: int, n: int, k: int, begin: int, layout: str) -> None:
    """Operands that begin within 16 bytes and end with their memory."""
    a, b, c = normal(m, k), normal(k, n, seed=1), np.full((m, n), np.nan, np.float32)
    stored = []
    for x, way in zip((a, b), layout, strict=True):
        lies = np.ascontiguousarray(x.T if way == "T" else x)
        memory = np.empty(begin + lies.size, np.float32)[begin:]
        memory[:] = lies.ravel()
        stored.append(memory)
    problem = Problem(m, n, k, m if layout[0] == "T" else k, k if layout[1] == "T" else n, n,
                      trans_a=layout[0] == "T", trans_b=layout[1] == "T", alignment=(4, 4, 4))
    assert product(problem, *stored, c) == 0
    within(c, a, b, 8)


@pytest.mark.parametrize("config", CONFIGS)
def test_batches_and_scales(config: str) -> None:
    """Products that share B; alpha, beta and another C0."""
    m, n, k = 70, 50, 40
    a, b, c0 = normal(2, m, k), normal(k, n, seed=1), normal(2, m, n, seed=2)
    c = np.full((2, m, n), np.nan, np.float32)
    batch = Batch((2,), (m * k,), (0,), (m * n,), (m * n,))
    problem = Problem(m, n, k, k, n, n, alpha=-1.5, beta=0.5, c0=(n, 1), batch=batch)
    assert product(problem, a, b, c, c0, config=config) == 0
    for i in range(2):
        exact = -1.5 * (a[i].astype(np.float64) @ b) + 0.5 * c0[i]
        scale = 1.5 * (abs(a[i]).astype(np.float64) @ abs(b)) + 0.5 * abs(c0[i])
        assert (abs(c[i] - exact) <= 4 * 2.0**-24 * scale).all()


def test_integers_are_exact() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-64, 65, shape).astype(np.float32) for shape in ((64, 200), (200, 64)))
    for number, config in enumerate(CONFIGS):
        for variant in (0, 1, 2) if number == 0 else (number % 3,):
            c = np.full((64, 64), np.nan, np.float32)
            turned = CONFIGS[config].variant
            assert product(Problem.contiguous(64, 64, 200), a, b, c, config=config, variant=turned | variant) == 0
            assert (c == a @ b).all()


def test_what_is_rerouted_is_added_up_with_compensation() -> None:
    """As by other kernels: 2^110, then sums of 32 none of which changes that by itself."""
    m, n, k = 64, 64, 512
    a, b = np.full((m, k), 2.0**105, np.float32), np.ones((k, n), np.float32)
    b[32:] = 0.375 * 2.0**-23
    a[:, 0], b[0] = 2.0**-100, 0  # tiny: all is rerouted
    b[1] = 2
    c = np.full((m, n), np.nan, np.float32)
    assert product(Problem.contiguous(m, n, k), a, b, c) > 0
    last_place = 2.0 ** (110 - 23)
    assert (abs(c - (a.astype(np.float64) @ b)) <= last_place).all()
