"""A product on the GPU: made canonical and bound once, looked up from then on, and launched for any array library.

There is one cache for every front door. Each makes a key of what it sees of its operands, shapes and alignments among
it, and looks it up in `calls`. Keys of different front doors never meet: torch's begin with a shape, those of other
libraries' arrays with the device's index, JAX's under ``jit`` with the call as text, others with a name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from ctypes import byref, c_size_t
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..arrays.base import FLOAT, DeviceLibrary, Library, View, overlaps, refuse_overlap
from ..errors import InvalidType, InvalidValue, OutOfMemory, out_of_memory_as
from ..runtime import device, driver
from ..runtime.device import Gpu
from .canonical import Canonical, canonicalise
from .first_use import tuned_at_first_use
from .request import Request

if TYPE_CHECKING:
    from ..kernels.bound import Bound
    from ..problem import Problem
    from ..selection.choose import Choice

Entry = TypeVar("Entry")
LIMIT = 4096  # calls; then all are forgotten
calls: dict[Hashable, Any] = {}


def remember(key: Hashable, entry: Entry, kept: dict[Hashable, Any] = calls) -> Entry:
    """Keep ``entry`` for calls of that key, until tuning entries or profiles change; in a plan's own ``kept`` for as
    long as the plan is used."""
    from ..selection import tuned  # no product of host arrays waits for it

    tuned.cache_invalidators.add(calls.clear)
    if len(kept) >= LIMIT:
        kept.clear()
    kept[key] = entry
    return entry


class BoundCall:
    """A canonical problem with its launches bound: what the cache holds of a call, and a plan of those that it runs.

    Attributes:
        canonical: what the product comes down to. Where operands have to be copied first nothing is bound.
        bound: the kernels; None: there is nothing to launch.
        launch, workspace_bytes: those of ``bound``, or where no room was found of a kernel that needs no workspace.
        shape, swapped, in_place: those of ``canonical``.
        spans: how many bytes from its address on ``out``, ``a``, ``b`` and ``c`` reach, 0 for those that there are not;
            empty where there is no ``out``.
        index: the device.
    """

    __slots__ = ("bound", "canonical", "in_place", "index", "launch", "shape", "spans", "swapped", "workspace_bytes")

    def __init__(self, canonical: Canonical, bound: Bound | None, views: dict[str, View], index: int) -> None:
        self.canonical, self.index = canonical, index
        self.shape, self.swapped, self.in_place = canonical.shape, canonical.swapped, canonical.in_place
        self.spans = tuple(views[x].span[1] if x in views else 0 for x in ("out", "a", "b", "c") if "out" in views)
        self.bound: Any = bound
        self.launch: Any = None if bound is None else bound.launch
        self.workspace_bytes = 0 if bound is None else bound.workspace_bytes

    def workspace(self, library: DeviceLibrary, like: Any, stream: int) -> tuple[Any, int]:
        """Memory of ``library`` for the workspace, and its address. Where there is no room, `launch` is from now on
        that of a kernel that needs none, for libraries empty their caches and wait before they refuse.

        Raises:
            OutOfMemory: see `without_workspace`.
        """
        try:
            return library.scratch(self.workspace_bytes, like, stream)
        except Exception as error:
            if not library.out_of_memory(error):
                raise
            instead = without_workspace(error, self.bound, device.require(self.index), library.name)
            self.launch, self.workspace_bytes = instead.launch, 0
            return None, 0


class Decided(NamedTuple):
    """What holds for a call before its operands come: that of all eager ones, or of a plan.

    Attributes:
        choice: kernel and configuration; None: `choice_for`.
        alignment: of the problem's A, B and C in bytes, the most that a plan's kernel may rely on: it runs what was
            compiled when the plan was made, on arrays that are aligned better, too.
        calls: those that are bound already.
    """

    choice: Choice | None = None
    alignment: tuple[int, int, int] = (16, 16, 16)
    calls: dict[Hashable, Any] = calls


EAGER = Decided()


class Launched(NamedTuple):
    """What `on_device` did: the result, and what ran with which workspace on which stream."""

    result: Any
    bound: Bound | None
    workspace: Any
    stream: int


def on_device(library: DeviceLibrary, index: int, request: Request, stream: int | None = None, *,
              key: Hashable | None = None, decided: Decided = EAGER, workspace: Any = None) -> Launched:
    """Enqueue ``request`` on device ``index``.

    Args:
        library: that all arrays belong to.
        stream: a ``CUstream`` handle; None: the library's current one.
        key: what a front door recognises the call by, to be remembered; None: where the arrays lie.
        decided: by a plan.
        workspace: memory for partial sums, split or repacked operands, of the library; None: allocated.

    Raises:
        InvalidType, InvalidValue: see `canonicalise` and `DeviceLibrary`; or the library's copies are not packed.
        CompileFailed, LaunchFailed, MissingComponent: see `kernels.bound`.
        OutOfMemory: see `without_workspace`.
    """
    with library.scope(index, stream) as handle:
        arrays = request.arrays()
        views = views_of(library, request, handle)
        call = bound_call(request, views, index, key, decided, handle)
        if call.canonical.copies:
            for name, shape in packed_problem(request, views)[1].items():
                if name == "out":
                    del arrays["out"], views["out"]  # computed aside, then assigned
                else:
                    arrays[name] = library.copy(arrays[name], shape)
                    views[name] = library.view(arrays[name], name, handle)
            call = bound_call(request, views, index, None, decided, handle)
            if call.canonical.copies:
                raise InvalidType(f"{library.name} copies of {', '.join(call.canonical.copies)} are not packed; pass "
                                  "row-major operands")
        target = arrays.get("out")
        if target is None:
            target = library.empty(call.shape, request.a, handle)
            views["out"] = library.view(target, "out", handle)
        if call.bound is not None:
            product, address = call, 0
            if workspace is not None:
                product, address = call.bound, workspace_pointer(library, workspace, call.bound.workspace_bytes, views)
            elif call.workspace_bytes:
                workspace, address = call.workspace(library, request.a, handle)
            enqueue(product, call.canonical, views, address, handle)
        result = library.deliver(target, request.a, handle, (*arrays.values(), workspace))
        if request.out is not None and "out" not in arrays:
            library.assign(request.out, result)
        return Launched(result if request.out is None else request.out, call.bound, workspace, handle)


def views_of(library: Library, request: Request, stream: int) -> dict[str, View]:
    """Where each array lies; ``out``'s overlap with an input is refused."""
    views = {name: library.view(x, name, stream) for name, x in request.arrays().items()}
    if request.out is not None:
        refuse_overlap(views, request.beta)
    return views


