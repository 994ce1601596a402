"""The primitive behind every product in JAX: its shapes, derivatives, batching, and what it is compiled to.

``gemm_p`` takes ``a (*B, M, K)`` and ``b (*B, K, N)``, or transposed as ``trans_a`` and ``trans_b`` say, and maybe a
``c (*B, M, N)`` to add. All have as many batch dimensions; a size of 1 broadcasts, and in ``c`` so do M and N. It is
linear in ``a``, in ``b``, and in ``c``: derivatives are products of the same kind, in both modes and of any order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import PartitionSpec

from ..arrays.base import FLOAT, check_dtype
from ..calls import canonical
from ..calls.launch import canonical_request
from ..calls.request import REPRODUCIBLE, Request, flag, scales
from ..errors import InvalidType, InvalidValue
from ..problem import Batch
from .jax_handler import TARGET, packed_views, prepare, register, to_text
from .jax_partition import is_partitioned, partitioned

gemm_p = Primitive("peakgemm_gemm")


def multiply(a: Any, b: Any, c: Any = None, alpha: Any = 1.0, beta: Any = None, trans_a: Any = False,
             trans_b: Any = False, precision: str = "ieee") -> Any:
    """``alpha op(a) op(b) + beta c`` as `peakgemm.gemm` has it, and `peakgemm.matmul` for 1-D operands; ``precision``
    has been checked."""
    trans_a, trans_b = flag(trans_a, "trans_a"), flag(trans_b, "trans_b")
    alpha, beta = scales(alpha, beta, c)
    a, b = array(a, "a"), array(b, "b")
    shape = result_shape(a.shape, b.shape, trans_a, trans_b)
    dropped = tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1)
    if a.ndim == 1:
        a = a[None, :]
    if b.ndim == 1:
        b, trans_b = b[None, :], True  # a row that is read as a column
    if c is not None:
        c = array(c, "c")
        if not canonical.broadcasts(c.shape, shape):
            raise InvalidValue(f"c has shape {c.shape}, the result {shape}; pass a c that broadcasts to it")
        for axis in dropped if c.ndim else ():
            c = jnp.expand_dims(c, axis)
    out = product(a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, precision=precision)
    return out.reshape(shape)


def array(x: Any, name: str) -> Any:
    """``x`` as a JAX value of float32.

    Raises:
        InvalidType: another dtype, or no array.
        InvalidValue: a symbolic size.
    """
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise InvalidType(f"{name} is a {type(x).__name__}; pass a JAX array")
    check_dtype(str(x.dtype), name)
    refuse_symbolic(name, x.shape)
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def product(a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 0.0, trans_a: bool = False,
            trans_b: bool = False, precision: str = "ieee") -> Any:
    """The primitive, for matrices and batches of them that broadcast; it is not asked for what has no element."""
    shape = result_shape(a.shape, b.shape, trans_a, trans_b)
    if beta == 0:
        c, beta = None, 0.0
    inner = a.shape[-2] if trans_a else a.shape[-1]
    if 0 in shape or inner == 0 or alpha == 0:
        zeros = varying_alike(jnp.zeros(shape, jnp.float32), a, b)[0]
        return zeros if c is None else zeros + beta * c
    if a.ndim > 2 and prod(b.shape[:-2]) == 1 and not trans_a and c is None:  # one product, also of b's gradient
        a, b = a.reshape(-1, inner), b.reshape(b.shape[-2:])
    rank = max(a.ndim, b.ndim)
    operands = {name: x.reshape((1,) * (rank - x.ndim) + x.shape) for name, x in (("a", a), ("b", b), ("c", c))
                if x is not None}
    if rank - 2 > Batch.MAX_LEVELS:  # what no kernel can step through is broadcast
        call = Request(**{name: x.shape for name, x in operands.items()}, alpha=alpha, beta=beta, trans_a=trans_a,
                       trans_b=trans_b)
        copies = canonical_request(call, packed_views(call)).copies
        operands = {name: jnp.broadcast_to(x, copies.get(name, x.shape)) for name, x in operands.items()}
    out = gemm_p.bind(*varying_alike(*operands.values()), alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b,
                      precision=precision)
    return out.reshape(shape)


def refuse_symbolic(name: str, shape: tuple[Any, ...]) -> None:
    """Refuse sizes that are not known, those of ``jax.export``'s symbolic shapes.

    Raises:
        InvalidValue: there is one.
    """
    if not all(isinstance(size, int) for size in shape):
        sizes = ", ".join(map(str, shape))
        raise InvalidValue(f"{name} has symbolic sizes ({sizes}); a kernel is chosen for sizes that are known: export "
                           "with numbers, once for each size")


def result_shape(a: tuple[int, ...], b: tuple[int, ...], trans_a: bool, trans_b: bool) -> tuple[int, ...]:
    """`canonical.result_shape` of matrices, or vectors, that are transposed first where that is said."""
    first, second = ((*x[:-2], x[-1], x[-2]) if transposed else x for x, transposed in ((a, trans_a), (b, trans_b)))
    return canonical.result_shape(first, second)[1]


def varying_alike(*operands: Any) -> tuple[Any, ...]:
    """Within ``shard_map``: operands that vary over the same axes of the mesh, as one that does beside others."""
    axes = [_varies_over(jax.typeof(x)) for x in operands]
    every = frozenset().union(*axes)
    vary = partial(jax.lax.pcast, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary  # jax 0.6
    return tuple(vary(x, tuple(sorted(every - own))) if every - own else x
                 for x, own in zip(operands, axes, strict=True))


def _varies_over(aval: Any) -> frozenset[str]:
    """The axes of a mesh that a value in ``shard_map`` varies over: ``vma`` until jax 0.9, ``mat.varying`` later."""
    kind = getattr(aval, "mat", None)
    return frozenset(getattr(aval, "vma", ()) if kind is None else getattr(kind, "varying", ()))


# As JAX runs its own primitives outside of jit: also under jax_disable_jit, and jax_debug_nans looks at the result.
gemm_p.def_impl(partial(xla.apply_primitive, gemm_p))


def _shape(a: Any, b: Any, c: Any = None, *, trans_a: bool, trans_b: bool, **_: Any) -> Any:
    return result_aval(a, result_shape(a.shape, b.shape, trans_a, trans_b), "float32")


def result_aval(a: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """What a primitive of an operand ``a`` returns, which varies over a mesh as that does."""
    if _varies_over(a):
        nowhere = PartitionSpec(*[None] * len(shape))
        return a.update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=a.sharding.update(spec=nowhere))
    return jax.core.ShapedArray(shape, np.dtype(dtype))


gemm_p.def_abstract_eval(_shape)


def _derivative(primals: Any, tangents: Any, *, alpha: float, beta: float, **params: Any) -> Any:
    a, b, *_ = primals
    out = gemm_p.bind(*primals, alpha=alpha, beta=beta, **params)
    rules: tuple[Callable[[Any], Any], ...] = (
        lambda of_a: product(of_a, b, alpha=alpha, **params), lambda of_b: product(a, of_b, alpha=alpha, **params),
        lambda of_c: jnp.broadcast_to(jnp.float32(beta) * of_c, out.shape))
    terms = [rule(x) for rule, x in zip(rules, tangents, strict=False) if type(x) is not ad.Zero]
    return out, sum(terms[1:], terms[0]) if terms else ad.Zero(jax.typeof(out).to_tangent_aval())


ad.primitive_jvps[gemm_p] = _derivative


def _transposed(cotangent: Any, a: Any, b: Any, *c: Any, alpha: float, beta: float, trans_a: bool, trans_b: bool,
                precision: str) -> Any:
    """Cotangents of the operands that are linear: ``a`` or ``b``, and ``c``."""
    times = partial(product, alpha=alpha, precision=precision)
    of_a = of_b = of_c = None
    if type(cotangent) is ad.Zero:
        return (None,) * (2 + len(c))
    if ad.is_undefined_primal(a):
        if ad.is_undefined_primal(b):
            raise InvalidValue("a product is linear in a or in b, not in both together; transpose it by one of them")
        of_a = _summed(times(b, cotangent, trans_a=trans_b, trans_b=True) if trans_a else
                       times(cotangent, b, trans_b=not trans_b), a.aval.shape)
    elif ad.is_undefined_primal(b):
        of_b = _summed(times(cotangent, a, trans_a=True, trans_b=trans_a) if trans_b else
                       times(a, cotangent, trans_a=not trans_a), b.aval.shape)
    if c and ad.is_undefined_primal(c[0]):
        of_c = _summed(jnp.float32(beta) * cotangent, c[0].aval.shape)
    return (of_a, of_b, of_c)[:2 + len(c)]


ad.primitive_transposes[gemm_p] = _transposed


def _summed(x: Any, shape: tuple[int, ...]) -> Any:
    """The sum over the dimensions that were broadcast."""
    over = tuple(i for i, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return x.sum(over, keepdims=True) if over else x


def _batched(operands: Any, dims: Any, **params: Any) -> Any:
    """One product for all: a new batch dimension in front, or rows of one tall product where only ``a`` has it."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    refuse_symbolic("the mapped axis", (size,))
    a, b, *c = (x[None] if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True))
    if dims[0] is None and dims[1] is None:  # c alone is mapped: the batch is that of a and b
        a = jnp.broadcast_to(a, (size, *a.shape[1:]))
    return product(a, b, *c, **params), 0


