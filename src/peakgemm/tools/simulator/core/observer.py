"""Who watches a run: the explorer's trace, instruction by instruction. A run without one pays nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from ..front.ptx import Instruction
from .lanes import LaneSet

if TYPE_CHECKING:
    from ..machine import Machine
    from ..ops.build import Build


class Observer(Protocol):
    """What `peakgemm.tools.simulator.run` tells its ``observer``."""

    def build(self, machine: Machine) -> Build:
        """What makes the steps of this run: it may put steps of its own around them."""

    def access(self, ins: Instruction, space: str, size: int, load: bool, lanes: LaneSet,
               address: NDArray[Any]) -> None:
        """Lanes access ``size`` bytes each at ``address (lanes.n,)``: within the block in ``shared``, of the device in
        ``global``. Called before the access is checked; ``load``: pairs of lanes may share a phase (`counters`)."""
