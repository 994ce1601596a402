"""Linear algebra in programs that JAX compiles: one primitive, whose steps are those of an eager call.

What is traced is the `Operation`, after its function's checks. Its text names it in the program; its steps are recorded
and bound when the program is lowered, for packed arrays. The workspace is one more result. So a program runs in the
process that traced it: another one reads no steps from a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from ..arrays.base import FLOAT, View, check_dtype, packed
from ..calls.launch import calls, remember
from ..errors import InvalidValue, OutOfMemory
from ..linalg.call import Operation, flattened, view_of_result
from ..linalg.program import BoundProgram, Program, external
from ..runtime import device, memory
from . import jax_abi as abi
from .jax_handler import attribute, device_of, host_array, register_target, stream_of
from .jax_primitive import array, local_gpus, refuse_symbolic, result_aval, varying_alike

TARGET = "peakgemm_linalg"
linalg_p = Primitive(TARGET)
linalg_p.multiple_results = True
_operations: dict[str, Operation] = {}  # by text, with shapes in the place of arrays


def traced(operation: Operation) -> Any:
    """`peakgemm.linalg.call.run` where JAX traces."""
    o = operation
    for name, given in (("stream", o.stream), ("out", o.out)):
        if given is not None:
            raise InvalidValue(f"{name} was given for JAX arrays under jit, grad or vmap, where XLA places results and "
                               "work; leave it out")
    operands = {name: array(x, name) for name, x in o.operands.items()}
    for name, x in o.integers.items():
        check_dtype(str(x.dtype), name, "int32")
        refuse_symbolic(name, x.shape)
    shapes = [((*o.shape, *o.pair), "float32"), *o.also.values()]
    if 0 in o.shape:
        results = [jnp.zeros(*each) for each in shapes]
    else:
        values = {name: _stepped_through(x, o) for name, x in (operands | dict(o.integers)).items()}
        o = o._replace(operands={name: values[name].shape for name in o.operands},
                       integers={name: values[name].shape for name in o.integers})
        text = repr((o.name, o.precision, o.parts, o.key, o.operands, o.integers, shapes))
        _operations.setdefault(text, o)
        results = linalg_p.bind(*varying_alike(*values.values()), text=text)
    first = results[0] if o.parts == 1 else jax.lax.complex(results[0][..., 0], results[0][..., 1])
    return (first, *results[1:]) if o.also else first


def _stepped_through(x: Any, o: Operation) -> Any:
    """``x``, or broadcast where no kernel steps through the batch."""
    view = _packed(x.shape, o)
    return x if flattened(view, o.shape[:-2]) else jnp.broadcast_to(x, (*o.shape[:-2], *x.shape[len(view.shape) - 2:]))


def _packed(shape: tuple[int, ...], o: Operation, address: int = 0) -> View:
    shape = shape[:len(shape) - len(o.pair)]
    return View(address, shape, packed(shape))


def _known(text: str) -> Operation:
    if text not in _operations:
        raise InvalidValue(f"the compiled program asks for {text.split(', ')[0]}), whose steps were recorded in "
                           "another process; trace its function in this one")
    return _operations[text]


def bind(text: str, index: int, addresses: Sequence[int]) -> BoundProgram:
    """The steps for device ``index``, bound at once or before, of operands and results at such addresses.

    Raises:
        InvalidValue: a text of another process; or as an eager call.
    """
    offsets = tuple(address & 15 for address in addresses)
    bound: BoundProgram | None = calls.get(key := (TARGET, text, index, offsets))
    if bound is None:
        o, gpu = _known(text), device.require(index)
        batch, starts = o.shape[:-2], iter(offsets)
        views = {name: flattened(_packed(shape, o, next(starts)), batch)
                 for name, shape in (dict(o.operands) | dict(o.integers) | {"out": (*o.shape, *o.pair)}).items()}
        views |= {name: view_of_result(next(starts), batch, *of) for name, of in o.also.items()}
        program = Program(o.precision, gpu.arch)
        o.record(program, {name: external(i, view) for i, (name, view) in enumerate(views.items(), 1) if view})
        bound = remember(key, BoundProgram(program, gpu))
    return bound


def _on_cuda(frame: Any) -> None:
    text, index, stream = attribute(frame).decode(), device_of(frame), stream_of(frame)
    *results, room = abi.buffers(frame.rets.rets, frame.rets.size)
    addresses = [x.data for x in (*abi.buffers(frame.args.args, frame.args.size), *results)]
    bound = bind(text, index, addresses)
    if bound.workspace_bytes > (given := FLOAT * abi.word(room.dims)):  # another GPU, or another address
        raise OutOfMemory(f"XLA gave {given:,} bytes of workspace, {bound.workspace_bytes:,} are wanted; compile the "
                          "program where it runs")
    with device.activated(index):
        for result, (shape, dtype) in zip(results[1:], _known(text).also.values(), strict=True):
            if dtype == "int32":
                memory.clear(result.data, FLOAT * prod(shape), stream)
        bound.run(room.data, addresses, stream)


def _on_host(frame: Any) -> None:
    o = _known(attribute(frame).decode())
    assert o.on_cpu is not None
    given = zip((*o.operands, *o.integers), abi.buffers(frame.args.args, frame.args.size), strict=True)
    with np.errstate(all="ignore"):  # infinities and NaN are results
        done = o.on_cpu(**{name: host_array(x, "int32" if name in o.integers else "float32") for name, x in given},
                        out=None)
        for x, value, dtype in zip(abi.buffers(frame.rets.rets, frame.rets.size), done if o.also else (done,),
                                   ("float32", *(dtype for _, dtype in o.also.values())), strict=False):
            host_array(x, dtype)[...] = value


def _avals(*operands: Any, text: str) -> list[Any]:
    o = _known(text)
    return [result_aval(operands[0], *of) for of in (((*o.shape, *o.pair), "float32"), *o.also.values())]


def _lowered(ctx: mlir.LoweringRuleContext, *operands: Any, cuda: bool, text: str) -> Any:
    count = len(ctx.avals_in) + len(ctx.avals_out)
    room = max((bind(text, index, (0,) * count).workspace_bytes for index in local_gpus() if cuda), default=0)
    scratch = jax.core.ShapedArray((max(-(-room // FLOAT), 1),), np.dtype("float32"))
    lower = jax.ffi.ffi_lowering(TARGET)
    return lower(ctx.replace(avals_out=[*ctx.avals_out, scratch]), *operands, call=text)[:-1]


def _batched(operands: Any, dims: Any, *, text: str) -> Any:
    """The same with one more batch dimension, the first."""
    o = _known(text)
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    refuse_symbolic("the mapped axis", (size,))
    rank, values = len(o.shape) + 1, {}
    for name, x, d in zip((*o.operands, *o.integers), operands, dims, strict=True):
        x = x[None] if d is None else jnp.moveaxis(x, d, 0)
        values[name] = x.reshape(x.shape[0], *(1,) * (rank + len(o.pair) * (name in o.operands) - x.ndim), *x.shape[1:])

    def on_cpu(out: Any, **arrays: Any) -> Any:
        assert o.on_cpu is not None
        done = [o.on_cpu(**{name: x[i if len(x) > 1 else 0] for name, x in arrays.items()}, out=None)
                for i in range(size)]
        return tuple(map(np.stack, zip(*done, strict=True))) if o.also else np.stack(done)

    wide = o._replace(operands={name: values[name] for name in o.operands}, on_cpu=on_cpu, shape=(size, *o.shape),
                      integers={name: values[name] for name in o.integers},
                      also={name: ((size, *shape), dtype) for name, (shape, dtype) in o.also.items()})
    results = traced(wide)
    results = results if o.also else (results,)
    if o.parts > 1:
        results = (jnp.stack((results[0].real, results[0].imag), -1), *results[1:])
    return results, (0,) * len(results)


def _no_derivative(primals: Any, tangents: Any, *, text: str) -> Any:
    raise InvalidValue(f"peakgemm.linalg.{_known(text).name} has no derivative in JAX; call jax.numpy.linalg where one "
                       "is wanted, or wrap it in jax.custom_jvp")


linalg_p.def_impl(partial(xla.apply_primitive, linalg_p))
linalg_p.def_abstract_eval(_avals)
ad.primitive_jvps[linalg_p] = _no_derivative
batching.primitive_batchers[linalg_p] = _batched
register_target(TARGET, _on_cuda, _on_host)
for _name, _cuda in (("cuda", True), ("cpu", False)):
    mlir.register_lowering(linalg_p, partial(_lowered, cuda=_cuda), platform=_name)
