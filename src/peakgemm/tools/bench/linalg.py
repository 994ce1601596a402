"""Linear algebra on a GPU beside torch's cuBLAS and cuSOLVER: what `peakgemm bench --suite linalg` times.

An `Operation` names our call, torch's call for the same, and how far a result is from the operands' own: the accuracy
suite puts the same operations to hostile matrices. torch is imported with this module.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import isnan
from statistics import median
from typing import Any

import torch

from ... import api
from ...linalg import cholesky_ex, cholesky_inverse, cholesky_solve, gram, syrk, trsm
from ...runtime.device import Gpu
from .errors import EPSILON, bound
from .operands import set_count
from .peers import TorchPeer
from .records import first_line
from .timer import Timer

Row = dict[str, Any]
Matrices = tuple[Any, ...]
Residual = tuple[Any, Any, Any]  # in FP64: residual, and the norms of rows and columns that it is measured by


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of order n, with a second size ``columns``: right-hand sides, or the length of sums.

    Attributes:
        baseline: what torch calls.
        draw: well-conditioned operands from ``(randn, n, columns)``; ``randn`` has the batch.
        ours: the result, of ``precision=`` and the operands; theirs: likewise.
        residual: of the operands and a result, all in FP64.
        roundings: of the textbook's bound, as a sum of that length has.
        flops: of one matrix of the batch.
        product: our own product of the same operands, beside which a symmetric one is timed.
    """

    baseline: str
    draw: Callable[[Callable[..., Any], int, int], Matrices]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    residual: Callable[..., Residual]
    roundings: Callable[[int, int], int]
    flops: Callable[[int, int], float]
    product: Callable[..., Any] | None = None

    def error(self, operands: Matrices, result: Any) -> float:
        """The largest element of the residual over the norms of its row and column, in eps. Unlike a quotient of
        matrix norms it sees every row, whatever its scale. Infinite for NaN, and where Cholesky gave up."""
        if isinstance(result, tuple):  # the factor, and LAPACK's info
            if bool(result[1].any()):
                return float("inf")
            result = result[0]
        residual, rows, columns = self.residual(*(_double(x) for x in (*operands, result)))
        largest = float((residual.abs() / (rows.unsqueeze(-1) * columns.unsqueeze(-2))).max()) / EPSILON
        return float("inf") if isnan(largest) else largest

    def limit(self, n: int, columns: int) -> float:
        """The textbook's bound of `error`."""
        return bound(self.roundings(n, columns))


def _double(x: Any) -> Any:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _syrk(a: Any, out: Any) -> Any:
    """cublasSsyrk of the cuBLAS that torch has loaded, which torch itself does not call: the lower triangle of
    ``a a^T``, of row-major matrices. On the host the product."""
    if not a.is_cuda:
        return torch.mm(a, a.mT, out=out)
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    (n, k), upper, transposed = a.shape, 1, 1  # a row-major lower triangle is a column-major upper one
    status = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}").cublasSsyrk_v2(
        handle, upper, transposed, n, k, ctypes.byref(ctypes.c_float(1)), ctypes.c_void_p(a.data_ptr()), k,
        ctypes.byref(ctypes.c_float(0)), ctypes.c_void_p(out.data_ptr()), n)
    if status:
        raise RuntimeError(f"cublasSsyrk failed with status {status}")
    return out


def _of_solution(factor: Any, right: Any, x: Any) -> Residual:
    """Of ``factor factor^T x = right``; the factor's row norms are the roots of the diagonal of its product."""
    scale = factor.norm(dim=-1)
    return factor @ (factor.mT @ x) - right, scale, (scale.unsqueeze(-2) @ x.abs()).squeeze(-2)


def _positive_definite(randn: Callable[..., Any], n: int) -> Any:
    x = randn(n, n)
    matrix = x @ x.mT / n
    matrix.diagonal(dim1=-2, dim2=-1).add_(0.1)
    return matrix


def _factor(randn: Callable[..., Any], n: int) -> Any:
    return torch.linalg.cholesky(_positive_definite(randn, n))


def _complex(randn: Callable[..., Any], n: int, columns: int) -> Matrices:
    return torch.complex(randn(n, n), randn(n, n)), torch.complex(randn(n, columns), randn(n, columns))


