"""Every argument of every public call, with what people hand over: right, or refused by name."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.runtime import cache


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class TestTensors:
    """torch tensors on the CPU; tests/gpu has the same on a GPU."""

    def test_every_argument_of_every_call(self) -> None:
        pytest.importorskip("torch", reason="needs torch")
        import door_cases

        wrong, said = [], {}
        for case in door_cases.cases():
            try:
                said[case] = door_cases.run(*case, "cpu")
            except Exception as error:
                wrong.append((case, type(error).__name__, str(error)[:200]))
        assert not wrong, wrong
        assert len(said) > 900
        for call in ("matmul, new", "gemm, new", "mm", "addmm"):
            for kind in ("plain", "wrapped", "subclass", "parameter", "misaligned", "expanded", "strided", "negated"):
                assert said[call, "a", kind] == said[call, "b", kind] == "right", (call, kind)
        for (call, argument, kind), text in said.items():
            if kind in ("meta", "sparse", "complex", "half", "freed", "a module", "a list") and call != "bmm":
                name = {"run_rung": {"a": "A", "b": "B", "out": "C"}.get(argument)}.get(call) or argument
                name = {"addmm": "c", "sgemm": "c"}.get(call, name) if argument == "c" else name
                assert f"{name} is" in text or f"{name} has" in text or "A is a torch tensor on cpu" in text, (
                    call, argument, kind, text)


class TestNumpy:
    def test_units_are_not_dropped(self) -> None:
        class Metres(np.ndarray):
            def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
                raise TypeError("metres")

        class Refusing(np.ndarray):
            __array_ufunc__ = None  # type: ignore[assignment]

        class Named(np.ndarray):
            pass

        a, b = normal(3, 4), normal(4, 5)
        for kind in (Metres, Refusing):
            for call in (lambda x: pg.matmul(x, b), lambda x: pg.plan(x, b),
                         lambda x: pg.matmul(x, b, out=normal(3, 5))):
                with pytest.raises(InvalidType, match=f"a is a {kind.__name__}, a NumPy subclass with arithmetic of "
                                   r"its own .* pass np.asarray\(a\)"):
                    call(a.view(kind))
        assert np.allclose(pg.matmul(a.view(Named), b), a @ b, atol=1e-5)
        assert np.allclose(pg.matmul(np.asmatrix(a), b), a @ b, atol=1e-5)

    def test_fields_of_packed_records_overlap_nothing(self) -> None:
        """Strides of six bytes: no whole elements, but a span that is known."""
        records = np.zeros((4, 5), np.dtype([("x", "<f4"), ("tag", "<i2")]))
        x, b, out = records["x"], normal(5, 3), np.empty((4, 3), np.float32)
        x[...] = normal(4, 5)
        assert pg.matmul(x, b, out=out) is out
        assert np.allclose(out, x @ b, atol=1e-5)
        assert np.allclose(pg.matmul(np.asarray(x), b), x @ b, atol=1e-5)
        square = np.zeros((4, 4), np.dtype([("x", "<f4"), ("tag", "<i2")]))["x"]
        with pytest.raises(InvalidValue, match="out overlaps a"):
            pg.matmul(square, normal(4, 4), out=square)

    def test_two_mappings_of_a_file(self, tmp_path: Path) -> None:
        """They have different addresses, and the same bytes."""
        path, b = tmp_path / "s.npy", normal(8, 8)
        values = normal(16, 8)
        np.save(path, values)

        def load(mode: str) -> Any:
            return np.load(path, mmap_mode=mode)

        for a, out in ((load("r")[:8], load("r+")[:8]), (np.asarray(load("r"))[:8].T, load("r+")[7:15]),
                       (load("c")[8:], load("r+")[1:9])):
            with pytest.raises(InvalidValue, match=r"out overlaps a in .*s\.npy, .* map a file of its own as out$"):
                pg.matmul(a, b, out=out)
        with pytest.raises(InvalidValue, match=r"out overlaps c in .*or pass c itself as out"):
            pg.gemm(normal(8, 8), b, load("r")[:8], out=load("r+")[:8])
        assert (np.load(path) == values).all()
        private = load("c")
        pg.matmul(load("r")[:8], b, out=private[:8])  # a copy of its own
        assert np.allclose(private[:8], values[:8] @ b, atol=1e-5) and (np.load(path) == values).all()
        pg.matmul(load("r")[:8], b, out=load("r+")[8:])
        assert np.allclose(np.load(path)[8:], values[:8] @ b, atol=1e-5)
        both = load("r+")
        pg.gemm(both[:8], b, both[8:], out=both[8:])

    def test_odd_addresses(self) -> None:
        memory = np.frombuffer(bytearray(4 * 5 * 4 + 1), np.float32, offset=1).reshape(4, 5)
        memory[...] = normal(4, 5)
        b = normal(5, 3)
        assert memory.__array_interface__["data"][0] % 4
        assert np.allclose(pg.matmul(memory, b), memory @ b, atol=1e-5)

    @pytest.mark.parametrize("scale", [10**400, -10**400, 1e39, -1e39, 2.0**128, Fraction(10**50), np.float64(1e300)],
                             ids=lambda x: f"{type(x).__name__} {str(x)[:6]}")
    def test_scales_beyond_a_float32(self, scale: Any) -> None:
        a, b = normal(2, 2), normal(2, 2)
        for call in (pg.gemm, pg.plan, pg.explain, pg.replay):
            with pytest.raises(InvalidValue, match=r"alpha is .*, beyond the largest float32 \(3.4e38\)"):
                call(a, b, alpha=scale)
            with pytest.raises(InvalidValue, match=r"beta is .*, beyond the largest float32"):
                call(a, b, a, beta=scale)
        for call in (lambda: pg.sgemm(scale, a, b), lambda: pg.addmm(a, a, b, beta=scale),
                     lambda: pg.run_rung(1, a, b, a, alpha=scale)):
            with pytest.raises(InvalidValue, match="beyond the largest float32"):
                call()

    def test_scales_that_float32_holds(self) -> None:
        a, b = np.ones((1, 1), np.float32), np.ones((1, 1), np.float32)
        largest = float(np.finfo(np.float32).max)
        for scale in (largest, -largest, np.nextafter(largest, 1e300), float("inf"), -float("inf"), np.float32("inf")):
            assert pg.gemm(a, b, alpha=scale)[0, 0] == np.float32(scale)
            assert pg.gemm(a, b, a, alpha=0.0, beta=scale)[0, 0] == np.float32(scale)
        assert np.isnan(pg.gemm(a, b, alpha=float("nan")))
        for call in (lambda: pg.gemm(a, a, alpha=None), lambda: pg.sgemm(None, a, a),
                     lambda: pg.plan(a, a, alpha=None)):
            with pytest.raises(InvalidType, match="alpha is a NoneType; pass a real number"):
                call()


class TestFlags:
    """What says that an operand is transposed."""

    @pytest.mark.parametrize(("says", "flipped"), [(0, False), (np.bool_(False), False), ("n", False), (1, True),
                                                   (np.bool_(True), True), ("t", True), ("C", True)], ids=repr)
    def test_spellings(self, says: Any, flipped: bool) -> None:
        a, b = normal(3, 3), normal(3, 3, seed=1)
        of_a, of_b = (a.T @ b, a @ b.T) if flipped else (a @ b, a @ b)
        for got, want in ((pg.gemm(a, b, trans_a=says), of_a), (pg.gemm(a, b, trans_b=says), of_b),
                          (pg.gemm(a, pg.prepare(b, trans_b=says), trans_b=says), of_b),
                          (pg.plan(a, b, trans_a=says).execute(a, b), of_a),
                          (pg.sgemm(1.0, a, b, trans_a=says), of_a), (pg.sgemm(1.0, a, b, trans_b=says), of_b)):
            assert np.allclose(got, want, atol=1e-5)

    @pytest.mark.parametrize("says", ["yes", 2, 0.0, None, np.array(True)], ids=repr)
    def test_neither(self, says: Any) -> None:
        a = normal(3, 3)
        for call in (lambda: pg.gemm(a, a, trans_a=says), lambda: pg.plan(a, a, trans_a=says),
                     lambda: pg.explain(a, a, trans_a=says)):
            with pytest.raises(InvalidValue, match=r"trans_a = .* is neither a bool, 0 or 1, nor 'N', 'T' or 'C'"):
                call()
        for call in (lambda: pg.gemm(a, a, trans_b=says), lambda: pg.prepare(a, trans_b=says)):
            with pytest.raises(InvalidValue, match="trans_b = "):
                call()


class TestPlans:
    def test_workspace_and_stream_of_host_arrays(self) -> None:
        a, b = normal(3, 4), normal(4, 5)
        made = pg.plan(a, b)
        for more in ({"workspace": normal(64)}, {"stream": 1}):
            with pytest.raises(InvalidValue, match="stream and workspace are for arrays on the GPU"):
                made.execute(a, b, **more)
        with pytest.raises(InvalidType, match=r"workspace is uint8; pass a packed float32 array of Plan\.work"):
            made.execute(a, b, workspace=np.zeros(64, np.uint8))


class TestJax:
    def test_what_is_no_array(self) -> None:
        jax = pytest.importorskip("jax", reason="needs jax")
        a, b = jax.numpy.ones((3, 4)), jax.numpy.ones((4, 5))
        for bad, says in ((jax.ShapeDtypeStruct((4, 5), np.float32), "b is a ShapeDtypeStruct of JAX, no array"),
                          (jax.random.key(0), "b is key"), (b.astype(np.float16), "b is float16")):
            with pytest.raises(InvalidType, match=says):
                pg.matmul(a, bad)
        gone = jax.numpy.ones((4, 5))
        gone.delete()
        with pytest.raises(InvalidValue, match="b is a JAX array whose memory was donated or deleted"):
            pg.matmul(a, gone)
        with pytest.raises(InvalidType, match="a is a JAX array under jit, grad or vmap"):
            jax.jit(lambda x: pg.plan(x, b))(a)


class TestCacheFolder:
    def test_home_is_expanded(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PEAKGEMM_CACHE_DIR", "~/mine")
        assert cache.folder() == tmp_path / "mine" and cache.tuned_folder() == tmp_path / "mine" / "tuned"

    def test_relative_paths_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PEAKGEMM_CACHE_DIR", "mine")
        for ask in (cache.folder, cache.tuned_folder):
            with pytest.raises(InvalidValue, match=r"PEAKGEMM_CACHE_DIR = 'mine' is not absolute .* absolute path"):
                ask()
