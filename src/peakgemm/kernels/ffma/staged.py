"""Tiles whose next stage waits in registers, for GPUs without cp.async (staged.cu)."""

from __future__ import annotations

from ...problem import Config
from ..registry import Kernel
from .specialised import ring_bytes

STAGED = Kernel(
    -1, "staged", "the next tile waits in registers; for GPUs without cp.async",
    Config(64, 64, 16, 4, 4, stages=2, raster=8), "staged", ring_bytes, dynamic=True,
    tunes=frozenset({"raster", "min_blocks", "split"}), folder="ffma",
)
