"""The split of an operand by itself (split.cu)."""

from __future__ import annotations

from ...problem import Problem
from ...runtime.device import Gpu
from ..bound import enqueuing
from .product import product_on
from .schemes import HEAD, Scheme, launches


class SplitOperand:
    """The split of an operand by itself, once for many products: of ``side`` ``"a"`` or ``"b"``, whose panels differ,
    as columns of B may share a scale.

    Attributes:
        bytes: device memory for it, `PANELS` of them before the panels.
    """

    PANELS = HEAD

    def __init__(self, scheme: Scheme, problem: Problem, gpu: Gpu, side: str = "b") -> None:
        other_is_ready = (0, 1) if side == "a" else (1, 0)
        plan = launches(*product_on(scheme, gpu.limits), problem, gpu.arch, gpu.sm_count, *other_is_ready)
        self.bytes = plan.workspace_bytes
        self._split, = enqueuing(plan.kernels[:1], f"{scheme.name} {problem.layout}", gpu)

    def launch(self, operand: int, memory: int, stream: int) -> None:
        """Enqueue the split of ``operand`` into ``memory``.

        Raises:
            LaunchFailed: the driver's refusal.
        """
        enqueue, _ = self._split
        enqueue(operand, operand, memory, memory, memory, stream)
