"""`peakgemm.cupy.use` on a module that looks like CuPy: what it reroutes, what it leaves, and that it restores."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import fake_cupy
import peakgemm as pg
from fake_cupy import array, ndarray
from peakgemm.errors import InvalidValue, OutOfMemory
from peakgemm.integrations.linalg_sizes import Sizes
from peakgemm.integrations.recorder import Recorder
from peakgemm.runtime import device

NAMES = ("matmul", "dot", "inner", "tensordot", "einsum")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(device, "find", lambda: None)
    return fake_cupy.install(monkeypatch)


def use(precision: str = "ieee", *, linalg: bool = False, recorder: Any = None, **other: Any) -> Any:
    from peakgemm.integrations import cupy_use

    def ours(name: str) -> Any:
        function = other.get(name) or (
            (lambda a, b, **options: pg.tensordot(a, b, (-1, -1), **options)) if name == "inner" else getattr(pg, name))

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return result if isinstance(result, ndarray) else result.view(ndarray)
        return call

    return cupy_use.make_use({name: ours(name) for name in NAMES}, precision, linalg, recorder)


def normal(*shape: int, seed: int = 0) -> Any:
    return array(np.random.default_rng(seed).standard_normal(shape))


def test_each_product(cupy: Any) -> None:
    a, b, batch, out = normal(8, 6), normal(6, 4, seed=1), normal(3, 8, 6, seed=2), array(np.zeros((8, 4)))
    calls = [lambda: cupy.matmul(a, b), lambda: a @ b, lambda: a.dot(b), lambda: cupy.dot(a, b),
             lambda: cupy.inner(a, b.T), lambda: cupy.tensordot(a, b, 1), lambda: cupy.tensordot(a, b, axes=([1], [0])),
             lambda: cupy.einsum("ij,jk->ki", a, b), lambda: cupy.einsum("bij,jk->bik", batch, b, optimize=True),
             lambda: batch @ b, lambda: cupy.matmul(a, b, out=out), lambda: cupy.linalg.matmul(a, b),
             lambda: array(a + 1j * a, np.complex64) @ array(b - 1j * b, np.complex64)]
    want = [call() for call in calls]
    with use("emulated") as ran:
        got = [call() for call in calls]
        assert cupy.matmul.reduce == "an attribute" and got[10] is out
    for x, y in zip(got, want, strict=True):
        assert type(x) is ndarray and x.shape == y.shape and np.allclose(x, y, atol=1e-5)
    assert ran.calls == {"matmul": 6, "dot": 2, "inner": 1, "tensordot": 2, "einsum": 2} and not ran.fallbacks
    assert str(ran).startswith("peakgemm.cupy.use(precision='emulated'): peakgemm ran 6 matmul, 2 dot")


def test_the_rest_is_cupys_and_all_is_restored(cupy: Any) -> None:
    before = {name: getattr(cupy, name) for name in NAMES}
    methods, linalg = set(vars(ndarray)), dict(vars(cupy.linalg))
    a, b, wide = normal(8, 6), normal(6, 4, seed=1), array(np.ones((6, 6)), np.float64)
    recorder = Recorder()
    with use(recorder=recorder) as ran:
        assert wide.dot(wide).dtype == np.float64
        assert np.allclose(a @ b[:, 0], np.asarray(a) @ np.asarray(b)[:, 0])
        assert cupy.dot(a, 2.0).shape == (8, 6)
        assert cupy.einsum("ij->ji", a).shape == (6, 8)
        assert cupy.matmul(a, b, dtype=np.float64).dtype == np.float64
        assert (np.ones((2, 8), np.float32) @ a).shape == (2, 6)
        for wrong in (lambda: a @ a, lambda: cupy.einsum("ij,ij->k", a, a)):
            with pytest.raises(ValueError) as error:
                wrong()
            assert not isinstance(error.value, pg.PeakgemmError)
        cupy.compute_type = 3
        a @ b
    assert {why for *_, why in recorder.rows} >= {
        "float64", "vectors", "other kinds of array", "one operand", "further arguments", "TF32 allowed"}
    assert not ran.calls and not any(not why for *_, why in recorder.rows)
    assert {name: getattr(cupy, name) for name in NAMES} == before and set(vars(ndarray)) == methods
    assert dict(vars(cupy.linalg)) == linalg


def test_what_finds_no_room_falls_back(cupy: Any) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OutOfMemory("no room")

    a = normal(5, 5)
    recorder = Recorder()
    with use(matmul=full, recorder=recorder) as ran:
        assert np.allclose(a @ a, np.asarray(a) @ np.asarray(a))
    assert ran.fallbacks == {"matmul": 1}
    assert recorder.rows == {("cupy", "matmul", "5x5 5x5", "refused: no room"): [1, 250.0, 0.0, 0]}


def test_what_ran_is_recorded_and_checked(cupy: Any) -> None:
    a, b, batch = normal(8, 6), normal(6, 4, seed=1), normal(3, 8, 6, seed=2)
    recorder = Recorder(check=1)
    with use(recorder=recorder):
        batch @ b
        cupy.tensordot(batch, b, 1)
        cupy.einsum("ij,jk->ik", a, b)
        array(a + 1j * a, np.complex64) @ array(b - 1j * b, np.complex64)
    assert {key: row[:2] for key, row in recorder.rows.items()} == {
        ("cupy", "matmul", "3x8x6 6x4", ""): [1, 1152.0], ("cupy", "tensordot", "3x8x6 6x4", ""): [1, 1152.0],
        ("cupy", "einsum", "ij,jk->ik 8x6 6x4", ""): [1, 384.0], ("cupy", "matmul", "8x6 6x4", ""): [1, 4 * 384.0]}
    assert recorder.checks["done"] == 4 and recorder.checks["left_out"] == 0 and recorder.checks["largest"] < 1
    wrong = Recorder(check=1)
    with use(recorder=wrong, matmul=lambda a, b, **_: (np.asarray(a) @ np.asarray(b) * 1.001).astype(np.float32)):
        a @ b
    assert wrong.checks["largest"] > 1


def test_what_cupys_own_functions_call_is_theirs(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a check would compare peakgemm with itself, and count it."""
    monkeypatch.setattr(cupy, "inner", lambda a, b: cupy.dot(a, b.T))
    a, b, recorder = normal(8, 6), normal(4, 6, seed=1), Recorder(check=1)
    with use(recorder=recorder) as ran:
        cupy.inner(a, b)
        cupy.inner(a.astype(np.float64), b.astype(np.float64))
    assert ran.calls == {"inner": 1} and ran.fallbacks == {"inner": 1} and recorder.checks["done"] == 1


