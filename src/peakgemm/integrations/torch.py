"""peakgemm in torch: gradients, the op for ``torch.compile``, and `use`, which reroutes torch's own products.

torch is imported by the first call, so that this module can be named where torch is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..calls.request import check_precision, scales
from ..errors import InvalidType, MissingComponent, PeakgemmError
from . import missing

if TYPE_CHECKING:
    from .torch_use import Use

_NO_RULE = (AttributeError, AssertionError, NotImplementedError, RuntimeError, TypeError)

__all__ = ["differentiable", "dispatched", "gemm_with_grad", "traced_gemm", "use"]


def dispatched(a: Any, b: Any, c: Any, alpha: Any, beta: Any, trans_a: bool, trans_b: bool, out: Any,
               precision: str) -> Any:
    """`peakgemm.gemm` by torch's dispatcher: under ``torch.compile``, in a dispatch mode, of tensor subclasses.

    Arguments are those of `peakgemm.gemm`. The dispatcher sees one op, ``peakgemm::gemm``, or ``peakgemm::gemm_out``
    with ``out``.

    Raises:
        InvalidType, InvalidValue: as `peakgemm.gemm`, or the dispatcher has no rule for a subclass.
    """
    torch_ops = _ops()
    import torch

    compiling = torch.compiler.is_dynamo_compiling()
    if alpha is None or not compiling:
        alpha, beta = scales(alpha, beta, c)
    if compiling:
        return torch_ops.by_dispatcher(a, b, c, alpha, beta, trans_a, trans_b, out, precision)
    torch_ops.refuse_what_tracers_lose(out)
    torch_ops.count_in_modes()
    if any(type(x).__module__.startswith("torch.distributed.tensor") for x in (a, b, c, out)):
        from . import torch_sharding

        torch_sharding.register()
    try:
        return torch_ops.by_dispatcher(a, b, c, alpha, beta, trans_a, trans_b, out, precision)
    except PeakgemmError:
        raise
    except _NO_RULE as error:  # of their subclasses, of out-of-memory say, each says what it has to say
        arrays = {"a": a, "b": b, "c": c, "out": out}
        kinds = ", ".join(f"{name} is a {type(x).__name__}" for name, x in arrays.items() if torch_ops.is_subclass(x))
        if not kinds or type(error) not in _NO_RULE:
            raise
        raise InvalidType(f"{kinds}: torch's dispatcher cannot run peakgemm's product of it "
                          f"({str(error).strip().partition(chr(10))[0]}); pass plain tensors") from error


def differentiable(a: Any, b: Any, c: Any, alpha: Any, beta: Any, trans_a: bool, trans_b: bool, out: Any,
                   precision: str) -> Any:
    """`peakgemm.gemm` of tensors that require a gradient.

    Arguments are those of `peakgemm.gemm`.

    Raises:
        InvalidType, InvalidValue: as `peakgemm.gemm`; also ``out`` where a derivative would be lost in it.
    """
    return _ops().differentiable(a, b, c, alpha, beta, trans_a, trans_b, out, precision)


def gemm_with_grad(a: Any, b: Any, c: Any, alpha: float, beta: float, precision: str = "ieee") -> Any:
    """``alpha a b + beta c`` with a gradient, past torch's dispatcher.

    Args:
        a, b: float32 tensors ``(..., M, K)`` and ``(..., K, N)`` of any strides; the batch dimensions broadcast.
        c: float32, broadcastable to the result, or None. Not read where ``beta = 0``.
        alpha, beta: numbers; no gradient goes to them.
        precision: of this product and those of its backward pass; see `peakgemm.matmul`.

    Returns:
        A new contiguous tensor ``(..., M, N)``. The backward pass multiplies with transposed views
        of ``a`` and ``b`` (no copies) and can itself be differentiated.

    Raises:
        InvalidType: an operand that is not float32.
        InvalidValue: shapes that do not match, or ``beta != 0`` without ``c``.
    """
    return _ops().gemm_with_grad(a, b, c, alpha, beta, precision)


def traced_gemm(a: Any, b: Any, c: Any, alpha: float, beta: float, precision: str = "ieee") -> Any:
    """The same product through the registered op ``torch.ops.peakgemm.gemm``, which ``torch.compile`` can trace.

    Arguments, result and errors are those of `gemm_with_grad`.
    """
    return _ops().traced_gemm(a, b, c, alpha, beta, precision)


def _ops() -> Any:
    try:
        from . import torch_ops
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise missing("peakgemm.torch", "torch", error) from None
    return torch_ops


def use(precision: str = "ieee", reproducible: bool | None = None) -> Use:
    """Let peakgemm run torch's own FP32 products on CUDA: ``with peakgemm.torch.use(): model(x)``.

    Reroutes ``mm``, ``addmm``, ``bmm`` and ``baddbmm``, with their ``out=`` and in-place forms, and so
    ``matmul``, ``linear`` and ``einsum``. Everything else goes to torch's own kernels as before: other dtypes,
    the CPU, tensor subclasses, shapes that torch itself refuses. It is in force for the whole process, other
    threads and backward passes included, until the outermost ``with`` ends; it nests, and serves as a decorator.
    Enter and leave it while no other thread multiplies.

    Args:
        precision: ``"ieee"``, whatever torch's TF32 switches say, or another one of `peakgemm.matmul`.
        reproducible: as for `peakgemm.matmul`.

    Returns:
        A context manager; ``as`` gives counts of what ran where (`Rerouted.calls`, `Rerouted.fallbacks`).

    Raises:
        InvalidValue: a precision that there is not.
        MissingComponent: torch is missing or older than 2.9.
    """
    try:
        from .torch_use import Use
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingComponent("peakgemm.torch.use() needs torch 2.9 or newer; run: pip install torch") from None
    return Use(check_precision(precision, reproducible))
