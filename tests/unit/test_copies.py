"""What is copied and pickled, `a @ prepared`, and what the public calls say without their library."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.arrays.base import HOST
from peakgemm.calls.plan import Plan
from peakgemm.errors import InvalidType, PeakgemmError

COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "in a list": lambda x: copy.deepcopy([x])[0],
    **{f"pickle {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in (0, 2, pickle.HIGHEST_PROTOCOL)}}
RNG = np.random.default_rng(0)
A, B = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((4, 5), (5, 3)))


@pytest.fixture(params=["numpy", "torch", "jax"])
def arrays(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A and B as arrays of a library, where it is installed."""
    if request.param == "numpy":
        return A, B
    if request.param == "torch":
        torch = pytest.importorskip("torch", reason="needs torch")
        return torch.from_numpy(A), torch.from_numpy(B)
    jax = pytest.importorskip("jax", reason="needs jax")
    return tuple(jax.device_put(x, jax.devices("cpu")[0]) for x in (A, B))


def test_a_plan_is_not_copied(arrays: tuple[Any, Any]) -> None:
    """Whatever it holds: on a host and for a GPU."""
    plan, for_a_gpu = pg.plan(*arrays), Plan.__new__(Plan)
    for_a_gpu._index, for_a_gpu._last = HOST + 1, object()
    for how in COPIES.values():
        for each in (plan, for_a_gpu):
            with pytest.raises(InvalidType, match=r"neither copied nor pickled; make it again .*peakgemm\.plan"):
                how(each)
    assert (np.asarray(plan.execute(*arrays)) == A @ B).all()


@pytest.mark.parametrize("how", COPIES)
def test_prepared_operands_are(arrays: tuple[Any, Any], how: str) -> None:
    a, b = arrays
    if how == "pickle 0" and type(b).__module__ == "torch":
        pytest.skip("torch pickles no tensors so")
    for more, array in (({}, b), ({"trans_b": True, "precision": "emulated"}, b.T)):
        prepared = pg.prepare(array, **more)
        copied = COPIES[how](prepared)
        assert type(copied) is pg.Prepared and copied.shape == prepared.shape
        assert (copied.array is array) == (how == "copy")
        assert (np.asarray(pg.gemm(a, copied, **more)) == A @ B).all()
        assert (np.asarray(a @ copied) == A @ B).all()


def test_what_is_plain_is() -> None:
    for how in COPIES.values():
        for x in (pg.explain(A, B), pg.precisions()[0], pg.Problem.contiguous(4, 3, 5), pg.Config(64, 64, 8, 8, 8),
                  pg.plan(A, B).explain()):
            assert how(x) == x
        error = how(InvalidType("said"))
        assert type(error) is InvalidType and str(error) == "said"


def test_an_operator_of_prepared_operands(arrays: tuple[Any, Any]) -> None:
    a, b = arrays
    prepared = pg.prepare(b)
    assert type(a @ prepared) is type(a @ b)
    for left in (a, a[0], a[None]):
        assert (np.asarray(left @ prepared) == np.asarray(left) @ B).all()
    assert (np.asarray(a @ pg.prepare(b, reproducible=True)) == A @ B).all()
    assert (np.asarray(a @ pg.prepare(b.T, trans_b=True)) == A @ B).all()
    for wrong, error, says in (
            (lambda: prepared @ a, InvalidType, "write a @ prepared"),
            (lambda: prepared @ prepared, InvalidType, "write a @ prepared"),
            (lambda: b @ prepared, PeakgemmError, None), (lambda: [1.0] @ prepared, PeakgemmError, None),
            (lambda: A.astype(float) @ prepared, PeakgemmError, None),
            (lambda: np.matmul(A, prepared), TypeError, "Prepared"), (lambda: a * prepared, TypeError, "Prepared")):
        with pytest.raises(error, match=says):
            wrong()


def test_an_operator_under_autograd() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    x = torch.from_numpy(A).requires_grad_()
    (x @ pg.prepare(torch.from_numpy(B))).sum().backward()
    assert (x.grad.numpy() == B.sum(1)).all()


@pytest.mark.parametrize("out", [np.zeros((4, 3)), np.zeros((4, 3), ">f4"), np.zeros((4, 3), np.int64),
                                 np.ma.masked_array(np.zeros((4, 3), np.float32))], ids=lambda x: str(type(x)))
def test_a_wrong_out_is_not_to_be_converted(out: Any) -> None:
    """Its copy would be written."""
    for call in (lambda: pg.matmul(A, B, out=out), lambda: pg.gemm(A, B, out=out), lambda: pg.mm(A, B, out),
                 lambda: pg.plan(A, B, out=out), lambda: pg.plan(A, B).execute(A, B, out=out),
                 lambda: pg.run_rung(1, A, B, out)):
        with pytest.raises(InvalidType, match=r"(out|C) is .*np\.empty\(shape, np\.float32\)") as error:
            call()
        assert not any(word in str(error.value) for word in ("astype", "filled", ".float()"))


@pytest.mark.parametrize("name", ["tf32", "IEEE", "", None, 3, ["ieee"]])
def test_an_unknown_precision_points_to_the_names(name: Any) -> None:
    for call in (lambda: pg.matmul(A, B, precision=name), lambda: pg.gemm(A, B, precision=name),
                 lambda: pg.plan(A, B, precision=name), lambda: pg.explain(A, B, precision=name),
                 lambda: pg.prepare(B, precision=name), lambda: pg.multiply_files("a", "b", "c", precision=name)):
        with pytest.raises(PeakgemmError, match=r"precision = .* is unknown; .*peakgemm\.precisions\(\)"):
            call()


WITHOUT = """
import sys
for library in ("torch", "jax", "cupy"):
    sys.modules[library] = None  # as where it is not installed
import numpy as np
import peakgemm as pg
from peakgemm.errors import MissingComponent

a = np.ones((4, 4), np.float32)
dims = (((1,), (0,)), ((), ()))
calls = {
    "distributed": {"all_gather_matmul": (a, a), "matmul_reduce_scatter": (a, a), "explain": (4, 4, 4), "register": ()},
    "jax": {"matmul": (a, a), "gemm": (a, a), "dot_general": (a, a, dims), "use": (len,)},
    "torch": {"differentiable": (a, a, None, 1.0, 0.0, False, False, None, "ieee"),
              "dispatched": (a, a, None, 1.0, 0.0, False, False, None, "ieee"),
              "gemm_with_grad": (a, a, None, 1.0, 0.0), "traced_gemm": (a, a, None, 1.0, 0.0), "use": ()},
}
for name, each in calls.items():
    module = getattr(pg, name)
    assert sorted(each) == sorted(module.__all__), name
    for call, arguments in each.items():
        try:
            getattr(module, call)(*arguments)
        except MissingComponent as error:
            library = "jax" if name == "jax" else "torch"
            assert f"needs {library}" in str(error) and str(error).endswith(f"run: pip install {library}"), error
        else:
            raise AssertionError((name, call))
assert (pg.matmul(a, a) == 4).all() and (a @ pg.prepare(a) == 4).all()
"""


def test_without_torch_and_jax() -> None:
    """Every public call of their modules names what is missing; NumPy's arrays need neither."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