def test_methods_of_a_compiled_class_stay(cupy: Any) -> None:
    cupy.ndarray, recorder = np.ndarray, Recorder()
    with use(recorder=recorder) as ran:
        a = np.asarray(normal(5, 5))
        a @ a
        cupy.matmul(a, a)
    assert ran.calls == {"matmul": 1} and np.ndarray.__matmul__ is not None
    assert recorder.notes == ["ndarray's __matmul__ and dot stayed with cupy 0.0, which is too old to reroute them"]


def test_linear_algebra(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peakgemm.integrations import cupy_use

    x = normal(12, 9)
    s, b = array(np.asarray(x.T @ x) + 3 * np.eye(9)), normal(9, 2, seed=1)
    calls = {"cholesky": (s,), "solve": (s, b), "inv": (s,), "det": (s,), "slogdet": (s,)}
    want = {name: getattr(cupy.linalg, name)(*args) for name, args in calls.items()}
    with use(linalg=True) as small:
        cupy.linalg.inv(s)
    assert small.fallbacks == {"inv": 1}
    monkeypatch.setattr(cupy_use, "FASTER", dict.fromkeys(cupy_use.FASTER, Sizes(1, 1, 1, 1, 1)))
    with use(linalg=True) as ran:
        got = {name: getattr(cupy.linalg, name)(*args) for name, args in calls.items()}
        q, r = cupy.linalg.qr(x)
        cupy.linalg.qr(x, mode="r")
        cupy.linalg.solve(s, b[:, 0])
        cupy.linalg.inv(array(np.eye(3), np.float64))
        with pytest.raises(np.linalg.LinAlgError):
            cupy.linalg.inv(normal(3, 4))
    assert ran.calls == {**dict.fromkeys(calls, 1), "qr": 1} and ran.fallbacks == {"qr": 1, "solve": 1, "inv": 2}
    for name, result in got.items():
        assert np.allclose(result, want[name], rtol=1e-3, atol=1e-4), name
    assert np.allclose(np.asarray(q) @ np.asarray(r), x, atol=1e-5)


def test_refusals() -> None:
    for wrong in ({"precision": "fp8"}, {"precision": "reproducible", "linalg": True}):
        with pytest.raises(InvalidValue):
            pg.cupy.use(**wrong)
    code = ("import sys; sys.modules['cupy'] = None\nimport peakgemm as pg\n"
            "try: pg.cupy.use()\nexcept RuntimeError as error: print(type(error).__name__, error)")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MissingComponent peakgemm.cupy needs cupy")


def test_the_real_one_takes_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's own module imports without a GPU: its names and methods are replaced, and put back."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    fake_cupy.forget(monkeypatch)
    before = cupy.matmul, cupy.ndarray.__matmul__, cupy.linalg.inv, set(vars(cupy.ndarray))
    with pg.cupy.use():
        assert cupy.matmul is not before[0] and cupy.matmul.__wrapped__ is before[0]
        assert cupy.ndarray.__matmul__ is not before[1] and "dot" in vars(cupy.ndarray)
    assert (cupy.matmul, cupy.ndarray.__matmul__, cupy.linalg.inv, set(vars(cupy.ndarray))) == before
