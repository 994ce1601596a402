"""FP32 linear algebra on top of our products: symmetric and triangular products, triangular solves, Cholesky,
LU, QR and least squares.

Nothing of cuBLAS or cuSOLVER is underneath. Every function takes torch, CuPy, JAX or NumPy arrays of float32, `syrk`,
`herk` and `gram` also of complex64, batches of matrices ``(..., rows, columns)`` with any strides, and the precisions
of `peakgemm.matmul` that are not reproducible.
"""

from .chain import multi_dot
from .general import (
    SingularMatrix,
    Slogdet,
    det,
    inv,
    inv_ex,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    slogdet,
    solve,
    solve_ex,
)
from .orthogonal import QR, LeastSquares, RankDeficient, RankedQR, lstsq, lstsq_ex, qr, qr_ex
from .positive_definite import NotPositiveDefinite, cholesky, cholesky_ex, cholesky_inverse, cholesky_solve
from .symmetric import gram, herk, symm, syr2k, syrk, trmm
from .triangular import solve_triangular, trsm

__all__ = ["QR", "LeastSquares", "NotPositiveDefinite", "RankDeficient", "RankedQR", "SingularMatrix", "Slogdet",
           "cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "det", "gram", "herk", "inv", "inv_ex",
           "lstsq", "lstsq_ex", "lu_factor", "lu_factor_ex", "lu_solve", "multi_dot", "qr", "qr_ex", "slogdet",
           "solve", "solve_ex", "solve_triangular", "symm", "syr2k", "syrk", "trmm", "trsm"]
