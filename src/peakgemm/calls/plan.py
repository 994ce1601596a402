"""Any product of arrays of any library: run once, or decided once as a `Plan` and run many times."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arrays import locate
from ..arrays.base import HOST, View, place, stream_handle
from ..arrays.numpy import host_view
from ..errors import InvalidType, InvalidValue
from ..runtime import device
from . import hooks
from .first_use import tuned_at_first_use
from .launch import (
    Decided,
    bound_for,
    canonical_request,
    choice_for,
    on_device,
    packed_problem,
    views_of,
    workspace_bytes,
)
from .prepared import Prepared
from .request import REPRODUCIBLE, Request

if TYPE_CHECKING:
    from ..kernels.bound import Bound
    from ..problem import Config
    from ..selection.choose import Choice


def multiply(request: Request, stream: Any = None, devices: Any = None, key: Hashable | None = None) -> Any:
    """The result of ``request``: on the GPU where its arrays lie, or by the engines for arrays in the host's memory.

    Args:
        stream, devices: as for `peakgemm.matmul`.
        key: what a front door recognises the call by; see `on_device`.

    Raises:
        As `peakgemm.gemm`.
    """
    resident = None
    if isinstance(request.b, Prepared):
        request, resident = request.b.given_to(request), request.b.resident()
    library, index = locate(request.arrays())
    if index != HOST:
        if devices is not None:
            raise InvalidValue(f"devices = {devices!r} is for arrays in the host's memory, and a is on {place(index)}; "
                               "leave devices out, or see peakgemm.distributed")
        return on_device(library, index, request, None if stream is None else stream_handle(stream), key=key).result
    if stream is not None:
        raise InvalidValue("stream is for arrays on the GPU; a product of arrays in the host's memory is done when the "
                           "call returns: leave stream out")
    from .host import products

    return products.multiply(library, request, resident, devices)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which kernel runs a product, and why.

    Attributes:
        product: sizes, ``M x N x K``, with the batch's.
        kernel, tile: names; the tile is empty where NumPy runs it.
        layout: ``NN``, ``NT``, ``TN`` or ``TT``: how the kernel finds A and B, after an exchange for a column-major
            ``out``.
        source: where the choice comes from: ``tuned``, ``heuristic`` or ``named``; ``host`` for NumPy.
        reason: one sentence.
        workspace_bytes: device memory for partial sums, split or repacked operands.
        precision: as asked for; ``kernel`` and ``reason`` say what runs it.
        where: the GPU's name, or ``CPU: NumPy``.
        copied: operands that are copied first, since no kernel takes their strides.
        macros: what the kernel is compiled with, as its family's config and the problem decide it.
    """

    product: str
    kernel: str
    tile: str
    layout: str
    source: str
    reason: str
    workspace_bytes: int
    precision: str
    where: str
    copied: tuple[str, ...] = ()
    macros: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.product}, {self.precision}, on {self.where}",
                 f"kernel: {self.kernel}{' ' * bool(self.tile)}{self.tile}, layout {self.layout}",
                 f"chosen by: {self.source}: {self.reason}"]
        if self.workspace_bytes:
            lines.append(f"workspace: {self.workspace_bytes:,} bytes")
        if self.copied:
            lines.append(f"copied first, for their strides: {', '.join(self.copied)}")
        if self.macros:
            lines.append("compiled with: " + " ".join(f"{name}={value}" for name, value in self.macros))
        return "\n".join(lines)


