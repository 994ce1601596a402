"""Products that are symmetric, or have a symmetric or triangular operand."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..arrays.base import is_complex
from ..calls.request import flag, scales
from ..errors import InvalidValue
from ..problem import Triangle
from .blocked import copy_triangle
from .call import Operation, batch_of, run, shape_of
from .complex_rank_k import rank_k as complex_rank_k
from .program import Matrix, Program

_BLOCK = 1024  # rows of a triangular operand that are multiplied at once: zeros above its diagonal are, too


def syrk(a: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans: bool = False, lower: bool = True,
         out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """One triangle of ``alpha a a^T + beta c``, at half the cost of the product: BLAS's ``syrk``.

    Args:
        a: float32 or complex64, ``(..., N, K)``, or with ``trans`` ``(..., K, N)``, of which ``a^T a`` is computed.
        c: of the dtype of ``a``, ``(..., N, N)``; its other triangle is not read. Not read at all where ``beta`` is 0.
        alpha, beta: real numbers, complex ones of complex64 arrays; ``beta`` None: 1 where ``c`` is given, else 0.
        trans: a bool, 0 or 1, or BLAS's letters, of complex64 ``"N"`` and ``"T"``.
        lower: which triangle is computed.
        out: written, ``(..., N, N)``; it may be ``c`` itself. Its other triangle stays as it is.
        precision, stream: as for `peakgemm.matmul`.

    Returns:
        ``out``, or a new array with zeros in the other triangle.

    Raises:
        InvalidType, InvalidValue, OutOfMemory: as `peakgemm.gemm`.
    """
    return _rank_k("syrk", {"a": a}, c, alpha, beta, trans, lower, out, precision, stream)


def herk(a: Any, c: Any = None, *, alpha: float = 1.0, beta: float | None = None, trans: bool = False,
         lower: bool = True, out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """One triangle of ``alpha a a^H + beta c``, or with ``trans`` of ``alpha a^H a + beta c``: BLAS's ``herk``.

    Letters of ``trans`` are ``"N"`` and ``"C"``; ``alpha`` and ``beta`` are real. The diagonal of the result is real:
    its imaginary part is 0, and that of ``c`` is not looked at. All else is as for `syrk`, which of float32 it is.
    """
    return _rank_k("herk", {"a": a}, c, alpha, beta, trans, lower, out, precision, stream)


def syr2k(a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float | None = None, trans: bool = False,
          lower: bool = True, out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """One triangle of ``alpha (a b^T + b a^T) + beta c``: BLAS's ``syr2k``. ``b`` has the shape of ``a``; all else is
    as for `syrk`."""
    return _rank_k("syr2k", {"a": a, "b": b}, c, alpha, beta, trans, lower, out, precision, stream)


def gram(a: Any, *, trans: bool = False, out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """The whole of ``a a^T``, or with ``trans`` of ``a^T a``: one triangle computed, the other one its mirror. Of
    complex64 ``a a^H`` and ``a^H a``, as of `herk`.

    Args, raises:
        As `syrk`.
    """
    if is_complex(a):
        return complex_rank_k("gram", a, trans=trans, out=out, precision=precision, stream=stream, hermitian=True,
                              whole=True)
    trans = flag(trans, "trans")
    *batch, rows, columns = shape_of("gram", "a", a)
    size = columns if trans else rows

    def record(program: Program, m: dict[str, Matrix]) -> None:
        left = m["a"].mT if trans else m["a"]
        program.product(m["out"], left, left.mT, triangle=Triangle.LOWER)
        copy_triangle(program, m["out"], m["out"], mirror=True)

    def on_cpu(a: Any, out: Any) -> Any:
        return transposed(a) @ a if trans else a @ transposed(a)

    return run(Operation("gram", {"a": a}, (*batch, size, size), record, on_cpu, (trans,), out=out, precision=precision,
                         stream=stream))


def _rank_k(name: str, operands: dict[str, Any], c: Any, alpha: Any, beta: Any, trans: bool, lower: bool, out: Any,
            precision: str, stream: Any) -> Any:
    lower = as_bool(lower, "lower")
    if name != "syr2k" and is_complex(operands["a"]):
        return complex_rank_k(name, operands["a"], c, alpha=alpha, beta=beta, trans=trans, lower=lower, out=out,
                              precision=precision, stream=stream, hermitian=name == "herk")
    alpha, beta = scales(alpha, beta, c)
    trans = flag(trans, "trans")
    shapes = {which: shape_of(name, which, x)[-2:] for which, x in operands.items()}
    if len(set(shapes.values())) > 1:
        raise InvalidValue(f"{name}: a has shape {shapes['a']} and b {shapes['b']}; they must be equal")
    size = shapes["a"][1 if trans else 0]
    arrays = operands if beta == 0 or c is None else operands | {"c": c}
    if "c" in arrays and shape_of(name, "c", c)[-2:] != (size, size):
        raise InvalidValue(f"{name}: c has shape {tuple(c.shape)}, the result has ({size}, {size}); pass a c of that "
                           "shape")
    shape = (*batch_of(name, **arrays), size, size)
    wanted, fresh = Triangle.LOWER if lower else Triangle.UPPER, out is None

    def record(program: Program, m: dict[str, Matrix]) -> None:
        left, right = (x.mT if trans else x for x in (m["a"], m.get("b", m["a"])))
        add = partial(program.product, m["out"], alpha=alpha, triangle=wanted)
        add(left, right.mT, m.get("c"), beta=beta)
        if "b" in m:
            add(right, left.mT, m["out"], beta=1.0)
        if fresh:
            result = m["out"] if lower else m["out"].mT
            copy_triangle(program, result, result)

    def on_cpu(a: Any, out: Any, b: Any = None, c: Any = None) -> Any:
        left, right = (transposed(x) if trans else x for x in (a, a if b is None else b))
        value = left @ transposed(right)
        value = scaled(alpha, value if b is None else value + transposed(value))
        value = value if c is None else value + np.float32(beta) * c
        return np.where(_one_triangle(np.ones((size, size), bool), lower), value, np.float32(0) if out is None else out)

    return run(Operation(name, arrays, shape, record, on_cpu, (alpha, beta, trans, lower, fresh), "c", out=out,
                         precision=precision, stream=stream))


def symm(a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float | None = None, left: bool = True,
         lower: bool = True, out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """``alpha a b + beta c``, or without ``left`` ``alpha b a + beta c``, with a symmetric ``a`` of which one triangle
    is read: BLAS's ``symm``.

    Args:
        a: float32, ``(..., N, N)``; the triangle that ``lower`` names is read.
        b: float32, ``(..., N, M)``, or without ``left`` ``(..., M, N)``.
        c, alpha, beta, out, precision, stream: as for `peakgemm.gemm`.

    Raises:
        As `peakgemm.gemm`; also InvalidValue for an ``a`` that is not square.
    """
    alpha, beta = scales(alpha, beta, c)
    left, lower = as_bool(left, "left"), as_bool(lower, "lower")
    arrays = {"a": a, "b": b} if beta == 0 or c is None else {"a": a, "b": b, "c": c}
    shape = one_sided("symm", arrays, left)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        full = program.allocate(*m["a"].shape)
        copy_triangle(program, m["a"] if lower else m["a"].mT, full, mirror=True)
        first, second = (full, m["b"]) if left else (m["b"], full)
        program.product(m["out"], first, second, m.get("c"), alpha=alpha, beta=beta)

    def on_cpu(a: Any, b: Any, out: Any, c: Any = None) -> Any:
        full = mirrored(a, lower)
        value = scaled(alpha, full @ b if left else b @ full)
        return value if c is None else value + np.float32(beta) * c

    return run(Operation("symm", arrays, shape, record, on_cpu, (alpha, beta, left, lower), "c", out=out,
                         precision=precision, stream=stream))


def trmm(a: Any, b: Any, *, alpha: float = 1.0, left: bool = True, lower: bool = True, trans: bool = False,
         unit: bool = False, out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """``alpha op(a) b``, or without ``left`` ``alpha b op(a)``, with a triangular ``a``: BLAS's ``trmm``.

    Args:
        a: float32, ``(..., N, N)``; the triangle that ``lower`` names is read, and with ``unit`` its diagonal is not,
            but taken for ones. With ``trans`` op(a) is its transpose.
        b: float32, ``(..., N, M)``, or without ``left`` ``(..., M, N)``.
        out, precision, stream: as for `peakgemm.matmul`.

    Raises:
        As `peakgemm.gemm`; also InvalidValue for an ``a`` that is not square.
    """
    alpha, _ = scales(alpha, 0.0, None)
    left, lower, unit = as_bool(left, "left"), as_bool(lower, "lower"), as_bool(unit, "unit")
    trans = flag(trans, "trans")
    arrays = {"a": a, "b": b}
    shape = one_sided("trmm", arrays, left)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        triangle, right, out, transposed = lower_left(m["a"], m["b"], m["out"], lower, left, trans)
        zeros = program.allocate(*triangle.shape)
        copy_triangle(program, triangle, zeros, unit=unit)
        size, columns = right.rows, right.columns
        for first in range(0, size, _BLOCK):
            rows = min(_BLOCK, size - first)
            begin, end = (first, size) if transposed else (0, first + rows)
            factor = (zeros.block(begin, first, end - begin, rows).mT if transposed
                      else zeros.block(first, begin, rows, end - begin))
            program.product(out.block(first, 0, rows, columns), factor, right.block(begin, 0, end - begin, columns),
                            alpha=alpha, sparse=True)

    def on_cpu(a: Any, b: Any, out: Any) -> Any:
        full = triangle_of(a, lower, trans, unit)
        return scaled(alpha, full @ b if left else b @ full)

    return run(Operation("trmm", arrays, shape, record, on_cpu, (alpha, left, lower, trans, unit), out=out,
                         precision=precision, stream=stream))


def one_sided(name: str, arrays: dict[str, Any], left: bool) -> tuple[int, ...]:
    """The shape of a product with, or a solution by, the first of ``arrays``, a square, from one side of ``b``.

    Raises:
        InvalidValue: shapes that do not match.
    """
    which = next(iter(arrays))
    size = shape_of(name, which, arrays[which], square=True)[-1]
    rows, columns = shape_of(name, "b", arrays["b"])[-2:]
    if (rows if left else columns) != size:
        side = "rows" if left else "columns"
        raise InvalidValue(f"{name}: b has shape {tuple(arrays['b'].shape)}, and its {side} must be the {size} "
                           f"rows of {which}")
    if "c" in arrays and shape_of(name, "c", arrays["c"])[-2:] != (rows, columns):
        raise InvalidValue(f"{name}: c has shape {tuple(arrays['c'].shape)}, the result has ({rows}, {columns}); pass "
                           "a c of that shape")
    return (*batch_of(name, **arrays), rows, columns)


def lower_left(a: Matrix, b: Matrix, out: Matrix, lower: bool, left: bool,
               trans: bool) -> tuple[Matrix, Matrix, Matrix, bool]:
    """The same with a lower triangle, from the left: the triangle, ``b``, ``out``, and whether the triangle is
    transposed."""
    if not left:
        b, out = b.mT, out.mT
    return (a if lower else a.mT), b, out, trans ^ (not lower) ^ (not left)


def triangle_of(a: Any, lower: bool, trans: bool, unit: bool) -> Any:
    """op(a) for NumPy: the other triangle zero, ones on the diagonal where ``unit``."""
    full = _one_triangle(a, lower)
    if unit:
        size = full.shape[-1]
        full = np.where(np.eye(size, dtype=bool), np.float32(1), full)
    return transposed(full) if trans else full


def mirrored(a: Any, lower: bool) -> Any:
    """The symmetric matrix for NumPy, of which one triangle is read."""
    return _one_triangle(a, lower) + transposed(np.tril(a, -1) if lower else np.triu(a, 1))


def scaled(alpha: float, x: Any) -> Any:
    """``alpha x`` for NumPy; zeros where alpha is 0, whatever ``x`` holds, as in BLAS."""
    return np.float32(alpha) * x if alpha else np.zeros_like(x)


def transposed(x: Any) -> Any:
    """NumPy's matrices transposed."""
    return np.swapaxes(x, -1, -2)


def _one_triangle(x: Any, lower: bool) -> Any:
    return np.tril(x) if lower else np.triu(x)


def as_bool(value: Any, name: str) -> bool:
    """A bool, or 0 or 1.

    Raises:
        InvalidValue: anything else.
    """
    if isinstance(value, (int, np.integer, np.bool_)) and value in (0, 1):
        return bool(value)
    raise InvalidValue(f"{name} = {value!r} is no bool; pass {name}=True or {name}=False")
