"""Linear algebra on a GPU beside torch's cuBLAS and cuSOLVER: what `peakgemm bench --suite linalg` times, and
`peakgemm accuracy --suite linalg` puts to hostile matrices. torch is imported with this module."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf, isnan
from statistics import median
from typing import Any, NamedTuple

import torch

from ... import api
from ...errors import PeakgemmError
from ...linalg import (
    cholesky_ex,
    cholesky_inverse,
    cholesky_solve,
    gram,
    herk,
    inv_ex,
    lstsq_ex,
    lu_factor_ex,
    qr,
    solve_ex,
    syrk,
    trsm,
)
from ...runtime.device import Gpu
from .errors import EPSILON, bound
from .operands import set_count
from .records import first_line
from .timer import Timer

Row = dict[str, Any]
Matrices = tuple[Any, ...]


class Operation(NamedTuple):
    """An operation of order n; its second size is right-hand sides, or of symmetric products the length of the sums.

    Attributes:
        baseline: what torch calls, or is called of its cuBLAS.
        draw: well-conditioned operands, of a ``randn`` that has the batch and the two sizes.
        ours, theirs: the result of the operands; ours also takes ``precision=``.
        residual: of operands and result, and the norms of its rows and columns, for operands in FP64.
        roundings: of the textbook's bound, as a sum of that length has, by the two sizes.
        flops: of one matrix, by the two sizes.
        sizes: of the suite's cases: both sizes, and how many matrices a call has.
        product: our full product, beside which a symmetric one is timed.
        parts: of a result that is a tuple, how many the residual takes; 0: a factor and LAPACK's info.
    """

    baseline: str
    draw: Callable[[Callable[..., Any], int, int], Matrices]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    residual: Callable[..., tuple[Any, Any, Any]]
    roundings: Callable[[int, int], int]
    flops: Callable[[int, int], float]
    sizes: tuple[tuple[int, int, int], ...]
    precisions: tuple[str, ...] = ("ieee", "emulated")
    product: Callable[..., Any] | None = None
    parts: int = 0

    def error(self, operands: Matrices, result: Any) -> float:
        """The largest element of the residual over the norms of its row and column, in eps: unlike a quotient of
        matrix norms it sees every row, whatever its scale. Infinite for NaN, and where a factorization gave up."""
        if isinstance(result, tuple) and not self.parts and bool(result[1].any()):  # the factor, and LAPACK's info
            return inf
        parts = result[:max(self.parts, 1)] if isinstance(result, tuple) else (result,)
        exact = (x.cdouble() if x.is_complex() else x.double() for x in (*operands, *parts))
        residual, rows, columns = self.residual(*exact)
        largest = float((residual.abs() / (rows.unsqueeze(-1) * columns.unsqueeze(-2))).max()) / EPSILON
        return inf if isnan(largest) else largest

    def limit(self, n: int, columns: int) -> float:
        """The textbook's bound of `error`."""
        return bound(self.roundings(n, columns))


def definite(randn: Callable[..., Any], n: int) -> Any:
    """A well-conditioned symmetric positive definite matrix."""
    x = randn(n, n)
    matrix = x @ x.mT / n
    matrix.diagonal(dim1=-2, dim2=-1).add_(0.1)
    return matrix


def _factor(randn: Callable[..., Any], n: int) -> Any:
    return torch.linalg.cholesky(definite(randn, n))


def _rank_k(a: Any, out: Any) -> Any:
    """The lower triangle of ``a a^H`` by cublasSsyrk or cublasCherk, which torch has loaded and does not call; on the
    host the product."""
    if not a.is_cuda:
        return torch.mm(a, a.mH, out=out)
    name, transposed = ("cublasCherk_v2", 2) if a.is_complex() else ("cublasSsyrk_v2", 1)
    (n, k), upper = a.shape, 1  # a row-major lower triangle is a column-major upper one
    cublas, handle = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.split('.')[0]}"), torch.cuda.current_blas_handle()
    alpha, beta = ctypes.c_float(1), ctypes.c_float(0)
    status = cublas[name](ctypes.c_void_p(handle), upper, transposed, n, k, ctypes.byref(alpha),
                          ctypes.c_void_p(a.data_ptr()), k, ctypes.byref(beta), ctypes.c_void_p(out.data_ptr()), n)
    if status:
        raise RuntimeError(f"{name} failed with status {status}")
    return out


