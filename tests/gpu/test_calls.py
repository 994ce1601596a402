"""The public calls on arrays of every library, on streams and in threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.errors import InvalidType, InvalidValue


def close(got: Any, a: Any, b: Any) -> None:
    """``got`` is ``a b`` within the bound of float32 arithmetic."""
    got, a, b = (np.asarray(x.get() if hasattr(x, "get") else x.cpu() if hasattr(x, "cpu") else x) for x in (got, a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[-1] + 3) * 2.0**-24 * np.matmul(abs(a), abs(b))
    assert got.dtype == np.float32 and (abs(got - np.matmul(a, b)) <= bound).all()


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("shape", [(1, 1, 1), (100, 70, 33), (513, 1025, 257), (3, 0, 5), (0, 4, 5), (4, 5, 0)])
def test_numpy(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = normal(m, k), normal(k, n, seed=1), normal(m, n, seed=2)
    close(pg.matmul(a, b), a, b)
    close(pg.gemm(a.T.copy(), np.asfortranarray(b), trans_a=True), a, b)
    out = np.full((n, m), np.nan, np.float32).T
    assert pg.matmul(a, b, out=out) is out
    close(out, a, b)
    want = 0.5 * (a.astype(np.float64) @ b) + c
    assert pg.gemm(a, b, c, alpha=0.5, out=c) is c and np.allclose(c, want, atol=1e-4)


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    x, y = (cupy.asarray(normal(*shape)) for shape in ((33, 40), (40, 50)))
    got = pg.matmul(x, y)
    assert isinstance(got, cupy.ndarray)
    close(got, x, y)
    close(pg.matmul(x[::-1], y[:, ::2]), x[::-1], y[:, ::2])
    out = cupy.empty((50, 33), cupy.float32).T
    assert pg.matmul(x, y, out=out) is out
    close(out, x, y)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    got = pg.matmul(x, y, stream=stream)
    stream.synchronize()
    close(got, x, y)
    with stream:
        assert np.allclose(pg.gemm(x, y, cupy.ones(50, cupy.float32)).get(), x.get() @ y.get() + 1, atol=1e-4)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    x, y = (jax.numpy.asarray(normal(*shape)) for shape in ((33, 40), (40, 50)))
    for product in (pg.matmul, jax.jit(pg.matmul), jax.jit(pg.jax.matmul), jax.vmap(pg.matmul, (0, None))):
        got = product(x, y)
        assert isinstance(got, jax.Array) and got.devices() == x.devices()
        close(got, x, y)
    z, want = x, np.asarray(x)
    for _ in range(20):  # results feed JAX's own work and come back
        z, want = pg.matmul(jax.numpy.tanh(z), jax.numpy.eye(40)), np.tanh(want)
    assert np.allclose(np.asarray(z), want, atol=1e-5)
    with pytest.raises(InvalidValue, match="read-only JAX array"):
        pg.matmul(x, y, out=got)


@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
@pytest.mark.parametrize("precision", ["ieee", "emulated", "emulated-3m", "reproducible"])
def test_complex(library: str, precision: str) -> None:
    xp = pytest.importorskip({"jax": "jax.numpy"}.get(library, library))
    if library == "jax" and pytest.importorskip("jax").default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    host = [(normal(*shape) + 1j * normal(*shape)).astype(np.complex64) for shape in ((130, 70), (70, 90), (90,))]
    a, b, c = (xp.asarray(x, device="cuda") if library == "torch" else xp.asarray(x) for x in host)
    options = {} if precision == "reproducible" else {"alpha": 1j, "beta": 2 - 1j}
    got = pg.gemm(a.T, b.conj().T, c, trans_a="T", trans_b="C", precision=precision, **options)
    assert isinstance(got, type(a)) and got.dtype == a.dtype
    product, factor = host[0].astype(complex) @ host[1], options.get("alpha", 1)
    want = factor * product + options.get("beta", 1) * host[2]
    assert np.allclose(np.asarray(got.get() if library == "cupy" else got.cpu() if library == "torch" else got), want,
                       rtol=0, atol=1e-4)


def test_cuda_array_interface(torch: Any) -> None:
    """An object with nothing but the interface: ``out`` has to be given."""
    class Bare(SimpleNamespace):
        pass

    a, b = torch.randn(20, 30, device="cuda"), torch.randn(30, 10, device="cuda")
    out = torch.full((20, 10), float("nan"), device="cuda")
    bare = [Bare(__cuda_array_interface__=x.__cuda_array_interface__, shape=tuple(x.shape)) for x in (a, b, out)]
    torch.cuda.synchronize()
    pg.matmul(*bare[:2], out=bare[2])
    torch.cuda.synchronize()
    close(out, a, b)
    with pytest.raises(InvalidType, match="pass out="):
        pg.matmul(*bare[:2])


@pytest.mark.parametrize("size", [(64, 64), (300, 130), (1024, 1024), (2048, 16)])
def test_a_chain_of_products(torch: Any, size: tuple[int, int]) -> None:
    """Each product reads what the one before it wrote, in place too: blocks start early and must wait."""
    m, n = size
    b = torch.randn(n, n, device="cuda") / n**0.5

    def chain(wait: bool) -> Any:
        torch.manual_seed(1)
        x, y = torch.randn(m, n, device="cuda"), torch.zeros(m, n, device="cuda")
        for _ in range(60):
            pg.gemm(x, b, y, beta=0.25, out=y)
            if wait:
                torch.cuda.synchronize()
            x, y = y, x
        return x

    apart = chain(True)
    assert torch.isfinite(apart).all()
    for _ in range(5):
        assert torch.equal(chain(False), apart)


def test_streams(torch: Any) -> None:
    """On the caller's stream: work before is waited for and work after waits, without a synchronisation."""
    a, b = (torch.randn(2000, 2000, device="cuda") for _ in range(2))

    def powers(i: int) -> Any:
        x = a
        for _ in range(5):
            x = pg.matmul(x + i, b) / 2000
        return x

    torch.cuda.synchronize()
    results = []
    for i, stream in enumerate((torch.cuda.Stream(), torch.cuda.Stream())):
        with torch.cuda.stream(stream):
            results.append(powers(i))
    torch.cuda.synchronize()
    assert all(torch.equal(powers(i), result) for i, result in enumerate(results))


