"""A kernel of the library on the simulator: the launches that the GPU would make, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import anew, relay
from ..kernels.library import (
    FAMILIES,
    Part,
    compile_for,
    compile_reduce,
    compile_relay,
    first_recipe,
    parts,
    workspace_bytes,
)
from ..kernels.registry import Kernel
from ..kernels.validity import require
from ..problem import Config, Problem
from ..runtime.architectures import architecture
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
        checks, max_steps: as in `peakgemm.simulator.run`.

    Returns:
        One report a launch: operands laid out anew where the kernel asks for that, the product, and the sum of its
        partial sums where there are any; then the same for rows that are computed apart.

    Raises:
        InvalidValue: a config that is not valid for the architecture or the problem.
    """
    require(kernel, config, architecture(arch), problem)
    workspace = np.zeros(max(workspace_bytes(kernel, config, problem, sm_count) // 4, 1), np.float32)
    start = c if c0 is None else c0
    return [report for part in parts(kernel, config, problem) for report in _run_part(
        part, _behind(a, part.a), b, _behind(c, part.c), _behind(start, part.c0), workspace, arch, sm_count,
        checks=checks, max_steps=max_steps)]


def _behind(x: NDArray[Any], elements: int) -> NDArray[Any]:
    """``x`` from so many elements behind its first one on, as memory goes."""
    where = [slice(None)] * x.ndim
    for axis in sorted(range(x.ndim), key=lambda axis: -x.strides[axis]):
        if elements and x.shape[axis] > 1:
            begin, elements = divmod(elements, x.strides[axis] // x.itemsize)
            where[axis] = slice(begin, None)
    return x[tuple(where)]


def _run_part(part: Part, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], c0: NDArray[Any],
              partial: NDArray[Any], arch: str, sm_count: int, **limits: Any) -> list[Report]:
    """The launches of one of the products that a product is."""
    kernel, config, problem = part.kernel, part.config, part.problem
    family = FAMILIES[kernel]
    plan = family.schedule(config, problem, sm_count)
    if plan.blocks == 0:
        return [Report(kernel.entry, [], totals([]), [])]
    reports = []
    workspace, sums = partial, partial[plan.sums // 4:]
    if family.relays:
        first = relay.relay(problem)
        if first.blocks:
            reports.append(run(compile_relay(problem, arch, "ptx"), grid=first.blocks, block=relay.THREADS, arch=arch,
                               args=[a, b, c, c, workspace, first.arguments], **limits))
        b, workspace = workspace, sums
    if plan.first_blocks:
        reports.append(run(first_recipe(arch).make("ptx"), grid=plan.first_blocks, block=32 * anew.FIRST_WARPS,
                           arch=arch, args=[a, b, c, c, workspace, plan.arguments + plan.more], **limits))
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