def _of_solution(factor: Any, right: Any, x: Any) -> tuple[Any, Any, Any]:
    """Of ``factor factor^T x = right``; the factor's row norms are the roots of the diagonal of that matrix."""
    scale = factor.norm(dim=-1)
    return factor @ (factor.mT @ x) - right, scale, (scale.unsqueeze(-2) @ x.abs()).squeeze(-2)


def _of_factors(a: Any, q: Any, r: Any) -> tuple[Any, Any, Any]:
    """Of ``q r = a``, by columns, and below of ``q^T q = 1``; ``a`` has no fewer rows than columns."""
    norms = a.norm(dim=-2)
    norms = torch.where(norms > 0, norms, 1)
    unit = (q.mT @ q - torch.eye(q.shape[-1], device=q.device)) * norms.unsqueeze(-2)
    residual = torch.cat([q @ r - a, unit], -2)
    return residual, torch.ones_like(residual[..., 0]), norms


def _of_least_squares(a: Any, b: Any, x: Any) -> tuple[Any, Any, Any]:
    """``a^T (b - a x)``, which a solution makes zero."""
    rest = b - a @ x
    return a.mT @ rest, a.norm(dim=-2), a.norm(dim=(-2, -1)).unsqueeze(-1) * x.norm(dim=-2) + b.norm(dim=-2)


def _of_lu(a: Any, factors: Any, pivots: Any) -> tuple[Any, Any, Any]:
    """Of ``L U`` and the exchanged rows of ``a``."""
    permutation, lower, upper = torch.lu_unpack(factors, pivots.int())
    rows = permutation.argmax(-2).unsqueeze(-1).expand_as(a)
    return a.gather(-2, rows) - lower @ upper, lower.norm(dim=-1), upper.norm(dim=-2)


def _squares(*sizes: int) -> tuple[tuple[int, int, int], ...]:
    return tuple((n, n, 1) for n in sizes)


