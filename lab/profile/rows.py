"""What the models say of one timed kernel, and which numbers of a profile that depends on."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from peakgemm.kernels.emulated import model
from peakgemm.kernels.ffma import wide
from peakgemm.kernels.ffma.tile_model import modelled_us, results_stored, tilings, variants
from peakgemm.kernels.ffma.tiled import cluster_split
from peakgemm.kernels.library import kernel_named
from peakgemm.kernels.profile import Cluster, Machine, Profile, Tile
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.widths import copied_by_words
from peakgemm.problem import Config, Problem, varied

Path = tuple[str | int, ...]  # to a number of a profile: ("tiles", 3, "share")

# What is no estimate of a time but a rule of the choice, or has no times of its own: it stays as it was.
_RULES = frozenset({"crowded_share", "least_tiles_factor", "short_factor", "medium_factor", "whole_share",
                    "beyond_l2_share", "unknown_factor", "worth_share", "parts_factor", "ranges_factor", "far_share",
                    "tf32x3_chunk_us", "bf16x9_chunk_us"})
_TILE_FACTORS = frozenset({"short_factor", "whole_factor", "halves_factor"})  # of a tile of small.cu: no rules


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel's measured microseconds for a product; ``weight`` in the fit. ``group``: rows that share all numbers but
    those of their tile, which is the profile's number ``index`` of its kind (-1: no tile)."""

    problem: Problem
    kernel: Kernel
    config: Config
    us: float
    weight: float
    group: str
    index: int


def row(problem: Problem, kernel: Kernel, config: Config, us: float, weight: float, gpu: Machine) -> Row | None:
    """A timed kernel as a row of the fit; None: the profile does not hold its tile."""
    group, index = kernel.family.numbers, -1
    if group == "wide":
        index = next(i for i, tile in enumerate(gpu.profile.tiles) if tile.kernel == kernel.name)
    elif group == "tiled":
        index = _index(kernel, config, gpu)
        if index < 0:
            return None
        group = (f"clusters {index}" if cluster_split(config) else
                 f"split_k {index}" if gpu.profile.tiles[index].split_k and config.split > 1 else "tiled")
    return Row(problem, kernel, config, us, weight, group, index)


def _index(kernel: Kernel, config: Config, gpu: Machine) -> int:
    """Of a configuration's tile or cluster in the profile; -1: it is not there."""
    base = varied(config, split=1, cluster=2 if cluster_split(config) else config.cluster)
    for fitted in tilings(kernel, gpu):
        if base in {varied(way, split=1) for way in variants(fitted)}:
            rows: tuple[Any, ...] = gpu.profile.clusters if isinstance(fitted, Cluster) else gpu.profile.tiles
            return next(i for i, one in enumerate(rows) if replace(one, config=fitted.config) == fitted)
    return -1


def estimate_us(one: Row, gpu: Machine) -> float:
    """What the models say of a row's time, margins of the choice left out."""
    p, kernel = one.problem, one.kernel
    config: Any = one.config  # of the kernel's own kind
    if one.group == "emulated":
        return model.estimate_us(kernel, config, p, gpu)
    if kernel.family.estimate_us is not None:
        overlap = gpu.arch.launches_overlap(kernel.family.schedule(config, p, gpu.sms).blocks, gpu.sms)
        return kernel.family.estimate_us(config, p, gpu) - overlap * kernel.family.overlap_us(gpu.profile)
    found: Tile | Cluster = (gpu.profile.clusters if one.group.startswith("clusters") else gpu.profile.tiles)[one.index]
    if one.group == "wide":
        assert isinstance(found, Tile)
        return wide.estimate_us(found, config, p, gpu)
    return modelled_us(found, config, p, gpu, copied_by_words(p), results_stored(p, gpu))


def numbers_of(group: str, profile: Profile) -> list[Path]:
    """The numbers of a profile that times of a group are fitted to."""
    name, _, index = group.partition(" ")
    if name == "clusters":
        return _floats(profile.clusters[int(index)], ("clusters", int(index)))
    if name == "split_k":
        return _floats(profile.tiles[int(index)].split_k, ("tiles", int(index), "split_k"))
    if name in ("tiled", "wide"):
        shares: list[Path] = [("tiles", i, what) for i, tile in enumerate(profile.tiles)
                              for what in ("share", "words_share") if kernel_named(tile.kernel).family.numbers == name]
        return _floats(getattr(profile, name), (name,)) + shares
    section = getattr(profile, name)
    tiles: list[Path] = [path for what in ("tiles", "streamed") if hasattr(section, what)
                         for i, one in enumerate(getattr(section, what)) for path in _floats(one, (name, what, i))]
    return _floats(section, (name,)) + tiles


def moves(path: Path, one: Row) -> bool:
    """Whether a number can move a row's estimate: that of a tile moves its rows alone."""
    return path[0] != "tiles" or path[1] == one.index


def get(profile: Any, path: Path) -> float:
    """A number of a profile."""
    for step in path:
        profile = profile[step] if isinstance(step, int) else getattr(profile, step)
    return float(profile)


def changed(within: Any, path: Path, value: float) -> Any:
    """A profile with another value for one number."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return (*within[:step], changed(within[step], rest, value), *within[step + 1:])
    return replace(within, **{step: changed(getattr(within, step), rest, value)})


def _floats(section: Any, path: Path) -> list[Path]:
    assert is_dataclass(section)
    tile = "blocks" in {f.name for f in fields(section)}
    return [(*path, f.name) for f in fields(section) if str(f.type).startswith("float")
            and getattr(section, f.name) is not None and (f.name not in _RULES or (tile and f.name in _TILE_FACTORS))]
