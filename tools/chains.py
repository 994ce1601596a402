"""Products as FFMA kernels with two slices make them, in NumPy: how long a sum may be.

    PYTHONPATH=tools peakgemm accuracy --host --of chains:chain --of chains:by_16 --of chains:by_32 --of chains:by_64 \\
        --sizes 256,512 --tests random --json results/sm_90/accuracy-chains.json

Each takes float32 ``a (M, K)`` and ``b (K, N)``. The tiles of 32 k-steps go to two slices in turn; a slice's sum is a
chain of FMAs, or sums over 16, 32 or 64 of its k-steps, added up among themselves (ffma/specialised.cu, CARRIED). An
FMA is a product and a sum in FP64, rounded to FP32: the product is exact, so that only halfway cases may round twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

TILE, SLICES = 32, 2  # k-steps; groups of warps that share a tile of C
Matrix = NDArray[np.float32]


def _multiply(a: Matrix, b: Matrix, carried: int) -> Matrix:
    left, right = a.astype(np.float64), b.astype(np.float64)
    result: Any = None
    for own in range(SLICES):
        mine = [k for k in range(a.shape[1]) if k // TILE % SLICES == own]  # K is a multiple of TILE
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for begin in range(0, len(mine), carried):
            part = np.zeros_like(total)
            for k in mine[begin:begin + carried]:
                part = (np.multiply.outer(left[:, k], right[k]) + part).astype(np.float32)
            total = total + part
        result = total if result is None else result + total
    return np.asarray(result)


def chain(a: Matrix, b: Matrix) -> Matrix:
    """One chain a slice."""
    return _multiply(a, b, a.shape[1])


def by_16(a: Matrix, b: Matrix) -> Matrix:
    """Sums over 16 k-steps."""
    return _multiply(a, b, 16)


def by_32(a: Matrix, b: Matrix) -> Matrix:
    """Sums over 32."""
    return _multiply(a, b, 32)


def by_64(a: Matrix, b: Matrix) -> Matrix:
    """Sums over 64."""
    return _multiply(a, b, 64)
