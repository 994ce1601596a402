"""The kernels that factor, invert and copy blocks, on the simulator, against NumPy in FP64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.family import Launch
from peakgemm.kernels.linalg import leaves, qr_steps
from peakgemm.kernels.linalg.leaves import Strides
from peakgemm.kernels.linalg.qr_steps import Mode
from peakgemm.tools.simulator import run

SENTINEL, EPS = np.float32(-777.25), 2.0**-24
RNG = np.random.default_rng(3)


class Matrices:
    """A batch of matrices in memory whose other words are a sentinel; ``by_columns``: the row stride is 1."""

    def __init__(self, values: Any, by_columns: bool = False, pad: int = 3) -> None:
        count, rows, columns = values.shape
        lines, length = (columns, rows) if by_columns else (rows, columns)
        ld, batch = length + pad, lines * (length + pad) + 5
        self.memory = np.full(count * batch + pad, SENTINEL)
        self.strides = Strides(1, ld, batch) if by_columns else Strides(ld, 1, batch)
        self.values = np.lib.stride_tricks.as_strided(
            self.memory, values.shape, [4 * s for s in (batch, self.strides.row, self.strides.column)])
        self.values[...] = values

    def taken(self) -> Any:
        """The matrices, once it is seen that nothing was written beside them; they become the sentinel too."""
        result = self.values.astype(np.float64)
        self.values[...] = SENTINEL
        assert (self.memory == SENTINEL).all(), "words beside the matrices were written"
        return result


def launch(one: Launch, a: Any = None, b: Any = None, c0: Any = None, c: Any = None, workspace: Any = None) -> None:
    report = run(one.recipe.make("ptx"), grid=one.blocks, block=one.threads, shared_bytes=one.shared_bytes,
                 arch=one.recipe.arch, args=[a, b, c0, c, workspace, one.arguments], cluster=one.cluster)
    assert report.clean, str(report)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def definite(count: int, n: int) -> Any:
    x = normal(count, n, n).astype(np.float64)
    return (x @ x.transpose(0, 2, 1) + n * np.eye(n)).astype(np.float32)


def triangular(count: int, n: int, unit: bool = False) -> Any:
    """Lower triangles with moderate inverses; what must not be read is NaN."""
    x = np.tril(normal(count, n, n) / np.float32(n)) + np.diag(1 + RNG.random(n, np.float32))
    x[:, np.triu(np.ones((n, n), bool), 0 if unit else 1)] = np.nan
    return x


def lower(x: Any, unit: bool = False) -> Any:
    """In FP64, what a kernel takes such a triangle for."""
    clean = np.where(np.tri(x.shape[-1], k=-1 if unit else 0), x.astype(np.float64), 0)
    return clean + np.eye(x.shape[-1]) if unit else clean


@pytest.mark.parametrize(("n", "count", "by_columns"), [
    (1, 2, False), (5, 1, True), (31, 1, False), (32, 2, True), (33, 1, False), (100, 1, True), (128, 1, False)])
def test_cholesky_block(n: int, count: int, by_columns: bool) -> None:
    in_place = n % 2 == 0
    a = definite(count, n)
    upper = np.triu(np.ones((n, n), bool), 1)
    matrix = Matrices(np.where(upper, np.float32(np.nan), a), by_columns)
    factors = matrix if in_place else Matrices(np.full_like(a, SENTINEL), not by_columns)
    inverse = Matrices(np.full_like(a, SENTINEL), not by_columns)
    info = np.zeros(count, np.int32)
    one = leaves.cholesky_block("sm_90", n, matrix.strides, factors.strides, inverse.strides, count)
    launch(one, a=matrix.memory, c0=info, c=factors.memory, workspace=inverse.memory)
    factor, w = factors.taken(), inverse.taken()
    assert not info.any() and (factor[:, upper] == 0).all()
    products = factor @ factor.transpose(0, 2, 1)
    assert (abs(products - a) <= (n + 3) * EPS * (abs(factor) @ abs(factor).transpose(0, 2, 1))).all()
    assert (w[:, upper] == 0).all()
    assert (abs(w @ factor - np.eye(n)) <= (n + 3) * EPS * (abs(w) @ abs(factor))).all()


def test_cholesky_block_of_matrices_that_are_not_positive_definite() -> None:
    """Info is the order of the first minor that is not, and what was known before stays."""
    n = 70
    batch = definite(6, n)
    batch[0, 40, 40] = -1                           # indefinite
    batch[1, 3, 3] = np.nan
    batch[2] = np.outer(np.ones(n), np.ones(n))     # semidefinite, and exactly so in FP32
    batch[3, 69, 69] = 0
    batch[4, 10, 10] = batch[4, 69, 69] = -1        # the first counts
    matrix, inverse = Matrices(batch), Matrices(np.full((6, n, n), SENTINEL))
    info = np.array([0, 0, 0, 0, 0, 7], np.int32)
    one = leaves.cholesky_block("sm_90", n, matrix.strides, matrix.strides, inverse.strides, 6, first=128)
    launch(one, a=matrix.memory, c0=info, c=matrix.memory, workspace=inverse.memory)
    assert info.tolist() == [128 + 41, 128 + 4, 128 + 2, 128 + 70, 128 + 11, 7]
    assert (matrix.values[5] == batch[5]).all() and (inverse.values[5] == SENTINEL).all()


@pytest.mark.parametrize("scale", [2.0**-126, 2.0**100])
def test_cholesky_block_of_tiny_and_huge_matrices(scale: float) -> None:
    a = definite(1, 33) * np.float32(scale)
    matrix, inverse, info = Matrices(a), Matrices(np.zeros((1, 33, 33), np.float32)), np.zeros(1, np.int32)
    launch(leaves.cholesky_block("sm_90", 33, matrix.strides, matrix.strides, inverse.strides, 1),
           a=matrix.memory, c0=info, c=matrix.memory, workspace=inverse.memory)
    factor = matrix.taken()[0] / np.sqrt(scale)
    assert not info.any() and np.allclose(factor @ factor.T, a[0] / scale, rtol=0, atol=8 * EPS * abs(a / scale).max())


@pytest.mark.parametrize(("n", "size", "count", "by_columns", "unit"), [
    (1, 128, 2, False, False), (33, 128, 1, True, True), (128, 256, 1, False, False), (300, 256, 1, True, False)])
def test_invert_block(n: int, size: int, count: int, by_columns: bool, unit: bool) -> None:
    x = triangular(count, n, unit)
    matrix, block = Matrices(x, by_columns), leaves.BLOCK
    inverse = np.full((count, -(-n // size), size, size), SENTINEL)
    launch(leaves.invert_block("sm_90", n, size, matrix.strides, count, unit=unit), a=matrix.memory, c=inverse)
    expected = np.full(inverse.shape, SENTINEL, np.float64)
    for first in range(0, n, block):
        number, row, end = first // size, first % size, min(first + block, n)
        rows = slice(row, row + end - first)
        corner = lower(x, unit)[:, first:end, first:end]
        w = inverse[:, number, rows, rows].astype(np.float64)
        assert (abs(w @ corner - np.eye(end - first)) <= block * EPS * (abs(w) @ abs(corner))).all()
        expected[:, number, rows] = 0
        expected[:, number, rows, rows] = np.tril(w)
    assert (inverse == expected).all()


def test_a_zero_on_the_diagonal_gives_no_finite_inverse() -> None:
    x = lower(triangular(1, 40)).astype(np.float32)
    x[0, 20, 20] = 0
    inverse = np.zeros((1, 1, 128, 128), np.float32)
    launch(leaves.invert_block("sm_90", 40, 128, Strides(40, 1), 1), a=x, c=inverse)
    assert not np.isfinite(inverse[0, 0, 20, 20]) and np.isfinite(inverse[0, 0, :20]).all()


@pytest.mark.parametrize(("rows", "columns", "from_columns", "to_columns", "unit"), [
    (1, 1, False, False, False), (70, 33, False, True, True), (33, 70, True, False, False), (5, 64, True, True, True)])
def test_triangle(rows: int, columns: int, from_columns: bool, to_columns: bool, unit: bool) -> None:
    x = normal(2, rows, columns)
    kept = np.tri(rows, columns, -1 if unit else 0, dtype=bool)
    a = Matrices(np.where(kept, x, np.float32(np.nan)), from_columns)
    c = Matrices(np.zeros_like(x), to_columns)
    launch(leaves.triangle("sm_90", rows, columns, a.strides, c.strides, 2, unit=unit), a=a.memory, c=c.memory)
    assert (c.taken() == np.where(kept, x, 0) + unit * np.eye(rows, columns)).all()


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_mirror(by_columns: bool, in_place: bool) -> None:
    n = 70
    x = normal(2, n, n)
    a = Matrices(np.where(np.tri(n), x, np.nan), by_columns)
    c = a if in_place else Matrices(np.zeros_like(x), not by_columns)
    launch(leaves.triangle("sm_90", n, n, a.strides, c.strides, 2, mirror=True), a=a.memory, c=c.memory)
    assert (c.taken() == np.where(np.tri(n), x, x.transpose(0, 2, 1))).all()


@pytest.mark.parametrize(("by_columns", "unit"), [(False, False), (True, True)])
def test_growth(by_columns: bool, unit: bool) -> None:
    """Bounds beside the largest row's, for each block; and inverses with NaN exceed any."""
    n, size, count = 100, 64, 2
    x = triangular(count, n, unit)
    matrix, inverse = Matrices(x, by_columns), np.full((count, 2, size, size), np.nan, np.float32)
    grown = np.zeros((count, 2))
    for number, end in enumerate((64, 36)):
        at = slice(size * number, size * number + end)
        corner = lower(x, unit)[:, at, at]
        inverse[:, number, :end, :end] = np.where(np.tri(end), np.linalg.inv(corner), np.nan)
        grown[:, number] = (abs(np.linalg.inv(corner)) @ abs(corner).sum(2)[:, :, None]).max((1, 2))
    for bound in [*grown.ravel() * 1.001, *grown.ravel() * 0.999]:
        flags, vector = np.full((count, 2), 9, np.int32), np.full(count * n, np.nan, np.float32)
        for one in leaves.growth("sm_90", n, size, matrix.strides, count, bound, unit=unit):
            launch(one, a=matrix.memory, b=inverse, c0=flags, workspace=vector)
        assert (flags == (grown > bound)).all()
    inverse[1, 1, 35, 0] = np.nan
    for one in leaves.growth("sm_90", n, size, matrix.strides, count, 1e30, unit=unit):
        launch(one, a=matrix.memory, b=inverse, c0=flags, workspace=vector)
    assert flags.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(("size", "columns", "by_columns", "unit", "transposed", "in_place"), [
    (1, 1, False, False, False, False), (33, 40, False, False, False, True), (70, 5, True, True, False, False),
    (70, 33, False, False, True, False), (40, 3, True, True, True, True)])
