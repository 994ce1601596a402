"""Tensor maps, for kernels whose copies the copy engine makes: 128 bytes that the driver encodes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from . import driver

BYTES, ALIGN = 128, 64  # of a CUtensorMap (cuda.h)
MAX_LD = (1 << 40) // 4 - 4  # elements: a pitch has less than 2**40 bytes
MAX_SIDE = 256  # elements of a box
SPANS = {32: "32B", 64: "64B", 128: "128B"}  # bytes, with what a map calls the swizzle
# Of cuda.h: CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_SWIZZLE_*.
_FLOAT32, _L2_128B = 7, 2
_SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}


@dataclass(frozen=True, slots=True)
class Box:
    """What a map says of one operand: a float32 matrix ``(rows, columns)``, ``ld`` elements from row to row, of which a
    copy moves ``box_rows`` x ``box_columns``; what lies outside arrives as zeros.

    ``operand`` is 0 for A and 1 for B. ``swizzled``: within rows of the box, 32, 64 or 128 bytes long, the chunks of 16
    bytes are exchanged, so that eight rows' chunks of one place lie in different banks. ``within``: so many bytes
    behind the workspace's start the matrix lies, instead of where the operand does.
    """

    operand: int
    rows: int
    columns: int
    ld: int
    box_rows: int
    box_columns: int
    swizzled: bool = False
    within: int | None = None

    @property
    def swizzle(self) -> str:
        """``none``, ``32B``, ``64B`` or ``128B``."""
        return SPANS[4 * self.box_columns] if self.swizzled else "none"


def encode(box: Box, address: int) -> ctypes.Array[ctypes.c_uint64]:
    """The map of a matrix at the device address ``address``, a multiple of 16, as an argument of a launch.

    Raises:
        LaunchFailed: the driver's refusal, or a driver without tensor maps.
    """
    room = ctypes.create_string_buffer(BYTES + ALIGN)  # the driver wants a multiple of 64
    found = (ctypes.c_uint64 * (BYTES // 8)).from_buffer(room, -ctypes.addressof(room) % ALIGN)
    driver.demand(f"a tensor map of {box} at 0x{address:x}", "cuTensorMapEncodeTiled",
                  ctypes.byref(found), _FLOAT32, 2, ctypes.c_void_p(address),
                  (ctypes.c_uint64 * 2)(box.columns, box.rows), (ctypes.c_uint64 * 1)(4 * box.ld),
                  (ctypes.c_uint32 * 2)(box.box_columns, box.box_rows), (ctypes.c_uint32 * 2)(1, 1),
                  0, _SWIZZLES[box.swizzle], _L2_128B, 0)
    return found
