"""torch tensors without a GPU: CPU tensors for real; the warm path for CUDA tensors on memory that stands in."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
import stand_in
from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.kernels.ffma.staged import STAGED
from peakgemm.problem import Problem

torch = pytest.importorskip("torch")

import api_cases  # noqa: E402
from peakgemm.arrays.torch import Torch  # noqa: E402
from peakgemm.calls import eager, launch, plan  # noqa: E402
from peakgemm.selection import tuned  # noqa: E402
from peakgemm.selection.choose import Choice  # noqa: E402


def _admit_on_gpu(self: Torch, x: Any, name: str, dtype: str = "float32", admit: Any = Torch.admit) -> int:
    admit(self, x, name, dtype)
    return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """CPU tensors pass for tensors of GPU 0; the problems that were bound are listed."""
    canonical: list[Problem] = []

    def bound_for(problem: Problem, gpu: Any, choice: Any = None) -> Any:
        canonical.append(problem)
        return stand_in.Interpreted(problem, stand_in.HostMemory())

    for module in (launch, plan):
        monkeypatch.setattr(module, "bound_for", bound_for)
    monkeypatch.setattr(launch.device, "require", lambda index: stand_in.GPU)
    monkeypatch.setattr(plan, "choice_for", lambda problem, gpu, precision: Choice(
        STAGED, STAGED.default, "only", "there is no other"))
    monkeypatch.setattr(eager, "current_stream", lambda index: stand_in.STREAM)
    monkeypatch.setattr(Torch, "admit", _admit_on_gpu)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(Torch, "scope", lambda self, index, stream: stand_in.StandIn().scope(index, stream))
    launch.calls.clear()
    return canonical


def test_products_on_the_cpu() -> None:
    draw = random.Random(1)
    for _ in range(300):
        api_cases.check_tensors(api_cases.draw(draw.choice), "cpu")


def test_products_by_the_warm_path(cuda: list[Problem]) -> None:
    """Each case twice, with other values the second time: the second call must take from the first only its launch."""
    rng = random.Random(7)
    warm = 0
    for _ in range(300):
        case = api_cases.draw(rng.choice)
        for case.seed in (1, 2):
            bound = len(cuda)
            api_cases.check_tensors(case, "cpu")
            warm += case.seed == 2 and len(cuda) == bound
    assert warm > 150
    assert len(launch.calls) > 50


def test_what_is_warm_is_decided_anew_after_tuning(cuda: list[Problem]) -> None:
    a, b = torch.randn(20, 8), torch.randn(8, 12)
    calls = (lambda: pg.matmul(a, b), lambda: pg.gemm(a, b, alpha=2.0))
    for call in (*calls, *calls):
        call()
    warm = len(cuda)
    tuned.forget()
    for call in calls:
        call()
    assert len(cuda) - warm == warm > 0
    for call in calls:
        call()
    assert len(cuda) == 2 * warm


def test_plan_runs_what_it_was_made_for(cuda: list[Problem]) -> None:
    a, b = torch.randn(20, 8), torch.randn(8, 12)
    planned = pg.plan(a, b)
    assert isinstance(planned, eager.TorchPlan) and len(cuda) == 1
    out = torch.full((20, 12), float("nan"))
    version = out._version
    assert planned.execute(a, b, out=out) is out and out._version > version
    assert torch.allclose(out, a @ b, atol=1e-5)
    assert torch.allclose(planned.execute(a, b), a @ b, atol=1e-5)
    known = len(cuda)
    assert torch.allclose(planned.execute(a, b, out=out), a @ b, atol=1e-5)
    assert torch.allclose(planned.execute(2 * a, b), 2 * a @ b, atol=1e-5)
    assert len(cuda) == known  # nothing was bound anew
    assert "stand-in" in str(planned)
    for bad, what in (((a[:, :4], b), "do not match|shape"), ((a.t().contiguous().t(), b), "a has strides"),
                      ((a.double(), b), "float64")):
        with pytest.raises((InvalidValue, InvalidType), match=what):
            planned.execute(*bad)
    with pytest.raises(InvalidValue, match="out overlaps a"):
        pg.plan(a, b[:, :8]).execute(a, b[:, :8], out=a)
    shifted = torch.randn(161)[1:].view(20, 8)
    with pytest.raises(InvalidValue, match="aligned to 4 bytes, the plan relies on 16"):
        planned.execute(shifted, b)
    with pytest.raises(InvalidValue, match="a requires a gradient"):
        planned.execute(a.clone().requires_grad_(), b)
    coarse = pg.plan(shifted, b)  # runs what it was made for on what is aligned better
    assert torch.allclose(coarse.execute(a, b), a @ b, atol=1e-5)
    assert {problem.alignment for problem in cuda[-2:]} == {(4, 16, 16)}


def test_prepared_operands_are_bound_once(cuda: list[Problem]) -> None:
    """Under the address of their panels, without keeping them."""
    class Panels:
        def __init__(self, address: int) -> None:
            self.key, self.asked = ("scheme", address, 12, 8), 0

        def bound(self, choice: Any, canonical: Any, gpu: Any) -> Any:
            self.asked += 1
            return stand_in.Interpreted(canonical.problem, stand_in.HostMemory())

    a, b = torch.randn(20, 8), torch.randn(8, 12)
    first, second = Panels(4096), Panels(8192)
    for panels in (first, second, first, second):
        assert torch.allclose(eager.run(a, b, precision="emulated", ready=panels), a @ b, atol=1e-5)
    assert (first.asked, second.asked, len(cuda)) == (1, 1, 0)
    eager.run(a, b, precision="emulated")
    assert len(cuda) == 1
    assert not any(isinstance(part, Panels) for key in launch.calls for part in key)


def test_overlap_is_refused_warm_and_cold(cuda: list[Problem]) -> None:
    flat = torch.randn(64, 64)
    b = torch.randn(32, 32)
    for _ in range(2):
        # Columns beside each other in one buffer, as blocked solvers have them, share no memory.
        pg.matmul(flat[:, :32], b, out=flat[:, 32:])
        with pytest.raises(InvalidValue, match="out overlaps a"):
            pg.matmul(flat[:, :32], b, out=flat[:, 16:48])
    c = torch.randn(64, 32)
    assert pg.gemm(flat[:, :32], b, c, out=c) is c
    with pytest.raises(InvalidValue, match="out overlaps c"):
        pg.gemm(flat[:32, :32], b, c[1:33], out=c[:32])


def test_negated_views_keep_their_sign(cuda: list[Problem]) -> None:
    """``x.conj().imag`` is a view whose sign torch applies lazily: the memory holds the other one."""
    z = torch.randn(6, 5, dtype=torch.complex64)
    plain, negated = z.imag, z.conj().imag
    assert negated.is_neg()
    column = torch.randn(5, 3)
    for x in (plain, negated):
        assert torch.allclose(pg.matmul(x, column), x.resolve_neg() @ column, atol=1e-5)
    w, v = torch.randn(5, 1), torch._neg_view(torch.randn(6, 5))
    assert torch.allclose(pg.matmul(v.resolve_neg(), w), v.resolve_neg() @ w, atol=1e-5)
    assert torch.allclose(pg.matmul(v, w), v.resolve_neg() @ w, atol=1e-5)


def test_gradients_of_vectors_and_through_out() -> None:
    a, b = torch.randn(4, 5, requires_grad=True), torch.randn(5, 3)
    v = torch.randn(5, requires_grad=True)
    assert pg.matmul(torch.randn(5), v).shape == () and pg.matmul(b.t(), v).requires_grad
    assert pg.gemm(a, b.t().contiguous(), trans_b=True).requires_grad
    with pytest.raises(InvalidValue, match="a requires a gradient"):
        pg.matmul(a, b, out=torch.empty(4, 3))
    with torch.no_grad():
        assert not pg.matmul(a, b).requires_grad


@pytest.mark.exhaustive
def test_traced_among_modules_that_import_when_looked_at() -> None:
    """Also with peakgemm imported before torch, whose module the first eager call remembers."""
    done = subprocess.run([sys.executable, "-c", """
