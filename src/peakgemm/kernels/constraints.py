"""What kernels ask of a config's tile: the rungs' constraints, and those that kernels of the library share with them.

Each yields, in words, every constraint that a config breaks; `validity` adds what the architecture allows.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..problem import Config
from ..runtime.tensor_map import MAX_SIDE


def multiple(config: Config, name: str, of: int, why: str) -> Iterator[str]:
    if getattr(config, name) % of:
        yield f"{name.upper()} = {getattr(config, name)} must be a multiple of {of} ({why})"


def exactly(config: Config, **wanted: int) -> Iterator[str]:
    for name, value in wanted.items():
        if getattr(config, name) != value:
            yield f"{name.upper()} = {getattr(config, name)} must be {value}"


def refilled(c: Config) -> Iterator[str]:
    if c.stages < 2:
        yield f"stages = {c.stages} must be at least 2: one is read while another is filled"


def quads(c: Config) -> Iterator[str]:
    yield from multiple(c, "tm", 4, "float4 fragments")
    yield from multiple(c, "tn", 4, "float4 fragments")


def one_output(c: Config) -> Iterator[str]:
    yield from exactly(c, bk=1, tm=1, tn=1)


def direct(c: Config) -> Iterator[str]:
    yield from exactly(c, bk=4)
    if (c.passes, c.fragments) not in ((1, 1), (4, 1), (1, 2)):
        yield f"passes = {c.passes}, fragments = {c.fragments} must be (1, 1), (4, 1) or (1, 2)"
    width = 8 if c.passes == 4 else 4
    yield from multiple(c, "tn", width, "float4 columns")
    yield from multiple(c, "tm", width // 4, "passes")


def square_tile(c: Config) -> Iterator[str]:
    yield from exactly(c, bn=c.bm, bk=c.bm, tm=1, tn=1)


def one_float4(c: Config) -> Iterator[str]:
    yield from multiple(c, "bk", 4, "float4 of A")
    yield from multiple(c, "tn", 4, "float4 of B")
    if c.tm not in (1, 4, 8) or c.tn not in (4, 8):
        yield f"thread tile {c.tm}x{c.tn} must be 1x4, 4x4 or 8x8"
    for name, elements in (("BM BK", c.bm * c.bk), ("BK BN", c.bk * c.bn)):
        if elements != 4 * c.threads:
            yield f"{name} = {elements} must be 4 x {c.threads} threads: each copies one float4 of each tile"


def staged(c: Config) -> Iterator[str]:
    """Tiles copied in whole rounds of float4 by all threads."""
    yield from quads(c)
    yield from multiple(c, "bk", 4, "float4 of A")
    yield from multiple(c, "bn", 4, "float4 of B")
    for name, floats, row in (("A", c.bm * c.bk, c.bk), ("B", c.bk * c.bn, c.bn)):
        if floats % (4 * c.threads):
            yield (f"tile of {name}: {floats} floats must be a multiple of 4 x {c.threads} threads, "
                   "whole rounds of one float4 a thread")
        elif row % 4 == 0 and c.threads % (row // 4):
            yield f"{c.threads} threads must be a multiple of the {row // 4} float4 in a row of the tile of {name}"


def template(c: Config) -> Iterator[str]:
    yield from staged(c)
    if (c.stages, c.fragments) not in ((1, 1), (2, 2)):
        yield f"stages = {c.stages}, fragments = {c.fragments} must be (1, 1), or (2, 2) for double buffering"


def warp_tile(c: Config) -> Iterator[str]:
    yield from multiple(c, "bm", 8 * c.tm, "8 lanes of TM rows")
    yield from multiple(c, "bn", 4 * c.tn, "4 lanes of TN columns")


def warp_staged(c: Config) -> Iterator[str]:
    yield from staged(c)
    yield from exactly(c, fragments=2)
    yield from warp_tile(c)


def multistage(c: Config) -> Iterator[str]:
    yield from exactly(c, fragments=2)
    yield from quads(c)
    yield from warp_tile(c)
    yield from multiple(c, "bk", 8, "copies of A are 8 k-steps wide")
    yield from multiple(c, "bm", c.threads // 8, "rows of A that a round of copies covers")
    if c.threads % c.bn:
        yield f"{c.threads} threads must be a multiple of BN = {c.bn}: a round of copies covers whole rows of B"
    elif c.bk % (4 * c.threads // c.bn):
        yield f"BK = {c.bk} must be a multiple of the {4 * c.threads // c.bn} rows of B that a round of copies covers"
    yield from refilled(c)


def stored(c: Config) -> Iterator[str]:
    """Thread tiles that include/epilogue/tile_store.cuh stores."""
    yield from multiple(c, "tm", 4, "float4 fragments")
    if c.tn != 4:
        yield from multiple(c, "tn", 8, "a round of 32 lanes stores whole rows of a warp's 4 TN columns (or 4)")
    yield from warp_tile(c)


def boxed(c: Config) -> Iterator[str]:
    """What a configuration breaks of what two warpgroups that compute, and boxes of the copy engine, ask for."""
    if c.threads != 256:
        yield f"(BM/TM)(BN/TN) = {c.threads} threads must be 256: registers are dealt to two warpgroups that compute"
    for name, side in (("BM", c.bm), ("BN", c.bn)):
        if side > MAX_SIDE:
            yield f"{name} = {side} must be at most {MAX_SIDE}: the side of a box that a tensor map describes"
    yield from refilled(c)


def boxes(c: Config) -> Iterator[str]:
    """Two warpgroups that compute, and boxes that tensor maps can describe."""
    yield from exactly(c, fragments=2)
    yield from quads(c)
    yield from warp_tile(c)
    yield from boxed(c)
    if c.bk not in (8, 16, 32):
        yield f"BK = {c.bk} must be 8, 16 or 32: a row of A's box is the span of a swizzle"
    held = c.tm * c.tn + c.fragments * (c.tm + c.tn)
    if held > c.registers:
        yield f"registers: {held} for accumulators and fragments, {c.registers} dealt; make TM x TN smaller"


def split_tile(c: Config) -> Iterator[str]:
    yield from exactly(c, bm=128, bn=128, bk=64, tm=8, tn=8)
    yield from refilled(c)