def test_substitute(size: int, columns: int, by_columns: bool, unit: bool, transposed: bool, in_place: bool) -> None:
    count, blocks, block = 2, 3, 1
    x, right = triangular(count, size, unit), normal(count, size, columns)
    matrix, b = Matrices(x, by_columns), Matrices(right, by_columns)
    c = b if in_place else Matrices(np.full_like(right, SENTINEL), not by_columns)
    before = c.values.copy()
    flags = np.array([[1, 0, 1], [0, 1, 0]], np.int32)
    one = leaves.substitute("sm_90", size, columns, matrix.strides, b.strides, c.strides, count, block=block,
                            blocks=blocks, unit=unit, transposed=transposed)
    launch(one, a=matrix.memory, b=b.memory, c0=flags, c=c.memory)
    solved = c.taken()
    triangle = lower(x, unit)[1].T if transposed else lower(x, unit)[1]
    assert (solved[0] == before[0]).all()
    assert (abs(triangle @ solved[1] - right[1]) <= size * EPS * (abs(triangle) @ abs(solved[1]))).all()


@pytest.mark.parametrize("by_columns", [False, True])
def test_skipping_block(by_columns: bool) -> None:
    """Columns whose pivot is at most the floor are zeros, and -1 on the diagonal; the others are factored without them.
    """
    n, floor = 70, 1e-3
    a = definite(2, n) / n
    a[0, 9], a[0, :, 9] = a[0, 4], a[0, :, 4]
    a[0, 60], a[0, :, 60] = 0, 0
    a[0, 60, 60] = -1
    a[1, 30, 30] = np.nan
    matrix, inverse = Matrices(a, by_columns), Matrices(np.full((2, n, n), SENTINEL))
    launch(leaves.skipping_block("sm_90", n, matrix.strides, matrix.strides, inverse.strides, 2, floor=floor),
           a=matrix.memory, c=matrix.memory, workspace=inverse.memory)
    (factor, other), (w, _) = matrix.taken(), inverse.taken()
    skipped = [9, 60]
    kept = np.setdiff1d(np.arange(n), skipped)
    assert (factor[skipped, skipped] == -1).all() and (np.diagonal(factor)[kept] > 0).all()
    assert not np.tril(factor, -1)[:, skipped].any() and not w[skipped].any() and not w[:, skipped].any()
    whole = factor[kept][:, kept]
    assert abs(whole @ whole.T - a[0][kept][:, kept]).max() < 1e-5
    assert abs(factor[9, :9] - factor[4, :9]).max() < 1e-5  # of skipped rows: what the others have of them
    assert abs(w[kept][:, kept] @ whole - np.eye(n - 2)).max() < 1e-5
    assert np.isfinite(other[:30, :30]).all() and np.isnan(np.diagonal(other)[30:]).all()


