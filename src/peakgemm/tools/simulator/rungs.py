"""A rung of the ladder on the simulator: the launch that the GPU would make, on NumPy matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.matrix import Matrix, check_host, problem_of
from ...errors import InvalidType, InvalidValue
from ...kernels import validity
from ...kernels.build import build
from ...kernels.launch_shape import launch_shape
from ...kernels.registry import Kernel, rung
from ...problem import Config
from ...runtime.architectures import architecture
from ...runtime.tensor_map import Box
from .core.observer import Observer
from .core.tensor_map import TensorMap
from .launch import run
from .report import Report, totals


def run_rung(number: int | Kernel, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], *, alpha: float = 1.0,
             beta: float = 0.0, config: Config | None = None, arch: str = "sm_90", checks: bool = True,
             max_steps: int = 50_000_000, max_memory: int = 4 << 30, observer: Observer | None = None) -> Report:
    """``C = alpha A B + beta C`` by one rung, simulated; ``c`` is updated in place.

    Args:
        number: the rung, or its entry in the table.
        a, b, c: float32, ``A (M, K)``, ``B (K, N)``, ``C (M, N)``, row-major with any leading dimension.
        alpha, beta, config: as in `peakgemm.run_rung`; the compilation (aligned or guarded) is chosen as there.
        arch: the architecture that the kernel is compiled for.
        checks, max_steps, max_memory, observer: as in `peakgemm.tools.simulator.run`.

    Raises:
        InvalidValue, InvalidType: as `peakgemm.run_rung` and `peakgemm.tools.simulator.run`.
    """
    kernel = number if isinstance(number, Kernel) else rung(number)
    operands = [_matrix(x, name) for x, name in ((a, "A"), (b, "B"), (c, "C"))]
    problem = problem_of(operands, alpha, beta)
    chosen = validity.choose(kernel, config or kernel.config_for(arch), architecture(arch), problem)
    shape = launch_shape(kernel, chosen, problem)
    if shape.blocks == 0:
        return Report(kernel.entry, [], totals([]), [])
    return run(build(kernel, chosen, arch, "ptx"), grid=shape.blocks, block=shape.threads, arch=arch,
               args=[a, b, c, *shape.args, *(tensor_map(box, (a, b)[box.operand]) for box in shape.boxes)],
               shared_bytes=shape.shared_bytes, checks=checks, max_steps=max_steps,
               max_memory=max_memory, observer=observer)


def tensor_map(box: Box, x: NDArray[Any]) -> TensorMap:
    """The map that the driver would encode, of a NumPy matrix ``(rows, columns)``."""
    return TensorMap(x, (box.box_columns, box.box_rows), (box.columns, box.rows), (4 * box.ld,), swizzle=box.swizzle)


def _matrix(x: NDArray[Any], name: str) -> Matrix:
    """A NumPy matrix as the simulator will place it: the array that owns the memory starts aligned."""
    if not isinstance(x, np.ndarray):
        raise InvalidType(f"{name} is a {type(x).__name__}; the simulator takes NumPy arrays")
    check_host(x, name)
    rows, columns = x.shape
    steps = [step // 4 for step in x.strides]
    if x.size == 0:
        return Matrix(0, rows, columns, max(columns, 1), x)
    if (columns > 1 and steps[1] != 1) or (rows > 1 and steps[0] < columns):
        raise InvalidValue(f"{name} has strides {x.strides} (bytes); its rows must be contiguous and must not overlap: "
                           "pass a row-major copy")
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    offset = x.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return Matrix(int(offset), rows, columns, max(steps[0] if rows > 1 else columns, 1), x)
