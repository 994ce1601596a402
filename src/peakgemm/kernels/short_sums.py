"""Sums over few k-steps: where cuBLAS makes them, and which of our configurations can.

cuBLAS cuts K of small products into many sums; one sum over all of K errs up to 2.7 times as much, in the mean. So ours
are short there, too, in either precision: several sums instead of one, or one that is carried over.
"""

from __future__ import annotations

from dataclasses import replace

from ..problem import Config, Problem
from ..runtime.architectures import architecture
from . import small
from .library import SPECIALISED
from .registry import Kernel
from .schedule import CARRY, SHORT, WALK, gathered
from .skinny import SKINNY
from .small import SMALL
from .validity import four_wide, two_rows

CARRYING = 1.02  # times the time without: 1.01 to 1.04
_CARRIED = 32    # results a thread, at most: with more, or more blocks an SM, a second set of sums spills
# Tiles of so few results a thread have several sums instead, by their slices: where each thread has so many registers,
# and for K up to so much. Longer sums err more than cuBLAS's: 320 with cancellation 1.33 times as much, 0.95 by one
# that is carried (docs/notebook/14).
_FEW, _REGISTERS, _LONGEST = 16, {2: 128, 4: 80}, 256
# But of these, by four slices: 144 has up to 1.14 times cuBLAS's mean error then, 160 to 256 0.98 at most.
_UNEVEN = range(129, 160)
# Eight sums, which four slices of 4 x 8 results have wherever they run: they cost nothing there. Mean errors of 512 are
# 0.66 to 0.75 of cuBLAS's, of 512 x 512 x 1024 0.60 to 0.74, of 512 x 512 x 4096 0.99 to 1.45; with cancellation, of
# 320 1.18 and of 512 x 512 x 384 1.05.
_EIGHT, _TOO_FEW = 1024, range(257, 448)
# Sums of a slice of 2 x 4 results, if several: sixteen of four slices, as short as 16 parts of K. With two each,
# 256 x 256 x 1024 had 1.22 times cuBLAS's largest error, and 16 k-steps up to 1.6 (not kept).
_OF_TWO_ROWS = 4
ANY = 1 << 30  # k-steps: what may be carried of some K, or is made of any
# As many sums as cuBLAS makes of K up to so much, by parts of K and slices: mean errors of 32 x 1000 x 2048, 32 x 2000
# x 2048 and 64 x 1000 x 1024 are 0.87 to 1.00 of cuBLAS's with 16; of 32 x 1000 x 4096 up to 1.33. Of 2585 to 5560
# k-steps they are 0.49 to 0.89 with 48 to 96, up to 1.24 with 32 (docs/notebook/14); of 64 x 64 x 65536
# 0.73 to 0.98 with 128.
_PARTS = (2048, 16), (6144, 40), (ANY, 128)
# What four slices of one stage each need no more sums for: mean errors of 64 k-steps are 0.43 to 0.82 of cuBLAS's
# then; of 48, and of 63, up to 1.23 and 1.14 (docs/notebook/14).
_QUARTERS, _QUARTERED = 4, 64
_SM = architecture("sm_90")  # every one with cp.async has as many registers
# Larger tiles carry sums over every 32 k-steps, and of 33 those are one sum: 384 x 384 x 33 had 1.67 times cuBLAS's
# mean error so (docs/notebook/14).
_BY_16, _LONG = 32 * 32, 64
# By two slices of one stage of 32 k-steps each these are as short as any that are carried there: mean errors of 40 to
# 63 are 0.58 to 1.02 of cuBLAS's then (results/h100/sums.json, docs/notebook/14).
_HALVED = range(37, 65)
_DEALT = 208     # registers of a computing thread that carries more results
# Tiles (and cluster) that carry by another order of FFMAs, with fewer conflicts of register banks: 1.04 to 1.16
# modelled cycles an FFMA instead of 1.36, and 1 % more time than without instead of 5.
_WALKS = {(64, 64, 32, 2, 1): 3}
# Results up to which cuBLAS cuts K, as far as its errors tell: of one matrix (512 x 512; at 1024 errors are five times
# those), and of a batch, where it cuts only those of at most 16 rows or columns (results/h100/batch-errors.json).
SLICED, _SLICED_BATCH, _SLICED_SIDE = 1 << 19, 1 << 17, 16
# K of one matrix, and of a batch, of which it makes one sum (of 8 x 8 x 8 sometimes two, as ours are anyway).
_WHOLE, _WHOLE_BATCH = 32, 8
# And of which it makes so few in matrices of so many results that each of two slices may have one: mean errors of 384 x
# 384, 512 x 512, 1000 x 500 and 128 x 4096 are 0.51 to 1.00 of cuBLAS's then, of 384 x 384 x 320 up to 1.53.
_FEW_SUMS, _LARGE = range(64, 257), 384 * 384
# And of which it makes one sum, too, in matrices of so many results, by their least side: of these the mean errors of
# one chain are its own, to the last digit (results/h100/sums.json, docs/notebook/14; of 8 x 20000 x 33 1.84 of them).
_ALSO_WHOLE = (range(33, 64), {64: 1 << 18, 16: 1 << 17}), (range(128, 193), {64: 1 << 14})


