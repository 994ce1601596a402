"""A product on the simulator: the launches that the GPU would make, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.registry import Kernel
from ...kernels.validity import require
from ...problem import Config, Problem
from ...runtime.architectures import architecture
from ...runtime.tensor_map import Box
from .core.tensor_map import TensorMap
from .launch import run
from .report import Report, totals


def run_library(kernel: Kernel, config: Config, problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any],
                c0: NDArray[Any] | None = None, **options: Any) -> list[Report]:
    """The reports of `run_counted`."""
    return run_counted(kernel, config, problem, a, b, c, c0, **options)[0]


def run_counted(kernel: Kernel, config: Config, problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any],
                c0: NDArray[Any] | None = None, *, arch: str = "sm_90", sm_count: int = 4,
                **options: Any) -> tuple[list[Report], NDArray[np.int32]]:
    """``C = alpha op(A) op(B) + beta C0``, simulated; ``c`` is updated in place.

    Args:
        kernel, config: of the library or the ladder.
        problem: how the arrays' memory is read; each array's first element is the operand's address.
        a, b, c, c0: float32; views allowed. ``c0`` None: C itself.
        arch, sm_count: what is compiled for, and how many SMs share the work.
        options: ``checks``, ``max_steps``, ``max_memory`` and ``observer`` of `peakgemm.tools.simulator.run`.

    Returns:
        One report a launch, in order, and the counters of half tiles that a tensor-core kernel's guard rerouted to
        FFMA: a mark for each of every tile, those of a product of a batch together, or of kernels that read panels one
        counter for all.

    Raises:
        InvalidValue: a config that is not valid for the architecture or the problem.
    """
    require(kernel, config, architecture(arch), problem)
    plan = kernel.launches(config, problem, arch, sm_count)
    if not plan.kernels:
        return [Report(kernel.entry, [], totals([]), [])], np.zeros(0, np.int32)
    if plan.problem.trans_c:
        a, b = b, a
    # NaN as floats, and no zeros for counters and marks.
    workspace = np.full(max(-(-plan.workspace_bytes // 4), 1), -1, np.int32).view(np.float32)
    reports = []
    for launch in plan.kernels:
        maps = [tensor_map(box, (a, b)[box.operand] if box.within is None else workspace[box.within // 4:])
                for box in launch.boxes]
        addresses = (a, b, c if c0 is None else c0, c, workspace[launch.offset // 4:])
        convention = launch.convention
        args = [*(addresses[i] for i in convention.addresses), *convention.unpack(launch.arguments), *maps]
        reports.append(run(launch.recipe.make("ptx"), grid=launch.blocks, block=launch.threads, args=args,
                           arch=launch.recipe.arch, shared_bytes=launch.shared_bytes, cluster=launch.cluster,
                           **options))
    offset, count = plan.counters
    return reports, workspace.view(np.int32)[offset // 4:offset // 4 + count]


def tensor_map(box: Box, x: NDArray[Any]) -> TensorMap:
    """The map that the driver would encode, of a NumPy matrix ``(rows, columns)``."""
    return TensorMap(x, (box.box_columns, box.box_rows), (box.columns, box.rows), (4 * box.ld,), swizzle=box.swizzle)
