"""The kernel of wide thread tiles: which problems it takes, what the copy engine moves, how it is launched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...problem import Config, Problem, varied
from ...runtime.tensor_map import MAX_LD, Box
from ..constraints import boxed
from ..family import Estimated
from ..profile import Machine
from ..registry import FLOAT, Kernel, default_of
from ..schedule import Schedule
from ..validity import is_valid
from ..widths import width
from . import tile_model, tiled
from .repack import UNIT_BYTES, Repack, repacked
from .repack import constraints as repackable
from .specialised import SPECIALISED

_MOST_BYTES = 2 << 30  # of a workspace for repacked operands


@dataclass(frozen=True, slots=True)
class WideConfig(Config):
    """How wide thread tiles are cut. One warp copies, three repack operands; all others compute."""

    stages: int = 1
    raster: int = 1
    producers: int = 0
    registers: int = 0
    split: int = 1
    handed: bool = False


def _shared(c: Config) -> int:
    """Bytes of the stages, what a warp's lanes stage of eight pairs of rows (include/epilogue/tile_store_pairs.cuh),
    two units for each of three warps that repack operands."""
    stages, pairs = c.stages * c.bk * (c.bm + c.bn), c.threads // 32 * 8 * (4 * (2 * c.tn + 16) + 2)
    return (stages + pairs) * FLOAT + 2 * (c.producers // 32 - 1) * UNIT_BYTES


def _constraints(c: Config) -> Iterator[str]:
    """What a configuration breaks of what the kernel's text takes for granted."""
    yield from boxed(c)
    if c.tn != 16 or c.tm not in (8, 12):
        yield f"thread tile {c.tm}x{c.tn} must be 8x16 or 12x16"
    elif c.bm % (8 * c.tm) or c.bn % (4 * c.tn):
        yield f"BM = {c.bm}, BN = {c.bn} must be multiples of {8 * c.tm} and {4 * c.tn}: rows and columns of a warp"
    if c.bk not in (8, 16):
        yield f"BK = {c.bk} must be 8 or 16: all k-steps of a stage are unrolled"


def refuses(problem: Problem) -> list[str]:
    """Why the kernel cannot take ``problem``."""
    p, broken = problem, list[str]()
    if p.batch.count != 1:
        broken.append(f"a batch of {p.batch.count}: the kernel 'wide' computes one product; use 'specialised'")
    if p.k == 0 or p.alpha == 0:
        broken.append(f"K = {p.k}, alpha = {p.alpha}: a tensor map describes one element at least; use 'specialised'")
    operands = to_repack(p)
    broken += repackable(p, operands)
    for operand, ld in (("a", p.lda), ("b", p.ldb)):
        if operand not in operands and ld > MAX_LD:
            broken.append(f"ld{operand} = {ld} elements: a tensor map describes {MAX_LD} at most; use 'specialised'")
    return broken


def to_repack(problem: Problem) -> str:
    """The operands that are repacked: whose rows, of M or N elements, do not all begin at 16 bytes."""
    p = problem
    a = p.trans_a and width(p.alignment[0], p.lda) == 4
    b = not p.trans_b and width(p.alignment[1], p.ldb) == 4
    return "a" * (not a) + "b" * (not b)


def after_repack(problem: Problem) -> Problem:
    """The problem that the product is of operands as they are repacked."""
    return repacked(problem, to_repack(problem))


def schedule(config: Config, problem: Problem, sm_count: int) -> Schedule:
    """The launch. The copy engine moves a box of A and of B for each stage."""
    p, c, operands = after_repack(problem), config, to_repack(problem)
    plan = tiled.schedule(config, problem, sm_count, operands)
    assert plan.repack is not None
    return replace(plan, boxes=(
        Box(0, p.k, p.m, p.lda, c.bk, c.bm, within=plan.repack.a if "a" in operands else None),
        Box(1, p.k, p.n, p.ldb, c.bk, c.bn, within=plan.repack.b if "b" in operands else None)))


def _compared(kernel: Kernel, problem: Problem, machine: Machine, ways: tile_model.Ways) -> Iterator[Estimated]:
    """For products of many tiles, where what they gain pays for the repacking, while that fits its workspace."""
    p = problem
    for config in tile_model.tilings(kernel, machine):
        if config.tiles(p) >= machine.sms and is_valid(kernel, config, machine.arch, p):
            moved = Repack(p, to_repack(p)).sums
            for way in ways(kernel, config, p, machine) if moved <= _MOST_BYTES else ():
                yield way, tile_model.estimate_us(way, after_repack(p), machine, moved)


def _ways(kernel: Kernel, config: Config, problem: Problem, machine: Machine) -> Iterator[Config]:
    yield config
    yield varied(config, split=0)


WIDE = Kernel(
    -1, "wide", "12 x 16 results a thread; the copy engine brings both operands, repacked where it must be",
    default_of("wide", WideConfig), _constraints, _shared, dynamic=True, needs=("setmaxnreg",),
    folder="ffma", tunes=frozenset({"stages", "raster", "split", "handed"}), bare_loop=True,
    # Zeros come behind the last k-step where K fills no whole stage. They would turn a sum of -0, as of products that
    # underflow, into +0. Without a workspace a kernel runs that has other tiles.
    family=replace(tile_model.FAMILY, triangles=False, schedule=schedule, specialisation=lambda config, problem: {},
                   refuses=refuses, one_chain=lambda config, problem: problem.k % config.bk == 0,
                   candidates=lambda kernel, problem, machine, ready: _compared(kernel, problem, machine, _ways),
                   chains=lambda kernel, problem, machine: _compared(kernel, problem, machine, tile_model.one_slice),
                   without_workspace=lambda kernel, config: (SPECIALISED, SPECIALISED.default)),
)
