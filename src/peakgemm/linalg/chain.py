"""The product of several matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..calls import hooks


def multi_dot(arrays: Sequence[Any], *, out: Any = None, precision: str = "ieee",
              reproducible: bool | None = None) -> Any:
    """``numpy.linalg.multi_dot``: the product of matrices in the order of the fewest operations.

    Args:
        arrays: two or more, float32 or complex64; the first may be a row, the last a column, of one dimension.
        out: written, where given: of the result's shape.
        precision, reproducible: as for `peakgemm.matmul`, for each product in turn.

    Raises:
        InvalidType, InvalidValue: as `peakgemm.einsum`, and for fewer than two arrays or other dimensions.
    """
    return hooks.multi_dot(arrays, out=out, precision=precision, reproducible=reproducible)
