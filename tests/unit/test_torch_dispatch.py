"""torch's modes, transforms and compiler on CPU tensors: one op, the right derivative, the checks of eager calls."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import peakgemm as pg  # noqa: E402
from peakgemm.errors import InvalidType, InvalidValue  # noqa: E402


def normal(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


A, B, C = normal(5, 7), normal(7, 3, seed=1), normal(5, 3, seed=2)


def close(got: Any, want: Any) -> bool:
    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-4)


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
