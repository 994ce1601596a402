"""The numbers of the cost models: what `lab.choice fit` fits to times, and profiles/*.json hold.

A name ends in its unit. ``_us``: microseconds; ``_cycles``: cycles of the device's clock; ``_slots``: issue slots of an
instruction of a warp; ``_share``: of the device's nominal memory bandwidth, or of what else the formula says;
``_factor``: times something. What a number means the formula says that uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..runtime.architectures import Architecture

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Tiled:
    """Of kernels of tiles: ffma/tile_model.py. ``ffma_..._factor``: cycles that an FFMA of a thread tile takes, in
    multiples of what all lanes of an SM need at least."""

    start_us: float
    one_tile_us: float
    overlap_us: float
    cluster_us: float
    bandwidth_share: float
    word_cycles: float
    barrier_cycles: float
    turnover_factor: float
    result_cycles: float
    slice_us: float
    reduce_us: float
    part_us: float
    repack_us: float
    ffma_12x16_factor: float
    ffma_8x16_factor: float
    ffma_12x8_factor: float
    ffma_8x8_factor: float
    ffma_4x8_factor: float
    ffma_4x4_factor: float
    ffma_2x4_factor: float


@dataclass(frozen=True, slots=True)
class Small:
    """Of ffma/small.cu; its bandwidth and the overlap of its launches are those of `Tiled`."""

    start_us: float
    block_us: float
    issued_share: float
    quad_slots: float
    word_slots: float
    round_us: float
    group_us: float
    partly_factor: float


@dataclass(frozen=True, slots=True)
class Skinny:
    """Of ffma/skinny.cu."""

    start_us: float
    overlap_us: float
    reduce_us: float
    reread_factor: float
    bandwidth_share: float
    lack_factor: float
    round_us: float
    fetch_us: float
    ffma_slots: float
    load_slots: float
    sum_slots: float


@dataclass(frozen=True, slots=True)
class Chain:
    """Of ffma/chain.cu."""

    start_us: float
    bandwidth_share: float
    step_slots: float
    wavefront_factor: float


@dataclass(frozen=True, slots=True)
class Emulated:
    """Of kernels for tensor cores, whose bandwidth is that of `Tiled`: emulated/model.py. ``worth_share``: what they
    may take of IEEE's modelled time for "emulated" to choose them, on the architecture that was measured; None: they
    were not measured to win."""

    worth_share: float | None
    start_us: float
    split_us: float
    panels_chunk_us: float
    fused_chunk_us: float
    streamed_64_chunk_us: float
    streamed_128_chunk_us: float
    edge_factor: float
    skew_us: float
    four_times_us: float
    tile_us: float
    ramp_us: float
    ranges_us: float
    shared_factor: float


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Profile:
    """The numbers of the cost models, and where they come from. Two profiles are equal where they are one object.

    Attributes:
        name: what messages call it.
        architecture: ``sm_NN`` of the GPU that was timed.
        date: of the fit.
        source: the record of times that it was fitted to.
        command: what made it.
        residuals: median and 90th percentile of what the choices lost; empty where unknown.
    """

    name: str
    architecture: str
    date: str
    source: str
    command: str
    residuals: Mapping[str, Any] = field(default_factory=dict)
    tiled: Tiled
    small: Small
    skinny: Skinny
    chain: Chain
    emulated: Emulated


@dataclass(frozen=True, eq=False, slots=True)
class Machine:
    """A GPU as the models see it. ``bandwidth``: nominal, in bytes a microsecond; two are equal where they are one
    object, so that what is remembered of one is asked by its identity."""

    arch: Architecture
    sms: int
    mhz: float
    bandwidth: float
    l2_bytes: int
    profile: Profile
