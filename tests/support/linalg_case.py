"""Linear algebra for tests: a table of calls with what their results must satisfy, and programs without a GPU, whose
products NumPy computes and whose small kernels the simulator runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np
import pytest

import stand_in
from peakgemm import linalg
from peakgemm.kernels.family import Launch
from peakgemm.linalg import call, complex
from peakgemm.linalg.program import WORKSPACE, Program
from peakgemm.problem import Batch, Problem, Triangle
from peakgemm.tools.simulator.launch import run

UNIT = 2.0**-24
NAN = np.float32(np.nan)


# ---- calls and their results -----------------------------------------------------------------------------------


class Case(NamedTuple):
    """One call.

    Attributes:
        function: of `peakgemm.linalg`.
        operands: NumPy arrays, in the order of its arguments. What must not be read is NaN.
        options: its flags.
        residual: of a result in FP64: what an exact one makes zero, and the size of the numbers that make it up; both
            are zero where zeros are promised.
        terms: of the longest sum.
        part: which of several results.
    """

    function: str
    operands: tuple[Any, ...]
    options: dict[str, Any]
    residual: Callable[[Any], tuple[Any, Any]]
    terms: int
    part: str = ""

    def __str__(self) -> str:
        flags = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.function} {'x'.join(map(str, self.operands[0].shape))} {flags}{self.part}"

    def run(self, convert: Callable[[Any], Any] = lambda x: x, **options: Any) -> Any:
        """The result for operands as ``convert`` makes them."""
        result = getattr(linalg, self.function)(*map(convert, self.operands), **self.options, **options)
        return result[0] if self.part == "0" else getattr(result, self.part) if self.part else result

    @property
    def traced(self) -> Case | None:
        """Under JAX's ``jit`` what waits for info is called with ``_ex``; None: there is no such function."""
        if self.function not in ("cholesky", "solve", "inv", "lstsq"):
            return self
        return None if "assume_a" in self.options else self._replace(function=f"{self.function}_ex",
                                                                     part=self.part or "0")

    def check(self, result: Any) -> None:
        """Sums are as long as they are, and blocks of solves have inverses of a condition that is small."""
        assert result.dtype == self.operands[0].dtype
        exact = np.complex128 if result.dtype == np.complex64 else np.float64
        error, scale = (abs(x) for x in self.residual(exact(result)))
        error, scale = np.broadcast_arrays(error, scale)
        largest = scale.max((-1, -2), keepdims=True, initial=0.0)
        wrong = ~(error <= (self.terms + 16) * UNIT * largest * (scale > 0))  # NaN is
        assert not wrong.any(), f"{wrong.sum()} of {wrong.size}, by {error[wrong].max() / largest.max():.2g}"


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def drawn(*shape: int, seed: int = 0) -> Any:
    """`normal` numbers, complex64."""
    return (normal(*shape, seed=seed) + 1j * normal(*shape, seed=seed + 100)).astype(np.complex64)


def definite(*shape: int, seed: int = 0) -> Any:
    """Symmetric positive definite matrices ``(..., n, n)`` of a small condition number."""
    x = np.float64(normal(*shape, seed=seed))
    return (x @ mT(x) / shape[-1] + np.eye(shape[-1])).astype(np.float32)


def triangular(*shape: int, seed: int = 0) -> Any:
    """Matrices whose triangles, with their diagonals or ones, have inverses of a moderate size."""
    n = shape[-1]
    return np.where(np.eye(n, dtype=bool), 1 + abs(normal(*shape, seed=seed)), normal(*shape, seed=seed) / n)


