"""`peakgemm.linalg` on the GPU: every call, arrays of every library, streams, graphs, memory; and hard matrices, beside
torch's own results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch for their memory")

import linalg_case  # noqa: E402
from linalg_case import Case, definite, half, laid_out, normal, triangular  # noqa: E402
from peakgemm import linalg  # noqa: E402
from peakgemm.errors import InvalidValue, OutOfMemory  # noqa: E402

DEVICE = "cuda"
PRECISIONS = pytest.mark.parametrize("precision", ["ieee", "emulated"])
TABLES = (linalg_case.products, linalg_case.triangles, linalg_case.definites)
KINDS = ("rows", "columns", "padded", "strided")  # torch has no negative strides
SMALL = [case for table in TABLES for case in laid_out(table(37, 20), KINDS)]
BATCHED = [case for table in TABLES for case in list(laid_out(table(40, 9, (2, 1), (3,)), KINDS))[::3]]
LARGE = [case for table in TABLES for case in [*list(table(300, 70))[::4], *list(table(1300, 2100))[1::7]]]
ONE_EACH = list({case.function: case for table in TABLES for case in table(70, 40)}.values())


def tensor(x: Any) -> Any:
    """On the GPU, with the strides that it has."""
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    start = (x.__array_interface__["data"][0] - root.__array_interface__["data"][0]) // 4
    flat = torch.from_numpy(root.ravel("K").copy()).to(DEVICE)
    return flat.as_strided(x.shape, [step // 4 for step in x.strides], start)


def numpy(x: Any) -> Any:
    return np.asarray(x.get() if hasattr(x, "get") else x.cpu() if hasattr(x, "cpu") else x)


@PRECISIONS
@pytest.mark.parametrize("case", SMALL + BATCHED + LARGE, ids=str)
def test_calls(case: Case, precision: str) -> None:
    for _ in range(2):  # what is recorded, and the same again
        case.check(numpy(case.run(tensor, precision=precision)))


@pytest.mark.parametrize("n", [1, 31, 32, 33, 127, 128, 129, 255, 257, 511, 513, 1025, 1537])
def test_sizes_beside_those_of_blocks(n: int) -> None:
    for case in [*linalg_case.definites(n, 3), *list(linalg_case.triangles(n, 3))[::3]]:
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
    case.check(numpy(result))
    info = linalg.cholesky_ex(convert(definite(2, 9, 9)))[1]
    assert numpy(info).tolist() == [0, 0] and numpy(info).dtype == np.int32


@pytest.mark.parametrize(("call", "shape"), linalg_case.EMPTY)
def test_sizes_of_zero(call: Callable[..., Any], shape: tuple[int, ...]) -> None:
    assert tuple(call(lambda shape, dtype: torch.zeros(shape, device=DEVICE)).shape) == shape
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
        assert linalg.cholesky(s, upper=not lower, out=s, precision=precision) is s and torch.equal(s, want)
        t, b = tensor(triangular(n, n)), tensor(linalg_case.LAYOUTS[kind](normal(n, 9)))
        want = linalg.trsm(t, b, lower=lower, precision=precision)
        version = b._version
        assert linalg.trsm(t, b, lower=lower, out=b, precision=precision) is b and b._version > version
        torch.testing.assert_close(b, want, atol=1e-5, rtol=1e-5)
    with pytest.raises(InvalidValue, match="out overlaps a"):
        linalg.cholesky(t, out=t.mT)


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
        return (factor, info, linalg.trsm(factor, b, precision=precision), linalg.syrk(b, precision=precision),
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
        return factor, info, linalg.trsm(factor, b, precision=precision), linalg.gram(b, precision=precision)

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


# ---- matrices that are hard ------------------------------------------------------------------------------------


def random(*shape: int) -> Any:
    return torch.from_numpy(normal(*shape).astype(float)).to(DEVICE)


def conditioned(n: int, condition: float) -> Any:
    """Singular values from 1 down to 1 / ``condition``, evenly on a logarithmic scale."""
    q = torch.linalg.qr(random(n, n))[0]
    return q * torch.logspace(0, -np.log10(condition), n, dtype=torch.float64, device=DEVICE)


def scaled(x: Any, powers: Any) -> Any:
    d = torch.exp2(powers.to(DEVICE).double())
    return d[:, None] * x * d


def positive(n: int) -> Iterator[tuple[str, Any]]:
    """Positive definite matrices in FP64, which FP32 can factor."""
    well = random(n, n) @ random(n, n).mT / n + torch.eye(n, device=DEVICE).double()
    index = torch.arange(n, device=DEVICE).double()
    yield "graded", scaled(well, torch.linspace(0, -30, n))
    yield "rows scaled", scaled(well, torch.from_numpy(np.random.default_rng(1).integers(-40, 41, n)))
    for condition in (1e3, 1e5, 1e6):
        root = conditioned(n, condition**0.5)
        yield f"condition {condition:g}", root @ root.mT
    yield "Hilbert, shifted", 1 / (index[:, None] + index + 1) + 1e-4 * torch.eye(n, device=DEVICE)
    few = random(n, n // 10)
    yield "nearly rank-deficient", few @ few.mT / n + 1e-4 * torch.eye(n, device=DEVICE)
    yield "tiny", 1e-30 * well
    yield "huge", 1e15 * well


def lower_triangles(n: int) -> Iterator[tuple[str, Any]]:
    for name, x in positive(n):
        yield name, torch.linalg.cholesky(x)
    for condition in (1e7, 1e8):
        yield f"condition {condition:g}", torch.linalg.qr(conditioned(n, condition) @ random(n, n))[1].mT
    c, index, ones = 18 / n, torch.arange(n, device=DEVICE).double(), torch.ones(n, n, device=DEVICE).double()
    kahan = ((1 - c * c) ** 0.5) ** index[:, None] * (torch.eye(n, device=DEVICE) - c * ones.triu(1))
    yield "Kahan", kahan.mT
    yield "unit diagonal", random(n, n).tril(-1) / 6 + torch.eye(n, device=DEVICE)


def no_worse(ours: float, theirs: float, n: int) -> None:
    """At most 1.2 of torch's backward error, or below a tenth of the textbook's bound."""
    assert ours <= max(1.2 * theirs, 0.1 * n * 2.0**-24), f"{ours:.2e}, torch {theirs:.2e}, n u {n * 2.0**-24:.2e}"


POSITIVE = ("graded", "rows scaled", "condition 1000", "condition 100000", "condition 1e+06", "Hilbert, shifted",
            "nearly rank-deficient", "tiny", "huge")
HOSTILE = pytest.mark.parametrize("n", [200, 1000])


@pytest.fixture
def ieee() -> Iterator[None]:
    """torch's products without TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@PRECISIONS
