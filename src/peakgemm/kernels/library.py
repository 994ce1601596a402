"""The kernels behind `peakgemm.matmul`: any layout, alignment, batch, alpha and beta. A line each; their families are
in ``ffma/NAME.py`` and ``emulated/NAME.py``."""

from __future__ import annotations

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime.architectures import architecture
from ..runtime.compile import Compiled, Kind
from .emulated.product import OLDER, PRODUCTS
from .emulated.streamed import FUSED, STREAMED
from .ffma.chain import CHAIN
from .ffma.skinny import SKINNY
from .ffma.small import SMALL
from .ffma.specialised import SPECIALISED
from .ffma.staged import STAGED
from .ffma.wide import WIDE
from .recipe import Recipe
from .registry import Kernel
from .validity import require

#: Of FFMAs, by which an IEEE product is computed.
KERNELS = (SPECIALISED, WIDE, STAGED, SKINNY, SMALL, CHAIN)
#: Of tensor cores; several of a scheme share its name.
EMULATED = (*PRODUCTS.values(), *OLDER.values(), STREAMED, FUSED)


def kernel_named(name: str, among: tuple[Kernel, ...] = KERNELS) -> Kernel:
    """The library's kernel of that name; of tensor cores, ``among`` `EMULATED`, the last of a scheme.

    Raises:
        InvalidValue: no such kernel; the message lists those there are.
    """
    named = {kernel.name: kernel for kernel in among}
    if name not in named:
        raise InvalidValue(f"unknown kernel {name!r}; valid ones: {', '.join(named)}")
    return named[name]


def recipes(kernel: Kernel, config: Config, problem: Problem, arch: str, sm_count: int) -> tuple[Recipe, ...]:
    """What the kernels are compiled from that a product by ``kernel`` launches, in that order.

    Raises:
        InvalidValue: see `Family.launches`.
    """
    return tuple(launch.recipe for launch in kernel.launches(config, problem, arch, sm_count).kernels)


def compile_for(kernel: Kernel, config: Config, problem: Problem, arch: str, kind: Kind = "cubin") -> Compiled:
    """Compile ``kernel`` for ``config`` and what it takes from ``problem``, or take the shipped cubin.

    Raises:
        InvalidValue: a config that the kernel or the architecture does not allow.
        CompileFailed, MissingComponent: see `compile_source`.
    """
    require(kernel, config, architecture(arch))
    return kernel.recipe(config, problem, arch).make(kind)
