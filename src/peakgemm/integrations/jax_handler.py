"""The handlers that XLA calls for a product inside a compiled program: one for CUDA, one for the CPU.

What a call computes is one string attribute, which is the same in every process, so that a program from JAX's
compilation cache means the same in another one. A handler in Python reads one string in 0.5 us; typed attributes and
the buffers' dimensions take 5 us. The result's buffer is followed by one for the workspace, from XLA's allocator. A
call launches what `prepare` bound when the program was lowered, on XLA's stream, and never waits: it may be captured in
a command buffer.
"""

from __future__ import annotations

import atexit
import ctypes
import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from math import prod
from time import monotonic, sleep
from typing import Any

import numpy as np

from ..arrays.base import FLOAT, View, packed
from ..calls.host.cpu import by_numpy
from ..calls.launch import LIMIT, BoundCall, bound_call, calls, without_workspace
from ..calls.request import Request
from ..errors import InvalidType, InvalidValue, LaunchFailed, OutOfMemory
from ..runtime import device
from . import jax_abi as abi

TARGET = "peakgemm_gemm"
watch: Callable[[Request], None] | None = None  # told of each product that was run
_PATIENCE_S = 0.5
_running: list[Any] = []  # an entry for each call of a handler that has not returned; append and pop are atomic
_FIELDS = [name for name in Request._fields if name != "ready"]


def to_text(call: Request) -> str:
    """A request with shapes in the place of arrays, as an attribute of the compiled program; `from_text` reads it."""
    return json.dumps({name: getattr(call, name) for name in _FIELDS}, separators=(",", ":"))


@lru_cache(maxsize=LIMIT)
def from_text(text: bytes) -> Request:
    """What `to_text` wrote.

    Raises:
        InvalidValue: no such text, as of a program that another version compiled.
    """
    with suppress(ValueError, TypeError):
        values = json.loads(text)
        if set(values) == set(_FIELDS):
            shapes: dict[str, Any] = {name: tuple(x) for name, x in values.items() if isinstance(x, list)}
            return Request(**values | shapes)
    raise InvalidValue(f"the compiled program asks for {text!r}, which this version of peakgemm does not read; clear "
                       "JAX's compilation cache")


def packed_views(call: Request, alignment: int = 16) -> dict[str, View]:
    """Packed arrays of a call's shapes, at addresses of that alignment."""
    return {name: View(alignment, shape, packed(shape)) for name, shape in call.arrays().items()}


def prepare(text: bytes, index: int, alignment: int = 16) -> BoundCall:
    """Choose, compile and load the kernel of a call for device ``index``, at once or before; nothing is launched.

    Raises:
        InvalidValue, CompileFailed, MissingComponent, LaunchFailed: as `peakgemm.gemm`.
    """
    key = text, index, alignment
    call: BoundCall | None = calls.get(key)
    if call is None:
        request = from_text(text)
        call = bound_call(request, packed_views(request, alignment), index, key)
        assert call.bound is not None, "the primitive's operands need no copies, and have elements"
    return call


def _on_cuda(frame: Any) -> None:
    args, rets = frame.args, frame.rets
    a, b, *c = [x.data for x in abi.buffers(args.args, args.size)]
    result, room = abi.buffers(rets.rets, 2)
    out = result.data
    c0 = c[0] if c else out
    stream, index, every = stream_of(frame), device_of(frame), a | b | c0 | out
    alignment = every & -every if every % 16 else 16
    call = prepare(attribute(frame), index, alignment)
    launch, wanted = call.launch, call.workspace_bytes
    if wanted and wanted > (given := FLOAT * abi.word(room.dims)):  # another GPU, or another address
        error = OutOfMemory(f"XLA gave {given:,} bytes of workspace, {wanted:,} are wanted")
        launch = without_workspace(error, call.bound, device.require(index), "JAX").launch
    if call.swapped:
        a, b = b, a
    with device.activated(index):
        launch(a, b, out, c0, room.data, stream)
    if watch is not None:
        watch(from_text(attribute(frame)))


def _on_host(frame: Any) -> None:
    args, rets = frame.args, frame.rets
    a, b, *c = map(host_array, abi.buffers(args.args, args.size))
    out = host_array(abi.buffers(rets.rets, rets.size)[0])
    request = from_text(attribute(frame))
    by_numpy(request._replace(a=a, b=b, c=c[0] if c else None, out=out))
    if watch is not None:
        watch(request)


