"""Division by a number known before the launch, as a multiplication: the host's half of `over` in
include/scheduler/gemm.cuh.

For a divisor d and 0 <= x < 2**31, with l = ceil(log2 d) and m = ceil(2**(31 + l) / d), x // d = x m >> 31 + l:
m d exceeds 2**(31 + l) by less than d <= 2**l, so x m exceeds the true multiple by less than 2**(31 + l) / d (Granlund
and Montgomery, "Division by Invariant Integers using Multiplication", 1994).
"""

from __future__ import annotations

# Ranges of k-steps: products of their number with a smaller one stay below 2**31.
MOST_PARTS = 46340


def divisor(d: int) -> tuple[int, int]:
    """Multiplier, below 2**32, and shift for 1 <= ``d`` < 2**31; of 0, which divides nothing, those of 1."""
    shift = max(d - 1, 0).bit_length()
    return -(-(1 << (31 + shift)) // max(d, 1)), shift
