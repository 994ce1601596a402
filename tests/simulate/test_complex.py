"""Complex products as programs: the kernel that embeds, copies, splits and combines runs on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import peakgemm
import stand_in
from linalg_case import interpret
from peakgemm.arrays.base import View
from peakgemm.errors import InvalidValue
from peakgemm.linalg import call, complex
from peakgemm.linalg.complex import Operand, record, record_3m
from peakgemm.linalg.program import Matrix, Program, external


class Memory:
    """Complex matrices in a buffer whose other numbers are ``around``, row by row or ``by_columns``, with gaps."""

    def __init__(self, rng: Any, shape: tuple[int, ...], by_columns: bool = False, around: float = np.nan) -> None:
        count, rows, columns = shape
        lines, length = (columns, rows) if by_columns else (rows, columns)
        self.flat = np.full(2 + 2 * count * lines * (length + 3), around, np.float32)
        self.stored = self.flat[2:].view(np.complex64).reshape(count, lines, length + 3)
        inside = self.stored[..., :length]
        inside[...] = rng.standard_normal(inside.shape) + 1j * rng.standard_normal(inside.shape)
        self.values = np.swapaxes(inside, -1, -2) if by_columns else inside

    def matrix(self, buffer: int, count: int) -> Matrix:
        """For a program; of a batch of one the same ``count`` times."""
        own, rows, columns = self.values.shape
        batch, down, right = (step // 8 for step in self.values.strides)
        return external(buffer, View(8, (count, rows, columns), (batch if own == count else 0, down, right)))


# count, m, n, k; what is stored by columns; what is conjugated; alpha, beta; what is the same in all of the batch
CASES = [
    (1, 5, 7, 3, "", "", 1.0, 0.0, ""),
    (1, 37, 45, 33, "", "ab", 1.5, 0.0, ""),
    (2, 33, 5, 40, "ab", "a", 2 - 1j, 0.5, ""),
    (3, 6, 34, 9, "a", "b", -1.0, 1 + 3j, "b"),
    (2, 34, 6, 9, "out", "a", 1j, 2.0, "a"),
    (2, 8, 9, 4, "out c b", "c", 1.0, -1.0, "c"),
    (1, 1, 40, 36, "b", "b", 1 + 1j, 1j, ""),
    (1, 40, 1, 36, "a", "", 1.0, 1.0, ""),
    (2, 4, 5, 6, "a", "", 1.0, 0.5, "abc"),
    (2, 4, 5, 6, "", "", 0.0, 2.0, ""),
    (1, 4, 5, 0, "", "", 1.0, 1j, ""),
]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("recorded", [record, record_3m])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_program(case: tuple[Any, ...], recorded: Any, in_place: bool) -> None:
    count, m, n, k, by_columns, conjugated, alpha, beta, same = case
    if recorded is record_3m and (k == 0 or alpha == 0):
        pytest.skip("done by the other")
    rng = np.random.default_rng(0)
    x = {name: Memory(rng, (1 if name in same else count, *shape), name in by_columns.split())
         for name, shape in (("a", (m, k)), ("b", (k, n)), ("c", (m, n)))}
    out = Memory(rng, (count, m, n), "out" in by_columns, around=-777.25)
    if in_place:
        x["c"] = out
    if alpha == 0:
        x["a"].flat[...] = np.nan
    a, b, c = (np.conj(x[name].values) if name in conjugated else x[name].values.copy() for name in "abc")
    product = alpha * (a.astype(np.complex128) @ b) if alpha else 0.0
    want = np.broadcast_to(product + beta * c, out.values.shape) if beta else product
    operands = [Operand(x[name].matrix(3 if in_place and name == "c" else number, count), name in conjugated)
                for number, name in zip((1, 2, 4), "abc", strict=True)]
    program = Program("ieee", "sm_90")
    recorded(program, operands[0], operands[1], operands[2] if beta else None, out.matrix(3, count), alpha, beta)
    interpret(program, [x["a"].flat, x["b"].flat, out.flat, x["c"].flat])
    np.testing.assert_allclose(out.values, want, rtol=0, atol=3e-6 * max(abs(want).max(), 1))
    out.values[...] = -777.25 - 777.25j
    assert (out.flat == -777.25).all()  # nothing else was written


def test_infinities_stay_in_their_part() -> None:
    """A real factor, and the parts that no product touches, make no NaN of an infinity."""
    rng = np.random.default_rng(0)
    x = [Memory(rng, (1, 2, 2)) for _ in range(4)]
    x[0].values[...] = np.eye(2)
    x[1].values[...] = 1.0
    x[3].values[...] = np.inf
    x[3].values.imag = 1.0
    program = Program("ieee", "sm_90")
    a, b, out, c = (memory.matrix(number, 1) for number, memory in enumerate(x, 1))
    record(program, Operand(a), Operand(b), Operand(c.mT, True), out, 1.0, 2.0)
    interpret(program, [memory.flat for memory in x])
    assert (x[2].values.real == np.inf).all()
    assert (x[2].values.imag == -2.0).all()


def test_reproducible_products_keep_their_order() -> None:
    """Of one row it is not the vector that is embedded, and a column-major result is refused."""
    rng = np.random.default_rng(0)
    shapes = (1, 1, 4), (1, 4, 6), (1, 1, 6)
    a, b, out = (Memory(rng, shape).matrix(number, 1) for number, shape in enumerate(shapes, 1))
    program = Program("reproducible", "sm_90")
    record(program, Operand(a), Operand(b), None, out, 1.0, 0.0)
    product = program.steps[-1].what
    assert (product.m, product.n, product.k) == (1, 12, 8)
    with pytest.raises(InvalidValue, match="row-major"):
        record(program, Operand(b.mT), Operand(b), None, Memory(rng, (1, 6, 6), True).matrix(3, 1), 1.0, 0.0)


class Bound:
    """A bound program, interpreted in the stand-in's memory."""

    library = stand_in.StandIn()

    def __init__(self, program: Program, gpu: Any) -> None:
        self.program, self.workspace_bytes = program, program.bytes

    def run(self, workspace: int, buffers: list[int], stream: int) -> None:
        unread = np.zeros(4, np.float32)
        interpret(self.program, [self.library.memory.flat(x & -16) if x else unread for x in buffers])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> stand_in.StandIn:
    """NumPy arrays are taken for those of a GPU."""
    monkeypatch.setattr(complex, "locate", lambda arrays, dtype: (Bound.library, 0))
    monkeypatch.setattr(call.device, "require", lambda index: stand_in.GPU)
    monkeypatch.setattr(call, "BoundProgram", Bound)
    monkeypatch.setattr(call, "remember", lambda key, bound: bound)
    return Bound.library


