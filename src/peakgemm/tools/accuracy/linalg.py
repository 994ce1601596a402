"""Backward errors of linear algebra on hostile matrices, beside LAPACK's, those of cuBLAS and cuSOLVER, and the
textbook's bound: `peakgemm accuracy --suite linalg`. torch is imported with this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf, isinf, log
from typing import Any
from zlib import crc32

import numpy as np
import torch

from ..bench.linalg import OPERATIONS, definite
from ..bench.records import first_line
from .suite import Report
from .verdict import FAIL, PASS, SKIPPED, WORSE, Row

SIZES = (200, 1000, 3000)
MARGIN = 1.2  # on the larger of the references' errors
LAPACK, CUBLAS, OURS = "lapack", "cublas", "peakgemm"  # torch on the host; on the GPU, with cuSOLVER
Randn = Callable[..., Any]


def _steps(randn: Randn, n: int) -> Any:
    """From 0 to 1."""
    return torch.linspace(0, 1, n, device=randn(1).device).double()


def _scaled(scales: Callable[[Randn, int], Any], randn: Randn, n: int) -> Any:
    return scales(randn, n)[:, None] * torch.linalg.cholesky(definite(randn, n))


def _conditioned(condition: float, randn: Randn, n: int) -> Any:
    """Singular values from 1 to 1 / condition, at equal ratios."""
    left, right = (torch.linalg.qr(randn(n, n))[0] for _ in range(2))
    return torch.linalg.qr(left * condition ** -_steps(randn, n) @ right)[1].mT.contiguous()


def _kahan(growth: float, randn: Randn, n: int) -> Any:
    """Blocks with no small element on the diagonal, whose inverses grow (Higham, Accuracy and Stability of Numerical
    Algorithms, section 8.3): of order 1000, so that blocks which a solver inverts grow as much."""
    size = min(n, 1000)
    cosine = log(growth) / size
    columns = (1 - cosine**2) ** (_steps(randn, size) * (size - 1) / 2)
    block = torch.eye(size, device=columns.device) - cosine * torch.ones(size, size, device=columns.device).tril(-1)
    return torch.block_diag(*-(-n // size) * [block * columns])[:n, :n].contiguous()


def _hilbert(randn: Randn, n: int) -> Any:
    steps = _steps(randn, n) * (n - 1)
    return torch.linalg.cholesky(1 / (steps[:, None] + steps + 1) + 1e-3 * torch.eye(n, device=steps.device))


def _deficient(randn: Randn, n: int) -> Any:
    """Of rank n/2 but for a shift."""
    half = randn(n, n // 2)
    return torch.linalg.cholesky(half @ half.mT / n + 1e-4 * torch.eye(n, device=half.device))


# Lower triangles L in FP64. Products have rows of the same kind, and L L^T, of the squared condition, is definite.
FAMILIES: dict[str, Callable[[Randn, int], Any]] = {
    "graded": partial(_scaled, lambda randn, n: 10 ** (-8 * _steps(randn, n))),
    **{f"cond 1e{digits}": partial(_conditioned, 10.0**digits) for digits in (2, 3, 4, 8)},
    "Kahan 1e2": partial(_kahan, 1e2), "Kahan 1e8": partial(_kahan, 1e8), "Hilbert": _hilbert, "deficient": _deficient,
    "scaled": partial(_scaled, lambda randn, n: 2 ** (40 * randn(n).sign())),
    "tiny": partial(_scaled, lambda randn, n: 1e-15 + 0 * randn(n)),
    "huge": partial(_scaled, lambda randn, n: 1e15 + 0 * randn(n)),
}
# Rounding to float32 may make L L^T of these indefinite: no factorization is no fault.
INDEFINITE = ("cond 1e4", "cond 1e8", "Kahan 1e8")


def _operands(triangle: Any, randn: Randn) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Of each operation. Solutions are tame: a solver that multiplies by inverses suffers most where the inverse is
    large and the solution is not."""
    n = len(triangle)
    general, other, x = triangle @ randn(n, n) / n**0.5, triangle @ randn(n, n) / n**0.5, randn(n, n)
    product = torch.complex(general, other)
    yield "syrk", (general, other)  # which is overwritten
    yield "trsm", (triangle, triangle @ x)
    yield "cholesky", (triangle @ triangle.mT,)
    yield "cholesky_solve", (triangle @ (triangle.mT @ x), triangle)
    yield "lu", (general,)
    grows = triangle.clone()  # Wilkinson's, where the triangle is Kahan's: each column adds to the last
    grows[:, -1] = triangle.abs().max(-1).values
    yield "solve", (grows, grows @ x)
    yield "qr", (general.mT.contiguous(),)
    yield "complex product", (product, product.mT.contiguous())


