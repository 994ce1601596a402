"""(problem, device) to kernel and configuration: a tuned entry, the committed table, a cost model, in that order.

The model counts what a launch must do: waves of tiles over the SMs at each configuration's measured
share of the FP32 peak, bytes over the memory's bandwidth, and the second kernel where K is shared. It
is deterministic: equal estimates go to the configuration that is named first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from .kernels.library import SPECIALISED, STAGED
from .kernels.registry import Kernel
from .kernels.validity import is_valid
from .problem import Config, Problem
from .runtime.architectures import Architecture, architecture


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs, where the decision comes from (``tuned``, ``table``, ``heuristic``, ``only``) and one sentence why."""

    kernel: Kernel
    config: Config
    source: str
    reason: str


def _ring(bm: int, bn: int, bk: int, tm: int, tn: int, stages: int, registers: int = 0, min_blocks: int = 1,
          slices: int = 1, variant: int = 0, raster: int = 8) -> Config:
    return Config(bm, bn, bk, tm, tn, stages=stages, fragments=2, raster=raster, min_blocks=min_blocks, producers=128,
                  registers=registers, slices=slices, variant=variant)


# Configuration -> share of the FP32 peak that its main loop reaches where it fills the GPU.
_RATES: dict[Config, float] = {
    _ring(128, 256, 16, 8, 16, 6, 232, variant=1): 0.80,
    _ring(256, 128, 16, 16, 8, 6, 232, variant=2): 0.80,
    _ring(192, 128, 16, 12, 8, 6, variant=2): 0.79,
    _ring(128, 128, 16, 8, 8, 6, variant=0): 0.77,
    _ring(128, 64, 16, 8, 8, 8, slices=2): 0.70,
    _ring(64, 128, 16, 8, 8, 8, slices=2): 0.70,
    _ring(64, 64, 16, 8, 8, 6, min_blocks=2): 0.66,
    _ring(64, 32, 32, 8, 4, 8, slices=4): 0.5,
    _ring(32, 64, 32, 4, 8, 8, slices=4): 0.5,
    _ring(64, 32, 16, 4, 4, 6, slices=2, min_blocks=2): 0.48,
    _ring(32, 32, 16, 4, 4, 8, slices=4, min_blocks=2): 0.42,
}
_STAGED_RATES: dict[Config, float] = {STAGED.default: 0.45}
_START_US = 3.2    # launch, first tiles on their way, last tile stored
_REDUCE_US = 2.6   # a second kernel
_SPLITS = (1, 0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def estimate_us(config: Config, problem: Problem, arch: Architecture, sm_count: int) -> float:
    """Modelled time of a launch in microseconds.

    Only the ranking is meant: the clock and bandwidth are those of the architecture's reference GPU.
    """
    p, slots = problem, sm_count * config.min_blocks
    rate = _RATES.get(replace(config, split=1), 0.5)  # shared with the architectures where nobody has measured
    tiles = -(-p.m // config.bm) * -(-p.n // config.bn) * max(p.batch.count, 1)
    steps = max(-(-p.k // config.bk), 1)
    # One SM, one step of one block: bm bn bk multiply-adds on 128 lanes.
    step_us = config.bm * config.bn * config.bk / (arch.fp32_lanes_per_sm * rate) / arch.gpu_mhz
    # A wave of min_blocks blocks on each SM shares its lanes; a last wave that is not full leaves lanes idle, but a
    # block alone on its SM is at most so much faster than its share.
    parts = shared = 0
    if config.split == 0:
        shared = tiles % slots
        parts = min(slots, shared * steps)
        turns = (tiles // slots) * steps + shared * steps / slots
    elif config.split > 1:
        shared, parts = tiles, tiles * min(config.split, steps)
        turns = -(-parts // slots) * -(-steps // min(config.split, steps))
    else:
        turns = -(-tiles // slots) * steps
    compute = turns * config.min_blocks * step_us
    bytes_moved = 4 * (p.m * p.k + p.k * p.n + p.m * p.n) * max(p.batch.count, 1)
    partial = 8 * parts * config.bm * config.bn
    memory = bytes_moved / (arch.gpu_bandwidth_gbs * 0.85 * 1e3)
    reduce = (_REDUCE_US + partial / (arch.gpu_bandwidth_gbs * 1e3)) if parts else 0.0
    return max(compute, memory) + _START_US + reduce


def _splits(config: Config, problem: Problem, slots: int) -> Iterator[int]:
    tiles = -(-problem.m // config.bm) * -(-problem.n // config.bn) * max(problem.batch.count, 1)
    steps = -(-problem.k // config.bk)
    yield 1
    if steps > 1 and tiles % slots:
        yield 0
    for split in _SPLITS[2:]:
        # More parts than twice the slots buy nothing and cost workspace; fewer than four steps a part, latency.
        if tiles * split > 2 * slots or 4 * split > steps:
            return
        yield split


@cache
def configurations(arch: str) -> tuple[tuple[Kernel, Config], ...]:
    """The kernels and configurations that the model ranks on ``arch``, all valid there."""
    limits = architecture(arch)
    if not limits.has_cp_async:
        return tuple((STAGED, config) for config in _STAGED_RATES)
    found = []
    for config in _RATES:
        fitted: Config | None = config
        if limits.number != 90:
            fitted = replace(config, registers=0)
        while fitted is not None and not is_valid(SPECIALISED, fitted, limits):
            stages = fitted.stages - fitted.slices
            fitted = replace(fitted, stages=stages) if stages >= 2 * fitted.slices else None
        # Without setmaxnreg a thread tile of 8 x 16 needs more registers than 384 threads leave it.
        if fitted is not None and not (config.registers and limits.number != 90):
            found.append((SPECIALISED, fitted))
    return tuple(found)


@lru_cache(maxsize=4096)
def choose(problem: Problem, arch: str, sm_count: int, device_name: str = "") -> Choice:
    """The kernel and configuration for ``problem`` on a GPU of ``arch`` (``sm_NN``) with ``sm_count`` SMs.

    Deterministic; ``device_name`` selects the committed table.

    Raises:
        InvalidValue: an architecture that the table does not hold.
    """
    limits = architecture(arch)
    best: tuple[float, Kernel, Config] | None = None
    for kernel, config in configurations(arch):
        for split in _splits(config, problem, sm_count * config.min_blocks):
            candidate = replace(config, split=split)
            us = estimate_us(candidate, problem, limits, sm_count)
            if best is None or us < best[0] * 0.999:
                best = us, kernel, candidate
    assert best is not None  # every architecture of the table has a configuration
    us, kernel, config = best
    reason = (f"the model's best of {len(configurations(arch))} configurations: {us:.0f} us for "
              f"{problem.m} x {problem.n} x {problem.k} on {sm_count} SMs")
    return Choice(kernel, config, "heuristic", reason)


def warm_set(arch: str) -> list[tuple[Kernel, Config, Problem]]:
    """What `cache warm` compiles: every configuration of ``arch`` for aligned operands of each layout."""
    problems = [Problem(1024, 1024, 1024, 1024, 1024, 1024, trans_a=ta, trans_b=tb)
                for ta in (False, True) for tb in (False, True)]
    return [(kernel, config, problem) for kernel, config in configurations(arch) for problem in problems]