def mT(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def half(x: Any, lower: bool, unit: bool = False, others: Any = 0) -> Any:
    """One triangle, and ``others`` elsewhere, on the diagonal too where ``unit``."""
    diagonal = -int(unit)
    return np.where(np.tri(x.shape[-1], k=diagonal, dtype=bool) if lower else mT(np.tri(x.shape[-1], k=diagonal,
                                                                                        dtype=bool)), x, others)


def products(n: int, k: int, left_batch: tuple[int, ...] = (), right_batch: tuple[int, ...] = ()) -> Iterator[Case]:
    """Of n rows and columns, and k of the other side; batches of the first operand and of the others."""
    for lower, trans in product((True, False), repeat=2):
        a, b = (normal(*left_batch, *((k, n) if trans else (n, k)), seed=i) for i in (1, 2))
        x, y = (np.float64(mT(z) if trans else z) for z in (a, b))
        c = half(normal(*right_batch, n, n, seed=3), lower, others=NAN)
        old = half(np.float64(c), lower)
        flags = {"lower": lower, "trans": trans}
        yield Case("syrk", (a,), flags, _equals(half(x @ mT(x), lower), half(abs(x) @ abs(mT(x)), lower)), k)
        yield Case("syrk", (a, c), flags | {"alpha": 1.5, "beta": -0.5},
                   _equals(half(1.5 * x @ mT(x), lower) - 0.5 * old,
                           half(1.5 * abs(x) @ abs(mT(x)), lower) + abs(old)), k)
        yield Case("syr2k", (a, b, c), flags | {"alpha": -2.0, "beta": 0.5},
                   _equals(half(-2 * (x @ mT(y) + y @ mT(x)), lower) + 0.5 * old,
                           half(4 * abs(x) @ abs(mT(y)), lower) + half(4 * abs(y) @ abs(mT(x)), lower) + abs(old)), k)
        if lower:
            yield Case("gram", (a,), {"trans": trans}, _equals(x @ mT(x), abs(x) @ abs(mT(x))), k)
    for lower, left in product((True, False), repeat=2):
        a, b = normal(*left_batch, n, n, seed=1), normal(*right_batch, *((n, k) if left else (k, n)), seed=2)
        s = half(np.float64(a), lower)
        s = s + mT(s) - s * np.eye(n)
        want, scale = (s @ b, abs(s) @ abs(b)) if left else (b @ s, abs(b) @ abs(s))
        given, flags = half(a, lower, others=NAN), {"lower": lower, "left": left}
        yield Case("symm", (given, b), flags, _equals(want, scale), n)
        yield Case("symm", (given, b, b), flags | {"alpha": 2.0, "beta": 0.5},
                   _equals(2 * want + 0.5 * b, 2 * scale + abs(b)), n)


def complexes(n: int, k: int, left_batch: tuple[int, ...] = (), right_batch: tuple[int, ...] = ()) -> Iterator[Case]:
    """`products`, of complex64; what `herk` must not read of its c is NaN."""
    for lower, trans in product((True, False), repeat=2):
        a = drawn(*left_batch, *((k, n) if trans else (n, k)))
        x, flags = np.complex128(mT(a) if trans else a), {"lower": lower, "trans": trans}
        y = x.conj() if trans else x  # of herk
        of_t, of_h, scale = x @ mT(x), y @ mT(y).conj(), abs(x) @ abs(mT(x))
        c = half(drawn(*right_batch, n, n, seed=3), lower, others=NAN)
        old = half(np.complex128(c), lower)
        sizes = half(4 * scale, lower) + abs(old)
        yield Case("syrk", (a,), flags, _equals(half(of_t, lower), half(scale, lower)), 2 * k)
        yield Case("syrk", (a, c), flags | {"alpha": 1.5 - 1j, "beta": 0.5j},
                   _equals(half((1.5 - 1j) * of_t, lower) + 0.5j * old, sizes), 2 * k)
        yield Case("herk", (a,), flags, _hermitian(half(of_h, lower), half(scale, lower)), 2 * k)
        nothing = np.array(c)
        nothing.imag[..., range(n), range(n)] = NAN
        real = np.eye(n, dtype=bool)
        yield Case("herk", (a, nothing), flags | {"alpha": 1.5, "beta": -0.5},
                   _hermitian(half(1.5 * of_h, lower) - 0.5 * np.where(real, old.real, old), sizes), 2 * k)
        if lower:
            yield Case("gram", (a,), {"trans": trans}, _hermitian(of_h, scale, True), 2 * k)


def _hermitian(want: Any, scale: Any, whole: bool = False) -> Callable[[Any], tuple[Any, Any]]:
    def residual(result: Any) -> tuple[Any, Any]:
        assert not np.diagonal(result, axis1=-2, axis2=-1).imag.any()
        assert not whole or (result == mT(result).conj()).all()
        return _equals(want, scale)(result)

    return residual


def triangles(n: int, k: int, left_batch: tuple[int, ...] = (), right_batch: tuple[int, ...] = ()) -> Iterator[Case]:
    """`products`, of triangular matrices, and their solves."""
    for i, (lower, left, trans) in enumerate(product((True, False), repeat=3)):
        for function, unit in (("trmm", i % 2 == 1), ("trmm", i % 2 == 0), ("trsm", i % 2 == 0), ("trsm", i % 2 == 1)):
            a, b = triangular(*left_batch, n, n), normal(*right_batch, *((n, k) if left else (k, n)), seed=2)
            full = half(np.float64(a), lower, unit) + unit * np.eye(n)
            full = mT(full) if trans else full
            given = half(a, lower, unit, others=NAN)
            flags = {"lower": lower, "left": left, "trans": trans, "unit": unit, "alpha": 1.5}
            if function == "trmm":
                want, scale = (full @ b, abs(full) @ abs(b)) if left else (b @ full, abs(b) @ abs(full))
                yield Case("trmm", (given, b), flags, _equals(1.5 * want, 1.5 * scale), n)
            else:
                yield Case("trsm", (given, b), flags, _solves(full, 1.5 * b, left), n)
    for upper, left in product((False, True), repeat=2):
        a, b = triangular(*left_batch, n, n), normal(*right_batch, *((n, k) if left else (k, n)), seed=2)
        yield Case("solve_triangular", (half(a, not upper, others=NAN), b), {"upper": upper, "left": left},
                   _solves(half(np.float64(a), not upper), b, left), n)


def definites(n: int, k: int, left_batch: tuple[int, ...] = (), right_batch: tuple[int, ...] = ()) -> Iterator[Case]:
    """`products`, of positive definite matrices."""
    for upper in (False, True):
        a, b = definite(*left_batch, n, n), normal(*right_batch, n, k, seed=2)
        given = half(a, not upper, others=NAN)
        factor = np.linalg.cholesky(np.float64(a)).astype(np.float32)
        square = np.float64(factor) @ mT(np.float64(factor))
        factor = half(mT(factor) if upper else factor, not upper, others=NAN)
        flags = {"upper": upper}
        yield Case("cholesky", (given,), flags, _factors(a, upper), n)
        yield Case("cholesky_solve", (b, factor), flags, _solves(square, b, True), 2 * n)
        yield Case("cholesky_inverse", (factor,), flags, _inverts(square), 2 * n)
        yield Case("solve", (given, b), flags | {"assume_a": "pos"}, _solves(a, b, True), 3 * n)


def generals(n: int, k: int, left_batch: tuple[int, ...] = (), right_batch: tuple[int, ...] = ()) -> Iterator[Case]:
    """`products`, of general matrices."""
    a, b = normal(*left_batch, n, n, seed=1) + 2 * np.eye(n, dtype="f4"), normal(*right_batch, n, k, seed=2)
    yield Case("solve", (a, b), {}, _solves(a, b, True), 3 * n)
    yield Case("inv", (a,), {}, _solves(a, np.eye(n), True), 3 * n)
    factors, pivots, product_ = lu(a)
    for left, trans in product((True, False), repeat=2):
        yield Case("lu_solve", (factors, pivots, b if left else mT(b).copy()), {"left": left, "trans": trans},
                   _solves(mT(product_) if trans else product_, b if left else mT(b), left), 2 * n)


def lu(a: Any) -> tuple[Any, Any, Any]:
    """L and U in one matrix in float32, LAPACK's pivots, and ``P L U`` of these in FP64."""
    factors, pivots, rounded = np.float64(a).copy(), np.empty(a.shape[:-1], np.int32), np.empty(a.shape)
    n = a.shape[-1]
    for index in np.ndindex(a.shape[:-2]):
        x, rows = factors[index], np.arange(n)
        for i in range(n):
            pivot = i + int(np.argmax(abs(x[i:, i])))
            pivots[(*index, i)] = pivot + 1
            x[[i, pivot]], rows[[i, pivot]] = x[[pivot, i]], rows[[pivot, i]]
            x[i + 1:, i] /= x[i, i]
            x[i + 1:, i + 1:] -= x[i + 1:, i, None] * x[i, i + 1:]
        of = np.float64(np.float32(x))
        rounded[(*index, rows)] = (np.tril(of, -1) + np.eye(n)) @ np.triu(of)
    return factors.astype("f4"), pivots, rounded


def orthogonals(n: int, k: int, left_batch: tuple[int, ...] = (), right_batch: tuple[int, ...] = ()) -> Iterator[Case]:
    """`products`, of QR factorizations and least squares: tall, wide and square, and with dependent columns."""
    for rows, columns in ((n, k), (k, n), (k, k)):
        a, b = normal(*left_batch, rows, columns), normal(*right_batch, rows, 3, seed=2)
        for mode in ("reduced", "complete"):
            yield Case("qr", (a,), {"mode": mode}, _orthonormal(a, mode), rows, "Q")
        yield Case("qr", (a,), {}, _triangle_of(a), rows, "R")
        yield Case("qr", (a,), {"mode": "r"}, _triangle_of(a), rows)
        if rows != columns:
            yield Case("lstsq", (a, b), {}, _least_squares(a, b), 4 * rows, "solution")
    a = normal(*left_batch, n, k)
    a[..., ::3] *= 0
    a[..., 1::4] = a[..., :1] + a[..., 1:2]
    yield Case("qr", (a,), {"mode": "reduced"}, _orthonormal(a, "reduced"), n, "Q")


def _orthonormal(a: Any, mode: str) -> Callable[[Any], tuple[Any, Any]]:
    rows, columns = a.shape[-2:]

    def residual(q: Any) -> tuple[Any, Any]:
        assert q.shape == (*a.shape[:-1], rows if mode == "complete" else min(rows, columns))
        r = np.triu(mT(q) @ a)
        norms = np.linalg.norm(np.float64(a), axis=-2, keepdims=True)
        both = [mT(q) @ q - np.eye(q.shape[-1]), (q @ r - a) / np.where(norms > 0, norms, 1)]
        return np.concatenate([x.reshape(*q.shape[:-2], 1, -1) for x in both], -1), np.ones((1, 1))

    return residual


def _triangle_of(a: Any) -> Callable[[Any], tuple[Any, Any]]:
    def residual(r: Any) -> tuple[Any, Any]:
        assert r.shape == (*a.shape[:-2], min(a.shape[-2:]), a.shape[-1])
        assert not np.tril(r, -1).any() and (np.diagonal(r, axis1=-2, axis2=-1) >= 0).all()
        norms = np.linalg.norm(np.float64(a), axis=-2)
        return mT(r) @ r - mT(np.float64(a)) @ a, norms[..., :, None] * norms[..., None, :]

    return residual


def _least_squares(a: Any, b: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Errors of a well-conditioned problem."""
    def residual(x: Any) -> tuple[Any, Any]:
        inverse = np.linalg.pinv(np.float64(a))
        want = inverse @ b
        condition = np.linalg.norm(inverse, axis=(-2, -1)) * np.linalg.norm(a, axis=(-2, -1))
        assert x.shape == want.shape
        size = np.linalg.norm(want, axis=-2)
        size = size + np.linalg.norm(inverse, axis=(-2, -1))[..., None] * np.linalg.norm(b, axis=-2)
        return x - want, (condition[..., None] * size)[..., None, :]

    return residual


def _equals(want: Any, scale: Any) -> Callable[[Any], tuple[Any, Any]]:
    def residual(result: Any) -> tuple[Any, Any]:
        assert result.shape == np.broadcast_shapes(want.shape, result.shape[:-2] + want.shape[-2:]), result.shape
        return result - want, scale

    return residual


def _solves(a: Any, b: Any, left: bool) -> Callable[[Any], tuple[Any, Any]]:
    def residual(x: Any) -> tuple[Any, Any]:
        assert x.shape[-2:] == b.shape[-2:]
        value, scale = (a @ x, abs(a) @ abs(x)) if left else (x @ a, abs(x) @ abs(a))
        return value - b, scale

    return residual


def _factors(a: Any, upper: bool) -> Callable[[Any], tuple[Any, Any]]:
    def residual(factor: Any) -> tuple[Any, Any]:
        assert not half(factor, upper, unit=True).any(), "zeros in the other triangle"
        lower = mT(factor) if upper else factor
        return lower @ mT(lower) - a, abs(lower) @ abs(mT(lower))

    return residual


def _inverts(a: Any) -> Callable[[Any], tuple[Any, Any]]:
    def residual(inverse: Any) -> tuple[Any, Any]:
        assert (inverse == mT(inverse)).all()
        return inverse @ a - np.eye(a.shape[-1]), abs(inverse) @ abs(a)

    return residual


# Calls without a result, of what makes an array of zeros, and its shape.
EMPTY: list[tuple[Callable[[Callable[..., Any]], Any], tuple[int, ...]]] = [
    (lambda zeros: linalg.syrk(zeros((0, 4), "f4")), (0, 0)),
    (lambda zeros: linalg.herk(zeros((2, 0, 4), "c8")), (2, 0, 0)),
    (lambda zeros: linalg.gram(zeros((0, 3, 4), "c8"), trans=True), (0, 4, 4)),
    (lambda zeros: linalg.syr2k(*(zeros((2, 0, 3, 4), "f4"),) * 2), (2, 0, 3, 3)),
    (lambda zeros: linalg.gram(zeros((4, 0), "f4"), trans=True), (0, 0)),
    (lambda zeros: linalg.symm(zeros((4, 4), "f4"), zeros((4, 0), "f4")), (4, 0)),
    (lambda zeros: linalg.trmm(zeros((0, 0), "f4"), zeros((2, 0, 3), "f4")), (2, 0, 3)),
    (lambda zeros: linalg.trsm(zeros((0, 3, 3), "f4"), zeros((3, 2), "f4")), (0, 3, 2)),
    (lambda zeros: linalg.trsm(zeros((3, 3), "f4"), zeros((0, 3), "f4"), left=False), (0, 3)),
    (lambda zeros: linalg.solve_triangular(zeros((3, 3), "f4"), zeros((3, 0), "f4"), upper=True), (3, 0)),
    (lambda zeros: linalg.cholesky(zeros((2, 0, 0), "f4")), (2, 0, 0)),
    (lambda zeros: linalg.cholesky(zeros((0, 3, 3), "f4"), upper=True), (0, 3, 3)),
    (lambda zeros: linalg.cholesky_ex(zeros((2, 0, 0), "f4"))[1], (2,)),
    (lambda zeros: linalg.cholesky_solve(zeros((0, 2), "f4"), zeros((0, 0), "f4")), (0, 2)),
    (lambda zeros: linalg.cholesky_inverse(zeros((0, 0), "f4")), (0, 0)),
    (lambda zeros: linalg.solve(zeros((0, 0), "f4"), zeros((0,), "f4")), (0,)),
    (lambda zeros: linalg.solve(zeros((0, 0), "f4"), zeros((0,), "f4"), assume_a="pos"), (0,)),
    (lambda zeros: linalg.lu_factor(zeros((2, 0, 3), "f4"))[0], (2, 0, 3)),
    (lambda zeros: linalg.lu_factor(zeros((2, 3, 0), "f4"))[1], (2, 0)),
    (lambda zeros: linalg.lu_solve(zeros((0, 0), "f4"), zeros((0,), "i4"), zeros((0, 2), "f4")), (0, 2)),
    (lambda zeros: linalg.inv(zeros((0, 3, 3), "f4")), (0, 3, 3)),
    (lambda zeros: linalg.det(zeros((0, 3, 3), "f4")), (0,)),
    (lambda zeros: linalg.qr(zeros((0, 3), "f4")).Q, (0, 0)),
    (lambda zeros: linalg.qr(zeros((2, 3, 0), "f4")).R, (2, 0, 0)),
    (lambda zeros: linalg.qr(zeros((0, 5, 3), "f4"), mode="complete").R, (0, 5, 3)),
    (lambda zeros: linalg.qr(zeros((0, 3), "f4"), mode="r"), (0, 3)),
    (lambda zeros: linalg.qr_ex(zeros((2, 0, 3), "f4")).rank, (2,)),
    (lambda zeros: linalg.lstsq(zeros((5, 0), "f4"), zeros((5, 2), "f4")).solution, (0, 2)),
    (lambda zeros: linalg.lstsq(zeros((0, 5, 3), "f4"), zeros((5, 2), "f4")).residuals, (0, 2))]

LAYOUTS: dict[str, Callable[[Any], Any]] = {  # how the same values may lie in memory
    "rows": lambda x: x,
    "columns": lambda x: mT(mT(x).copy()),
    "padded": lambda x: np.concatenate([x, x[..., :3] * NAN, x[..., :2] * NAN], -1)[..., :x.shape[-1]],
    "strided": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
}


def laid_out(cases: Iterator[Case], kinds: Sequence[str] = tuple(LAYOUTS)) -> Iterator[Case]:
    """The cases with operands in one layout after the other."""
    layouts = cycle(kinds)
    for case in cases:
        yield case._replace(operands=tuple(x if x.dtype == np.int32 else LAYOUTS[next(layouts)](x)
                                           for x in case.operands))


# ---- programs without a GPU -------------------------------------------------------------------------------------


class Interpreter:
    """Calls on NumPy arrays as if they lay on a device: ``programs`` are what was bound, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.programs: list[Program] = []
        library, recorder = stand_in.StandIn(), self

        class Bound:
            def __init__(self, program: Program, gpu: Any) -> None:
                self.program, self.workspace_bytes = program, program.bytes
                recorder.programs.append(program)

            def run(self, workspace: int, buffers: Sequence[int], stream: int) -> None:
                assert stream == stand_in.STREAM
                nothing = np.full(4, NAN)  # where an array without elements lies
                interpret(self.program, [library.memory.flat(address & -16) if address else nothing
                                         for address in buffers])

        def clear(pointer: int, size: int, stream: int) -> None:
            if size:
                library.memory.flat(pointer)[:size // 4] = 0

        for module in (call, complex):
            patch.setattr(module, "locate", lambda arrays, dtype="float32": (library, 0))
        patch.setattr(call.device, "require", lambda index: stand_in.GPU)
        patch.setattr(call.memory, "clear", clear)
        patch.setattr(call, "BoundProgram", Bound)
        patch.setattr(call, "calls", kept := {})
        patch.setattr(call, "remember", lambda key, bound: kept.setdefault(key, bound))


_SPARE = 1 << 10  # floats behind a workspace, that nothing may touch
_AROUND = -777.25


def interpret(program: Program, buffers: Sequence[Any], sms: int = 4) -> None:
    """Run the steps of a program on NumPy arrays: ``buffers[i]`` is buffer i + 1, flat and at its start.

    Raises:
        AssertionError: a step wrote behind the workspace.
    """
    workspace = np.full(program.bytes // 4 + _SPARE, _AROUND, "f4")
    memory = {WORKSPACE: workspace} | dict(enumerate(buffers, 1))
    for what, places in program.steps:
        flat = [memory[buffer][offset // 4:] for buffer, offset in places]
        if isinstance(what, Problem):
            _multiply(what, *flat)
        else:
            _launch(what, flat)
    assert (workspace[program.bytes // 4:] == _AROUND).all()


def _launch(launch: Launch, flat: list[Any]) -> None:
    arguments = [flat[i] for i in launch.convention.addresses]
    report = run(launch.recipe.make("ptx"), grid=launch.blocks, block=launch.threads,
                 args=[*arguments, *launch.convention.unpack(launch.arguments)], arch=launch.recipe.arch,
                 shared_bytes=launch.shared_bytes, cluster=launch.cluster)
    assert report.clean, str(report)


def _multiply(p: Problem, a: Any, b: Any, old: Any, out: Any) -> None:
    """The product in FP64, rounded once; what is not asked for stays as it is."""
    left = _matrices(a, p.batch, p.batch.a, *((p.k, p.m) if p.trans_a else (p.m, p.k)), (p.lda, 1))
    right = _matrices(b, p.batch, p.batch.b, *((p.n, p.k) if p.trans_b else (p.k, p.n)), (p.ldb, 1))
    target = _matrices(out, p.batch, p.batch.c, p.m, p.n, (p.ldc, 1))
    left, right = (np.swapaxes(x, -1, -2) if turned else x for x, turned in ((left, p.trans_a), (right, p.trans_b)))
    for read in (left, right):
        assert not np.shares_memory(read, target), "a product reads what it writes"
    value = p.alpha * (left.astype(float) @ right.astype(float)) if p.alpha else np.zeros(target.shape)
    if p.beta:
        value += p.beta * _matrices(old, p.batch, p.batch.c0, p.m, p.n, p.c0 or (p.ldc, 1))
    wanted = {Triangle.NONE: np.ones((p.m, p.n), bool), Triangle.LOWER: np.tril(np.ones((p.m, p.n), bool)),
              Triangle.UPPER: np.triu(np.ones((p.m, p.n), bool))}[p.triangle]
    target[...] = np.where(wanted, value, target)


def _matrices(flat: Any, batch: Batch, steps: tuple[int, ...], rows: int, columns: int,
              strides: tuple[int, int]) -> Any:
    return np.lib.stride_tricks.as_strided(flat, (*batch.sizes, rows, columns), [4 * s for s in (*steps, *strides)])
