"""The kernels behind `peakgemm.matmul`: any layout, alignment, batch, alpha and beta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime import source
from ..runtime.architectures import architecture
from ..runtime.compile import Compiled, Kind, compile_source, stored_facts
from ..runtime.tensor_map import Box
from . import shipped
from .ffma import chain, repack, skinny, small, wide
from .ffma.chain import CHAIN
from .ffma.skinny import SKINNY
from .ffma.small import SMALL
from .ffma.specialised import SPECIALISED
from .ffma.staged import STAGED
from .ffma.wide import WIDE
from .registry import Kernel
from .schedule import Schedule, cluster_split
from .schedule import schedule as tiled_schedule
from .validity import require
from .widths import widths


def kernel_named(name: str) -> Kernel:
    """The library's kernel of that name.

    Raises:
        InvalidValue: no such kernel; the message lists those there are.
    """
    for kernel in FAMILIES:
        if kernel.name == name:
            return kernel
    raise InvalidValue(f"unknown kernel {name!r}; valid ones: {', '.join(k.name for k in FAMILIES)}")


@dataclass(frozen=True, slots=True)
class Family:
    """What kernels that cut a product alike have in common: how one is compiled, launched and its parts added up.

    Attributes:
        specialisation: the macros that a compilation takes from the problem.
        schedule: the launch of a config for a problem on so many SMs.
        reduce: source of the second kernel, which adds up partial sums; it takes the first one's arguments.
        reduce_entry: its name.
        reduce_macros: what it is compiled with.
        reduce_threads: in a block of it.
        boxes: what the copy engine moves; none where threads copy.
        lives_on_l1: whether operands come by way of L1, which has what shared memory leaves of an SM's 256 KB.
    """

    specialisation: Callable[[Problem], dict[str, int]]
    schedule: Callable[[Config, Problem, int], Schedule]
    reduce: Path
    reduce_entry: str
    reduce_macros: Callable[[Config, Problem], dict[str, int]]
    reduce_threads: Callable[[Config], int]
    boxes: Callable[[Config, Problem], tuple[Box, ...]] = lambda config, problem: ()
    lives_on_l1: bool = False


def _layouts_and_widths(problem: Problem) -> dict[str, int]:
    """Layouts, and the width of copies along rows, which end with the operand.

    An operand with K contiguous is copied word by word whatever its alignment, so its width is not asked.
    """
    a, b = widths(problem)
    return {"TRANS_A": int(problem.trans_a), "TRANS_B": int(problem.trans_b),
            "WIDTH_A": a if problem.trans_a and problem.m % 4 == 0 else 1,
            "WIDTH_B": b if not problem.trans_b and problem.n % 4 == 0 else 1}


def copied_by_words(problem: Problem) -> bool:
    """Whether a tiled kernel copies B word by word, which takes 1 to 4 % of its speed."""
    return _layouts_and_widths(problem)["WIDTH_B"] == 1


def _bare_tile(config: Config, problem: Problem, shifted: int = 1) -> dict[str, int]:
    """Of the config only how C is cut; ``shifted``: what columns tiles at its edge begin at (include/copy/edge.cuh)."""
    tile = Config(config.bm, config.bn, config.bk, config.tm, config.tn, stages=2, raster=config.raster)
    return tile.macros() | {"SHIFTED": shifted}


_TILED = Family(_layouts_and_widths, tiled_schedule, source.KERNELS / "ffma" / "reduce.cu", "ffma_reduce",
                _bare_tile, lambda config: config.threads)
_SKINNY = Family(skinny.specialisation, skinny.schedule, skinny.REDUCE, "ffma_skinny_reduce", skinny.reduce_macros,
                 lambda config: skinny.REDUCE_THREADS, lives_on_l1=True)
_SMALL = replace(_TILED, specialisation=small.specialisation, schedule=small.schedule)
_CHAIN = replace(_TILED, specialisation=chain.specialisation, schedule=chain.schedule)
_WIDE = replace(_TILED, specialisation=lambda problem: {}, schedule=wide.schedule, boxes=wide.boxes,
                reduce_macros=partial(_bare_tile, shifted=0))
FAMILIES: dict[Kernel, Family] = {SPECIALISED: _TILED, WIDE: _WIDE, STAGED: _TILED, SKINNY: _SKINNY, SMALL: _SMALL,
                              CHAIN: _CHAIN}


def workspace_bytes(kernel: Kernel, config: Config, problem: Problem, sm_count: int) -> int:
    """Device memory that the launches for ``problem`` need beside the operands."""
    return FAMILIES[kernel].schedule(config, problem, sm_count).workspace_bytes


def target(config: Config, arch: str) -> str:
    """The architecture to compile for: setmaxnreg is in the family-specific ``sm_90a`` alone."""
    return f"{architecture(arch).name}a" if config.registers else architecture(arch).name


def _read_loop(code: bytes, entry: str) -> dict[str, Any] | None:
    from ..sass.compiled_loop import SAMPLE, read  # where something is compiled, and nowhere else

    loop = read(code, entry, most=SAMPLE)
    return None if loop is None else loop.to_json()


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a compilation is made from."""

    text: str
    entry: str
    arch: str
    macros: dict[str, int]
    file: str
    bare_loop: bool = False  # see `registry.Kernel`

    @property
    def name(self) -> str:
        """What the shipped cubin of this very compilation is called."""
        return shipped.digest(self.text, self.entry, self.arch, self.macros)

    def make(self, kind: Kind) -> Compiled:
        """The cubin that is shipped for this compilation, or the compiler's."""
        found = shipped.find(self.name, self.entry, self.arch) if kind == "cubin" else None
        return found or self.compile(kind)

    def compile(self, kind: Kind = "cubin") -> Compiled:
        """The compiler's, whatever is shipped."""
        look = _read_loop if self.bare_loop and kind == "cubin" else None
        return compile_source(self.text, self.entry, self.arch, self.macros, kind, name=self.file, look=look)

    def known_loop(self) -> Mapping[str, Any] | None:
        """The figures of its main loop, if it has been compiled before, here or for the wheel."""
        cubins = shipped.index(shipped.container(self.arch)).cubins
        if self.name in cubins:
            loop: Mapping[str, Any] | None = cubins[self.name][2][-1]
            return loop
        return stored_facts(self.text, self.entry, self.arch, self.macros, self.file).get("loop")


def recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What ``kernel`` is compiled from for ``config`` and what its family's specialisation takes from ``problem``."""
    macros = config.macros()
    if kernel is SPECIALISED:  # by how many blocks of a cluster, the launch says
        macros |= {"CLUSTER": 1, "CLUSTER_SPLIT_K": int(cluster_split(config)),
                   "SPLIT_K": int(config.one_tile and config.split > 1)}
    if config.handed:
        macros |= {"HANDED": 1}
    return Recipe(kernel.source, kernel.entry, target(config, arch), macros | FAMILIES[kernel].specialisation(problem),
                  kernel.path.name, kernel.bare_loop)


def reduce_recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What the kernel that adds up partial sums of tiles cut as in ``config`` is compiled from."""
    family = FAMILIES[kernel]
    return Recipe(_text(family.reduce), family.reduce_entry, architecture(arch).name,
                  family.reduce_macros(config, problem), family.reduce.name)


def first_recipe(arch: str) -> Recipe:
    """What the kernel that repacks the first chunk of K is compiled from."""
    return Recipe(_text(repack.FIRST), repack.FIRST_ENTRY, architecture(arch).name, repack.macros(), repack.FIRST.name)


@cache
def _text(path: Path) -> str:
    return source.assemble(path)


def compile_for(kernel: Kernel, config: Config, problem: Problem, arch: str, kind: Kind = "cubin") -> Compiled:
    """Compile ``kernel`` for ``config`` and ``problem``'s specialisation, or take the shipped cubin.

    Raises:
        InvalidValue: a config that the kernel or the architecture does not allow.
        CompileFailed, MissingComponent: see `compile_source`.
    """
    require(kernel, config, architecture(arch))
    return recipe(kernel, config, problem, arch).make(kind)


def compile_reduce(kernel: Kernel, config: Config, problem: Problem, arch: str, kind: Kind = "cubin") -> Compiled:
    """Compile the kernel that adds up partial sums of tiles cut as in ``config``, or take the shipped cubin."""
    return reduce_recipe(kernel, config, problem, arch).make(kind)


def recipes(kernel: Kernel, config: Config, problem: Problem, arch: str, plan: Schedule) -> dict[str, Recipe]:
    """What the kernels of the launch ``plan`` are compiled from: ``product``, and as it needs them ``reduce`` and
    ``first``."""
    found: dict[str, Recipe] = {}
    if plan.blocks:
        found["product"] = recipe(kernel, config, problem, arch)
    if plan.reduce_blocks:
        found["reduce"] = reduce_recipe(kernel, config, problem, arch)
    if plan.first_blocks:
        found["first"] = first_recipe(arch)
    return found


def compilations(kernel: Kernel, config: Config, problem: Problem, arch: str,
                 plan: Schedule) -> dict[str, Callable[[], Compiled]]:
    """What compiles the `recipes` of a launch."""
    return {what: partial(made.make, "cubin") for what, made in recipes(kernel, config, problem, arch, plan).items()}
