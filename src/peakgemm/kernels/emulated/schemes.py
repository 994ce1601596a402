"""The kernels that compute FP32 products on tensor cores: schemes, split operands in memory, launches.

An operand is split into planes of narrower floats whose sum it is (emulated/split.cu); another kernel multiplies
the planes and adds up in FP32 (emulated/product.cu).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from struct import Struct

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime.architectures import Architecture, architecture
from ..launch_shape import MAX_BLOCKS
from ..library import Recipe
from ..registry import Kernel
from ..schedule import arguments, cut, schedule
from ..widths import widths
from .orientation import oriented

ROWS = 128          # of a panel
HEAD = 256          # bytes at the start of a workspace: struct Progress,
REROUTED = 4        # in which, this many bytes on, the rerouted half tiles are counted
SPLIT_THREADS = 256
REDUCE_THREADS = 256
_TAIL = ROWS * 4 + 32 + ROWS  # bytes beside a panel's planes: scales, summary, counts
# What struct Emulated of include/split/split_panel.cuh holds after struct Gemm: 8 long long, 10 int.
_TRAILER = Struct("<8q10i")
_STAGED_PITCH = 72  # of include/epilogue/output.cuh
_L2_BYTES = 32 << 20  # panels that all blocks find in L2 even where they drift apart


@dataclass(frozen=True, slots=True)
class Scheme:
    """How an FP32 value is split: into ``planes`` floats of ``element`` bytes; ``products`` of planes are added."""

    name: str
    code: int
    planes: int
    element: int
    products: int

    @property
    def chunk(self) -> int:
        """K-steps of a panel, which share a scale: 128 bytes of each plane's row."""
        return 128 // self.element

    @property
    def panel(self) -> int:
        """Bytes from one panel to the next."""
        return -(-(self.planes * ROWS * 128 + _TAIL) // 128) * 128  # the split pass builds one in shared memory


SCHEMES: Mapping[str, Scheme] = {scheme.name: scheme for scheme in (
    Scheme("fp16x3", 0, 2, 2, 3), Scheme("tf32x3", 1, 2, 4, 3), Scheme("bf16x9", 2, 3, 2, 9))}


def _ring(c: Config, scheme: Scheme) -> int:
    """Bytes of the stages (half a panel of each operand), the scales, and what an IEEE half tile needs."""
    stages = c.stages * scheme.planes * (c.bm + c.bn) * 64
    scales = (c.stages // 2 + (2 if c.bm < ROWS else 1)) * (c.bm + c.bn) * 4
    return stages + scales + _ieee_bytes()


def _ieee_bytes() -> int:
    """What two warpgroups stage: 16 k-steps of an IEEE half tile's operands, or of each warp's results eight rows."""
    return 2 * max(16 * 2 * (ROWS // 2 + 1), 4 * 8 * _STAGED_PITCH) * 4


def _product(scheme: Scheme) -> Kernel:
    return Kernel(
        -1, scheme.name, f"{scheme.products} tensor-core products of {scheme.planes} planes, added up in FP32",
        Config(128, 128, scheme.chunk, 8, 8, stages=4 if scheme.planes == 3 else 6, raster=16, producers=128,
               registers=232),
        "wgmma", lambda config: _ring(config, scheme), dynamic=True, folder="emulated", source_name="product",
        defines={"SCHEME": scheme.code},
        tunes=frozenset({"bm", "tm", "stages", "raster", "producers", "registers", "accumulations", "cluster",
                         "split"}))


def _older(scheme: Scheme) -> Kernel:
    """For GPUs without wgmma; half tiles are rerouted in the place of the stages."""
    return Kernel(
        -1, scheme.name, f"{scheme.products} tensor-core products of {scheme.planes} planes by mma.sync",
        Config(128, 128, scheme.chunk, 8, 8, stages=3 if scheme.planes == 3 else 4, raster=8), "mma",
        lambda c: c.stages * scheme.planes * 2 * ROWS * 64 + (c.stages // 2 + 1) * 2 * _TAIL, dynamic=True,
        cp_async=True, folder="emulated", source_name="product_mma", defines={"SCHEME": scheme.code},
        tunes=frozenset({"stages", "raster"}))


PRODUCTS: Mapping[str, Kernel] = {name: _product(scheme) for name, scheme in SCHEMES.items()}
OLDER: Mapping[str, Kernel] = {name: _older(scheme) for name, scheme in SCHEMES.items()}


@cache
def half_as_high(scheme: Scheme) -> Config:
    """The configuration of a scheme's kernel on sm_90 for tiles of 64 rows: twice as many blocks have one."""
    config = PRODUCTS[scheme.name].default
    return replace(config, bm=64, tm=4, stages=4 if scheme.planes == 3 else 8)


def _streamed_ring(c: Config) -> int:
    """Bytes of the stages, the scales and summaries, and what an IEEE half tile needs for each 64 rows."""
    return (4 * c.bm * c.stages * 68 + c.stages * 4 * c.bn * 64 + (c.stages + 1) * (c.bn * 4 + 32)
            + c.bm // 64 * _ieee_bytes() // 2)


# A split in the registers of the threads that multiply; B goes through a split pass, or
STREAMED = Kernel(
    -1, "fp16x3", "the larger operand split in the registers of the threads that multiply",
    Config(128, 128, SCHEMES["fp16x3"].chunk, 8, 8, stages=3, raster=16, producers=128, registers=232), "streamed",
    _streamed_ring,
    dynamic=True, folder="emulated", source_name="streamed", defines={"SCHEME": SCHEMES["fp16x3"].code, "SPLIT_B": 0},
    tunes=frozenset({"bn", "tn", "stages", "raster", "registers", "accumulations", "trans_c", "split"}))

# is split on the way: one kernel, for products that a split pass of their own would hold up.
FUSED = Kernel(
    -1, "fp16x3", "both operands split on the way to the tensor cores, in one kernel",
    replace(STREAMED.default, bn=64, tn=4, stages=4, producers=256, registers=168), "fused", STREAMED.shared_bytes,
    dynamic=True, folder="emulated", source_name="streamed", defines={"SCHEME": SCHEMES["fp16x3"].code, "SPLIT_B": 1},
    tunes=frozenset({"stages", "raster", "producers", "registers", "accumulations", "trans_c", "split"}))


@cache
def streamed(columns: int) -> Config:
    """The configuration of `STREAMED` for tiles of 64 or 128 columns."""
    if columns == 128:
        return STREAMED.default
    return replace(STREAMED.default, bn=columns, tn=columns // 16, stages=4, registers=200)


def scheme_of(kernel: Kernel) -> Scheme | None:
    """The scheme of a tensor-core kernel; None: it is an FFMA kernel."""
    if kernel in (FUSED, STREAMED):
        return SCHEMES[kernel.name]
    return SCHEMES[kernel.name] if kernel in (PRODUCTS.get(kernel.name), OLDER.get(kernel.name)) else None


def schemes_on(arch: Architecture) -> tuple[str, ...]:
    """The schemes that there are kernels for."""
    return tuple(SCHEMES) if arch.has_cp_async else ()


def product_on(scheme: Scheme, arch: Architecture) -> tuple[Kernel, Config]:
    """The kernel for a scheme on ``arch``, with as many stages as fit."""
    if arch.number == 90:
        return PRODUCTS[scheme.name], PRODUCTS[scheme.name].default
    kernel = OLDER[scheme.name]
    config = kernel.default
    while kernel.shared_bytes(config) > arch.shared_per_block and config.stages > 2:
        config = replace(config, stages=config.stages - 1)
    return kernel, config


def target(arch: str) -> str:
    """What to compile for: wgmma and setmaxnreg are in ``sm_90a`` alone."""
    name = architecture(arch).name
    return f"{name}a" if architecture(arch).number == 90 else name


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand split: how many panels, and where the matrix of each product of the batch lies."""

    matrices: int
    panels: int
    steps: tuple[int, int, int]  # split matrices from one to the next along each level; 0: broadcast
    bytes: int


def operand(scheme: Scheme, rows: int, k: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
    """The panels of an operand of ``rows`` x ``k`` (op(A), or op(B) transposed); broadcast levels are split once."""
    kept = tuple(size if stride else 1 for size, stride in zip(sizes, strides, strict=True))
    steps = tuple(prod(kept[i + 1:]) if stride and size > 1 else 0
                  for i, (size, stride) in enumerate(zip(sizes, strides, strict=True)))
    matrices = prod(kept)
    panels = matrices * -(-rows // ROWS) * -(-k // scheme.chunk)
    padded = (0,) * (3 - len(steps)) + steps
    return Operand(matrices, panels, (padded[0], padded[1], padded[2]), panels * scheme.panel)


@dataclass(frozen=True, slots=True)
class Emulation:
    """The launches of one emulated product: a split pass of ``split_blocks``, the product, and where blocks share the K
    of tiles ``reduce_blocks`` that add up what they have left.

    ``problem`` is what the kernels see; where that is C^T, `turned <peakgemm.problem.Problem.turned>`, B's address is
    passed as A's. ``counters``: where the workspace tells what was rerouted, (bytes from its start, how many int32 to
    add up). ``ready_a`` and ``ready_b`` are addresses of panels split beforehand (0: split in each call, into the
    workspace).
    """

    problem: Problem
    split_blocks: int
    blocks: int
    reduce_blocks: int
    workspace_bytes: int
    counters: tuple[int, int]
    arguments: bytes


def split_before(kernel: Kernel, config: Config) -> str:
    """The operands, of ``"ab"``, that ``kernel`` reads as panels."""
    panels = _panels(kernel)
    return "a" if panels == "b" and config.trans_c else panels


def _panels(kernel: Kernel) -> str:
    """The same of the problem as the kernel sees it."""
    return "" if kernel == FUSED else "b" if kernel == STREAMED else "ab"


def emulation(kernel: Kernel, config: Config, problem: Problem, sm_count: int, ready_a: int = 0,
              ready_b: int = 0) -> Emulation:
    """How a product by a tensor-core ``kernel`` is launched; K and the result are not empty.

    Raises:
        InvalidValue: more than 2**31 - 1 tiles or panels.
    """
    p, scheme, before = oriented(config, problem), scheme_of(kernel), _panels(kernel)
    assert scheme is not None
    if p.trans_c:
        ready_a, ready_b = ready_b, ready_a
    a = operand(scheme, p.m, p.k, p.batch.sizes, p.batch.a)
    b = operand(scheme, p.n, p.k, p.batch.sizes, p.batch.b)
    down = -(-p.m // (config.bm * config.cluster))
    across = -(-p.n // config.bn)
    tiles = down * across * p.batch.count  # of a cluster
    if max(tiles, a.panels + b.panels) > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} x {p.k} x {p.batch.count} asks for {max(tiles, a.panels + b.panels)} tiles "
                           f"or panels, the limit is {MAX_BLOCKS}; split the product")
    split_a, split_b = "a" in before and not ready_a, "b" in before and not ready_b
    in_a, in_b = a.bytes * split_a, b.bytes * split_b
    marks = 0 if before == "ab" else config.bm // 64 * tiles  # of each half tile, whether it was rerouted
    first = HEAD + -(-4 * marks // 256) * 256  # panel
    ahead = first + in_a + in_b
    clusters = sm_count // config.cluster
    blocks, partial, reduce_blocks = min(tiles, clusters) * config.cluster, 0, 0
    gemm = arguments(p, tiles, 0, 0, 0, cut(down, across, config.raster))
    if config.split != 1:
        shared = schedule(config, p, sm_count)
        blocks, gemm, partial = shared.blocks, shared.arguments, shared.workspace_bytes
        reduce_blocks = shared.shared * (config.bm * config.bn // (4 * REDUCE_THREADS))
    meet = a.bytes + b.bytes > _L2_BYTES and tiles >= 2 * clusters
    a_row, a_col = (1, p.lda) if p.trans_a else (p.lda, 1)
    b_row, b_col = (p.ldb, 1) if p.trans_b else (1, p.ldb)
    trailer = _TRAILER.pack(a_row, a_col, b_row, b_col, ready_a, ready_b, first + in_a,
                            ahead, *a.steps, *b.steps, a.matrices * split_a, b.matrices * split_b, int(meet), 0)
    return Emulation(p, a.panels * split_a + b.panels * split_b, blocks, reduce_blocks, ahead + partial,
                     (HEAD, marks) if marks else (REROUTED, 1), gemm + trailer)


def _reading(problem: Problem) -> dict[str, int]:
    a, b = widths(problem)
    return {"TRANS_A": int(problem.trans_a), "TRANS_B": int(problem.trans_b),
            "WIDTH_A": 1 if problem.trans_a else a, "WIDTH_B": b if problem.trans_b else 1}


def split_recipe(scheme: Scheme, problem: Problem, arch: str) -> Recipe:
    """What the split pass is compiled from; ``problem`` as it sees it. A row's width matters where K is contiguous
    alone."""
    macros = replace(PRODUCTS[scheme.name].default, raster=1).macros() | {"SCHEME": scheme.code} | _reading(problem)
    return Recipe(_SPLIT.source, _SPLIT.entry, target(arch), macros, _SPLIT.path.name)


def product_recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What a product kernel is compiled from; of the problem, as it sees it, how operands are read that were not split
    before."""
    macros = config.macros() | dict(kernel.defines)
    a, b = widths(problem)
    if kernel in (FUSED, STREAMED):
        macros |= {"TRANS_A": int(problem.trans_a), "WIDTH_A": a}
    if kernel == FUSED:  # which reads B's rows by words where its columns are contiguous
        macros |= {"TRANS_B": int(problem.trans_b), "WIDTH_B": b if problem.trans_b else 1}
    return Recipe(kernel.source, kernel.entry, target(arch), macros, kernel.path.name)


def reduce_recipe(scheme: Scheme, config: Config, arch: str) -> Recipe:
    """What the kernel is compiled from that adds up what blocks have left of tiles whose K they shared."""
    macros = replace(config, stages=2, registers=0, producers=0, accumulations=1).macros()
    return Recipe(_REDUCE.source, _REDUCE.entry, target(arch), macros | {"SCHEME": scheme.code}, _REDUCE.path.name)


_SPLIT = Kernel(-1, "split", "FP32 operands to planes of narrower floats", PRODUCTS["fp16x3"].default, "wgmma",
                folder="emulated")
_REDUCE = Kernel(-1, "reduce", "partial sums of tiles added up", PRODUCTS["fp16x3"].default, "wgmma", folder="emulated")