def attribute(frame: Any) -> bytes:
    """The string attribute of a call, its only one."""
    span = abi.ByteSpan.from_address(abi.word(frame.attrs.attrs))
    return ctypes.string_at(span.ptr, span.len)


def host_array(buffer: Any, dtype: str = "float32") -> Any:
    """The NumPy array in a buffer on the host, of a dtype of four bytes."""
    shape = abi.words(buffer.dims, buffer.rank)
    memory: Any = (ctypes.c_float * prod(shape)).from_address(buffer.data)
    return np.frombuffer(memory, dtype).reshape(shape)


def stream_of(frame: Any) -> int:
    """The stream of a call on CUDA."""
    asked = abi.StreamGet(ctx=frame.ctx)
    if abi.call(frame.api, "XLA_FFI_Stream_Get", asked):
        raise LaunchFailed("XLA gives no stream; what peakgemm launches runs on its CUDA platform alone")
    return int(asked.stream or 0)


def device_of(frame: Any) -> int:
    """The CUDA device of a call."""
    if device.count() == 1:
        return 0
    asked = abi.DeviceOrdinalGet(ctx=frame.ctx)
    if abi.call(frame.api, "XLA_FFI_DeviceOrdinal_Get", asked):
        raise LaunchFailed("XLA names no device for a product; set CUDA_VISIBLE_DEVICES to one GPU")
    return int(asked.device_ordinal)


def _describe(address: int) -> None:
    """Answer XLA's question for the interface's version and for what the handler may be used for."""
    question = abi.MetadataExtension.from_address(address)
    if question.extension_base.type == abi.VALUES["XLA_FFI_Extension_Metadata"]:
        answer = abi.Metadata.from_address(question.metadata)
        answer.api_version.major_version, answer.api_version.minor_version = abi.interface().version
        answer.traits = abi.COMMAND_BUFFER_COMPATIBLE


def _failed(api: int, error: Exception) -> int:
    """An error object of XLA's, which raises in the place where the program's result is asked for."""
    code = ("RESOURCE_EXHAUSTED" if isinstance(error, OutOfMemory) else
            "INVALID_ARGUMENT" if isinstance(error, (InvalidValue, InvalidType)) else "INTERNAL")
    message = ctypes.create_string_buffer(f"peakgemm: {type(error).__name__}: {error}".encode())
    created = abi.ErrorCreate(message=ctypes.addressof(message), errc=abi.VALUES[f"XLA_FFI_Error_Code_{code}"])
    return abi.call(api, "XLA_FFI_Error_Create", created)


def handler(run: Callable[[Any], None]) -> Any:
    """The C function that does ``run`` for each call frame."""

    def handle(address: int) -> int:
        frame = abi.CallFrame.from_address(address)
        if frame.extension_start:
            _describe(frame.extension_start)
            return 0
        _running.append(run)
        try:
            if frame.stage == abi.EXECUTE:
                run(frame)
        except Exception as error:
            return _failed(frame.api, error)
        finally:
            _running.pop()
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handle)


def _wait_for_calls() -> None:
    """Let XLA finish before the interpreter ends: a handler called later would wait for the interpreter for ever, and
    XLA for the handler.

    It waits for all arrays that are alive, then for one more program on each device, which runs behind programs whose
    results were dropped. Handlers that other threads still start are given `_PATIENCE_S` seconds.
    """
    import jax

    with suppress(Exception):  # a program's own failure, told before
        jax.block_until_ready(jax.live_arrays())
    with suppress(Exception):
        last = jax.jit(lambda x: x + 1)
        jax.block_until_ready([last(jax.device_put(0, device)) for device in jax.local_devices()])
    deadline = monotonic() + _PATIENCE_S
    while _running and monotonic() < deadline:
        sleep(_PATIENCE_S / 100)


@lru_cache
def register_target(target: str, on_cuda: Callable[[Any], None], on_host: Callable[[Any], None]) -> list[Any]:
    """Register both handlers of a target with JAX, once; they are kept for as long as XLA may call them.

    Raises:
        MissingComponent: no jax, or an interface that is not known; see `jax_abi.interface`.
    """
    abi.interface()
    import jax.ffi

    atexit.unregister(_wait_for_calls)  # once, whatever the number of targets
    atexit.register(_wait_for_calls)
    functions = [handler(run) for run in (on_cuda, on_host)]
    for function, platform in zip(functions, ("CUDA", "cpu"), strict=True):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform=platform, api_version=1)
    return functions


def register() -> list[Any]:
    """`register_target` of products."""
    return register_target(TARGET, _on_cuda, _on_host)
