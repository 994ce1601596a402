"""Programs of linear algebra without a GPU: products by NumPy, the small kernels on the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from peakgemm.kernels.family import Launch
from peakgemm.linalg.program import WORKSPACE, Program
from peakgemm.problem import Batch, Problem, Triangle
from peakgemm.tools.simulator.launch import run

_SPARE = 1 << 10  # floats behind a workspace, that nothing may touch
_AROUND = -777.25


def interpret(program: Program, buffers: Sequence[Any], sms: int = 4) -> None:
    """Run the steps of a program on NumPy arrays: ``buffers[i]`` is buffer i + 1, flat and at its start.

    Raises:
        AssertionError: a step wrote behind the workspace.
    """
    workspace = np.full(program.bytes // 4 + _SPARE, _AROUND, "f4")
    memory = {WORKSPACE: workspace} | dict(enumerate(buffers, 1))
    for what, places in program.steps:
        flat = [memory[buffer][offset // 4:] for buffer, offset in places]
        if isinstance(what, Problem):
            _multiply(what, *flat)
        else:
            _launch(what, flat)
    assert (workspace[program.bytes // 4:] == _AROUND).all()


def _launch(launch: Launch, flat: list[Any]) -> None:
    arguments = [flat[i] for i in launch.convention.addresses]
    run(launch.recipe.make("ptx"), grid=launch.blocks, block=launch.threads,
        args=[*arguments, *launch.convention.unpack(launch.arguments)], arch=launch.recipe.arch,
        shared_bytes=launch.shared_bytes)


def _multiply(p: Problem, a: Any, b: Any, old: Any, out: Any) -> None:
    """The product in FP64, rounded once; what is not asked for stays as it is."""
    left = _matrices(a, p.batch, p.batch.a, *((p.k, p.m) if p.trans_a else (p.m, p.k)), (p.lda, 1))
    right = _matrices(b, p.batch, p.batch.b, *((p.n, p.k) if p.trans_b else (p.k, p.n)), (p.ldb, 1))
    target = _matrices(out, p.batch, p.batch.c, p.m, p.n, (p.ldc, 1))
    left, right = (np.swapaxes(x, -1, -2) if turned else x for x, turned in ((left, p.trans_a), (right, p.trans_b)))
    value = p.alpha * (left.astype(float) @ right.astype(float)) if p.alpha else np.zeros(target.shape)
    if p.beta:
        value += p.beta * _matrices(old, p.batch, p.batch.c0, p.m, p.n, p.c0 or (p.ldc, 1))
    wanted = {Triangle.NONE: np.ones((p.m, p.n), bool), Triangle.LOWER: np.tril(np.ones((p.m, p.n), bool)),
              Triangle.UPPER: np.triu(np.ones((p.m, p.n), bool))}[p.triangle]
    target[...] = np.where(wanted, value, target)


def _matrices(flat: Any, batch: Batch, steps: tuple[int, ...], rows: int, columns: int,
              strides: tuple[int, int]) -> Any:
    return np.lib.stride_tricks.as_strided(flat, (*batch.sizes, rows, columns), [4 * s for s in (*steps, *strides)])
