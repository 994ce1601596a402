"""Compile a kernel of the table: no arrays, no launch, no GPU."""

from __future__ import annotations

from ..problem import Config
from ..runtime.architectures import architecture
from ..runtime.compile import Compiled, Kind, compile_source
from .registry import Kernel
from .validity import require


def build(kernel: Kernel, config: Config, arch: str, kind: Kind = "cubin") -> Compiled:
    """Compile ``kernel`` with ``config`` for ``arch`` (``sm_NN``).

    Raises:
        InvalidValue: a config that the kernel or the architecture does not allow.
        CompileFailed, MissingComponent: see `compile_source`.
    """
    limits = architecture(arch)
    require(kernel, config, limits)
    # wgmma and setmaxnreg are in the instruction set of this one architecture, which only the suffix names.
    name = f"{limits.name}a" if kernel.wgmma else arch
    return compile_source(kernel.source, kernel.entry, name, config.macros(), kind, name=kernel.path.name)