class Plan:
    """A product decided once: `execute` runs it on operands of the planned layout. Made by `peakgemm.plan`.

    It holds no operand, and of emulated products the last workspace, for `last_path`. It serves several threads at a
    time.
    """

    def __init__(self, request: Request, *, explain_only: bool = False) -> None:
        self._library, self._index = locate(request.arrays())
        self._gpu = device.find() if self._index == HOST else device.require(self._index)
        self._last: tuple[Any, int, Bound] | None = None  # workspace, stream, what ran: if emulated
        copies: dict[str, tuple[int, ...]] = {}
        stream = 0
        if self._index == HOST:
            from .host import products

            self._expected, self._problem = products.survey(self._library, request, self._gpu)
        else:
            with self._library.scope(self._index, None) as stream:
                self._expected = views_of(self._library, request, -1)
            self._problem, copies = packed_problem(request, self._expected)
        self._copies, self._shape = tuple(sorted(copies)), canonical_request(request, self._expected).shape
        self._request = request._replace(a=None, b=None, c=None, out=None)  # holds no operand
        choice: Choice | None = None
        if self._gpu is not None:
            choice = choice_for(self._problem, self._gpu, request.precision)
            if not explain_only and self._index != HOST and 0 not in self._shape:
                choice = tuned_at_first_use(self._problem, self._gpu, choice, stream) or choice
                bound_for(self._problem, self._gpu, choice)
                if choice.source == "heuristic":  # the compiler's code may change it
                    choice = choice_for(self._problem, self._gpu, request.precision)
        self._decided = Decided(choice, self._problem.alignment, {})  # calls of its own, whatever else is tuned

    @property
    def kernel(self) -> str:
        """Name of the kernel; of what runs the product where there is no GPU."""
        if self._decided.choice is not None:
            return self._decided.choice.kernel.name
        return "peakgemm.replay" if self._request.precision == REPRODUCIBLE else "numpy.matmul"

    @property
    def config(self) -> Config | None:
        """How the kernel is cut; None where NumPy runs the product."""
        return self._decided.choice.config if self._decided.choice else None

    @property
    def workspace_bytes(self) -> int:
        """Device memory that `execute` needs, for partial sums, split or repacked operands: its
        ``workspace``, or allocated for each call."""
        choice = self._decided.choice
        if choice is None or self._gpu is None or self._index == HOST:
            return 0
        return workspace_bytes(choice, self._problem, self._gpu)

    def explain(self) -> Explanation:
        """Which kernel runs, and why."""
        p = self._problem
        batch = " x ".join(str(size) for size in p.batch.sizes)
        product = f"{p.m} x {p.n} x {p.k}" + (f", batch {batch}" if batch else "")
        chosen = self._decided.choice
        if chosen is None or self._gpu is None:
            import numpy as np

            runs = ("replay computes each element as one chain of FMAs, the bits of every GPU"
                    if self._request.precision == REPRODUCIBLE else "NumPy's BLAS runs it in float32")
            return Explanation(product, self.kernel, "", p.layout, "host", f"there is no GPU here: {runs}", 0,
                               self._request.precision, f"CPU: NumPy {np.__version__}")
        where = self._gpu.name + (", copied there and back" if self._index == HOST else "")
        return Explanation(product, chosen.kernel.name, chosen.config.label(), p.layout, chosen.source,
                           chosen.reason, self.workspace_bytes, self._request.precision, where, self._copies,
                           tuple(sorted(chosen.kernel.recipe(chosen.config, p, self._gpu.arch).macros.items())))

    def __str__(self) -> str:
        return str(self.explain())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """`copy.copy`, `copy.deepcopy` and `pickle` end here.

        Raises:
            InvalidType: always.
        """
        raise InvalidType("a Plan is bound to kernels that are loaded in this process, and is neither copied nor "
                          "pickled; make it again where it is to run, with peakgemm.plan")

    def autotune(self) -> Plan:
        """Search for the fastest kernel and configuration, on the device, and use it from now on.

        Returns:
            The plan itself.

        Raises:
            InvalidValue: operands in the host's memory: their copies decide the time.
        """
        if self._index == HOST or self._gpu is None:
            raise InvalidValue("a plan for host arrays is not tuned, its copies decide the time; plan with operands "
                               "on the GPU")
        from ..selection.choose import Choice

        kernel, config = hooks.search(self._problem, self._gpu, self._request.precision)
        choice = Choice(kernel, config, "tuned", "it was the fastest of those timed by autotune()")
        bound_for(self._problem, self._gpu, choice)
        self._decided = Decided(choice, self._problem.alignment, {})
        return self

    def execute(self, a: Any, b: Any, c: Any = None, out: Any = None, workspace: Any = None, stream: Any = None) -> Any:
        """Run the product.

        Args:
            a, b, c, out: of the planned shapes, strides, device and alignment; ``b`` may be what `prepare` made of it,
                ``c`` is None where the plan was made without. ``out`` None: a new packed array.
            workspace: `workspace_bytes` of the device's memory as a packed float32 array of the operands' library that
                shares no memory with them; None: allocated. A workspace serves one call at a time.
            stream: as for `peakgemm.gemm`.

        Returns:
            ``out``, or the new array.

        Raises:
            InvalidValue, InvalidType: an operand that differs from the plan, or no such workspace; the message says in
                what.
            OutOfMemory: split operands do not fit on the device; the library's own error is its cause.
        """
        return self._execute(self._request._replace(a=a, b=b, c=c, out=out), workspace, stream)

    def _execute(self, request: Request, workspace: Any, stream: Any, key: Hashable | None = None) -> Any:
        """`execute`, of a call that a front door recognises by ``key``."""
        resident = None
        if isinstance(request.b, Prepared):
            request, resident = request.b.given_to(request), request.b.resident()
        library, index = self._check(request, workspace)
        if index == HOST:
            from .host import products

            if stream is not None or workspace is not None:
                raise InvalidValue("stream and workspace are for arrays on the GPU; a plan for arrays in the host's "
                                   "memory takes neither: leave them out")
            return products.multiply(library, request, resident)
        done = on_device(library, index, request, None if stream is None else stream_handle(stream), key=key,
                         decided=self._decided, workspace=workspace)
        if self._is_emulated and done.bound is not None:
            self._last = done.workspace, done.stream, done.bound
        return done.result

    @property
    def _is_emulated(self) -> bool:
        choice = self._decided.choice
        return choice is not None and choice.kernel.family.scheme is not None and self._index != HOST

    def last_path(self) -> str:
        """What ran the last `execute`: a scheme and how much of the result its guard rerouted to IEEE FFMA, or
        ``"ieee"``, ``"numpy"`` or ``"replay"``. Waits for that product.

        Raises:
            InvalidValue: an emulated plan that has not been executed.
        """
        if not self._is_emulated:
            if self._decided.choice is not None:
                return "ieee"
            return "replay" if self._request.precision == REPRODUCIBLE else "numpy"
        if self._last is None:
            raise InvalidValue("last_path() tells of the last execute(), and there was none; call execute() first")
        scratch, stream, bound = self._last
        rerouted = bound.rerouted(self._library.view(scratch, "workspace").pointer, stream)
        if not rerouted:
            return bound.kernel.name
        return f"{bound.kernel.name}, {rerouted} of {bound.half_tiles} half tiles by ieee"

    def _check(self, request: Request, workspace: Any) -> tuple[Any, int]:
        """The library and device of operands that are as planned."""
        if self._request.beta != 0 and request.c is None:
            raise InvalidValue(f"the plan has beta = {self._request.beta} and needs c; pass it")
        if request.c is not None and "c" not in self._expected:
            raise InvalidValue("c was given to a plan that was made without c; make the plan with it: plan(a, b, c)")
        arrays = request.arrays()
        library, index = locate(arrays if workspace is None else {**arrays, "workspace": workspace})
        if library is not self._library or index != self._index:
            raise InvalidValue(f"the plan is for {self._library.name} arrays on {place(self._index)}, these are "
                               f"{library.name} arrays on {place(index)}; make a plan for them")
        for name, x in arrays.items():
            view = host_view(library.host(x, name)) if index == HOST else library.view(x, name)
            planned = self._expected.get(name)
            if planned is None and name == "out":
                planned = View.packed(self._shape)
            assert planned is not None
            if view.strides is None and planned.strides is not None:
                raise InvalidValue(f"{name} has no strides in whole elements, or is lazily negated, the plan strides "
                                   f"{planned.strides}; make a plan for these arrays")
            for what, got, wanted in (("shape", view.shape, planned.shape), ("strides", _steps(view), _steps(planned))):
                if got != wanted:
                    raise InvalidValue(f"{name} has {what} {got}, the plan {wanted}; make a plan for these arrays")
            if view.alignment < planned.alignment and 0 not in view.shape:
                raise InvalidValue(f"{name} starts at an address aligned to {view.alignment} bytes, the plan relies on "
                                   f"{planned.alignment}; make a plan for these arrays")
        return library, index


def _steps(view: View) -> tuple[int, ...] | None:
    """Strides (elements) with 0 where they mean nothing."""
    if view.strides is None:
        return None
    return tuple(step if size > 1 and 0 not in view.shape else 0
                 for step, size in zip(view.strides, view.shape, strict=True))
