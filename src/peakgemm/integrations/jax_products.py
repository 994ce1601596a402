"""``matmul``, ``gemm`` and ``dot_general`` for JAX: any shapes and dimension numbers, as the primitive takes them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from ..calls.canonical import broadcasts
from ..calls.request import check_precision, flag, scales
from ..errors import InvalidType, InvalidValue
from .jax_primitive import few_batches, product, refuse_symbolic, result_shape, tall_matrix

Dims = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def multiply(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans_a: Any = False,
             trans_b: Any = False, precision: str = "ieee", reproducible: bool | None = None) -> Any:
    """``alpha op(a) op(b) + beta c`` as `peakgemm.gemm` has it, and `peakgemm.matmul` for 1-D operands."""
    precision = check_precision(precision, reproducible)
    turn_a, turn_b = flag(trans_a, "trans_a"), flag(trans_b, "trans_b")
    alpha, beta = scales(alpha, beta, c)
    a, b = _array(a, "a"), _array(b, "b")
    dropped = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    if a.ndim == 1:
        a = a[None, :]
    if b.ndim == 1:
        b, turn_b = b[None, :], True  # a row that is read as a column
    *batch, m, n = result_shape(a.shape, b.shape, turn_a, turn_b)
    if c is not None:
        c = _array(c, "c")
        for axis in dropped:
            c = jnp.expand_dims(c, axis) if c.ndim else c
        if not broadcasts(c.shape, (*batch, m, n)):
            raise InvalidValue(f"c has shape {c.shape}, the result {(*batch, m, n)}; pass a c that broadcasts to it")
        c = c.reshape((1,) * (len(batch) + 2 - c.ndim) + c.shape)
    if batch and b.ndim == 2 and not turn_a and c is None:  # one tall product, and one for b's gradient
        out = product(tall_matrix(a), b, alpha=alpha, trans_b=turn_b, precision=precision)
    else:
        full = [x.reshape((1,) * (len(batch) + 2 - x.ndim) + x.shape) for x in (a, b)]
        out = product(*few_batches(*full, *(() if c is None else (c,))), alpha=alpha, beta=beta, trans_a=turn_a,
                      trans_b=turn_b, precision=precision)
    out = out.reshape(*batch, m, n)
    return out.reshape([size for axis, size in enumerate(out.shape) if axis - out.ndim not in dropped])


def dot_general(a: Any, b: Any, dimension_numbers: Dims, *, precision: str = "ieee",
                reproducible: bool | None = None) -> Any:
    """``jax.lax.dot_general`` of float32 operands: batch dimensions first, then those of ``a``, then those of ``b``."""
    precision = check_precision(precision, reproducible)
    a, b = _array(a, "a"), _array(b, "b")
    (sum_a, sum_b), (batch_a, batch_b) = (tuple(tuple(x) for x in pair) for pair in dimension_numbers)
    for name, pairs in (("contracting", (sum_a, sum_b)), ("batch", (batch_a, batch_b))):
        sizes = [tuple(x.shape[i] for i in dims) for x, dims in zip((a, b), pairs, strict=True)]
        if sizes[0] != sizes[1]:
            raise InvalidValue(f"the {name} dimensions of a {a.shape} and b {b.shape} have sizes {sizes[0]} and "
                               f"{sizes[1]}; they must be equal")
    free_a, free_b = (tuple(i for i in range(x.ndim) if i not in (*some, *batch)) for x, some, batch in
                      ((a, sum_a, batch_a), (b, sum_b, batch_b)))
    batch = tuple(a.shape[i] for i in batch_a)
    left, turn_a = _matrices(a, batch_a, free_a, sum_a)
    right, turn_b = _matrices(b, batch_b, sum_b, free_b)
    out = product(left, right, trans_a=turn_a, trans_b=turn_b, precision=precision)
    return out.reshape(*batch, *(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b))


def _matrices(x: Any, batch: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[Any, bool]:
    """``x`` as ``(B, rows, columns)``, or transposed where it lies so; without B where there is no batch."""
    lies = tuple(range(x.ndim))
    turned = lies == (*batch, *columns, *rows)
    first, second = (columns, rows) if turned else (rows, columns)
    order = (*batch, *first, *second)
    if order != lies:
        x = jnp.transpose(x, order)
    sizes = [prod(x.shape[i] for i in group) for group in _groups(len(batch), len(first), len(second))]
    return x.reshape(sizes[1:] if not batch else sizes), turned


def _groups(*counts: int) -> list[range]:
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def _array(x: Any, name: str) -> Any:
    """``x`` as a JAX value of float32.

    Raises:
        InvalidType: another dtype, or no array.
    """
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise InvalidType(f"{name} is a {type(x).__name__}; pass a JAX array")
    if str(x.dtype) != "float32":
        raise InvalidType(f"{name} is {x.dtype}; peakgemm multiplies float32: convert it with {name}.astype('float32')")
    refuse_symbolic(name, x.shape)
    return x if isinstance(x, jax.Array) else jnp.asarray(x)
