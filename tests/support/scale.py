"""A kernel that compiles in no time, for tests of the compiler and its cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peakgemm.runtime.compile import Compiled, compile_source

SCALE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR; }\n'


def scale(factor: int = 3, arch: str = "sm_90", **more: Any) -> Compiled:
    """The kernel that multiplies by ``factor``."""
    return compile_source(SCALE, "scale", arch, {"FACTOR": factor}, name="scale.cu", **more)


def files(folder: Path) -> list[Path]:
    """What lies below a folder."""
    return sorted(f for f in folder.rglob("*") if f.is_file())
