"""What `use(linalg=True)` reroutes: torch's operators of FP32 linear algebra, beneath autograd.

torch's derivative formulas call the same operators again, which are rerouted as well. New results are column-major, as
torch's own are: compiled code relies on their strides.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from .. import linalg
from ..arrays.torch import PLAIN
from ..errors import InvalidType, InvalidValue, OutOfMemory
from ..linalg.call import batch_of
from .linalg_sizes import FASTER


def reroute(op: str, precision: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``op`` returns, computed by peakgemm; None where torch has to run it: it is faster at that size, the
    arguments are not ours, or peakgemm has no room for its workspace."""
    try:
        return OPS[op](precision, *args, **kwargs)
    except (InvalidType, InvalidValue, OutOfMemory):  # before anything ran
        return None


def _is_ours(kind: str, square: Tensor, columns: int, *others: Tensor | None) -> bool:
    """Whether these are plain FP32 tensors, of sizes at which peakgemm is faster."""
    return (_is_plain(square, *others) and square.dim() >= 2 and square.numel() > 0 and columns > 0
            and FASTER[kind].hold(prod(square.shape[:-2]), square.shape[-1], columns))


def _is_plain(*tensors: Tensor | None) -> bool:
    return all(x is None or (type(x) in PLAIN and x.dtype is torch.float32) for x in tensors)


def _column_major(like: Tensor, batch: tuple[int, ...], rows: int, columns: int) -> Tensor:
    return torch.empty((*batch, columns, rows), dtype=torch.float32, device=like.device).mT


def _cholesky_ex(precision: str, a: Tensor, *, upper: bool = False, check_errors: bool = False,
                 L: Tensor | None = None, info: Tensor | None = None,
                 caller: str = "linalg.cholesky_ex") -> tuple[Tensor, Tensor] | None:
    if not _is_ours("factor", a, 1, L):
        return None
    if info is not None and (info.dtype is not torch.int32 or (info.numel() and info.shape != a.shape[:-2])):
        return None
    out = _column_major(a, a.shape[:-2], *a.shape[-2:]) if L is None else L
    factor, order = linalg.cholesky_ex(a.detach(), upper=upper, out=out, precision=precision)
    if info is not None:
        order = info.resize_(order.shape).copy_(order)
    if check_errors:
        torch.ops.aten._linalg_check_errors(order, caller, is_matrix=a.dim() == 2)
    return factor, order


def _cholesky(precision: str, a: Tensor, upper: bool = False) -> Tensor | None:
    result = _cholesky_ex(precision, a, upper=upper, check_errors=True, caller="cholesky")
    return None if result is None else result[0]


def _cholesky_solve(precision: str, b: Tensor, factor: Tensor, upper: bool) -> Tensor | None:
    if b.dim() < 2 or not _is_ours("solve", factor, b.shape[-1], b):
        return None
    out = _column_major(b, b.shape[:-2], *b.shape[-2:])  # torch has broadcast both
    result: Tensor = linalg.cholesky_solve(b.detach(), factor.detach(), upper=upper, out=out, precision=precision)
    return result


def _cholesky_inverse(precision: str, factor: Tensor, upper: bool = False, *, out: Tensor) -> Tensor | None:
    if not _is_ours("inverse", factor, 1, out):
        return None
    if not out.numel():  # what torch.cholesky_inverse without out passes on
        out.resize_(factor.mT.shape).transpose_(-2, -1)
    result: Tensor = linalg.cholesky_inverse(factor.detach(), upper=upper, out=out, precision=precision)
    return result


def _solve_triangular(precision: str, a: Tensor, b: Tensor, *, upper: bool, left: bool = True,
                      unitriangular: bool = False, trans: bool = False, out: Tensor | None = None) -> Tensor | None:
    if b.dim() < 2 or not _is_ours("solve", a, b.shape[-1 if left else -2], b, out):
        return None
    if out is None:
        out = _column_major(b, batch_of("solve_triangular", a=a, b=b), *b.shape[-2:])
    result: Tensor = linalg.trsm(a.detach(), b.detach(), left=left, lower=not upper, trans=trans, unit=unitriangular,
                                 out=out, precision=precision)
    return result


def _triangular_solve(precision: str, b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False,
                      unitriangular: bool = False) -> tuple[Tensor, Tensor] | None:
    solution = _solve_triangular(precision, a, b, upper=upper, trans=transpose, unitriangular=unitriangular)
    if solution is None:
        return None
    coefficients = _column_major(a, solution.shape[:-2], *a.shape[-2:]).copy_(a.detach())
    return solution, coefficients


