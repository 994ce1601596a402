"""The table of kernels: where each one lives, its default tile, and what it needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValue
from ..problem import C, Config, Problem
from ..runtime import source
from ..runtime.architectures import FEATURES, Architecture
from .constraints import (
    boxes,
    direct,
    multistage,
    one_float4,
    one_output,
    split_tile,
    square_tile,
    template,
    warp_staged,
)
from .family import Family, Launches
from .rung import EDITED, RUNG, RungConfig

if TYPE_CHECKING:
    from .recipe import Recipe

FLOAT = 4  # bytes
_PREFIXES = {"ladder": "sgemm", "ffma": "ffma", "emulated": "tensor"}  # of the names of exported kernels


def _none(config: Config) -> int:
    return 0


def _tiles(pad_a: int = 0, pad_b: int = 0, transposed: bool = True) -> Callable[[Config], int]:
    """Bytes of ``stages`` buffers of both tiles, with the padding (in floats) of a row of each."""

    def shared(c: Config) -> int:
        a = c.bk * (c.bm + pad_a) if transposed else c.bm * (c.bk + pad_a)
        b = c.bn * (c.bk + pad_b) if pad_b else c.bk * c.bn
        return max(c.stages, 1) * (a + b) * FLOAT

    return shared


def _boxes(c: Config) -> int:
    """Bytes of ``stages`` times A as it arrives, B, and A transposed with padding; of three mbarriers each."""
    stage = FLOAT * c.bk * (c.bm + c.bn + c.bm + 4)
    return c.stages * (-(-stage // 1024) * 1024 + 3 * 8)


def _split_tiles(c: Config) -> int:
    """Bytes of ``stages`` pairs of tiles as two FP16 halves, the scale of every row and column, two mbarriers."""
    return c.stages * ((c.bm + c.bn) * (c.bk * 2 * 2 + FLOAT) + 2 * 8)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One ``.cu`` file: a rung of the ladder, or of ``folder``, a kernel of the library (number -1).

    ``shared_bytes`` gives the shared memory of a block for a config; ``dynamic`` says whether
    it is passed at launch (and so may exceed 48 KB). ``tunes`` names the fields of its configuration, beyond the
    tile, that may differ from the default's; None: all may. ``vectors`` names the matrices that the
    aligned compilation accesses sixteen bytes at a time. ``constraints`` yields what a config breaks of what the source
    asks of the tile, and ``needs`` names the features of an architecture that it uses; where there is the feature
    ``outdone_by``, a kernel that uses it is taken instead. Several kernels of the library
    may share the source ``source_name`` and differ by ``defines``; what else the library knows of one is its
    ``family``'s. ``overrides`` holds the default config of
    architectures where another one is better: with room for two blocks per SM, rung 11 gains 3 % on
    sm_90 and spills on others; rung 12 gains 8 % on sm_90 and spills on sm_70, sm_100 and sm_120.
    ``patched`` marks a rung whose source is another's (``source_name``) and whose loop is built anew in the cubin:
    see `patched`. ``peak`` is the ceiling of its arithmetic in multiples of the FP32 peak, ``rounding`` what it may be
    off, in eps |A||B|, beyond a chain of FMAs. ``bare_loop``: its main loop is FFMAs and loads of their fragments, so
    that it is known how well a compiler can do (`shortfall`). ``aside``: why to look at a rung that is off the ladder's
    main line, on which each rung is faster than the one before; empty on it.
    """

    number: int
    name: str
    idea: str
    default: Any
    constraints: Callable[[Any], Iterator[str]]
    shared_bytes: Callable[[Any], int] = _none
    dynamic: bool = False
    tunes: frozenset[str] | None = None
    vectors: str = ""
    needs: tuple[str, ...] = ()
    outdone_by: str = ""
    peak: float = 1.0
    rounding: float = 0.0
    folder: str = "ladder"
    source_name: str = ""
    patched: bool = False
    defines: Mapping[str, int] = field(default_factory=dict)
    named: Mapping[str, Config] = field(default_factory=dict)
    overrides: Mapping[str, Config] = field(default_factory=dict)
    bare_loop: bool = False
    aside: str = ""
    family: Family = RUNG

    @property
    def stem(self) -> str:
        """The name of the source file, without ``.cu``."""
        return self.source_name or (self.page if self.number >= 0 else self.name)

    @property
    def path(self) -> Path:
        """The source file."""
        return source.KERNELS / self.folder / f"{self.stem}.cu"

    @property
    def page(self) -> str:
        """The name of a rung's page and record: ``NN_name``."""
        return f"{self.number:02}_{self.name}"

    @property
    def header(self) -> Path:
        """The file whose leading comment tells a rung's idea: its source, or where that is another's, a text."""
        return self.path.with_name(f"{self.page}.txt") if self.patched else self.path

    @property
    def file(self) -> str:
        """The source file, relative to the kernel folder."""
        return self.path.relative_to(source.KERNELS).as_posix()

    @property
    def wgmma(self) -> bool:
        """Whether it multiplies on the tensor cores of sm_90."""
        return "wgmma" in self.needs

    @property
    def tensor_copies(self) -> bool:
        """Whether its aligned compilation (in the library, the only one) takes tensor maps of A and B at the end."""
        return "setmaxnreg" in self.needs

    @property
    def sm_90a(self) -> bool:
        """Whether it uses wgmma or setmaxnreg, which are in the instruction set of this one architecture."""
        return self.wgmma or self.tensor_copies

    def lacks(self, arch: Architecture) -> str | None:
        """The instructions that the kernel needs and ``arch`` has not, with who has them; None: it has all."""
        return next((f"{feature} needs {FEATURES[feature].text}" for feature in self.needs
                     if feature not in arch.features), None)

    def is_for(self, arch: Architecture) -> bool:
        """Whether it is considered on ``arch``: that has the instructions, and none that make another kernel faster."""
        return self.lacks(arch) is None and self.outdone_by not in arch.features

    @property
    def entry(self) -> str:
        """Name of the exported kernel."""
        return f"{_PREFIXES[self.folder]}_{self.stem}"

    @property
    def label(self) -> str:
        """``NN name``, with spaces; ``folder name`` for a kernel of the library."""
        number = f"{self.number:02}" if self.number >= 0 else self.folder
        return f"{number} {self.name.replace('_', ' ')}"

    @property
    def title(self) -> str:
        """The `label`, with what it is."""
        return f"{'rung' if self.number >= 0 else 'kernel'} {self.label}"

    def recipe(self, config: Config, problem: Problem, arch: str) -> Recipe:
        """What it is compiled from for a problem."""
        return self.family.recipe(self, config, problem, arch)

    def reduce_recipe(self, config: Config, problem: Problem, arch: str) -> Recipe:
        """What its second kernel, which adds up partial sums, is compiled from."""
        return self.family.reduce_recipe(self, config, problem, arch)

    def launches(self, config: Config, problem: Problem, arch: str, sm_count: int, ready_a: int = 0,
                 ready_b: int = 0) -> Launches:
        """What a product by it launches; see `Family`.

        Raises:
            InvalidValue: more blocks than a grid has, or more parts than are counted.
        """
        return self.family.launches(self, config, problem, arch, sm_count, ready_a, ready_b)

    def split_before(self, config: Config) -> str:
        """The operands of a problem, of ``"ab"``, that the kernel reads as panels split for tensor cores."""
        panels = self.family.panels
        return "a" if panels == "b" and config.trans_c else panels

    def is_ascending(self, config: Config, problem: Problem) -> bool:
        """Whether it sums every element by one chain of FMAs over K, cut as ``config`` for a problem that it is valid
        for; see `Family.one_chain`."""
        whole = (config.split == 1 or config.handed) and config.cluster == 1 and not config.chunked
        return whole and self.family.one_chain(config, problem)

    def varies(self, name: str) -> bool:
        """Whether its configurations may differ in the field of that name."""
        return name in {f.name for f in fields(self.default)} and (self.tunes is None or name in self.tunes)

    def read(self, found: Mapping[str, Any]) -> Config:
        """A configuration of it that JSON holds; see `Config.from_json`."""
        config: Config = type(self.default).from_json(found)
        return config

    @cached_property
    def source(self) -> str:
        """The joined source text."""
        return source.assemble(self.path)

    def config_for(self, arch: str) -> Config:
        """The default config on ``arch`` (``sm_NN``)."""
        config: Config = self.overrides.get(arch.rstrip("af"), self.default)
        return config


