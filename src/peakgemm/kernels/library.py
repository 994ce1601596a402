"""The kernels behind `peakgemm.matmul`: any layout, alignment, batch, alpha and beta, without a copy of an operand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime import source
from ..runtime.architectures import Architecture, architecture
from ..runtime.compile import Compiled, Kind, compile_source
from . import shipped
from .registry import FLOAT, Kernel
from .validity import require


def _ring(c: Config) -> int:
    """Bytes of the stages (rows padded by four words, as K-contiguous operands have them), epilogue, slices' sums."""
    stages = c.stages * c.bk * (c.bm + 4 + c.bn + 4)
    return (stages + c.threads * (c.tn + 1) + (c.slices - 1) * c.bm * c.bn) * FLOAT


SPECIALISED = Kernel(
    -1, "specialised", "warps that copy and warps that compute, on a ring of mbarriers; persistent, stream-K",
    Config(128, 256, 16, 8, 16, stages=6, fragments=2, raster=8, producers=128, registers=232), "specialised",
    _ring, dynamic=True, cp_async=True, folder="ffma",
    tunes=frozenset({"stages", "raster", "min_blocks", "producers", "registers", "slices", "variant", "split"}),
)
STAGED = Kernel(
    -1, "staged", "the next tile waits in registers; for GPUs without cp.async",
    Config(64, 64, 16, 4, 4, stages=2, raster=8), "staged", _ring, dynamic=True,
    tunes=frozenset({"raster", "min_blocks", "split"}), folder="ffma",
)
LIBRARY: tuple[Kernel, ...] = (SPECIALISED, STAGED)
_REDUCE = source.KERNELS / "ffma" / "reduce.cu"


def kernel_named(name: str) -> Kernel:
    """The library's kernel of that name.

    Raises:
        InvalidValue: no such kernel; the message lists those there are.
    """
    for kernel in LIBRARY:
        if kernel.name == name:
            return kernel
    raise InvalidValue(f"unknown kernel {name!r}; valid ones: {', '.join(k.name for k in LIBRARY)}")


def widths(problem: Problem) -> tuple[int, int]:
    """Floats that a copy of A and of B may take at once: 4 where every row starts at 16 bytes, else 1."""
    def width(ld: int, address: int, steps: tuple[int, ...]) -> int:
        return 4 if address >= 16 and not any(step % 4 for step in (ld, *steps)) else 1

    return (width(problem.lda, problem.alignment[0], problem.batch.a),
            width(problem.ldb, problem.alignment[1], problem.batch.b))


def specialisation(problem: Problem) -> dict[str, int]:
    """The macros that a compilation takes from the problem: layouts, and the width of copies along rows.

    An operand with K contiguous is copied word by word whatever its alignment, so its width is not asked.
    """
    a, b = widths(problem)
    return {"TRANS_A": int(problem.trans_a), "TRANS_B": int(problem.trans_b),
            "WIDTH_A": a if problem.trans_a else 1, "WIDTH_B": 1 if problem.trans_b else b}


def target(config: Config, arch: str) -> str:
    """The architecture to compile for: setmaxnreg is in the family-specific ``sm_90a`` alone."""
    return f"{architecture(arch).name}a" if config.registers else architecture(arch).name


def compile_for(kernel: Kernel, config: Config, problem: Problem, arch: str, kind: Kind = "cubin") -> Compiled:
    """Compile ``kernel`` for ``config`` and what `specialisation` takes from ``problem``.

    Raises:
        InvalidValue: a config that the kernel or the architecture does not allow.
        CompileFailed, MissingComponent: see `compile_source`.
    """
    require(kernel, config, architecture(arch))
    return _compiled(kernel.source, kernel.entry, target(config, arch), config.macros() | specialisation(problem),
                     kind, kernel.path.name)


def compile_reduce(config: Config, arch: str, kind: Kind = "cubin") -> Compiled:
    """Compile the kernel that adds up partial sums of tiles cut as in ``config``."""
    tile = replace(config, stages=2, registers=0, producers=0, min_blocks=1, slices=1, variant=0)
    return _compiled(_reduce_source(), "ffma_reduce", architecture(arch).name, tile.macros(), kind, _REDUCE.name)


def _compiled(text: str, entry: str, arch: str, macros: dict[str, int], kind: Kind, name: str) -> Compiled:
    """The cubin that is shipped for this compilation, or the compiler's."""
    found = shipped.find(text, entry, arch, macros) if kind == "cubin" else None
    return found or compile_source(text, entry, arch, macros, kind, name=name)


@cache
def _reduce_source() -> str:
    return source.assemble(_REDUCE)


def candidates(arch: Architecture) -> tuple[Kernel, ...]:
    """The library's kernels that ``arch`` has the instructions for."""
    return tuple(k for k in LIBRARY if arch.has_cp_async or not k.cp_async)