def judge(device: str, sizes: Sequence[int] | None, seed: int,
          progress: Callable[[int], Callable[[str], None]]) -> Report:
    """Judge every operation on every kind of matrix in every precision, on torch's ``device``: ``cuda``, or ``cpu``
    for what is computed without a GPU. ``sizes``: orders of the matrices; None: `SIZES`."""
    steps = [(family, n) for family in FAMILIES for n in sizes or SIZES]
    ours = tuple(f"{OURS}:{name}" for name in OPERATIONS["complex product"].precisions)  # it has all
    contenders = (CUBLAS, *ours) if device == "cuda" else ours
    report, done = Report(LAPACK, contenders, "torch" if device == "cuda" else "numpy", seed), progress(len(steps))
    for family, n in steps:
        draw = np.random.default_rng([seed, crc32(f"{family} {n}".encode())])

        def randn(*shape: int, draw: np.random.Generator = draw) -> Any:
            return torch.from_numpy(draw.standard_normal(shape)).to(device)

        for test, exact in _operands(FAMILIES[family](randn, n), randn):
            operands = tuple(x.cfloat() if x.is_complex() else x.float() for x in exact)
            report.rows.extend({"test": test, "family": family, "shape": [n] * 3, **row}
                               for row in _judged(test, family, n, operands))
        done(f"{family} {n}")
    return report


def _judged(test: str, family: str, n: int, operands: tuple[Any, ...]) -> Iterator[Row]:
    operation, place = OPERATIONS[test], operands[0].device
    calls: dict[str, Callable[..., Any]] = {LAPACK: lambda *given: operation.theirs(*(x.cpu() for x in given))}
    if place.type == "cuda":
        calls[CUBLAS] = operation.theirs
    calls |= {f"{OURS}:{name}": partial(operation.ours, precision=name) for name in operation.precisions}
    limit, references = operation.limit(n, n), list[float]()
    for name, call in calls.items():
        figure, note = inf, ""
        try:
            result = call(*(x.clone() for x in operands))
            moved = tuple(x.to(place) for x in result) if isinstance(result, tuple) else result.to(place)
            figure = operation.error(operands, moved)
        except Exception as error:  # whatever a library raises: the others still run
            note = first_line(error)
        if isinf(figure) and not note and test == "cholesky" and family in INDEFINITE:
            verdict, why = SKIPPED, "indefinite in float32"
        elif name.startswith(OURS):
            verdict, why = against(figure, references, limit)
        else:  # no contender
            references += [figure] * (figure < inf)
            verdict, why = PASS if figure <= limit else SKIPPED, ""
        yield {"contender": name, "verdict": verdict, "note": note or why or None, "figure": figure, "limit": limit,
               "unit": "eps"}


def against(figure: float, references: Sequence[float], limit: float) -> tuple[str, str]:
    """Verdict and reason: at most `MARGIN` times the larger error of the references, or a tenth of the textbook's
    bound."""
    if figure <= max(MARGIN * max(references, default=0.0), limit / 10):
        return PASS, ""
    said = ", ".join(f"{reference:.3g}" for reference in references)
    return (WORSE if figure <= limit else FAIL), f"{figure:.3g} eps; references {said}; the bound {limit:g}"
