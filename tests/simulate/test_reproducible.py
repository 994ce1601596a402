"""Kernels that `is_ascending` names sum as `peakgemm.replay` does, to the last bit; others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peakgemm.calls.replay import multiply
from peakgemm.kernels.ffma.small import SMALL, SmallConfig
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.ffma.staged import STAGED
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem
from peakgemm.selection.choose import chains, choose
from peakgemm.selection.machine import machine
from peakgemm.tools.simulator.library import run_library

pytestmark = pytest.mark.usefixtures("many_lanes")

LAYOUTS = ("NN", "NT", "TN", "TT")


def operands(m: int, n: int, k: int, layout: str, seed: int, kind: str = "normal") -> tuple[Any, Any, Problem]:
    """A, B as they are stored, and the problem, with neighbours of NaN behind each row."""
    rng = np.random.default_rng(seed)
    ta, tb = (letter == "T" for letter in layout)
    stored = []
    for rows, columns in ((k, m) if ta else (m, k), (n, k) if tb else (k, n)):
        memory = np.full((rows + 1, columns + 5), np.nan, np.float32)
        values = rng.standard_normal((rows, columns), np.float32)
        if kind == "tiny":  # products underflow, to zeros of either sign
            values *= np.float32(2.0**-75)
        elif kind == "wide":
            values = np.ldexp(values, rng.integers(-60, 60, values.shape)).astype(np.float32)
        memory[:rows, :columns] = values
        stored.append(memory)
    (a, b), extra = stored, (4, 4, 16)
    problem = Problem(m, n, k, a.shape[1], b.shape[1], n, 1.25, 0.0, extra, ta, tb)
    return a, b, problem


def bits(x: Any) -> Any:
    return np.asarray(x, np.float32).view(np.uint32)


def compare(kernel: Kernel, config: Config, a: Any, b: Any, p: Problem, arch: str = "sm_90", sms: int = 4) -> bool:
    """Whether the simulated product has the bits of the chains."""
    rng = np.random.default_rng(1)
    c = rng.standard_normal((p.m, p.n), np.float32)
    first = a[:p.k, :p.m].T if p.trans_a else a[:p.m, :p.k]
    second = b[:p.n, :p.k].T if p.trans_b else b[:p.k, :p.n]
    want = np.empty_like(c)
    multiply(first, second, c, p.alpha, p.beta, want)
    run_library(kernel, config, p, a, b, c, arch=arch, sm_count=sms, checks=False)
    return bool((bits(c) == bits(want)).all())


def chosen(problem: Problem) -> list[tuple[Kernel, Config]]:
    """Each tile that the model may choose, once."""
    return [(kernel, config) for kernel, config, _ in chains(problem, machine("sm_90", 4, "NVIDIA H100 80GB HBM3"))]


TILES = chosen(Problem(40, 40, 24, 29, 45, 40, alignment=(4, 4, 16)))


@pytest.mark.parametrize("number", range(len(TILES)))
def test_what_may_be_chosen_sums_by_one_chain(number: int) -> None:
    kernel, config = TILES[number]
    layout = LAYOUTS[number % 4]
    a, b, problem = operands(21, 37, 24, layout, number, "wide")
    assert kernel.is_ascending(config, problem)
    assert compare(kernel, config, a, b, replace(problem, beta=-0.5))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["tiny", "wide"])
def test_the_remainder_of_k_comes_in_its_order(layout: str, kind: str) -> None:
    """Zeros that stand behind the last k-step would make +0 of a sum of -0."""
    config = SpecialisedConfig(32, 32, 16, 4, 4, stages=4, raster=4, producers=64)
    for k in (1, 15, 16, 37):
        a, b, problem = operands(17, 21, k, layout, k, kind)
        assert compare(SPECIALISED, config, a, b, problem)
    assert kind != "tiny" or (bits(a) >> 31).any()


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_older_gpus(layout: str) -> None:
    for k in (5, 37):
        a, b, problem = operands(21, 17, k, layout, k, "tiny")
        found = choose(problem, "sm_75", 4, precision="reproducible")
        assert found.kernel is STAGED
        assert compare(found.kernel, found.config, a, b, problem, "sm_75")


def test_what_is_no_chain_is_not_one() -> None:
    """The predicate excludes nothing for nothing: slices, chunks, shared K and zeros at the end give other bits."""
    one = SpecialisedConfig(32, 32, 16, 4, 4, stages=4, raster=4, producers=64)
    a, b, problem = operands(32, 32, 128, "NN", 3)
    assert compare(SPECIALISED, one, a, b, problem)
    for other in (replace(one, chunked=True), replace(one, slices=2), replace(one, split=2)):
        assert not SPECIALISED.is_ascending(other, problem)
        assert not compare(SPECIALISED, other, a, b, problem)


def test_zeros_behind_k_change_the_sign_of_zero() -> None:
    tile = SmallConfig(32, 32, 16, 4, 4, slices=1, min_blocks=2)
    for k, same in ((16, True), (14, False)):
        a, b, problem = operands(32, 32, k, "NN", 0, "tiny")
        a[a < 0] *= -1
        b[b > 0] *= -1  # each product underflows to -0
        assert SMALL.is_ascending(tile, problem) is same
        assert compare(SMALL, tile, a, b, problem) is same
    assert not WIDE.is_ascending(WIDE.default, problem)


def test_wide_thread_tiles_with_repacked_operands() -> None:
    tile = replace(WIDE.default, bm=128, bn=256, tm=8, tn=16, stages=4)
    a, b, problem = operands(50, 70, 16, "NN", 5, "tiny")
    assert WIDE.is_ascending(tile, problem)
    assert compare(WIDE, tile, a, b, replace(problem, beta=-0.5))
    assert not WIDE.is_ascending(replace(tile, split=0), problem)


def test_a_row_alone_has_the_same_bits() -> None:
    a, b, problem = operands(33, 35, 29, "NN", 4, "wide")
    whole = np.empty((33, 35), np.float32)
    multiply(a[:33, :29], b[:29, :35], None, 1.25, 0.0, whole)
    for row, column in ((0, 0), (32, 34), (7, 20)):
        alone = Problem(1, 1, 29, problem.lda, problem.ldb, 1, 1.25, 0.0, (4, 4, 4))
        found = choose(alone, "sm_90", 132, "NVIDIA H100 80GB HBM3", "reproducible")
        c = np.zeros((1, 1), np.float32)
        run_library(found.kernel, found.config, alone, a[row, :], b[:, column:],
                    c, checks=False)
        assert bits(c)[0, 0] == bits(whole)[row, column]
