"""Products of complex64 arrays by real products, and triangles of those with an array's own transpose.

A complex matrix in memory is a real one of twice as many columns, its parts side by side. With B embedded, each number
the square ``[re, im; -im, re]``, one real product of the two has the parts of A B side by side: all four real products
at once (4M), with errors that are small against ``|re| |re| + |im| |im|`` in each part. ``"emulated-3m"`` multiplies
three pairs of planes instead (Higham, "Stability of a method for multiplying complex matrices with three real matrix
multiplications", 1992): its errors are small against ``|a| |b|`` alone.

A triangle of ``x x^H`` is no triangle of that real product. Its parts are two real products of ``2 k`` columns,
``[re, im] [re, im]^T`` and ``[im, -re] [re, im]^T``, of which triangles are computed, half of 4M; then they are joined.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from numbers import Complex
from typing import Any, NamedTuple

from ..arrays import library_of, locate
from ..arrays.base import HOST, DeviceLibrary, View, check_dtype, is_traced, refuse_overlap, stream_handle
from ..arrays.numpy import host_view
from ..calls.canonical import broadcasts, result_shape
from ..calls.launch import calls, remember
from ..calls.request import REPRODUCIBLE, check_precision, flag, number
from ..errors import InvalidType, InvalidValue
from ..kernels.linalg.complex_pack import Mode, complex_pack
from ..kernels.linalg.leaves import Strides
from .call import Operation, enqueue
from .program import BoundProgram, Matrix, Program

KARATSUBA, COMPLEX = "emulated-3m", 8  # bytes


class Product(NamedTuple):
    """``alpha op(a) op(b) + beta c`` into ``out``, ``op`` of a and of b as two flags each."""

    a: Any
    b: Any
    c: Any
    out: Any
    alpha: complex
    beta: complex
    transposed: tuple[bool, bool]
    conjugated: tuple[bool, bool]
    precision: str

    def arrays(self) -> dict[str, Any]:
        """The arrays that are there, by name."""
        return {name: x for name, x in zip(("a", "b", "c", "out"), self, strict=False)
                if x is not None or name in ("a", "b")}


def gemm(real_gemm: Callable[..., Any], a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None,
         trans_a: Any = False, trans_b: Any = False, out: Any = None, precision: str = "ieee",
         reproducible: bool | None = None, stream: Any = None, devices: Any = None) -> Any:
    """`peakgemm.gemm` of complex64 arrays, 1-D ones too.

    Args:
        real_gemm: `peakgemm.gemm`, which multiplies on the host, and where a library has to see each operation.
        a, b, c, out, stream, devices: as for `peakgemm.gemm`.
        alpha, beta: complex numbers.
        trans_a, trans_b: as for `peakgemm.gemm`; ``"C"`` also conjugates.
        precision, reproducible: as for `peakgemm.matmul`; also ``"emulated-3m"``. What is reproducible is each part of
            a result: one chain of FMAs over the parts of each k in turn.

    Raises:
        As `peakgemm.gemm`; InvalidValue also where the result cannot be reproducible.
    """
    key = None
    if c is None and out is None and stream is None and devices is None and hasattr(a, "requires_grad"):
        key = _key_of_torch(a, b, alpha, trans_a, trans_b, precision, reproducible)
        if (known := calls.get(key)) is not None:
            return _again(a, b, *known)
    alpha, beta = complex_scales(alpha, beta, c)
    checked = check_precision("emulated" if precision == KARATSUBA else precision, reproducible)
    if checked == REPRODUCIBLE and (alpha.imag or beta.imag):
        raise InvalidValue("reproducible=True takes a real alpha and beta; scale b or c before, or pass "
                           "reproducible=False")
    product = Product(a, b, None if beta == 0 else c, out, alpha, beta,
                      (flag(trans_a, "trans_a"), flag(trans_b, "trans_b")), (_is_c(trans_a), _is_c(trans_b)),
                      KARATSUBA if precision == KARATSUBA else checked)
    library, index = _located(product)
    if index != HOST and devices is None:
        return _on_device(library, index, product, None if stream is None else stream_handle(stream), key)
    matrices, shape = _as_matrices(product)
    result = _composed(real_gemm, matrices, stream, devices)
    return result.reshape(shape) if out is None else out


def _key_of_torch(a: Any, b: Any, *asked: Any) -> Any:
    """What a product of two plain tensors is recognised by; None where torch has to see it."""
    import torch

    from ..arrays.torch import PLAIN
    from ..calls import eager

    if (torch.compiler.is_dynamo_compiling() or type(a) not in PLAIN or type(b) not in PLAIN or a.requires_grad
            or b.requires_grad or eager.is_observed()):
        return None
    first, second = a.data_ptr(), b.data_ptr()
    return ("complex", a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device, first & 15,
            second & 15, first == second, a.is_conj(), b.is_conj(), a.is_neg(), b.is_neg(), *asked) if first else None


def _again(a: Any, b: Any, bound: BoundProgram, names: tuple[str, ...], shape: tuple[int, ...]) -> Any:
    """A product of tensors as one that was bound before."""
    from ..calls import eager

    out = a.new_empty(shape)
    memory = a.new_empty(-(-bound.workspace_bytes // COMPLEX))
    addresses = {"a": a.data_ptr(), "b": b.data_ptr(), "out": out.data_ptr()}
    bound.run(memory.data_ptr(), list(dict.fromkeys(addresses[name] for name in names)),
              eager.current_stream(a.get_device()))
    return out


def _located(product: Product) -> tuple[Any, int]:
    """The library of the arrays, and their device; no library and `HOST` where torch's dispatcher or autograd, or JAX's
    tracer, has to see the operations."""
    arrays = product.arrays()
    if hasattr(product.a, "requires_grad"):
        import torch

        from ..arrays.torch import PLAIN
        from ..calls import eager

        seen = bool(torch.compiler.is_dynamo_compiling() or eager.is_observed() or any(
            isinstance(x, torch.Tensor) and (type(x) not in PLAIN or (x.requires_grad and torch.is_grad_enabled()))
            for x in arrays.values()))
        if seen and product.out is not None:
            eager.refuse_gradients(arrays, "a call with out")
    else:
        seen = is_traced(arrays.values())
        if seen and product.out is not None:
            raise InvalidValue("out was given for JAX arrays under jit, grad or vmap, where XLA places results; leave "
                               "it out")
    if not seen:
        library, index = locate(arrays, "complex64")
        if index == HOST:
            hosts = {name: library.host(library.as_real(x)[0], name) for name, x in arrays.items()}
            refuse_overlap({name: host_view(x) for name, x in hosts.items()}, 1.0, hosts)
        return library, index
    for name, x in arrays.items():
        check_dtype(str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch."), name, "complex64")
    return None, HOST


def _as_matrices(product: Product) -> tuple[Product, tuple[int, ...]]:
    """The product of matrices, transposed already, and the shape of the result. A 1-D operand is a row or a column, and
    the dimension that the result lacks for it is put back in ``c`` and ``out``."""
    a, b = (x.swapaxes(-1, -2) if transposed else x
            for x, transposed in zip((product.a, product.b), product.transposed, strict=True))
    c, out = product.c, product.out
    shape = _result_shape(a, b)
    if c is not None and not broadcasts(tuple(c.shape), shape):
        raise InvalidValue(f"c {tuple(c.shape)} does not broadcast to the result {shape}; reshape c")
    if out is not None and tuple(out.shape) != shape:
        raise InvalidValue(f"out has shape {tuple(out.shape)}, the result has {shape}; pass an out of that shape")
    if c is not None and c.ndim == 0:
        c = c[None]
    if a.ndim == 1:
        a, c, out = a[None, :], None if c is None else c[..., None, :], None if out is None else out[..., None, :]
    if b.ndim == 1:
        b, c, out = b[:, None], None if c is None else c[..., None], None if out is None else out[..., None]
    c = c[None] if c is not None and c.ndim == 1 else c
    return product._replace(a=a, b=b, c=c, out=out, transposed=(False, False)), shape


def _on_device(library: DeviceLibrary, index: int, product: Product, stream: int | None, recognised: Any) -> Any:
    matrices, shape = _as_matrices(product)
    reals = {name: library.as_real(x) for name, x in matrices.arrays().items()}
    operands = {name: x for name, (x, _) in reals.items() if name != "out"}
    conjugated = tuple(asked != (name in reals and reals[name][1])
                       for name, asked in zip("abc", (*product.conjugated, False), strict=True))
    alpha, beta = rounded(product.alpha, "alpha"), rounded(product.beta, "beta")
    is_3m = product.precision == KARATSUBA and alpha != 0 and matrices.a.shape[-1] != 0
    key = alpha, beta, conjugated, is_3m
    operation = Operation(
        "complex_gemm", operands, _result_shape(matrices.a, matrices.b), partial(_record, *key), None, key, "c",
        out=reals["out"][0] if "out" in reals else None, parts=2,
        precision="emulated" if product.precision == KARATSUBA else product.precision,
        recognised=recognised and ("steps", recognised))
    with library.scope(index, stream) as handle:
        result = enqueue(library, index, operation, handle)
    if ("steps", recognised) in calls:
        remember(recognised, (*calls["steps", recognised], shape))
    if product.out is not None:
        result = product.out
    elif tuple(result.shape) != shape:
        result = result.reshape(shape)
    if library.name == "torch":
        from ..calls import eager

        if product.out is not None:
            eager.touched(product.out)
        if stream is not None:
            eager.keep_for_stream(product.arrays(), result, stream)
    return result


class Operand(NamedTuple):
    """Complex matrices, with strides in complex numbers; ``conjugated``: what is meant are their conjugates."""

    matrix: Matrix
    conjugated: bool = False

    @property
    def mT(self) -> Operand:
        """The matrices transposed."""
        return Operand(self.matrix.mT, self.conjugated)


def _record(alpha: complex, beta: complex, conjugated: tuple[bool, ...], is_3m: bool, program: Program,
            m: dict[str, Matrix]) -> None:
    a, b, c = (Operand(m[name], flag) if name in m else None for name, flag in zip("abc", conjugated, strict=True))
    assert a is not None and b is not None
    out = m["out"]
    if c is not None:
        x, (batch, down, right) = c.matrix, c.matrix.strides
        strides = batch, down if x.rows == out.rows else 0, right if x.columns == out.columns else 0
        c = Operand(Matrix(x.buffer, View(x.view.pointer, out.shape, strides)), c.conjugated)
    (record_3m if is_3m else record)(program, a, b, c, out, alpha, beta)


def record(program: Program, a: Operand, b: Operand, c: Operand | None, out: Matrix, alpha: complex,
           beta: complex) -> None:
    """``out := alpha a b + beta c``, all batches of one size, by one real product of ``a`` and embedded ``b``.

    Of a column-major ``out`` the transposed product is computed; of a single row too, for then it is not the matrix
    that is embedded, but the vector.

    Raises:
        InvalidValue: a column-major result that is to be reproducible: its real products are added in another order.
    """
    if program.precision == REPRODUCIBLE:
        if interleaved(out) is None:
            raise InvalidValue("reproducible=True with a column-major out of complex numbers; pass a row-major one, or "
                               "reproducible=False")
    elif out.rows == 1 or interleaved(out) is None:
        a, b, c, out = b.mT, a.mT, None if c is None else c.mT, out.mT
    target, addend = interleaved(out), None
    assert target is not None
    if c is not None:
        addend = None if c.conjugated or beta.imag != 0 else interleaved(c.matrix)
        if addend is None:
            copy_operand(program, c, out, beta)
            addend, beta = target, 1.0
    reads = alpha != 0 and a.matrix.columns > 0
    left = interleaved(a.matrix)
    if left is None:
        count, rows, columns = distinct_batch(a.matrix)
        left = allocate(program, a.matrix, rows, 2 * columns)
        numbers = Matrix(left.buffer, View(left.view.pointer, (count, rows, columns), (rows * columns, columns, 1)))
        if reads:
            copy_operand(program, Operand(a.matrix), numbers, 1.0)
    factor, alpha = (alpha, 1.0) if alpha.imag != 0 else (1.0, alpha)
    count, rows, columns = distinct_batch(b.matrix)
    right = allocate(program, b.matrix, 2 * rows, 2 * columns)
    if reads:
        program.kernel(complex_pack(program.arch, Mode.EMBED, count, rows, columns, b.matrix.layout,
                                    Strides(2 * columns, 1, 2 * rows * columns), plane=columns, conjugated=b.conjugated,
                                    second_sign=-1.0 if a.conjugated else 1.0, factor=factor), a=b.matrix, c=right)
    program.product(target, left, right, addend, alpha=alpha.real, beta=beta.real)


def record_3m(program: Program, a: Operand, b: Operand, c: Operand | None, out: Matrix, alpha: complex,
              beta: complex) -> None:
    """`record` by three real products: of real parts, of imaginary parts, and of the sums of both."""
    if c is not None and c.conjugated:
        copy_operand(program, c, out, beta)
        c, beta = Operand(out), 1.0
    planes = []
    for x in (a, b):
        count, rows, columns = distinct_batch(x.matrix)
        planes.append(target := allocate(program, x.matrix, rows, columns, 3))
        program.kernel(complex_pack(program.arch, Mode.PLANES, count, rows, columns, x.matrix.layout,
                                    Strides(columns, 1, rows * columns), plane=count * rows * columns,
                                    conjugated=x.conjugated), a=x.matrix, c=target)
    products = program.allocate(3, *out.shape)
    program.product(products, *planes)
    count, rows, columns = out.shape
    old = None if c is None else c.matrix
    program.kernel(complex_pack(program.arch, Mode.COMBINE, count, rows, columns, Strides(columns, 1, rows * columns),
                                out.layout, plane=count * rows * columns, factor=alpha, beta=beta,
                                old=None if old is None else old.layout), a=products, c0=old, c=out)


def allocate(program: Program, batch: Matrix, rows: int, columns: int, *planes: int) -> Matrix:
    """Real matrices in the workspace, of the ``batch`` that there is of others, which come twice where those do."""
    memory = program.allocate(*planes, distinct_batch(batch)[0], rows, columns)
    strides = (*memory.strides[:-3], memory.strides[-3] if batch.strides[0] else 0, columns, 1)
    return Matrix(memory.buffer, View(memory.view.pointer, (*planes, batch.shape[0], rows, columns), strides))


def copy_operand(program: Program, source: Operand, target: Matrix, factor: complex) -> None:
    """``target := factor source``."""
    count, rows, columns = target.shape
    program.kernel(complex_pack(program.arch, Mode.COPY, count, rows, columns, source.matrix.layout, target.layout,
                                conjugated=source.conjugated, factor=factor), a=source.matrix, c=target)


def interleaved(x: Matrix) -> Matrix | None:
    """The real matrices that complex ones are in memory; None: the parts of a row are not side by side."""
    batch, down, right = x.strides
    if x.columns > 1 and right != 1:
        return None
    return Matrix(x.buffer, View(x.view.pointer, (*x.shape[:-1], 2 * x.columns), (2 * batch, 2 * down, 1)))


def distinct_batch(x: Matrix) -> tuple[int, int, int]:
    """The shape of a batch in which no matrix comes twice."""
    count, rows, columns = x.shape
    return count if x.strides[0] else 1, rows, columns


def _composed(real_gemm: Callable[..., Any], product: Product, stream: Any, devices: Any) -> Any:
    """The product by operations of the array library and one of `peakgemm.gemm`, which are differentiated, traced, or
    done on the host as any others are. There 3M is 4M."""
    a, b, c, out, alpha, beta, _, conjugated, precision = product
    xp = _namespace(a)
    a, b = (xp.conj(x) if is_conjugated else x for x, is_conjugated in zip((a, b), conjugated, strict=True))
    if alpha.imag != 0:
        b, alpha = b * alpha, 1.0
    squares = xp.stack((xp.stack((b.real, b.imag), -1), xp.stack((-b.imag, b.real), -1)), -3)
    shape = _result_shape(a, b)
    if c is not None:
        c = xp.broadcast_to(c if beta.imag == 0 else c * beta, shape)
        c, beta = xp.stack((c.real, c.imag), -1).reshape((*shape[:-1], 2 * shape[-1])), beta if beta.imag == 0 else 1.0
    parts = real_gemm(xp.stack((a.real, a.imag), -1).reshape((*a.shape[:-1], 2 * a.shape[-1])),
                      squares.reshape((*b.shape[:-2], 2 * b.shape[-2], 2 * b.shape[-1])), c, alpha=alpha.real,
                      beta=beta.real, precision="emulated" if precision == KARATSUBA else precision, stream=stream,
                      devices=devices)
    result = library_of(parts, "a").as_complex(parts.reshape((*shape, 2)))
    if out is None:
        return result
    out[...] = result
    return out


def _result_shape(a: Any, b: Any) -> tuple[int, ...]:
    return result_shape(tuple(a.shape), tuple(b.shape))[1]


def _namespace(x: Any) -> Any:
    if hasattr(x, "requires_grad"):
        import torch  # not by sys.modules, which torch.compile would trace

        return torch
    return sys.modules["jax.numpy" if hasattr(x, "aval") else "numpy"]


def complex_scales(alpha: Any, beta: Any, c: Any) -> tuple[complex, complex]:
    """``alpha`` and ``beta``, which None makes 1 where ``c`` is given, else 0.

    Raises:
        InvalidType: no numbers.
        InvalidValue: a ``beta`` without ``c``.
    """
    alpha, beta = _number(alpha, "alpha"), _number(int(c is not None) if beta is None else beta, "beta")
    if beta != 0 and c is None:
        raise InvalidValue(f"beta = {beta} without c; pass c, or beta=0")
    return alpha, beta


def _number(value: Any, name: str) -> complex:
    if not isinstance(value, Complex):
        raise InvalidType(f"{name} is a {type(value).__name__}; pass a number: complex({name})")
    return complex(value)


def rounded(value: complex, name: str) -> complex:
    """To float32, both parts.

    Raises:
        InvalidValue: finite, and beyond what a float32 holds.
    """
    return complex(number(value.real, name), number(value.imag, name))


def _is_c(letter: Any) -> bool:
    return isinstance(letter, str) and letter.upper() == "C"
