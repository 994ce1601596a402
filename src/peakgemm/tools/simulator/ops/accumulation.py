"""Sums of products as tensor cores form them.

The products of one hardware step and the addend are aligned to the largest exponent among them, where a product has
the sum of its factors' exponents (1.5 x 1.5 counts as below 2, and a subnormal as if it were none); a few bits beyond
float32's last place at that exponent are kept, the rest of each term is cut off toward zero; the terms are added
exactly and the sum is rounded toward zero to float32. An instruction of more products than a step has is several steps.

`WIDTHS` is the one table of what differs between generations. Hopper's instructions on float16 are bit-equal to an H100
(tests/gpu, results/h100/hashes.json). The other rows are from Xie et al., "MMA-Sim: Bit-Accurate Reference Model of
Tensor Cores and Matrix Cores", 2025, and Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", 2025, and were
not measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.floats import NAN32, narrow
from ..front.ptx import Instruction

Array = NDArray[Any]
NONE = -(1 << 20)  # the exponent of a zero: below all others
LEAST = -126  # the smallest exponent of alignment
HALF = -14  # and of a float16 that is not subnormal


@dataclass(frozen=True, slots=True)
class Widths:
    """``step``: products added at once; ``extra``: bits kept below float32's last place at the largest exponent;
    ``least``: the smallest exponent that a factor counts with."""

    step: int
    extra: int
    least: int = LEAST


# By the generation's first architecture, the instruction, and the type of A and B.
WIDTHS = {
    (70, "mma", "f16"): Widths(4, 0, HALF),
    (80, "mma", "f16"): Widths(8, 1, HALF),
    (80, "mma", "bf16"): Widths(8, 1),
    (80, "mma", "tf32"): Widths(4, 1),
    (90, "mma", "f16"): Widths(16, 2, HALF),
    (90, "mma", "bf16"): Widths(16, 2),
    (90, "mma", "tf32"): Widths(8, 2),
    (90, "wgmma", "f16"): Widths(16, 2, HALF),
    (90, "wgmma", "bf16"): Widths(16, 2),
    (90, "wgmma", "tf32"): Widths(8, 2),
}


def widths(ins: Instruction, number: int, instruction: str, kind: str) -> Widths:
    """The row of `WIDTHS` for ``sm_<number>``.

    Raises:
        UnknownInstruction: no generation up to this one has the instruction.
    """
    first = max((row[0] for row in WIDTHS if row[1:] == (instruction, kind) and row[0] <= number), default=None)
    if first is None:
        raise ins.unknown(f"sm_{number} has no {instruction} of .{kind}; compile for a later architecture")
    return WIDTHS[first, instruction, kind]


def exponents(x: Array, least: int = NONE) -> Array:
    """Of finite ``x`` the exponents as int32, ``least`` at the least, `NONE` for zeros; of others 0."""
    finite = np.isfinite(x)
    out = np.maximum(np.frexp(np.where(finite, x, 0))[1].astype(np.int32) - 1, least)
    out[x == 0] = NONE
    return np.asarray(np.where(finite, out, 0))


def accumulate(a: Array, b: Array, c: Array, width: Widths) -> Array:
    """``c + a b^T``; ``a (g, m, k)``, ``b (g, n, k)``, ``c (g, m, n)`` and the result: float64 holding float32."""
    ea, eb = exponents(a, width.least), exponents(b, width.least)
    special = not (np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all())
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, a.shape[2], width.step):
            part = slice(start, min(start + width.step, a.shape[2]))
            total = _step(a[:, :, part], b[:, :, part], c, ea[:, :, part], eb[:, :, part], width.extra)
            if special:  # IEEE decides about infinities and NaN, in any order
                plain = c + np.matmul(a[:, :, part], b[:, :, part].transpose(0, 2, 1))
                total = np.where(np.isfinite(plain), total, plain)
            c = total
    return c


def _step(a: Array, b: Array, c: Array, ea: Array, eb: Array, extra: int) -> Array:
    """One step; the exponents of ``a`` and ``b`` are given."""
    count = a.shape[2]
    top = np.maximum(exponents(c), LEAST)
    work = np.empty(top.shape, np.int32)
    for k in range(count):
        np.add(ea[:, :, k, None], eb[:, None, :, k], out=work)
        np.maximum(top, work, out=top)
    # Terms in units of the last bit that is kept: whole numbers below 2**31, so float64 adds them exactly.
    unit = np.ldexp(1.0, 23 + extra - top)
    total = np.trunc(c * unit)
    term = np.empty(total.shape)
    for k in range(count):
        np.multiply(a[:, :, k, None], b[:, None, :, k], out=term)
        term *= unit
        np.trunc(term, out=term)
        total += term
    total /= unit
    return narrow(total, np.float32, "rz").astype(np.float64)


def to_bits(total: Array) -> Array:
    """Float64 holding float32 to the bits of float32, NaN the canonical one."""
    return np.asarray(np.where(np.isnan(total), NAN32, total.astype(np.float32).view(np.uint32)))
