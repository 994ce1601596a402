"""Run a rung of the ladder: the problem that three matrices make, bound like that of any other kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import locate
from ..arrays.base import FLOAT, HOST, View, stream_handle
from ..errors import InvalidValue
from ..kernels import validity
from ..kernels.registry import Kernel, rung
from ..problem import Config, Problem
from ..runtime import device
from ..runtime.device import Gpu
from ..runtime.memory import DeviceMemory, copy_in, copy_out, synchronize
from .request import number as scale

_LEGACY = 0  # the legacy default stream


def run_rung(number: int, a: Any, b: Any, c: Any, *, alpha: float = 1.0, beta: float = 0.0,
             config: Config | None = None, stream: Any = None) -> Any:
    """``C = alpha A B + beta C`` by one rung of the ladder, in place.

    Args:
        number: the rung: see `peakgemm ladder`.
        a, b, c: ``A (M, K)``, ``B (K, N)``, ``C (M, N)``: float32, row-major with any leading
            dimension; torch CUDA tensors, CuPy arrays, or NumPy arrays (copied to the device and
            back). C is written in place. For column-major data pass ``b.T, a.T, c.T``: C^T = B^T A^T.
        alpha, beta: with ``beta = 0`` C is not read; with ``alpha = 0`` A and B are not.
        config: another tile than the rung's own.
        stream: as `peakgemm.gemm` takes it; by default the arrays' library's current stream.

    Returns:
        ``c``.

    Raises:
        InvalidValue: unknown rung, shapes or leading dimensions that do not fit, an invalid tile, a scale that float32
            cannot hold.
        InvalidType: not float32, arrays of several libraries, or a scale that is no number.
        MissingComponent: no GPU or driver.
    """
    kernel = rung(number)
    alpha, beta = scale(alpha, "alpha"), scale(beta, "beta")
    library, index = locate({"A": a, "B": b, "C": c})
    handle = None if stream is None else stream_handle(stream)
    if index != HOST:
        with library.scope(index, handle) as current:
            views = [library.view(x, name, current) for x, name in zip((a, b, c), "ABC", strict=True)]
            _launch(kernel, config, problem_of(views, alpha, beta), device.require(index),
                    [view.pointer for view in views], current)
        return c
    if not isinstance(c, np.ndarray):
        where = (f"is a torch tensor on {a.device}; move it to the GPU with A.cuda()" if library.name == "torch" else
                 f"({type(a).__name__}) is not on a GPU; move it there first")
        raise InvalidValue(f"A {where}")
    _through_copies(kernel, config, a, b, c, alpha, beta, _LEGACY if handle is None else handle)
    return c


def _through_copies(kernel: Kernel, config: Config | None, a: Any, b: Any, c: Any, alpha: float, beta: float,
                    stream: int) -> None:
    """The product of NumPy arrays, by packed copies on the current device."""
    problem = problem_of([View.packed(x.shape) for x in (a, b, c)], alpha, beta)  # refused before anything is copied
    gpu, arrays = device.require(), [np.ascontiguousarray(x) for x in (a, b, c)]
    memory = [DeviceMemory(x.nbytes, stream) for x in arrays]
    for x, to in zip(arrays, memory, strict=True):
        copy_in(to.pointer, x.ctypes.data, x.nbytes, stream, pageable=True)
    _launch(kernel, config, problem, gpu, [x.pointer for x in memory], stream)
    result = np.empty(c.shape, np.float32)
    copy_out(result.ctypes.data, memory[2].pointer, result.nbytes, stream, pageable=True)
    synchronize(stream)
    c[...] = result


def _launch(kernel: Kernel, config: Config | None, problem: Problem, gpu: Gpu, pointers: Sequence[int],
            stream: int) -> None:
    from ..kernels.bound import bind  # what only refuses, or simulates, needs no launcher

    a, b, c = pointers
    chosen = validity.choose(kernel, config or kernel.config_for(gpu.arch), gpu.limits, problem)
    bind(kernel, chosen, problem, gpu).launch(a, b, c, c, 0, stream)


def problem_of(views: Sequence[View], alpha: float, beta: float) -> Problem:
    """The problem that A, B and C make, matrices with contiguous rows.

    Raises:
        InvalidValue: not 2-D, rows that are not contiguous or overlap, an address between floats, or shapes that do not
            match; the message has the value.
    """
    a, b, c = views
    lda, ldb, ldc = (_leading_dimension(x, name) for x, name in zip(views, "ABC", strict=True))
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows:
        raise InvalidValue(f"A is {m} x {k} and B is {rows} x {n}: the columns of A ({k}) must be the rows of B "
                           f"({rows})")
    if c.shape != (m, n):
        raise InvalidValue(f"C is {c.shape[0]} x {c.shape[1]}; A B is {m} x {n}")
    return Problem(m, n, k, lda, ldb, ldc, float(alpha), float(beta), (a.alignment, b.alignment, c.alignment))


def _leading_dimension(x: View, name: str) -> int:
    if len(x.shape) != 2:
        raise InvalidValue(f"{name} has shape {x.shape}; a matrix (2-D) is wanted")
    if x.pointer % FLOAT:
        raise InvalidValue(f"{name} starts at address {x.pointer:#x}, no multiple of {FLOAT} bytes; pass a copy of it")
    rows, columns = x.shape
    if x.strides is None or (columns > 1 and x.strides[1] != 1):
        given = "no strides in whole elements" if x.strides is None else f"strides {x.strides} (elements)"
        raise InvalidValue(f"{name} has {given}; its rows must be contiguous: "
                           f"pass a row-major copy, or swap the operands (C^T = B^T A^T) for column-major data")
    ld = x.strides[0] if rows > 1 else max(columns, 1)
    if ld < columns:
        raise InvalidValue(f"ld of {name} = {ld} is shorter than its row of {columns} elements; pass a copy")
    return max(ld, 1)