class _Entries(dict[str, Any]):
    """What configs.json has for each kernel."""

    def __missing__(self, name: str) -> Any:
        raise InvalidValue(f'kernels/configs.json has no entry "{name}"; add one with a "default"')


_CONFIGS = _Entries(json.loads((source.KERNELS / "configs.json").read_text(encoding="utf-8")))


def default_of(name: str, kind: type[C]) -> C:
    """The default configuration that configs.json has for a kernel."""
    return kind.from_json(_CONFIGS[name]["default"])


@cache
def compared(kernel: Kernel) -> tuple[Any, ...]:
    """The configurations that configs.json has for a tiled kernel, which the choice compares."""
    return tuple(kernel.read(found) for found in _CONFIGS[kernel.name].get("compared", ()))


def _rung(number: int, name: str, idea: str, constraints: Callable[[Any], Iterator[str]],
          shared_bytes: Callable[[Any], int] = _none, tunes: frozenset[str] = frozenset(), **more: Any) -> Kernel:
    """A rung with the configurations that configs.json has for it."""
    named, overrides = ({key: RungConfig(**config) for key, config in _CONFIGS[name].get(what, {}).items()}
                        for what in ("named", "overrides"))
    return Kernel(number, name, idea, default_of(name, RungConfig), constraints, shared_bytes, named=named,
                  overrides=overrides, tunes=tunes, **more)


