"""Strides to layouts, batches to levels, and what cannot be: `canonicalise` on numbers alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peakgemm.arrays.aliasing import overlaps
from peakgemm.arrays.base import View
from peakgemm.calls.canonical import canonicalise, result_shape
from peakgemm.errors import InvalidValue
from peakgemm.problem import Batch, Problem


def view(shape: tuple[int, ...], strides: tuple[int, ...], pointer: int = 4096) -> View:
    return View(pointer, shape, strides)


def canonical(a: View, b: View, **rest: object) -> Problem:
    result = canonicalise(a, b, **rest)  # type: ignore[arg-type]
    assert result.problem is not None, result.copies
    return result.problem


A, B = view((6, 8), (8, 1)), view((8, 4), (4, 1))
#: What a matrix of each shape and strides is: the names of the fields of the problem, and their values.
CANONICAL = {
    "a's rows": (A, B, {}, {"lda": 8, "trans_a": False, "ldb": 4, "trans_b": False}),
    "a's padded rows": (view((6, 8), (11, 1)), B, {}, {"lda": 11, "trans_a": False}),
    "a's columns": (view((6, 8), (1, 6)), B, {}, {"lda": 6, "trans_a": True}),
    "a's padded columns": (view((6, 8), (1, 9)), B, {}, {"lda": 9, "trans_a": True}),
    "b's padded rows": (view((4, 6), (6, 1)), view((6, 8), (11, 1)), {}, {"ldb": 11, "trans_b": False}),
    "b's padded columns": (view((4, 6), (6, 1)), view((6, 8), (1, 9)), {}, {"ldb": 9, "trans_b": True}),
    "a vector": (view((8,), (1,)), B, {}, {"m": 1, "n": 4, "trans_a": False}),
    "a vector behind, as a row of (1, 8) (8, 6)":
        (A, view((8,), (1,)), {}, {"m": 1, "n": 6, "trans_a": False, "trans_b": True, "ldb": 8}),
    "a strided vector behind": (A, view((8,), (3,)), {}, {"m": 1, "trans_a": True, "lda": 3}),
    "a vector behind a batch": (view((5, 6, 8), (48, 8, 1)), view((8,), (1,)), {}, {"m": 1, "n": 30, "batch": Batch()}),
    "a column into one with gaps": (A, view((8, 1), (1, 1)), {"out": view((6, 1), (9, 1))},
                                    {"m": 6, "n": 1, "ldc": 9, "trans_b": True}),
    "transposes": (view((8, 6), (6, 1)), view((4, 8), (8, 1)), {"trans_a": True, "trans_b": True},
                   {"m": 6, "n": 4, "k": 8, "layout": "TT", "lda": 6, "ldb": 8}),
    # A row's stride over one row, a column's over one column: whatever a library writes there.
    **{f"one row, {junk}": (view((1, 8), (junk, 1)), B, {}, {"lda": 8, "trans_a": False}) for junk in (0, -3, 1, 999)},
    **{f"one column, {junk}": (view((6, 1), (5, junk)), view((1, 4), (junk, 1)), {},
                               {"lda": 5, "trans_a": False, "ldb": 4}) for junk in (0, -3, 1, 999)},
}


@pytest.mark.parametrize("name", CANONICAL)
def test_canonical(name: str) -> None:
    a, b, options, fields = CANONICAL[name]
    problem = canonical(a, b, **options)
    assert {field: getattr(problem, field) for field in fields} == fields


@pytest.mark.parametrize("strides", [(16, 2), (-8, 1), (0, 1), (8, 0), (4, 1), (1, 3), (8, -1)])
def test_other_strides_are_copied(strides: tuple[int, int]) -> None:
    assert canonicalise(view((6, 8), strides), B).copies == {"a": (6, 8)}
    assert canonicalise(view((4, 6), (6, 1)), view((6, 8), strides)).copies == {"b": (6, 8)}


@pytest.mark.parametrize(("a", "options", "copies"), [
    (A, {"out": view((6, 4), (16, 2))}, {"out": (6, 4)}), (view((8, 6), (12, 2)), {"trans_a": True}, {"a": (8, 6)}),
    (view((6, 8), (8, 1), 4097), {}, {"a": (6, 8)}), (View(4096, (6, 8), None), {}, {"a": (6, 8)}),
])
def test_other_memory_is_copied(a: View, options: dict[str, Any], copies: dict[str, Any]) -> None:
    assert canonicalise(a, B, **options).copies == copies


def test_column_major_out_exchanges_the_operands() -> None:
    a, b = view((6, 8), (8, 1), 0x1000), view((8, 4), (4, 1), 0x2004)
    result = canonicalise(a, b, out=view((6, 4), (1, 7), 0x3008))
    p = result.problem
    assert p is not None and result.swapped
    assert (p.m, p.n, p.k, p.ldc) == (4, 6, 8, 7)
    assert (p.trans_a, p.lda, p.trans_b, p.ldb) == (True, 4, True, 8)  # B^T and A^T
    assert p.alignment == (4, 16, 8)


def test_batches() -> None:
    a, b = view((2, 3, 5, 7), (105, 35, 7, 1)), view((2, 3, 7, 4), (84, 28, 4, 1))
    assert canonical(a, b).batch == Batch((6,), (35,), (28,), (20,), (20,))
    shared = canonical(a, view((7, 4), (4, 1)))
    assert (shared.m, shared.lda, shared.batch) == (30, 7, Batch())
    first = canonical(view((5, 7), (7, 1)), b)
    assert first.batch == Batch((6,), (0,), (28,), (20,), (20,))
    rows = canonical(view((6, 1, 7), (9, 7, 1)), view((7, 4), (4, 1)))
    assert (rows.m, rows.lda, rows.batch) == (6, 9, Batch())


def test_a_batch_of_rows_that_overlap_stays_a_batch() -> None:
    """Rows 5 apart of 7 elements: no leading dimension says that, a batch stride does."""
    p = canonical(view((6, 1, 7), (5, 7, 1)), view((7, 4), (4, 1)))
    assert (p.m, p.batch.sizes, p.batch.a) == (1, (6,), (5,))


def test_more_levels_than_a_kernel_resolves() -> None:
    """Four dimensions that do not merge, for the sake of one operand: that one is copied, the smaller the better."""
    sizes = (2, 3, 2, 3)
    odd = view((*sizes, 4, 4), (1000, 300, 100, 20, 4, 1))
    even = view((*sizes, 4, 4), (288, 96, 48, 16, 4, 1))
    assert canonicalise(odd, even).copies == {"a": (*sizes, 4, 4)}
    assert canonicalise(even, odd).copies == {"b": (*sizes, 4, 4)}
    crossed = canonicalise(view((2, 1, 2, 1, 4, 4), (32, 32, 16, 16, 4, 1)), view((3, 1, 3, 4, 4), (48, 48, 16, 4, 1)))
    assert crossed.copies and set(crossed.copies) <= {"a", "b"}


def test_c_broadcasts_by_strides() -> None:
    a, b = A, B
    for c, steps in ((view((4,), (1,)), (0, 1)), (view((6, 1), (3, 1)), (3, 0)), (view((), ()), (0, 0)),
                     (view((6, 4), (2, 12)), (2, 12))):
        assert canonical(a, b, c=c, beta=1.0).c0 == steps
    out = view((6, 4), (4, 1), 0x9000)
    assert canonical(a, b, c=out, out=out, beta=1.0).c0 is None
    assert canonical(a, b, c=view((4,), (1,)), beta=0.0).c0 is None
    batch = canonical(view((5, 6, 8), (48, 8, 1)), view((5, 8, 4), (32, 4, 1)), c=view((5, 1, 1), (1, 1, 1)), beta=1.0)
    assert (batch.c0, batch.batch.c0) == ((0, 0), (1,))


def test_nothing_to_read() -> None:
    """K = 0 or alpha = 0: strides and addresses of A and B do not matter."""
    assert canonical(view((6, 0), (0, 0), 3), view((0, 4), (1, -4), 5)).k == 0
    assert canonical(view((6, 8), (-1, 3), 3), view((8, 4), (0, 0), 5), alpha=0.0).alignment == (16, 16, 16)
    empty = canonical(view((0, 6, 8), (48, 8, 1)), view((8, 4), (4, 1)))
    assert (empty.m, empty.batch.count) == (6, 0)


@pytest.mark.parametrize(("a", "b", "match"), [
    ((3, 4), (5, 6), r"a \(3, 4\) and b \(5, 6\) do not match: the columns of a \(4\) must be the rows of b \(5\)"),
    ((4,), (5,), r"a \(4,\) and b \(5,\) do not match"),
    ((2, 3, 4), (3, 4, 5), r"batch dimensions must be equal or 1 \(2 and 3\)"),
    ((), (3, 4), "a 0-D array is no matrix"), ((3, 4), (), "a 0-D array is no matrix"),
])
def test_shapes_that_do_not_match(a: tuple[int, ...], b: tuple[int, ...], match: str) -> None:
    with pytest.raises(InvalidValue, match=match):
        result_shape(a, b)


@pytest.mark.parametrize("a", [(3,), (2, 3), (5, 2, 3), (1, 2, 3), (4, 1, 2, 3)])
@pytest.mark.parametrize("b", [(3,), (3, 2), (5, 3, 2), (4, 5, 3, 2)])
def test_shapes_as_numpy_has_them(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert result_shape(a, b)[1] == np.matmul(np.ones(a), np.ones(b)).shape


def test_wrong_out_and_c() -> None:
    for strides in ((0, 1), (1, 1), (2, 1)):
        with pytest.raises(InvalidValue, match="its elements overlap"):
            canonicalise(A, B, out=view((6, 4), strides))
    with pytest.raises(InvalidValue, match=r"out has shape \(4, 6\), the result has \(6, 4\)"):
        canonicalise(A, B, out=view((4, 6), (6, 1)))
    with pytest.raises(InvalidValue, match=r"c \(5,\) does not broadcast to the result \(6, 4\)"):
        canonicalise(A, B, c=view((5,), (1,)), beta=1.0)


def test_overlap_is_exact() -> None:
    left, right = view((64, 32), (64, 1)), view((64, 32), (64, 1), 4224)
    assert not overlaps(left, right) and overlaps(left, view((64, 32), (64, 1), 4220))
    assert overlaps(left, left) and not overlaps(left, view((0, 5), (5, 1), 4104))
    even, odd = view((100,), (2,)), view((100,), (2,), 4100)
    assert not overlaps(even, odd) and overlaps(even, view((100,), (3,), 4100))
    backwards = view((10,), (-1,), 4132)
    assert overlaps(backwards, view((1,), (1,), 4096)) and not overlaps(backwards, view((1,), (1,), 4136))
    # Strides that are no whole elements: a field of packed records of 6 bytes, the other field, and what lies apart.
    field = View(4096, (10,), None, (6,))
    assert overlaps(field, View(4100, (10,), None, (6,))) and not overlaps(field, View(8192, (10,), (1,)))
    assert not overlaps(View(4096, (10,), None, (8,)), View(4100, (10,), None, (8,)))
