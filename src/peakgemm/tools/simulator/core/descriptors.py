"""Matrix descriptors of wgmma: where the 16-byte rows of an operand lie in shared memory.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format". A row is 16
contiguous bytes: elements along K (K-major) or along M or N (MN-major, 16-bit types only). Offsets in rows, for an
operand of ``mn`` by ``k`` elements, with a swizzle span of ``w`` rows (1, 2, 4 or 8), S and L the stride and leading
byte offsets over 16:

=========  =====================================  ===========================================
layout     element group along MN                 along K
=========  =====================================  ===========================================
K-major    ``i``: ``(i % 8) w + (i // 8) S``      row ``j``: ``j`` (no swizzle: ``j L``)
MN-major   row ``i``: ``i % w + (i // w) L``      ``j``: ``(j % 8) w + (j // 8) S``
MN-major,  row ``i``: ``i S``                     ``j``: ``j % 8 + (j // 8) L``
no swizzle
=========  =====================================  ===========================================

A swizzle exchanges rows of 16 bytes by address: of a span of 32, 64 or 128 bytes bits 4, 4-5 or 4-6 are combined by
exclusive or with bits 7, 7-8 or 7-9 of the address.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROW = 16  # bytes
SPAN = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes, by the descriptor's swizzle mode
NAMES = {"none": 16, "32B": 32, "64B": 64, "128B": 128}  # the same by name


def swizzle(address: Array, span: int) -> Array:
    """Byte addresses as the swizzle of ``span`` bytes (16: none) places them."""
    return np.asarray(address ^ (address >> 3 & span - 1 & ~(ROW - 1)))


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The fields of a 64-bit matrix descriptor; offsets in bytes, ``span`` 16, 32, 64 or 128 bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    span: int

    @staticmethod
    def decode(bits: int) -> Descriptor:
        """From the 64 bits."""
        def field(low: int, count: int) -> int:
            return bits >> low & (1 << count) - 1

        return Descriptor(field(0, 14) * ROW, field(16, 14) * ROW, field(32, 14) * ROW, field(49, 3),
                          SPAN[field(62, 2)])

    def rows(self, mn: int, k: int, size: int, transposed: bool) -> Array:
        """Byte addresses ``(rows, columns)`` of the operand's 16-byte rows, swizzled.

        K-major ``(mn, k size / 16)``; ``transposed`` (MN-major) ``(k, mn size / 16)``. ``size`` is the bytes of an
        element.
        """
        shape = (self.leading, self.stride, self.span)
        return swizzle(self.start + _offsets(*shape, mn, k, size, transposed), self.span)


@lru_cache(maxsize=256)
def _offsets(leading: int, stride: int, span: int, mn: int, k: int, size: int, transposed: bool) -> Array:
    wide = span // ROW
    if not transposed:
        i, j = np.arange(mn)[:, None], np.arange(k * size // ROW)
        return i % 8 * span + i // 8 * stride + j * (ROW if wide > 1 else leading)
    j, i = np.arange(k)[:, None], np.arange(mn * size // ROW)
    if wide == 1:
        return i * stride + j % 8 * ROW + j // 8 * leading
    return i % wide * ROW + i // wide * leading + j % 8 * span + j // 8 * stride