@HOSTILE
@pytest.mark.parametrize("name", POSITIVE)
def test_hostile_factors(ieee: None, name: str, n: int, precision: str) -> None:
    a = dict(positive(n))[name].float()
    exact, b = a.double(), random(n, 9).float()

    def errors(factor: Any, x: Any) -> tuple[float, float]:
        product = factor.double() @ factor.double().mT
        norms = torch.linalg.norm(exact) * torch.linalg.norm(x.double(), dim=0) + torch.linalg.norm(b.double(), dim=0)
        return (float(torch.linalg.norm(product - exact) / torch.linalg.norm(exact)),
                float((torch.linalg.norm(exact @ x.double() - b, dim=0) / norms).max()))

    factor, info = linalg.cholesky_ex(a, precision=precision)
    reference, reference_info = torch.linalg.cholesky_ex(a)
    assert info == reference_info == 0
    ours = errors(factor, linalg.cholesky_solve(b, factor, precision=precision))
    theirs = errors(reference, torch.cholesky_solve(b, reference))
    for mine, other in zip(ours, theirs, strict=True):
        no_worse(mine, other, n)


@PRECISIONS
@HOSTILE
@pytest.mark.parametrize("name", [*POSITIVE, "condition 1e+07", "condition 1e+08", "Kahan", "unit diagonal"])
def test_hostile_solves(ieee: None, name: str, n: int, precision: str) -> None:
    t, b = dict(lower_triangles(n))[name].float(), random(n, 50).float()
    for lower in (True, False):
        a = t if lower else t.mT
        exact = a.double()

        def error(x: Any, exact: Any = exact) -> float:
            x = x.double()
            norms = torch.linalg.norm(exact) * torch.linalg.norm(x, dim=0) + torch.linalg.norm(b.double(), dim=0)
            return float((torch.linalg.norm(exact @ x - b, dim=0) / norms).max())

        ours = linalg.trsm(a, b, lower=lower, precision=precision)
        theirs = torch.linalg.solve_triangular(a, b, upper=not lower)
        no_worse(error(ours), error(theirs), n)


@PRECISIONS
@HOSTILE
def test_hostile_products(ieee: None, n: int, precision: str) -> None:
    for name, x in positive(n):
        if name == "rows scaled":  # squares of its elements are beyond FP32
            continue
        size = {"tiny": 1e-15, "huge": 1e15}.get(name, 1.0)
        a = (size * x / x.abs().max()).float()
        exact = a.double() @ a.double().mT
        scale = torch.linalg.norm(a.double().abs() @ a.double().abs().mT)
        ours, theirs = linalg.gram(a, precision=precision), a @ a.mT
        no_worse(*(float(torch.linalg.norm(y.double() - exact) / scale) for y in (ours, theirs)), n)
        assert torch.equal(ours, ours.mT), name


def test_zeros_on_a_diagonal() -> None:
    """No finite solution and no error, as in BLAS; what is solved before it is right."""
    a, b = half(triangular(300, 300), True), normal(300, 5)
    a[200, 200] = 0
    x = numpy(linalg.trsm(tensor(a), tensor(b)))
    assert not np.isfinite(x[200]).any()
    head = a[:128, :128].astype(float)
    assert abs(head @ x[:128] - b[:128]).max() <= 300 * 2.0**-24 * (abs(head) @ abs(x[:128])).max()
