"""The handlers that XLA calls for a product inside a compiled program: one for CUDA, one for the CPU.

What a call computes is one string attribute, the same in every process, so that a program from JAX's compilation cache
means the same in another one. The result's buffer is followed by one for the workspace, from XLA's allocator. A call
launches what `prepare` bound when the program was lowered, on XLA's stream, and never waits: it may be captured in a
command buffer.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays.base import FLOAT, View, packed
from ..calls import cache
from ..calls.canonical import canonicalise
from ..calls.host.cpu import by_numpy
from ..calls.launch import bound_for, choice_for, without_workspace
from ..calls.request import Request
from ..errors import InvalidType, InvalidValue, LaunchFailed, OutOfMemory
from ..runtime import device
from . import jax_abi as abi

if TYPE_CHECKING:
    from ..kernels.bound import Bound

TARGET = "peakgemm_gemm"
_ALIGNED, _DATA = 15, 8 * abi.DATA

Shape = tuple[int, ...]


class Call(NamedTuple):
    """One product of packed arrays: ``alpha op(a) op(b) + beta c``. ``c`` has the result's rank, sizes of 1 broadcast;
    None: there is none."""

    a: Shape
    b: Shape
    c: Shape | None
    out: Shape
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    precision: str

    def text(self) -> str:
        """As an attribute of the compiled program; `parse` reads it."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def parse(cls, text: bytes) -> Call:
        """The call that `text` wrote.

        Raises:
            InvalidValue: no such text, as of a program that another version compiled.
        """
        try:
            found = json.loads(text)
            shapes = {name: None if found[name] is None else tuple(found[name]) for name in ("a", "b", "c", "out")}
            return cls(**{**found, **shapes})
        except (ValueError, TypeError, KeyError):
            raise InvalidValue(f"the compiled program asks for {text!r}, which this version of peakgemm does not "
                               "read; clear JAX's compilation cache") from None

    def request(self, a: Any, b: Any, c: Any, out: Any) -> Request:
        """The same with arrays."""
        return Request(a, b, c, out, self.alpha, self.beta, self.trans_a, self.trans_b, self.precision)


class Ready(NamedTuple):
    """A call bound to a device: what its handler launches."""

    launch: Callable[[int, int, int, int, int, int], None]
    swapped: bool
    bound: Bound

    @property
    def workspace_bytes(self) -> int:
        """Of device memory, that it wants beside its arrays."""
        return self.bound.workspace_bytes


_parsed = lru_cache(maxsize=4096)(Call.parse)
_calls: dict[Any, Any] = cache.calls
_kept: list[Any] = []  # handlers, for as long as XLA may call them


def prepare(call: Call, index: int) -> Ready:
    """Choose, compile and load the kernel of a call for device ``index``; nothing is launched.

    Raises:
        InvalidValue, CompileFailed, MissingComponent, LaunchFailed: as `peakgemm.gemm`.
    """
    return _prepared(call.text().encode(), index, 16)


def _prepared(text: bytes, index: int, alignment: int) -> Ready:
    ready: Ready | None = _calls.get((text, index, alignment))
    if ready is None:
        call, gpu = Call.parse(text), device.require(index)

        def view(shape: Shape) -> View:
            return View(alignment, shape, packed(shape))

        canonical = canonicalise(view(call.a), view(call.b), None if call.c is None else view(call.c), view(call.out),
                                 alpha=call.alpha, beta=call.beta, trans_a=call.trans_a, trans_b=call.trans_b)
        problem = canonical.problem
        assert problem is not None, "packed operands with three batch dimensions at most need no copies"
        bound = bound_for(problem, gpu, choice_for(problem, gpu, call.precision))
        ready = cache.remember((text, index, alignment), Ready(bound.launch, canonical.swapped, bound))
    return ready


def _on_cuda(frame: Any, api: int) -> None:
    text = _attribute(frame)
    count, word = frame[abi.ARG_COUNT], abi.word
    args, rets = abi.words(frame[abi.ARGS], count), abi.words(frame[abi.RETS], 2)
    a, b = word(args[0] + _DATA), word(args[1] + _DATA)
    c = word(args[2] + _DATA) if count > 2 else 0
    out, room = word(rets[0] + _DATA), word(rets[1] + _DATA)
    asked = abi.struct((32, 0, frame[abi.CONTEXT], 0))
    if abi.call(api, abi.STREAM_GET, asked):
        raise LaunchFailed("XLA gives no stream; peakgemm's product runs on its CUDA platform alone")
    index, every = _device(frame, api), a | b | c | out
    alignment = every & -every if every & _ALIGNED else 16
    ready = _calls.get((text, index, alignment)) or _prepared(text, index, alignment)
    launch, wanted = ready.launch, ready.bound.workspace_bytes
    if wanted and wanted > (there := FLOAT * word(word(rets[1] + 8 * abi.DIMS))):  # another GPU, or another address
        error = OutOfMemory(f"XLA gave {there:,} bytes of workspace, {wanted:,} are wanted")
        launch = without_workspace(error, ready.bound, device.require(index), "JAX").launch
    if ready.swapped:
        a, b = b, a
    with device.activated(index):
        launch(a, b, out, c or out, room, asked[3])


