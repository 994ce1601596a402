"""Panels split for tensor cores once, for all tiles that read them: the pass would else take 10 to 20 % of a tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..arrays.base import View, driver_out_of_memory
from ..errors import LaunchFailed
from ..runtime.device import Gpu
from ..runtime.memory import DeviceMemory, behind, event
from ..runtime.timeline import stream_span

if TYPE_CHECKING:
    from ..problem import Problem
    from ..selection.choose import Choice
    from .deal import Key


class Splits:
    """Split panels on one device, as long as there is room."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._held: dict[Key, tuple[DeviceMemory, int]] = {}
        self._used = 0

    def clear(self) -> bool:
        """Let go of all; whether there were any."""
        there = bool(self._held)
        self._held.clear()
        self._used = 0
        return there

    def bound(self, choice: Choice, problem: Problem, views: dict[str, View], keys: tuple[Key, Key], stream: int,
              streams: tuple[int, ...], room: int) -> Any:
        """The product of a tile that reads its panels split; None where ``choice`` is no kernel that does for both
        operands, or where more than ``room`` bytes would be held."""
        from ..kernels.bound import Bound

        scheme = choice.kernel.family.scheme
        if scheme is None or choice.kernel.split_before(choice.config) != "ab" or problem.batch.sizes:
            return None
        ready: list[int] = []
        for side, key in zip("ab", keys, strict=True):
            if key not in self._held and not self._split(side, key, problem, scheme, views, stream, streams, room):
                return None
            ready.append(self._held[key][1])
        return Bound(choice.kernel, choice.config, problem, self._gpu, *ready)

    def _split(self, side: str, key: Key, problem: Problem, scheme: Any, views: dict[str, View], stream: int,
               streams: tuple[int, ...], room: int) -> bool:
        from ..kernels.emulated.split import SplitOperand

        split = SplitOperand(scheme, problem, self._gpu, side)
        if self._used + split.bytes > room:
            return False
        try:
            memory = DeviceMemory(split.bytes, stream)
        except LaunchFailed as error:
            if not driver_out_of_memory(error):
                raise
            return False
        with stream_span(self._gpu.index, "split", stream, split.bytes):
            split.launch(views[side].pointer, memory.pointer, stream)
        for other in streams:
            if other != stream:
                behind(event(stream), other)
        self._held[key] = memory, memory.pointer + SplitOperand.PANELS
        self._used += split.bytes
        return True