def canonical_request(request: Request, views: dict[str, View]) -> Canonical:
    """`canonicalise` for arrays that lie as ``views`` say."""
    return canonicalise(views["a"], views["b"], views.get("c"), views.get("out"), alpha=request.alpha,
                        beta=request.beta, trans_a=request.trans_a, trans_b=request.trans_b)


def packed_problem(request: Request, views: dict[str, View]) -> tuple[Problem, dict[str, tuple[int, ...]]]:
    """The problem that is left when the arrays that no kernel takes as they lie have been copied, and the shapes of
    their packed copies by name; of ``out``: that the result is computed aside."""
    views, copies = dict(views), dict[str, tuple[int, ...]]()
    while (canonical := canonical_request(request, views)).problem is None:  # strides, then the merging of the batch
        copies |= canonical.copies
        for name, shape in canonical.copies.items():
            if name == "out":
                del views["out"]
            else:
                views[name] = View.packed(shape)
    return canonical.problem, copies


def bound_call(request: Request, views: dict[str, View], index: int, key: Hashable | None = None,
               decided: Decided = EAGER, stream: int | None = None) -> BoundCall:
    """The call of ``request`` for arrays that lie as ``views`` say: one of those bound already, or bound now and kept.

    Args and errors are those of `on_device`; without a stream nothing is tuned (`tuned_at_first_use`). What needs
    copies first is not kept under a front door's ``key``; what a later call is to tune is not kept at all.
    """
    lies = key
    if lies is None:
        in_place = "c" in views and "out" in views and views["c"].pointer == views["out"].pointer
        lies = (index, in_place, *request[4:9], request.ready and request.ready.key,
                *((name, x.shape, x.strides, x.steps, x.pointer & 15) for name, x in views.items()))
    call: BoundCall | None = decided.calls.get(lies)
    if call is None:
        canonical, bound = canonical_request(request, views), None
        problem, ready, choice, settled = canonical.problem, request.ready, decided.choice, True
        if problem is not None and 0 not in canonical.shape:
            gpu = device.require(index)
            if choice is None:
                side = "" if ready is None else "a" if canonical.swapped else "b"
                choice = choice_for(problem, gpu, request.precision, side)
                if stream is not None and ready is None:
                    searched = tuned_at_first_use(problem, gpu, choice, stream)
                    settled, choice = searched is not None, searched or choice
            else:
                first, second, third = map(min, problem.alignment, decided.alignment)
                problem = replace(problem, alignment=(first, second, third))
                canonical = replace(canonical, problem=problem)
            bound = None if ready is None else ready.bound(choice, canonical, gpu)
            bound = bound or bound_for(problem, gpu, choice)
        call = BoundCall(canonical, bound, views, index)
        if settled and (key is None or not canonical.copies):
            remember(lies, call, decided.calls)
    return call


