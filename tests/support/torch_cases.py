"""The registered op, its gradients and `use`: tests that run on CPU tensors and on a GPU's.

A subclass names the device. What a product must be is computed in FP64.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch

import peakgemm as pg
from peakgemm.errors import InvalidType, InvalidValue, MissingComponent
from peakgemm.integrations import torch_use
from peakgemm.integrations.recorder import Recorder
from peakgemm.integrations.torch_ops import gemm_with_grad, traced_gemm

# a, b and c: past a tile's edge, whole tiles, batched, broadcast in either operand, several levels, empty.
SHAPES = [
    ((65, 33), (33, 129), (129,)),
    ((128, 128), (128, 128), (128, 128)),
    ((5, 7), (7, 3), (5, 1)),
    ((4, 65, 33), (4, 33, 17), (65, 1)),
    ((4, 65, 33), (33, 17), None),
    ((4, 5, 7), (1, 7, 3), (1, 3)),
    ((1, 65, 33), (3, 33, 17), (17,)),
    ((2, 1, 9, 33), (3, 33, 17), (3, 1, 1)),
    ((0, 33), (33, 17), (17,)),
    ((65, 0), (0, 17), (65, 17)),
    ((0, 5, 7), (7, 3), None),
]
both_ways = pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])


def draw(*shape, seed=0, device="cuda"):
    """Normal float32 of a shape."""
    return torch.randn(*shape, device=device, generator=torch.Generator(device).manual_seed(seed))


def operands(shapes, grad=False, device="cuda"):
    """One tensor, or None, for each shape."""
    return [None if s is None else draw(*s, seed=i, device=device).requires_grad_(grad) for i, s in enumerate(shapes)]


def reference(a, b, c=None, alpha=1.0, beta=0.0):
    """The product in FP64."""
    out = alpha * (a.double() @ b.double())
    return out if c is None or beta == 0 else out + beta * c.double()


def agrees(got, a, b, c=None, alpha=1.0, beta=0.0):
    """Within the componentwise bound (k + 3) 2^-24 (|alpha||A||B| + |beta||C|); NaN never passes."""
    a, b = a.detach(), b.detach()
    c = None if c is None else c.detach()
    want = reference(a, b, c, alpha, beta)
    limit = (a.shape[-1] + 3) * 2.0**-24 * reference(a.abs(), b.abs(), None if c is None else c.abs(), abs(alpha),
                                                     abs(beta))
    assert got.shape == want.shape and got.dtype is torch.float32
    return bool(((got.detach().double() - want).abs() <= limit).all())


def close(got, want, terms):
    """Within what ``terms`` FP32 additions of standard normal products may lose, generously."""
    return torch.allclose(got.double(), want.double(), rtol=1e-4, atol=1e-6 * (terms + 10))


class ProductCases:
    """Both forms of the product, eager with a gradient and as the registered op."""

    device: str
    backend: str  # of torch.compile

    def draw(self, *shape, seed=0):
        return draw(*shape, seed=seed, device=self.device)

    def operands(self, shapes, grad=False):
        return operands(shapes, grad, self.device)

    @both_ways
    @pytest.mark.parametrize("transposed", [False, True])
    @pytest.mark.parametrize("shapes", SHAPES, ids=str)
    def test_values_and_gradients(self, gemm, shapes, transposed):
        single = self.operands(shapes)
        if transposed:
            single[:2] = [x.mT.contiguous().mT for x in single[:2]]
        single = [None if x is None else x.requires_grad_() for x in single]
        double = [None if x is None else x.detach().double().requires_grad_() for x in single]
        beta = 0.0 if single[2] is None else -0.5
        got = gemm(*single, 2.0, beta)
        assert agrees(got, *single, alpha=2.0, beta=beta) and got.is_contiguous()
        grad = self.draw(*got.shape, seed=9)
        got.backward(grad)
        reference(*double, 2.0, beta).backward(grad.double())
        for mine, exact in zip(single, double, strict=True):
            if mine is not None:
                assert mine.grad.shape == mine.shape and close(mine.grad, exact.grad, terms=500)

    @both_ways
    @pytest.mark.filterwarnings("ignore:.*double precision")
    @pytest.mark.parametrize("shapes", [((5, 7), (7, 3), (3,)), ((4, 5, 7), (7, 3), (1, 3)),
                                        ((2, 1, 5, 7), (4, 7, 3), (4, 1, 1))], ids=str)
    def test_gradcheck(self, gemm, shapes):
        """Finite differences in FP32, both orders: the product is linear in each operand, so a wide step is exact."""
        inputs = tuple(self.operands(shapes, grad=True))
        options = {"eps": 1e-1, "atol": 1e-3, "rtol": 1e-3, "nondet_tol": 0.0}
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda a, b, c: gemm(a, b, c, 1.5, -0.5), inputs, **options)

    @pytest.mark.parametrize("shapes", SHAPES[::3], ids=str)
    def test_opcheck(self, shapes):
        for grad in (False, True):
            a, b, c = self.operands(shapes, grad)
            torch.library.opcheck(torch.ops.peakgemm.gemm.default, (a, b, c, 2.0, 0.0 if c is None else -0.5, "ieee"))
        a, b, _ = self.operands(shapes)
        torch.library.opcheck(torch.ops.peakgemm.gemm.default,
                              (a.mT.contiguous().mT, b.mT.contiguous().mT, None, 1.0, 0.0, "ieee"))

    @pytest.mark.parametrize("view", [
        lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]], lambda x: x.flip(-1),
        lambda x: torch.stack([x, x], -1)[..., 0], lambda x: x[:1].expand_as(x), lambda x: x[..., :1].expand_as(x),
    ], ids=["sliced", "flipped", "strided", "broadcast-rows", "broadcast-columns"])
    @pytest.mark.parametrize("shape", [(65, 65), (3, 65, 65)], ids=str)
    def test_any_strides(self, view, shape):
        a, b, c = (view(self.draw(*shape, seed=seed)) for seed in range(3))
        assert agrees(traced_gemm(a, b, c, 1.5, -0.5), a, b, c, 1.5, -0.5)
        assert agrees(pg.matmul(a, b), a, b)
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        pg.matmul(a, b).sum().backward()  # the gradient of sum() has no unit stride either
        ones = torch.ones(shape, device=self.device)
        assert agrees(a.grad, ones, b.mT)
        assert agrees(b.grad, a.mT, ones)

    @both_ways
    def test_what_is_not_read_does_not_leak(self, gemm):
        a, b, c = self.operands(((3, 4), (4, 2), (3, 2)))
        assert torch.equal(gemm(a, b, c * float("nan"), 1.0, 0.0), gemm(a, b, None, 1.0, 0.0, "ieee"))
        assert torch.equal(gemm(a * float("nan"), b, c, 0.0, 1.0), c)
        c.requires_grad_()
        gemm(a, b, c, 1.0, 0.0).backward(torch.full((3, 2), float("inf"), device=self.device))
        assert torch.equal(c.grad, torch.zeros(3, 2, device=self.device))

    @both_ways
    def test_bad_input(self, gemm):
        a, b = self.operands(((3, 4), (4, 2)))
        for error, says, given in (
            (InvalidType, r"b is float64; .*b\.float\(\)", (a, b.double(), None, 1.0, 0.0)),
            (InvalidValue, r"a \(3, 4\) and b \(3, 4\) do not match", (a, a, None, 1.0, 0.0)),
            (InvalidValue, r"equal or 1", (a.expand(2, 3, 4), b.expand(3, 4, 2), None, 1.0, 0.0)),
            (InvalidValue, r"c \(4,\) does not broadcast to the result \(3, 2\)", (a, b, a[0], 1.0, 1.0)),
            (InvalidValue, r"beta = 1\.0 without c", (a, b, None, 1.0, 1.0)),
        ):
            with pytest.raises(error, match=says):
                gemm(*given)

    def test_autocast_leaves_it_alone(self):
        a, b = self.operands(((65, 33), (33, 17)))
        with torch.autocast(self.device, torch.bfloat16):
            assert (a @ b).dtype is torch.bfloat16
            for got in (pg.matmul(a, b), gemm_with_grad(a, b, None, 1.0, 0.0), traced_gemm(a, b, None, 1.0, 0.0)):
                assert agrees(got, a, b)

    @pytest.mark.parametrize(("dynamic", "trained"), [
        (False, (True, True, True)), (True, (True, True, True)), (True, (False, True, False)),
        (False, (False, False, False))])
    def test_compile(self, dynamic, trained):
        torch._dynamo.reset()

        def model(x, weight, bias):
            hidden = torch.relu(pg.gemm(x * 2, weight, bias, alpha=1.5, beta=0.5))
            flat = pg.addmm(x[0, :1], hidden[0], weight.mT, beta=0.5)
            return pg.bmm(hidden, hidden.mT).sum() + pg.mm(flat, flat.mT).sum() + pg.matmul(hidden, weight.mT).sum()

        compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend=self.backend)
        for rows in (5, 9, 33):
            ours, theirs = ([x.requires_grad_(wanted) for x, wanted in zip(
                self.operands(((2, rows, 7), (7, 3), (3,))), trained, strict=True)] for _ in range(2))
            got, want = compiled(*ours), model(*theirs)
            assert torch.allclose(got, want, rtol=1e-4)
            if not any(trained):
                continue
            got.backward()
            want.backward()
            for x, y, wanted in zip(ours, theirs, trained, strict=True):
                assert (x.grad is not None) == wanted
                assert not wanted or torch.allclose(x.grad, y.grad, rtol=1e-3, atol=1e-3 * float(y.grad.abs().max()))


    @pytest.mark.parametrize("compiled", [False, True])
    def test_complex_gradients(self, compiled):
        """Of conjugates, lazy ones too, as torch's own products have them."""
        torch._dynamo.reset()
        mine, theirs = ([torch.complex(self.draw(*shape), self.draw(*shape, seed=1)).requires_grad_()
                         for shape in ((2, 5, 7), (3, 7), (3,))] for _ in range(2))

        def model(a, b, c):
            first = pg.gemm(a, b, c, alpha=1j, beta=2 - 1j, trans_b="C")
            return first.abs().sum() + pg.matmul(a[0].conj(), b.mT).real.sum()

        if compiled:
            model = torch.compile(model, fullgraph=True, backend="eager")
        got = model(*mine)
        a, b, c = theirs
        want = (1j * (a @ b.mH) + (2 - 1j) * c).abs().sum() + (a[0].conj() @ b.mT).real.sum()
        got.backward()
        want.backward()
        for x, y in ((got, want), *((x.grad, y.grad) for x, y in zip(mine, theirs, strict=True))):
            assert torch.allclose(x, y, rtol=1e-4, atol=1e-4)


