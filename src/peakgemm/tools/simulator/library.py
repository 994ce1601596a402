"""A kernel of the library on the simulator: the launches that the GPU would make, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.ffma import repack
from ...kernels.library import FAMILIES, compile_for, compile_reduce, first_recipe, workspace_bytes
from ...kernels.registry import Kernel
from ...kernels.validity import require
from ...problem import Config, Problem
from ...runtime.architectures import architecture
from .launch import run
from .report import Report, totals
from .rungs import tensor_map


def run_library(kernel: Kernel, config: Config, problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any],
                c0: NDArray[Any] | None = None, *, arch: str = "sm_90", sm_count: int = 4, checks: bool = True,
                max_steps: int = 50_000_000) -> list[Report]:
    """``C = alpha op(A) op(B) + beta C0``, simulated; ``c`` is updated in place.

    Args:
        kernel, config: of `kernels.library`.
        problem: how the arrays' memory is read; each array's first element is the operand's address.
        a, b, c, c0: float32; views allowed. ``c0`` None: C itself.
        arch, sm_count: what is compiled for, and how many SMs share the work.
        checks, max_steps: as in `peakgemm.tools.simulator.run`.

    Returns:
        One report a launch: the first chunk of repacked operands where there are any, the product, and the sum of its
        partial sums where there are any.

    Raises:
        InvalidValue: a config that is not valid for the architecture or the problem.
    """
    require(kernel, config, architecture(arch), problem)
    workspace = np.zeros(max(workspace_bytes(kernel, config, problem, sm_count) // 4, 1), np.float32)
    limits: dict[str, Any] = {"checks": checks, "max_steps": max_steps}
    c0 = c if c0 is None else c0
    family = FAMILIES[kernel]
    plan = family.schedule(config, problem, sm_count)
    if plan.blocks == 0:
        return [Report(kernel.entry, [], totals([]), [])]
    reports = []
    sums = workspace[plan.sums // 4:]
    if plan.first_blocks:
        reports.append(run(first_recipe(arch).make("ptx"), grid=plan.first_blocks, block=32 * repack.FIRST_WARPS,
                           arch=arch, args=[a, b, c, c, workspace, plan.first_arguments], **limits))
    args = [a, b, c0, c]
    maps = [tensor_map(box, (a, b)[box.operand] if box.within is None else workspace[box.within // 4:])
            for box in family.boxes(config, problem)]
    reports.append(run(compile_for(kernel, config, problem, arch, "ptx"), grid=plan.blocks,
                       block=config.block_threads, arch=arch,
                       args=[*args, workspace, plan.arguments + plan.more, *maps],
                       shared_bytes=kernel.shared_bytes(config), cluster=plan.cluster, **limits))
    if plan.reduce_blocks:
        reports.append(run(compile_reduce(kernel, config, problem, arch, "ptx"), grid=plan.reduce_blocks,
                           block=family.reduce_threads(config), arch=arch,
                           args=[*args, sums, plan.arguments], **limits))
    return reports