def _lu_factor(precision: str, a: Tensor, *, pivot: bool = True, check_errors: bool = False, LU: Tensor | None = None,
               pivots: Tensor | None = None, info: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor] | None:
    if not pivot or not _is_ours("lu", a, 1, LU) or any(x is not None and x.dtype is not torch.int32
                                                       for x in (pivots, info)):
        return None
    out = _column_major(a, a.shape[:-2], *a.shape[-2:]) if LU is None else LU
    factor, order, number = linalg.lu_factor_ex(a.detach(), out=out, precision=precision)
    if pivots is not None and info is not None:
        order, number = (to.resize_(x.shape).copy_(x) for to, x in ((pivots, order), (info, number)))
    if check_errors:
        torch.ops.aten._linalg_check_errors(number, "torch.linalg.lu_factor_ex", is_matrix=a.dim() == 2)
    return factor, order, number


def _lu_solve(precision: str, factor: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False,
              out: Tensor | None = None) -> Tensor | None:
    if b.dim() < 2 or not _is_ours("solve", factor, b.shape[-1 if left else -2], b, out):
        return None
    if out is None:
        batch = batch_of("lu_solve", factor=factor, b=b)
        out = _column_major(b, batch, *b.shape[-2:]) if left else b.new_empty((*batch, *b.shape[-2:]))
    result: Tensor = linalg.lu_solve(factor.detach(), pivots, b.detach(), left=left, trans=adjoint, out=out,
                                     precision=precision)
    return result


def _gram(precision: str, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor | None:
    """A product of a matrix and its own transpose: half of it is computed."""
    if (a.dim() != 2 or b.dim() != 2 or b.shape != a.shape[::-1] or b.stride() != a.stride()[::-1]
            or a.data_ptr() != b.data_ptr() or not _is_plain(a, b, out) or not FASTER["gram"].hold(1, *a.shape)):
        return None
    result: Tensor = linalg.gram(a.detach(), out=out, precision=precision)
    return result


def _takes_orthogonal(a: Tensor, *others: Tensor) -> bool:
    """Whether peakgemm factors ``a``."""
    sizes = sorted(a.shape[-2:])
    return (_is_plain(a, *others) and a.dim() >= 2 and a.numel() > 0
            and FASTER["orthogonal"].hold(prod(a.shape[:-2]), sizes[1], sizes[0]))


def _qr(precision: str, a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor] | None:
    if not _takes_orthogonal(a):
        return None
    *batch, rows, columns = a.shape
    size = rows if mode == "complete" else min(rows, columns)
    out = _column_major(a, tuple(batch), *((size, columns) if mode == "r" else (rows, size)))
    q, r, _ = linalg.qr_ex(a.detach(), mode=mode, out=out, precision=precision)
    if mode == "r":
        return a.new_empty(0), r
    return q, r.mT.contiguous().mT


def _lstsq(precision: str, a: Tensor, b: Tensor, rcond: float | None = None, *,
           driver: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """By ``gels``, which asks for full rank and does not look: the only driver of torch on a GPU."""
    if (driver or ("gels" if a.is_cuda else None)) != "gels" or not _takes_orthogonal(a, b) or not b.numel() or (
            b.dim() != a.dim() or b.shape[:-2] != a.shape[:-2]):
        return None
    rows, columns = a.shape[-2:]  # torch solves in place of b, which is the longer one where there are more rows
    out = _column_major(a, a.shape[:-2], max(rows, columns), b.shape[-1])[..., :columns, :]
    solution, residuals, _ = linalg.lstsq_ex(a.detach(), b.detach(), out=out, precision=precision)
    nothing = a.new_empty(0)
    return (solution, residuals if rows > columns else nothing, nothing.long(), nothing.clone())


# By torch's names; `cholesky_solve` and `cholesky_inverse` pass on to these, `linalg.cholesky` to `linalg_cholesky_ex`,
# and `solve`, `inv`, `det` and `slogdet` of `linalg` to those of LU.
OPS: dict[str, Callable[..., Any]] = {
    "linalg_cholesky_ex": _cholesky_ex, "linalg_cholesky_ex.L": _cholesky_ex, "cholesky": _cholesky,
    "_cholesky_solve_helper": _cholesky_solve, "cholesky_inverse.out": _cholesky_inverse,
    "linalg_solve_triangular": _solve_triangular, "linalg_solve_triangular.out": _solve_triangular,
    "linalg_lu_factor_ex": _lu_factor, "linalg_lu_factor_ex.out": _lu_factor, "linalg_lu_solve": _lu_solve,
    "linalg_lu_solve.out": _lu_solve, "linalg_qr": _qr, "linalg_lstsq": _lstsq,
    "triangular_solve": _triangular_solve, "mm": _gram, "mm.out": _gram,
}