OPERATIONS = {
    "syrk": Operation(
        "cublasSsyrk", lambda randn, n, k: (randn(n, k), randn(n, n)),
        ours=lambda a, c, precision: syrk(a, out=c, precision=precision), theirs=_syrk,
        residual=lambda a, _, c: ((c - a @ a.mT).tril(), a.norm(dim=-1), a.norm(dim=-1)),
        roundings=lambda n, k: k, flops=lambda n, k: n * (n + 1) * k,
        product=lambda a, c, precision: api.matmul(a, a.mT, out=c, precision=precision)),
    "trsm": Operation(
        "torch.linalg.solve_triangular", lambda randn, n, m: (_factor(randn, n), randn(n, m)),
        ours=trsm, theirs=lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        residual=lambda a, b, x: (a @ x - b, a.norm(dim=-1), x.norm(dim=-2)),
        roundings=lambda n, m: n, flops=lambda n, m: n * n * m),
    "cholesky": Operation(
        "torch.linalg.cholesky_ex", lambda randn, n, _: (_positive_definite(randn, n),),
        ours=cholesky_ex, theirs=torch.linalg.cholesky_ex,
        residual=lambda s, x: (x @ x.mT - s, *2 * (s.diagonal(dim1=-2, dim2=-1).sqrt(),)),
        roundings=lambda n, _: n + 1, flops=lambda n, _: n**3 / 3),
    "cholesky_solve": Operation(
        "torch.cholesky_solve", lambda randn, n, m: (randn(n, m), _factor(randn, n)),
        ours=cholesky_solve, theirs=torch.cholesky_solve, residual=lambda b, factor, x: _of_solution(factor, b, x),
        roundings=lambda n, _: 3 * n + 1, flops=lambda n, m: 2 * n * n * m),
    "cholesky_inverse": Operation(
        "torch.cholesky_inverse", lambda randn, n, _: (_factor(randn, n),),
        ours=cholesky_inverse, theirs=torch.cholesky_inverse,
        residual=lambda factor, x: _of_solution(factor, torch.eye(len(x), device=x.device), x),
        roundings=lambda n, _: 3 * n + 1, flops=lambda n, _: 2 * n**3 / 3),
    "complex product": Operation(
        "torch.matmul", _complex, ours=api.matmul, theirs=torch.matmul,
        residual=lambda a, b, c: (c - a @ b, a.norm(dim=-1), b.norm(dim=-2)),
        roundings=lambda n, _: 2 * n, flops=lambda n, m: 8 * n * n * m),
    "covariance": Operation(
        "torch.mm", lambda randn, n, k: (randn(k, n),),
        ours=partial(gram, trans=True), theirs=lambda a: torch.mm(a.mT, a),
        residual=lambda a, c: (c - a.mT @ a, a.norm(dim=-2), a.norm(dim=-2)),
        roundings=lambda n, k: k, flops=lambda n, k: n * (n + 1) * k),
}


@dataclass(frozen=True, slots=True)
class Case:
    """An operation of `OPERATIONS`, its sizes and how many matrices a call has."""

    operation: str
    n: int
    columns: int
    batch: int = 1
    precision: str = "emulated"

    @property
    def name(self) -> str:
        """``trsm 4096 x 256``, of a batch ``512 of 128``."""
        return (f"{self.operation} {self.n}" + f" x {self.columns}" * (self.columns != self.n)
                + f", {self.batch} of" * (self.batch > 1))


def cases() -> list[Case]:
    """Those of the suite, each in every precision."""
    squares = {"syrk": (2048, 4096, 8192, 16384), "trsm": (1024, 2048, 4096, 8192, 16384),
               "cholesky": (512, 1024, 2048, 4096, 8192, 16384), "cholesky_inverse": (4096,),
               "complex product": (2048, 4096, 8192)}
    chosen = [Case(operation, n, n) for operation, sizes in squares.items() for n in sizes]
    chosen += [Case("cholesky_solve", n, 256) for n in (1024, 4096, 8192, 16384)]
    chosen += [Case(operation, n, n, count) for operation in ("cholesky", "trsm")
               for count, n in ((512, 128), (64, 512))]
    chosen.append(Case("covariance", 4096, 100_000))
    return [Case(x.operation, x.n, x.columns, x.batch, precision) for x in chosen
            for precision in ("ieee", "emulated", "emulated-3m")[:3 if x.operation == "complex product" else 2]]


def rows(chosen: list[Case], gpu: Gpu, peer: TorchPeer, timer: Timer, done: Callable[[str], None]) -> Iterator[Row]:
    """A row for each case: ``error`` in place of figures where the result is wrong, or a call failed."""
    for case in chosen:
        row: Row = {"operation": case.operation, "name": case.name, "n": case.n, "columns": case.columns,
                    "batch": case.batch, "precision": case.precision, "baseline": OPERATIONS[case.operation].baseline}
        try:
            row |= _measured(case, gpu, timer)
        except Exception as error:  # whatever a driver, an allocator or a library raises: the others still run
            row["error"] = first_line(error)
        yield row
        torch.cuda.empty_cache()
        done(f"{case.name}: {case.precision}")


def _measured(case: Case, gpu: Gpu, timer: Timer) -> Row:
    operation = OPERATIONS[case.operation]
    generator = torch.Generator("cuda").manual_seed(0)
    batch = (case.batch,) if case.batch > 1 else ()

    def draw() -> Matrices:
        return operation.draw(lambda *shape: torch.randn(*batch, *shape, generator=generator, device="cuda"),
                              case.n, case.columns)

    sets = [draw()]
    sets += [draw() for _ in range(1, set_count(2 * sum(x.nbytes for x in sets[0]), gpu))]
    ours = [partial(operation.ours, *each, precision=case.precision) for each in sets]
    theirs = [partial(operation.theirs, *each) for each in sets]
    error, reference = (operation.error(sets[0], works[0]()) for works in (ours, theirs))
    row: Row = {"operand_sets": len(sets), "max_error": error, "reference_error": reference}
    limit = operation.limit(case.n, case.columns)
    if not error <= limit:
        return {**row, "error": f"wrong result: {error:.3g} eps, {limit:g} at most"}
    # Eager, as programs call it: a graph would hide what the calls of small sizes cost.
    compared = timer.compare(ours, theirs, capture=False)
    flops = operation.flops(case.n, case.columns) * case.batch
    ms, baseline_ms = median(compared.ours_ms), median(compared.baseline_ms)
    row |= {"ms": ms, "baseline_ms": baseline_ms, "tflops": flops / ms / 1e9, "ratio": median(compared.ratios),
            "ratio_spread": list(compared.spread), **compared.state,
            "samples_ms": {"ours": compared.ours_ms, "baseline": compared.baseline_ms}}
    if operation.product is not None:
        whole = timer.compare(ours, [partial(operation.product, *each, precision=case.precision) for each in sets],
                              capture=False)
        row["share_of_product"] = 1 / median(whole.ratios)
        row["samples_ms"] |= {"ours_again": whole.ours_ms, "product": whole.baseline_ms}
    return row
