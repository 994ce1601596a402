"""An emulated product on the simulator: the split pass and the tensor-core kernel, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidValue
from ...kernels.emulated.schemes import (
    REDUCE_THREADS,
    SPLIT_THREADS,
    emulation,
    product_recipe,
    reduce_recipe,
    scheme_of,
    split_recipe,
    target,
)
from ...kernels.registry import Kernel
from ...kernels.validity import require
from ...problem import Config, Problem
from ...runtime.architectures import architecture
from .launch import run
from .report import Report


def run_emulated(kernel: Kernel, config: Config, problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any],
                 c0: NDArray[Any] | None = None, **options: Any) -> tuple[list[Report], int]:
    """As `run_counted`, but the half tiles that the guard rerouted to FFMA in sum."""
    reports, counters = run_counted(kernel, config, problem, a, b, c, c0, **options)
    return reports, int(counters.sum())


def run_counted(kernel: Kernel, config: Config, problem: Problem, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any],
                c0: NDArray[Any] | None = None, *, arch: str = "sm_90", sm_count: int = 4, checks: bool = True,
                max_steps: int = 50_000_000) -> tuple[list[Report], NDArray[np.int32]]:
    """``C = alpha op(A) op(B) + beta C0`` by a scheme, simulated; ``c`` is updated in place.

    Args:
        kernel, config: of `kernels.schemes`.
        problem: how the arrays' memory is read; each array's first element is the operand's address.
        a, b, c, c0: float32; views allowed. ``c0`` None: C itself.
        arch, sm_count: what is compiled for, and how many SMs share the work.
        checks, max_steps: as in `peakgemm.tools.simulator.run`.

    Returns:
        The reports of the launches, and the counters of half tiles that the guard rerouted to FFMA: a mark for each of
        every tile, those of a product of a batch together, or of kernels that read panels one counter for all.

    Raises:
        InvalidValue: no tensor-core kernel, or a config that is not valid.
    """
    scheme = scheme_of(kernel)
    if scheme is None:
        raise InvalidValue(f"{kernel.name} is no tensor-core kernel; use run_library")
    require(kernel, config, architecture(arch), problem)
    plan = emulation(kernel, config, problem, sm_count)
    problem = plan.problem
    if problem.trans_c:
        a, b = b, a
    workspace = np.full(-(-plan.workspace_bytes // 4), -1, np.int32).view(np.float32)  # NaN, and no zeros for the marks
    args = [a, b, c if c0 is None else c0, c, workspace, plan.arguments]
    passes = [(product_recipe(kernel, config, problem, arch), plan.blocks, config.block_threads,
               kernel.shared_bytes(config))]
    if plan.split_blocks:
        passes.insert(0, (split_recipe(scheme, problem, arch), plan.split_blocks, SPLIT_THREADS, scheme.panel))
    if plan.reduce_blocks:
        passes.append((reduce_recipe(scheme, config, arch), plan.reduce_blocks, REDUCE_THREADS, 0))
    reports = [run(recipe.make("ptx"), grid=blocks, block=threads, arch=target(arch), args=args, shared_bytes=shared,
                   checks=checks, max_steps=max_steps) for recipe, blocks, threads, shared in passes]
    offset, count = plan.counters
    return reports, workspace.view(np.int32)[offset // 4:offset // 4 + count]
