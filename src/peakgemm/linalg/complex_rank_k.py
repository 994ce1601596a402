"""Products of complex64 matrices by their own transposes: `syrk`, `herk` and `gram`.

A triangle of the complex result is not a triangle of the one real product that complex.py makes. So the real and the
imaginary part are products of their own, a batch of two of which only triangles are computed: half of the operations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..arrays import library_of, locate
from ..arrays.base import View, check_dtype, is_traced, packed
from ..calls.request import flag, scales
from ..errors import InvalidValue
from ..kernels.linalg.complex_pack import Mode, Part, complex_pack
from ..kernels.linalg.leaves import Strides
from ..problem import Triangle
from .call import Operation, batch_of, run, shape_of
from .complex import (
    KARATSUBA,
    Operand,
    allocate,
    complex_scales,
    copy_operand,
    distinct_batch,
    interleaved,
    rounded,
)
from .program import Matrix, Program


def rank_k(name: str, a: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans: Any = False,
           lower: bool = True, out: Any = None, precision: str = "ieee", stream: Any = None, hermitian: bool,
           whole: bool = False) -> Any:
    """`peakgemm.linalg.syrk` of a complex64 ``a``, or where it is ``hermitian`` ``herk``; the ``whole`` matrix: `gram`.

    Raises:
        As those; InvalidValue also for the other's letter.
    """
    other, letter = ("syrk", "T") if hermitian else ("herk", "C")
    if isinstance(trans, str) and trans.upper() == letter:
        raise InvalidValue(f"{name}: trans = {trans!r} of complex64; pass trans=True to transpose as {name} does, or "
                           f"call {other}")
    trans = flag(trans, "trans")
    if hermitian:
        alpha, beta = scales(alpha, beta, c)
    else:
        alpha, beta = complex_scales(alpha, beta, c)
        alpha, beta = rounded(alpha, "alpha"), rounded(beta, "beta")
    rows, columns = shape_of(name, "a", a)[-2:]
    size, sums = (columns, rows) if trans else (rows, columns)
    given = {"a": a} if beta == 0 else {"a": a, "c": c}
    if beta != 0 and shape_of(name, "c", c)[-2:] != (size, size):
        raise InvalidValue(f"{name}: c has shape {tuple(c.shape)}, the result has ({size}, {size}); pass a c of that "
                           "shape")
    shape = (*batch_of(name, **given), size, size)
    arrays = given if out is None else given | {"out": out}
    if is_traced(arrays.values()):
        library = library_of(a, "a")
        for which, x in arrays.items():
            check_dtype(str(x.dtype), which, "complex64")
    else:
        library, _ = locate(arrays, "complex64")
    reals = {which: library.as_real(x) for which, x in given.items()}
    conjugated = {which for which, (_, lazily) in reals.items() if lazily}
    part = Part.MIRRORED if whole else Part.LOWER_AND_ZEROS if out is None else Part.LOWER
    is_3m = precision == KARATSUBA and alpha != 0 and sums != 0
    key = complex(alpha), complex(beta), trans, lower, hermitian, part, is_3m, *sorted(conjugated)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        x = Operand(m["a"], ("a" in conjugated) != (trans and hermitian))
        old = Operand(m["c"], "c" in conjugated) if "c" in m else None
        # An upper triangle is the lower one of the transposed matrix, which is Hermitian by the conjugate of x.
        x, result = x.mT if trans else x, m["out"]
        if not lower:
            x, old, result = x._replace(conjugated=x.conjugated != hermitian), old and old.mT, result.mT
        _record(program, x, old, result, complex(alpha), complex(beta), hermitian, part, is_3m)

    def on_cpu(a: Any, out: Any, c: Any = None) -> Any:
        x = a.view(np.complex64)[..., 0]
        x = np.conj(x) if ("a" in conjugated) != (trans and hermitian) else x
        x = np.swapaxes(x, -1, -2) if trans else x
        other = np.swapaxes(np.conj(x) if hermitian else x, -1, -2)
        value = _times(alpha, x @ other)
        if c is not None:
            old = c.view(np.complex64)[..., 0]
            value = value + _times(beta, np.conj(old) if "c" in conjugated else old)
        wanted = np.tri(size, dtype=bool) if lower else np.tri(size, dtype=bool).T
        value = np.where(wanted, value, np.conj(np.swapaxes(value, -1, -2)))
        parts = np.array(np.broadcast_to(value, shape), np.complex64, order="C")[..., None].view(np.float32)
        if hermitian:
            parts[..., range(size), range(size), 1] = 0
        return parts if whole else np.where(wanted[..., None], parts, np.float32(0) if out is None else out)

    result = run(Operation(name, {which: x for which, (x, _) in reals.items()}, shape, record, on_cpu, key,
                           "c" * (not whole), out=None if out is None else library.as_real(out)[0], parts=2,
                           stream=stream, precision="emulated" if precision == KARATSUBA else precision))
    return result if out is None else out


def _times(factor: complex, x: Any) -> Any:
    """``factor x`` for NumPy, of a real factor by parts; zeros where it is 0, whatever ``x`` holds, as in BLAS."""
    if factor == 0:
        return np.zeros_like(x)
    if factor.imag != 0:
        return np.complex64(factor) * x
    return (np.float32(factor.real) * np.ascontiguousarray(x)[..., None].view(np.float32)).view(np.complex64)[..., 0]


def _record(program: Program, x: Operand, c: Operand | None, out: Matrix, alpha: complex, beta: complex,
                   hermitian: bool, part: Part, is_3m: bool) -> None:
    """``out :=`` the lower triangle of ``alpha x x^H + beta c``, or without ``hermitian`` of ``alpha x x^T + beta c``.

    Two real products of twice as many columns, or where it ``is_3m`` three, fill one triangle of each part.
    """
    if c is not None and c.conjugated:  # not in `out`, whose other triangle stays
        copy = program.allocate(*c.matrix.shape, 2)
        copy = Matrix(copy.buffer, View(copy.view.pointer, c.matrix.shape, packed(c.matrix.shape)))
        copy_operand(program, c, copy, 1.0)
        c = Operand(copy)
    count, rows, columns = distinct_batch(x.matrix)
    pack = partial(complex_pack, program.arch, count=count, rows=rows, columns=columns, source=x.matrix.layout,
                   target=Strides(columns, 1, rows * columns), plane=count * rows * columns)
    if is_3m:
        left = right = allocate(program, x.matrix, rows, columns, 3)
        program.kernel(pack(mode=Mode.PLANES, conjugated=x.conjugated), a=x.matrix, c=left)
        if hermitian:
            right = allocate(program, x.matrix, rows, columns, 3)
            program.kernel(pack(mode=Mode.PLANES, conjugated=not x.conjugated), a=x.matrix, c=right)
    else:
        left = allocate(program, x.matrix, rows, 2 * columns, 2)
        in_place = interleaved(x.matrix)
        right = in_place or allocate(program, x.matrix, rows, 2 * columns)
        if alpha != 0 and columns:
            program.kernel(pack(mode=Mode.EMBED, conjugated=not hermitian, second_sign=-1.0 if x.conjugated != hermitian
                                else 1.0), a=x.matrix, c=left)
            if in_place is None:
                program.kernel(pack(mode=Mode.COPY), a=x.matrix, c=right)
    products = program.allocate(3 if is_3m else 2, *out.shape)
    program.product(products, left, right.mT, alpha=float(alpha != 0), triangle=Triangle.LOWER)
    count, size, _ = out.shape
    program.kernel(complex_pack(program.arch, Mode.COMBINE if is_3m else Mode.JOIN, count, size, size,
                                Strides(size, 1, size * size), out.layout, plane=count * size * size,
                                factor=alpha if alpha != 0 else 1.0, beta=beta, old=c and c.matrix.layout, part=part,
                                real_diagonal=hermitian), a=products, c0=c and c.matrix, c=out)
