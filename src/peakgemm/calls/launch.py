"""A product on the GPU, for the arrays of any library: canonicalise, copy what no kernel takes, launch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_size_t
from math import prod
from typing import TYPE_CHECKING, Any

from ..arrays.aliasing import overlaps
from ..arrays.base import FLOAT, DeviceLibrary, Library, View
from ..errors import InvalidType, InvalidValue, OutOfMemory, out_of_memory_as
from ..runtime import device, driver
from ..runtime.device import Gpu
from .canonical import Canonical, canonicalise
from .request import Request, refuse_overlap

if TYPE_CHECKING:
    from ..kernels.bound import Bound
    from ..problem import Problem
    from ..selection.choose import Choice


def choice_for(problem: Problem, gpu: Gpu, precision: str = "ieee", ready: str = "") -> Choice:
    """What `selection.choose` says for ``gpu``."""
    from ..selection.choose import choose  # no product of host arrays waits for it

    if precision == "ieee":  # called as everywhere else, so that it is remembered once
        return choose(problem, gpu.arch, gpu.sm_count, gpu.name)
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


def bound_with(ready: Any, choice: Choice | None, canonical: Canonical, problem: Problem, gpu: Gpu) -> Bound:
    """`bound_for`; with ``ready``, what `prepare` made of ``b``, the product that reads it where the kernel does."""
    found = None if ready is None else ready.bound(choice, canonical, gpu)
    return found or bound_for(problem, gpu, choice)


def workspace_bytes(choice: Choice | Bound, problem: Problem, gpu: Gpu) -> int:
    """Device memory that a product needs beside its arrays; nothing is compiled."""
    kernel = choice.kernel
    return kernel.launches(choice.config, problem, gpu.arch, gpu.sm_count).workspace_bytes


def views_of(library: Library, request: Request, stream: int) -> dict[str, View]:
    """Where each array lies; ``out``'s overlap with an input is refused."""
    views = {name: library.view(x, name, stream) for name, x in request.arrays().items()}
    refuse_overlap(views, request.beta)
    return views


def canonical_request(request: Request, views: dict[str, View]) -> Canonical:
    """`canonicalise` for arrays seen as ``views``."""
    return canonicalise(views["a"], views["b"], views.get("c"), views.get("out"), alpha=request.alpha,
                        beta=request.beta, trans_a=request.trans_a, trans_b=request.trans_b)


def on_device(library: DeviceLibrary, index: int, request: Request, stream: int | None = None,
              choice: Choice | None = None, workspace: Any = None) -> Any:
    """Enqueue ``request`` on device ``index`` and return the result.

    Args:
        library: that all arrays belong to.
        stream: a ``CUstream`` handle; None: the library's current one.
        choice: kernel and configuration; None: `choice_for`.
        workspace: memory for partial sums, split or repacked operands, of the library; None: allocated.

    Raises:
        InvalidType, InvalidValue: see `canonicalise` and `DeviceLibrary`; or the library's copies are not packed.
        CompileFailed, LaunchFailed, MissingComponent: see `kernels.bound`.
        OutOfMemory: see `without_workspace`.
    """
    gpu = device.require(index)
    with library.scope(index, stream) as handle:
        arrays = request.arrays()
        views = views_of(library, request, handle)
        rounds = 0
        while (canonical := canonical_request(request, views)).problem is None:
            rounds += 1
            if rounds > 3:  # strides, then the merging of the batch
                raise InvalidType(f"{library.name} copies of {', '.join(canonical.copies)} are not packed; pass "
                                  "row-major operands")
            for name, shape in canonical.copies.items():
                if name == "out":
                    del arrays["out"], views["out"]  # computed aside, then assigned
                else:
                    arrays[name] = library.copy(arrays[name], shape)
                    views[name] = library.view(arrays[name], name, handle)
        target = arrays.get("out")
        if target is None:
            target = library.empty(canonical.shape, request.a, handle)
            views["out"] = library.view(target, "out", handle)
        scratch = None
        if 0 not in canonical.shape:
            if choice is None and request.precision != "ieee":
                ready = "" if request.ready is None else "a" if canonical.swapped else "b"
                choice = choice_for(canonical.problem, gpu, request.precision, ready)
            bound = bound_with(request.ready, choice, canonical, canonical.problem, gpu)
            scratch = workspace
            if bound.workspace_bytes and scratch is None:
                bound, scratch = workspace_for(library, bound, gpu, request.a, handle)
            place = workspace_pointer(library, scratch, bound.workspace_bytes, views if workspace is not None else {})
            enqueue(bound, canonical, views, place, handle)
        result = library.deliver(target, request.a, handle, (*arrays.values(), scratch))
        if request.out is None:
            return result
        if "out" not in arrays:
            library.assign(request.out, result)
        return request.out


def workspace_for(library: DeviceLibrary, bound: Bound, gpu: Gpu, like: Any,
                  stream: int) -> tuple[Bound, Any]:
    """What runs, ``bound`` or where there is no room what does without, and the library's memory for its workspace.

    Raises:
        OutOfMemory: see `without_workspace`.
    """
    try:
        return bound, library.empty((-(-bound.workspace_bytes // FLOAT),), like, stream)
    except Exception as error:
        if not library.out_of_memory(error):
            raise
        return without_workspace(error, bound, gpu, library.name), None


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


def enqueue(bound: Bound, canonical: Canonical, views: dict[str, View], workspace: int, stream: int) -> None:
    """Launch: the operands in the problem's order."""
    first, second = ("b", "a") if canonical.swapped else ("a", "b")
    out = views["out"].pointer
    c0 = out if canonical.in_place else views["c"].pointer
    bound.launch(views[first].pointer, views[second].pointer, out, c0, workspace, stream)
