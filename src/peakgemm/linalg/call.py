"""From arrays to a bound program and back: the door of all of linalg. Every operation is its checks, a shape, and a
function that records its steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..arrays import locate
from ..arrays.base import FLOAT, HOST, DeviceLibrary, HostLibrary, View, is_traced, overlaps, packed, stream_handle
from ..arrays.interop import LEGACY
from ..arrays.numpy import host_view
from ..calls import hooks
from ..calls.canonical import distinct
from ..calls.launch import calls, no_room, remember
from ..calls.request import check_precision
from ..errors import InvalidType, InvalidValue
from ..runtime import device, memory
from ..runtime.device import Gpu
from .host import STAGED, received, sent
from .program import BoundProgram, Matrix, Program, external

Record = Callable[[Program, dict[str, Matrix]], None]


class Operation(NamedTuple):
    """What is asked for.

    Attributes:
        name: of the public function.
        operands: its matrices by name, ``(..., rows, columns)``; batch dimensions broadcast.
        shape: of the result.
        record: records its steps, of matrices ``(count, rows, columns)`` by the same names, ``"out"`` and those of
            ``also`` among them. An int32 array is one row for each matrix of the batch.
        key: flags and numbers that ``record`` depends on.
        over: the operand that ``out`` may be.
        also: further results by name, each of a shape and dtype: "float32", or "int32", zeros that the steps may
            overwrite.
        on_cpu: what NumPy computes where there is no GPU, of the operands' arrays by name and ``out``, which may be
            None.
        out: as the public functions take it.
        parts: 2: operands, ``out`` and what ``on_cpu`` returns are the parts of complex arrays, ``(..., rows, columns,
            2)``. ``record`` is given strides in complex numbers.
        integers: int32 operands by name, as ``operands``.
        recognised: what a front door finds the bound steps, and the order of their arrays, by in `calls.launch.calls`,
            where no operand is copied.
        reproducible: False: its bits are its own matter, whatever PEAKGEMM_REPRODUCIBLE says.
    """

    name: str
    operands: dict[str, Any]
    shape: tuple[int, ...]
    record: Record
    on_cpu: Callable[..., Any] | None
    key: tuple[Hashable, ...] = ()
    over: str = ""
    also: Mapping[str, tuple[tuple[int, ...], str]] = MappingProxyType({})
    out: Any = None
    precision: str = "ieee"
    stream: Any = None
    parts: int = 1
    integers: Mapping[str, Any] = MappingProxyType({})
    recognised: Hashable = None
    reproducible: bool | None = None

    @property
    def pair(self) -> tuple[int, ...]:
        """The dimension behind the columns of operands, where they are parts."""
        return () if self.parts == 1 else (self.parts,)


def run(operation: Operation) -> Any:
    """The result, or where there are further ones a tuple of all: arrays like the operands.

    Raises:
        InvalidType, InvalidValue: operands that no product takes; an ``out`` that has another shape or shares memory
            with an operand that it may not be.
        OutOfMemory: no room for the workspace; the message has its bytes.
    """
    o = operation
    if check_precision(o.precision, o.reproducible) == "reproducible":
        raise InvalidValue(f"reproducible=True is a promise of single products, which {o.name} does not keep: its "
                           "blocks depend on the size; pass reproducible=False, or use precision='ieee'")
    arrays = o.operands | ({} if o.out is None else {"out": o.out})
    if is_traced((*arrays.values(), *o.integers.values())):
        return hooks.traced(o)
    library, index = locate(arrays)
    if o.integers and locate(dict(o.integers), "int32") != (library, index):
        raise InvalidValue(f"{o.name}: {', '.join(o.integers)} must be arrays of {library.name} where "
                           f"{', '.join(arrays)} are; move them there")
    if library.name == "torch":  # its own operators have derivatives, and take our results beneath them
        from ..calls import eager

        eager.refuse_gradients(arrays, f"peakgemm.linalg.{o.name}", "torch.linalg")
    if o.out is not None and (given := tuple(o.out.shape)) != (*o.shape, *o.pair):
        raise InvalidValue(f"out has shape {given[:len(given) - len(o.pair)]}, the result of {o.name} has {o.shape}; "
                           "pass an out of that shape")
    if index == HOST:
        if o.stream is not None:
            raise InvalidValue(f"stream is for arrays on the GPU; {o.name} of arrays in the host's memory is done when "
                               "the call returns: leave stream out")
        result = _on_host(library, o)
    else:
        with library.scope(index, None if o.stream is None else stream_handle(o.stream)) as stream:
            result = enqueue(library, index, o, stream)
    if library.name == "torch":
        if o.out is not None:
            eager.touched(o.out)
        if o.stream is not None:
            for new in result if o.also else (result,):
                read = {**(arrays if new is o.out else o.operands), **o.integers}
                eager.keep_for_stream(read, new, stream_handle(o.stream))
    return result


def _on_host(library: HostLibrary, operation: Operation) -> Any:
    """`run` for arrays in the host's memory: copied to the current GPU and back, or left to NumPy without one."""
    o, gpu = operation, device.find()
    arrays = {name: library.host(x, name) for name, x in {**o.operands, **o.integers}.items()}
    results: list[Any]
    like = next(iter(o.operands.values()))
    target = None if o.out is None else library.host(o.out, "out")
    if target is not None:
        _check_out(o, {name: host_view(x) for name, x in arrays.items()}, host_view(target))
    if 0 in o.shape:
        results = [np.zeros((*o.shape, *o.pair), np.float32), *(np.zeros(*of) for of in o.also.values())]
    elif gpu is None:
        assert o.on_cpu is not None
        with np.errstate(all="ignore"):  # infinities and NaN are results
            done = o.on_cpu(**arrays, out=target)
        results = list(done) if o.also else [done]
    else:
        with device.activated(gpu.index):
            staged = o._replace(operands={name: sent(x) for name, x in arrays.items()}, integers={},
                                out=None if target is None else sent(target))
            done = enqueue(STAGED, gpu.index, staged, LEGACY)
            results = [received(x) for x in (done if o.also else (done,))]
            if results[0].dtype == np.complex64:
                results[0] = results[0][..., None].view(np.float32)
    with np.errstate(over="ignore"):
        results[0] = np.ascontiguousarray(results[0], np.float32)
    if target is not None:
        target[...] = results[0]
    result = library.wrap(results[0], like) if o.out is None else o.out
    if o.parts > 1 and o.out is None:
        result = library.as_complex(result)
    return (result, *(library.wrap(x, like) for x in results[1:])) if o.also else result


