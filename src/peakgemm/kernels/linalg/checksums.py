"""Checksums of matrices by random signs: the launches of ``checksums.cu``, and the same sums by NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...runtime.architectures import architecture
from ..family import Launch
from .leaves import Strides, launch_of

VECTORS = 2             # random vectors on each side
HEAD = 3                # doubles before all others: the seed, flags, a counter
B_NOT_FINITE, A_NOT_FINITE, SUSPECT = range(3)  # the flags
SAMPLE = 256            # columns whose norms scale the inner dimension
_SLAB, _STEP, _THREADS = 256, 16, 128  # columns and rows of a block, its threads
_START, _PARTS, _SUM = range(3)
_SUMS = (0, VECTORS + 1, VECTORS + 2, 1)  # of a row or column, by `Side.kind`
_COLUMNS, _ROWS = "signs by columns", "signs by rows"  # of the product


class Side(NamedTuple):
    """What is asked of a matrix' rows, or of its columns.

    Attributes:
        to: the name of the sums: products with each vector, if there are any; magnitudes, if they are weighed; norms.
        vectors: random signs, by columns or rows of the product, or the products of that name; "": none.
        weights: the name of norms that weigh magnitudes; "": there are no magnitudes.
        scales: the name of norms by which elements are multiplied before norms are taken; "": they are not.
        inverse: whether they are divided instead.
        mask: the name of norms: where these are not finite the line is not read.
    """

    to: str = ""
    vectors: str = ""
    weights: str = ""
    scales: str = ""
    inverse: bool = False
    mask: str = ""

    @property
    def kind(self) -> int:
        """See ``checksums.cu``."""
        return 0 if not self.to else 3 if not self.vectors else 2 if self.weights else 1

    @property
    def is_weighted(self) -> bool:
        """Whether anything is weighed."""
        return bool(self.weights or self.scales)


class Pass(NamedTuple):
    """One read of a matrix.

    Attributes:
        matrix: its name.
        rows, columns: what is asked of them; one of them, at most, is weighted.
        wanted: the flag without which the pass is left out; None: always taken. A pass that repeats one with fewer
            lines leaves the norms by which they were left out.
        row_flag, column_flag: to be set where norms are not finite.
        judging: whether its products tell rows that look wrong, for `SUSPECT`.
        sampled: whether the first `SAMPLE` columns alone are read.
    """

    matrix: str
    rows: Side = Side()
    columns: Side = Side()
    wanted: int | None = None
    row_flag: int | None = None
    column_flag: int | None = None
    judging: bool = False
    sampled: bool = False

    @property
    def mT(self) -> Pass:
        """The same of the transposed matrix."""
        return self._replace(rows=self.columns, columns=self.rows, row_flag=self.column_flag, column_flag=self.row_flag)

    def shape(self, whole: tuple[int, int]) -> tuple[int, int]:
        """Of what is read of a matrix of a shape."""
        return whole[0], min(whole[1], SAMPLE) if self.sampled else whole[1]


def passes(*, multiplies: bool, adds: bool) -> list[Pass]:
    """What is read, in this order, to check a product ``c`` of ``a`` and ``b``, and of ``c0`` where that ``adds``.

    Every matrix is read once, for sums of rows. Norms are those of ``a D`` and ``D^-1 b``, where D has norms of rows of
    ``b``, of its first columns. Where ``b`` holds what is not finite, its columns that do are left out in a second
    pass; and so are such rows of ``a``. Where a row looks wrong, all are read again for sums of columns.
    """
    steps, row_mask, column_mask = [], "", ""
    if multiplies:
        row_mask, column_mask = "ax", "b"
        of_b = Pass("b", Side("bx", _COLUMNS), Side("b", scales="d", inverse=True), column_flag=B_NOT_FINITE)
        of_a = Pass("a", Side("ax", "bx", "bx", "d"), row_flag=A_NOT_FINITE)
        steps = [Pass("b", Side("d", _COLUMNS), sampled=True), of_b,
                 of_b._replace(columns=of_b.columns._replace(mask="b"), column_flag=None, wanted=B_NOT_FINITE), of_a,
                 of_a._replace(rows=of_a.rows._replace(mask="ax"), row_flag=None, wanted=A_NOT_FINITE)]
    rows, columns = Side(vectors=_COLUMNS, mask=row_mask), Side(mask=column_mask)
    steps += [Pass("c0", rows._replace(to="dx"), columns)] * adds
    steps += [Pass("c", rows._replace(to="cx"), columns, judging=True)]
    rows, columns = Side(mask=row_mask), Side(vectors=_ROWS, mask=column_mask)
    if multiplies:
        steps += [Pass("a", rows, Side("ya", _ROWS), SUSPECT),
                  Pass("b", Side(), Side("yb", "ya", "ya", mask=column_mask), SUSPECT)]
    steps += [Pass("c0", rows, columns._replace(to="yd"), SUSPECT)] * adds
    return [*steps, Pass("c", rows, columns._replace(to="yc"), SUSPECT)]


class Judging(NamedTuple):
    """When a row is suspect: off by more than ``of_scale`` times its scale plus ``beside``."""

    alpha: float = 0.0
    beta: float = 0.0
    of_scale: float = 0.0
    beside: float = 0.0


class Layout:
    """Where the sums of some passes lie, in doubles from the start of what is kept of each matrix.

    Attributes:
        size: doubles in all.
        always: doubles that are written whether a row is suspect or not: the first ones.
    """

    def __init__(self, steps: Sequence[Pass], shapes: Mapping[str, tuple[int, int]]) -> None:
        self._places: dict[str, tuple[int, int, int]] = {}
        self.size = self.always = HEAD
        for step in steps:
            for side, length in zip((step.rows, step.columns), step.shape(shapes[step.matrix]), strict=True):
                if side.to and side.to not in self._places:
                    self._places[side.to] = self.size, _SUMS[side.kind], length
                    self.size += _SUMS[side.kind] * length
            if step.wanted != SUSPECT:
                self.always = self.size

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
    return _launch(arch, 1, _START, Pass("", Side("cx", _COLUMNS)), layout, Strides(0, 1), 0, 0, count, 1,
                   Judging(), seed)


def checksums(arch: str, step: Pass, layout: Layout, rows: int, columns: int, strides: Strides, count: int,
              judging: Judging) -> Sequence[Launch]:
    """The sums of a pass over the matrix A into C: one or two kernels, in their order, with the same addresses.

    The workspace: `workspace_floats`.
    """
    rows, columns = step.shape((rows, columns))
    if strides.column != 1:  # the kernel reads the transpose, whose rows are contiguous
        step, rows, columns = step.mT, columns, rows
        strides = Strides(strides.column, strides.row, strides.batch)
    slabs, strips = _cut(arch, rows, columns, count)
    sums = _SUMS[step.rows.kind] * rows + _SUMS[step.columns.kind] * columns
    return [_launch(arch, blocks, phase, step, layout, strides, rows, columns, count, strips, judging)
            for phase, blocks in ((_PARTS, count * slabs * strips), (_SUM, count * -(-sums // _THREADS)))
            if phase == _PARTS or step.wanted is None]


def workspace_floats(arch: str, rows: int, columns: int, count: int) -> int:
    """Floats that `checksums` need in the workspace, whichever way the matrix lies."""
    return max(2 * count * max(_SUMS) * (slabs * m + strips * n) for m, n in ((rows, columns), (columns, rows))
               for slabs, strips in [_cut(arch, m, n, count)])


def _cut(arch: str, rows: int, columns: int, count: int) -> tuple[int, int]:
    """Slabs of columns and strips of rows, for one wave of blocks."""
    resident = 3 if architecture(arch).name.startswith("sm_90") else 2  # RESIDENT
    slabs, most = -(-columns // _SLAB), resident * architecture(arch).gpu_sms
    return slabs, max(1, min(-(-rows // _STEP), most // (slabs * count)))


def _launch(arch: str, blocks: int, phase: int, step: Pass, layout: Layout, strides: Strides, rows: int, columns: int,
            count: int, strips: int, judging: Judging, seed: int = 0) -> Launch:
    right, left = step.rows, step.columns
    weighted = left if left.is_weighted else right
    where = (layout.start(right.vectors), layout.start(left.vectors), layout.norms(right.mask), layout.norms(left.mask),
             layout.norms(weighted.weights), layout.norms(weighted.scales), layout.start(right.to),
             layout.start(left.to), layout.start("ax") if "ax" in layout else -1,
             layout.start("dx") if "dx" in layout else -1)
    flags = (-1 if flag is None else flag for flag in (step.wanted, step.row_flag, step.column_flag))
    numbers = (rows, columns, count, strips, phase, weighted.inverse, *flags, step.judging,
               seed & 0xFFFFFFFF, seed >> 32)
    return launch_of("checksums", arch, blocks, "13q4d10i2I", strides.row, strides.batch, layout.size, *where,
                     *judging, *numbers, threads=_THREADS, macros={"RIGHT": right.kind, "LEFT": left.kind})


# ---- by NumPy ----------------------------------------------------------------------------------------------------

_CHUNK = 1 << 22  # elements that are converted to FP64 at a time


def by_numpy(steps: Sequence[Pass], layout: Layout, matrices: Mapping[str, Any], seed: int, judging: Judging) -> Any:
    """What the kernels keep of one matrix of the batch."""
    kept = np.zeros(layout.size)
    head = kept[:HEAD].view(np.uint32)
    head[:2] = seed & 0xFFFFFFFF, seed >> 32
    flags = head[2:]
    for step in steps:
        if step.wanted is not None and not flags[step.wanted]:
            continue
        x = matrices[step.matrix]
        x = x[:, :step.shape(x.shape)[1]]
        sides = (step.rows, step.columns)
        reads = [np.isfinite(layout.taken(kept, side.mask)[-1]) if side.mask else np.ones(length, bool)
                 for side, length in zip(sides, x.shape, strict=True)]
        totals = [np.zeros((_SUMS[side.kind], length)) for side, length in zip(sides, x.shape, strict=True)]
        for first in range(0, x.shape[0], lines := max(1, _CHUNK // max(x.shape[1], 1))):
            part = slice(first, first + lines)
            values = x[part].astype(np.float64)
            values[~reads[0][part]] = 0
            values[:, ~reads[1]] = 0
            for sums, side, read, along, each in ((totals[0][:, part], sides[0], reads[1], slice(None), values.T),
                                                  (totals[1], sides[1], reads[0], part, values)):
                if side.vectors:
                    vectors = (signs(seed, side.vectors, len(read)) if side.vectors in (_COLUMNS, _ROWS)
                               else layout.taken(kept, side.vectors)[:VECTORS])
                    sums[:VECTORS] += np.where(read, vectors, 0)[:, along] @ each
                if side.weights:
                    sums[-2] += np.where(read, layout.taken(kept, side.weights)[-1], 0)[along] @ abs(each)
                if side.scales:
                    norms = layout.taken(kept, side.scales)[-1]
                    scales = np.where(np.isfinite(norms) & (norms > 0), norms, 1)[along, None]
                    each = each / scales if side.inverse else each * scales
                if side.to:
                    sums[-1] += (each * each).sum(0)
        for sums, side in zip(totals, sides, strict=True):
            if side.to:
                sums[-1] = np.sqrt(sums[-1])
                # The norms by which lines were left out stay.
                new = slice(VECTORS * (side.kind % 3 > 0) if side.mask and step.wanted in (B_NOT_FINITE, A_NOT_FINITE)
                            else None)
                layout.taken(kept, side.to)[new] = sums[new]
        for flag, sums in zip((step.row_flag, step.column_flag), totals, strict=True):
            if flag is not None:
                flags[flag] = not np.isfinite(sums[-1]).all()
        if step.judging:
            flags[SUSPECT] = _is_suspect(layout, kept, judging)
    return kept


def _is_suspect(layout: Layout, kept: Any, judging: Judging) -> bool:
    off, scale, judged = layout.taken(kept, "cx")[:VECTORS], 0.0, True
    for name, factor, norms in (("ax", judging.alpha, -2), ("dx", judging.beta, -1)):
        if name in layout:
            sums = layout.taken(kept, name)
            off, scale = off - factor * sums[:VECTORS], scale + abs(factor) * sums[norms]
            judged = judged & np.isfinite(sums[-1])
    return bool((~(abs(off) <= judging.of_scale * scale + judging.beside) & judged).any())


def signs(seed: int, which: str, length: int) -> Any:
    """The random signs of all vectors, ``(VECTORS, length)``, as the kernel draws them."""
    low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32((seed >> 32) + (-1 if which == _COLUMNS else -2) & 0xFFFFFFFF)
    bits = _mixed(_mixed(np.arange(length, dtype=np.uint32) + low) ^ high)
    return np.stack([1.0 - 2.0 * (bits >> np.uint32(31 - v) & np.uint32(1)) for v in range(VECTORS)])


def _mixed(x: Any) -> Any:
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7feb352d)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846ca68b)
    return x ^ x >> np.uint32(16)
