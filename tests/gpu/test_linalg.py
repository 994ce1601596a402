"""`peakgemm.linalg` on the GPU: every call, arrays of every library, streams, graphs, memory; and hostile triangles
beside torch's own solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch for their memory")

import linalg_case  # noqa: E402
from linalg_case import Case, definite, drawn, half, laid_out, normal, triangular  # noqa: E402
from peakgemm import linalg  # noqa: E402
from peakgemm.errors import InvalidValue, OutOfMemory  # noqa: E402
from peakgemm.tools.accuracy.linalg import FAMILIES  # noqa: E402

DEVICE = "cuda"
PRECISIONS = pytest.mark.parametrize("precision", ["ieee", "emulated"])
TABLES = (linalg_case.products, linalg_case.complexes, linalg_case.triangles, linalg_case.definites,
          linalg_case.generals, linalg_case.orthogonals)
KINDS = ("rows", "columns", "padded", "strided")  # torch has no negative strides
SMALL = [case for table in TABLES for case in laid_out(table(37, 20), KINDS)]
BATCHED = [case for table in TABLES for case in list(laid_out(table(40, 9, (2, 1), (3,)), KINDS))[::3]]
LARGE = [case for table in TABLES for case in list(table(300, 70))[::4]]
ONE_EACH = list({(case.function, case.operands[0].dtype): case for table in TABLES for case in table(70, 40)}.values())


def tensor(x: Any) -> Any:
    """On the GPU, with the strides that it has."""
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    if x.dtype == np.int32:  # pivots
        return torch.from_numpy(x).to(DEVICE)
    start = (x.__array_interface__["data"][0] - root.__array_interface__["data"][0]) // x.itemsize
    flat = torch.from_numpy(root.ravel("K").copy()).to(DEVICE)
    return flat.as_strided(x.shape, [step // x.itemsize for step in x.strides], start)


def numpy(x: Any) -> Any:
    return np.asarray(x.get() if hasattr(x, "get") else x.cpu() if hasattr(x, "cpu") else x)


@PRECISIONS
@pytest.mark.parametrize("case", SMALL + BATCHED + LARGE, ids=str)
def test_calls(case: Case, precision: str) -> None:
    for _ in range(2):  # what is recorded, and the same again
        case.check(numpy(case.run(tensor, precision=precision)))


@PRECISIONS
@pytest.mark.parametrize("table", TABLES)
def test_many_columns(table: Callable[[int, int], Iterator[Case]], precision: str) -> None:
    """So many that wide blocks are inverted."""
    for i, case in enumerate(table(1300, 2100)):
        if i % 7 == 1:
            case.check(numpy(case.run(tensor, precision=precision)))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 127, 128, 129, 255, 257, 511, 513, 1025, 1537])
def test_sizes_beside_those_of_blocks(n: int) -> None:
    for case in [*linalg_case.definites(n, 3), *list(linalg_case.triangles(n, 3))[::3],
                 *linalg_case.orthogonals(n, 3)]:
        case.check(numpy(case.run(tensor)))


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
@pytest.mark.parametrize("library", ["NumPy", "CuPy", "JAX"])
def test_arrays_of_other_libraries(library: str, case: Case) -> None:
    def convert(x: Any) -> Any:
        return x

    if library == "CuPy":
        convert = pytest.importorskip("cupy").asarray
    if library == "JAX":
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX has no GPU here")
        convert = jax.numpy.asarray
    result = case.run(convert)
    assert type(result) is type(convert(np.ones((1, 1), np.float32)))
    if result.dtype == np.complex64:
        case.check(numpy(case.run(convert, precision="emulated-3m")))
    case.check(numpy(result))
    info = linalg.cholesky_ex(convert(definite(2, 9, 9)))[1]
    assert numpy(info).tolist() == [0, 0] and numpy(info).dtype == np.int32


@PRECISIONS
def test_under_jit(precision: str) -> None:
    """In one program, mapped, and in a loop: what eager calls give, bit by bit; info is of each call. XLA captures it
    where XLA_FLAGS has --xla_gpu_enable_command_buffer=+CUSTOM_CALL."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    for case in (case.traced for case in ONE_EACH if case.traced):
        def call(*operands: Any, case: Any = case) -> Any:
            return case._replace(operands=operands).run(precision=precision)

        operands = [jax.numpy.asarray(x) for x in case.operands]
        program, want = jax.jit(call), numpy(call(*operands))
        for _ in range(3):  # a graph is replayed
            assert np.array_equal(numpy(program(*operands)), want), case
        case.check(want)
    s = np.stack([definite(300, 300, seed=i) for i in range(3)])
    s[1, 200, 200] = -1

    def steps(s: Any, b: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            factor, info = linalg.cholesky_ex(s, precision=precision)
            return x + linalg.cholesky_solve(b - s @ x, factor, precision=precision), info

        return jax.lax.scan(step, 0 * b, None, 2)

    b = normal(3, 300, 7)
    with jax.default_matmul_precision("highest"):
        x, info = jax.jit(jax.vmap(steps))(s, b)
    assert numpy(info).tolist() == [[0, 0], [201, 201], [0, 0]]
    for i in (0, 2):
        np.testing.assert_allclose(numpy(x)[i], np.linalg.solve(np.float64(s[i]), b[i]), atol=1e-4)


@pytest.mark.parametrize(("call", "shape"), linalg_case.EMPTY)
def test_sizes_of_zero(call: Callable[..., Any], shape: tuple[int, ...]) -> None:
    dtypes = {"f4": torch.float32, "i4": torch.int32, "c8": torch.complex64}
    assert tuple(call(lambda shape, dtype: torch.zeros(shape, dtype=dtypes[dtype], device=DEVICE)).shape) == shape
    assert call(np.zeros).shape == shape


def test_sums_of_nothing() -> None:
    old = torch.randn(5, 5, device=DEVICE)
    assert torch.equal(linalg.syrk(old[:, :0], old, beta=2.0), (2 * old).tril())
    assert not linalg.gram(np.zeros((0, 3), np.float32), trans=True).any()


@PRECISIONS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [40, 300])
def test_out(n: int, kind: str, precision: str) -> None:
    """The other triangle stays, and what lies beside the matrix; some operands may be overwritten."""
    a, old = tensor(normal(n, 70)), normal(n, n)
    product = (a.double() @ a.double().mT).float()
    for lower in (True, False):
        out = tensor(linalg_case.LAYOUTS[kind](old.copy()))
        before = out.clone()
        assert linalg.syrk(a, out, out=out, lower=lower, precision=precision) is out
        one, other = (torch.tril, torch.triu) if lower else (torch.triu, torch.tril)
        torch.testing.assert_close(one(out), one(product + before), atol=1e-4, rtol=1e-5)
        assert torch.equal(other(out, 1 if lower else -1), other(before, 1 if lower else -1))
        s = tensor(linalg_case.LAYOUTS[kind](definite(n, n)))
        want = linalg.cholesky(s, upper=not lower, precision=precision)
        assert linalg.cholesky(s, upper=not lower, out=s, precision=precision) is s
        torch.testing.assert_close(s, want, atol=1e-5, rtol=1e-5)  # another layout may have another kernel
        t, b = tensor(triangular(n, n)), tensor(linalg_case.LAYOUTS[kind](normal(n, 9)))
        want = linalg.trsm(t, b, lower=lower, precision=precision)
        version = b._version
        assert linalg.trsm(t, b, lower=lower, out=b, precision=precision) is b and b._version > version
        torch.testing.assert_close(b, want, atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidValue, match="out overlaps a"):
        linalg.cholesky(t, out=t.mT)


