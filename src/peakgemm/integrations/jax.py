"""peakgemm in JAX: products under ``jit``, ``grad``, ``vmap`` and ``shard_map``, and `use`, which reroutes JAX's own.

jax is imported by the first call, so that this module can be named where it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidType
from . import missing

if TYPE_CHECKING:
    from .jax_use import Rewritten

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
    return _products().multiply(a, b, precision=precision, reproducible=reproducible)


def gemm(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = None, trans_a: bool = False,
         trans_b: bool = False, precision: str = "ieee", reproducible: bool | None = None) -> Any:
    """``alpha op(a) op(b) + beta c``, as `peakgemm.gemm`: one kernel, sum and scales included.

    ``alpha`` and ``beta`` are numbers, not traced. Args, returns and errors are else those of `matmul`.
    """
    for name, x in (("a", a), ("b", b)):
        if len(getattr(x, "shape", (0, 0))) < 2:
            raise InvalidType(f"{name} has shape {tuple(x.shape)}; gemm wants matrices: use matmul")
    return _products().multiply(a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, precision=precision,
                                reproducible=reproducible)


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
    return _products().dot_general(a, b, dimension_numbers, precision=precision, reproducible=reproducible)


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
    _products()
    from . import jax_use

    return jax_use.Rewritten(function, precision, reproducible)


def traced(a: Any, b: Any, c: Any, alpha: float, beta: float, trans_a: bool, trans_b: bool, precision: str) -> Any:
    """`peakgemm.gemm` and `peakgemm.matmul` of tracers; ``precision`` has been checked."""
    return _products().multiply(a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b, precision=precision,
                                reproducible=False)


def _products() -> Any:
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise missing("peakgemm.jax", "jax", error) from None
    from . import jax_products

    return jax_products
