"""A rung whose main loop is built anew, from whatever the compiler made of the rung that it is an edit of.

Only the build of such a rung, or of the one that it is an edit of, asks for it: no call of the library's does
(`import peakgemm` loads nothing of `peakgemm.sass`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValue
from ..problem import Config, varied
from ..runtime import cache as disk_cache
from ..runtime.compile import TRIES, Compiled, Reading

if TYPE_CHECKING:
    from .registry import Kernel

#: How `Compiled.note` begins where the loop was built anew.
REBUILT = "loop built anew"
_ARCH = "sm_90"  # whose instructions `sass.rebuild` writes


@dataclass(frozen=True, slots=True)
class Edit:
    """What the recipe of a rung asks of the compiler's cubin, and makes of it.

    The rung that is edited and the one that is not (``rebuilds`` False) are the same compilation, so that the one's
    gain over the other is the edit's. ``why_not``: why no edit is meant for ``config``; empty where one is.
    """

    entry: str
    config: Config
    why_not: str
    rebuilds: bool

    @property
    def reading(self) -> Reading | None:
        """By which the compiler is asked again until it makes a loop that can be built anew; None: no edit is meant."""
        return None if self.why_not else Reading("a loop that can be built anew", _rebuildable, TRIES)

    def apply(self, compiled: Compiled) -> Compiled:
        """``compiled`` with its loop built anew, proved, or as it is; `Compiled.note` says which, and why.

        The result is kept in the disk cache: to build it takes 1.5 s.
        """
        if not self.rebuilds:
            return compiled
        if self.why_not:
            return replace(compiled, note=f"the compiler's code runs: {self.why_not}")
        from ..sass.elf import Cubin
        from ..sass.rebuild.loop import most_registers, rebuild
        from ..sass.rebuild.recipe import Recipe

        recipe = Recipe()
        key = hashlib.sha256(b"loop built anew" + compiled.code + repr(recipe).encode()).digest()
        hit = disk_cache.load(key)
        if hit is None:
            limit = most_registers(self.config.block_threads, self.config.min_blocks)
            try:
                made = rebuild(Cubin.read(compiled.code), recipe, limit, compiled.entry)
            except InvalidValue as error:
                return replace(compiled, note=f"the compiler's code runs: {error}")
            hit = made.cubin, {"registers": made.registers, "before": made.before, "turn": made.turn}
            disk_cache.save(key, *hit)
        code, facts = hit
        return replace(compiled, code=code, registers=facts["registers"], remake=None,
                       note=f"{REBUILT}: {facts['turn']} instructions a turn instead of {facts['before']}")


def edit(kernel: Kernel, config: Config, arch: str) -> Edit:
    """The edit that belongs to the making of ``kernel``, the edited rung or the one that it is an edit of."""
    return Edit(kernel.entry, config, _why_not(kernel.config_for(_ARCH), config, arch), kernel.patched)


def _rebuildable(code: bytes, entry: str) -> dict[str, Any] | None:
    """Whether the loop of a cubin can be built anew, as a `Reading` says it."""
    from ..sass.elf import Cubin
    from ..sass.program import Program
    from ..sass.rebuild.block import analyse

    try:
        analyse(Program.of(Cubin.read(code), entry))
    except InvalidValue:
        return None
    return {"rebuildable": True}


def _why_not(tuned: Config, config: Config, arch: str) -> str:
    """Why the recipe, which is for ``tuned``, is not for this compilation; empty where it is."""
    if arch != _ARCH:
        return f"loops are built anew for {_ARCH} alone, not {arch}"
    if config == varied(tuned, aligned=True):
        return ""
    if config == varied(tuned, aligned=False):
        return ("the recipe is not for the guarded path, which serves sizes that the tile's do not divide and "
                "unaligned addresses")
    return f"the recipe is for the tile {tuned.label()}, not {config.label()}"
