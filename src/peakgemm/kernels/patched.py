"""A rung whose SASS is edited: the compiler's cubin, and the patch that was made for exactly that cubin.

The one place below the instruments that asks one for something, and only when such a rung is built: no call of the
library's does (`import peakgemm` loads nothing of `peakgemm.sass`; pyproject.toml names the exception).
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import InvalidValue
from ..runtime import cache
from ..runtime.compile import Compiled

#: How `Compiled.note` begins where a patch was applied.
PATCHED = "patched: "


def applied(compiled: Compiled) -> Compiled:
    """``compiled`` with its patch, or as it is where none fits; `Compiled.note` says which, and why."""
    from ..sass.rebuild import patches

    patch, why = patches.find(compiled.code, compiled.entry, compiled.arch)
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
