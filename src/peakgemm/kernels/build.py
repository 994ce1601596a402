"""Compile a kernel of the table: no arrays, no launch, no GPU."""

from __future__ import annotations

from ..problem import Config
from ..runtime.architectures import architecture
from ..runtime.compile import Compiled, Kind, compile_source
from . import patched
from .registry import Kernel
from .validity import require


def build(kernel: Kernel, config: Config, arch: str, kind: Kind = "cubin") -> Compiled:
    """Compile ``kernel`` with ``config`` for ``arch`` (``sm_NN``); rung 16 with its patch where one fits (`patched`).

    Raises:
        InvalidValue: a config that the kernel or the architecture does not allow.
        CompileFailed, MissingComponent: see `compile_source`.
    """
    limits = architecture(arch)
    require(kernel, config, limits)
    name = limits.target(own=True) if kernel.sm_90a else arch
    wanted = patched.wanted(kernel, config, name) if kind == "cubin" else None
    compiled = compile_source(kernel.source, kernel.entry, name, config.macros(), kind, kernel.path.name, wanted=wanted)
    return patched.applied(compiled, config) if kernel.patched and kind == "cubin" else compiled
