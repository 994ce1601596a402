"""From arrays to a `Problem`: shapes checked, layouts recognised, batches merged. No array is touched here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import NamedTuple

from ..arrays.base import FLOAT, View, packed
from ..errors import InvalidValue
from ..problem import MAX_SIZE, Batch, Problem, Triangle


@dataclass(frozen=True, slots=True)
class Canonical:
    """What a product comes down to.

    Attributes:
        shape: of the result.
        copies: operands (``a``, ``b``, ``c``, or ``out``: a temporary in its place) that no kernel takes as they lie,
            with the shape that the copy is broadcast to. Where there are any, copy and canonicalise again.
        problem: what to run, where nothing is to be copied.
        swapped: B^T and A^T are the problem's A and B, for ``out`` is column-major or a column: C^T = B^T A^T.
        in_place: the matrix that beta scales is ``out`` itself, or none is read.
    """

    shape: tuple[int, ...]
    copies: dict[str, tuple[int, ...]]
    problem: Problem | None = None
    swapped: bool = False
    in_place: bool = True


class _Grid(NamedTuple):
    """Matrices by strides: ``rows x columns``, and for each batch dimension a step (0: broadcast)."""

    rows: int
    columns: int
    row: int
    column: int
    batch: tuple[int, ...]

    @property
    def transposed(self) -> _Grid:
        return _Grid(self.columns, self.rows, self.column, self.row, self.batch)


def canonicalise(a: View, b: View, c: View | None = None, out: View | None = None, *, alpha: float = 1.0,
                 beta: float = 0.0, trans_a: bool = False, trans_b: bool = False,
                 triangle: Triangle = Triangle.NONE, one_operand: bool = False,
                 sparse: bool = False) -> Canonical:
    """``alpha op(a) op(b) + beta c`` into ``out`` (None: new and packed), as a problem for a kernel.

    Args:
        a, b: ``(..., M, K)`` and ``(..., K, N)``, or 1-D as in the array API's ``matmul``.
        c: broadcastable to the result; not looked at where ``beta`` is 0.
        out: of the result's shape.
        alpha, beta: finite or not, already rounded to float32.
        trans_a, trans_b: transpose the last two dimensions first.
        triangle, one_operand, sparse: see `Problem`.

    Raises:
        InvalidValue: shapes that do not match (the message has both), or an ``out`` that overlaps itself.
    """
    given = {"a": a.shape, "b": b.shape}
    if trans_a:
        a = a.mT
    if trans_b:
        b = b.mT
    batch, shape = result_shape(a.shape, b.shape)
    m = a.shape[-2] if len(a.shape) > 1 else 1
    n = b.shape[-1] if len(b.shape) > 1 else 1
    k = a.shape[-1]
    if beta == 0:
        c = None
    if c is not None and not broadcasts(c.shape, shape):
        raise InvalidValue(f"c {c.shape} does not broadcast to the result {shape}; reshape c")
    if out is not None:
        if out.shape != shape:
            raise InvalidValue(f"out has shape {out.shape}, the result has {shape}; pass an out of that shape")
        if out.strides is not None and not distinct(out.shape, out.strides):
            raise InvalidValue(f"out has strides {out.strides} (elements) for shape {out.shape}: its elements overlap; "
                               "pass an array with an element of its own for each result")
    if not prod(shape):
        empty = Batch() if m == 0 or n == 0 else Batch((0,), (0,), (0,), (0,), (0,))
        lds = max(k, 1), max(n, 1), max(n, 1)
        return Canonical(shape, {}, Problem(m, n, k, *lds, alpha, beta, batch=empty))

    copies: dict[str, tuple[int, ...]] = {}
    reads = alpha != 0 and k > 0
    view_a, view_b = (a, b) if reads else (View.packed(a.shape), View.packed(b.shape))  # unread, they lie anyhow
    for name, view in (("a", view_a), ("b", view_b), ("out", out), ("c", c)):
        if view is not None and (view.pointer % FLOAT or _backwards(view)):
            copies[name] = given.get(name, view.shape)
    if copies:
        return Canonical(shape, copies)
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    grid_a = _grid(view_a, batch, m, k, (vector_a, False))
    grid_b = _grid(view_b, batch, k, n, (False, vector_b))
    grid_c = _grid(out or View(0, shape, packed(shape)), batch, m, n, (vector_a, vector_b))
    grid_c0 = grid_c if c is None else _grid(c, batch, m, n, (vector_a, vector_b))
    in_place = c is None or (out is not None and c.pointer == out.pointer and grid_c0 == grid_c)
    if in_place:
        grid_c0 = grid_c
    if _stored(grid_c) is None:
        return Canonical(shape, {"out": shape})
    grids = [grid_a, grid_b, grid_c, grid_c0]
    swapped = not _row_major(grid_c)
    if swapped:
        grids = _exchanged(grids)
    sizes, grids = _folded(batch, grids, triangle is Triangle.NONE)
    if grids[2].columns == 1 < grids[2].rows and grids[2].row == 1:  # a column without gaps is stored as a row
        grids, swapped = _exchanged(grids), not swapped
    names = ("b", "a") if swapped else ("a", "b")
    layouts = [_stored(x) for x in grids[:2]]
    for name, layout in zip(names, layouts, strict=True):
        if layout is None:
            copies[name] = given[name]
    shapes = given | {"out": shape} | ({} if c is None else {"c": shape})
    merged, to_merge = _merged(batch, shapes, (*names, "out", "c"), sizes, grids)
    copies |= to_merge
    if copies:
        return Canonical(shape, copies)
    (lda, trans_a), (ldb, trans_b) = (x for x in layouts if x is not None)
    ldc = grids[2].row if grids[2].rows > 1 else _round_up(grids[2].columns)
    first, second = (view_b, view_a) if swapped else (view_a, view_b)
    c_alignment = 16 if out is None else out.alignment
    return Canonical(shape, {}, Problem(
        grids[0].rows, grids[1].columns, k, lda, ldb, ldc, alpha, beta,
        (first.alignment, second.alignment, c_alignment), trans_a, trans_b,
        None if in_place else (grids[3].row, grids[3].column), merged,
        triangle=triangle.flipped if swapped else triangle, one_operand=one_operand, sparse=sparse), swapped, in_place)


def result_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The batch of ``a b`` and the shape of the result, by the rules of the array API's ``matmul``.

    Raises:
        InvalidValue: shapes that do not match.
    """
    shapes = f"a {tuple(a)} and b {tuple(b)}"
    if not a or not b:
        raise InvalidValue(f"{shapes}: a 0-D array is no matrix; multiply by a number with *, or pass alpha to gemm")
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise InvalidValue(f"{shapes} do not match: the columns of a ({a[-1]}) must be the rows of b ({inner})")
    left, right = a[:-2], b[:-2]
    rank = max(len(left), len(right))
    batch = []
    for x, y in zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True):
        if x != y and 1 not in (x, y):
            raise InvalidValue(f"{shapes} do not match: their batch dimensions must be equal or 1 ({x} and {y})")
        batch.append(y if x == 1 else x)
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return tuple(batch), (*batch, *rows, *columns)


