"""The kernels that factor, invert and copy blocks, on the simulator, against NumPy in FP64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.family import Launch
from peakgemm.kernels.linalg import leaves
from peakgemm.kernels.linalg.leaves import Strides
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
                 arch=one.recipe.arch, args=[a, b, c0, c, workspace, one.arguments])
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


def test_sizes_that_no_kernel_takes() -> None:
    with pytest.raises(InvalidValue, match="give 1 to 128"):
        leaves.cholesky_block("sm_90", 129, Strides(129, 1), Strides(129, 1), Strides(129, 1), 1)
    with pytest.raises(InvalidValue, match="multiple of 128"):
        leaves.invert_block("sm_90", 10, 100, Strides(10, 1), 1)
    with pytest.raises(InvalidValue, match="thread blocks"):
        leaves.triangle("sm_90", 0, 5, Strides(5, 1), Strides(5, 1), 1)


@pytest.mark.parametrize(("arch", "count"), [("sm_75", 3), ("sm_90", 5)])
def test_every_architecture_has_its_kernels(arch: str, count: int) -> None:
    """Without cp.async none factors or inverts; nothing spills."""
    compiled = [recipe.make("cubin") for recipe in leaves.recipes(arch)]
    assert len(compiled) == count and not any(made.spill_bytes for made in compiled)
