"""Checksums of matrices by random signs: the launches of ``checksums.cu``, and the same sums by NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...runtime.architectures import architecture
from ..family import Launch
from .leaves import Strides, launch_of

VECTORS = 2             # random vectors on each side
HEAD = 2                # doubles before all others: the seed, and flags
_SLAB, _STEP, _THREADS = 256, 16, 128  # columns and rows of a block, its threads
_START, _PARTS, _SUM = range(3)
_SUMS = (1, VECTORS + 1, VECTORS + 2)  # of a row or column, by what is asked for
_COLUMNS, _ROWS = "signs by columns", "signs by rows"  # of the product


class Pass(NamedTuple):
    """One read of a matrix.

    Attributes:
        matrix: its name.
        rows, columns: the names of its rows' sums and its columns': products with each vector, if there are any; of the
            side that is weighted, sums of magnitudes; norms.
        right, left: the vectors that it is multiplied by on each side: random signs, by columns or rows of the product,
            or those of that name; "": none.
        weights, norm_weights: names of norms that weigh magnitudes, and elements of norms, on one side; "": neither.
        inverse: whether elements of norms are divided by their weights.
        of_columns: which side is weighted, or decides about the flag: the columns' sums, or else the rows'.
        row_mask, column_mask: names of norms; of rows and columns where they are not finite nothing is read.
        flag: which, 0 or 1; without a mask: set where a norm of the side is not finite; with one: the pass is skipped
            where it is not set, and the norms of the side that is masked stay. None: neither.
    """

    matrix: str
    rows: str
    columns: str
    right: str = ""
    left: str = ""
    weights: str = ""
    norm_weights: str = ""
    inverse: bool = False
    of_columns: bool = False
    row_mask: str = ""
    column_mask: str = ""
    flag: int | None = None

    @property
    def kinds(self) -> tuple[int, int]:
        """What is asked for of rows and of columns: see ``checksums.cu``."""
        return (bool(self.right) + bool(self.weights and not self.of_columns),
                bool(self.left) + bool(self.weights and self.of_columns))

    @property
    def mT(self) -> Pass:
        """The same of the transposed matrix."""
        return self._replace(rows=self.columns, columns=self.rows, right=self.left, left=self.right,
                             row_mask=self.column_mask, column_mask=self.row_mask, of_columns=not self.of_columns)


def passes(*, multiplies: bool, adds: bool) -> list[Pass]:
    """What is read, in this order, to check a product ``c`` of ``a`` and ``b``, and of ``c0`` where that ``adds``.

    ``b`` is read twice. Where it holds what is not finite, its columns that do are left out in a second pass; and so
    are such rows of ``a``. Sums of magnitudes are those of ``a`` and the norms of ``b``'s rows, and of ``b`` and the
    norms of ``a``'s columns; norms those of ``a D`` and ``D^-1 b``, where D has the norms of ``b``'s rows.
    """
    steps = []
    if multiplies:
        of_b = Pass("b", "bx", "b", _COLUMNS, of_columns=True, flag=0)
        of_a = Pass("a", "ax", "ya", "bx", _ROWS, "bx", "bx", flag=1)
        steps = [of_b, of_b._replace(column_mask="b"), of_a, of_a._replace(row_mask="ax"),
                 Pass("b", "unused", "yb", "", "ya", "ya", "bx", inverse=True, of_columns=True)]
    row_mask, column_mask = ("ax", "b") if multiplies else ("", "")
    of_c = Pass("c", "cx", "yc", _COLUMNS, _ROWS, row_mask=row_mask, column_mask=column_mask)
    return [*steps, of_c, *[of_c._replace(matrix="c0", rows="dx", columns="yd")] * adds]


class Layout:
    """Where the sums of some passes lie, in doubles from the start of what is kept of each matrix.

    Attributes:
        size: doubles in all.
    """

    def __init__(self, steps: Sequence[Pass], shapes: Mapping[str, tuple[int, int]]) -> None:
        self._places: dict[str, tuple[int, int, int]] = {}
        self.size = HEAD
        for step in steps:
            for name, kind, length in zip((step.rows, step.columns), step.kinds, shapes[step.matrix], strict=True):
                if name not in self._places:
                    self._places[name] = self.size, _SUMS[kind], length
                    self.size += _SUMS[kind] * length

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def start(self, name: str) -> int:
        """Where the sums of that name start; of signs a number below 0."""
        return {_COLUMNS: -1, _ROWS: -2, "": -1}[name] if name not in self._places else self._places[name][0]

    def norms(self, name: str) -> int:
        """Where the norms of that name start; -1: there is no name."""
        start, sums, length = self._places.get(name, (-1, 1, 0))
        return start + (sums - 1) * length

    def taken(self, kept: Any, name: str) -> Any:
        """The sums of that name, ``(..., sums, length)``."""
        start, sums, length = self._places[name]
        return kept[..., start:start + sums * length].reshape(*kept.shape[:-1], sums, length)


def start(arch: str, count: int, layout: Layout, seed: int) -> Launch:
    """C: seeds and cleared flags. ``seed`` 0: drawn when it runs."""
    return _launch(arch, 1, _START, Pass("", "", "", _COLUMNS, _ROWS), layout, Strides(0, 1), 0, 0, count, 1, seed)


def checksums(arch: str, step: Pass, layout: Layout, rows: int, columns: int, strides: Strides, count: int
              ) -> Sequence[Launch]:
    """The sums of a pass over the matrix A into C: two kernels, in their order, with the same addresses.

    The workspace: `workspace_floats`.
    """
    if strides.column != 1:  # the kernel reads the transpose, whose rows are contiguous
        step, rows, columns = step.mT, columns, rows
        strides = Strides(strides.column, strides.row, strides.batch)
    slabs, strips = _cut(arch, rows, columns, count, 2 if sum(step.kinds) == 3 else 3)
    sums = sum(_SUMS[kind] * length for kind, length in zip(step.kinds, (rows, columns), strict=True))
    return [_launch(arch, blocks, phase, step, layout, strides, rows, columns, count, strips)
            for phase, blocks in ((_PARTS, count * slabs * strips), (_SUM, count * -(-sums // _THREADS)))]


def workspace_floats(arch: str, rows: int, columns: int, count: int) -> int:
    """Floats that `checksums` need in the workspace, whichever way the matrix lies."""
    return max(2 * count * max(_SUMS) * (slabs * m + strips * n) for m, n in ((rows, columns), (columns, rows))
               for slabs, strips in [_cut(arch, m, n, count, 3)])


def _cut(arch: str, rows: int, columns: int, count: int, resident: int) -> tuple[int, int]:
    """Slabs of columns and strips of rows, for one wave of so many blocks an SM."""
    slabs, most = -(-columns // _SLAB), resident * architecture(arch).gpu_sms
    return slabs, max(1, min(-(-rows // _STEP), most // (slabs * count)))


def _launch(arch: str, blocks: int, phase: int, step: Pass, layout: Layout, strides: Strides, rows: int, columns: int,
            count: int, strips: int, seed: int = 0) -> Launch:
    masked = bool(step.row_mask or step.column_mask)
    flag = -1 if step.flag is None else step.flag
    where = (layout.start(step.right), layout.start(step.left), layout.norms(step.row_mask),
             layout.norms(step.column_mask), layout.norms(step.weights), layout.norms(step.norm_weights),
             layout.start(step.rows), layout.start(step.columns))
    numbers = (rows, columns, count, strips, phase, step.inverse, flag if masked else -1,
               -1 if masked or step.of_columns else flag, flag if step.of_columns and not masked else -1,
               seed & 0xFFFFFFFF, seed >> 32)
    right, left = step.kinds
    return launch_of("checksums", arch, blocks, "11q9i2I4x", strides.row, strides.batch, layout.size, *where, *numbers,
                     threads=_THREADS, macros={"RIGHT": right, "LEFT": left})


# ---- by NumPy ----------------------------------------------------------------------------------------------------

_CHUNK = 1 << 22  # elements that are converted to FP64 at a time


def by_numpy(steps: Sequence[Pass], layout: Layout, matrices: Mapping[str, Any], seed: int) -> Any:
    """What the kernels keep of one matrix of the batch."""
    kept = np.zeros(layout.size)
    kept[:1].view(np.uint32)[:] = seed & 0xFFFFFFFF, seed >> 32
    flags = [False, False]
    for step in steps:
        masked = bool(step.row_mask or step.column_mask)
        if masked and step.flag is not None and not flags[step.flag]:
            continue
        x, masks = matrices[step.matrix], (step.row_mask, step.column_mask)
        reads = [np.isfinite(layout.taken(kept, name)[-1]) if name else np.ones(length, bool)
                 for name, length in zip(masks, x.shape, strict=True)]
        weights = [np.where(reads[not step.of_columns], layout.taken(kept, name)[-1], 0)
                   for name in (step.weights, step.norm_weights) if name]
        if step.inverse:
            weights[1] = np.divide(1, weights[1], out=np.zeros_like(weights[1]), where=weights[1] > 0)
        found = [np.zeros((_SUMS[kind], length)) for kind, length in zip(step.kinds, x.shape, strict=True)]
        for first in range(0, x.shape[0], lines := max(1, _CHUNK // max(x.shape[1], 1))):
            part = slice(first, first + lines)
            values = x[part].astype(np.float64)
            values[~reads[0][part]] = 0
            values[:, ~reads[1]] = 0
            for sums, name, read, along, weighs, each in (
                    (found[0][:, part], step.right, reads[1], slice(None), not step.of_columns, values.T),
                    (found[1], step.left, reads[0], part, step.of_columns, values)):
                if name:
                    vectors = (signs(seed, name, len(read)) if name in (_COLUMNS, _ROWS)
                               else layout.taken(kept, name)[:VECTORS])
                    sums[:VECTORS] += np.where(read, vectors, 0)[:, along] @ each
                if weighs and weights:
                    sums[-2] += weights[0][along] @ abs(each)
                    each = each * weights[1][along, None]
                sums[-1] += (each * each).sum(0)
        for sums, name, mask, kind in zip(found, (step.rows, step.columns), masks, step.kinds, strict=True):
            sums[-1] = np.sqrt(sums[-1])
            # The norms by which lines were left out stay.
            new = slice(VECTORS * (kind > 0) if mask and step.flag is not None else None)
            layout.taken(kept, name)[new] = sums[new]
        if step.flag is not None and not masked:
            flags[step.flag] = not np.isfinite(found[step.of_columns][-1]).all()
    return kept


def signs(seed: int, which: str, length: int) -> Any:
    """The random signs of all vectors, ``(VECTORS, length)``, as the kernel draws them."""
    low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) + (-1 if which == _COLUMNS else -2) & 0xFFFFFFFF)
    bits = _mixed(_mixed(np.arange(length, dtype=np.uint32) + low) ^ high)
    return np.stack([1.0 - 2.0 * (bits >> np.uint32(31 - v) & np.uint32(1)) for v in range(VECTORS)])


def _mixed(x: Any) -> Any:
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7feb352d)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846ca68b)
    return x ^ x >> np.uint32(16)
