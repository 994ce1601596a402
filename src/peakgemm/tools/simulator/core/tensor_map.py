"""Tensor maps: what a copy of a box between global and shared memory knows of the array in global memory.

A real ``CUtensorMap`` is 128 opaque bytes that the driver encodes. Here it is a `TensorMap`, passed as the argument of
a ``const __grid_constant__ CUtensorMap`` parameter; in parameter memory stand 128 bytes that name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidType, InvalidValue
from .descriptors import NAMES, swizzle

Array = NDArray[Any]
SIZES = {"u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
OF_NUMPY = {"u1": "u8", "u2": "u16", "u4": "u32", "i4": "s32", "u8": "u64", "i8": "s64", "f2": "f16", "f4": "f32",
            "f8": "f64"}  # fmt: skip
BYTES = 128  # of an encoded map
MAGIC = b"peakgemm tensor map\0\0\0\0\0"


class TensorMap:
    """A tensor of 1 to 5 dimensions in an array, and the box that one copy moves; innermost dimension first.

    As ``cuTensorMapEncodeTiled`` without interleaving; what lies outside the tensor reads as zero and is not written.

    Args:
        array: its first element is the tensor's; ``box`` alone describes a C-contiguous array whole.
        box: elements per dimension of the box.
        dims: the tensor's elements per dimension; left out: the array's shape, innermost first.
        strides: bytes from one element to the next, of every dimension but the innermost.
        dtype: u8, u16, u32, s32, u64, s64, f16, bf16, f32 or f64; left out: the array's. bfloat16 comes as uint16.
        element_strides: of every dimension, every how manieth element is copied; the innermost one's is ignored.
        swizzle: ``"none"``, ``"32B"``, ``"64B"`` or ``"128B"``; the box's rows must be as long as the span.

    Raises:
        InvalidValue: what the driver would refuse: sizes, strides not multiples of 16, rows of the box that are
            no multiple of 16 bytes or do not fit the swizzle. Or a tensor that reaches past its array.
        InvalidType: ``array`` is no NumPy array, or of a type that no map has.
    """

    def __init__(self, array: Array, box: Sequence[int], dims: Sequence[int] | None = None,
                 strides: Sequence[int] | None = None, dtype: str | None = None,
                 element_strides: Sequence[int] | None = None, swizzle: str = "none") -> None:
        if not isinstance(array, np.ndarray):
            raise InvalidType(f"the tensor is a {type(array).__name__}; pass a NumPy array for its memory")
        kind = OF_NUMPY.get(array.dtype.str[1:], "") if dtype is None else dtype
        if kind not in SIZES:
            raise InvalidType(f"dtype {dtype or array.dtype} is none of {', '.join(SIZES)}; view the array as one")
        self.array, self.dtype, self.size = array, kind, SIZES[kind]
        if dims is None and array.dtype.itemsize != self.size:
            raise InvalidValue(f"the array's elements have {array.dtype.itemsize} bytes, those of .{kind} {self.size}; "
                               "pass dims")
        self.dims = tuple(int(n) for n in (array.shape[::-1] if dims is None else dims))
        rank = len(self.dims)
        if strides is None:
            strides = ([int(n) for n in array.strides[-2::-1]] if dims is None else
                       [self.size * prod(self.dims[:axis]) for axis in range(1, rank)])
        self.strides = (self.size, *(int(n) for n in strides))
        self.box = tuple(int(n) for n in box)
        self.element_strides = (1, *(int(n) for n in (element_strides or (1,) * rank)[1:]))
        self.swizzle = swizzle
        self._check(rank)
        self.count = tuple(-(-n // step) for n, step in zip(self.box, self.element_strides, strict=True))
        self.bytes = prod(self.count) * self.size

    def _check(self, rank: int) -> None:
        if not 1 <= rank <= 5 or any(len(x) != rank for x in (self.strides, self.box, self.element_strides)):
            raise InvalidValue(f"dims {self.dims}, box {self.box}, strides {self.strides[1:]}, element_strides "
                               f"{self.element_strides}: give 1 to 5 dims, as many of box and element_strides, and a "
                               "stride fewer")
        for name, values, low, high, step in (("dims", self.dims, 1, 1 << 32, 1), ("box", self.box, 1, 256, 1),
                                              ("strides", self.strides[1:], 16, (1 << 40) - 16, 16),
                                              ("element_strides", self.element_strides, 1, 8, 1)):
            for value in values:
                if not low <= value <= high or value % step:
                    raise InvalidValue(f"{name} {values}: {value} must be from {low} to {high}"
                                       + (f" and a multiple of {step}; pad the rows" if step > 1 else ""))
        if self.swizzle not in NAMES:
            raise InvalidValue(f"swizzle {self.swizzle!r} is none of {', '.join(NAMES)}")
        row, span = self.box[0] * self.size, NAMES[self.swizzle]
        if row % 16:
            raise InvalidValue(f"box {self.box} of .{self.dtype} has rows of {row} bytes, no multiple of 16; widen it")
        if self.swizzle != "none" and row != span:
            raise InvalidValue(f"box {self.box} of .{self.dtype} has rows of {row} bytes, a swizzle of {self.swizzle} "
                               f"is simulated for rows of {span}; pass box[0] = {span // self.size}")
        last = sum((n - 1) * step for n, step in zip(self.dims, self.strides, strict=True)) + self.size
        held = self.array.itemsize + sum((n - 1) * step for n, step in
                                         zip(self.array.shape, self.array.strides, strict=True))
        if last > (held if self.array.size else 0):
            raise InvalidValue(f"the tensor (dims {self.dims}, strides {self.strides[1:]}) takes {last} bytes, its "
                               f"array has {held if self.array.size else 0}; pass dims that lie within it")

    def encode(self, number: int) -> bytes:
        """The bytes that stand for it in device memory, ``number`` its place among the run's maps."""
        return (MAGIC + number.to_bytes(8, "little")).ljust(BYTES, b"\0")

    def elements(self, corner: Sequence[int]) -> tuple[Array, Array]:
        """The box at ``corner``: per element the byte offset in the tensor, and whether it lies inside; box order."""
        offset, inside = np.zeros((), np.int64), np.ones((), bool)
        for start, count, step, size, stride in zip(corner, self.count, self.element_strides, self.dims, self.strides,
                                                    strict=True):
            at = start + step * np.arange(count)
            good = (at >= 0) & (at < size)
            at = np.where(good, at, 0)
            axes = (count,) + (1,) * offset.ndim
            offset = offset + (at * stride).reshape(axes)
            inside = inside & good.reshape(axes)
        return offset.reshape(-1), inside.reshape(-1)

    def places(self, to: int) -> Array:
        """Where the box's 16-byte rows lie in shared memory that begins at ``to``, in box order."""
        return swizzle(to + np.arange(0, self.bytes, 16), NAMES[self.swizzle])


def decode(data: bytes) -> int | None:
    """The number of the map that 128 bytes of device memory stand for; None if none."""
    return int.from_bytes(data[len(MAGIC):len(MAGIC) + 8], "little") if data.startswith(MAGIC) else None
