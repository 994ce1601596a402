"""Products of the library's kernels and of the ladder's rungs on the simulator, within larger memory: results, bits
where a kernel promises them, and what must stay as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from peakgemm.calls import replay
from peakgemm.kernels import validity
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Batch, Config, Problem, Triangle
from peakgemm.runtime.architectures import architecture
from peakgemm.tools.simulator.library import run_library

SMALL = SpecialisedConfig(32, 32, 8, 4, 8, stages=4, raster=4, producers=32)
LAYOUTS = ("NN", "NT", "TN", "TT")
UNIT, LEAST = 2.0**-24, 2.0**-149
SENTINEL = -777.25


@dataclass
class Case:
    """One product. Operands lie in larger memory: ``pad`` floats of NaN after each row, ``shift`` before the first.

    ``c0``: None, C itself; else which of rows and columns the matrix that beta scales has: "mn", "n" (row
    stride 0), "m" (column stride 0) or "". ``batch`` gives the sizes and ``still`` the levels at which A, B
    or C0 stay where they are. ``values``: "normal", "integers", "wide" (over 120 powers of two), or "tiny", whose
    products underflow to -0. ``poison`` names the operands full of NaN. ``config``: None, a rung's default, aligned
    where the problem allows it. ``triangle``: of a square C, which keeps its other elements; by the layouts NT and TN B
    is A, the same memory.
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
    values: str = "normal"
    config: Config | None = SMALL
    kernel: Kernel = SPECIALISED
    arch: str = "sm_90"
    poison: str = ""
    sms: int = 4
    triangle: Triangle = Triangle.NONE

    def __str__(self) -> str:
        config = "" if self.config is None else " " + self.config.label()
        return f"{self.kernel.family.name or self.kernel.name}{config} {self.layout} {self.m}x{self.n}x{self.k}" + (
            f" {self.triangle.name.lower()}" if self.triangle is not Triangle.NONE else "")


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


def drawn(rng: np.random.Generator, shape: tuple[int, ...], values: str, sign: int) -> Any:
    """Elements of a kind; see `Case`. Of tiny ones all have the sign given."""
    if values == "integers":
        return rng.integers(-8, 9, shape)
    normal = rng.standard_normal(shape, np.float32)
    if values == "wide":
        return np.ldexp(normal, rng.integers(-60, 60, shape))
    return sign * abs(normal) * np.float32(2.0**-80) if values == "tiny" else normal


def multiply(case: Case, seed: int = 0, run: Callable[..., list[Any]] = run_library) -> tuple[Any, list[Any]]:
    """Run a case and check it; C and the reports. ``run``: what computes the product, with `run_library`'s arguments.

    Kernels that sum by one chain of FMAs must have its bits, those of `peakgemm.replay`.
    """
    rng, kernel = np.random.default_rng(seed), case.kernel
    ta, tb = (letter == "T" for letter in case.layout)
    a = Operand(case, "a", *((case.k, case.m) if ta else (case.m, case.k)))
    one_operand = case.triangle is not Triangle.NONE and ta != tb
    b = a if one_operand else Operand(case, "b", *((case.n, case.k) if tb else (case.k, case.n)))
    c = Operand(case, "c", case.m, case.n, SENTINEL)
    has = case.c0 or ""
    old = c if case.c0 is None else Operand(case, "c0", case.m if "m" in has else 1, case.n if "n" in has else 1)
    for name, operand, sign in (("a", a, 1), ("b", b, -1), ("c", old, 1)):
        values = "normal" if name == "c" and case.values != "integers" else case.values
        operand.values[...] = np.nan if name in case.poison else drawn(rng, operand.values.shape, values, sign)
    problem = Problem(case.m, case.n, case.k, a.ld, b.ld, c.ld, case.alpha, case.beta,
                      (a.alignment, b.alignment, c.alignment), ta, tb,
                      None if old is c else (old.ld if "m" in has else 0, int("n" in has)),
                      Batch(case.batch, a.batch, b.batch, c.batch, old.batch), triangle=case.triangle,
                      one_operand=one_operand)
    config = case.config
    if config is None:
        config = validity.choose(kernel, kernel.config_for(case.arch), architecture(case.arch), problem)
    left, right = (np.swapaxes(x.values, -1, -2) if turned else x.values for x, turned in ((a, ta), (b, tb)))
    want = scale = np.zeros((*case.batch, case.m, case.n))
    if case.alpha:
        want = case.alpha * (left.astype(float) @ right.astype(float))
        scale = abs(case.alpha) * (abs(left.astype(float)) @ abs(right.astype(float)))
    if case.beta:
        addend = case.beta * old.values.astype(float)
        want, scale = want + addend, scale + abs(addend)
    others = [x for x in (a, b, old) if x is not c]
    before, start = [x.flat.copy() for x in others], c.values.copy()
    square = np.ones((case.m, case.n), bool)
    wanted = {Triangle.NONE: square, Triangle.LOWER: np.tril(square), Triangle.UPPER: np.triu(square)}[case.triangle]

    reports = run(kernel, config, problem, a.memory, b.memory, c.memory, None if old is c else old.memory,
                  arch=case.arch, sm_count=case.sms)

    assert all(report.clean for report in reports), "\n".join(map(str, reports))
    result, terms = c.values.copy(), case.k
    assert (result.view("u4") == start.view("u4"))[..., ~wanted].all(), "the other triangle was written"
    if kernel.family.scheme:  # errors of splits, which do not average out where few products make a sum, or squares do
        terms = 1 if case.k >= 32 and not one_operand else 6
    units = 0 if case.values == "integers" else terms + 3 + 2 * kernel.rounding
    error, bound = abs(result - want), units * UNIT * scale + (case.k + 2) * LEAST * (case.values in ("wide", "tiny"))
    wrong = ~(error <= bound) & wanted  # NaN is
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} results are wrong, {(wrong & (result == start)).sum()} of them not written; "
        f"the first of (batch, row, column) is {tuple(map(int, np.argwhere(wrong)[0]))}, off by {error[wrong][0]:.3g}")
    if kernel.is_ascending(config, problem) or (kernel.number >= 0 and not kernel.wgmma):
        addend, chain = np.broadcast_to(start if old is c else old.values, want.shape), np.zeros(want.shape, "f4")
        replay.multiply(left, right, addend, case.alpha, case.beta, chain)
        np.testing.assert_array_equal(result.view("u4")[..., wanted], chain.view("u4")[..., wanted],
                                      "other bits than one chain's")
    for operand, flat in zip(others, before, strict=True):
        np.testing.assert_array_equal(operand.flat, flat)
    c.values[...] = SENTINEL
    assert (c.flat == SENTINEL).all(), "floats beside C were written"
    return result, reports


def varied(case: Case, **changes: Any) -> Case:
    """``case`` with other fields, those of its configuration among them."""
    assert case.config is not None
    own = {name: changes.pop(name) for name in [*changes] if not hasattr(case, name)}
    return replace(case, config=replace(case.config, **own), **changes)
