"""A constant right operand, made ready once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..arrays import admit
from ..arrays.base import HOST, DeviceLibrary, View
from ..errors import InvalidType, InvalidValue
from ..runtime import device
from ..runtime.device import Gpu
from .canonical import Canonical, canonicalise
from .launch import choice_for, no_room
from .request import Request, flag

if TYPE_CHECKING:
    from ..kernels.bound import Bound
    from ..kernels.emulated.schemes import Scheme
    from ..selection.choose import Choice

_ROWS = 1 << 13  # of the left operand that a scheme is chosen for


class Prepared:
    """What `peakgemm.prepare` returns: a right operand for `matmul`, `gemm` and `plan`, and for ``a @ prepared``.

    Its copies, pickled ones too, are prepared where they are made.

    Attributes:
        array: the operand, in strides that kernels take; ``prepare``'s argument itself where it has them.
        shape, ndim: its shape, and how many dimensions that has.
    """

    __slots__ = ("_for", "_kept", "_multiply", "_split", "array", "ndim", "shape")
    __array_ufunc__ = None  # so that NumPy, as other libraries do, leaves ``a @ prepared`` to `__rmatmul__`

    def __init__(self, b: Any, multiply: Callable[..., Any], precision: str = "ieee", trans_b: bool = False) -> None:
        self._multiply = multiply
        trans_b = flag(trans_b, "trans_b")
        library, index = admit(b, "b")
        self._kept: Any = None
        self._split: Split | None = None
        self._for = precision, trans_b
        if index == HOST:
            from ..arrays.numpy import host_view

            host = library.host(b, "b")
            self.array, view, gpu = b, host_view(host), device.find()
            if gpu is not None and host.size:
                from .host.panel import resident

                self._kept = resident(host, gpu)
        else:
            with library.scope(index, None) as stream:
                view = library.view(b, "b")
                inner = view.shape[-1] if trans_b or len(view.shape) == 1 else view.shape[-2]
                canonical = canonicalise(View.packed((1, inner)), view, trans_b=trans_b)
                if "b" in canonical.copies and getattr(b, "requires_grad", False):
                    raise InvalidValue("b requires a gradient and has strides that no kernel takes, so that prepare "
                                       "would copy it without one; pass b.detach(), or b.contiguous()")
                self.array = library.copy(b, view.shape) if "b" in canonical.copies else b
                if precision != "ieee" and len(view.shape) == 2 and 0 not in view.shape:
                    self._split = _split(library, self.array, index, precision, trans_b, stream)
        self.shape, self.ndim = view.shape, len(view.shape)

    def resident(self) -> View | None:
        """Where a host array's copy lies on the current GPU, if there."""
        gpu = device.find() if self._kept is not None else None
        return self._kept.view if gpu is not None and gpu.index == self._kept.way.index else None

    def given_to(self, request: Request) -> Request:
        """``request`` with the array, and with the split operand where that serves it."""
        return request._replace(b=self.array, ready=self.split_for(request.precision, request.trans_b))

    def split_for(self, precision: str, trans_b: bool) -> Split | None:
        """The operand split for calls of that precision and layout, if it was."""
        return self._split if self._for == (precision, trans_b) else None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is prepared anew, in the process that makes it; `copy.copy` shares `array`."""
        return type(self), (self.array, self._multiply, *self._for)

    def __rmatmul__(self, a: Any) -> Any:
        """``a @ prepared``: the product that it was prepared for, of its ``precision`` and ``trans_b``.

        Raises:
            InvalidType, InvalidValue: as `peakgemm.matmul`.
        """
        precision, trans_b = self._for
        return self._multiply(a, self, precision=precision, trans_b=trans_b)

    def __matmul__(self, other: Any) -> Any:
        raise InvalidType("a prepared operand is the right one of a product: write a @ prepared, or multiply its "
                          "array, prepared.array @ b")

    def __repr__(self) -> str:
        return f"Prepared({type(self.array).__name__} of shape {self.shape})"


class Split:
    """A right operand in panels on its device; see kernels/emulated/schemes.py.

    Attributes:
        key: what a product with these panels is recognised by. It does not keep their memory.
    """

    def __init__(self, scheme: Scheme, memory: Any, panels: int, n: int, k: int) -> None:
        self._scheme, self._memory, self._panels, self._n, self._k = scheme, memory, panels, n, k
        self.key = scheme.name, panels, n, k

    def bound(self, choice: Choice, canonical: Canonical, gpu: Gpu) -> Bound | None:
        """The product with these panels; None where another kernel was chosen, or a batch has several of them."""
        from ..kernels.bound import Bound
        from ..kernels.emulated.schemes import operand

        p, side = canonical.problem, "a" if canonical.swapped else "b"
        if p is None or choice.kernel.family.scheme is not self._scheme:
            return None
        if side not in choice.kernel.split_before(choice.config):
            return None
        rows, strides = (p.m, p.batch.a) if canonical.swapped else (p.n, p.batch.b)
        if (rows, p.k) != (self._n, self._k) or operand(self._scheme, rows, p.k, p.batch.sizes, strides).matrices != 1:
            return None
        ready = (self._panels, 0) if side == "a" else (0, self._panels)
        return Bound(choice.kernel, choice.config, p, gpu, *ready)


def _split(library: DeviceLibrary, b: Any, index: int, precision: str, trans_b: bool, stream: int) -> Split | None:
    """Split ``b``; None where ``precision`` runs IEEE kernels for it.

    Raises:
        OutOfMemory: its panels do not fit.
    """
    from ..kernels.emulated.product import SplitOperand

    gpu, view = device.require(index), library.view(b, "b", stream)
    inner, columns = view.shape[::-1] if trans_b else view.shape
    canonical = canonicalise(View.packed((_ROWS, inner)), view, trans_b=trans_b)
    assert canonical.problem is not None and not canonical.swapped
    scheme = choice_for(canonical.problem, gpu, precision).kernel.family.scheme
    if scheme is None:
        return None
    split = SplitOperand(scheme, canonical.problem, gpu)
    try:
        memory, start = library.scratch(split.bytes, b, stream)
    except Exception as error:
        if not library.out_of_memory(error):
            raise
        what = f"b, {inner} x {columns}, split for {scheme.name} in {split.bytes:,} bytes,"
        raise no_room(error, what, gpu, library.name,
                      ["prepare it with precision='ieee', which splits nothing (0 bytes)"]) from error
    split.launch(view.pointer, start, stream)
    return Split(scheme, memory, start + SplitOperand.PANELS, columns, inner)