@pytest.mark.parametrize("precision", ["ieee", "emulated", "emulated-3m"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", [40, 300, 1100])
def test_complex_triangles(n: int, lower: bool, precision: str) -> None:
    """Beside torch's product in FP64: of lazy conjugates, into every layout, in place; the other triangle stays."""
    a, old = tensor(drawn(n, 70)), drawn(n, n)
    one, other = (torch.tril, torch.triu) if lower else (torch.triu, torch.tril)
    exact = a.cdouble()
    for kind in KINDS:
        for function, x, product in (("herk", a, exact @ exact.mH), ("herk", a.conj(), (exact @ exact.mH).conj()),
                                     ("syrk", a, exact @ exact.mT), ("syrk", a.conj(), (exact @ exact.mT).conj())):
            out = tensor(linalg_case.LAYOUTS[kind](old.copy()))
            before = out.clone()
            want = product * 2 + before.cdouble() * 0.5
            call = getattr(linalg, function)
            assert call(x, out, alpha=2.0, beta=0.5, out=out, lower=lower, precision=precision) is out
            if function == "herk":
                want.diagonal().imag[...] = 0
                assert not out.diagonal().imag.any()
            torch.testing.assert_close(one(out), one(want).to(out.dtype), atol=3e-4, rtol=1e-5)
            assert torch.equal(other(out, 1 if lower else -1), other(before, 1 if lower else -1))
    whole = linalg.gram(a, trans=not lower, precision=precision)
    assert torch.equal(whole, whole.mH) and whole.shape == ((n, n) if lower else (70, 70))
    want = exact @ exact.mH if lower else exact.mH @ exact
    torch.testing.assert_close(whole, want.to(whole.dtype), atol=3e-4, rtol=1e-5)


@PRECISIONS
def test_info(precision: str) -> None:
    """Of each matrix of a batch, in several blocks; nothing of one is another's."""
    n = 700
    batch = torch.from_numpy(definite(n, n)).to(DEVICE).repeat(6, 1, 1)
    orders = [0, 1, 128, 129, 641, 700]
    for matrix, order in zip(batch, orders, strict=True):
        if order:
            matrix[order - 1, order - 1] = float("nan") if order % 2 else -1.0
    factor, info = linalg.cholesky_ex(batch, precision=precision)
    assert info.tolist() == orders and info.dtype == torch.int32 and info.device == batch.device
    want = linalg.cholesky(batch[0], precision=precision)
    torch.testing.assert_close(factor[0], want, atol=1e-5, rtol=1e-5)
    with pytest.raises(linalg.NotPositiveDefinite, match=r"matrix \(1,\) of the batch .* order 1 "):
        linalg.cholesky(batch, precision=precision)


@PRECISIONS
def test_nothing_waits_for_the_gpu(precision: str) -> None:
    """Warm calls are enqueued while the GPU is busy, and info is read when it is asked for."""
    s, b = tensor(definite(300, 300)), tensor(normal(300, 40))

    def calls() -> tuple[Any, ...]:
        factor, info = linalg.cholesky_ex(s, precision=precision)
        return (*linalg.qr_ex(b, precision=precision), *linalg.lstsq_ex(s, b, precision=precision),
                factor, info, linalg.trsm(factor, b, precision=precision), linalg.syrk(b, precision=precision),
                linalg.cholesky_solve(b, factor, precision=precision), linalg.cholesky_inverse(factor))

    want = calls()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(1_000_000_000)
        got = calls()
        assert not torch.cuda.current_stream().query(), "a call has waited for the GPU"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@PRECISIONS
def test_streams(precision: str) -> None:
    """On the current stream and on one that is named, after what was enqueued there and before what follows; memory is
    not given to others meanwhile."""
    s, b = tensor(definite(600, 600)), tensor(normal(600, 40))
    want = linalg.cholesky_solve(b, linalg.cholesky_ex(s, precision=precision)[0], precision=precision)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        late = s * torch.ones_like(s)  # written after the pause
        factor = linalg.cholesky_ex(late, precision=precision)[0]
        got = linalg.cholesky_solve(b, factor, precision=precision)
        del late, factor
        others = [torch.full_like(s, float("nan")) for _ in range(4)]
    torch.cuda.synchronize()
    assert torch.equal(got, want)
    copy = s.clone()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    factor = linalg.cholesky_ex(copy, precision=precision, stream=side)[0]
    got = linalg.cholesky_solve(b, factor, precision=precision, stream=side)
    del copy, factor
    others += [torch.full_like(s, float("nan")) for _ in range(4)]
    torch.cuda.synchronize()
    assert torch.equal(got, want) and len(others) == 8


def test_threads() -> None:
    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for case in ONE_EACH[seed % 3::3] * 3:
                result = case.run(tensor)
                stream.synchronize()
                case.check(numpy(result))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


@PRECISIONS
def test_graphs(precision: str) -> None:
    """Warm calls are captured, and replayed on new values; info is cleared by each replay."""
    s, b = tensor(definite(2, 300, 300)), tensor(normal(300, 40))

    def calls() -> tuple[Any, ...]:
        factor, info = linalg.cholesky_ex(s, precision=precision)
        return (factor, info, linalg.trsm(factor, b, precision=precision), linalg.gram(b, precision=precision),
                *linalg.qr_ex(s, precision=precision))

    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = calls()
    for seed, order in ((3, 0), (4, 200), (5, 0)):
        s.copy_(torch.from_numpy(definite(2, 300, 300, seed=seed)))
        b.copy_(torch.from_numpy(normal(300, 40, seed=seed)))
        if order:
            s[1, order - 1, order - 1] = -1
        graph.replay()
        want = calls()
        assert captured[1].tolist() == [0, order]
        assert all(torch.equal(x[:1], y[:1]) for x, y in zip(captured, want, strict=True))


def test_no_room_for_the_workspace() -> None:
    """The message has its bytes; nothing is written, and what fits afterwards is computed."""
    n = 4096
    s = torch.eye(n, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (24 << 20)) / total)
    try:
        with pytest.raises(OutOfMemory, match=rf"workspace of [\d,]+ bytes for cholesky of a \({n}, {n}\) does not"):
            linalg.cholesky_ex(s, out=s)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(s, torch.eye(n, device=DEVICE))
    assert torch.equal(linalg.cholesky_ex(s, out=s)[0], torch.eye(n, device=DEVICE))


def backward_error(a: Any, b: Any, x: Any, left: bool) -> float:
    rest, size = (a @ x - b, a.abs() @ x.abs()) if left else (x @ a - b, x.abs() @ a.abs())
    return float(torch.linalg.norm(rest) / torch.linalg.norm(size))


@PRECISIONS
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_triangles(family: str, precision: str) -> None:
    """From each side, upper and lower ones: the backward error is at most 1.2 of torch's, or below a tenth of the
    textbook's bound. `peakgemm accuracy --suite linalg` judges lower ones from the left, and what else there is."""
    n = 1000
    draw = np.random.default_rng(5)

    def randn(*shape: int) -> Any:
        return torch.from_numpy(draw.standard_normal(shape)).to(DEVICE)

    lower, x = FAMILIES[family](randn, n), randn(n, 50)
    for exact, upper, left in ((lower, False, False), (lower.mT, True, True), (lower.mT, True, False)):
        b = exact @ x if left else x.mT @ exact
        a, b = exact.float(), b.float()
        ours, theirs = (backward_error(a.double(), b.double(), solution.double(), left) for solution in (
            linalg.solve_triangular(a, b, upper=upper, left=left, precision=precision),
            torch.linalg.solve_triangular(a, b, upper=upper, left=left)))
        assert ours <= max(1.2 * theirs, 0.1 * n * 2.0**-24), f"{ours:.2e}, torch {theirs:.2e}, {upper=}, {left=}"


def columns(name: str, m: int, n: int) -> Any:
    """Hostile columns in FP64, on the GPU."""
    draw = torch.Generator(DEVICE).manual_seed(7)

    def randn(*shape: int) -> Any:
        return torch.randn(*shape, generator=draw, device=DEVICE, dtype=torch.float64)

    def conditioned(condition: float) -> Any:
        left, right = torch.linalg.qr(randn(m, n))[0], torch.linalg.qr(randn(n, n))[0]
        return left * condition ** -torch.linspace(0, 1, n, device=DEVICE, dtype=torch.float64) @ right

    half, zeros = randn(m, n // 2), randn(m, n)
    zeros[:, ::3] = 0
    steps = torch.arange(n, device=DEVICE, dtype=torch.float64)
    return {"normal": lambda: randn(m, n), "graded": lambda: randn(m, n) * 10 ** (-8 * steps / n),
            "1e3": lambda: conditioned(1e3), "1e6": lambda: conditioned(1e6), "1e8": lambda: conditioned(1e8),
            "duplicates": lambda: torch.cat([half, half], 1), "half": lambda: half @ randn(n // 2, n),
            "nearly half": lambda: half @ randn(n // 2, n) + 1e-6 * randn(m, n), "zero columns": lambda: zeros,
            "ones": lambda: zeros * 0 + 1,
            "rows": lambda: randn(m, n) * 2.0 ** (40 * randn(m, 1).sign()),
            "tiny": lambda: 1e-30 * randn(m, n), "huge": lambda: 1e30 * randn(m, n),
            "Vandermonde": lambda: (torch.arange(m, device=DEVICE)[:, None] / (m - 1.0)).double() ** steps}[name]()


@PRECISIONS
@pytest.mark.parametrize(("m", "n"), [(300, 300), (1100, 1100), (3000, 700)])
@pytest.mark.parametrize("family", ["normal", "graded", "1e3", "1e6", "1e8", "duplicates", "half", "nearly half",
                                    "zero columns", "ones", "rows", "tiny", "huge", "Vandermonde"])
def test_hostile_columns(family: str, m: int, n: int, precision: str) -> None:
    """Columns' errors are at most 1.2 of torch's, or below a tenth of the textbook's bound; Q is at most twice as far
    from orthonormal as Householder's."""
    a = columns(family, m, n).float()

    def errors(q: Any, r: Any) -> tuple[float, float, float]:
        exact, q, r = a.double(), q.double(), r.double()
        norms = exact.norm(dim=0)
        unit = q.mT @ q - torch.eye(n, device=DEVICE, dtype=torch.float64)
        backward = (q @ r - exact).norm(dim=0) / torch.where(norms > 0, norms, 1)
        return float(backward.max()), float(unit.norm()), float(unit.abs().max())

    q, r, rank = linalg.qr_ex(a, precision=precision)
    ours, theirs = errors(q, r), errors(*torch.linalg.qr(a))
    assert ours[0] <= max(1.2 * theirs[0], 0.1 * m * n * 2.0**-24), (ours, theirs)
    assert ours[1] <= 2 * max(theirs[1], n / 2 * 2.0**-24), (ours, theirs)
    assert ours[2] <= 2 * max(theirs[2], 8 * 2.0**-24), (ours, theirs)
    assert not r.tril(-1).any() and (r.diagonal() >= 0).all()
    if family in ("normal", "graded", "tiny", "huge", "1e3"):
        assert rank == n
    elif family in ("duplicates", "half", "ones"):
        assert rank == (1 if family == "ones" else n // 2)


@PRECISIONS
def test_least_squares(precision: str) -> None:
    """Beside torch's in FP64: as far off as torch's is in FP32, at most twice."""
    a, b = (tensor(normal(*shape)) for shape in ((4000, 600), (4000, 5)))
    want = torch.linalg.lstsq(a.double(), b.double())
    ours, theirs = linalg.lstsq(a, b, precision=precision), torch.linalg.lstsq(a, b)
    errors = [float((x.solution.double() - want.solution).norm()) for x in (ours, theirs)]
    assert errors[0] <= 2 * errors[1] and ours.rank == 600
    torch.testing.assert_close(ours.residuals.double(), want.residuals, rtol=1e-4, atol=0)
    wide = linalg.lstsq(a.mT, b[:600], precision=precision).solution
    want = torch.linalg.pinv(a.mT.double()) @ b[:600].double()
    torch.testing.assert_close(wide.double(), want, rtol=1e-3, atol=1e-5)
    a[:, 7] = a[:, 3]
    with pytest.raises(linalg.RankDeficient, match="matrix has rank 599 of 600"):
        linalg.lstsq(a, b, precision=precision)


def test_zeros_on_a_diagonal() -> None:
    """No finite solution and no error, as in BLAS; what is solved before it is right."""
    a, b = half(triangular(300, 300), True), normal(300, 5)
    a[200, 200] = 0
    x = numpy(linalg.trsm(tensor(a), tensor(b)))
    assert not np.isfinite(x[200]).any()
    head = a[:128, :128].astype(float)
    assert abs(head @ x[:128] - b[:128]).max() <= 300 * 2.0**-24 * (abs(head) @ abs(x[:128])).max()
