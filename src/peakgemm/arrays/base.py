"""What the door and the calls ask of an array library, and how it sees an array: a `View`.

Whether two of them share memory, or bytes of a file, is told exactly, for the interleaved layouts of blocked solvers.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidType, InvalidValue, LaunchFailed

FLOAT = 4  # bytes
HOST = -1  # the device index of the host's memory
dtype_name = lru_cache(str)  # NumPy makes the name of a dtype anew each time
_MOST_WORK: Any = 100_000  # candidate solutions that NumPy tries


def place(index: int) -> str:
    """A device index in words."""
    return "the host" if index == HOST else f"GPU {index}"


class View(NamedTuple):
    """Where a float32 array lies: address in bytes, shape, strides in elements.

    ``strides`` None: they are no whole number of elements, or the memory does not hold the values
    as they are (torch's lazy negation); only a copy helps. ``steps`` are then the strides in bytes.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    steps: tuple[int, ...] | None = None

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides in bytes, also where ``strides`` is None."""
        return self.steps or () if self.strides is None else tuple(FLOAT * step for step in self.strides)

    @property
    def span(self) -> tuple[int, int]:
        """First byte and the byte past the last one, relative to the address; (0, 0) for an empty array."""
        if 0 in self.shape:
            return 0, 0
        reach = [step * (size - 1) for step, size in zip(self.byte_strides, self.shape, strict=True)]
        return sum(x for x in reach if x < 0), sum(x for x in reach if x > 0) + FLOAT

    @property
    def alignment(self) -> int:
        """Largest power of two up to 16 that divides the address."""
        return 16 if self.pointer == 0 else min(16, self.pointer & -self.pointer)

    @classmethod
    def packed(cls, shape: tuple[int, ...]) -> View:
        """A row-major array without gaps, at an aligned address."""
        return cls(0, shape, packed(shape))

    @property
    def mT(self) -> View:
        """The matrices transposed."""
        def swapped(x: tuple[int, ...]) -> tuple[int, ...]:
            return (*x[:-2], x[-1], x[-2])

        return View(self.pointer, swapped(self.shape), self.strides and swapped(self.strides))


def overlaps(x: View, y: View) -> bool:
    """Whether an element of ``x`` lies where one of ``y`` does; True also where that is too hard to tell."""
    (x_low, x_high), (y_low, y_high) = x.span, y.span
    if x.pointer + x_low >= y.pointer + y_high or y.pointer + y_low >= x.pointer + x_high:
        return False
    if x_low == x_high or y_low == y_high:
        return False
    first, second = (SimpleNamespace(__array_interface__={
        "data": (view.pointer, True), "shape": view.shape, "strides": view.byte_strides, "typestr": "<f4",
        "version": 3}) for view in (x, y))
    try:  # addresses and strides alone are looked at, so device memory may be described
        return bool(np.shares_memory(np.asarray(first), np.asarray(second), max_work=_MOST_WORK))
    except Exception:  # NumPy's TooHardError moved between modules
        return True


def refuse_overlap(views: dict[str, View], beta: float, arrays: dict[str, Any] | None = None) -> None:
    """``out`` may be ``c`` itself; it shares no other memory with an input, and with ``arrays``, the NumPy arrays of
    these views, no bytes of a file.

    Raises:
        InvalidValue: it does; the message says with which.
    """
    out = views.get("out")
    for name, view in views.items():
        if out is None or name == "out" or (name == "c" and (view == out or beta == 0)):
            continue
        if overlaps(view, out):
            raise InvalidValue(f"out overlaps {name} in memory, which would be overwritten while it is read; pass an "
                               f"out of its own{', or c itself as out' if name == 'c' else ''}")
        target = _mapped(arrays["out"], out) if arrays else None
        source = _mapped(arrays[name], view) if arrays and target else None
        # A private mapping's writes do not reach the file; two shared ones of it have addresses of their own.
        if target and source and target.file == source.file and not target.private and overlaps(
                source.view, target.view):
            raise InvalidValue(f"out overlaps {name} in {target.path}, which both map and which would be overwritten "
                               "while it is read; map a file of its own as out"
                               f"{', or pass c itself as out' if name == 'c' else ''}")


class _Mapped(NamedTuple):
    """The file whose pages an array is, and where the array lies in it: ``view``, its pointer an offset in the file."""

    file: tuple[int, int]  # device, inode
    view: View
    path: str
    private: bool  # mode "c"


def _mapped(x: NDArray[Any], view: View) -> _Mapped | None:
    """The file below ``x``, which lies at ``view``; None where its root is no `numpy.memmap` of a file with a name."""
    root: Any = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not isinstance(root.base, mmap.mmap) or root.filename is None:
        return None
    try:
        status = os.stat(root.filename)
    except OSError:  # the name has gone
        return None
    offset = root.offset + view.pointer - root.__array_interface__["data"][0]
    return _Mapped((status.st_dev, status.st_ino), view._replace(pointer=offset), str(root.filename), root.mode == "c")


class Library(Protocol):
    """An array library. ``name`` is what errors call it; device indices are the driver's, `HOST` the host."""

    name: str

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        """The device of ``x``, a plain array of ``dtype`` with memory of its own. Called through `admit` alone.

        Raises:
            InvalidType: no array, a wrapper without memory, or another dtype. ``name`` is what the message calls it.
            InvalidValue: neither on the host nor on one CUDA device, or its memory has been freed.
        """

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """Describe an admitted ``x``; work enqueued on ``stream`` afterwards finds its values ready (-1: no care
        taken)."""

    def read_only(self, x: Any) -> bool:
        """Whether ``x`` must not be written."""
        return False

    def as_real(self, x: Any) -> tuple[Any, bool]:
        """The parts of a complex64 array as a float32 one, ``(..., 2)``, in its memory where the library has views; and
        whether they are those of its conjugate.

        Raises:
            InvalidType: a library whose complex arrays are not taken.
        """
        raise self._no_complex()

    def as_complex(self, x: Any) -> Any:
        """The complex64 array of which a packed ``x`` has the parts."""
        raise self._no_complex()

    def _no_complex(self) -> InvalidType:
        return InvalidType("peakgemm takes complex64 arrays of torch, CuPy, JAX and NumPy, and none of "
                           f"{self.name}; convert them")


class HostLibrary(Library, Protocol):
    """A library with arrays in the host's memory."""

    def host(self, x: Any, name: str) -> NDArray[np.float32]:
        """The NumPy view of an admitted array, without a copy."""

    def wrap(self, x: NDArray[np.float32], like: Any) -> Any:
        """A result as the caller's kind of array."""


class DeviceLibrary(Library, Protocol):
    """A library with arrays on CUDA devices."""

    def scope(self, device: int, stream: int | None) -> AbstractContextManager[int]:
        """Within it, ``device`` is current and memory is allocated for ``stream`` (None: the library's own
        current stream); gives that stream's handle."""

    def empty(self, shape: tuple[int, ...], like: Any, stream: int, dtype: str = "float32") -> Any:
        """Packed memory for a result on the device of ``like``: an array, or what `deliver` makes one of. ``dtype`` may
        be another one of four bytes, or complex64."""

    def scratch(self, size: int, like: Any, stream: int) -> tuple[Any, int]:
        """Memory of ``size`` bytes or a few more on the device of ``like``, and its address."""
        memory = self.empty((-(-size // FLOAT),), like, stream)
        return memory, self.view(memory, "workspace").pointer

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """``x`` broadcast to ``shape``, packed row-major; ``x`` may start at any byte.

        Raises:
            InvalidValue: the library cannot read elements at such an address.
        """

    def assign(self, to: Any, source: Any) -> None:
        """``to[...] = source``."""

    def deliver(self, result: Any, like: Any, stream: int, inputs: tuple[Any, ...]) -> Any:
        """The array that the caller gets for what `empty` made, once ``stream`` has work that writes it and
        reads ``inputs``. Where the library frees memory by stream that is ``result`` itself."""
        return result

    def out_of_memory(self, error: Exception) -> bool:
        """Whether ``error``, which `empty` or `scratch` raised, says that the device's memory is used up."""
        return driver_out_of_memory(error)


def driver_out_of_memory(error: Exception) -> bool:
    """`DeviceLibrary.out_of_memory` for memory that comes from the driver: that was refused, and nothing else was."""
    return isinstance(error, LaunchFailed) and "bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY" in str(error)


def is_traced(arrays: Iterable[Any]) -> bool:
    """Whether one of ``arrays`` is a value that JAX traces."""
    core = sys.modules.get("jax.core")
    return core is not None and any(isinstance(x, core.Tracer) for x in arrays)


def is_complex(x: Any) -> bool:
    """Whether ``x`` is an array of complex numbers, of any library."""
    dtype = getattr(x, "dtype", None)
    of_torch: bool | None = getattr(dtype, "is_complex", None)
    return getattr(dtype, "kind", "") == "c" if of_torch is None else of_torch


def check_dtype(dtype: str, name: str, wanted: str = "float32") -> None:
    """Refuse what is not of the ``wanted`` dtype, and say what to do.

    Raises:
        InvalidType: another dtype.
    """
    if dtype == wanted:
        return
    if wanted == "int32":
        raise InvalidType(f"{name} is {dtype}; it is int32, as the functions of peakgemm.linalg return it: convert it")
    if wanted != "float32":
        conversion = f"convert it with {name}.astype('{wanted}') ({name}.to(torch.{wanted}) in torch)"
        raise InvalidType(f"{name} is {dtype}{', and a is complex' * (name != 'a')}; a complex product is of {wanted} "
                          f"arrays: {'make one of that shape' if name == 'out' else conversion}")
    if dtype == "complex64":
        raise InvalidType(f"{name} is complex64; peakgemm takes float32 here, and complex64 in matmul, gemm and "
                          "linalg's syrk, herk and gram where all arrays are: convert the others, or pass "
                          f"{name}.real and {name}.imag")
    if name == "workspace":
        raise InvalidType(f"workspace is {dtype}; pass a packed float32 array of Plan.workspace_bytes / {FLOAT} "
                          "elements")
    converted = f"convert it with {name}.astype('float32') ({name}.float() in torch)"
    raise InvalidType(f"{name} is {dtype}; peakgemm multiplies float32: {remedy(name, converted)}")


def remedy(name: str, conversion: str) -> str:
    """How a refusal of the array ``name`` ends. An operand is to be converted. For ``out`` or ``C`` a new array is to
    be made, because the product would be written to a converted copy and lost."""
    return conversion if name not in ("out", "C") else (
        f"make {name} a plain float32 array of the result's shape, np.empty(shape, np.float32) in NumPy, "
        "torch.empty(shape, device=a.device) in torch")


def by_bytes(pointer: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> View:
    """A `View` from strides in bytes."""
    if any(step % FLOAT for step in steps):
        return View(pointer, shape, None, steps)
    return View(pointer, shape, tuple(step // FLOAT for step in steps))


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def stream_handle(stream: Any) -> int:
    """The ``CUstream`` of a torch, CuPy, cuda.core or other stream, as an integer.

    Raises:
        InvalidType: no stream.
        InvalidValue: a negative handle.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        handle = int((protocol() if callable(protocol) else protocol)[1])
    elif hasattr(stream, "cuda_stream"):  # torch before it had the protocol
        handle = int(stream.cuda_stream)
    elif hasattr(stream, "ptr"):  # CuPy
        handle = int(stream.ptr)
    else:
        raise InvalidType(f"stream is a {type(stream).__name__}; pass a torch, CuPy or cuda.core stream, a CUstream as "
                          "an integer, or anything with __cuda_stream__")
    if handle < 0:
        raise InvalidValue(f"stream = {handle} is no CUstream handle; leave stream out for the current one")
    return handle
