"""A rung whose SASS is edited: the compiler's cubin, and the patch that was made for exactly that cubin.

The one place below the instruments that asks one for something, and only when such a rung is built, or the one that it
is an edit of: no call of the library's does (`import peakgemm` loads nothing of `peakgemm.sass`; pyproject.toml names
the exception).
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import InvalidValue
from ..problem import Config
from ..runtime import cache
from ..runtime.compile import Compiled, Wanted
from .registry import LADDER, Kernel

#: How `Compiled.note` begins where a patch was applied.
PATCHED = "patched: "
_ENTRIES = frozenset(kernel.entry for kernel in LADDER if kernel.patched)


def wanted(kernel: Kernel, config: Config, arch: str) -> Wanted | None:
    """The compiler's code that a patch is for; None where there is no patch for this compilation.

    The rung that is edited and the one that is not are the same compilation, so that the one's gain over the other is
    the patch's.
    """
    if kernel.entry not in _ENTRIES:
        return None
    from ..sass.rebuild import patches

    patch = patches.meant(kernel.entry, config, arch)
    if patch is None:
        return None
    return Wanted(patch.cubin, patch.compiler, lambda code: patches.digest(code) == patch.cubin)


def applied(compiled: Compiled, config: Config) -> Compiled:
    """``compiled``, of ``config``, with its patch, or as it is where none fits; `Compiled.note` says which, and why."""
    from ..sass.rebuild import patches

    patch, why = patches.find(compiled.code, compiled.entry, compiled.arch, config)
    if patch is None:
        return replace(compiled, note=f"the compiler's code runs unpatched: {why}")
    done = patch.stored(cache.load(patch.key))
    if done is None:
        try:
            done = patch.apply(compiled.code)
        except InvalidValue as error:
            return replace(compiled, note=f"the compiler's code runs unpatched: {error}")
        cache.save(patch.key, done, {})
    return replace(compiled, code=done, registers=patch.registers, recipe=None, note=f"{PATCHED}{patch.name}")