def enqueue(library: DeviceLibrary, index: int, operation: Operation, stream: int) -> Any:
    """`run` for arrays on device ``index``."""
    o, operands, gpu = operation, {**operation.operands, **operation.integers}, device.require(index)
    batch, like = o.shape[:-2], next(iter(operation.operands.values()))
    views = {}
    for name, x in operands.items():
        view = _elements(library.view(x, name, stream), o.parts)
        if (flat := flattened(view, batch)) is None:
            shape, o = view.shape if len(view.shape) == 2 else (*batch, *view.shape[-2:]), o._replace(recognised=None)
            operands[name] = x = library.copy(x, (*shape, *o.pair))
            view = _elements(library.view(x, name, stream), o.parts)
            flat = flattened(view, batch)
            assert flat is not None  # packed
        views[name] = flat
    target, aside = o.out, False
    if target is not None:
        view = library.view(target, "out", stream)
        _check_out(o, {name: library.view(x, name, stream) for name, x in o.operands.items()}, view)
        flat = flattened(_elements(view, o.parts), batch)
        aside = flat is None  # computed in new memory, then assigned
    if target is None or aside:
        if aside:  # what no step writes stays
            target = library.copy(o.out, (*o.shape, *o.pair))
        else:
            target = library.empty(o.shape, like, stream, "float32" if o.parts == 1 else "complex64")
        flat = flattened(View(library.view(target, "out", stream).pointer, o.shape, packed(o.shape)), batch)
    assert flat is not None
    views["out"] = flat
    others = []
    for name, (shape, dtype) in o.also.items():
        others.append(library.empty(shape, like, stream, dtype))
        address = library.view(others[-1], name, stream).pointer
        if dtype == "int32":
            memory.clear(address, FLOAT * prod(shape), stream)
        views[name] = view_of_result(address, batch, shape, dtype)
    scratch = _launch(library, gpu, o, views, like, stream) if 0 not in o.shape else None
    result = library.deliver(target, like, stream, (*operands.values(), scratch))
    if o.out is not None and aside:
        library.assign(o.out, result)
    result = result if o.out is None else o.out
    return (result, *(library.deliver(x, like, stream, ()) for x in others)) if o.also else result


def _launch(library: DeviceLibrary, gpu: Gpu, o: Operation, views: dict[str, View], like: Any, stream: int) -> Any:
    """Enqueue the steps, bound before or now; the workspace, which they still use."""
    merged = dict[int, int]()  # names of one memory have one buffer: what is written may be read
    for view in views.values():
        merged.setdefault(view.pointer, len(merged) + 1)
    key = (o.name, gpu.index, o.precision, *o.key, *((name, view.shape, view.strides, view.pointer & 15,
                                                       merged[view.pointer]) for name, view in views.items()))
    bound: BoundProgram | None = calls.get(key)
    if bound is None:
        program = Program(o.precision, gpu.arch)
        o.record(program, {name: external(merged[view.pointer], view) for name, view in views.items()})
        bound = remember(key, BoundProgram(program, gpu))
    if o.recognised is not None:
        remember(o.recognised, (bound, tuple(views)))
    scratch, address = None, 0
    if bound.workspace_bytes:
        try:
            scratch, address = library.scratch(bound.workspace_bytes, like, stream)
        except Exception as error:
            if not library.out_of_memory(error):
                raise
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in o.operands.items())
            raise no_room(error, f"a workspace of {bound.workspace_bytes:,} bytes for {o.name} of {shapes}", gpu,
                          library.name, ["free memory", "solve smaller batches"]) from error
    bound.run(address, list(merged), stream)
    return scratch


