"""An emulated product on the simulator: the split pass and the tensor-core kernel, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue
from ..kernels.registry import Kernel
from ..kernels.schemes import REROUTED, SPLIT_THREADS, emulation, product_recipe, scheme_of, split_recipe, target
from ..kernels.validity import require
from ..problem import Config, Problem
from ..runtime.architectures import architecture
from .launch import run
from .report import Report


def run_emulated(kernel: Kernel, config: Config, problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any],
                 c0: NDArray[Any] | None = None, *, arch: str = "sm_90", sm_count: int = 4, checks: bool = True,
                 max_steps: int = 50_000_000) -> tuple[list[Report], int]:
    """``C = alpha op(A) op(B) + beta C0`` by a scheme, simulated; ``c`` is updated in place.

    Args:
        kernel, config: of `kernels.schemes`.
        problem: how the arrays' memory is read; each array's first element is the operand's address.
        a, b, c, c0: float32; views allowed. ``c0`` None: C itself.
        arch, sm_count: what is compiled for, and how many SMs share the work.
        checks, max_steps: as in `peakgemm.simulator.run`.

    Returns:
        The reports of both launches, and how many half tiles the guard rerouted to FFMA.

    Raises:
        InvalidValue: no tensor-core kernel, or a config that is not valid.
    """
    scheme = scheme_of(kernel)
    if scheme is None:
        raise InvalidValue(f"{kernel.name} is no tensor-core kernel; use run_library")
    require(kernel, config, architecture(arch), problem)
    plan = emulation(scheme, config, problem, sm_count)
    workspace = np.zeros(-(-plan.workspace_bytes // 4), np.float32)
    args = [a, b, c if c0 is None else c0, c, workspace, plan.arguments]
    reports = [
        run(split_recipe(scheme, problem, arch).make("ptx"), grid=plan.split_blocks, block=SPLIT_THREADS,
            arch=target(arch), args=args, shared_bytes=scheme.panel, checks=checks, max_steps=max_steps),
        run(product_recipe(kernel, config, arch).make("ptx"), grid=plan.blocks, block=config.block_threads,
            arch=target(arch), args=args, shared_bytes=kernel.shared_bytes(config), checks=checks, max_steps=max_steps)]
    return reports, int(workspace.view(np.int32)[REROUTED // 4])
