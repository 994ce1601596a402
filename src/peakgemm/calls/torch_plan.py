"""`Plan` for torch tensors: what is checked for each call on CUDA is checked by torch's own attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..arrays.base import HOST
from ..arrays.torch import PLAIN
from .eager import Warm, current_stream, function_modes, modes, refuse_gradients, touched, tracing
from .launch import bound_for
from .plan import Plan
from .prepared import Prepared
from .request import Request

if TYPE_CHECKING:
    from ..selection.choose import Choice

_FLOAT32 = torch.float32
_forward = torch.autograd.forward_ad


class TorchPlan(Plan):
    """A plan whose `execute` costs less host time than ``torch.mm``, on operands as planned."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        expected, canonical = self._expected, self._canonical
        self._warm: Warm | None = None
        if self._index == HOST:
            return
        self._shape_a, self._shape_b = request.a.shape, request.b.shape
        self._steps_a, self._steps_b = request.a.stride(), request.b.stride()
        self._mask_a, self._mask_b = expected["a"].alignment - 1, expected["b"].alignment - 1
        if canonical.problem is None or "c" in expected or request.beta != 0:
            return
        spans = tuple(expected[x].span[1] if x in expected else 0 for x in ("out", "a", "b", "c"))
        out = request.out
        self._shape_out = torch.Size(canonical.shape) if out is None else out.shape
        self._steps_out = torch.empty(canonical.shape, device="meta").stride() if out is None else out.stride()
        self._mask_out = 15 if out is None else expected["out"].alignment - 1
        reach = 0 if 0 in canonical.shape else 4 * (1 + sum(
            step * (size - 1) for step, size in zip(self._steps_out, self._shape_out, strict=True)))
        self._warm = Warm(None, canonical.shape, canonical.swapped, canonical.in_place, request.a.device,
                          (reach, *spans[1:]))
        if self._choice is not None and 0 not in canonical.shape:
            self._use(self._choice)

    def _use(self, choice: Choice) -> None:
        super()._use(choice)
        if self._warm is not None and self._gpu is not None:
            w = self._warm
            self._warm = Warm(bound_for(self._problem, self._gpu, choice), w.shape, w.swapped, w.in_place, w.place,
                              w.spans)

    def execute(self, a: Any, b: Any, c: Any = None, out: Any = None, workspace: Any = None, stream: Any = None) -> Any:
        """See `Plan.execute`. A plan knows no gradients: operands that need one are refused while they are recorded."""
        warm = self._warm
        if warm is None or c is not None or workspace is not None or stream is not None:
            return self._slowly(a, b, c, out, workspace, stream)
        try:
            first, second = a.data_ptr(), b.data_ptr()
            if (type(a) not in PLAIN or type(b) not in PLAIN or not (first and second)
                    or a.shape != self._shape_a or b.shape != self._shape_b or a.stride() != self._steps_a
                    or b.stride() != self._steps_b or a.dtype is not _FLOAT32 or b.dtype is not _FLOAT32
                    or a.get_device() != self._index or b.get_device() != self._index
                    or first & self._mask_a or second & self._mask_b or a.is_neg() or b.is_neg()
                    or a.requires_grad or b.requires_grad or _forward._current_level >= 0
                    or modes() or tracing() or function_modes()):
                return self._slowly(a, b, c, out, workspace, stream)
            if out is None:
                out = a.new_empty(warm.shape)
            else:
                target = out.data_ptr()
                reach, for_a, for_b, _ = warm.spans
                if (type(out) not in PLAIN or not target or out.shape != self._shape_out
                        or out.stride() != self._steps_out or out.dtype is not _FLOAT32
                        or out.get_device() != self._index or target & self._mask_out or out.is_neg()
                        or out.requires_grad or (first < target + reach and target < first + for_a)
                        or (second < target + reach and target < second + for_b)):
                    return self._slowly(a, b, c, out, workspace, stream)
                touched(out)
        except (RuntimeError, AttributeError):  # no tensors, or tensors without memory
            return self._slowly(a, b, c, out, workspace, stream)
        stream = current_stream(warm.index)
        kept = warm.run(first, second, 0, out, stream)
        if kept is not None and self._is_emulated:
            self._last = kept, stream, warm.bound
        return out

    def _slowly(self, a: Any, b: Any, c: Any, out: Any, workspace: Any, stream: Any) -> Any:
        plain = b.array if isinstance(b, Prepared) else b
        refuse_gradients({"a": a, "b": plain, "c": c, "out": out}, "Plan.execute")
        result = super().execute(a, b, c, out, workspace, stream)
        if out is not None:
            touched(out)
        return result