def _elements(view: View, parts: int) -> View:
    """An array whose elements' ``parts`` lie so; its strides in elements, None where no kernel takes them."""
    if parts == 1:
        return view
    if view.strides is None or view.pointer % (FLOAT * parts) or any(step % parts for step in view.strides[:-1]):
        return View(view.pointer, view.shape[:-1], None, view.byte_strides[:-1])
    return View(view.pointer, view.shape[:-1], tuple(step // parts for step in view.strides[:-1]))


def flattened(view: View, batch: tuple[int, ...]) -> View | None:
    """The view as ``(count, rows, columns)``, broadcast to ``batch``; None: no kernel takes its strides."""
    if 0 in (*view.shape, *batch):  # nothing lies anywhere
        return View(view.pointer, shape := (prod(batch), *view.shape[-2:]), packed(shape))
    if view.strides is None or view.pointer % FLOAT or any(step < 0 for step in view.strides):
        return None
    rows, columns = view.shape[-2:]
    down, right = view.strides[-2:]
    if columns <= 1 and right != 1 and rows > 1 and down == 1:
        right = max(rows, 1)
    elif columns <= 1:
        right = 1
    if rows <= 1:
        down = max(columns, 1) if right == 1 else 1
    if not ((right == 1 and down >= columns) or (down == 1 and right >= rows)):
        return None
    steps = (0,) * (len(batch) + 2 - len(view.shape)) + tuple(
        0 if size == 1 else step for size, step in zip(view.shape[:-2], view.strides[:-2], strict=True))
    levels = [(size, step) for size, step in zip(batch, steps, strict=True) if size != 1]
    if any(outer != size * inner for (_, outer), (size, inner) in pairwise(levels)):
        return None
    return View(view.pointer, (prod(batch), rows, columns), (levels[-1][1] if levels else rows * columns, down, right))


def view_of_result(address: int, batch: tuple[int, ...], shape: tuple[int, ...], dtype: str) -> View:
    """A further result as ``(count, rows, columns)``; of int32 one row."""
    shape = (prod(batch), *((1, prod(shape[len(batch):])) if dtype == "int32" else shape[-2:]))
    return View(address, shape, packed(shape))


def _check_out(o: Operation, views: dict[str, View], out: View) -> None:
    """Refuse an ``out`` whose elements lie on each other or on an operand's that it may not be.

    Raises:
        InvalidValue: it does.
    """
    if out.strides is not None and not distinct(out.shape, out.strides):
        raise InvalidValue(f"out has strides {out.strides} (elements) for shape {out.shape}: its elements overlap; "
                           "pass an array with an element of its own for each result")
    for name, view in views.items():
        same = (view.pointer, view.shape, view.strides) == (out.pointer, out.shape, out.strides)
        if overlaps(view, out) and not (name == o.over and same):
            allowed = f", or {o.over} itself as out" if o.over else ""
            raise InvalidValue(f"out overlaps {name} in memory, which would be overwritten while it is read; pass an "
                               f"out of its own{allowed}")


def batch_of(name: str, **operands: Any) -> tuple[int, ...]:
    """The batch that operands of two dimensions or more broadcast to.

    Raises:
        InvalidType: no array.
        InvalidValue: fewer dimensions, or batches that do not match.
    """
    batches = {which: shape_of(name, which, x)[:-2] for which, x in operands.items()}
    try:
        return np.broadcast_shapes(*batches.values())
    except ValueError:
        shapes = ", ".join(f"{batch} of {which}" for which, batch in batches.items())
        raise InvalidValue(f"{name}: the batches {shapes} do not broadcast; their dimensions must be equal or 1"
                           ) from None


def shape_of(name: str, which: str, x: Any, square: bool = False) -> tuple[int, ...]:
    """The shape of an operand, a matrix or a batch of them.

    Raises:
        InvalidType: no array.
        InvalidValue: fewer than two dimensions; or not square, where that is asked for.
    """
    try:
        shape = tuple(int(size) for size in x.shape)
    except (AttributeError, TypeError):
        raise InvalidType(f"{which} is a {type(x).__name__}; {name} takes torch, CuPy, JAX or NumPy arrays") from None
    if len(shape) < 2:
        raise InvalidValue(f"{which} has shape {shape}; {name} takes matrices: add a dimension")
    if square and shape[-1] != shape[-2]:
        raise InvalidValue(f"{which} has shape {shape}; {name} takes square matrices")
    return shape