@pytest.mark.parametrize("kind", ["torch", "handle", "protocol"])
def test_stream_argument(torch: Any, kind: str) -> None:
    a, b = (torch.randn(1000, 1000, device="cuda") for _ in range(2))
    want, side = pg.matmul(a, b), torch.cuda.Stream()

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, side.cuda_stream

    stream = {"torch": side, "handle": side.cuda_stream, "protocol": Protocol()}[kind]
    out = torch.empty_like(want)
    torch.cuda.synchronize()
    got, same = pg.matmul(a, b, stream=stream), pg.matmul(a, b, out=out, stream=stream)
    side.synchronize()
    assert torch.equal(got, want) and same is out and torch.equal(out, want)


def test_eight_threads(torch: Any) -> None:
    """Calls of several shapes and a plan that all share."""
    operands = [(torch.randn(m, k, device="cuda"), torch.randn(k, m, device="cuda"))
                for m, k in ((65, 65), (128, 128), (200, 200), (300, 4000))]
    plan = pg.plan(*operands[-1])
    wanted = [pg.matmul(a, b) for a, b in operands]
    torch.cuda.synchronize()

    def work(thread: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            turns = [(thread + i) % len(operands) for i in range(100)]
            return all(torch.equal(pg.matmul(*operands[i]), wanted[i]) for i in turns) and all(
                torch.equal(plan.execute(*operands[-1]), wanted[-1]) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_nan_and_infinity(torch: Any) -> None:
    nan = float("nan")
    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    c, ones = torch.full((64, 64), nan, device="cuda"), torch.ones(64, 64, device="cuda")
    assert torch.equal(pg.gemm(c, c, ones, alpha=0, beta=2), 2 * ones)
    assert not pg.gemm(a, b, c, beta=0).isnan().any()
    assert not pg.matmul(a, b, out=c).isnan().any()
    a[3, 5] = nan
    got = pg.matmul(a, b)
    assert got[3].isnan().all() and got.isnan().sum() == 64
    b[7, 9] = float("inf")
    a[3, 5] = 1
    got = pg.matmul(a.abs() + 1, b)
    assert (got[:, 9] == float("inf")).all() and got.isfinite().sum() == 64 * 63


def test_huge_leading_dimension(torch: Any) -> None:
    """Rows 2**28 floats apart: offsets past 2**32 bytes."""
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GB of free memory")
    ld = 2**28
    flat = torch.empty(9 * ld + 64, device="cuda")
    a, b = torch.as_strided(flat, (10, 64), (ld, 1)), torch.randn(64, 48, device="cuda")
    a.copy_(torch.randn(10, 64, device="cuda"))
    close(pg.matmul(a, b), a, b)
    close(pg.matmul(b.mT, a.mT), b.mT, a.mT)
    packed, out = a.clone(), torch.as_strided(flat, (10, 48), (ld, 1))
    pg.matmul(packed, b, out=out)
    assert torch.equal(out, pg.matmul(packed, b))
    del flat, a, out
    torch.cuda.empty_cache()  # other processes test on this GPU, too


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_unaligned(torch: Any, shift: int) -> None:
    flat = torch.randn(3 * 130 * 130, device="cuda")
    a = flat[shift:shift + 129 * 130].view(129, 130)
    b = flat[20000 + shift:20000 + shift + 130 * 131].view(130, 131)
    memory = torch.full((129 * 131 + 8,), -7.0, device="cuda")
    out = memory[shift:shift + 129 * 131].view(129, 131)
    pg.matmul(a, b, out=out)
    close(out, a, b)
    assert (memory[:shift] == -7).all() and (memory[shift + 129 * 131:] == -7).all()


def test_overlap(torch: Any) -> None:
    flat = torch.randn(128, 128, device="cuda")
    a, b, c = flat[:, :64], torch.randn(64, 64, device="cuda"), torch.randn(128, 64, device="cuda")
    for _ in range(2):  # cold and warm
        pg.matmul(a, b, out=flat[:, 64:])
        for bad in (a, flat[:, 1:65], flat[:, 63:127]):
            with pytest.raises(InvalidValue, match="out overlaps a"):
                pg.matmul(a, b, out=bad)
    want = pg.matmul(a, b) + c
    assert pg.gemm(a, b, c, out=c) is c and torch.allclose(c, want, atol=1e-4)


def test_another_device_than_the_current_one(torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = torch.randn(64, 64, device="cuda:1"), torch.randn(64, 64, device="cuda:1")
    for _ in range(2):
        got = pg.matmul(a, b)
        assert got.device == a.device and torch.cuda.current_device() == 0
        close(got, a, b)
    with pytest.raises(InvalidValue, match="a is on GPU 1 and b on GPU 0"):
        pg.matmul(a, b.to("cuda:0"))
