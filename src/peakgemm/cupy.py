"""peakgemm in CuPy: `use`, which reroutes CuPy's own products and linear algebra.

cupy is imported by the first call, so that this module can be named where it is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calls.request import check_precision
from .integrations import missing
from .integrations.use import check_linalg

if TYPE_CHECKING:
    from .integrations.use import Use

__all__ = ["use"]


def use(precision: str = "ieee", reproducible: bool | None = None, *, linalg: bool = False) -> Use:
    """Let peakgemm run CuPy's own FP32 and complex64 products: ``with peakgemm.cupy.use(): a @ b``.

    Reroutes ``cupy.matmul``, ``dot``, ``inner``, ``tensordot``, ``einsum``, ``@`` and ``ndarray.dot``, on CuPy's
    current stream; else as `peakgemm.torch.use`. A name that a program has imported before (``from cupy import dot``)
    stays CuPy's, and so do other dtypes, vectors and further arguments.

    Args:
        precision, reproducible: as for `peakgemm.matmul`.
        linalg: whether `peakgemm.linalg` runs ``cupy.linalg.cholesky``, ``solve``, ``inv``, ``det``, ``slogdet`` and
            ``qr`` of FP32 arrays, at the sizes where it is faster.

    Raises:
        InvalidValue: a precision that there is not; or ``linalg`` with ``reproducible``.
        MissingComponent: cupy is missing.
    """
    return make_use(check_precision(precision, reproducible), linalg)


def make_use(precision: str, linalg: bool, recorder: Any = None) -> Use:
    """`use`, of a checked precision; ``recorder``: what `peakgemm.use` counts with."""
    check_linalg(precision, linalg)
    try:
        from .integrations import cupy_use
    except ImportError as error:
        raise missing("peakgemm.cupy", "cupy", error) from None
    from .api import matmul
    from .contraction import dot, einsum, tensordot

    products: dict[str, Any] = {"matmul": matmul, "dot": dot, "tensordot": tensordot, "einsum": einsum,
                                "inner": lambda a, b, **options: tensordot(a, b, (-1, -1), **options)}
    return cupy_use.make_use(products, precision, linalg, recorder)
