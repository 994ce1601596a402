"""mma.sync: D = A B + C of a warp, in fragments.

Sums of products: `accumulation`. Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k*".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.floats import bfloat_to_float, narrow
from ..core.lanes import Group
from ..front.ptx import Instruction, Vec
from .accumulation import accumulate, to_bits, widths
from .build import Build, Step, builder
from .warp import _back, _spread

Array = NDArray[Any]
LANE = np.arange(32)
ROW, COLUMN = LANE >> 2, LANE & 3
FLOATS = ("f16", "bf16", "tf32")


def unpack(registers: list[Array], kind: str) -> Array:
    """``(warps, 32, elements)`` values of a fragment, in order of register and half."""
    stack = np.stack(registers, axis=2)
    if kind == "tf32":
        return np.asarray((stack & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64))
    if kind in ("s8", "u8"):
        return np.asarray(stack.view(np.int8 if kind == "s8" else np.uint8).astype(np.float64))
    halves = np.ascontiguousarray(stack).view(np.uint16)
    values = bfloat_to_float(halves) if kind == "bf16" else halves.view(np.float16)
    return np.asarray(values.astype(np.float64))


def matrix_a(values: Array, k: int, per: int) -> Array:
    """Fragment of A to ``(warps, 16, k)``; ``per`` elements lie in one register."""
    out = np.zeros((len(values), 16, k))
    for element in range(values.shape[2]):
        register, part = divmod(element, per)
        row = ROW + 8 * (register & 1)
        column = COLUMN * per + part + (register >> 1) * 4 * per
        out[:, row, column] = values[:, :, element]
    return out


def _matrix_b(values: Array, k: int, per: int) -> Array:
    """Fragment of B to ``(warps, k, 8)``."""
    out = np.zeros((len(values), k, 8))
    for element in range(values.shape[2]):
        register, part = divmod(element, per)
        out[:, COLUMN * per + part + register * 4 * per, ROW] = values[:, :, element]
    return out


@builder("mma")
def mma(b: Build, ins: Instruction) -> Step:
    shape = ins.parts[3] if len(ins.parts) > 3 else ""
    kinds = ins.types
    if shape not in ("m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32") or len(kinds) != 4 or not ins.has("row", "col"):
        raise ins.unknown("only m16n8k4, k8, k16 and k32 of mma.sync are simulated")
    k = int(shape[6:])
    d_kind, a_kind, b_kind, c_kind = kinds
    integer = a_kind in ("s8", "u8")
    if (not integer and a_kind not in FLOATS) or (a_kind != b_kind and not integer) or ins.guard is not None:
        raise ins.unknown()
    if (d_kind, c_kind) not in (("f32", "f32"), ("s32", "s32"), ("f16", "f16")) or ins.has("satfinite"):
        raise ins.unknown()
    per = {"tf32": 1, "s8": 4, "u8": 4}.get(a_kind, 2)
    groups = [operand.items if isinstance(operand, Vec) else (operand,) for operand in ins.operands]
    fa, fb, fc = [[b.src(ins, item, "u32") for item in items] for items in groups[1:]]
    if len(fa) != 16 * k // 32 // per or len(fb) != 8 * k // 32 // per:
        raise ins.unknown("fragments of the wrong size")
    puts = [b.dst(ins, item, "b32") for item in groups[0]]
    width = None if integer else widths(ins, b.machine.arch, "mma", a_kind)

    def step(group: Group) -> None:
        if not group.lanes.full:
            b.machine.fault("divergent_warp", ins, "mma.sync by a warp without its 32 lanes", group.lanes.lanes)
        va = matrix_a(unpack([_spread(group, get(group), np.uint32) for get in fa], a_kind), k, per)
        vb = _matrix_b(unpack([_spread(group, get(group), np.uint32) for get in fb], b_kind), k, per)
        raw = np.stack([_spread(group, get(group), np.uint32) for get in fc], axis=2)
        vc = (raw.view(np.uint16).view(np.float16) if c_kind == "f16"
              else raw.view(np.int32 if integer else np.float32)).astype(np.float64)
        c = np.zeros((len(va), 16, 8))
        for element in range(4):
            c[:, ROW + 8 * (element >> 1), COLUMN * 2 + (element & 1)] = vc[:, :, element]
        if width is None:
            exact = np.rint(va @ vb + c).astype(np.int64)  # below 2**53, so exact
            out = exact.astype(np.uint32)
        else:
            total = accumulate(va, vb.transpose(0, 2, 1), c, width)
            if d_kind == "f16":
                out16 = narrow(total, np.float16, "rn").view(np.uint16)
            else:
                out = to_bits(total)
        for element, put in enumerate(puts):
            if d_kind == "f16":
                pair = [out16[:, ROW + 8 * element, COLUMN * 2 + half].astype(np.uint32) for half in (0, 1)]
                put(group, _back(group, pair[0] | pair[1] << np.uint32(16)))
            else:
                put(group, _back(group, out[:, ROW + 8 * (element >> 1), COLUMN * 2 + (element & 1)]))

    return step