import sys, types
import peakgemm as pg
import torch

class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        other = f"imported_{len(sys.modules)}"
        sys.modules[other] = types.ModuleType(other)
        return super().__getattribute__(name)

sys.modules["lazy"] = Lazy("lazy")
compiled = torch.compile(lambda a, b: torch.relu(pg.matmul(a, b)), fullgraph=True, backend="eager")
a, b = torch.randn(5, 7), torch.randn(7, 3)
for _ in range(3):
    assert torch.allclose(compiled(a, b), torch.relu(pg.matmul(a, b)), atol=1e-5)
"""], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("make", "error", "match"), [
    (lambda: pg.matmul(torch.ones(2, 2), np.ones((2, 2), np.float32)), InvalidType, "a is a torch array and b a NumPy"),
    (lambda: pg.matmul(torch.ones(2, 2), torch.ones(2, 2), stream=0), InvalidValue, "leave stream out"),
    (lambda: pg.bmm(torch.ones(2, 2, 2), torch.ones(1, 2, 2)), InvalidValue, "bmm does not broadcast"),
    (lambda: pg.addmm(torch.ones(3), torch.ones(2, 2), torch.ones(2, 2)), InvalidValue, "does not broadcast"),
    (lambda: pg.gemm(torch.ones(2, 2), torch.ones(2, 2), alpha=torch.ones(())), InvalidType, "alpha is a Tensor"),
])
def test_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()
