"""The public calls on arrays of every library, streams, threads, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.errors import InvalidType, InvalidValue

UNIT = 2.0**-24


def close(got: Any, a: Any, b: Any, exact: Any = None) -> None:
    """``got`` is ``a b`` within the bound of float32 arithmetic (all NumPy)."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[-1] + 3) * UNIT * np.matmul(abs(a), abs(b))
    assert got.dtype == np.float32
    assert (abs(got - (np.matmul(a, b) if exact is None else exact)) <= bound).all()


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


class TestNumpy:
    """Host arrays go through the GPU."""

    @pytest.mark.parametrize("shape", [(1, 1, 1), (100, 70, 33), (513, 1025, 257), (3, 0, 5), (0, 4, 5), (4, 5, 0)])
    def test_products(self, shape: tuple[int, int, int]) -> None:
        m, n, k = shape
        a, b = normal(m, k), normal(k, n, seed=1)
        close(pg.matmul(a, b), a, b)
        close(pg.gemm(a.T.copy(), b, trans_a=True), a, b)
        close(pg.matmul(np.asfortranarray(a), np.asfortranarray(b)), a, b)
        out = np.full((n, m), np.nan, np.float32).T
        assert pg.matmul(a, b, out=out) is out
        close(out, a, b)

    def test_panels(self) -> None:
        """Large enough to be cut: copies, computation and copies back overlap, in a ring of buffers."""
        a, b, c = normal(9000, 1500), normal(1500, 3000, seed=1), normal(9000, 3000, seed=2)
        got = pg.gemm(a, b, c, alpha=2.0, beta=-1.0)
        rows = np.array([0, 1, 2047, 2048, 4095, 6143, 8191, 8192, 8999])
        want = 2 * (a[rows].astype(np.float64) @ b) - c[rows]
        bound = 1510 * UNIT * (2 * abs(a[rows].astype(np.float64)) @ abs(b) + abs(c[rows]))
        assert (abs(got[rows] - want) <= bound).all()
        ones, eye = np.ones((20000, 1024), np.float32), np.eye(1024, dtype=np.float32)
        assert (pg.matmul(ones, eye) == 1).all()

    def test_batches(self) -> None:
        a, b = normal(7, 1, 20, 30), normal(5, 30, 10, seed=1)
        close(pg.matmul(a, b), a, b)
        close(pg.matmul(np.broadcast_to(a[:1], (7, 5, 20, 30)), b), np.broadcast_to(a[:1], (7, 5, 20, 30)), b)
        close(pg.matmul(a[0, 0, 0], b), a[0, 0, 0], b)
        large = normal(64, 512, 512)
        close(pg.matmul(large, large), large, large)

    def test_in_place_and_bias(self) -> None:
        a, b, c = normal(40, 30), normal(30, 20, seed=1), normal(40, 20, seed=2)
        want = 0.5 * (a.astype(np.float64) @ b) + c
        assert pg.gemm(a, b, c, alpha=0.5, out=c) is c
        assert np.allclose(c, want, atol=1e-5)
        bias = normal(20, seed=3)
        assert np.allclose(pg.addmm(bias, a, b), a @ b + bias, atol=1e-4)

    def test_prepared(self) -> None:
        a, b = normal(50, 60), normal(60, 70, seed=1)
        ready = pg.prepare(b)
        assert ready.resident() is not None
        close(pg.matmul(a, ready), a, b)
        close(pg.gemm(a, pg.prepare(b.T), trans_b=True), a, b)
        close(pg.matmul(a[0], pg.prepare(b[:, 0].copy()))[None, None], a[:1], b[:, :1])

    def test_it_is_said(self) -> None:
        said = pg.explain(normal(300, 300), normal(300, 300))
        assert "copied there and back" in said.where and said.tile


