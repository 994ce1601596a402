"""``peakgemm.distributed``: products of matrices that the ranks of a process group share, with copies beside them.

Process groups, NCCL and DTensor are torch's own. `all_gather_matmul` and `matmul_reduce_scatter` are what sequence and
tensor parallelism spend their time in; DTensors go to `peakgemm.matmul` and `gemm`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from .integrations import missing

if TYPE_CHECKING:
    from .integrations.overlap import Way

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
    return _collective().run(a, b, group, precision, chunks, False)


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
    return _collective().run(a, b, group, precision, chunks, True)


def explain(m: int, n: int, k: int, *, group: Any = None, precision: str = "ieee",
            scatter: bool = False) -> list[Way]:
    """The ways to run ``all_gather(A) B`` of these sizes (``scatter``: ``reduce_scatter(A B)``), with the model's
    microseconds; ``chunks`` 0 is the plain one. Without symmetric memory that is the only one, and has no time.

    Raises:
        MissingComponent: no torch, or there is no process group.
    """
    ranks = _collective().known(group)
    ways: list[Way] = ranks.ways(m // ranks.world, k, n, precision, scatter)
    return ways


def register() -> None:
    """Let DTensor know how `peakgemm.matmul`'s op, ``torch.ops.peakgemm.gemm``, can be sharded. `matmul` and `gemm` do
    it when they meet a DTensor; call it for the op itself.

    Raises:
        MissingComponent: no torch, or one without DTensor.
    """
    _collective()
    from .integrations import torch_sharding

    torch_sharding.register()


@cache
def _collective() -> Any:
    try:
        from .integrations import collective
    except ImportError as error:
        raise missing("peakgemm.distributed", "torch", error) from None
    return collective
