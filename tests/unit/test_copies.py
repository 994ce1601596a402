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
    **{f"pickle {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)}}
RNG = np.random.default_rng(0)
A, B = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((4, 5), (5, 3)))


def arrays(library: str) -> tuple[Any, Any]:
    """A and B as arrays of a library, where it is installed."""
    if library == "numpy":
        return A, B
    if library == "torch":
        torch = pytest.importorskip("torch", reason="needs torch")
        return torch.from_numpy(A), torch.from_numpy(B)
    jax = pytest.importorskip("jax", reason="needs jax")
    return tuple(jax.device_put(x, jax.devices("cpu")[0]) for x in (A, B))


LIBRARIES = pytest.mark.parametrize("library", ["numpy", "torch", "jax"])


@LIBRARIES
@pytest.mark.parametrize("how", COPIES)
def test_a_plan_is_not_copied(library: str, how: str) -> None:
    plan = pg.plan(*arrays(library))
    with pytest.raises(InvalidType, match=r"neither copied nor pickled; make it again .*peakgemm\.plan"):
        COPIES[how](plan)
    assert (np.asarray(plan.execute(*arrays(library))) == A @ B).all()


def test_a_plan_for_a_gpu_is_not_copied() -> None:
    """Whatever it holds."""
    plan = Plan.__new__(Plan)
    plan._index, plan._last = HOST + 1, object()
    for how in COPIES.values():
        with pytest.raises(InvalidType, match="neither copied nor pickled"):
            how(plan)


@LIBRARIES
@pytest.mark.parametrize("how", COPIES)
def test_prepared_operands_are(library: str, how: str) -> None:
    a, b = arrays(library)
    if library == "torch" and how in ("pickle 0", "pickle 1"):
        pytest.skip("torch pickles no tensors so")
    for more, array in (({}, b), ({"trans_b": True, "precision": "emulated"}, b.T)):
        prepared = pg.prepare(array, **more)
        found = COPIES[how](prepared)
        assert type(found) is pg.Prepared and found.shape == prepared.shape
        assert (found.array is array) == (how == "copy")
        assert (np.asarray(pg.gemm(a, found, **more)) == A @ B).all()
        assert (np.asarray(a @ found) == A @ B).all()


@pytest.mark.parametrize("how", COPIES)
def test_what_is_plain_is(how: str) -> None:
    for x in (pg.explain(A, B), pg.precisions()[0], pg.Problem.contiguous(4, 3, 5), pg.Config(64, 64, 8, 8, 8),
              pg.plan(A, B).explain()):
        assert COPIES[how](x) == x
    error = COPIES[how](InvalidType("said"))
    assert type(error) is InvalidType and str(error) == "said"


@LIBRARIES
def test_an_operator_of_prepared_operands(library: str) -> None:
    a, b = arrays(library)
    prepared = pg.prepare(b)
    assert type(a @ prepared) is type(a @ b)
    for left in (a, a[0], a[None]):
        assert (np.asarray(left @ prepared) == np.asarray(left) @ B).all()
    assert (np.asarray(a @ pg.prepare(b, reproducible=True)) == A @ B).all()
    assert (np.asarray(a @ pg.prepare(b.T, trans_b=True)) == A @ B).all()
    for wrong in (lambda: prepared @ a, lambda: prepared @ prepared):
        with pytest.raises(InvalidType, match="write a @ prepared"):
            wrong()
    for wrong in (lambda: b @ prepared, lambda: [1.0] @ prepared, lambda: None @ prepared,
                  lambda: A.astype(float) @ prepared):
        with pytest.raises(PeakgemmError):
            wrong()
    with pytest.raises(TypeError, match="Prepared"):
        np.matmul(A, prepared)
    with pytest.raises(TypeError, match="Prepared"):
        a * prepared


def test_an_operator_under_transformations() -> None:
    jax = pytest.importorskip("jax", reason="needs jax")
    a, b = arrays("jax")
    prepared = pg.prepare(b)
    assert (jax.jit(lambda x: x @ prepared)(a) == A @ B).all()
    assert (jax.grad(lambda x: (x @ prepared).sum())(a) == np.broadcast_to(B.sum(1), A.shape)).all()
    torch = pytest.importorskip("torch", reason="needs torch")
    x, y = arrays("torch")
    x.requires_grad_()
    (x @ pg.prepare(y)).sum().backward()
    assert torch.equal(x.grad, y.sum(1).expand(4, 5))


OUT = np.empty((4, 3), np.float32)


@pytest.mark.parametrize("kind", ["float64", "float16", ">f4", "int64", "a masked array"])
def test_a_wrong_out_is_not_to_be_converted(kind: str) -> None:
    """Its copy would be written."""
    out: Any = np.ma.masked_array(OUT) if "masked" in kind else OUT.astype(kind)
    for call in (lambda: pg.matmul(A, B, out=out), lambda: pg.gemm(A, B, out=out), lambda: pg.mm(A, B, out),
                 lambda: pg.plan(A, B, out=out), lambda: pg.plan(A, B).execute(A, B, out=out),
                 lambda: pg.run_rung(1, A, B, out)):
        with pytest.raises(InvalidType) as error:
            call()
        text = str(error.value).replace("C is", "out is")
        assert f"out is {kind}" in text and "np.empty(shape, np.float32)" in text
        assert not any(word in text for word in ("astype", "filled", ".float()"))


def test_a_wrong_out_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    a, b = arrays("torch")
    for out in (torch.empty(4, 3, dtype=torch.float64), torch.empty(4, 3).to_sparse(),
                torch.nested.nested_tensor([torch.empty(3)] * 4)):
        with pytest.raises(InvalidType, match=r"^out is .*torch\.empty\(shape, device=a\.device\) in torch$"):
            pg.plan(a, b).execute(a, b, out=out)


@pytest.mark.parametrize("name", ["tf32", "high", "highest", "float32", "TF32", "IEEE", "fp8", "", None, 3, ["ieee"]])
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
    "torch": {"use": ()},
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


def test_the_doctor_does_not_send_to_itself(capsys: pytest.CaptureFixture[str],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    from peakgemm.cli import doctor

    reason = "no NVIDIA driver or GPU here (as told); install the driver, then see: peakgemm doctor"
    monkeypatch.setattr(doctor.device, "reason_without_gpu", lambda: reason)
    monkeypatch.setattr(doctor.device, "count", lambda: 0)
    for text in ("no cuBLAS; see: peakgemm doctor", "no cuBLAS, or see: peakgemm doctor", "no cuBLAS"):
        def fails(text: str = text) -> None:
            raise PeakgemmError(text)

        monkeypatch.setattr(doctor, "find_peer", fails)
        monkeypatch.setattr(doctor.device, "require", fails)
        doctor.command()
        said = " ".join(capsys.readouterr().out.split())
        assert "peakgemm doctor" not in said and "install the driver cuBLAS (compare) no no cuBLAS NumPy" in said