class UseCases:
    """The rerouting of torch's own products; on the CPU's key NumPy does what the GPU would."""

    device: str

    def draw(self, *shape, seed=0):
        return draw(*shape, seed=seed, device=self.device)

    def use(self, precision="ieee", **run):
        return torch_use.Use(precision, key="CPU" if self.device == "cpu" else "CUDA", **run)

    def test_each_op(self):
        x, y, bias = operands(((65, 33), (33, 17), (17,)), device=self.device)
        x3, y3 = self.draw(4, 65, 33), self.draw(4, 33, 17, seed=1)
        out, out3 = x.new_empty(65, 17), x.new_empty(4, 65, 17)
        into, into3 = self.draw(65, 17, seed=3), self.draw(4, 65, 17, seed=4)
        before, before3 = into.clone(), into3.clone()
        with self.use() as ran:
            results = [
                (x @ y, (x, y)), (torch.mm(x, y, out=out), (x, y)),
                (torch.addmm(bias, x, y, beta=0.5, alpha=2), (x, y, bias, 2.0, 0.5)),
                (torch.addmm(bias[:1], x, y), (x, y, bias[:1], 1.0, 1.0)),
                (into.addmm_(x, y, beta=0.5), (x, y, before, 1.0, 0.5)),
                (torch.full_like(into, float("nan")).addmm_(x, y, beta=0), (x, y)),
                (x3 @ y3, (x3, y3)), (torch.bmm(x3, y3, out=out3), (x3, y3)),
                (torch.baddbmm(bias, x3, y3), (x3, y3, bias, 1.0, 1.0)),
                (into3.baddbmm_(x3, y3), (x3, y3, before3, 1.0, 1.0)),
                (torch.nn.functional.linear(x, y.T, bias), (x, y, bias, 1.0, 1.0)),
                (torch.nn.functional.linear(x3, y.T, bias), (x3, y, bias, 1.0, 1.0)),
                (torch.einsum("bij,bjk->bik", x3, y3), (x3, y3)),
                (torch.addmm(bias, x, y, out=torch.empty_like(out)), (x, y, bias, 1.0, 1.0)),
                (torch.baddbmm(bias, x3, y3, out=torch.empty_like(out3)), (x3, y3, bias, 1.0, 1.0)),
            ]
        for got, product in results:
            assert agrees(got, *product)
        assert results[1][0] is out and results[7][0] is out3
        assert ran.calls == {"mm": 1, "mm.out": 1, "addmm": 4, "addmm_": 2, "addmm.out": 1, "bmm": 2, "bmm.out": 1,
                             "baddbmm": 1, "baddbmm_": 1, "baddbmm.out": 1}
        assert not ran.fallbacks
        torch.mm(x, y)
        assert ran.calls["mm"] == 1

    def test_complex_products(self):
        x, y, c = (torch.complex(self.draw(*shape), self.draw(*shape, seed=1)) for shape in ((65, 33), (33, 17), (17,)))
        x3, y3, into = x.expand(4, -1, -1), y.expand(4, -1, -1), torch.zeros_like(x @ y)
        weight = y.clone().requires_grad_()
        want = [x @ y, x.conj() @ y, 2j * (x @ y) + (1 - 1j) * c, x3 @ y3, c + x3 @ y3, into + x @ y]
        with self.use("emulated") as ran:
            got = [x @ y, x.conj() @ y, torch.addmm(c, x, y, alpha=2j, beta=1 - 1j), x3 @ y3, torch.baddbmm(c, x3, y3),
                   into.addmm_(x, y)]
            (x @ weight).abs().sum().backward()
        assert ran.calls == {"mm": 4, "addmm": 1, "bmm": 1, "baddbmm": 1, "addmm_": 1} and not ran.fallbacks
        gradient, weight.grad = weight.grad, None
        (x @ weight).abs().sum().backward()
        for one, other in zip([*got, gradient], [*want, weight.grad], strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-4)

    def test_the_rest_is_torchs(self):
        x, y, square = self.draw(6, 5), self.draw(5, 4, seed=1), self.draw(5, 5)
        same = [(x.to(t), y.to(t)) for t in (torch.float64, torch.bfloat16, torch.complex128)]
        want = [a @ b for a, b in same]
        with self.use() as ran:
            for (a, b), expected in zip(same, want, strict=True):
                assert torch.equal(a @ b, expected)
            assert (x.as_subclass(Subclass) @ y).shape == (6, 4)
            for says, call in (("shapes cannot be multiplied", lambda: x @ x),
                               ("expand", lambda: torch.addmm(x[0, :3], x, y)),
                               ("grad", lambda: torch.mm(x.clone().requires_grad_(), y, out=x.new_empty(6, 4)))):
                with pytest.raises(RuntimeError, match=says):
                    call()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, on resizing
                assert torch.mm(x, y, out=x.new_empty(0)).shape == (6, 4)
                assert torch.allclose(torch.sparse.mm(torch.eye(6, device=self.device).to_sparse(), x), x)
            torch.mm(square, square, out=square)  # an overlap: whatever torch does with it, no error of ours
        assert not ran.calls
        assert ran.fallbacks["mm"] >= 5 and ran.fallbacks["addmm"] == 1 and ran.fallbacks["mm.out"] >= 2

    def test_what_is_refused_falls_back(self):
        def refuses(call, precision):
            raise InvalidValue("too large")

        x = self.draw(5, 5)
        with self.use(run=refuses) as ran:
            got = x @ x
        assert agrees(got, x, x) and not ran.calls and ran.fallbacks == {"mm": 1}

    def test_other_errors_pass_and_all_is_restored(self):
        def breaks(call, precision):
            raise RuntimeError("launch failed")

        def kernels():
            key = "CPU" if self.device == "cpu" else "CUDA"
            return [repr(torch.library.get_kernel(f"aten::{op}", key)) for op in torch_use._OPS]

        x, before = self.draw(5, 5), kernels()
        with pytest.raises(RuntimeError, match="launch failed"), self.use(run=breaks), self.use():
            x @ x
        assert kernels() == before and not torch_use.use.active

    def test_the_innermost_precision_holds(self):
        seen: list[Any] = []

        def notes(call, precision):
            seen.append(precision)
            return call.a.new_empty(call.a.shape[0], call.b.shape[1])

        x = self.draw(5, 5)
        with self.use("emulated", run=notes) as ran:
            x @ x
            with self.use(run=notes):
                x @ x
            x @ x
        assert seen == ["emulated", "ieee", "emulated"] and ran.calls == {"mm": 3}
        with pytest.raises(InvalidValue, match="'fp8' is unknown"):
            torch_use.Use("fp8")

    def test_it_nests_and_decorates(self):
        x = self.draw(5, 5)
        again = self.use()

        @again
        def recursive(depth):
            x @ x
            return depth and recursive(depth - 1)

        with again as outer, self.use() as inner:
            assert inner is outer
            recursive(3)
            assert outer.calls == {"mm": 4}
        assert not torch_use.use.active
        recursive(1)
        assert outer.calls == {"mm": 4}

    def test_what_ran_is_recorded_and_checked(self):
        x, y, c = self.draw(65, 33), self.draw(33, 17, seed=1), self.draw(65, 17, seed=2)
        into, half, recorder = c.clone(), x.double(), Recorder(check=1)
        with self.use(recorder=recorder) as ran, self.use("emulated"):
            want = [torch.addmm(c.double(), x.double(), y.double(), beta=0.5), (x.double() @ y.double())]
            got = [into.addmm_(x, y, beta=0.5), torch.mm(x, y, out=torch.empty_like(c))]
            torch.baddbmm(c[None], x[None], y[None], alpha=-2)
            torch.complex(x, x) @ torch.complex(y, -y)
            half @ half.T
            x.as_subclass(Subclass) @ y
        assert all(torch.allclose(a.double(), b, atol=1e-4) for a, b in zip(got, want, strict=True))
        flops = 2.0 * 65 * 33 * 17
        assert {key: row[:2] for key, row in recorder.rows.items() if not key[3]} == {
            ("torch", "addmm_", (65, 17, 33), ""): [1, flops], ("torch", "mm.out", (65, 17, 33), ""): [1, flops],
            ("torch", "baddbmm", (1, 65, 17, 33), ""): [1, flops], ("torch", "mm", (65, 17, 33), ""): [1, 4 * flops]}
        assert sorted(why for *_, why in recorder.rows if why) == ["a tensor subclass", *3 * ["float64"]]
        assert ran.calls.total() == 4 == ran.fallbacks.total()
        assert recorder.checks["done"] == 4 and recorder.checks["left_out"] == 0
        assert 0 < recorder.checks["largest"] < 1
        assert "4 calls" in str(recorder) and "checked 4 products" in str(recorder)

    def test_a_wrong_product_is_found(self):
        for wrong in (1e-3, float("nan")):
            recorder = Recorder(check=2)
            with self.use(recorder=recorder, run=lambda call, _, wrong=wrong: torch.full((5, 5), wrong,
                                                                                     device=self.device)):
                for _ in range(3):
                    torch.zeros(5, 5, device=self.device) @ torch.zeros(5, 5, device=self.device)
            assert recorder.checks["done"] == 1 and recorder.checks["largest"] > 1

    def test_a_check_without_memory_is_left_out(self, monkeypatch):
        def refuses(*_):
            raise torch.OutOfMemoryError("no room")

        x, recorder = self.draw(5, 5), Recorder(check=1)
        monkeypatch.setattr(recorder, "compare", refuses)
        with self.use(recorder=recorder):
            assert agrees(x @ x, x, x)
        assert recorder.checks == {"done": 0, "left_out": 1, "largest": 0.0, "certified": 0, "wrong": 0}
        assert "1 products that were due were not looked at, for want of memory" in str(recorder)

    def test_a_program_goes_on_where_peakgemm_cannot_run(self):
        tried: list[Any] = []

        def breaks(call, precision):
            tried.append(call)
            raise MissingComponent("there is no compiler; install one")

        x, recorder = self.draw(5, 5), Recorder()
        with self.use(recorder=recorder, run=breaks):
            got = [x @ x, x @ x]
        assert all(agrees(one, x, x) for one in got)
        assert len(tried) == 1 and sorted(why for *_, why in recorder.rows) == [
            "peakgemm cannot run: there is no compiler", "refused: there is no compiler"]
        with pytest.raises(MissingComponent), self.use(run=breaks):
            x @ x

    def test_blocks_end_in_any_order(self):
        seen: list[Any] = []

        def notes(call, precision):
            seen.append(precision)
            return call.a.new_empty(5, 5)

        x, first, second = self.draw(5, 5), self.use("emulated", run=notes), self.use(run=notes)
        first.__enter__()
        second.__enter__()
        first.__exit__()
        x @ x
        second.__exit__()
        x @ x
        assert seen == ["ieee"] and not torch_use.use.active

    def test_backward_and_other_threads(self):
        weight = self.draw(5, 4).requires_grad_()
        with self.use() as ran:
            (self.draw(6, 5) @ weight).sum().backward()
            thread = threading.Thread(target=lambda: self.draw(6, 5) @ self.draw(5, 4))
            thread.start()
            thread.join()
        assert ran.calls == {"mm": 3}


class Subclass(torch.Tensor):
    """Of torch's tensor, and not ours to multiply."""
