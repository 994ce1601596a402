"""Run a kernel of the table: validate, choose the compilation, launch, in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..arrays.matrix import DeviceCopy, Matrix, check_host, matrix, problem_of, stream_of
from ..errors import InvalidValue
from ..kernels import validity
from ..kernels.build import build
from ..kernels.launch_shape import launch_shape
from ..kernels.registry import Kernel, rung
from ..problem import Config, Problem
from ..runtime import device
from ..runtime.compile import Compiled
from ..runtime.device import Gpu
from ..runtime.launch import Loaded, float32, int32, int64, load
from ..runtime.tensor_map import encode
from .request import number as scale


@lru_cache(maxsize=512)
def loaded(kernel: Kernel, config: Config, gpu: Gpu) -> Loaded:
    """The kernel compiled for ``gpu`` and loaded on it."""
    return load(build(kernel, config, gpu.arch), kernel.shared_bytes(config) if kernel.dynamic else 0, gpu)


# M, N, K, lda, ldb, ldc, alpha, beta
_ARGUMENTS: tuple[Callable[[Any], Any], ...] = (int32, int32, int32, int64, int64, int64, float32, float32)


def bind(kernel: Kernel, problem: Problem, operands: Sequence[Matrix], gpu: Gpu,
         config: Config | None = None, edit: Callable[[Compiled], Compiled] | None = None) -> Callable[[Any], None]:
    """Everything decided: the result takes a ``cuda.core.Stream`` and enqueues the product on it.

    ``operands`` are A, B and C as ``problem`` describes them; the caller keeps them alive. ``edit`` makes of the cubin
    the one that runs in its place, for instruments that time edited code.

    Raises:
        InvalidValue: a config that is not valid here, or more than 2**31 - 1 blocks.
        LaunchFailed: the driver cannot encode a tensor map.
    """
    chosen = validity.choose(kernel, config or kernel.config_for(gpu.arch), gpu.limits, problem)
    shape = launch_shape(kernel, chosen, problem)
    if shape.blocks == 0:
        return lambda stream: None
    function = loaded(kernel, chosen, gpu) if edit is None else load(
        edit(build(kernel, chosen, gpu.arch)), shape.shared_bytes, gpu)
    pointers = [int64(x.pointer) for x in operands]
    args = (*pointers, *(convert(x) for convert, x in zip(_ARGUMENTS, shape.args, strict=True)),
            *(encode(box, operands[box.operand].pointer) for box in shape.boxes))
    return lambda stream: function.launch(stream, shape.blocks, shape.threads, *args)


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
        stream: a ``cuda.core.Stream``; by default the arrays' library's current stream.

    Returns:
        ``c``.

    Raises:
        InvalidValue: unknown rung, shapes or leading dimensions that do not fit, an invalid tile, a scale that float32
            cannot hold.
        InvalidType: not float32, or a scale that is no number.
        MissingComponent: no GPU or driver.
    """
    kernel = rung(number)
    alpha, beta = scale(alpha, "alpha"), scale(beta, "beta")
    host = [isinstance(x, np.ndarray) for x in (a, b, c)]
    if all(host):
        for x, name in ((a, "A"), (b, "B"), (c, "C")):
            check_host(x, name)
        if not c.flags.writeable:
            raise InvalidValue("C is a read-only NumPy array; pass one that can be written")
    elif any(host):
        for x, name, here in zip((a, b, c), "ABC", host, strict=True):
            if not here:
                matrix(x, name)  # what is no array at all is told first
        raise InvalidValue("A, B and C lie partly on the host and partly on the GPU; put all three in one place")
    else:
        views = [matrix(x, name) for x, name in ((a, "A"), (b, "B"), (c, "C"))]
        problem = problem_of(views, alpha, beta)
        bind(kernel, problem, views, device.require(), config)(stream or stream_of(a))
        return c
    packed = [Matrix(0, x.shape[0], x.shape[1], max(x.shape[1], 1), x) for x in (a, b, c)]
    problem = problem_of(packed, alpha, beta)  # refused before anything is copied
    gpu = device.require()
    stream = stream or stream_of(a)
    copies = [DeviceCopy(x, stream) for x in (a, b, c)]
    bind(kernel, problem, [x.matrix for x in copies], gpu, config)(stream)
    c[...] = copies[2].download()
    return c
