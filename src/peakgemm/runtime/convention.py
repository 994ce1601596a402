"""How a kernel takes its parameters, as data: for the launcher, and for the simulator."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from .float_flags import ieee_flags


def pack(layout: str, *values: Any) -> bytes:
    """`struct.pack`, which keeps subnormal floats in a thread whose flags make zeros of them."""
    with ieee_flags():
        return struct.pack(layout, *values)


@dataclass(frozen=True, slots=True)
class Convention:
    """A kernel's calling convention: addresses come first, then values, then tensor maps.

    Attributes:
        addresses: which of A, B, the matrix that beta scales, C and the workspace it takes, as indices 0 to 4.
        values: the types of its values, as codes of `struct`; empty: it takes one struct.
        dependent: its blocks may start before the kernel ahead in the stream has ended, and wait for that themselves
            (include/ptx/dependents.cuh).
    """

    addresses: tuple[int, ...] = (0, 1, 2, 3, 4)
    values: str = ""
    dependent: bool = True

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each value starts in what `pack` makes."""
        return tuple(struct.calcsize(self.values[:end]) - struct.calcsize(self.values[end - 1])
                     for end in range(1, len(self.values) + 1)) or (0,)

    def pack(self, *values: Any) -> bytes:
        """The bytes of values, by `pack`."""
        return pack(self.values, *values)

    def unpack(self, arguments: bytes) -> tuple[Any, ...]:
        """The values that `pack` made ``arguments`` of; a struct is its bytes."""
        return struct.unpack(self.values, arguments) if self.values else (arguments,)


LIBRARY = Convention()