class TestCupy:
    def test_products(self) -> None:
        cupy = pytest.importorskip("cupy")
        a, b = normal(33, 40), normal(40, 50, seed=1)
        x, y = cupy.asarray(a), cupy.asarray(b)
        got = pg.matmul(x, y)
        assert isinstance(got, cupy.ndarray)
        close(cupy.asnumpy(got), a, b)
        close(cupy.asnumpy(pg.matmul(x[::-1], y[:, ::2])), a[::-1], b[:, ::2])
        out = cupy.empty((50, 33), cupy.float32).T
        assert pg.matmul(x, y, out=out) is out
        close(cupy.asnumpy(out), a, b)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        got = pg.matmul(x, y, stream=stream)
        stream.synchronize()
        close(cupy.asnumpy(got), a, b)
        with stream:
            got = pg.gemm(x, y, cupy.ones(50, cupy.float32), alpha=2)
            assert np.allclose(got.get(), 2 * (a @ b) + 1, atol=1e-4)


class TestJax:
    def test_products(self) -> None:
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX has no GPU here")
        a, b = normal(33, 40), normal(40, 50, seed=1)
        x, y = jax.numpy.asarray(a), jax.numpy.asarray(b)
        got = pg.matmul(x, y)
        assert isinstance(got, jax.Array) and got.devices() == x.devices()
        close(np.asarray(got), a, b)
        for _ in range(20):  # results feed JAX's own work and come back
            x = pg.matmul(jax.numpy.tanh(x), jax.numpy.eye(40))
        want = a
        for _ in range(20):
            want = np.tanh(want)
        assert np.allclose(np.asarray(x), want, atol=1e-5)
        with pytest.raises(InvalidValue, match="read-only JAX array"):
            pg.matmul(x, y, out=got)
        x = jax.numpy.asarray(a)
        for product in (jax.jit(pg.matmul), jax.jit(pg.jax.matmul), jax.vmap(pg.matmul, (0, None))):  # XLA calls ours
            got = product(x, y)
            assert isinstance(got, jax.Array) and got.devices() == x.devices()
            close(np.asarray(got), a, b)
        with pytest.raises(InvalidType, match="under jit"):
            jax.jit(lambda x: pg.plan(x, y))(x)


class TestProtocols:
    def test_cuda_array_interface(self, torch: Any) -> None:
        """An object with nothing but the interface: ``out`` has to be given."""

        class Bare:
            def __init__(self, tensor: Any) -> None:
                self.__cuda_array_interface__ = tensor.__cuda_array_interface__
                self.shape, self.tensor = tuple(tensor.shape), tensor

        a, b = torch.randn(20, 30, device="cuda"), torch.randn(30, 10, device="cuda")
        out = torch.full((20, 10), float("nan"), device="cuda")
        torch.cuda.synchronize()
        pg.matmul(Bare(a), Bare(b), out=Bare(out))
        torch.cuda.synchronize()
        close(out.cpu().numpy(), a.cpu().numpy(), b.cpu().numpy())
        with pytest.raises(InvalidType, match="pass out="):
            pg.matmul(Bare(a), Bare(b))