def broadcasts(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether an array of ``shape`` broadcasts to ``into``."""
    return len(shape) <= len(into) and all(
        size in (1, whole) for size, whole in zip(reversed(shape), reversed(into), strict=False))


def distinct(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether each element has its own place: every stride steps over all that the smaller ones reach.

    Sufficient, not necessary; layouts that dimensions interleave are refused too.
    """
    if 0 in shape:
        return True
    reach = 0
    for step, size in sorted((abs(step), size) for step, size in zip(strides, shape, strict=True) if size > 1):
        if step <= reach:
            return False
        reach += step * (size - 1)
    return True


def _backwards(view: View) -> bool:
    """Strides that no kernel is given: negative ones, or none that count in elements."""
    return view.strides is None or any(
        step < 0 and size > 1 for step, size in zip(view.strides, view.shape, strict=True))


def _grid(view: View, batch: tuple[int, ...], rows: int, columns: int, dropped: tuple[bool, bool]) -> _Grid:
    """An array broadcast to ``(*batch, rows, columns)``, with the dimensions, rows or columns, that it has ``dropped``
    put back. Steps are 0 where it has one element or none of a dimension."""
    strides = view.strides or ()
    steps = [step if size != 1 else 0 for size, step in zip(view.shape, strides, strict=True)]
    steps = [0] * (len(batch) + 2 - sum(dropped) - len(steps)) + steps
    if dropped[1]:
        steps.append(0)
    if dropped[0]:
        steps.insert(len(steps) - 1, 0)
    return _Grid(rows, columns, steps[-2], steps[-1], tuple(steps[:-2]))


def _stored(x: _Grid) -> tuple[int, bool] | None:
    """(leading dimension, transposed) of a matrix with a unit stride; None: it has none, or rows overlap.

    Where a dimension has one element its stride means nothing; the leading dimension is then a
    multiple of 4, which vector copies like. A column is taken as contiguous along its rows.
    """
    plain, flipped = _row_major(x), _row_major(x.transposed)
    if plain and not (flipped and x.columns <= 1 < x.rows):
        return (x.row if x.rows > 1 else _round_up(x.columns)), False
    if flipped:
        return (x.column if x.columns > 1 else _round_up(x.rows)), True
    return None


def _row_major(x: _Grid) -> bool:
    return (x.columns <= 1 or x.column == 1) and (x.rows <= 1 or x.row >= max(x.columns, 1))


def _exchanged(grids: list[_Grid]) -> list[_Grid]:
    """C^T = B^T A^T."""
    a, b, c, c0 = (x.transposed for x in grids)
    return [b, a, c, c0]


def _round_up(size: int) -> int:
    return max(4, -(-size // 4) * 4)


def _folded(sizes: tuple[int, ...], grids: list[_Grid], whole: bool) -> tuple[tuple[int, ...], list[_Grid]]:
    """Batch dimensions over which B is one matrix become rows: one tall product instead of many small ones, where each
    result is wanted ``whole``."""
    kept = [i for i, size in enumerate(sizes) if size != 1]
    sizes = tuple(sizes[i] for i in kept)
    grids = [x._replace(batch=tuple(x.batch[i] for i in kept)) for x in grids]
    while sizes and whole:
        a, b, c, c0 = grids
        size, tall = sizes[-1], [_taller(x, sizes[-1]) for x in (a, c, c0)]
        if b.batch[-1] != 0 or a.rows * size > MAX_SIZE or None in tall:
            break
        joined = [x for x in tall if x is not None]
        if _stored(joined[0]) is None or not _row_major(joined[1]):
            break
        sizes = sizes[:-1]
        grids = [joined[0], b._replace(batch=b.batch[:-1]), joined[1], joined[2]]
    return sizes, grids


def _taller(x: _Grid, size: int) -> _Grid | None:
    """The innermost batch dimension as more rows, where it steps on evenly from one matrix to the next."""
    step = x.batch[-1]
    if x.rows != 1 and step != x.rows * x.row:
        return None
    return x._replace(rows=x.rows * size, row=step if x.rows == 1 else x.row, batch=x.batch[:-1])


def _merged(batch: tuple[int, ...], shapes: dict[str, tuple[int, ...]], names: tuple[str, ...], sizes: tuple[int, ...],
            grids: list[_Grid]) -> tuple[Batch, dict[str, tuple[int, ...]]]:
    """The batch in the few dimensions that kernels take, and the fewest elements to copy so that it merges.

    A copy is as large as the batch.
    """
    full = {name: shape if name in ("out", "c") else (*batch, *shape[-2:]) for name, shape in shapes.items()}
    choices = [some for count in range(len(full) + 1) for some in combinations(full, count)]
    if len(sizes) > 1:
        choices.sort(key=lambda some: sum(prod(full[name]) for name in some))
    for some in choices:
        try:
            steps = (packed(sizes) if name in some else x.batch for name, x in zip(names, grids, strict=True))
            return Batch.merged(sizes, *steps), {name: full[name] for name in some}
        except InvalidValue:
            continue
    return Batch(), full