_BATCHES = ((128, 128, 512), (512, 512, 64))
OPERATIONS = {
    "syrk": Operation(
        "cublasSsyrk", lambda randn, n, k: (randn(n, k), randn(n, n)),
        lambda a, c, precision: syrk(a, out=c, precision=precision), _rank_k,
        lambda a, _, c: ((c - a @ a.mT).tril(), a.norm(dim=-1), a.norm(dim=-1)),
        roundings=lambda n, k: k, flops=lambda n, k: n * (n + 1) * k,
        sizes=_squares(2048, 4096, 8192, 16384),
        product=lambda a, c, precision: api.matmul(a, a.mT, out=c, precision=precision)),
    "herk": Operation(
        "cublasCherk", lambda randn, n, k: tuple(torch.complex(randn(n, x), randn(n, x)) for x in (k, n)),
        lambda a, c, precision: herk(a, out=c, precision=precision), _rank_k,
        lambda a, _, c: ((c - a @ a.mH).tril(), a.norm(dim=-1), a.norm(dim=-1)),
        roundings=lambda n, k: 2 * k, flops=lambda n, k: 4 * n * (n + 1) * k,
        sizes=_squares(2048, 4096, 8192), precisions=("ieee", "emulated", "emulated-3m"),
        product=lambda a, c, precision: api.matmul(a, a.mH, out=c, precision=precision)),
    "trsm": Operation(
        "torch.linalg.solve_triangular", lambda randn, n, m: (_factor(randn, n), randn(n, m)),
        trsm, partial(torch.linalg.solve_triangular, upper=False),
        lambda a, b, x: (a @ x - b, a.norm(dim=-1), x.norm(dim=-2)),
        roundings=lambda n, m: n, flops=lambda n, m: n * n * m,
        sizes=_squares(1024, 2048, 4096, 8192, 16384) + _BATCHES),
    "cholesky": Operation(
        "torch.linalg.cholesky_ex", lambda randn, n, _: (definite(randn, n),), cholesky_ex, torch.linalg.cholesky_ex,
        lambda a, x: (x @ x.mT - a, *2 * (a.diagonal(dim1=-2, dim2=-1).sqrt(),)),
        roundings=lambda n, _: n + 1, flops=lambda n, _: n**3 / 3,
        sizes=_squares(512, 1024, 2048, 4096, 8192, 16384) + _BATCHES),
    "cholesky_solve": Operation(
        "torch.cholesky_solve", lambda randn, n, m: (randn(n, m), _factor(randn, n)),
        cholesky_solve, torch.cholesky_solve, lambda b, factor, x: _of_solution(factor, b, x),
        roundings=lambda n, _: 3 * n + 1, flops=lambda n, m: 2 * n * n * m,
        sizes=((1024, 256, 1), (4096, 256, 1), (8192, 256, 1), (16384, 256, 1))),
    "cholesky_inverse": Operation(
        "torch.cholesky_inverse", lambda randn, n, _: (_factor(randn, n),), cholesky_inverse, torch.cholesky_inverse,
        lambda factor, x: _of_solution(factor, torch.eye(len(x), device=x.device), x),
        roundings=lambda n, _: 3 * n + 1, flops=lambda n, _: 2 * n**3 / 3, sizes=_squares(4096)),
    "lu": Operation(
        "torch.linalg.lu_factor_ex", lambda randn, n, _: (randn(n, n),), lu_factor_ex, torch.linalg.lu_factor_ex,
        _of_lu, roundings=lambda n, _: n, flops=lambda n, _: 2 * n**3 / 3,
        sizes=_squares(1024, 2048, 4096, 8192, 16384) + _BATCHES, parts=2),
    "solve": Operation(
        "torch.linalg.solve_ex", lambda randn, n, m: (randn(n, n), randn(n, m)), solve_ex, torch.linalg.solve_ex,
        lambda a, b, x: (a @ x - b, a.norm(dim=-1), x.norm(dim=-2)),
        roundings=lambda n, _: n * n, flops=lambda n, m: 2 * n**3 / 3 + 2 * n * n * m, sizes=((8192, 256, 1),)),
    "inverse": Operation(
        "torch.linalg.inv_ex", lambda randn, n, _: (randn(n, n),), inv_ex, torch.linalg.inv_ex,
        lambda a, x: (a @ x - torch.eye(len(x), device=x.device), a.norm(dim=-1), x.norm(dim=-2)),
        roundings=lambda n, _: n * n, flops=lambda n, _: 2 * n**3, sizes=_squares(8192)),
    "qr": Operation(
        "torch.linalg.qr", lambda randn, n, m: (randn(m, n),), qr, torch.linalg.qr, _of_factors,
        roundings=lambda n, m: m * n, flops=lambda n, m: 4 * m * n * n - 4 * n**3 / 3,
        sizes=((512, 100_000, 1), (2048, 50_000, 1), (8192, 8192, 1)), parts=2),
    "lstsq": Operation(
        "torch.linalg.lstsq", lambda randn, n, m: (randn(m, n), randn(m, 8)), lstsq_ex,
        lambda a, b: torch.linalg.lstsq(a, b, driver="gels"), _of_least_squares,
        roundings=lambda n, m: m * n, flops=lambda n, m: 2 * m * n * n - 2 * n**3 / 3,
        sizes=((1000, 200_000, 1),), parts=1),
    "complex product": Operation(
        "torch.matmul", lambda randn, n, _: tuple(torch.complex(randn(n, n), randn(n, n)) for _ in range(2)),
        api.matmul, torch.matmul, lambda a, b, c: (c - a @ b, a.norm(dim=-1), b.norm(dim=-2)),
        roundings=lambda n, _: 2 * n, flops=lambda n, _: 8 * n**3,
        sizes=_squares(2048, 4096, 8192), precisions=("ieee", "emulated", "emulated-3m")),
    "covariance": Operation(
        "torch.mm", lambda randn, n, k: (randn(k, n),), partial(gram, trans=True), lambda a: torch.mm(a.mT, a),
        lambda a, c: (c - a.mT @ a, a.norm(dim=-2), a.norm(dim=-2)),
        roundings=lambda n, k: k, flops=lambda n, k: n * (n + 1) * k, sizes=((4096, 100_000, 1),)),
}


