"""A rung compiled, or launched, for any problem."""

from __future__ import annotations

from peakgemm.kernels.family import Launch
from peakgemm.kernels.library import compile_for
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem
from peakgemm.runtime.compile import Compiled, Kind


def build(kernel: Kernel, config: Config, arch: str, kind: Kind = "cubin") -> Compiled:
    """The rung's code, which does not depend on the problem."""
    return compile_for(kernel, config, Problem.contiguous(1, 1, 1), arch, kind)


def launch(kernel: Kernel, config: Config, problem: Problem, arch: str = "sm_90") -> Launch:
    """The one launch of a rung."""
    only, = kernel.launches(config, problem, arch, 132).kernels
    return only


def arguments(of: Launch) -> tuple[int | float, ...]:
    """What the rung takes behind A, B and C: m, n, k, lda, ldb, ldc, alpha, beta."""
    return of.convention.unpack(of.arguments)
