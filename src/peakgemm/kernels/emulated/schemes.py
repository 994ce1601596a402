"""What kernels that compute FP32 products on tensor cores have in common: schemes, split operands in memory, launches.

An operand is split into planes of narrower floats whose sum it is, by a pass of its own (split.cu) or on its way; their
products are added up in FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from struct import Struct

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime import source
from ...runtime.architectures import Architecture, architecture
from ..family import MAX_BLOCKS, Estimated, Family, Launch, Launches
from ..ffma.tiled import schedule
from ..recipe import Recipe, text_of, triangle_macro
from ..registry import Kernel
from ..schedule import arguments, cut
from ..widths import widths

ROWS = 128          # of a panel
HEAD = 256          # bytes at the start of a workspace: struct Progress,
REROUTED = 4        # in which, this many bytes on, the rerouted half tiles are counted
_THREADS = 256      # of a block that splits, or adds up partial sums
_SPLIT, _REDUCE = source.KERNELS / "emulated" / "split.cu", source.KERNELS / "emulated" / "reduce.cu"
TAIL = ROWS * 4 + 32 + ROWS  # bytes beside a panel's planes: scales, summary, counts
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
        return -(-(self.planes * ROWS * 128 + TAIL) // 128) * 128  # the split pass builds one in shared memory


SCHEMES: Mapping[str, Scheme] = {scheme.name: scheme for scheme in (
    Scheme("fp16x3", 0, 2, 2, 3), Scheme("tf32x3", 1, 2, 4, 3), Scheme("bf16x9", 2, 3, 2, 9))}


def ieee_bytes() -> int:
    """What two warpgroups stage: 16 k-steps of an IEEE half tile's operands, or of each warp's results eight rows."""
    return 2 * max(16 * 2 * (ROWS // 2 + 1), 4 * 8 * _STAGED_PITCH) * 4


@dataclass(frozen=True, slots=True)
class TensorConfig(Config):
    """How products on tensor cores are cut."""

    traits = "alternate", "in_pairs", "meanwhile"
    stages: int = 1
    raster: int = 1
    producers: int = 0
    registers: int = 0
    split: int = 1
    cluster: int = 1         # blocks, one below the other, that share what they copy of B
    accumulations: int = 1   # how often a chunk's products are added up in FP32
    trans_c: bool = False    # C^T is computed

    @property
    def alternate(self) -> bool:
        """Whether both warpgroups have the same rows, and every other chunk each: to the tensor cores that is the same,
        and twice as many SMs have a tile."""
        return self.bm == 64

    @property
    def in_pairs(self) -> bool:
        """Whether, while sums of 64 columns are scaled or promoted, the tensor cores multiply the 64 beside them: where
        there are two such strips, and registers for the sums of both."""
        return self.bn == 128 and self.accumulations <= 2

    @property
    def meanwhile(self) -> bool:
        """Whether they multiply corrections meanwhile: of one strip, whose sums are added up twice a chunk."""
        return self.bn == 64 and self.accumulations == 2


@cache
def default(scheme: Scheme) -> TensorConfig:
    """The configuration of a scheme's kernel on sm_90."""
    return TensorConfig(128, 128, scheme.chunk, 8, 8, stages=4 if scheme.planes == 3 else 6, raster=16, producers=128,
                        registers=232)


def schemes_on(arch: Architecture) -> tuple[str, ...]:
    """The schemes that there are kernels for."""
    return tuple(SCHEMES) if arch.has_cp_async else ()


_turned = lru_cache(maxsize=16)(Problem.turned)  # a model asks for each of its candidates


def oriented(config: TensorConfig, problem: Problem) -> Problem:
    """The problem as a kernel with ``config`` sees it: C, or C^T, so that it splits rows of op(B) in registers."""
    return _turned(problem) if config.trans_c else problem


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


