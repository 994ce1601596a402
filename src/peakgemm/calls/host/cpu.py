"""Products of NumPy matrices on the CPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...runtime.float_flags import ieee_flags
from ..request import REPRODUCIBLE, Request


def by_numpy(r: Request) -> None:
    """``r``, of NumPy matrices, by NumPy's BLAS; chains of fused multiply-adds where the bits are promised.

    Overflow and NaN are results, as on the GPU, not warnings. Subnormal numbers are kept, whatever the flags of the
    thread that calls: all arithmetic of products on the CPU is done here.
    """
    with np.errstate(all="ignore"), ieee_flags():
        _compute(r)


def _compute(r: Request) -> None:
    a, b = transposed_if(r.a, r.trans_a), transposed_if(r.b, r.trans_b)
    c = None if r.c is None else np.broadcast_to(r.c, r.out.shape)
    if r.precision == REPRODUCIBLE:
        from ..replay import multiply as chains

        chains(a, b, c, r.alpha, r.beta, r.out)
        return
    if r.beta == 0 and r.alpha == 1 and r.out.flags.c_contiguous:
        np.matmul(a, b, out=r.out)
        return
    if r.alpha == 0:
        result = np.zeros(r.out.shape, np.float32)
    else:
        result = np.matmul(a, b)
        result *= np.float32(r.alpha)
    if r.beta != 0:
        result += np.float32(r.beta) * c
    np.copyto(r.out, result)


def transposed_if(x: NDArray[np.float32], trans: bool) -> NDArray[np.float32]:
    """The matrices transposed where asked."""
    return np.swapaxes(x, -1, -2) if trans else x
