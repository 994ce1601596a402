"""The numbers of the cost models, for one GPU: what `lab.profile` fits, and profiles/*.json hold.

A name ends in its unit. ``_us``: microseconds. ``_share``: of the peak, of a bandwidth or of a cache; ``_factor``:
times something; ``_power``: an exponent; ``_steps``: k-steps of a tile; ``_k``: k-steps; ``_bytes``: bytes. Which
formula has a number, its section says; what the number is, the formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..problem import Config
from ..runtime.architectures import Architecture

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SplitK:
    """Of blocks that have one part each of a small tile's K (ffma/tile_model.py): launches and their ends, then for
    each part, for each of its steps, where more than half of the SMs have a block, for a step whose B is copied by
    words, and for each microsecond that the operands' bytes take."""

    start_us: float
    part_us: float
    step_us: float
    crowded_us: float
    words_us: float
    moved_factor: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """Of tiles that have a cluster each (ffma/tile_model.py): launch and end, then for each block of a cluster, for
    each step of a block, for one whose B is copied by words, for each microsecond that the operands' bytes take, for
    each step more than a block has stages, and for each turn of its slices. ``config`` has clusters of two blocks."""

    config: Config
    start_us: float
    block_us: float
    step_us: float
    words_us: float
    moved_factor: float
    later_us: float
    turn_us: float


@dataclass(frozen=True, slots=True)
class Tile:
    """A configuration of a tiled kernel, and the shares of the FP32 peak that its main loop reaches: where rows of B
    are copied by 16 bytes, and where they are copied word by word (B stored as (N, K), or addresses that are no
    multiple of 16). ``alone``: it gains where a block knows that it has one tile, by two groups of copying warps. Of
    tiles with two rows a thread, which have as many stages as some K wants: the steps from which, and up to which, it
    is considered."""

    kernel: str
    config: Config
    share: float
    words_share: float
    alone: bool = False
    least_steps: int = 0
    most_steps: int | None = None
    split_k: SplitK | None = None


@dataclass(frozen=True, slots=True)
class Tiled:
    """Of all tiles: ffma/tile_model.py."""

    start_us: float
    stored_per_us: float
    turnover_factor: float
    later_step_share: float
    slice_us: float
    slice_reduction_us: float
    goes_on_us: float
    waited_share: float
    lonely_power: float
    lonely_after_power: float
    reduce_us: float
    ranges_us: float
    alone_us: float
    early_us: float
    overlap_us: float
    part_us: float
    in_l2_factor: float
    bandwidth_share: float
    overlap_power: float
    ragged_factor: float
    crowded_share: float
    crowded_steps: int
    one_slice_k: int


@dataclass(frozen=True, slots=True)
class Wide:
    """Of wide thread tiles and of repacking for them: ffma/wide.py, ffma/tile_model.py."""

    stored_factor: float
    repack_us: float
    repacked_per_us: float
    repacked_beside_per_us: float
    most_bytes: int
    least_tiles_factor: float
    short_k: int
    short_factor: float
    medium_k: int
    medium_factor: float


@dataclass(frozen=True, slots=True)
class Sharing:
    """Where split-K of one-tile blocks and cluster split-K are considered: ffma/tile_model.py."""

    whole_steps: int
    whole_share: float
    least_range_steps: int
    most_range_steps: int
    least_cluster_steps: int


@dataclass(frozen=True, slots=True)
class SmallTile:
    """A tile of ffma/small.cu and its thread tile; blocks an SM, of 128 threads or more (with more blocks registers
    spill); and how much longer its instructions take than the model counts: with up to 32 k-steps, with more of them
    all at once, in halves. None: never the fastest."""

    bm: int
    bn: int
    tm: int
    tn: int
    blocks: int
    short_factor: float
    whole_factor: float | None
    halves_factor: float | None


@dataclass(frozen=True, slots=True)
class Small:
    """Of ffma/small.cu."""

    start_us: float
    block_us: float
    issued_share: float
    end_slots: float
    quad_slots: float
    word_slots: float
    group_slots: float
    store_slots: float
    along_k_slots: float
    round_us: float
    group_us: float
    store_us: float
    bandwidth_share: float
    partly_factor: float
    overlap_us: float
    beyond_l2_share: float
    unknown_factor: float
    one_k: int
    few_k: int
    tiles: tuple[SmallTile, ...]


@dataclass(frozen=True, slots=True)
class Skinny:
    """Of ffma/skinny.cu."""

    start_us: float
    reduce_us: float
    reread_factor: float
    bandwidth_share: float
    lack_factor: float
    lack_of_words_factor: float
    narrow_factor: float
    first_us: float
    round_us: float
    fetch_us: float
    ffma_slots: float
    load_slots: float
    fetch_slots: float
    sum_slots: float
    overlap_us: float
    beyond_l2_share: float


@dataclass(frozen=True, slots=True)
class Chain:
    """Of ffma/chain.cu."""

    start_us: float
    bandwidth_share: float
    step_slots: float
    wavefront_factor: float


@dataclass(frozen=True, slots=True)
class Streamed:
    """Of emulated/streamed.cu with A split in registers, by columns of a tile: emulated/model.py."""

    columns: int
    chunk_us: float
    tile_us: float
    edge_factor: float
    four_times_us: float


@dataclass(frozen=True, slots=True)
class Emulated:
    """Of tensor-core kernels: emulated/model.py. ``worth_share``: of IEEE's modelled time, what tensor cores may
    take for "emulated" to choose them; None: they were not measured to win. ``least_k``: of what K they were."""

    worth_share: float | None
    least_k: int
    fp16x3_chunk_us: float
    tf32x3_chunk_us: float
    bf16x9_chunk_us: float
    tile_us: float
    half_as_high_share: float
    four_times_us: float
    start_us: float
    reduce_us: float
    unaligned_factor: float
    bandwidth_share: float
    turned_across_us: float
    skew_down_us: float
    ramp_us: float
    fused_chunk_us: float
    fused_tile_us: float
    fused_start_us: float
    fused_skew_a_us: float
    fused_skew_b_us: float
    fused_columns_us: float
    fused_edge_factor: float
    fused_four_times_us: float
    fused_share: float
    streamed_start_us: float
    streamed_skew_us: float
    streamed_far_factor: float
    far_share: float
    streamed: tuple[Streamed, ...]
    parts_factor: float
    ranges_factor: float
    cluster_tiles: int


@dataclass(frozen=True, slots=True)
class Device:
    """What shares are of: clock, nominal bandwidth of the memory, L2."""

    mhz: float
    bandwidth_gbs: float
    l2_bytes: int


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Profile:
    """The numbers of one GPU, and where they come from. Two profiles are equal where they are one object.

    Attributes:
        name: what messages call it.
        gpus: names of the GPUs that it holds for, each with ``*`` for anything; none: for those without a profile.
        architecture: theirs, ``sm_NN``; None: any.
        date: of the fit.
        source: the records or times that it was fitted to.
        command: what made it.
        residuals: median and 90th percentile of the models' error and of what choices lost; None where unknown.
        device: what shares are of; None: of what the device at hand says of itself.
    """

    name: str
    gpus: tuple[str, ...]
    architecture: str | None
    date: str
    source: str
    command: str
    residuals: Mapping[str, Any] = field(default_factory=dict)
    device: Device | None = None
    tiled: Tiled
    tiles: tuple[Tile, ...]
    clusters: tuple[Cluster, ...]
    sharing: Sharing
    wide: Wide
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
