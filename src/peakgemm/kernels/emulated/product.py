"""Operands split before, and multiplied by wgmma (product.cu) or, on GPUs without it, by mma.sync (product_mma.cu)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...problem import Problem, varied
from ...runtime.architectures import Architecture
from ...runtime.device import Gpu
from ..bound import enqueuing
from ..constraints import exactly, multiple, refilled
from ..family import Estimated
from ..profile import Machine
from ..registry import Kernel
from . import model
from .schemes import HEAD, ROWS, SCHEMES, TAIL, Scheme, TensorConfig, default, family, ieee_bytes, launches

_MOST_UNPAIRED = 32  # rows, or columns, of tiles, whose copies of B pairs of blocks do not share
_HALVED = "fp16x3"  # the scheme of which tiles of 64 rows were measured to gain


def _ring(c: TensorConfig, scheme: Scheme) -> int:
    """Bytes of the stages (half a panel of each operand), the scales, and what an IEEE half tile needs."""
    stages = c.stages * scheme.planes * (c.bm + c.bn) * 64
    scales = (c.stages // 2 + (2 if c.bm < ROWS else 1)) * (c.bm + c.bn) * 4
    return stages + scales + ieee_bytes()


def _constraints(c: TensorConfig) -> Iterator[str]:
    """Two warpgroups of 64 rows, of the same or not, and a chunk of K in two stages of 64 bytes a row."""
    yield from exactly(c, bn=128, tm=c.bm // 16, tn=8)
    if c.bm not in (64, 128):
        yield f"BM = {c.bm} must be 64 or 128: rows of one warpgroup, or of two"
    if c.cluster > 1:
        yield from exactly(c, bm=128, split=1)
    if c.bm == 64:
        yield from multiple(c, "stages", 4, "a chunk of K is two, each the same warpgroup's every time")
    else:
        yield from multiple(c, "stages", 2, "a chunk of K is two")
    yield from multiple(c, "producers", 128, "a warpgroup copies")
    if c.cluster not in (1, 2):
        yield f"cluster = {c.cluster} must be 1 or 2"
    if c.stages < 4:
        yield f"stages = {c.stages} must be 4 or more: one chunk is read while the next comes"


def _older_constraints(c: TensorConfig) -> Iterator[str]:
    """Eight warps of 64 x 32, a stage of 64 bytes a row."""
    yield from exactly(c, bm=128, bn=128, tm=8, tn=8)
    yield from refilled(c)


def _candidates(kernel: Kernel, problem: Problem, machine: Machine, ready: str) -> Iterator[Estimated]:
    """Tiles of 128 rows, and of `_HALVED` those of 64 where all have an SM.

    With more rows of tiles pairs of blocks share their copies of B: 16384 gains 6 %, small products nothing.
    """
    p, scheme = problem, kernel.family.scheme
    assert scheme is not None
    paired = min(p.m, p.n) > ROWS * _MOST_UNPAIRED
    config = varied(default(scheme), accumulations=model.accumulations(scheme, p), cluster=2 if paired else 1)
    yield from model.sharing_k(kernel, config, p, machine, ready, whole=paired)
    half = varied(half_as_high(scheme), accumulations=config.accumulations)
    if scheme.name == _HALVED and half.tiles(p) <= machine.sms:
        yield from model.sharing_k(kernel, half, p, machine, ready, whole=True)


def _older_candidates(kernel: Kernel, problem: Problem, machine: Machine, ready: str) -> Iterator[Estimated]:
    return model.sharing_k(kernel, _fitting(kernel, machine.arch), problem, machine, ready, whole=True)


def _product(scheme: Scheme) -> Kernel:
    return Kernel(
        -1, scheme.name, f"{scheme.products} tensor-core products of {scheme.planes} planes, added up in FP32",
        default(scheme), _constraints, lambda config: _ring(config, scheme), dynamic=True, needs=("wgmma",),
        folder="emulated", source_name="product", defines={"SCHEME": scheme.code},
        family=family("wgmma", scheme, "ab", _candidates),
        tunes=frozenset({"stages", "raster", "producers", "registers", "accumulations", "cluster", "split"}))


def _older(scheme: Scheme) -> Kernel:
    """For GPUs without wgmma; half tiles are rerouted in the place of the stages."""
    return Kernel(
        -1, scheme.name, f"{scheme.products} tensor-core products of {scheme.planes} planes by mma.sync",
        TensorConfig(128, 128, scheme.chunk, 8, 8, stages=3 if scheme.planes == 3 else 4, raster=8), _older_constraints,
        lambda c: c.stages * scheme.planes * 2 * ROWS * 64 + (c.stages // 2 + 1) * 2 * TAIL, dynamic=True,
        needs=("cp.async",), outdone_by="wgmma", folder="emulated", source_name="product_mma",
        defines={"SCHEME": scheme.code}, family=family("mma", scheme, "ab", _older_candidates),
        tunes=frozenset({"stages", "raster"}))


PRODUCTS: Mapping[str, Kernel] = {name: _product(scheme) for name, scheme in SCHEMES.items()}
OLDER: Mapping[str, Kernel] = {name: _older(scheme) for name, scheme in SCHEMES.items()}


def half_as_high(scheme: Scheme) -> TensorConfig:
    """The configuration of a scheme's kernel on sm_90 for tiles of 64 rows: twice as many blocks have one."""
    return varied(default(scheme), bm=64, tm=4, stages=4 if scheme.planes == 3 else 8)


def product_on(scheme: Scheme, arch: Architecture) -> tuple[Kernel, TensorConfig]:
    """The kernel for a scheme on ``arch``, with as many stages as fit."""
    if "wgmma" in arch.features:
        return PRODUCTS[scheme.name], PRODUCTS[scheme.name].default
    return OLDER[scheme.name], _fitting(OLDER[scheme.name], arch)


def _fitting(kernel: Kernel, arch: Architecture) -> TensorConfig:
    config: TensorConfig = kernel.default
    while kernel.shared_bytes(config) > arch.shared_per_block and config.stages > 2:
        config = replace(config, stages=config.stages - 1)
    return config


class SplitOperand:
    """The split of an operand by itself, once for many products: of ``side`` ``"a"`` or ``"b"``, whose panels differ,
    as columns of B may share a scale.

    Attributes:
        bytes: device memory for it, `PANELS` of them before the panels.
    """

    PANELS = HEAD

    def __init__(self, scheme: Scheme, problem: Problem, gpu: Gpu, side: str = "b") -> None:
        other_is_ready = (0, 1) if side == "a" else (1, 0)
        plan = launches(*product_on(scheme, gpu.limits), problem, gpu.arch, gpu.sm_count, *other_is_ready)
        self.bytes = plan.workspace_bytes
        self._split, = enqueuing(plan.kernels[:1], f"{scheme.name} {problem.layout}", gpu)

    def launch(self, operand: int, memory: int, stream: int) -> None:
        """Enqueue the split of ``operand`` into ``memory``.

        Raises:
            LaunchFailed: the driver's refusal.
        """
        enqueue, _ = self._split
        enqueue(operand, operand, memory, memory, memory, stream)
