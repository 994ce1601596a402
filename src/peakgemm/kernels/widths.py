"""How many floats a copy of an operand may take at once."""

from __future__ import annotations

from ..problem import Problem


def width(address: int, *strides: int) -> int:
    """4 where ``address`` is a multiple of 16 bytes and every stride, in floats, one of 4; else 1."""
    return 4 if address >= 16 and not any(stride % 4 for stride in strides) else 1


def widest(address: int, *strides: int) -> int:
    """The same with pairs: 2 where not quads, but multiples of 8 bytes and of 2 floats."""
    if width(address, *strides) == 4:
        return 4
    return 2 if address >= 8 and not any(stride % 2 for stride in strides) else 1


def widths(problem: Problem) -> tuple[int, int]:
    """Of A and of B: 4 where every row starts at 16 bytes, else 1."""
    p = problem
    return width(p.alignment[0], p.lda, *p.batch.a), width(p.alignment[1], p.ldb, *p.batch.b)


def whole_widths(problem: Problem) -> tuple[int, int]:
    """The same where every row is whole quads, too."""
    p, (a, b) = problem, widths(problem)
    return 1 if (p.m if p.trans_a else p.k) % 4 else a, 1 if (p.k if p.trans_b else p.n) % 4 else b


def layouts_and_widths(problem: Problem) -> dict[str, int]:
    """The macros of layouts, and of the width of copies along rows, which end with the operand.

    An operand with K contiguous is copied word by word whatever its alignment, so its width is not asked.
    """
    a, b = whole_widths(problem)
    return {"TRANS_A": int(problem.trans_a), "TRANS_B": int(problem.trans_b),
            "WIDTH_A": a if problem.trans_a else 1, "WIDTH_B": 1 if problem.trans_b else b}
