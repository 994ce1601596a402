"""peakgemm in JAX: products under ``jit``, ``grad``, ``vmap`` and ``shard_map``, and `use`, which reroutes JAX's own.

jax is imported by the first call, so that this module can be named where it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from .calls.request import check_precision
from .errors import InvalidType, InvalidValue
from .integrations import missing

if TYPE_CHECKING:
    from .integrations.jax_use import Rewritten

__all__ = ["dot_general", "gemm", "matmul", "use"]


def matmul(a: Any, b: Any, *, precision: str = "ieee", reproducible: bool | None = None) -> Any:
    """``a b``, by the rules of ``jnp.matmul``, in IEEE float32, inside JAX's transformations and outside.

    Args:
        a: float32, ``(..., M, K)`` or ``(K,)``.
        b: float32, ``(..., K, N)`` or ``(K,)``. Batch dimensions broadcast.
        precision, reproducible: as for `peakgemm.matmul`. On a CPU ``"emulated"`` is float32 by NumPy, and a scheme
            by name is refused.

    Returns:
        A JAX array, or a tracer.

    Raises:
        InvalidType: not float32, or no array.
        InvalidValue: shapes that do not match, or a precision that there is not.
        MissingComponent: no jax, or a version of XLA's foreign function interface that is not known.
    """
    return _primitive().multiply(a, b, precision=check_precision(precision, reproducible))


def gemm(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans_a: bool = False,
         trans_b: bool = False, precision: str = "ieee", reproducible: bool | None = None) -> Any:
    """``alpha op(a) op(b) + beta c``, as `peakgemm.gemm`: one kernel, sum and scales included.

    ``alpha`` and ``beta`` are numbers, not traced. Args, returns and errors are else those of `matmul`.
    """
    for name, x in (("a", a), ("b", b)):
        if len(getattr(x, "shape", (0, 0))) < 2:
            raise InvalidType(f"{name} has shape {tuple(x.shape)}; gemm wants matrices: use matmul")
    return _primitive().multiply(a, b, c, alpha, beta, trans_a, trans_b, check_precision(precision, reproducible))


def dot_general(a: Any, b: Any, dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]],
                                                         tuple[Sequence[int], Sequence[int]]], *,
                precision: str = "ieee", reproducible: bool | None = None) -> Any:
    """``jax.lax.dot_general`` of float32 operands.

    Args:
        a, b: float32.
        dimension_numbers: ``((contracting of a, of b), (batch of a, of b))``.
        precision, reproducible: as for `matmul`.

    Returns:
        Batch dimensions first, then the others of ``a``, then those of ``b``.

    Raises:
        As `matmul`.
    """
    precision = check_precision(precision, reproducible)
    primitive = _primitive()
    a, b = primitive.array(a, "a"), primitive.array(b, "b")
    (sum_a, sum_b), (batch_a, batch_b) = (tuple(tuple(x) for x in pair) for pair in dimension_numbers)
    for name, pairs in (("contracting", (sum_a, sum_b)), ("batch", (batch_a, batch_b))):
        sizes = [tuple(x.shape[i] for i in dims) for x, dims in zip((a, b), pairs, strict=True)]
        if sizes[0] != sizes[1]:
            raise InvalidValue(f"the {name} dimensions of a {a.shape} and b {b.shape} have sizes {sizes[0]} and "
                               f"{sizes[1]}; they must be equal")
    free_a, free_b = (tuple(i for i in range(x.ndim) if i not in (*some, *batch)) for x, some, batch in
                      ((a, sum_a, batch_a), (b, sum_b, batch_b)))
    left, trans_a = _matrices(a, batch_a, free_a, sum_a)
    right, trans_b = _matrices(b, batch_b, sum_b, free_b)
    out = primitive.product(left, right, trans_a=trans_a, trans_b=trans_b, precision=precision)
    return out.reshape([*(a.shape[i] for i in (*batch_a, *free_a)), *(b.shape[i] for i in free_b)])


def use(function: Callable[..., Any], *, precision: str = "ieee", reproducible: bool | None = None) -> Rewritten:
    """``function`` with its float32 products by peakgemm: every ``dot_general`` of its jaxpr that is float32.

    Args:
        function: what ``jax.make_jaxpr`` can trace. Those that call ``jit``, ``scan``, ``while_loop``, ``cond``,
            ``checkpoint`` and functions with a custom derivative are rewritten within.
        precision, reproducible: as for `matmul`.

    Returns:
        A callable of the same arguments. Each call traces ``function`` anew: put ``jax.jit`` around it. Its ``report``
        says what was changed and what was left.

    Raises:
        As `matmul`.
    """
    _primitive()
    from .integrations import jax_use

    precision = check_precision(precision, reproducible)
    return jax_use.Rewritten(function, precision, partial(dot_general, precision=precision, reproducible=False))


def _matrices(x: Any, batch: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[Any, bool]:
    """``x`` as ``(*batch, rows, columns)``, or transposed where it lies so, and whether it is."""
    transposed = tuple(range(x.ndim)) == (*batch, *columns, *rows)
    first, second = (columns, rows) if transposed else (rows, columns)
    sizes = (*(x.shape[i] for i in batch), *(prod(x.shape[i] for i in group) for group in (first, second)))
    return x.transpose(*batch, *first, *second).reshape(sizes), transposed


def _primitive() -> Any:
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise missing("peakgemm.jax", "jax", error) from None
    from .integrations import jax_primitive

    return jax_primitive
