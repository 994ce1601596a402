"""Products of the library's kernels on the simulator, within larger memory: results, and what must stay as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Batch, Config, Problem
from peakgemm.tools.simulator.library import run_library

SMALL = SpecialisedConfig(32, 32, 8, 4, 8, stages=4, raster=4, producers=32)
LAYOUTS = ("NN", "NT", "TN", "TT")
UNIT = 2.0**-24
SENTINEL = -777.25


@dataclass
class Case:
    """One product. Operands lie in larger memory: ``pad`` floats of NaN after each row, ``shift`` before the first.

    ``c0``: None, C itself; else which of rows and columns the matrix that beta scales has: "mn", "n" (row
    stride 0), "m" (column stride 0) or "". ``batch`` gives the sizes and ``still`` the levels at which A, B
    or C0 stay where they are. ``poison`` names the operands full of NaN.
    """

    m: int
    n: int
    k: int
    layout: str = "NN"
    alpha: float = 1.5
    beta: float = 0.5
    pad: int = 0
    shift: int = 0
    c0: str | None = None
    batch: tuple[int, ...] = ()
    still: dict[str, tuple[int, ...]] = field(default_factory=dict)
    integers: bool = False
    config: Config = SMALL
    kernel: Kernel = SPECIALISED
    arch: str = "sm_90"
    poison: str = ""
    sms: int = 4


class Operand:
    """A matrix for each of the batch, within memory whose other floats are ``around``."""

    def __init__(self, case: Case, name: str, rows: int, columns: int, around: float = np.nan) -> None:
        sizes = tuple(1 if level in case.still.get(name, ()) else size for level, size in enumerate(case.batch))
        self.ld = columns + case.pad
        step, steps = rows * self.ld + case.pad, list[int]()
        for size in reversed(sizes):
            steps.insert(0, 0 if size == 1 else step)
            step *= size
        self.batch = tuple(steps)
        self.flat = np.full(case.shift + step, around, "f4")
        self.memory = self.flat[case.shift:]
        self.values: Any = np.lib.stride_tricks.as_strided(self.memory, (*sizes, rows, columns),
                                                           [4 * s for s in (*steps, self.ld, 1)])
        self.alignment = 4 if case.shift % 4 else 16


def multiply(case: Case, seed: int = 0) -> tuple[Any, list[Any]]:
    """Run a case and check it; C and the reports."""
    rng = np.random.default_rng(seed)
    ta, tb = (letter == "T" for letter in case.layout)
    a = Operand(case, "a", *((case.k, case.m) if ta else (case.m, case.k)))
    b = Operand(case, "b", *((case.n, case.k) if tb else (case.k, case.n)))
    c = Operand(case, "c", case.m, case.n, SENTINEL)
    has = case.c0 or ""
    old = c if case.c0 is None else Operand(case, "c0", case.m if "m" in has else 1, case.n if "n" in has else 1)
    for name, operand in (("a", a), ("b", b), ("c", old)):
        shape = operand.values.shape
        operand.values[...] = rng.integers(-8, 9, shape) if case.integers else rng.standard_normal(shape)
        if name in case.poison:
            operand.values[...] = np.nan
    problem = Problem(case.m, case.n, case.k, a.ld, b.ld, c.ld, case.alpha, case.beta,
                      (a.alignment, b.alignment, c.alignment), ta, tb,
                      None if old is c else (old.ld if "m" in has else 0, int("n" in has)),
                      Batch(case.batch, a.batch, b.batch, c.batch, old.batch))
    want = scale = np.zeros((*case.batch, case.m, case.n))
    if case.alpha:
        left, right = (np.swapaxes(x.values, -1, -2) if turned else x.values for x, turned in ((a, ta), (b, tb)))
        left, right = left.astype(float), right.astype(float)
        want, scale = case.alpha * (left @ right), abs(case.alpha) * (abs(left) @ abs(right))
    if case.beta:
        addend = case.beta * old.values.astype(float)
        want, scale = want + addend, scale + abs(addend)
    others = [x for x in (a, b, old) if x is not c]
    before, start = [x.flat.copy() for x in others], c.values.copy()

    reports = run_library(case.kernel, case.config, problem, a.memory, b.memory, c.memory,
                          None if old is c else old.memory, arch=case.arch, sm_count=case.sms)

    assert all(report.clean for report in reports), "\n".join(map(str, reports))
    error, bound = abs(c.values - want), (0 if case.integers else (case.k + 3) * UNIT) * scale
    wrong = ~(error <= bound)  # NaN is
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} results are wrong, {(wrong & (c.values == start)).sum()} of them not written; "
        f"the first of (batch, row, column) is {tuple(map(int, np.argwhere(wrong)[0]))}, off by {error[wrong][0]:.3g}")
    for operand, flat in zip(others, before, strict=True):
        np.testing.assert_array_equal(operand.flat, flat)
    result = c.values.copy()
    c.values[...] = SENTINEL
    assert (c.flat == SENTINEL).all(), "floats beside C were written"
    return result, reports
