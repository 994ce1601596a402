"""A rung whose main loop is built anew, from whatever the compiler made of the rung that it is an edit of.

Only the build of such a rung, or of the one that it is an edit of, asks for it: no call of the library's does
(`import peakgemm` loads nothing of `peakgemm.sass`).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from ..errors import InvalidValue
from ..problem import Config, varied
from ..runtime import cache
from ..runtime.compile import Compiled, Wanted
from .registry import LADDER, Kernel

#: How `Compiled.note` begins where the loop was built anew.
REBUILT = "loop built anew"
_ARCH = "sm_90"  # whose instructions `sass.rebuild` writes
_ENTRIES = frozenset(kernel.entry for kernel in LADDER if kernel.patched)


def wanted(kernel: Kernel, config: Config, arch: str) -> Wanted | None:
    """What the compiler is asked for again until it makes it: a loop that can be built anew; None: no edit is meant.

    The rung that is edited and the one that is not are the same compilation, so that the one's gain over the other is
    the edit's.
    """
    if kernel.entry not in _ENTRIES or _why_not(config, arch):
        return None

    def fits(code: bytes) -> bool:
        from ..sass.elf import Cubin
        from ..sass.program import Program
        from ..sass.rebuild.block import analyse

        try:
            analyse(Program.of(Cubin.read(code), kernel.entry))
        except InvalidValue:
            return False
        return True

    return Wanted("a loop that can be built anew", fits)


def applied(compiled: Compiled, config: Config) -> Compiled:
    """``compiled``, of ``config``, with its loop built anew, proved, or as it is; `Compiled.note` says which, and why.

    The result is kept in the disk cache: to build it takes 1.5 s.
    """
    why = _why_not(config, compiled.arch)
    if why:
        return replace(compiled, note=f"the compiler's code runs: {why}")
    from ..sass.elf import Cubin
    from ..sass.rebuild.loop import most_registers, rebuild
    from ..sass.rebuild.recipe import Recipe

    recipe = Recipe()
    key = hashlib.sha256(b"loop built anew" + compiled.code + repr(recipe).encode()).digest()
    hit = cache.load(key)
    if hit is None:
        limit = most_registers(config.block_threads, config.min_blocks)
        try:
            made = rebuild(Cubin.read(compiled.code), recipe, limit, compiled.entry)
        except InvalidValue as error:
            return replace(compiled, note=f"the compiler's code runs: {error}")
        hit = made.cubin, {"registers": made.registers, "before": made.before, "turn": made.turn}
        cache.save(key, *hit)
    code, facts = hit
    return replace(compiled, code=code, registers=facts["registers"], recipe=None,
                   note=f"{REBUILT}: {facts['turn']} instructions a turn instead of {facts['before']}")


def _why_not(config: Config, arch: str) -> str:
    """Why the recipe is not for this compilation; empty where it is."""
    if arch != _ARCH:
        return f"loops are built anew for {_ARCH} alone, not {arch}"
    tuned = next(kernel for kernel in LADDER if kernel.patched).config_for(arch)
    if config == varied(tuned, aligned=True):
        return ""
    if config == varied(tuned, aligned=False):
        return ("the recipe is not for the guarded path, which serves sizes that the tile's do not divide and "
                "unaligned addresses")
    return f"the recipe is for the tile {tuned.label()}, not {config.label()}"
