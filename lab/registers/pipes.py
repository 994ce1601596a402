"""The arithmetic pipes of a Hopper sub-partition: which instruction has to wait for one.

Each has 16 lanes and so takes an instruction of a warp every other cycle. Of the two for FP32, one multiplies integers
as well. An FFMA goes to the other one if both are free, so that in a row of them the two take turns; an IMAD that comes
when its pipe has just been given an FFMA waits a cycle. MOV and IADD3 have a pipe of their own. Found as the rest
(docs/register-file.md): an IMAD an odd number of FFMAs behind a load costs a cycle, an even number none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The pipes that an opcode may go to, the preferred one first.
PIPES: Mapping[str, tuple[str, ...]] = {
    "FFMA": ("fp32", "fp32 and integer products"), "IMAD": ("fp32 and integer products",), "MOV": ("integer",),
    "IADD3": ("integer",)}
_EVERY = 2


@dataclass(slots=True)
class Pipes:
    """One pass over the instructions of a warp."""

    _free: dict[str, int] = field(default_factory=dict, init=False)  # from when a pipe takes the next

    def issue(self, cycle: int, name: str) -> int:
        """The cycle from ``cycle`` on in which an instruction issues."""
        pipes = PIPES.get(name, ())
        if not pipes:
            return cycle
        at, _, pipe = min((max(cycle, self._free.get(pipe, 0)), place, pipe) for place, pipe in enumerate(pipes))
        self._free[pipe] = at + _EVERY
        return at