# By number, without gaps. Rungs without an ``aside`` are the main line: each is faster than the one before at 4096 on
# an H100 (results/h100/ladder.json). Tables, pictures and chapters take the order from here.
LADDER: tuple[Kernel, ...] = (
    _rung(0, "naive", "one output a thread, lanes along the rows of C", one_output),
    _rung(1, "coalesced", "lanes along the columns of C", one_output),
    _rung(2, "register_tile", "4x4 outputs a thread, float4 straight from global memory", direct,
          tunes=frozenset({"passes", "fragments"}), vectors="abc",
          aside="how far caches carry a kernel without shared memory; rung 06 is the first that passes it"),
    _rung(3, "shared_tile", "32x32 tiles in shared memory, with bank conflicts", square_tile,
          _tiles(transposed=False),
          aside="what a mistake costs: all 32 lanes of a load meet in one bank, and rung 04 repairs it with a word"),
    _rung(4, "padded_tile", "a pad of one word ends the conflicts", square_tile, _tiles(1, 1, transposed=False)),
    _rung(5, "vectorised_tile", "float4 everywhere, next tile preloaded into registers", one_float4,
          _tiles(4, transposed=False), vectors="abc"),
    _rung(6, "block_tile_64", "64x64 block, 4x4 a thread", one_float4, _tiles(4, transposed=False), vectors="abc"),
    _rung(7, "thread_tile_8x8", "128x128 block, 8x8 a thread", one_float4, _tiles(transposed=False), vectors="abc",
          aside="what other tutorials do next, and what it costs: A as it lies takes 150 registers, one block an SM"),
    _rung(8, "transposed_a", "A transposed in shared memory: fragments by LDS.128", one_float4, _tiles(),
          vectors="abc"),
    _rung(9, "quadrants", "fragments in 4x4 quadrants: no conflict on B", one_float4, _tiles(), vectors="abc"),
    _rung(10, "double_buffer", "two shared buffers, one barrier an iteration", one_float4, _tiles(), vectors="abc"),
    _rung(11, "double_fragments", "fragments double-buffered too: the template of the tile table", template, _tiles(),
          dynamic=True, tunes=frozenset({"stages", "fragments", "min_blocks"}), vectors="abc"),
    _rung(12, "warp_tile", "lanes in a compact warp tile: fragment reads multicast", warp_staged, _tiles(4),
          dynamic=True, tunes=frozenset({"fragments", "min_blocks"}), vectors="abc",
          aside="CUTLASS's layout of lanes: slower by itself, and what the copies of rung 13 stand on"),
    _rung(13, "cp_async", "cp.async in stages; four-byte copies transpose A", multistage, _tiles(4), dynamic=True,
          tunes=frozenset({"stages", "fragments", "min_blocks"}), vectors="b", needs=("cp.async",)),
    _rung(14, "large_tile", "8x16 a thread, 128x256 a block, rasterised for L2", multistage, _tiles(4), dynamic=True,
          tunes=frozenset({"stages", "fragments", "raster", "min_blocks"}), vectors="b", needs=("cp.async",),
          family=EDITED),
    _rung(15, "warp_specialised", "warps that copy (TMA) beside warps that compute, on a ring of mbarriers",
          boxes, _boxes, dynamic=True, tunes=frozenset({"stages", "raster"}), vectors="ab", needs=("setmaxnreg",),
          aside="Hopper's way, in which some warps only copy: slower than rung 14 here, and what rung 17 stands on"),
    _rung(16, "sass_tuned", "rung 14, the SASS of its loop built anew: registers, order, control bits", multistage,
          _tiles(4), dynamic=True, tunes=frozenset({"stages", "fragments", "raster", "min_blocks"}), vectors="b",
          needs=("cp.async",), source_name="14_large_tile", patched=True, family=EDITED),
    _rung(17, "tensor_cores", "FP32 accuracy from FP16 tensor cores: split on the way in, three products", split_tile,
          _split_tiles, dynamic=True, tunes=frozenset({"stages", "raster"}), vectors="ac", needs=("wgmma",),
          # Three products at 2048 FP16 multiply-adds a clock and SM (Hopper's white paper), beside 128 FFMA.
          peak=16 / 3,
          # Two elements rounded to 2^-23 of themselves, and the product of their second halves, 2^-22, left out.
          rounding=4.0),
)