class Case(NamedTuple):
    """An operation with its sizes, and how many matrices a call has."""

    operation: str
    n: int
    columns: int
    batch: int
    precision: str

    @property
    def name(self) -> str:
        """``trsm 4096 x 256``, of a batch ``trsm 128, batch 512``."""
        return (f"{self.operation} {self.n}" + f" x {self.columns}" * (self.columns != self.n)
                + f", batch {self.batch}" * (self.batch > 1))


def cases(operations: Iterable[str]) -> list[Case]:
    """Those of the suite, each in every precision."""
    return [Case(name, *sizes, precision) for name in operations for sizes in OPERATIONS[name].sizes
            for precision in OPERATIONS[name].precisions]


def rows(chosen: Iterable[Case], gpu: Gpu, timer: Timer, done: Callable[[str], None]) -> Iterator[Row]:
    """A row for each case: ``error`` in place of times where the result is wrong, or a call failed."""
    for case in chosen:
        row = {"name": case.name, **case._asdict(), "baseline": OPERATIONS[case.operation].baseline}
        try:
            _measure(case, row, gpu, timer)
        except Exception as error:  # whatever a driver, an allocator or a library raises: the others still run
            row["error"] = first_line(error)
        yield row
        torch.cuda.empty_cache()
        done(f"{case.name}: {case.precision}")


def _measure(case: Case, row: Row, gpu: Gpu, timer: Timer) -> None:
    operation, generator = OPERATIONS[case.operation], torch.Generator("cuda").manual_seed(0)
    batch = (case.batch,) if case.batch > 1 else ()

    def draw() -> Matrices:
        return operation.draw(lambda *shape: torch.randn(*batch, *shape, generator=generator, device="cuda"),
                              case.n, case.columns)

    sets = [draw()]
    sets += [draw() for _ in range(1, set_count(2 * sum(x.nbytes for x in sets[0]), gpu))]

    def of(call: Callable[..., Any] | None, **precision: str) -> list[Callable[[], Any]]:
        return [partial(call, *each, **precision) for each in sets] if call else []

    ours, theirs = of(operation.ours, precision=case.precision), of(operation.theirs)
    error, reference_error = (operation.error(sets[0], works[0]()) for works in (ours, theirs))
    row |= {"operand_sets": len(sets), "max_error": error, "reference_error": reference_error}
    if not error <= (limit := operation.limit(case.n, case.columns)):
        raise PeakgemmError(f"wrong result: {error:.3g} eps, {limit:g} at most")
    # Eager, as programs call it: a graph would hide what the calls of small sizes cost.
    pairs = timer.compare(ours, theirs, capture=False)
    ms, baseline_ms = median(pairs.ours_ms), median(pairs.baseline_ms)
    row |= {"ms": ms, "baseline_ms": baseline_ms, "ratio": median(pairs.ratios), "ratio_spread": list(pairs.spread),
            "tflops": operation.flops(case.n, case.columns) * case.batch / ms / 1e9, **pairs.state,
            "samples_ms": {"ours": pairs.ours_ms, "baseline": pairs.baseline_ms}}
    if product := of(operation.product, precision=case.precision):
        pairs = timer.compare(ours, product, capture=False)
        row["share_of_product"] = 1 / median(pairs.ratios)
        row["samples_ms"] |= {"ours_again": pairs.ours_ms, "product": pairs.baseline_ms}