class TestTorch:
    @pytest.mark.parametrize("size", [(64, 64), (300, 130), (1024, 1024), (2048, 16)])
    def test_a_chain_of_products(self, torch: Any, size: tuple[int, int]) -> None:
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

    def test_streams(self, torch: Any) -> None:
        """On the caller's stream: work before is waited for and work after waits, without a synchronisation."""
        a, b = (torch.randn(2000, 2000, device="cuda") for _ in range(2))
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        results = []
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                x = a
                for _ in range(5):
                    x = pg.matmul(x + i, b) / 2000
                results.append(x)
        torch.cuda.synchronize()
        for i, result in enumerate(results):
            x = a
            for _ in range(5):
                x = pg.matmul(x + i, b) / 2000
            assert torch.equal(x, result)

    @pytest.mark.parametrize("kind", ["torch", "handle", "protocol"])
    def test_stream_argument(self, torch: Any, kind: str) -> None:
        a, b = (torch.randn(1000, 1000, device="cuda") for _ in range(2))
        want = pg.matmul(a, b)
        side = torch.cuda.Stream()

        class Protocol:
            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, side.cuda_stream

        torch.cuda.synchronize()
        stream = {"torch": side, "handle": side.cuda_stream, "protocol": Protocol()}[kind]
        out = torch.empty_like(want)
        torch.cuda.synchronize()
        got, same = pg.matmul(a, b, stream=stream), pg.matmul(a, b, out=out, stream=stream)
        side.synchronize()
        assert torch.equal(got, want) and same is out and torch.equal(out, want)

    def test_eight_threads(self, torch: Any) -> None:
        sizes = [65, 128, 200, 333]
        operands = [(torch.randn(s, s, device="cuda"), torch.randn(s, s, device="cuda")) for s in sizes]
        wanted = [pg.matmul(a, b) for a, b in operands]
        torch.cuda.synchronize()

        def work(thread: int) -> int:
            right = 0
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(100):
                    a, b = operands[(thread + i) % len(sizes)]
                    right += bool(torch.equal(pg.matmul(a, b), wanted[(thread + i) % len(sizes)]))
            return right

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [100] * 8

    def test_a_plan_in_eight_threads(self, torch: Any) -> None:
        a, b = torch.randn(300, 4000, device="cuda"), torch.randn(4000, 300, device="cuda")
        plan = pg.plan(a, b)
        want = plan.execute(a, b)
        torch.cuda.synchronize()

        def work(_: int) -> bool:
            with torch.cuda.stream(torch.cuda.Stream()):
                return all(torch.equal(plan.execute(a, b), want) for _ in range(50))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))

    def test_plan(self, torch: Any) -> None:
        a, b = torch.randn(300, 4000, device="cuda"), torch.randn(4000, 300, device="cuda")
        plan = pg.plan(a, b)
        out = torch.empty(300, 300, device="cuda")
        workspace = torch.empty(max(plan.workspace_bytes, 16), device="cuda", dtype=torch.uint8).view(torch.float32)
        assert plan.execute(a, b, out=out) is out
        assert torch.equal(out, plan.execute(a, b)) and torch.equal(out, pg.matmul(a, b))
        assert torch.equal(out, plan.execute(a, b, workspace=workspace))
        assert plan.kernel and plan.config.label() in str(plan)
        c = torch.randn(300, device="cuda")
        biased = pg.plan(a, b, c, alpha=2.0, beta=0.5)
        assert torch.allclose(biased.execute(a, b, c), 2 * (a @ b) + 0.5 * c, rtol=1e-4, atol=1e-2)
        with pytest.raises(InvalidValue, match="needs c"):
            biased.execute(a, b)
        with pytest.raises(InvalidValue, match="a has shape"):
            plan.execute(a[:200], b)

    def test_nan_and_infinity(self, torch: Any) -> None:
        nan = float("nan")
        a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
        c = torch.full((64, 64), nan, device="cuda")
        assert not pg.gemm(a, b, c, beta=0).isnan().any()
        assert not pg.matmul(a, b, out=c).isnan().any()
        dirty = torch.full_like(a, nan)
        ones = torch.ones_like(a)
        assert torch.equal(pg.gemm(dirty, dirty, ones, alpha=0, beta=2), 2 * ones)
        a[3, 5] = nan
        got = pg.matmul(a, b)
        assert got[3].isnan().all() and got.isnan().sum() == 64
        b[7, 9] = float("inf")
        a[3, 5] = 1
        got = pg.matmul(a.abs() + 1, b)
        assert (got[:, 9] == float("inf")).all() and got.isfinite().sum() == 64 * 63

    def test_empty(self, torch: Any) -> None:
        def zeros(*shape: int) -> Any:
            return torch.zeros(shape, device="cuda")

        assert pg.matmul(zeros(0, 5), zeros(5, 3)).shape == (0, 3)
        assert pg.matmul(zeros(4, 5), zeros(5, 0)).shape == (4, 0)
        assert pg.matmul(zeros(0, 4, 5), zeros(5, 3)).shape == (0, 4, 3)
        assert torch.equal(pg.matmul(zeros(4, 0), zeros(0, 3)), zeros(4, 3))
        assert torch.equal(pg.gemm(zeros(4, 0), zeros(0, 3), zeros(3) + 2, beta=3.0), zeros(4, 3) + 6)

    def test_huge_leading_dimension(self, torch: Any) -> None:
        """Rows 2**28 floats apart: offsets past 2**32 bytes."""
        if torch.cuda.mem_get_info()[0] < 20 << 30:
            pytest.skip("needs 20 GB of free memory")
        ld = 2**28
        flat = torch.empty(9 * ld + 64, device="cuda")
        a = torch.as_strided(flat, (10, 64), (ld, 1))
        a.copy_(torch.randn(10, 64, device="cuda"))
        b = torch.randn(64, 48, device="cuda")
        close(pg.matmul(a, b).cpu().numpy(), a.cpu().numpy(), b.cpu().numpy())
        close(pg.matmul(b.mT, a.mT).cpu().numpy(), b.cpu().numpy().T, a.cpu().numpy().T)
        out = torch.as_strided(flat, (10, 48), (ld, 1))
        want = pg.matmul(a.clone(), b)
        pg.matmul(a.clone(), b, out=out)
        assert torch.equal(out, want)
        del flat, a, out
        torch.cuda.empty_cache()  # other processes test on this GPU, too

    @pytest.mark.parametrize("shift", [1, 2, 3])
    def test_unaligned(self, torch: Any, shift: int) -> None:
        flat = torch.randn(3 * 130 * 130, device="cuda")
        a = flat[shift:shift + 129 * 130].view(129, 130)
        b = flat[20000 + shift:20000 + shift + 130 * 131].view(130, 131)
        out = torch.full((129 * 131 + 8,), -7.0, device="cuda")
        pg.matmul(a, b, out=out[shift:shift + 129 * 131].view(129, 131))
        close(out[shift:shift + 129 * 131].view(129, 131).cpu().numpy(), a.cpu().numpy(), b.cpu().numpy())
        assert (out[:shift] == -7).all() and (out[shift + 129 * 131:] == -7).all()

    def test_overlap(self, torch: Any) -> None:
        flat = torch.randn(128, 128, device="cuda")
        a, b = flat[:, :64], torch.randn(64, 64, device="cuda")
        for _ in range(2):  # cold and warm
            pg.matmul(a, b, out=flat[:, 64:])
            for bad in (a, flat[:, 1:65], flat[:, 63:127]):
                with pytest.raises(InvalidValue, match="out overlaps a"):
                    pg.matmul(a, b, out=bad)
        c = torch.randn(128, 64, device="cuda")
        want = pg.matmul(a, b) + c
        assert pg.gemm(a, b, c, out=c) is c and torch.allclose(c, want, atol=1e-4)
        with pytest.raises(InvalidValue, match="elements overlap"):
            pg.matmul(a, b, out=torch.zeros(1, 64, device="cuda").expand(128, 64))

    def test_refused(self, torch: Any) -> None:
        x = torch.ones(4, 4, device="cuda")
        for bad, error, match in (
            (lambda: pg.matmul(x, x.double()), InvalidType, r"b is float64.*b\.float\(\)"),
            (lambda: pg.matmul(x.half(), x), InvalidType, "a is float16"),
            (lambda: pg.matmul(x, x.cpu()), InvalidValue, "a is on GPU 0 and b on the host"),
            (lambda: pg.matmul(x, np.ones((4, 4), np.float32)), InvalidType, "a is a torch array and b a NumPy array"),
            (lambda: pg.matmul(x, x[:3]), InvalidValue, r"a \(4, 4\) and b \(3, 4\) do not match"),
            (lambda: pg.matmul(x, x, out=x.new_empty(4, 5)), InvalidValue, r"out has shape \(4, 5\)"),
            (lambda: pg.matmul(x, x, out=x.new_empty(4, 4).double()), InvalidType, "out is float64"),
            (lambda: pg.gemm(x, x, beta=1), InvalidValue, "beta = 1 without c"),
            (lambda: pg.matmul(x, x, stream="main"), InvalidType, "stream is a str"),
            (lambda: pg.matmul(x, x, precision="tf32"), InvalidValue, "precision = .tf32."),
        ):
            with pytest.raises(error, match=match):
                bad()

    def test_another_device_than_the_current_one(self, torch: Any) -> None:
        if torch.cuda.device_count() < 2:
            pytest.skip("needs two GPUs")
        a, b = torch.randn(64, 64, device="cuda:1"), torch.randn(64, 64, device="cuda:1")
        for _ in range(2):
            got = pg.matmul(a, b)
            assert got.device == a.device and torch.cuda.current_device() == 0
            close(got.cpu().numpy(), a.cpu().numpy(), b.cpu().numpy())
        with pytest.raises(InvalidValue, match="a is on GPU 1 and b on GPU 0"):
            pg.matmul(a, b.to("cuda:0"))
