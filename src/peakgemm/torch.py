"""peakgemm in torch: `use`, which reroutes torch's own products and linear algebra.

torch is imported by the first call, so that this module can be named where torch is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .calls.request import check_precision
from .errors import MissingComponent

if TYPE_CHECKING:
    from .integrations.torch_use import Use

__all__ = ["use"]


def use(precision: str = "ieee", reproducible: bool | None = None, *, linalg: bool = False, certify: float = 0.0,
        on_fault: str = "warn") -> Use:
    """Let peakgemm run torch's own FP32 and complex64 products on CUDA: ``with peakgemm.torch.use(): model(x)``.

    Reroutes ``mm``, ``addmm``, ``bmm`` and ``baddbmm``, with their ``out=`` and in-place forms, and so
    ``matmul``, ``linear`` and ``einsum``. Everything else goes to torch's own kernels as before: other dtypes,
    the CPU, tensor subclasses, shapes that torch itself refuses. It is in force for the whole process, other
    threads and backward passes included, until the outermost ``with`` ends; it nests, and serves as a decorator.
    Enter and leave it while no other thread multiplies.

    Args:
        precision: ``"ieee"``, whatever torch's TF32 switches say, or another one of `peakgemm.matmul` for float32.
        reproducible: as for `peakgemm.matmul`.
        linalg: whether `peakgemm.linalg` runs torch's Cholesky factorizations (``torch.linalg.cholesky``,
            ``cholesky_ex``), ``cholesky_solve``, ``cholesky_inverse``, triangular solves, and ``mm`` of a matrix by its
            own transpose, at the sizes where it is faster. torch's derivatives of these hold.
        certify: the share of the products by peakgemm to check, drawn at random: 0.01 is one in a hundred. Each one
            that is checked is waited for; none is in complex64, or while a CUDA graph is captured.
        on_fault: what to do about a product that is wrong: ``"warn"``, ``"log"`` (an error of the logger
            ``"peakgemm"``), or ``"raise"`` `WrongProduct`. The message names the line, and the torch module, that asked
            for it.

    Returns:
        A context manager; ``as`` gives counts of what ran where (`Rerouted.calls`, `Rerouted.fallbacks`), how many
        products were checked (`Rerouted.checked`) and what is wrong (`Rerouted.faults`).

    Raises:
        InvalidValue: a precision that there is not; ``linalg`` with ``reproducible``; ``certify`` that is no share, or
            another ``on_fault``.
        MissingComponent: torch is missing or older than 2.9.
    """
    try:
        from .integrations.torch_use import Use
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingComponent("peakgemm.torch.use() needs torch 2.9 or newer; run: pip install torch") from None
    return Use(check_precision(precision, reproducible), linalg=linalg, certify=certify, on_fault=on_fault)
