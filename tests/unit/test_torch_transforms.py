"""Every call under every transform, mode, tracer and compiler of torch, on CPU tensors: right, or refused by name."""

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


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(got: Any, want: Any) -> bool:
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-4)


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


class TestModes:
    def test_flops_are_counted(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        for call, flops in ((lambda: pg.matmul(A, B), 210), (lambda: pg.matmul(A, B, out=torch.empty(5, 3)), 210),
                            (lambda: pg.matmul(normal(4, 5, 7), B), 840), (lambda: pg.matmul(A, B[:, 0]), 70),
                            (lambda: pg.addmm(C[0], A, B), 210),
                            (lambda: pg.matmul(A.clone().requires_grad_(), B).sum().backward(), 420)):
            with FlopCounterMode(display=False) as counter:
                call()
            assert counter.get_total_flops() == flops

    @pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
    def test_make_fx_sees_one_op(self, mode: str) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(lambda a, b: pg.matmul(a, b), tracing_mode=mode)(A, B)
        called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        assert called.count(torch.ops.peakgemm.gemm.default) == 1
        assert not [node for node in graph.graph.nodes if node.op == "get_attr"]  # nothing is a constant
        other = normal(5, 7, seed=9)
        assert close(graph(other, B), other @ B)


class TestTransforms:
    """What the table of test_torch_transforms does not vary: which operands are mapped or carry a tangent."""

    @pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (2, 1)], ids=str)
    def test_vmap_is_one_product(self, in_dims: tuple[int | None, int | None],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
        from peakgemm.integrations import torch_ops

        ran: list[Any] = []
        run = torch_ops.eager.product
        monkeypatch.setattr(torch_ops.eager, "product", lambda *args: ran.append(args) or run(*args))
        x, y = ((z if dim is None else torch.stack([z, 2 * z, -z, z + 1], dim))
                for z, dim in zip((A, B), in_dims, strict=True))
        assert close(torch.vmap(pg.matmul, in_dims=in_dims)(x, y), torch.vmap(torch.matmul, in_dims=in_dims)(x, y))
        assert len(ran) == 1

    def test_vmap_over_batches_and_c(self) -> None:
        batch = normal(4, 2, 5, 7)
        assert close(torch.vmap(lambda x: pg.matmul(x, B))(batch), batch @ B)
        cs = normal(4, 5, 3)
        assert close(torch.vmap(lambda c: pg.gemm(A, B, c, beta=0.5))(cs), A @ B + 0.5 * cs)
        assert close(torch.vmap(lambda x, c: pg.gemm(x, B, c, alpha=2.0))(batch[:, 0], cs[:, 0]),
                     2 * batch[:, 0] @ B + cs[:, :1])

    def test_forward_mode(self) -> None:
        import torch.autograd.forward_ad as forward

        of_a, of_b, of_c = normal(5, 7, seed=5), normal(7, 3, seed=6), normal(5, 3, seed=7)
        with forward.dual_level():
            a, b, c = (forward.make_dual(x, y) for x, y in ((A, of_a), (B, of_b), (C, of_c)))
            for got, want in ((pg.matmul(a, B), of_a @ B), (pg.matmul(A, b), A @ of_b),
                              (pg.matmul(a, b), of_a @ B + A @ of_b),
                              (pg.gemm(a, b, c, alpha=2.0, beta=0.5), 2 * (of_a @ B + A @ of_b) + 0.5 * of_c),
                              (pg.gemm(A, B, c, beta=-1.0), -of_c),
                              (pg.gemm(a.mT, b, trans_a=True), of_a @ B + A @ of_b),
                              (pg.matmul(a, b[:, 0]), of_a @ B[:, 0] + A @ of_b[:, 0])):
                assert close(forward.unpack_dual(got).tangent, want)
            assert forward.unpack_dual(pg.matmul(A, B)).tangent is None
            far = A.clone()
            far[0, 0] = float("inf")  # beside which a tangent of zeros would be NaN
            assert close(forward.unpack_dual(pg.matmul(forward.make_dual(far, A), B)).tangent, A @ B)
            with pytest.raises(InvalidValue, match="a carries a forward-mode tangent"):
                pg.matmul(a, B, out=torch.empty(5, 3))
            with pytest.raises(InvalidValue, match=r"b carries a forward-mode tangent, which Plan\.execute would"):
                pg.plan(A, B).execute(A, b)

    def test_what_a_transform_hides_is_refused_elsewhere(self) -> None:
        out = torch.empty(5, 3)
        for call in (lambda x: pg.plan(x, B), lambda x: pg.prepare(x), lambda x: pg.matmul(x, B, out=out)):
            with pytest.raises(InvalidType, match=r"is inside a torch\.func transform"):
                torch.vmap(call)(normal(4, 5, 7))


class TestGradients:
    def test_a_plan_records_none_and_says_so(self) -> None:
        weight = B.clone().requires_grad_()
        for call in (lambda: pg.plan(A, B).execute(A, weight), lambda: pg.plan(A, B).execute(A, pg.prepare(weight))):
            with pytest.raises(InvalidValue, match=r"b requires a gradient, which Plan\.execute does not record"):
                call()
        with pytest.raises(InvalidValue, match="a requires a gradient, which replay does not record"):
            pg.replay(A.clone().requires_grad_(), B)
        with torch.no_grad():
            assert close(pg.plan(A, B).execute(A, weight), A @ B)

    def test_what_a_plan_writes_is_known_to_autograd(self) -> None:
        x, out = A.clone().requires_grad_(), torch.ones(5, 3)
        later = x @ torch.ones(7, 3) * out
        pg.plan(A, B).execute(A, B, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            later.sum().backward()


class TestCompiled:
    """``out=`` under torch.compile."""

    @pytest.fixture(autouse=True)
    def fresh(self) -> Any:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    @staticmethod
    def compiled(whole: bool = False) -> Any:
        return torch.compile(lambda a, b, out: pg.matmul(a, b, out=out), backend="aot_eager", fullgraph=whole)

    def test_values(self) -> None:
        run = self.compiled(whole=True)
        for a, b, shape in ((A, B, (5, 3)), (normal(2, 5, 7), B, (2, 5, 3)), (A, B[:, 0], (5,)), (A[0], B, (3,))):
            out = torch.full(shape, float("nan"))
            assert run(a, b, out) is out and close(out, a @ b)
        c = C.clone()
        torch.compile(lambda c: pg.gemm(A, B, c, beta=0.5, out=c), backend="aot_eager", fullgraph=True)(c)
        assert close(c, A @ B + 0.5 * C)
        wide = torch.full((5, 6), 7.0)
        run(A, B, wide[:, ::2])
        assert close(wide[:, ::2].contiguous(), A @ B) and (wide[:, 1::2] == 7).all()

    @pytest.mark.parametrize(("bad", "kind", "says"), [
        (torch.full((5, 3), 7, dtype=torch.int32), InvalidType, "out is int32"),
        (torch.full((2, 3, 4), 7.0), InvalidValue, r"out has shape \(2, 3, 4\), the result has \(5, 3\)"),
    ], ids=["int32", "shape"])
    def test_refused_as_eager_refuses(self, bad: Any, kind: type[Exception], says: str) -> None:
        for run in (self.compiled(), lambda a, b, out: pg.matmul(a, b, out=out)):
            with pytest.raises(kind, match=says):
                run(A, B, bad)
            assert (bad == 7).all()
        with pytest.raises((kind, torch._dynamo.exc.Unsupported)):
            self.compiled(whole=True)(A, B, bad)
        assert (bad == 7).all()

    def test_overlap(self) -> None:
        flat, b = normal(20, 7), normal(7, 7)
        before = flat.clone()
        for out in (flat[:7], flat[3:10]):
            with pytest.raises(InvalidValue, match="out overlaps a in memory"):
                self.compiled()(flat[:7], b, out)
        assert torch.equal(flat, before)
        self.compiled()(flat[:7], b, flat[7:14])
        assert close(flat[7:14], before[:7] @ b)
