"""Fixed problems whose results are compared bit by bit between a GPU and the simulator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """One problem: ``kind`` is how A, B and C are drawn (`operands`)."""

    m: int
    n: int
    k: int
    kind: str = "normal"
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def name(self) -> str:
        """What the record calls it."""
        return f"{self.m}x{self.n}x{self.k} {self.kind} alpha {self.alpha:g} beta {self.beta:g}"


CASES = (
    Case(1, 1, 1), Case(7, 3, 33), Case(33, 65, 31), Case(129, 127, 65, alpha=-0.5, beta=2.0),
    Case(257, 130, 17, beta=1.0), Case(128, 256, 64), Case(256, 256, 48, alpha=2.0, beta=-0.5),
    Case(65, 67, 40, "wide"), Case(66, 35, 40, "wide", alpha=1e-3, beta=1e3), Case(67, 66, 24, "subnormal"),
    Case(64, 64, 32, "subnormal", alpha=0.5, beta=1.0), Case(35, 37, 20, "special", beta=1.0),
    Case(31, 33, 0, beta=-0.5), Case(40, 41, 42, alpha=0.0, beta=2.0),
)


def operands(case: Case) -> tuple[Matrix, Matrix, Matrix]:
    """A, B and C of a case, the same from every NumPy (its legacy streams are frozen).

    ``normal``; ``wide``: magnitudes from 2^-60 to 2^60; ``subnormal``: products around 2^-140;
    ``special``: with infinities, NaN and signed zeros strewn in.
    """
    draw = np.random.RandomState(case.m * 7919 + case.n * 31 + case.k)
    shapes = ((case.m, case.k), (case.k, case.n), (case.m, case.n))
    found = [draw.standard_normal(shape) for shape in shapes]
    if case.kind == "wide":
        found = [x * 2.0 ** draw.randint(-60, 61, x.shape) for x in found]
    elif case.kind == "subnormal":
        found = [x * 2.0**e for x, e in zip(found, (-70, -70, -140), strict=True)]
    elif case.kind == "special":
        for x in found:
            for value in (np.inf, -np.inf, np.nan, -0.0):
                x[draw.randint(0, 40, x.shape) == 0] = value
    with np.errstate(over="ignore", under="ignore"):
        a, b, c = (x.astype(np.float32) for x in found)
    return a, b, c


def digest(c: Matrix) -> str:
    """SHA-256 of a matrix's bits, row by row."""
    return hashlib.sha256(np.ascontiguousarray(c).tobytes()).hexdigest()


def digests(kernel: Any, multiply: Any) -> Iterator[tuple[str, str]]:
    """(case, digest of C) for every case; ``multiply(kernel, a, b, c, alpha=, beta=)`` works in place."""
    for case in CASES:
        a, b, c = operands(case)
        multiply(kernel, a, b, c, alpha=case.alpha, beta=case.beta)
        yield case.name, digest(c)
