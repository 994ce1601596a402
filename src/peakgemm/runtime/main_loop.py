"""Figures of a kernel's main loop, which are kept with its compilation: `sass.compiled_loop` reads them off the cubin.

The choice of a first call asks for them, and is not to wait for the import of what reads them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


def issue_share(instructions: int, ffmas: int, cycles_per_ffma: float, issue: int) -> float:
    """The share of a sub-partition's FP32 peak that a loop leaves, 0 to 1: FFMAs over all issue slots, with the cycles
    that FFMAs wait for register banks; ``issue`` is the cycles of an FFMA without conflict."""
    waited = ffmas * (cycles_per_ffma - issue)
    if issue == 2:  # what else issues goes into an FFMA's second cycle
        return ffmas * 2 / (max(ffmas * 2, instructions) + waited)
    return ffmas / (instructions + waited)


@dataclass(frozen=True, slots=True)
class CompiledLoop:
    """Figures of the main loop, the one that holds most FFMAs.

    Attributes:
        instructions, ffmas: of a turn.
        local: loads and stores of local memory among them, spilled registers.
        cycles_per_ffma: issue cycles of an FFMA by the model of register reads (`register_reads`), 1.0 at best with 32
            lanes a sub-partition, 2.0 with 16.
        issue: cycles of an FFMA without conflict.
    """

    instructions: int
    ffmas: int
    local: int
    cycles_per_ffma: float
    issue: int

    @property
    def share(self) -> float:
        """See `banks.issue_share`."""
        return issue_share(self.instructions, self.ffmas, self.cycles_per_ffma, self.issue)

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)
