"""Tables of products for every family of kernels and every rung of the ladder: layouts, addresses, edges, scales,
batches, ways to share K. `library_case.multiply` runs and checks each, on the simulator or a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from library_case import LAYOUTS, Case, varied
from library_case import SMALL as TILE
from peakgemm.kernels.emulated.product import OLDER, PRODUCTS, half_as_high
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.kernels.ffma import small
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL, SmallConfig
from peakgemm.kernels.ffma.specialised import SPECIALISED, FfmaOrder, SpecialisedConfig
from peakgemm.kernels.ffma.staged import STAGED
from peakgemm.kernels.ffma.tile_model import tilings
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.registry import LADDER, Kernel
from peakgemm.problem import Config, Problem, Triangle
from peakgemm.selection.choose import chains
from peakgemm.selection.machine import machine
from seldom import exhaustive

SMS = 4
GPU = machine("sm_90", 132)
# A family, and M, N and K that it is for, with tiles past every edge.
Row = tuple[Kernel, tuple[int, int, int]]
ROWS: tuple[Row, ...] = (
    (SPECIALISED, (45, 39, 21)), (SKINNY, (37, 7, 45)), (SKINNY, (7, 37, 45)), (SMALL, (13, 11, 9)),
    (CHAIN, (37, 7, 45)), (CHAIN, (7, 37, 45)))


def proposed(kernel: Kernel, problem: Problem, arch: str = "sm_90", sms: int = SMS) -> list[Config]:
    """The configurations that a family's models name for a problem, the fastest first."""
    gpu, family = machine(arch, sms), kernel.family
    if not kernel.is_for(gpu.arch):
        return []
    ranked = [*family.candidates(kernel, problem, gpu, ""), *family.chains(kernel, problem, gpu)]
    return list(dict.fromkeys(config for config, _ in sorted(ranked, key=lambda each: each[1])))


def case(row: Row, **changes: Any) -> Case:
    """A product of the family's sizes, or of others, by the configuration that its model ranks first for its sizes."""
    config = proposed(row[0], Problem.contiguous(*row[1]))[0]
    return Case(**{**dict(zip("mnk", row[1], strict=True)), "config": config, "kernel": row[0], "sms": SMS, **changes})


# ---- what every family of FFMAs does ------------------------------------------------------------------