def drawn(*shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def at_odd_address(x: Any) -> Any:
    """A copy that starts at a multiple of 4 bytes, not of 8."""
    flat = np.zeros(8 * x.size + 4, np.uint8)
    copy = flat[4:].view(np.complex64).reshape(x.shape)
    copy[...] = x
    return copy


A, B = drawn(5, 6), drawn(6, 7, seed=1)
CALLS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "vector matrix": (A[0], B, {}), "matrix vector": (A, B[:, 0], {}), "vectors": (A[0], B[:, 0], {}),
    "batch": (drawn(2, 3, 5, 6), drawn(2, 3, 6, 7), {}), "one B": (drawn(2, 5, 6), B, {}),
    "crosswise batches": (drawn(2, 1, 5, 6), drawn(3, 6, 7), {}),
    "negative strides": (A[::-1], B[:, ::-1], {}), "no unit stride": (drawn(10, 12)[::2, ::2], B, {}),
    "odd address": (at_odd_address(A), at_odd_address(B), {}),
    "c of a row": (A, B, {"c": drawn(7), "beta": 2j}), "c of a column": (A, B, {"c": drawn(5, 1), "beta": 0.5}),
    "c of a number": (A, B, {"c": np.array(1j, np.complex64), "alpha": 1 - 1j}),
    "out by columns": (A, B, {"out": np.zeros((7, 5), np.complex64).T, "c": drawn(5, 7)}),
    "out aside": (A, B, {"out": np.zeros((10, 14), np.complex64)[::2, ::2]}),
    "a vector's c and out": (A[0], B, {"out": np.zeros(14, np.complex64)[::2], "c": drawn(7), "beta": 1j}),
    "no K": (A[:, :0], B[:0], {"c": drawn(5, 7)}), "no rows": (A[:0], B, {}), "alpha 0": (A * np.nan, B, {"alpha": 0}),
}


@pytest.mark.parametrize("precision", ["ieee", "emulated-3m"])
@pytest.mark.parametrize("name", CALLS)
def test_call(device: stand_in.StandIn, name: str, precision: str) -> None:
    a, b, options = CALLS[name]
    c, alpha = options.get("c"), options.get("alpha", 1)
    beta = options.get("beta", 0 if c is None else 1)
    want = (alpha * (a.astype(np.complex128) @ b) if alpha else 0) + (0 if c is None else beta * c)
    result = complex.gemm(peakgemm.gemm, a, b, precision=precision, **options)
    assert result.dtype == np.complex64 and result.shape == (a @ b).shape
    np.testing.assert_allclose(result, np.broadcast_to(want, result.shape), rtol=0, atol=2e-5)
    if "out" in options:
        assert result is options["out"]


@pytest.mark.parametrize("letters", ["NT", "NC", "TN", "TT", "TC", "CN", "CT", "CC"])
def test_letters(device: stand_in.StandIn, letters: str) -> None:
    def stored(x: Any, letter: str) -> Any:
        return np.ascontiguousarray({"N": x, "T": x.T, "C": np.conj(x.T)}[letter])

    result = peakgemm.gemm(stored(A, letters[0]), stored(B, letters[1]), trans_a=letters[0], trans_b=letters[1])
    np.testing.assert_allclose(result, A @ B, rtol=0, atol=1e-5)


def test_update_in_place(device: stand_in.StandIn) -> None:
    c = drawn(5, 7)
    want = A @ B + 2j * c
    assert peakgemm.gemm(A, B, c, beta=2j, out=c) is c
    np.testing.assert_allclose(c, want, rtol=0, atol=1e-5)
    with pytest.raises(InvalidValue, match="overlaps a"):
        peakgemm.matmul(c[:, :5], drawn(5, 5), out=c[:, :5])