def sliced(p: Problem) -> bool:
    """Whether cuBLAS cuts K of such a product into short sums."""
    if p.batch.count == 1:
        return p.m * p.n <= SLICED and not _whole(p)
    thin, tiny = min(p.m, p.n) <= _SLICED_SIDE, max(p.m, p.n) <= _SLICED_SIDE
    return p.k > _WHOLE_BATCH and thin and (tiny or p.m * p.n * p.batch.count <= _SLICED_BATCH)


def _whole(p: Problem) -> bool:
    """Whether it makes one sum of K, in a matrix that is small enough to be cut."""
    results = next((results for steps, results in _ALSO_WHOLE if p.k in steps), {})
    least = next((least for side, least in results.items() if min(p.m, p.n) >= side), None)
    return p.k <= _WHOLE or (least is not None and p.m * p.n >= least)


def _quarters(kernel: Kernel, config: Config) -> bool:
    """Whether four slices have a stage each of 64 k-steps."""
    return kernel is SPECIALISED and config.slices == _QUARTERS and config.bk * config.slices == _QUARTERED


def wants_short(kernel: Kernel, config: Config, p: Problem) -> bool:
    """Whether a product by ``config`` needs short sums: where cuBLAS makes them, and of stages of 16 k-steps,
    where they cost nothing, of a shorter K as well: the largest error of 32 x 32 x 32 was 1.14 of cuBLAS's without
    (not kept). Not where cuBLAS's are no shorter than those that slices make of a short K."""
    if p.batch.count == 1 and p.m * p.n >= _LARGE and p.k in _FEW_SUMS and kernel is SPECIALISED and config.slices > 1:
        return False
    return sliced(p) or (p.k <= _WHOLE and _quarters(kernel, config))


def are_short(kernel: Kernel, config: Config, k: int) -> bool:
    """Whether a thread adds up few of the ``k`` k-steps at a time, without being asked to: its share of K, or it
    carries, or has several sums."""
    if kernel is not SPECIALISED:
        return kernel is SKINNY or (kernel is SMALL and small.carries(config))
    sums = config.split * config.slices
    if gathered(config):  # not all have a step: by nine 96 x 65 x 280 had up to 1.12 of cuBLAS's mean error (not kept)
        sums = min(config.cluster * config.slices, -(-k // config.bk))
    sums *= _OF_TWO_ROWS if two_rows(config) and config.variant & CARRY else 1
    return ((config.variant & SHORT == SHORT and _several(config, k))
            or sums >= next(parts for steps, parts in _PARTS if k <= steps)
            or (k == _QUARTERED and _quarters(kernel, config))
            or (k in _HALVED and config.slices == 2 and config.bk == 32 and config.bm * config.bn > _BY_16))


def may_carry(kernel: Kernel, config: Config, k: int) -> bool:
    """Whether the threads of ``config`` have the registers for one more set of sums, and ``k`` is long enough that
    sums of 32 k-steps, or 16 in tiles of 32 x 32, are short. Those with sixteen sums carry none."""
    if kernel is SMALL:
        return small.carrying(config) is not None
    return (kernel is SPECIALISED and config.min_blocks <= 2
            and (config.tm * config.tn <= _CARRIED or _dealt(config))
            and (k >= _LONG or config.bm * config.bn <= _BY_16)
            and not two_rows(config))


def _dealt(config: Config) -> bool:
    """Whether dealing the registers anew lets larger thread tiles carry: pairs' loops leave enough."""
    return config.cluster > 1 and config.tm * config.tn <= 2 * _CARRIED and config.block_threads == 384


def _several(config: Config, k: int) -> bool:
    """Whether a thread of ``config`` has several sums over the ``k`` k-steps, instead of one that is carried."""
    slices = config.slices
    if four_wide(config):
        return k <= _EIGHT and k not in _TOO_FEW
    return (config.tm * config.tn <= _FEW and slices in _REGISTERS and k <= _LONGEST
            and not (slices == 4 and k in _UNEVEN)
            and _SM.blocks_by_registers(_REGISTERS[slices], config.block_threads) >= config.min_blocks)


def carrying(kernel: Kernel, config: Config, k: int) -> Config:
    """``config`` with several sums over the ``k`` k-steps, or with one that is carried over every 32, 16 or 8
    (``SETS``, ``CARRIED`` of ffma/specialised.cu); itself where sums are short as they are."""
    if are_short(kernel, config, k):
        return config
    if kernel is SMALL:
        return small.carrying(config) or config
    registers = _DEALT if config.tm * config.tn > _CARRIED else config.registers
    how = SHORT if _several(config, k) else CARRY
    walk = _WALKS.get((config.bm, config.bn, config.bk, config.slices, config.cluster), config.variant & WALK)
    return replace(config, variant=how | walk | config.variant & ~(SHORT | WALK), registers=registers)


def shortened(kernel: Kernel, config: Config, p: Problem) -> Config | None:
    """``config`` as a product runs it: with sums as short as cuBLAS's where that cuts K; None where it cannot."""
    if not wants_short(kernel, config, p) or are_short(kernel, config, p.k):
        return config
    return carrying(kernel, config, p.k) if may_carry(kernel, config, p.k) else None


def all_carrying(config: Config) -> tuple[Config, ...]:
    """`carrying` of a tiled FFMA kernel's ``config``, for a short K and for longer ones."""
    longer = _LONGEST + 1, _EIGHT + 1
    return tuple(dict.fromkeys(carrying(SPECIALISED, config, k) for k in (1, *longer)))