def launches(kernel: Kernel, config: TensorConfig, problem: Problem, arch: str, sm_count: int, ready_a: int = 0,
             ready_b: int = 0) -> Launches:
    """A split pass, the product, and where blocks share the K of tiles the sums of what they have left, as there are
    any; K and the result are not empty.

    ``ready_a`` and ``ready_b`` are addresses of panels split beforehand (0: split in each call, into the workspace).

    Raises:
        InvalidValue: more than 2**31 - 1 tiles or panels.
    """
    p, scheme, before = oriented(config, problem), kernel.family.scheme, kernel.family.panels
    assert scheme is not None
    if p.trans_c:
        ready_a, ready_b = ready_b, ready_a
    a = operand(scheme, p.m, p.k, p.batch.sizes, p.batch.a)
    b = operand(scheme, p.n, p.k, p.batch.sizes, p.batch.b)
    down, across = p.tiles(config.bm * config.cluster, config.bn)
    tiles = down * across * p.batch.count  # of a cluster
    if max(tiles, a.panels + b.panels) > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} x {p.k} x {p.batch.count} asks for {max(tiles, a.panels + b.panels)} tiles "
                           f"or panels, the limit is {MAX_BLOCKS}; split the product")
    shared_panels = p.one_operand and before == "ab" and not (ready_a or ready_b)  # those of B are those of A
    split_a, split_b = "a" in before and not (ready_a or shared_panels), "b" in before and not ready_b
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
        reduce_blocks = shared.shared * (config.bm * config.bn // (4 * _THREADS))
    meet = a.bytes + b.bytes > _L2_BYTES and tiles >= 2 * clusters
    a_row, a_col = (1, p.lda) if p.trans_a else (p.lda, 1)
    b_row, b_col = (p.ldb, 1) if p.trans_b else (1, p.ldb)
    struct = gemm + _TRAILER.pack(a_row, a_col, b_row, b_col, ready_a, ready_b, first + in_a, ahead, *a.steps, *b.steps,
                                  a.matrices * split_a, b.matrices * split_b, int(meet), 0)
    kernels = [Launch(kernel.recipe(config, problem, arch), blocks, config.block_threads, struct,
                      kernel.shared_bytes(config))]
    if split_blocks := a.panels * split_a + b.panels * split_b:
        kernels.insert(0, Launch(split_recipe(scheme, p, arch), split_blocks, _THREADS, struct, scheme.panel))
    if reduce_blocks:
        kernels.append(Launch(kernel.reduce_recipe(config, problem, arch), reduce_blocks, _THREADS, struct))
    return Launches(p, tuple(kernels), ahead + partial, -(-p.m // 64) * across * p.batch.count,
                    (HEAD, marks) if marks else (REROUTED, 1))


def recipe(kernel: Kernel, config: TensorConfig, problem: Problem, arch: str) -> Recipe:
    """What a product kernel is compiled from. The problem decides how it reads the operands that were not split before.
    """
    p, panels = oriented(config, problem), kernel.family.panels
    macros = config.macros() | dict(kernel.defines) | triangle_macro(problem)
    if p.sparse:
        macros |= {"FEWEST": 0}  # of include/split/guard.cuh
    a, b = widths(p)
    if "a" not in panels:
        macros |= {"TRANS_A": int(p.trans_a), "WIDTH_A": a}
    if "b" not in panels:  # which is read by words where B's columns are contiguous
        macros |= {"TRANS_B": int(p.trans_b), "WIDTH_B": b if p.trans_b else 1}
    return Recipe(kernel.source, kernel.entry, _target(arch), macros, kernel.path.name)


def split_recipe(scheme: Scheme, problem: Problem, arch: str) -> Recipe:
    """What the split pass is compiled from; ``problem`` as it sees it. A row's width matters where K is contiguous
    alone."""
    a, b = widths(problem)
    macros = default(scheme).tile.macros() | {
        "SCHEME": scheme.code, "TRANS_A": int(problem.trans_a), "TRANS_B": int(problem.trans_b),
        "WIDTH_A": 1 if problem.trans_a else a, "WIDTH_B": b if problem.trans_b else 1}
    return Recipe(text_of(_SPLIT), "tensor_split", _target(arch), macros, _SPLIT.name)


def reduce_recipe(kernel: Kernel, config: TensorConfig, problem: Problem, arch: str) -> Recipe:
    """What the kernel is compiled from that adds up what blocks have left of tiles whose K they shared."""
    assert kernel.family.scheme is not None
    macros = config.tile.macros() | {"RASTER": config.raster, "TRANS_C": int(config.trans_c),
                                     "SCHEME": kernel.family.scheme.code} | triangle_macro(problem)
    return Recipe(text_of(_REDUCE), "tensor_reduce", _target(arch), macros, _REDUCE.name)


def _target(arch: str) -> str:
    """Headers of all three passes use instructions of wgmma's architecture."""
    return architecture(arch).target(own=True)


def family(name: str, scheme: Scheme, panels: str, candidates: Callable[..., Iterable[Estimated]]) -> Family:
    """What kernels of a scheme have in common that read the operands ``panels`` split before."""
    return Family(recipe, reduce_recipe, launches, panels=panels, scheme=scheme, name=name, candidates=candidates,
                  numbers="emulated", triangles=panels == "ab")
