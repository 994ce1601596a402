"""Tiles whose next stage waits in registers, for GPUs without cp.async (staged.cu)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...problem import Config
from ..constraints import stored
from ..registry import Kernel, default_of
from . import tile_model
from .specialised import ring_bytes


@dataclass(frozen=True, slots=True)
class StagedConfig(Config):
    """How blocks are cut whose next tile waits in registers: there are two buffers."""

    stages = 2
    raster: int = 1
    min_blocks: int = 1
    split: int = 1


def _constraints(c: Config) -> Iterator[str]:
    """Tiles carried through registers in whole rounds of one word a thread."""
    yield from stored(c)
    for name, floats in (("BM BK", c.bm * c.bk), ("BN BK", c.bn * c.bk)):
        if floats % c.threads:
            yield f"{name} = {floats} must be a multiple of {c.threads} threads: each carries as many words"


STAGED = Kernel(
    -1, "staged", "the next tile waits in registers; for GPUs without cp.async",
    default_of("staged", StagedConfig), _constraints, ring_bytes, dynamic=True,
    folder="ffma", outdone_by="cp.async", family=tile_model.FAMILY,
)
