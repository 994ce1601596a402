"""FP32 operands split in the registers of the threads that multiply, or on the way to them (streamed.cu)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...problem import Problem, varied
from ..constraints import exactly, multiple, refilled
from ..family import Estimated
from ..profile import Machine
from ..registry import Kernel
from . import model
from .schemes import SCHEMES, TensorConfig, default, family, ieee_bytes

_SCHEME = SCHEMES["fp16x3"]


def _shared(c: TensorConfig) -> int:
    """Bytes of the stages, the scales and summaries, and what an IEEE half tile needs for each 64 rows."""
    return (4 * c.bm * c.stages * 68 + c.stages * 4 * c.bn * 64 + (c.stages + 1) * (c.bn * 4 + 32)
            + c.bm // 64 * ieee_bytes() // 2)


def _dealt(c: TensorConfig) -> Iterator[str]:
    """An SM's registers, dealt in eights: so many to each of those who multiply, the rest to who copies."""
    threads = c.threads + c.producers
    rest = ((1 << 16) // threads // 8 * 8 * threads - c.threads * c.registers) // max(c.producers, 1) // 8 * 8
    if c.registers % 8 or not 24 <= c.registers <= 240 or not rest >= 24:
        yield (f"registers = {c.registers} must be a multiple of 8 from 24 to 240 that leaves {c.producers} producers "
               f"24 each; it leaves {rest}")


def _fused(c: TensorConfig) -> Iterator[str]:
    """Two warpgroups of 64 rows, and others that copy A and split 16 columns of B a warp."""
    yield from exactly(c, bm=128, bn=64, bk=64, tm=8, tn=4)
    yield from multiple(c, "producers", 128, "a warpgroup copies a chunk")
    if not 128 <= c.producers <= 128 * c.stages:
        yield f"producers = {c.producers} must be 128 to {128 * c.stages}: a stage for each warpgroup"
    yield from _dealt(c)
    yield from refilled(c)


def _streamed(c: TensorConfig) -> Iterator[str]:
    """Two warpgroups of 64 rows, which multiply 64 columns at a time."""
    yield from exactly(c, bk=64, tm=8, tn=c.bn // 16)
    if (c.bm, c.bn) not in ((128, 64), (128, 128)):
        yield f"BM x BN = {c.bm} x {c.bn} must be 128 x 64 or 128 x 128: strips of columns of one panel"
    yield from _dealt(c)
    yield from refilled(c)


def _candidates(kernel: Kernel, problem: Problem, machine: Machine, ready: str) -> Iterator[Estimated]:
    """C, and C^T where that makes the larger operand the one that is not split before."""
    times = model.accumulations(_SCHEME, problem)
    tiles = [streamed(columns) for columns in (64, 128)]
    for trans_c in (False, True) if problem.n > problem.m else (False,):
        for tile in tiles if kernel.family.panels else [kernel.default]:
            config = varied(tile, accumulations=times, trans_c=trans_c)
            yield from model.sharing_k(kernel, config, problem, machine, ready)


# The larger operand is split so; B goes through a split pass, or
STREAMED = Kernel(
    -1, _SCHEME.name, "the larger operand split in the registers of the threads that multiply",
    replace(default(_SCHEME), stages=3), _streamed, _shared, dynamic=True, needs=("wgmma",), folder="emulated",
    source_name="streamed", defines={"SCHEME": _SCHEME.code, "SPLIT_B": 0},
    family=family("streamed", _SCHEME, "b", _candidates),
    tunes=frozenset({"stages", "raster", "registers", "accumulations", "trans_c", "split"}))

# is split on the way: one kernel, for products that a split pass of their own would hold up.
FUSED = Kernel(
    -1, _SCHEME.name, "both operands split on the way to the tensor cores, in one kernel",
    replace(STREAMED.default, bn=64, tn=4, stages=4, producers=256, registers=168), _fused, _shared,
    dynamic=True, needs=("wgmma",), folder="emulated", source_name="streamed",
    defines={"SCHEME": _SCHEME.code, "SPLIT_B": 1}, family=family("fused", _SCHEME, "", _candidates),
    tunes=frozenset({"stages", "raster", "producers", "registers", "accumulations", "trans_c", "split"}))


def streamed(columns: int) -> TensorConfig:
    """The configuration of `STREAMED` for tiles of 64 or 128 columns."""
    config: TensorConfig = STREAMED.default
    return config if columns == 128 else varied(config, bn=columns, tn=columns // 16, stages=4, registers=200)