def rung(number: int) -> Kernel:
    """The ladder's kernel of that number.

    Raises:
        InvalidValue: no such rung; the message lists those there are.
    """
    for kernel in LADDER:
        if kernel.number == number:
            return kernel
    known = ", ".join(f"{k.number:02} {k.name}" for k in LADDER)
    raise InvalidValue(f"unknown rung {number!r}; valid ones: {known}")


def numbers() -> str:
    """The numbers of the ladder's rungs, ``00-17``."""
    return f"{LADDER[0].number:02}-{LADDER[-1].number:02}"


def supported(arch: Architecture) -> tuple[Kernel, ...]:
    """The rungs that ``arch`` has the instructions for."""
    return tuple(k for k in LADDER if k.lacks(arch) is None)


def rungs(selection: str) -> tuple[Kernel, ...]:
    """Kernels named by ``"00-14"``, ``"3"``, ``"03,07-09"``; a name such as ``warp_tile`` serves too.

    Raises:
        InvalidValue: a part that names no rung, or a range that runs backwards.
    """
    chosen: dict[int, Kernel] = {}
    for part in selection.split(","):
        part = part.strip()
        named = next((k for k in LADDER if k.name == part.replace("-", "_")), None)
        low, dash, high = part.partition("-")
        if named is not None:
            found = [named]
        elif low.isdecimal() and (high.isdecimal() if dash else True):
            first, last = rung(int(low)).number, rung(int(high or low)).number
            if first > last:
                raise InvalidValue(f"rungs {part!r} run backwards; write {last:02}-{first:02}")
            found = [k for k in LADDER if first <= k.number <= last]
        else:
            known = ", ".join(f"{k.number:02} {k.name}" for k in LADDER)
            raise InvalidValue(f"unknown rung {part!r}; valid ones: {known}")
        chosen.update((k.number, k) for k in found)
    return tuple(chosen[n] for n in sorted(chosen))
