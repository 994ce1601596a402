"""``peakgemm.distributed``: products of matrices that the ranks of a process group share, with copies beside them.

Process groups, NCCL and DTensor are torch's own. `all_gather_matmul` and `matmul_reduce_scatter` are what sequence and
tensor parallelism spend their time in; DTensors go to `peakgemm.matmul` and `gemm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidType, InvalidValue
from . import missing

if TYPE_CHECKING:
    from ..selection.overlap_model import Way

__all__ = ["all_gather_matmul", "explain", "matmul_reduce_scatter", "register"]


def all_gather_matmul(a: Any, b: Any, *, group: Any = None, precision: str = "ieee", chunks: int | None = None) -> Any:
    """``all_gather(a) b``: ``a`` is this rank's rows of A, ``b`` this rank's B.

    Where the cost model says that it pays, the product of some of this rank's own rows runs first, while the copy
    engines bring the others', then that of all the rest; else one kernel of ours, or NCCL, gathers and one product
    follows. A collective call: all ranks make it, with ``a`` of one shape. It has a gradient, whose backward pass
    gathers A once more, rather than keep it.

    Args:
        a: float32 tensor ``(M / ranks, K)``; row-major, or a copy is made.
        b: float32 ``(K, N)`` of any strides.
        group: a process group of ranks with a GPU each (of CPUs with gloo); None: the default one.
        precision: as for `peakgemm.matmul`.
        chunks: in how many pieces each rank's rows come; 0: gather first. None: by the cost model.

    Returns:
        ``(M, N)``, rows in the order of the ranks.

    Raises:
        InvalidType, InvalidValue: as `peakgemm.matmul`; or ``chunks`` that do not divide the rows.
        MissingComponent: there is no process group.
        LaunchFailed: a rank has not answered within the group's time-out, as NCCL's calls have it.
    """
    if chunks is None and _quickly is not None:
        result = _quickly(a, b, group, precision, False)
        if result is not None:
            return result
    _check(a, b, chunks)
    return _collective().all_gather_matmul(a, b, group, precision, chunks)


def matmul_reduce_scatter(a: Any, b: Any, *, group: Any = None, precision: str = "ieee",
                          chunks: int | None = None) -> Any:
    """This rank's rows of the sum over the ranks of ``a b``.

    The other ranks' rows are computed first and sent while this rank's own are; they are added as ``c`` of the product.
    The order of the sum is that of the ranks' distances: the same in each call.

    Args:
        a: float32 tensor ``(M, K / ranks)``; M is a multiple of the ranks.
        b: float32 ``(K / ranks, N)``.
        group, precision, chunks: as for `all_gather_matmul`.

    Returns:
        ``(M / ranks, N)``.

    Raises:
        As `all_gather_matmul`; also InvalidValue where the ranks do not divide M.
    """
    if chunks is None and _quickly is not None:
        result = _quickly(a, b, group, precision, True)
        if result is not None:
            return result
    _check(a, b, chunks)
    return _collective().matmul_reduce_scatter(a, b, group, precision, chunks)


def explain(m: int, n: int, k: int, *, group: Any = None, precision: str = "ieee",
            scatter: bool = False) -> list[Way]:
    """The ways to run ``all_gather(A) B`` of these sizes (``scatter``: ``reduce_scatter(A B)``), with the model's
    microseconds; ``chunks`` 0 is the plain one. Without symmetric memory that is the only one, and has no time.

    Raises:
        MissingComponent: no torch, or there is no process group.
    """
    found: list[Way] = _collective().ways(m, n, k, group, precision, scatter)
    return found


def register() -> None:
    """Let DTensor know how `peakgemm.matmul`'s op, ``torch.ops.peakgemm.gemm``, can be sharded. `matmul` and `gemm` do
    it when they meet a DTensor; call it for the op itself.

    Raises:
        MissingComponent: no torch, or one without DTensor.
    """
    _torch()
    from . import torch_sharding

    torch_sharding.register()


_quickly: Any = None  # of `collective`, which needs torch, once it is loaded


def _collective() -> Any:
    global _quickly
    _torch()
    from . import collective

    _quickly = collective.quickly
    return collective


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise missing("peakgemm.distributed", "torch", error) from None
    return torch


def _check(a: Any, b: Any, chunks: int | None) -> None:
    torch = _torch()
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor):
            raise InvalidType(f"{name} is a {type(x).__name__}; peakgemm.distributed takes torch tensors")
        if x.dim() != 2:
            raise InvalidValue(f"{name} has shape {tuple(x.shape)}; a matrix (2-D) is wanted: use flatten(0, -2)")
    if a.shape[1] != b.shape[0]:
        raise InvalidValue(f"a {tuple(a.shape)} and b {tuple(b.shape)} do not match: the columns of a ({a.shape[1]}) "
                           f"must be the rows of b ({b.shape[0]})")
    if chunks is not None and (not isinstance(chunks, int) or chunks < 0):
        raise InvalidValue(f"chunks = {chunks!r} must be 0 or more; leave it out for the cost model's")


