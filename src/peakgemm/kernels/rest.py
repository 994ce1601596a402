"""The last rows of C by narrower tiles, where high ones would be mostly empty: one product becomes two.

16384 rows are 85 bands of 192 and 64 more, which a band of their own computes in the time of 192. So the kernel of wide
thread tiles is given all rows but `Config.rest`, and 'specialised' behind it these, from the operands as they lie.
"""

from __future__ import annotations

from dataclasses import replace

from ..problem import Config, Problem

# Of the configurations of tile_model.py, the fastest by its model for so many rows. K is shared: the tiles of one band
# are fewer than an H100's SMs, or few more.
_TILES = (
    Config(32, 128, 32, 4, 8, stages=4, fragments=2, raster=8, min_blocks=2, producers=64, variant=3, split=0),
    Config(64, 128, 32, 8, 8, stages=6, fragments=2, raster=8, producers=128, slices=2, variant=3, split=0),
    Config(96, 128, 32, 12, 8, stages=4, fragments=2, raster=8, producers=128, registers=232, slices=2, variant=6,
           split=0),
    Config(128, 256, 16, 8, 16, stages=8, fragments=2, raster=8, producers=128, registers=232, variant=6, split=0),
)


def constraints(config: Config, problem: Problem) -> list[str]:
    """Why the last ``config.rest`` rows of ``problem`` cannot be computed apart."""
    p, rows, broken = problem, config.rest, list[str]()
    if not rows:
        return broken
    if rows > _TILES[-1].bm:
        broken.append(f"rest = {rows} rows: the tiles that compute them have {_TILES[-1].bm} at most")
    if rows >= p.m:
        broken.append(f"rest = {rows} must be less than M = {p.m}")
    elif (p.m - rows) % config.bm:
        broken.append(f"rest = {rows} leaves {p.m - rows} rows of {p.m}, no multiple of BM = {config.bm}")
    return broken


def tile(config: Config) -> Config:
    """The tile of 'specialised' for the last rows: the lowest that holds them."""
    return next(one for one in _TILES if one.bm >= config.rest)


def above(config: Config, problem: Problem) -> Problem:
    """The product of all rows but the last."""
    return replace(problem, m=problem.m - config.rest)


def below(config: Config, problem: Problem) -> Problem:
    """The product of the last rows. Its addresses are aligned as the whole's: a multiple of BM rows, or of as many
    elements, is one of 16 bytes."""
    return replace(problem, m=config.rest)


def offsets(config: Config, problem: Problem) -> tuple[int, int, int]:
    """Where the last rows begin in A, in C and in the matrix that beta scales: elements from the first."""
    p, rows = problem, problem.m - config.rest
    row = 1 if p.trans_c else p.ldc
    return rows * (1 if p.trans_a else p.lda), rows * row, rows * (p.c0[0] if p.c0 else row)