@pytest.mark.parametrize(("rows", "given", "columns", "by_columns"), [
    (1, 1, 1, False), (70, 33, 33, True), (33, 5, 70, False), (300, 40, 40, False)])
def test_scale_columns(rows: int, given: int, columns: int, by_columns: bool) -> None:
    """Exactly, whatever the size of numbers; zeros behind the last column, and of zeros."""
    scales = np.float64(2) ** RNG.integers(-120, 120, given)
    x = (normal(2, rows, given) * scales).astype(np.float32)
    x[1, :, given // 2] = 0
    a = Matrices(x, by_columns)
    c = Matrices(np.full((2, rows, columns), SENTINEL), not by_columns)
    line = columns + 3
    facts = np.full((2, 3, line), SENTINEL)
    sums = np.zeros(2 * qr_steps.strips(rows, columns, 2) * columns, np.float64)
    for one in qr_steps.scale_columns("sm_90", rows, given, columns, a.strides, c.strides, 2, line=line):
        launch(one, a=a.memory, c0=facts, c=c.memory, workspace=sums.view(np.float32))
    scaled, norms = c.taken(), np.linalg.norm(x.astype(float), axis=1)
    assert not scaled[:, :, given:].any() and (facts[:, :, columns:] == SENTINEL).all()
    assert (scaled[:, :, :given] * facts[:, :1, :given].astype(float) == x).all()
    assert (np.log2(facts[:, 0, :given][norms > 0]) % 1 == 0).all() and (facts[:, 0, :given][norms == 0] == 0).all()
    got = np.linalg.norm(scaled[:, :, :given], axis=1)
    assert ((got >= 1) & (got < 2) | (norms == 0)).all()
    want = np.where(norms > 0, got, 1)
    assert np.allclose(facts[:, 1, :given], want, rtol=1e-6) and (facts[:, 1, given:columns] == 1).all()
    with np.errstate(over="ignore"):
        assert np.allclose(facts[:, 2, :given], np.float32(norms**2), rtol=1e-6)


def test_scaled_columns_of_the_largest_and_least_numbers() -> None:
    x = np.array([[3e38, 1e-45, np.inf, 2**-126]] * 5, np.float32)[None]
    scaled, facts, sums = np.zeros_like(x), np.zeros((3, 4), np.float32), np.zeros(4 * 2, np.float32)
    for one in qr_steps.scale_columns("sm_90", 5, 4, 4, Strides(4, 1), Strides(4, 1), 1, line=4):
        launch(one, a=x, c0=facts, c=scaled, workspace=sums)
    assert np.array_equal(scaled[0].astype(float) * facts[0], x[0]) and np.isfinite(scaled[0, :, [0, 1, 3]]).all()


@pytest.mark.parametrize("by_columns", [False, True])
def test_scaled_triangle(by_columns: bool) -> None:
    """A Gram matrix to a diagonal of 1 to 4 and a shift, its factor back, R^T to its columns' size."""
    n, count = 70, 2
    x = normal(count, n, n).astype(np.float64) * 2.0 ** RNG.integers(-45, 5, n)
    x[1, :, 5] = 0
    gram = (x.transpose(0, 2, 1) @ x).astype(np.float32)
    a = Matrices(np.where(np.tri(n), gram, np.float32(np.nan)), by_columns)
    c = Matrices(np.full_like(gram, SENTINEL), not by_columns)
    powers, skipped = np.zeros((count, n), np.float32), np.full((count, n), 9, np.int32)
    most = 2.0 ** int(np.median(-np.log2(np.diagonal(gram[0])) / 2))  # some columns would need more
    launch(qr_steps.scaled_triangle("sm_90", Mode.GRAM, n, n, a.strides, c.strides, count, shift=0.5, threshold=most),
           a=a.memory, c=c.memory, workspace=powers)
    scaled = c.taken()
    diagonal = np.diagonal(scaled, axis1=1, axis2=2) - 0.5
    assert (np.log2(powers) % 1 == 0).all() and powers.max() == most and powers[1, 5] == min(1, most)
    within = (diagonal >= 0.99) & (diagonal < 4.01)
    assert (within | (powers == most) | (diagonal == 0)).all() and within.any()
    want = gram * powers[:, :, None].astype(float) * powers[:, None, :] + 0.5 * np.eye(n)
    np.testing.assert_allclose(np.tril(scaled), np.tril(want), rtol=1e-6)
    # The factor, two columns of which were skipped.
    lower = np.tril(normal(count, n, n), -1) + 2 * np.eye(n, dtype=np.float32)
    lower[0, 3, 3] = lower[1, 64, 64] = -1
    factor = Matrices(np.where(np.tri(n), lower, np.float32(np.nan)), by_columns)
    launch(qr_steps.scaled_triangle("sm_90", Mode.FACTOR, n, n, factor.strides, factor.strides, count),
           a=factor.memory, c0=skipped, c=factor.memory, workspace=powers)
    marks = np.zeros((count, n))
    marks[0, 3] = marks[1, 64] = 1
    assert (skipped == marks).all()
    assert (factor.taken() == np.where(np.eye(n), abs(lower), lower) / powers[:, :, None].astype(float)).all()
    # R^T, of fewer columns, its rank beside elements at the threshold.
    r = np.tril(normal(count, n, 40))
    r[:, range(40), range(40)] = 1
    r[0, 7, 7], r[0, 8, 8], r[1, 9, 9] = -0.2501, 0.25, np.nan
    facts = np.ones((count, 3, n + 2), np.float32)
    facts[:, 0] = 2.0 ** RNG.integers(-9, 9, n + 2)
    facts[0, 0, 11], facts[:, 1, 7:9], facts[1, 1, 20] = 0, 0.5, 2.1
    rank = np.zeros(count, np.int32)
    matrix = Matrices(np.where(np.tri(n, 40), r, np.float32(np.nan)), by_columns)
    target = Matrices(np.full_like(r, SENTINEL), by_columns)
    launch(qr_steps.scaled_triangle("sm_90", Mode.RESULT, n, 40, matrix.strides, target.strides, count, threshold=0.5,
                                    line=n + 2), a=matrix.memory, b=facts, c0=rank, c=target.memory)
    np.testing.assert_array_equal(target.taken(), r * facts[:, 0, :n, None])
    assert rank.tolist() == [40 - 2, 40 - 2]


@pytest.mark.parametrize("by_columns", [False, True])
def test_perturb_columns(by_columns: bool) -> None:
    """Of the wanted norm over the largest element of R's row, in skipped columns alone; each of its own."""
    rows, columns, count = 300, 40, 2
    x, r = normal(count, rows, columns), np.triu(normal(count, columns, columns)) + np.eye(columns, dtype=np.float32)
    skipped = np.zeros((count, columns), np.int32)
    skipped[0, [1, 33]] = skipped[1, 7] = 1
    r[0, 1, 30], r[0, 33], r[1, 7, 39] = -64, 0, 16
    a, c = Matrices(r, not by_columns), Matrices(x, by_columns)
    launch(qr_steps.perturb_columns("sm_90", rows, columns, a.strides, c.strides, count, amount=0.25, seed=5),
           a=a.memory, c0=skipped, c=c.memory)
    added = c.taken() - x
    assert ((added != 0).any(1) == (skipped != 0)).all()
    for vector, norm in ((added[0, :, 1], 0.25 / 64), (added[0, :, 33], 1.0), (added[1, :, 7], 0.25 / 16)):
        assert abs(np.linalg.norm(vector) / norm - 1) < 0.15 and abs(vector.sum()) < 4 * norm
    assert abs(added[0, :, 1] @ added[0, :, 33]) < 0.25 / 64 * 0.25


def test_sizes_that_no_kernel_takes() -> None:
    with pytest.raises(InvalidValue, match="give 1 to 128"):
        leaves.cholesky_block("sm_90", 129, Strides(129, 1), Strides(129, 1), Strides(129, 1), 1)
    with pytest.raises(InvalidValue, match="multiple of 128"):
        leaves.invert_block("sm_90", 10, 100, Strides(10, 1), 1)
    with pytest.raises(InvalidValue, match="thread blocks"):
        leaves.triangle("sm_90", 0, 5, Strides(5, 1), Strides(5, 1), 1)


@pytest.mark.parametrize(("arch", "count"), [("sm_75", 16), ("sm_90", 23)])
def test_every_architecture_has_its_kernels(arch: str, count: int) -> None:
    """Without cp.async none factors or inverts; nothing spills."""
    compiled = [recipe.make("cubin") for recipe in leaves.recipes(arch)]
    assert len(compiled) == count and not any(made.spill_bytes for made in compiled)


def test_pivots_that_name_no_row() -> None:
    """Nothing outside of the rows is read or written."""
    pivots, rows = np.array([-5, 9, 3, 1 << 30], np.int32), np.zeros(4, np.int32)
    launch(leaves.permutation("sm_90", 4, 4, Strides(4, 1, 4), 1), a=pivots.view(np.float32), c=rows.view(np.float32))
    assert sorted(rows) == [0, 1, 2, 3]
