"""What the explorer runs: a rung on a small problem, or a kernel of the reader's own, with its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...kernels.registry import Kernel
from ...runtime.source import KERNELS
from ..simulator import TensorMap, run, run_rung
from .trace import Named, Recorder, detailed, trace

LEAST = 64  # of M, N and K of a rung's problem
BLOCK = 0  # the block that is traced
EXAMPLES = Path(__file__).with_name("examples")


@dataclass(frozen=True)
class Launch:
    """A kernel of the reader's own: PTX text or a file, and what it is started with."""

    source: Path | str
    grid: Sequence[int]
    block: Sequence[int]
    args: Sequence[Any]
    entry: str | None = None
    shared_bytes: int = 0
    arch: str = "sm_90"
    macros: Mapping[str, int] | None = None
    include: Sequence[Path] = ()
    max_steps: int = 5_000_000
    max_seconds: float | None = 120.0


def problem_for(kernel: Kernel, arch: str) -> tuple[int, int, int]:
    """M, N, K of the problem that a rung is shown on: a tile or a few, and K enough to fill its stages twice."""
    config = kernel.config_for(arch)
    return max(config.bm, LEAST), max(config.bn, LEAST), max(LEAST, config.bk * (max(config.stages, 1) + 2))


def operands(shape: tuple[int, int, int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A, B and C of a product: A and B hold small whole numbers that tell their row and column, C is zero."""
    m, n, k = shape
    a = (np.arange(m, dtype=np.float32)[:, None] % 16 + np.arange(k, dtype=np.float32) / 64).astype(np.float32)
    b = (np.arange(k, dtype=np.float32)[:, None] / 64 + np.arange(n, dtype=np.float32) % 16).astype(np.float32)
    return a, b, np.zeros((m, n), np.float32)


def rung_trace(kernel: Kernel, arch: str = "sm_90", shape: tuple[int, int, int] | None = None) -> dict[str, Any]:
    """The trace of a rung.

    Raises:
        InvalidValue, CompileFailed, MissingComponent: see `simulator.run_rung`.
    """
    m, n, k = shape or problem_for(kernel, arch)
    a, b, c = operands((m, n, k))
    recorder = Recorder(BLOCK, detailed(-(-kernel.config_for(arch).block_threads // 32)))
    report = run_rung(kernel, a, b, c, arch=arch, observer=recorder)
    named = Named(f"{kernel.number:02}", kernel.label, f"M, N, K = {m}, {n}, {k} on {arch}", {0: "A", 1: "B", 2: "C"},
                  {0: a.shape, 1: b.shape, 2: c.shape})
    return trace(recorder, report, named, _sources(recorder))


def own_trace(launch: Launch, name: str, label: str) -> dict[str, Any]:
    """The trace of a kernel of the reader's own.

    Raises:
        InvalidValue, InvalidType, UnknownInstruction, CompileFailed: see `simulator.run`.
    """
    threads = int(np.prod(launch.block))
    recorder = Recorder(BLOCK, detailed(max(-(-threads // 32), 1)))
    report = run(launch.source, entry=launch.entry, grid=launch.grid, block=launch.block, args=launch.args,
                 shared_bytes=launch.shared_bytes, arch=launch.arch, macros=launch.macros, include=launch.include,
                 max_steps=launch.max_steps, max_seconds=launch.max_seconds, observer=recorder)
    arrays = {number: arg.array if isinstance(arg, TensorMap) else arg for number, arg in enumerate(launch.args)
              if isinstance(arg, (np.ndarray, TensorMap))}
    params = recorder.machine.program.kernel.params if recorder.machine else []
    names = {number: params[number].name.removeprefix(f"{report.kernel}_") for number in arrays if number < len(params)}
    about = ", ".join(f"{names.get(number, number)} {array.dtype} {' x '.join(map(str, array.shape))}"
                      for number, array in arrays.items())
    named = Named(name, label, about or "no array", names, {number: array.shape for number, array in arrays.items()})
    return trace(recorder, report, named, _sources(recorder, launch.source))


def _sources(recorder: Recorder, main: Path | str | None = None) -> dict[str, list[str]]:
    """The source files that the kernel's instructions name, of the package or beside the reader's own."""
    assert recorder.machine is not None
    lines_of: dict[str, list[str]] = {}
    beside = [main.parent] if isinstance(main, Path) else []
    for name in {ins.file for ins in recorder.machine.program.kernel.instructions if ins.file}:
        for path in (KERNELS / name, Path(name), EXAMPLES / name, *(folder / Path(name).name for folder in beside)):
            if path.is_file() and path.suffix in (".cu", ".cuh", ".h", ".hpp"):
                lines_of[name] = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
                break
    return lines_of
