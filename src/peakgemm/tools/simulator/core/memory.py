"""Device memory of a run: the caller's arrays and the module's variables in one arena.

Arrays that share host memory share device memory; an array keeps its offset from the start
of the array that owns it, so a slice is as misaligned here as on a GPU. Writes reach the
caller's arrays at the end of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidType, InvalidValue

GLOBAL = 0x7F0000000000
SHARED = 0x0100000000000
LOCAL = 0x0200000000000
WINDOW = 1 << 32
ALIGN = 256
GAP_LEAST, GAP_MOST = 4096, 1 << 20


@dataclass(slots=True)
class Segment:
    """A stretch of device memory: ``base`` to ``end`` (exclusive), and whose it is; ``space`` as PTX has it."""

    base: int
    end: int
    name: str
    writable: bool = True
    host: NDArray[np.uint8] | None = None
    names: list[tuple[int, int, str]] = field(default_factory=list)
    space: str = "global"


def _span(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """The bytes from an array's first element to its last, gaps included."""
    if array.dtype.hasobject:
        raise InvalidType(f"{name} has dtype {array.dtype}, which no device memory can hold; pass a numeric array")
    if not array.dtype.isnative:
        native = array.dtype.newbyteorder("=")
        raise InvalidType(f"{name} has byte order {array.dtype.byteorder!r}; pass it as .astype('{native}')")
    if array.size == 0:  # whatever its strides
        return np.zeros(0, np.uint8)
    steps = [(stride, size) for stride, size in zip(array.strides, array.shape, strict=True) if size > 1]
    if any(stride < 0 for stride, _ in steps):
        raise InvalidValue(f"{name} has negative strides {array.strides}; pass np.ascontiguousarray({name})")
    if any(stride == 0 for stride, _ in steps) and array.flags.writeable:
        raise InvalidValue(f"{name} is a writable broadcast view, strides {array.strides}; pass a copy")
    size = array.itemsize + sum((n - 1) * stride for stride, n in steps)
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    return np.lib.stride_tricks.as_strided(_bytes_at(array), (size,), (1,), writeable=array.flags.writeable)


def _bytes_at(array: NDArray[Any]) -> NDArray[np.uint8]:
    corner = array[tuple(slice(0, 1) for _ in array.shape)]
    return np.lib.stride_tricks.as_strided(corner, (1,), (array.itemsize,)).view(np.uint8)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class Arena:
    """All global memory of a run."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.size = 0
        self.bytes: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.views: dict[int, NDArray[Any]] = {}

    def reserve(self, size: int, name: str, align: int = ALIGN, lead: int = 0, writable: bool = True,
                host: NDArray[np.uint8] | None = None) -> Segment:
        """Room for ``size`` bytes, ``lead`` bytes past an aligned address."""
        start = -(-self.size // max(align, ALIGN)) * max(align, ALIGN) + lead
        # the gap keeps an overrun by a row or so out of the next array, where it would not be seen
        self.size = start + size + min(max(size, GAP_LEAST), GAP_MOST)
        segment = Segment(GLOBAL + start, GLOBAL + start + size, name, writable, host, [(GLOBAL + start, size, name)])
        self.segments.append(segment)
        return segment

    def place(self, arrays: dict[str, NDArray[Any]]) -> dict[str, int]:
        """Reserve the caller's arrays; the device address of each.

        Raises:
            InvalidType: an object array, or one of foreign byte order.
            InvalidValue: negative strides, or a writable broadcast view.
        """
        spans = {name: _span(array, name) for name, array in arrays.items()}
        address: dict[str, int] = {}
        order = sorted(spans, key=lambda name: (_address(spans[name]), -spans[name].size))
        last: Segment | None = None
        last_host = last_size = 0
        for name in order:
            span = spans[name]
            at = _address(span)
            if last is not None and span.size and at < last_host + last_size:  # overlaps the one before
                inside = at - last_host
                if inside + span.size > last_size:
                    raise InvalidValue(f"{name} overlaps {last.name} partly; pass slices of one array, or copies")
                last.writable = last.writable or bool(span.flags.writeable)
                if last.host is not None and not last.host.flags.writeable and span.flags.writeable:
                    raise InvalidValue(f"{name} is a writable view of the read-only {last.name}; pass one of them only")
                address[name] = last.base + inside
                last.names.append((address[name], span.size, name))
                continue
            root = arrays[name]
            while isinstance(root.base, np.ndarray):
                root = root.base
            lead = (at - _address(root)) % ALIGN if span.size else 0
            segment = self.reserve(span.size, name, ALIGN, lead, bool(span.flags.writeable), span)
            address[name] = segment.base
            if span.size:
                last, last_host, last_size = segment, at, span.size
        return address

    def allocate(self) -> None:
        """Make the arena and copy the caller's arrays in."""
        self.bytes = np.zeros(-(-(self.size + 64) // 64) * 64, np.uint8)
        for segment in self.segments:
            if segment.host is not None:
                start = segment.base - GLOBAL  # of a variable the host has what its initialiser says
                self.bytes[start:start + len(segment.host)] = segment.host
        self.views = {size: self.bytes.view(f"u{size}") for size in (1, 2, 4, 8)} | {16: self.bytes.view("c16")}
        self.segments.sort(key=lambda segment: segment.base)
        self.bases = np.array([segment.base for segment in self.segments], np.uint64)
        self.ends = np.array([segment.end for segment in self.segments], np.uint64)

    def copy_back(self) -> None:
        """Write device memory to the caller's writable arrays."""
        for segment in self.segments:
            if segment.host is not None and segment.host.flags.writeable:
                segment.host[...] = self.bytes[segment.base - GLOBAL:segment.end - GLOBAL]

    def find(self, low: int, high: int) -> Segment | None:
        """The segment that holds all bytes from ``low`` to ``high`` (exclusive)."""
        index = int(np.searchsorted(self.bases, np.uint64(max(low, 0) & (2**64 - 1)), "right")) - 1
        if index >= 0 and high <= self.segments[index].end:
            return self.segments[index]
        return None

    def inside(self, address: NDArray[Any], size: int) -> NDArray[np.bool_]:
        """Per address whether ``size`` bytes lie within one segment."""
        if not self.segments:
            return np.zeros(len(address), bool)
        index = np.searchsorted(self.bases, address, "right").astype(np.int64) - 1
        room = self.ends[np.maximum(index, 0)]
        inside = (index >= 0) & (address <= room) & (room - np.minimum(address, room) >= np.uint64(size))
        return np.asarray(inside, bool)

    def describe(self, address: int, size: int, space: str = "") -> str:
        """Where an address lies, in words: the array (or variable of ``space``) and the byte offset from its start."""
        if not self.segments:
            return f"address 0x{address:x}; the kernel was given no array"
        if address < ALIGN * 16:
            return f"address 0x{address:x}, a null pointer"

        def distance(segment: Segment) -> int:
            return max(segment.base - address, address + size - segment.end, 0)

        arrays = [segment for segment in self.segments if (segment.space == space if space else
                  not segment.name.startswith(("variable ", "parameter ")))]
        near = min(arrays or self.segments, key=distance)
        base, length, name = near.names[-1] if len(near.names) == 1 else min(
            near.names, key=lambda item: max(item[0] - address, address + size - item[0] - item[1], 0))
        offset = address - base
        if offset < 0:
            where = f"{-offset} bytes before its start"
        elif offset + size > length:
            where = f"byte {offset}, {offset + size - length} bytes past its end"
        else:
            where = f"byte {offset}"
        return f"{name} ({length} bytes) at {where}"