def choice_for(problem: Problem, gpu: Gpu, precision: str = "ieee", ready: str = "") -> Choice:
    """What `selection.choose` says for ``gpu``."""
    from ..selection.choose import choose  # no product of host arrays waits for it

    return choose(problem, gpu.arch, gpu.sm_count, gpu.name, precision, ready)


def bound_for(problem: Problem, gpu: Gpu, choice: Choice | None = None) -> Bound:
    """The kernel for ``problem``, compiled and loaded; ``choice`` None: `choice_for`'s in IEEE arithmetic.

    Where the compiler's code of a heuristic choice falls short, the next best is taken (`kernels.shortfall`).
    """
    from ..kernels.bound import bind

    choice = choice or choice_for(problem, gpu)
    bound = bind(choice.kernel, choice.config, problem, gpu)
    if bound.shortfall and choice.source == "heuristic":
        from ..selection.choose import choose

        choose.cache_clear()  # it knows better now
        instead = choice_for(problem, gpu, choice.precision)
        if (instead.kernel, instead.config) != (choice.kernel, choice.config):
            return bound_for(problem, gpu, instead)
    return bound


def workspace_bytes(choice: Choice | Bound, problem: Problem, gpu: Gpu) -> int:
    """Device memory that a product needs beside its arrays; nothing is compiled."""
    kernel = choice.kernel
    return kernel.launches(choice.config, problem, gpu.arch, gpu.sm_count).workspace_bytes


def without_workspace(error: Exception, bound: Bound, gpu: Gpu, holder: str) -> Bound:
    """The product of ``bound``, whose workspace was refused with ``error``, by a kernel that needs none, slower.

    ``holder``: the library that refused.

    Raises:
        OutOfMemory: there is no such kernel, as of operands that tensor cores need split; with what takes less.
    """
    from ..selection.choose import Choice

    p, kernel = bound.problem, bound.kernel
    without = kernel.family.without_workspace(kernel, bound.config)
    if without is not None and without != (kernel, bound.config):
        return bound_for(p, gpu, Choice(*without, "heuristic", "there is no room for a workspace"))
    instead, batch = [], f", batch {p.batch.count}" if p.batch.sizes else ""
    if without is None:
        instead.append("use precision='ieee', which does without")
        reads_panels = "b" in kernel.split_before(bound.config)
        if reads_panels and bound.workspace_bytes == workspace_bytes(bound, p, gpu):
            instead.append("split a constant b once, with peakgemm.prepare")
    instead.append("pass memory that you have as Plan.execute's workspace=")
    raise no_room(error, f"a workspace of {bound.workspace_bytes:,} bytes for {p.m} x {p.n} x {p.k}{batch} by "
                  f"{kernel.name}", gpu, holder, instead) from error


def no_room(error: Exception, what: str, gpu: Gpu, holder: str, instead: Sequence[str]) -> OutOfMemory:
    """What is raised in the place of ``error``, a library's or the driver's; ``holder`` keeps memory of its own."""
    free, total, has = c_size_t(), c_size_t(), "has no room for it"
    with suppress(Exception), device.activated(gpu.index):  # the driver may be in no state to tell
        driver.check("cuMemGetInfo_v2", byref(free), byref(total))
        has = f"has {free.value:,} of {total.value:,} bytes free" + f" beside what {holder} holds" * bool(holder)
    return out_of_memory_as(type(error))(f"{what} does not fit: GPU {gpu.index} {has}; {', or '.join(instead)}")


def workspace_pointer(library: Library, scratch: Any, wanted: int, others: dict[str, View]) -> int:
    """The address of a workspace of ``wanted`` bytes, which shares no memory with ``others``.

    Raises:
        InvalidValue: it is smaller, has gaps, or overlaps one of them.
    """
    if not wanted:
        return 0
    view = library.view(scratch, "workspace")
    size = FLOAT * prod(view.shape)
    want = (f"pass a packed float32 array of {-(-wanted // FLOAT):,} elements (Plan.workspace_bytes), aligned to 16 "
            "bytes")
    if size < wanted or view.alignment < 16:
        raise InvalidValue(f"workspace has {size:,} bytes at an address aligned to {view.alignment}; {want}")
    if view.span != (0, size):
        raise InvalidValue(f"workspace {view.shape} has strides {view.byte_strides} (bytes), with gaps; {want}")
    for name, other in others.items():
        if overlaps(view, other):
            raise InvalidValue(f"workspace overlaps {name} in memory, which it would overwrite; {want} of its own")
    return view.pointer


def enqueue(bound: Bound | BoundCall, canonical: Canonical, views: dict[str, View], workspace: int,
            stream: int) -> None:
    """Launch: the operands in the problem's order."""
    first, second = ("b", "a") if canonical.swapped else ("a", "b")
    out = views["out"].pointer
    c0 = out if canonical.in_place else views["c"].pointer
    bound.launch(views[first].pointer, views[second].pointer, out, c0, workspace, stream)
