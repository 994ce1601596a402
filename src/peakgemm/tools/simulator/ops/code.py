"""Blocks of a program made executable, and the end of a run that cannot go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import Group
from ..front.ptx import Instruction
from .build import Step

LOOK = 2000  # instructions between two looks at the clock


class Stop(Exception):
    """The run cannot go on; the message says why."""


class Code:
    """A block made executable: steps, the closing branch, how often it ran.

    Steps and branch are made when a group first arrives: most blocks of a kernel are for cases that do not come up.
    """

    def __init__(self, length: int, sync: Instruction | None, steps: Callable[[], list[Step]],
                 end: Callable[[], Callable[[Group], int]], live: Callable[[], dict[str, list[int]]]) -> None:
        self.length, self.sync, self._steps, self._end, self._live = length, sync, steps, end, live
        self.warps = self.lanes = 0

    @cached_property
    def steps(self) -> list[Step]:
        """What the lanes of a group do, one instruction or a few after the other."""
        return self._steps()

    @cached_property
    def end(self) -> Callable[[Group], int]:
        """Where the group goes; negative where it is split, waits or has been kept."""
        return self._end()

    @cached_property
    def live(self) -> dict[str, NDArray[Any]]:
        """The slots, by class, of the registers that are alive at its start."""
        return {kind: np.array(slots, int) for kind, slots in self._live().items()}


class Clock:
    """Stops a run after so many seconds; ``look``: from how many instructions on it wants to be asked."""

    def __init__(self) -> None:
        self.look, self.seconds, self.end = sys.maxsize, 0.0, 0.0

    def start(self, seconds: float) -> None:
        """Count from now on."""
        self.look, self.seconds, self.end = 0, seconds, time.perf_counter() + seconds

    def check(self, steps: int) -> None:
        """Look at the clock after ``steps`` instructions.

        Raises:
            Stop: time is up.
        """
        self.look = steps + LOOK
        if time.perf_counter() > self.end:
            raise Stop(f"more than max_seconds = {self.seconds:g} have passed; the kernel may never end, or "
                       "max_seconds is too small")