def of_every_family(row: Row) -> Iterator[Case]:
    m, n, _ = row[1]
    fours: dict[str, Any] = {name: -(-size // 4) * 4 for name, size in zip("mnk", row[1], strict=True)}
    for layout, c0 in zip(LAYOUTS, ("mn", "n", "m", ""), strict=True):
        yield case(row, layout=layout, pad=3, shift=1, values="wide")  # by words
        yield case(row, layout=layout, pad=4, values="integers", c0=c0, **fours)  # by sixteen bytes
        yield case(row, layout=layout, beta=0.0, poison="c", **fours)
    yield case(row, k=1, alpha=1.0, beta=1.0, values="tiny")
    for beta, poison in ((-0.75, "ab"), (0.0, "abc")):  # A and B are not read
        yield case(row, k=0, beta=beta, poison=poison, c0="m")
        yield case(row, alpha=0.0, beta=beta, poison=poison, c0="n")
    # More tiles than blocks that run at once; operands that stay where they are.
    yield case(row, m=7, n=6, batch=(2, 3, 3), sms=1)
    yield case(row, m=8, n=8, batch=(3, 5), still={"b": (0,), "a": (1,)})
    yield case(row, m=8, n=7, c0="n", batch=(2, 3, 2), still={"a": (1,), "b": (0, 2), "c0": (2,)}, pad=2)
    yield case(row, m=9 * m if m >= n else m, n=n if m >= n else 9 * n, sms=1)
    yield case(row, m=1, n=1)
    for nothing in ({"m": 0}, {"n": 0}, {"batch": (0,)}):
        yield case(row, **nothing)


# ---- tiles whose work is shared, by whole tiles, ranges of K, slices and clusters ------------------------

SLICED = SpecialisedConfig(32, 32, 8, 4, 4, stages=8, raster=4, producers=128, slices=4, copy_groups=4, one_tile=True)
SQUARE = SpecialisedConfig(32, 32, 32, 4, 4, stages=8, raster=4, producers=128, slices=2, copy_groups=2,
                           ffma_order=FfmaOrder.ROWS_REVERSED, a_first=True, one_tile=True, chunked=True)
ROWS_OF_TWO = SpecialisedConfig(16, 16, 32, 2, 4, stages=12, raster=8, producers=128, slices=4, copy_groups=2,
                                one_tile=True, chunked=True)
WAYS = [
    TILE, replace(TILE, split=3), replace(TILE, split=0), replace(TILE, slices=2),
    replace(TILE, slices=2, split=0), replace(TILE, slices=2, split=3),
    # Slices that end tiles together.
    *(replace(TILE, bm=64, tm=8, slices=2, split=split) for split in (0, 1, 3)),
    # Copying warps that take the tiles of K in turn, with more tiles of C than one for each block.
    *(replace(TILE, producers=32 * groups, copy_groups=groups, slices=2, split=split)
      for groups, split in ((2, 1), (4, 0), (2, 3))),
    replace(SQUARE, one_tile=False, split=0), replace(ROWS_OF_TWO, one_tile=False, split=0),
    # Blocks that have one tile, or one range of its K.
    replace(TILE, one_tile=True), replace(TILE, one_tile=True, chunked=True), SLICED, SQUARE, ROWS_OF_TWO,
    replace(ROWS_OF_TWO, split=2), replace(ROWS_OF_TWO, split=12), replace(SQUARE, split=9),
    # Clusters that have one.
    *(replace(SLICED, cluster=blocks) for blocks in (2, 16)),
    replace(SLICED, slices=2, chunked=True, copy_groups=1, cluster=8),
    replace(ROWS_OF_TWO, stages=8, copy_groups=4, cluster=8), replace(ROWS_OF_TWO, bn=32, cluster=16)]


def shared(config: Config, layout: str) -> Iterator[Case]:
    """K that every range has a part of, one step, none, and fewer steps than ranges; more tiles than SMs, or blocks."""
    parts = max(config.split, 1) * config.cluster
    yield Case(70, 40, 60, c0="n", values="integers", alpha=2.0, beta=-1.0, config=config)
    yield Case(36, 40, 0, poison="ab", config=config)
    yield Case(35, 39, parts * config.bk + 5, layout, pad=3, shift=1, batch=(2,), config=config)
    yield Case(33, 34, 3, layout, beta=0.0, poison="c", pad=3, shift=1, config=config)
    if parts > 2:
        yield Case(33, 34, 2 * config.bk + 1, layout, pad=3, shift=1, config=config)


# What tiles at the edge share is stored once: C is scaled in place, and results stored twice would be scaled twice.
EDGES = [Case(m, n, 21, layout, pad=pad, values="integers", alpha=2.0, beta=-3.0, sms=sms,
              config=replace(TILE, split=split)) for split in (0, 1) for m, n, layout, sms, pad in (
    (33, 63, "NN", 4, 1), (95, 32, "TT", 4, 1), (31, 65, "NT", 4, 1), (64, 36, "TN", 4, 1),
    # Tiles at the edge alone share their K: quads of their results lie across where their neighbour's end, by words
    # and where rows begin at 16 bytes now and then.
    (33, 63, "NN", 3, 1), (33, 66, "NN", 4, 0))]
WHOLE = [Case(64, 32, 24, "TN", shift=shift, arch=arch) for arch in ("sm_80", "sm_90") for shift in (0, 1)]


def past_edges(config: Config) -> Iterator[Case]:
    """Inner and edge tiles, a remainder of K, each way of copying: word by word, by sixteen bytes, transposed. Large
    tiles, which take five times as long, pass one edge at a time."""
    large = config.bm * config.bn >= 64 * 128
    for layout, m, n, k, pad in (("NN", 3, config.bn + 4, 4, 0), ("NN", 3, config.bn + 5, 1, 3),
                                 ("TN", 4, config.bn + 4, 1, 0), ("NT", 3, 7, 4, 0)):
        down = 0 if large and n > config.bn else m
        yield Case(config.bm + down, n, config.bk + k, layout=layout, config=config, pad=pad)


# What may be chosen for a reproducible product, by one chain; `multiply` compares the bits.
CHAINS = [(kernel, config) for kernel, config, _ in chains(
    Problem(40, 40, 24, 29, 45, 40, alignment=(4, 4, 4)), machine("sm_90", 4, "NVIDIA H100 80GB HBM3"))]
UNSLICED = SpecialisedConfig(32, 32, 16, 4, 4, stages=4, raster=4, producers=64)
ONE_CHAIN = [
    *(Case(21, 37, 24, LAYOUTS[i % 4], 1.25, -0.5, 5, 1, values="wide", kernel=kernel, config=config)
      for i, (kernel, config) in enumerate(CHAINS)),
    # The remainder of K comes in its order: zeros behind the last k-step would make +0 of a sum of -0.
    *(Case(17, 21, k, layout, beta=0.0, pad=5, values=values, config=UNSLICED)
      for k, values, layout in zip((1, 15, 16, 37) * 2, ("tiny",) * 4 + ("wide",) * 4, LAYOUTS + LAYOUTS[::-1],
                                   strict=True)),
    *(Case(21, 17, k, layout, beta=beta, pad=5, values="tiny", kernel=STAGED, config=STAGED.default, arch="sm_75")
      for k, layout, beta in ((5, "NN", 0.0), (37, "TT", 0.0), (20, "NT", 0.5), (9, "TN", 0.5))),
    Case(50, 70, 16, beta=-0.5, values="tiny", kernel=WIDE,
         config=replace(WIDE.default, bm=128, bn=256, tm=8, tn=16, stages=4))]


# ---- wide thread tiles -----------------------------------------------------------------------------------

# Boxes bring zeros from beyond the edges; what is repacked lies at the start of the workspace, of K the first chunk
# from a kernel before.
BOXES = [Case(*sizes, layout, kernel=WIDE, config=WIDE.default, **more) for sizes, layout, more in (
    ((200, 270, 21), "NN", {}),  # both repacked: A for its layout, B for its rows
    ((200, 260, 40), "TN", {}),
    ((196, 3, 9), "TT", {"pad": 3, "shift": 1, "c0": "n"}),
    ((4, 513, 8), "NT", {"c0": "m", "values": "integers"}),
    ((200, 36, 200), "NT", {"pad": 4, "c0": "", "beta": 0.0, "poison": "c"}),  # four chunks; rows begin at 16 bytes
    ((40, 70, 130), "TN", {"pad": 1}),  # rows that begin anywhere
    )]
# Segments that end inside of a tile, blocks with two of them, more steps than the ring has stages, and fewer.
BOXES += [Case(200, 20, k, "TN", pad=4, kernel=WIDE, sms=sms, config=replace(WIDE.default, split=split, stages=3))
          for split, sms, k in ((0, 3, 70), (3, 4, 100), (0, 4, 5), (12, 5, 100))]


# ---- accumulators handed on: more tiles than blocks, by no whole number --------------------------------------

HANDING = replace(UNSLICED, split=0, handed=True)
WIDE_HANDING = replace(WIDE.default, bm=128, bn=256, tm=8, tn=16, stages=4, split=0, handed=True)
HANDED = [
    Case(96, 80, 100, "NN", beta=0.0, config=HANDING),
    Case(90, 75, 37, "TT", beta=-0.5, pad=1, shift=1, values="tiny", config=HANDING, sms=8),
    Case(160, 80, 33, "NT", beta=-0.5, values="wide", config=HANDING),
    Case(96, 64, 48, "TN", beta=0.0, pad=1, shift=1, values="tiny", config=replace(HANDING, min_blocks=2), sms=2),
    Case(40, 64, 64, beta=-0.5, batch=(3,), config=HANDING, sms=5),
    Case(64, 256, 64, beta=0.0, config=replace(HANDING, min_blocks=3), sms=5),
    # Of operands as they are, and repacked ones, whose counters are beside the flags.
    Case(384, 300, 64, "TN", beta=-0.5, kernel=WIDE, config=WIDE_HANDING),
    exhaustive(Case(384, 300, 64, "NT", beta=-0.5, pad=1, shift=1, values="tiny", kernel=WIDE, config=WIDE_HANDING))]


# ---- small, thin and skinny products -----------------------------------------------------------------------

EIGHTH = next(c for c in small.configurations(Problem.contiguous(64, 64, 64), GPU) if (c.bk, c.stages) == (32, 2))
SMALL_TILES = [replace(c, min_blocks=1) for c in (*(c for k in (8, 16, 64) for c in small.tiles(k)), EIGHTH)]
TEAMS = next(tile for tile in SMALL_TILES if (tile.bm, tile.bn, tile.bk) == (16, 16, 8))


def of_small(tile: Config, layout: str, beta: float) -> Case:
    """More K than a tile holds at once, rows and columns past the edge."""
    return Case(tile.bm + 4, tile.bn - 4, 2 * tile.bk - 4, layout, beta=beta, config=tile, kernel=SMALL, sms=1)


SMALL_PRODUCTS = [
    *(of_small(tile, "NN", 0.0) for tile in SMALL_TILES),
    *(exhaustive(of_small(tile, "TT", 0.5)) for tile in SMALL_TILES if tile.bk > 8),
    # The second half of K has a k-step, or all but one.
    *(Case(tile.bm + 1, tile.bn - 1, 33 if i % 3 else 63, layout, beta=0.0, config=replace(tile, min_blocks=1),
           kernel=SMALL, sms=1)
      for i, (tile, layout) in enumerate(zip((c for c in small.tiles(63) if c.bm * c.bn <= 1024), cycle(LAYOUTS),
                                             strict=False))),
    # Matrices without gaps: the first and last results share sixteen bytes with other matrices', another team's.
    *(Case(m, n, 9, layout, beta=beta, batch=batch, config=TEAMS, kernel=SMALL)
      for (m, n), layout in zip(((7, 7), (13, 11), (5, 12), (16, 15), (33, 6), (1, 3)), cycle(LAYOUTS), strict=False)
      for beta, batch in ((0.0, (11,)), (0.5, (3,)))),
    # Zeros behind K change the sign of a zero: whether this is one chain depends on K.
    *(Case(32, 32, k, values="tiny", beta=0.0, kernel=SMALL, config=SmallConfig(32, 32, 16, 4, 4, slices=1))
      for k in (16, 14))]


FEW = replace(CHAIN.default, bm=4, tm=1, tn=1, bk=32, stages=3, producers=64)  # so that a short K goes round the ring
CHAIN_TILES = sorted({replace(config, stages=3, producers=96)
                      for m in (1, 2, 4, 8, 16, 32) for n in (64, 4096, 30000)
                      for config in proposed(CHAIN, Problem.contiguous(m, n, 4096), sms=132)}, key=Config.label)
SKINNY_PARTS = SKINNY.default.__class__(32, 4, 128, 4, 4, slices=32)


def columns(kernel: Kernel, count: int) -> Iterator[Any]:
    """``count`` rows, and columns."""
    for each in (case((kernel, (count, 40, 70)), layout=LAYOUTS[count % 4]),
                 case((kernel, (40, count, 70)), layout=LAYOUTS[count // 4 % 4], beta=0.0, values="integers")):
        yield each if count in (1, 2, 3, 8, 9, 16, 17, 32) else exhaustive(each)


THIN_PRODUCTS = [
    *(each for kernel, most in ((CHAIN, 32), (SKINNY, 16)) for count in range(1, most + 1)
      for each in columns(kernel, count)),
    # X is B, and A; by words and by sixteen bytes; K a multiple of a stage, and not; rows of padding.
    *(Case(*sizes, layout, kernel=CHAIN, config=replace(FEW, tn=tn), **more)
      for i, layout in enumerate(LAYOUTS) for tn, (sizes, more) in zip(cycle((1, 2) if i % 2 else (2, 1)), (
          ((3, 70, 300), {"pad": 3, "shift": 1, "values": "tiny"}), ((4, 68, 192), {"pad": 4, "values": "wide"}),
          ((70, 3, 133), {"beta": 0.0, "values": "tiny"}), ((64, 4, 132), {})), strict=False)),
    *(Case(tile.bm, 36, 7 * tile.bk + 4, LAYOUTS[3 * (i % 2)], config=tile, kernel=CHAIN)
      for i, tile in enumerate(CHAIN_TILES)),
    # Blocks that share K.
    *(Case(*sizes, 1100, pad=pad, values="integers", kernel=SKINNY, config=replace(SKINNY_PARTS, split=split), **more)
      for split, pad, sizes, more in ((2, 0, (3, 70), {"batch": (2,)}), (3, 1, (70, 3), {"c0": "n", "alpha": 2.0}),
                                      (9, 0, (70, 4), {"beta": 0.0}), (40, 3, (3, 70), {"batch": (2,)})))]


# ---- by tensor cores ---------------------------------------------------------------------------------------

FP16X3 = PRODUCTS["fp16x3"]
HALVED = {name: half_as_high(scheme) for name, scheme in SCHEMES.items()}
VARIANTS: tuple[tuple[Kernel, Config], ...] = (
    *((kernel, kernel.default) for kernel in PRODUCTS.values()), *((PRODUCTS[name], HALVED[name]) for name in HALVED),
    (FUSED, FUSED.default), (STREAMED, STREAMED.default), (STREAMED, streamed(64)),
    (STREAMED, replace(STREAMED.default, trans_c=True)), (FUSED, replace(FUSED.default, trans_c=True)))
TENSOR = cycle(({}, {"split": 2, "accumulations": 1}, {"alpha": -1.5, "c0": "mn"}, {"split": 0, "accumulations": 2},
                {"m": 70, "batch": (2,), "still": {"b": (0,)}, "beta": 0.0},
                {"split": 3, "accumulations": 4, "sms": 2}))


def tensor(kernel: Kernel, config: Config, layout: str, **changes: Any) -> Case:
    """More than one tile, chunk and stage, with ragged edges; rows padded."""
    m, n = (130, 67) if layout[1] == "N" else (70, 131)
    k = 134 if changes.get("split", 1) != 1 else 70
    return varied(Case(m, n, k, layout, pad=3, kernel=kernel, config=config), **changes)


TENSOR_PRODUCTS = [
    *(tensor(*variant, LAYOUTS[i % 4], **changes)  # by default an edge, a scale, a batch, a way to share K for each
      for i, (variant, changes) in enumerate(zip(VARIANTS, TENSOR, strict=False))),
    *(exhaustive(tensor(*variant, layout, pad=pad)) for variant in VARIANTS for layout in LAYOUTS for pad in (0, 3)),
    *(exhaustive(tensor(*variant, "NN", m=140, n=200, sms=2, alpha=-1.5, c0="mn", split=split, accumulations=times))
      for variant in VARIANTS for split, times in ((1, 2), (0, 1), (3, 4))),
    *(exhaustive(tensor(*variant, "NN", batch=(2,), still={"b": (0,)})) for variant in VARIANTS),
    Case(64, 64, 200, values="integers", kernel=FP16X3, config=FP16X3.default),
    exhaustive(Case(64, 64, 200, values="integers", kernel=FUSED, config=FUSED.default)),
    # Rows are read by the 16 bytes in which they lie, some of which are other rows', or by words at either end.
    Case(140, 70, 193, "NT", pad=1, shift=3, kernel=FP16X3, config=FP16X3.default),
    # Nothing is read before A, whose first lines lie in the 16 bytes where it begins.
    *(Case(m, 64, k, layout, pad=pad, shift=1, kernel=STREAMED, config=streamed(64))
      for m, k, pad, layout in ((1, 40, 1, "TN"), (30, 1, 0, "NN"), (40, 3, 0, "TN"))),
    # Blocks of a cluster share copies of B; the last one's second block has no rows.
    exhaustive(Case(300, 131, 449, shift=1, kernel=FP16X3, config=replace(FP16X3.default, cluster=2)))]


# ---- the ladder ----------------------------------------------------------------------------------------------


def of_rung(kernel: Kernel) -> Iterator[Any]:
    """Awkward sizes, guarded, and multiples of the tile, aligned."""
    tile, make = kernel.config_for("sm_90"), {"kernel": kernel, "config": None}
    yield Case(131, 67, 45, pad=3, **make)
    yield Case(5, 130, 3, beta=0.0, poison="c", **make)
    yield Case(1, 1, 1, alpha=-0.5, beta=2.0, **make)
    yield Case(tile.bm * min(tile.raster, 2), tile.bn, 3 * tile.bk, pad=4, **make)
    yield Case(130, 3, 0, poison="ab", **make)
    if kernel.sm_90a:  # the copy engine's boxes, where it has them, or cp.async; a ring that goes round, or not at all
        yield Case(130, 4, 70, alpha=0.0, poison="ab", **make)
        for m, n, k in ((127, 255, 15), (129, 1, 17), (2, 257, 96), (128, 256, 112)):
            for ld in (0, 3):  # a multiple of four, or not
                yield Case(m, n, k, pad=-n % 4 + ld, values="integers", **make)


OWN_RUNGS = [kernel for kernel in LADDER if not kernel.patched]  # a patched one has the PTX of another
ELSEWHERE = [Case(131, 67, 45, kernel=kernel, config=None, arch=arch)
             for kernel, arch in zip(OWN_RUNGS[9:15], cycle(("sm_80", "sm_100", "sm_120")), strict=False)]


# ---- triangles of a square C, on whose other elements nothing is written ------------------------------------

# Squares of either parity a side, tiles past the edge; square, high and wide tiles, each way to share K.
CUT = [TILE, replace(TILE, split=3), replace(TILE, split=0), replace(TILE, slices=2), SLICED,
       replace(SLICED, slices=2, chunked=True, copy_groups=1, cluster=8), ROWS_OF_TWO, replace(ROWS_OF_TWO, split=2),
       replace(TILE, bm=64, tm=8, slices=2, split=0), replace(TILE, bn=64, tn=16)]
CUT_BY_TENSOR_CORES = [(FP16X3.default, 130), (replace(FP16X3.default, split=0), 200), (HALVED["fp16x3"], 130),
                       (replace(FP16X3.default, cluster=2), 260)]
SIDES = (Triangle.LOWER, Triangle.UPPER)
TRIANGLES = [
    *(Case(n, n, 21, layout, beta=beta, pad=3, shift=1, config=config, triangle=side, poison="c" if beta == 0 else "")
      for config, layouts in zip(CUT, cycle((("NT", "TT"), ("TN", "NN"))), strict=False)
      for n, layout, side, beta in ((70, layouts[0], Triangle.LOWER, -0.5), (97, layouts[1], Triangle.UPPER, 0.0))),
    *(Case(size, size, 9, "NT", c0="mn", batch=(2, 3), still={"a": (0,)}, triangle=side)
      for size in (1, 5, 33) for side in SIDES),
    *(Case(70, 70, k, "TN", alpha=alpha, poison="ab", triangle=side) for k, alpha in ((0, 1.5), (9, 0.0))
      for side in SIDES),
    *(Case(n, n, 70 if config.split else 140, layout, beta=beta, pad=3, kernel=FP16X3, config=config, triangle=side)
      for (config, n), layout, beta, side in zip(CUT_BY_TENSOR_CORES, cycle(("NT", "TN")), cycle((0.0, -0.5, 0.5)),
                                                 cycle((*SIDES, *SIDES[::-1])), strict=False)),
    *(Case(140, 140, 70, layout, pad=1, kernel=kernel, config=kernel.default, arch="sm_80", triangle=side)
      for kernel, layout, side in ((OLDER["fp16x3"], "NT", Triangle.LOWER), (STAGED, "TN", Triangle.UPPER)))]

TABLES: dict[str, Iterable[Any]] = {
    "family": [each for row in ROWS for each in of_every_family(row)],
    "share": [each for config, layout in zip(WAYS, cycle(LAYOUTS), strict=False) for each in shared(config, layout)],
    "edges": EDGES, "whole": WHOLE, "chain": ONE_CHAIN, "handed": HANDED, "wide": BOXES, "small": SMALL_PRODUCTS,
    "thin": THIN_PRODUCTS, "tensor": TENSOR_PRODUCTS, "triangle": TRIANGLES,
    "rung": [*(each for kernel in OWN_RUNGS for each in of_rung(kernel)), *ELSEWHERE],
    "model": [exhaustive(each) for tiling in tilings(SPECIALISED, GPU) for each in past_edges(tiling)]}


def products() -> list[Any]:
    """Every product, as a test's parameter."""
    parameters = []
    for table, cases in TABLES.items():
        for each in cases:
            case, marks = (each, ()) if isinstance(each, Case) else (each.values[0], each.marks)
            parameters.append(pytest.param(case, marks=marks, id=f"{table}: {case}"))
    return parameters
