"""Tiles whose next stage waits in registers, for GPUs without cp.async (staged.cu)."""

from __future__ import annotations

from ..registry import Kernel, default_of
from .specialised import ring_bytes

STAGED = Kernel(
    -1, "staged", "the next tile waits in registers; for GPUs without cp.async",
    default_of("staged"), "staged", ring_bytes, dynamic=True,
    tunes=frozenset({"raster", "min_blocks", "split"}), folder="ffma",
)