batching.primitive_batchers[gemm_p] = _batched


def _lowered(ctx: mlir.LoweringRuleContext, *operands: Any, cuda: bool, **params: Any) -> Any:
    """The custom call of one device's product, or what XLA asks how to spread it over several."""
    if is_partitioned(ctx):
        return mlir.lower_fun(partitioned(gemm_p, **params), multiple_results=False)(ctx, *operands)
    if not cuda and params["precision"] not in ("ieee", "emulated", REPRODUCIBLE):
        raise InvalidValue(f"precision = {params['precision']!r} needs a GPU, and this is compiled for the CPU; use "
                           "'emulated' or 'ieee', which NumPy runs in float32")
    (out,) = ctx.avals_out
    shapes = dict(zip("abc", (aval.shape for aval in ctx.avals_in), strict=False))
    text = to_text(Request(**shapes, out=out.shape, **params))
    scratch = jax.core.ShapedArray((max(_workspace_floats(text), 1) if cuda else 1,), out.dtype)
    lower = jax.ffi.ffi_lowering(TARGET)
    return lower(ctx.replace(avals_out=[out, scratch]), *operands, call=text)[:1]


def _workspace_floats(text: str) -> int:
    """What the product wants on those of the process's GPUs that want most; there it is compiled and loaded now, since
    a handler may be called in a capture."""
    return max((-(-prepare(text.encode(), index).workspace_bytes // FLOAT) for index in local_gpus()), default=0)


def local_gpus() -> list[int]:
    """The process's; none where a program is compiled for a GPU elsewhere: handlers do without a workspace."""
    try:
        return [int(d.local_hardware_id) for d in jax.local_devices(backend="cuda")]
    except RuntimeError:
        return []


register()
with suppress(ImportError, AttributeError):
    # How jit learns that a lowering asks which devices there are (jax_partition.py); JAX has no public name for it.
    # Without it XLA gathers the operands of spread products.
    from jax._src.dispatch import prim_requires_devices_during_lowering

    prim_requires_devices_during_lowering.add(gemm_p)
for _name, _cuda in (("cuda", True), ("cpu", False)):
    mlir.register_lowering(gemm_p, partial(_lowered, cuda=_cuda), platform=_name)
