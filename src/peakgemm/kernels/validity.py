"""The one predicate: may this kernel run with this config, on this architecture, for this problem?

The launcher, the sweep, the tests and the command line all ask here, so a constraint is
written once and every refusal names the constraint, the value and the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime.architectures import Architecture
from ..runtime.tensor_map import MAX_LD
from .ffma import chain, skinny, small, wide
from .registry import Kernel
from .schedule import cluster_split

_TILE = frozenset({"bm", "bn", "bk", "tm", "tn", "aligned"})
PRODUCER_REGISTERS = 40
CLUSTERS = 2, 4, 8, 16  # blocks of a cluster that have parts of one small tile's K


def violations(kernel: Kernel, config: Config, arch: Architecture, problem: Problem | None = None) -> list[str]:
    """Every constraint that ``config`` breaks; an empty list means that it is valid.

    With a ``problem``, an aligned config must also suit its sizes, leading dimensions and addresses, and a kernel that
    repacks operands its batch.
    """
    broken = list(_tile(kernel, config))
    if broken:  # the formulas below divide by what has just been found wrong
        return broken
    broken += _resources(kernel, config, arch)
    broken += _handed(config)
    if problem is not None and config.aligned:
        broken += _alignment(kernel, config, problem)
    if problem is not None and kernel.name == wide.KERNEL:
        broken += wide.constraints(problem)
    return broken


def is_valid(kernel: Kernel, config: Config, arch: Architecture, problem: Problem | None = None) -> bool:
    """Whether `violations` finds none."""
    return not violations(kernel, config, arch, problem)


def require(kernel: Kernel, config: Config, arch: Architecture, problem: Problem | None = None) -> None:
    """Raise `InvalidValue` naming every broken constraint."""
    broken = violations(kernel, config, arch, problem)
    if broken:
        what = "rung" if kernel.folder == "ladder" else "kernel"
        raise InvalidValue(f"{what} {kernel.label} cannot use the tile {config.label()} on {arch.name}: "
                           + "; ".join(broken))


def _multiple(config: Config, name: str, of: int, why: str) -> Iterator[str]:
    if getattr(config, name) % of:
        yield f"{name.upper()} = {getattr(config, name)} must be a multiple of {of} ({why})"


def _exactly(config: Config, **wanted: int) -> Iterator[str]:
    for name, value in wanted.items():
        if getattr(config, name) != value:
            yield f"{name.upper()} = {getattr(config, name)} must be {value}"


def _tile(kernel: Kernel, c: Config) -> Iterator[str]:
    for f in fields(c):
        if f.name not in _TILE and f.name not in kernel.tunes and getattr(c, f.name) != getattr(kernel.default, f.name):
            yield f"{f.name} = {getattr(c, f.name)}: this kernel has it fixed at {getattr(kernel.default, f.name)}"
    bad = [*_multiple(c, "bm", c.tm, "TM"), *_multiple(c, "bn", c.tn, "TN")]
    if bad:
        yield from bad
        return
    threads = c.threads * c.slices
    if threads % 32 or not 32 <= threads <= 1024:
        yield (f"(BM/TM)(BN/TN){' slices' * (c.slices > 1)} = {threads} threads must be a multiple of 32, "
               "1024 at most")
        return
    yield from _SHAPES[kernel.shape](c)


def _one_output(c: Config) -> Iterator[str]:
    yield from _exactly(c, bk=1, tm=1, tn=1)


def _direct(c: Config) -> Iterator[str]:
    yield from _exactly(c, bk=4)
    if (c.passes, c.fragments) not in ((1, 1), (4, 1), (1, 2)):
        yield f"passes = {c.passes}, fragments = {c.fragments} must be (1, 1), (4, 1) or (1, 2)"
    width = 8 if c.passes == 4 else 4
    yield from _multiple(c, "tn", width, "float4 columns")
    yield from _multiple(c, "tm", width // 4, "passes")


def _square_tile(c: Config) -> Iterator[str]:
    yield from _exactly(c, bn=c.bm, bk=c.bm, tm=1, tn=1)


def _one_float4(c: Config) -> Iterator[str]:
    yield from _multiple(c, "bk", 4, "float4 of A")
    yield from _multiple(c, "tn", 4, "float4 of B")
    if c.tm not in (1, 4, 8) or c.tn not in (4, 8):
        yield f"thread tile {c.tm}x{c.tn} must be 1x4, 4x4 or 8x8"
    for name, elements in (("BM BK", c.bm * c.bk), ("BK BN", c.bk * c.bn)):
        if elements != 4 * c.threads:
            yield f"{name} = {elements} must be 4 x {c.threads} threads: each copies one float4 of each tile"


def _staged(c: Config) -> Iterator[str]:
    """Tiles copied in whole rounds of float4 by all threads."""
    yield from _multiple(c, "tm", 4, "float4 fragments")
    yield from _multiple(c, "tn", 4, "float4 fragments")
    yield from _multiple(c, "bk", 4, "float4 of A")
    yield from _multiple(c, "bn", 4, "float4 of B")
    for name, floats, row in (("A", c.bm * c.bk, c.bk), ("B", c.bk * c.bn, c.bn)):
        if floats % (4 * c.threads):
            yield (f"tile of {name}: {floats} floats must be a multiple of 4 x {c.threads} threads, "
                   "whole rounds of one float4 a thread")
        elif row % 4 == 0 and c.threads % (row // 4):
            yield f"{c.threads} threads must be a multiple of the {row // 4} float4 in a row of the tile of {name}"


def _template(c: Config) -> Iterator[str]:
    yield from _staged(c)
    if (c.stages, c.fragments) not in ((1, 1), (2, 2)):
        yield f"stages = {c.stages}, fragments = {c.fragments} must be (1, 1), or (2, 2) for double buffering"


def _warp_tile(c: Config) -> Iterator[str]:
    yield from _multiple(c, "bm", 8 * c.tm, "8 lanes of TM rows")
    yield from _multiple(c, "bn", 4 * c.tn, "4 lanes of TN columns")


def _warp_staged(c: Config) -> Iterator[str]:
    yield from _staged(c)
    yield from _exactly(c, fragments=2)
    yield from _warp_tile(c)


def _multistage(c: Config) -> Iterator[str]:
    yield from _exactly(c, fragments=2)
    yield from _multiple(c, "tm", 4, "float4 fragments")
    yield from _multiple(c, "tn", 4, "float4 fragments")
    yield from _warp_tile(c)
    yield from _multiple(c, "bk", 8, "copies of A are 8 k-steps wide")
    yield from _multiple(c, "bm", c.threads // 8, "rows of A that a round of copies covers")
    if c.threads % c.bn:
        yield f"{c.threads} threads must be a multiple of BN = {c.bn}: a round of copies covers whole rows of B"
    elif c.bk % (4 * c.threads // c.bn):
        yield f"BK = {c.bk} must be a multiple of the {4 * c.threads // c.bn} rows of B that a round of copies covers"
    if c.stages < 2:
        yield f"stages = {c.stages} must be at least 2: one is read while another is filled"


def _stored(c: Config) -> Iterator[str]:
    """Thread tiles that include/epilogue/tile_store.cuh stores."""
    yield from _multiple(c, "tm", 4, "float4 fragments")
    if c.tn != 4:
        yield from _multiple(c, "tn", 8, "a round of 32 lanes stores whole rows of a warp's 4 TN columns (or 4)")
    yield from _warp_tile(c)


def two_rows(c: Config) -> bool:
    """Whether four slices share a tile of ffma/specialised.cu by 2 x 4 results a thread."""
    return (c.slices, c.tm, c.tn) == (4, 2, 4)


def reduces_across_slices(c: Config) -> bool:
    """Whether all threads of a block of ffma/specialised.cu add up and store its tile
    (include/epilogue/slice_reduction.cuh)."""
    return c.slices > 1 and c.tm * c.tn <= 16


def _specialised(c: Config) -> Iterator[str]:
    yield from _exactly(c, fragments=2, passes=1)
    if two_rows(c):  # which are stored by all threads, not by quads of rows
        yield from _warp_tile(c)
    else:
        yield from _stored(c)
    if c.bk not in (8, 16, 32):
        yield f"BK = {c.bk} must be 8, 16 or 32: copies of a K-contiguous operand are 8 k-steps wide"
    if c.producers not in (32, 64, 128, 256):
        yield f"producers = {c.producers} must be 32, 64, 128 or 256: they cover whole rows of both tiles"
    elif c.copy_groups not in (1, 2, 4, 8) or c.producers % (32 * c.copy_groups) or c.copy_groups > c.stages:
        yield (f"copy_groups = {c.copy_groups} of {c.producers} copying threads and {c.stages} stages must be 1, 2, 4 "
               "or 8, of whole warps, with a stage each")
    else:
        covered = c.producers // c.copy_groups // 8
        yield from _multiple(c, "bm", min(c.bm, covered), "rows of A that a round of copies covers")
        yield from _multiple(c, "bn", min(c.bn, covered), "rows of B that a round of copies covers")
    if c.stages % c.slices or c.stages < 2 * c.slices:
        yield (f"stages = {c.stages} must be a multiple of slices = {c.slices}, twice as many at least: a slice reads "
               "the same stages in turn, and one tile ahead")
    if c.block_threads > 1024:
        yield f"{c.block_threads} threads a block: 1024 at most; make slices = {c.slices} or the tile smaller"
    if c.cluster > 1 and c.split != 1:
        yield f"split = {c.split} must be 1: a cluster has one tile"
    elif c.one_tile and c.split < 1:
        yield f"split = {c.split} must be 1 or more: a block has one tile, or one part of it"
    if c.cluster > 1 and not (cluster_split(c) and c.cluster in CLUSTERS and reduces_across_slices(c)):
        yield (f"cluster = {c.cluster} must be 1, or 2, 4, 8 or 16 where a block has one tile that all its threads "
               "store (include/epilogue/cluster_split_k.cuh)")
    if c.block_threads <= 1024 and c.registers:
        compute = c.threads * c.slices
        pool = 65536 // (c.block_threads * c.min_blocks) // 8 * 8 * c.block_threads
        dealt = c.registers * compute + PRODUCER_REGISTERS * c.producers
        if c.producers % 128 or compute % 128 or c.registers % 8 or not 24 <= c.registers <= 240 or dealt > pool:
            yield (f"registers = {c.registers}: dealing them anew wants whole warpgroups ({compute} and {c.producers} "
                   f"threads), a multiple of 8 up to 240, and {dealt} of at most {pool} in all")


def _handed(c: Config) -> Iterator[str]:
    """What accumulators handed on ask for: one chain a result, and blocks that go on to other tiles."""
    if c.handed and (c.split or c.slices > 1 or c.cluster > 1 or c.chunked or c.one_tile):
        yield (f"handed: split = {c.split}, slices = {c.slices}, cluster = {c.cluster}, chunked = {c.chunked}, "
               f"one_tile = {c.one_tile} must be 0, 1, 1, False and False: accumulators are those of one chain")


def _boxes(c: Config) -> Iterator[str]:
    """Two warpgroups that compute, and boxes that tensor maps can describe."""
    yield from _exactly(c, fragments=2)
    yield from _multiple(c, "tm", 4, "float4 fragments")
    yield from _multiple(c, "tn", 4, "float4 fragments")
    yield from _warp_tile(c)
    yield from wide.boxed(c)
    if c.bk not in (8, 16, 32):
        yield f"BK = {c.bk} must be 8, 16 or 32: a row of A's box is the span of a swizzle"
    held = c.tm * c.tn + c.fragments * (c.tm + c.tn)
    if held > c.registers:
        yield f"registers: {held} for accumulators and fragments, {c.registers} dealt; make TM x TN smaller"


def _carried(c: Config) -> Iterator[str]:
    """Tiles carried through registers in whole rounds of one word a thread."""
    yield from _stored(c)
    for name, floats in (("BM BK", c.bm * c.bk), ("BN BK", c.bn * c.bk)):
        if floats % c.threads:
            yield f"{name} = {floats} must be a multiple of {c.threads} threads: each carries as many words"


def _wgmma(c: Config) -> Iterator[str]:
    """Two warpgroups of 64 rows, of the same or not, and a chunk of K in two stages of 64 bytes a row."""
    yield from _exactly(c, bn=128, tm=c.bm // 16, tn=8, min_blocks=1, slices=1)
    if c.bm not in (64, 128):
        yield f"BM = {c.bm} must be 64 or 128: rows of one warpgroup, or of two"
    if c.cluster > 1:
        yield from _exactly(c, bm=128, split=1)
    if c.bm == 64:
        yield from _multiple(c, "stages", 4, "a chunk of K is two, each the same warpgroup's every time")
    else:
        yield from _multiple(c, "stages", 2, "a chunk of K is two")
    yield from _multiple(c, "producers", 128, "a warpgroup copies")
    if c.cluster not in (1, 2):
        yield f"cluster = {c.cluster} must be 1 or 2"
    if c.stages < 4:
        yield f"stages = {c.stages} must be 4 or more: one chunk is read while the next comes"


def _dealt(c: Config) -> Iterator[str]:
    """An SM's registers, dealt in eights: so many to each of those who multiply, the rest to who copies."""
    threads = c.threads + c.producers
    rest = ((1 << 16) // threads // 8 * 8 * threads - c.threads * c.registers) // max(c.producers, 1) // 8 * 8
    if c.registers % 8 or not 24 <= c.registers <= 240 or not rest >= 24:
        yield (f"registers = {c.registers} must be a multiple of 8 from 24 to 240 that leaves {c.producers} producers "
               f"24 each; it leaves {rest}")


def _fused(c: Config) -> Iterator[str]:
    """Two warpgroups of 64 rows, and others that copy A and split 16 columns of B a warp."""
    yield from _exactly(c, bm=128, bn=64, bk=64, tm=8, tn=4, min_blocks=1, slices=1, cluster=1)
    yield from _multiple(c, "producers", 128, "a warpgroup copies a chunk")
    if not 128 <= c.producers <= 128 * c.stages:
        yield f"producers = {c.producers} must be 128 to {128 * c.stages}: a stage for each warpgroup"
    yield from _dealt(c)
    if c.stages < 2:
        yield f"stages = {c.stages} must be at least 2: one is read while another is filled"


def _streamed(c: Config) -> Iterator[str]:
    """Two warpgroups of 64 rows, which multiply 64 columns at a time."""
    yield from _exactly(c, bk=64, tm=8, tn=c.bn // 16, min_blocks=1, slices=1, producers=128, cluster=1)
    if (c.bm, c.bn) not in ((128, 64), (128, 128)):
        yield f"BM x BN = {c.bm} x {c.bn} must be 128 x 64 or 128 x 128: strips of columns of one panel"
    yield from _dealt(c)
    if c.stages < 2:
        yield f"stages = {c.stages} must be at least 2: one is read while another is filled"


def _mma(c: Config) -> Iterator[str]:
    """Eight warps of 64 x 32, a stage of 64 bytes a row."""
    yield from _exactly(c, bm=128, bn=128, tm=8, tn=8)
    if c.stages < 2:
        yield f"stages = {c.stages} must be 2 or more: one is read while the next comes"


def _split_tile(c: Config) -> Iterator[str]:
    yield from _exactly(c, bm=128, bn=128, bk=64, tm=8, tn=8)
    if c.stages < 2:
        yield f"stages = {c.stages} must be at least 2: one is read while another is filled"


_SHAPES = {
    "split tile": _split_tile,
    "wgmma": _wgmma, "fused": _fused, "streamed": _streamed, "mma": _mma,
    "specialised": _specialised, "staged": _carried, "skinny": skinny.constraints,
    "small": small.constraints, "wide": wide.shape,
    "chain": chain.constraints,
    "one output": _one_output, "direct": _direct, "square tile": _square_tile, "one float4": _one_float4,
    "template": _template, "warp tile": _warp_staged, "multistage": _multistage, "warp specialised": _boxes,
}


def _resources(kernel: Kernel, c: Config, arch: Architecture) -> Iterator[str]:
    if lacking := kernel.lacks(arch):
        yield f"{lacking}, not {arch.name}"
    elif c.cluster > 1 and arch.number != 90:
        yield f"cluster = {c.cluster}: measured on sm_90 alone, not {arch.name}; use 1"
    elif c.registers and arch.number != 90:
        yield f"registers = {c.registers}: setmaxnreg is for sm_90, not {arch.name}; use 0"
    shared = kernel.shared_bytes(c)
    room = arch.shared_per_block if kernel.dynamic else arch.static_shared
    if shared > room:
        yield f"shared memory: {shared} bytes asked, {room} there; make BM, BN, BK or the stages smaller"
    # The least that the thread must hold: accumulators and fragments.
    registers = c.tm * c.tn + c.fragments * (c.tm + c.tn)
    if registers > arch.registers_per_thread:
        yield (f"registers: {registers} a thread ({4 * registers} bytes) for accumulators and fragments, "
               f"{arch.registers_per_thread} ({4 * arch.registers_per_thread} bytes) there; make TM x TN smaller")
    elif registers * c.threads * c.slices * c.min_blocks > arch.registers_per_sm:
        asked = 4 * registers * c.threads * c.slices * c.min_blocks
        yield (f"registers: {asked} bytes asked by {c.min_blocks} block(s) of {c.threads * c.slices} threads, "
               f"{4 * arch.registers_per_sm} there; make TM x TN or the block smaller")


def _alignment(kernel: Kernel, c: Config, p: Problem) -> Iterator[str]:
    if kernel.tensor_copies:  # zeros arrive where a box passes the edge, so any size will do that a map can describe
        if p.k == 0:
            yield "K = 0: a tensor map describes one element at least"
        for name, ld in (("lda", p.lda), ("ldb", p.ldb)):
            if ld > MAX_LD:
                yield f"{name} = {ld} elements: a tensor map describes {MAX_LD} at most"
    else:
        for name, size, tile in (("M", p.m, c.bm), ("N", p.n, c.bn), ("K", p.k, c.bk)):
            if size % tile:
                yield f"{name} = {size} is not a multiple of the tile's {tile}"
    what = "a tensor map" if kernel.tensor_copies else "float4"
    for matrix, ld, address in zip("abc", (p.lda, p.ldb, p.ldc), p.alignment, strict=True):
        if matrix in kernel.vectors and (ld % 4 or address < 16):
            yield f"ld{matrix} = {ld} elements, address aligned to {address} bytes: {what} wants 4 and 16"


def choose(kernel: Kernel, config: Config, arch: Architecture, problem: Problem) -> Config:
    """The aligned compilation of ``config`` where the predicate allows it, else the guarded one.

    Raises:
        InvalidValue: a tile that is valid in neither.
    """
    fast = replace(config, aligned=True)
    if is_valid(kernel, fast, arch, problem):
        return fast
    require(kernel, config.guarded(), arch, problem)
    return config.guarded()