def _on_host(frame: Any, api: int) -> None:
    call = _parsed(_attribute(frame))
    args, rets = _buffers(frame[abi.ARGS], frame[abi.ARG_COUNT]), _buffers(frame[abi.RETS], frame[abi.RET_COUNT])
    a, b, out = (_array(buffer, shape) for buffer, shape in
                 ((args[0], call.a), (args[1], call.b), (rets[0], call.out)))
    c = None if call.c is None else _array(args[2], call.c)
    by_numpy(call.request(a, b, c, out))


def _attribute(frame: Any) -> bytes:
    """The string attribute of a call, its only one."""
    pointer, size = abi.words(abi.words(frame[abi.ATTRS], 1)[0], 2)
    return ctypes.string_at(pointer, size)


def _buffers(array: int, count: int) -> list[Any]:
    return [abi.words(pointer, abi.BUFFER_WORDS) for pointer in abi.words(array, count)]


def _array(buffer: Any, shape: Shape) -> Any:
    """The NumPy array in a buffer on the host, which has ``shape``."""
    dims = tuple(abi.words(buffer[abi.DIMS], buffer[abi.RANK])) if shape else ()
    if dims != shape:
        raise InvalidValue(f"XLA brought an array of {dims}, the program was compiled for {shape}; report this")
    memory: Any = (ctypes.c_float * prod(shape)).from_address(buffer[abi.DATA])
    return np.frombuffer(memory, np.float32).reshape(shape)


def _device(frame: Any, api: int) -> int:
    """The CUDA device of a call."""
    if device.count() == 1:
        return 0
    word = abi.header().function_word(abi.ORDINAL)
    if word is None:  # the context that XLA has made current
        return device.current() or 0
    asked = abi.struct((28, 0, frame[abi.CONTEXT], 0))
    if abi.call(api, word, asked):
        raise LaunchFailed("XLA names no device for a product; set CUDA_VISIBLE_DEVICES to one GPU")
    return int(asked[3] & 0xFFFFFFFF)


def _metadata(extension: int) -> None:
    """Answer XLA's question for the interface's version and for what the handler may be used for."""
    base = abi.words(extension, 4)
    if base[1] & 0xFFFFFFFF != abi.METADATA_EXTENSION:
        return
    answer = base[3]  # size; the version's size, extensions, major and minor number; traits
    version = abi.header().version
    abi.words(answer + 8, 3)[2] = version[0] | version[1] << 32
    traits = ctypes.c_uint32.from_address(answer + 32)
    traits.value = abi.COMMAND_BUFFER_COMPATIBLE


def _code(error: Exception) -> int:
    if isinstance(error, OutOfMemory):
        return abi.RESOURCE_EXHAUSTED
    return abi.INVALID_ARGUMENT if isinstance(error, (InvalidValue, InvalidType)) else abi.INTERNAL


def _failed(api: int, error: Exception) -> int:
    """An error object of XLA's, which raises in the place where the program's result is asked for."""
    message = ctypes.create_string_buffer(f"peakgemm: {type(error).__name__}: {error}".encode())
    arguments = abi.struct((28, 0, ctypes.addressof(message), _code(error)))
    return abi.call(api, abi.ERROR_CREATE, arguments)


def handler(run: Callable[[Any, int], None]) -> Any:
    """The C function that does ``run`` for each call frame."""

    def handle(address: int) -> int:
        frame = abi.words(address, abi.FRAME_WORDS)
        if frame[abi.EXTENSION]:
            _metadata(frame[abi.EXTENSION])
            return 0
        api = frame[abi.API]
        try:
            if frame[abi.STAGE] & 0xFFFFFFFF == abi.EXECUTE:
                run(frame, api)
        except Exception as error:
            return _failed(api, error)
        return 0

    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handle)


def register() -> None:
    """Register both handlers with JAX, once.

    Raises:
        MissingComponent: no jax, or an interface that is not known; see `jax_abi.header`.
    """
    if _kept:
        return
    abi.header()
    import jax.ffi

    for run, platform in ((_on_cuda, "CUDA"), (_on_host, "cpu")):
        function = handler(run)
        _kept.append(function)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(function), platform=platform, api_version=1)
