"""Every call under every transform and tracer of torch, on CPU tensors: right, or refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import peakgemm as pg  # noqa: E402
import torch_transforms  # noqa: E402
from peakgemm.errors import InvalidType, InvalidValue  # noqa: E402

QUICK = ("plain", "func.vjp", "func.jvp", "func.linearize", "func.functionalize", "dual", "vmap of grad", "checkpoint")


@pytest.mark.parametrize(("recorder", "transform"), [
    pytest.param(*cell, marks=[pytest.mark.exhaustive] if cell[0] != "eager" and (
        cell[1] not in QUICK or cell[0] == "compile inductor") else []) for cell in torch_transforms.cells()])
def test_cell(recorder: str, transform: str) -> None:
    names = torch_transforms.calls("cpu") if recorder == "eager" else torch_transforms.recorded_calls(recorder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript's, on its end, and tracers' on sizes that they keep
        assert not torch_transforms.check("cpu", recorder, transform, names)


A, B, C = torch_transforms.draw("cpu", 3)
WIDE = torch.cat([A, -A])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
class TestScripts:
    """What torch.jit records and compiles."""

    @pytest.mark.parametrize(("call", "want"), [
        (lambda a: pg.matmul(a, B), lambda a: a @ B),
        (lambda a: pg.matmul(a, B[:, 0]), lambda a: a @ B[:, 0]),
        (lambda a: pg.addmm(C[0], a, B, beta=2.0), lambda a: 2 * C[0] + a @ B),
        (lambda a: pg.bmm(a[None], B[None]), lambda a: a[None] @ B[None]),
        (lambda a: pg.gemm(a, B.mT, alpha=-1.0, trans_b=True), lambda a: -a @ B),
        (lambda a: pg.matmul(a, pg_ready), lambda a: a @ B),
        (lambda a: torch.vmap(lambda row: torch.ops.peakgemm.gemm(row[None], B, None, 1.0, 0.0, "ieee"))(a),
         InvalidType),
    ], ids=["matmul", "vector", "addmm", "bmm", "gemm", "prepared", "vmap of the op"])
    def test_trace(self, call: Any, want: Any) -> None:
        """Run on operands of another size than it was recorded with."""
        if want is InvalidType:
            with pytest.raises(InvalidType, match=r"torch\.jit\.trace cannot record"):
                torch.jit.trace(call, (A,))
            return
        leaf = WIDE.clone().requires_grad_()
        got = torch.jit.trace(call, (A,))(leaf)
        assert torch.allclose(got, want(WIDE), atol=1e-5)
        got.sum().backward()
        other = WIDE.clone().requires_grad_()
        want(other).sum().backward()
        assert torch.allclose(leaf.grad, other.grad, atol=1e-5)

    def test_a_backward_pass_in_another_thread_is_refused(self) -> None:
        """As autograd's threads for GPUs run it: with the tracer's dispatch key, and no graph."""
        leaf = A.clone().requires_grad_()
        out = torch.ops.peakgemm.gemm(leaf, B, None, 1.0, 0.0, "ieee").sum()
        key = torch._C._parse_dispatch_key("Tracer")
        with torch._C._IncludeDispatchKeyGuard(key), pytest.raises(InvalidType, match="cannot record a backward pass"):
            out.backward()

    def test_a_trace_is_saved_and_loaded(self, tmp_path: Any) -> None:
        path = str(tmp_path / "trace.pt")
        torch.jit.save(torch.jit.trace(lambda a: pg.matmul(a, B).relu(), (A,)), path)
        assert torch.allclose(torch.jit.load(path)(WIDE), (WIDE @ B).relu(), atol=1e-5)

    def test_script(self) -> None:
        scripted = torch.jit.script(_scripted)
        assert torch.allclose(scripted(A, B, C), 2 * (A @ B) - 0.5 * C, atol=1e-5)
        out = torch.empty_like(C)
        torch.jit.script(_scripted_out)(A, B, out)
        assert torch.allclose(out, A @ B, atol=1e-5)
        for call in (_calls_matmul, pg.matmul, pg.gemm, pg.sgemm, pg.mm, pg.addmm, pg.bmm, pg.plan, pg.prepare,
                     pg.replay):
            with pytest.raises(InvalidType, match=r"torch\.jit\.script cannot compile .* torch\.ops\.peakgemm\.gemm"):
                torch.jit.script(call)


def _scripted(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.ops.peakgemm.gemm(a, b, c, 2.0, -0.5, "ieee")


def _scripted_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.ops.peakgemm.gemm_out(a, b, None, out, 1.0, 0.0, "ieee")


def _calls_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return pg.matmul(a, b)


pg_ready = pg.prepare(B)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("record", [lambda f: torch.jit.trace(f, (A,)), lambda f: torch_transforms.make_fx(f)(A),
                                    lambda f: torch_transforms.make_fx(f, pre_dispatch=True)(A)],
                         ids=["trace", "make_fx", "pre-dispatch"])
@pytest.mark.parametrize("call", [
    lambda a: pg.plan(A, B).execute(A, B), lambda a: PLANNED.execute(a, B), lambda a: pg.prepare(a).array,
    lambda a: pg.replay(a, B), lambda a: pg.matmul(a, B, devices="all")],
    ids=["plan", "execute", "prepare", "replay", "devices"])
def test_what_would_be_a_constant_is_refused(call: Any, record: Any) -> None:
    with pytest.raises((InvalidType, InvalidValue), match=r"records, to which|a transform or a tracer"):
        record(call)


PLANNED = pg.plan(A, B)


def test_a_tangent_that_is_not_there_costs_nothing() -> None:
    """Beside an infinity a tangent of zeros would be NaN."""
    import torch.autograd.forward_ad as forward

    far = A.clone()
    far[0, 0] = float("inf")
    with forward.dual_level():
        made = pg.matmul(forward.make_dual(far, A), B)
        assert torch.allclose(forward.unpack_dual(made).tangent, A @ B, atol=1e-5)


def test_replay_loses_no_derivative() -> None:
    with pytest.raises(InvalidValue, match="a requires a gradient, which replay does not record"):
        pg.replay(A.clone().requires_grad_(), B)


def test_modes_of_torch_functions_leave_eager_calls_alone() -> None:
    with torch.device("cpu"):
        assert torch.allclose(pg.matmul(A, B), A @ B, atol=1e-5)
        assert torch.allclose(PLANNED.execute(A, B), A @ B, atol=1e-5)


def test_a_plan_runs_behind_a_graph_break() -> None:
    """torch.compile does not trace into it, also where vmap has it refused."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: torch.relu(PLANNED.execute(a, B)), backend="eager")
    assert torch.allclose(compiled(A), torch.relu(A @ B), atol=1e-5)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda a: PLANNED.execute(a, B), backend="eager", fullgraph=True)(A)
    with pytest.raises((InvalidType, torch._dynamo.exc.Unsupported)):
        torch.compile(torch.vmap(lambda a: PLANNED.execute(a, B)), backend="eager")(torch.stack([A, -A]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("run", [
    lambda f: f(A), lambda f: f(A.clone().requires_grad_()), lambda f: torch.func.jvp(f, (A,), (A,)),
    lambda f: torch.jit.trace(f, (A,)), lambda f: torch_transforms.make_fx(f)(A),
    lambda f: torch.compile(f, backend="eager")(A)],
    ids=["eager", "grad", "jvp", "trace", "make_fx", "compile"])
def test_scales_are_refused_everywhere(run: Any) -> None:
    torch._dynamo.reset()
    for call in (lambda a: pg.gemm(a, B, alpha=None), lambda a: pg.addmm(C, a, B, alpha=None)):
        with pytest.raises(InvalidType, match="alpha is a NoneType; pass a real number: leave alpha out"):
            run(call)
    for call in (lambda a: pg.gemm(a, B, alpha=1e39), lambda a: pg.gemm(a, B, C, beta=-1e39),
                 lambda a: torch.ops.peakgemm.gemm(a, B, None, 1e39, 0.0, "ieee")):
        with pytest.raises((InvalidValue, torch._dynamo.exc.TorchRuntimeError), match="beyond the largest float32"):
            run(call)
