"""torch without a GPU: the registered op, its gradients, the compiler, and the rerouting on the CPU's key."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from peakgemm.errors import InvalidType, InvalidValue  # noqa: E402
from peakgemm.integrations import torch_use  # noqa: E402
from peakgemm.integrations.torch_ops import gemm_with_grad, traced_gemm  # noqa: E402

# a, b and c: plain, batched, broadcast in either operand, several levels, empty.
SHAPES = [
    ((5, 7), (7, 3), (5, 3)),
    ((5, 7), (7, 3), (3,)),
    ((5, 7), (7, 3), (5, 1)),
    ((4, 5, 7), (4, 7, 3), (4, 5, 3)),
    ((4, 5, 7), (7, 3), (1, 3)),
    ((4, 5, 7), (1, 7, 3), None),
    ((1, 5, 7), (4, 7, 3), (5, 3)),
    ((2, 1, 5, 7), (4, 7, 3), (4, 1, 1)),
    ((0, 7), (7, 3), (3,)),
    ((5, 0), (0, 3), (5, 3)),
    ((0, 5, 7), (7, 3), None),
]
IDS = [f"{a}-{b}-{c}".replace(" ", "") for a, b, c in SHAPES]


def draw(shape, seed=0, transposed=False):
    made = torch.randn(*(shape[:-2] + shape[:-3:-1] if transposed else shape),
                       generator=torch.Generator().manual_seed(seed))
    return made.mT if transposed else made


def operands(shapes, **options):
    return [None if s is None else draw(s, i, **(options if i < 2 else {})) for i, s in enumerate(shapes)]


def reference(a, b, c, alpha, beta):
    out = alpha * (a.double() @ b.double())
    return out if c is None or beta == 0 else out + beta * c.double()


def bound(a, b, c, alpha, beta):
    """Componentwise: (k + 3) 2^-24 (|alpha||A||B| + |beta||C|)."""
    return (a.shape[-1] + 3) * 2.0**-24 * reference(a.abs(), b.abs(), None if c is None else c.abs(),
                                                    abs(alpha), abs(beta)).detach() + 1e-30


def beta_for(c):
    return 0.0 if c is None else -0.5


@pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])
@pytest.mark.parametrize("shapes", SHAPES, ids=IDS)
def test_values(gemm, shapes):
    a, b, c = operands(shapes, transposed=True)
    got = gemm(a, b, c, 2.0, beta_for(c))
    want = reference(a, b, c, 2.0, beta_for(c))
    assert got.dtype is torch.float32
    assert got.shape == want.shape
    assert got.is_contiguous()
    assert ((got.double() - want).abs() <= bound(a, b, c, 2.0, beta_for(c))).all()


@pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])
@pytest.mark.parametrize("shapes", SHAPES, ids=IDS)
def test_gradients_against_fp64(gemm, shapes):
    single = [None if x is None else x.requires_grad_() for x in operands(shapes)]
    double = [None if x is None else x.detach().double().requires_grad_() for x in single]
    got = gemm(*single, 2.0, beta_for(single[2]))
    want = reference(*double, 2.0, beta_for(single[2]))
    grad = draw(tuple(got.shape), 9)
    got.backward(grad)
    want.backward(grad.double())
    for mine, exact in zip(single, double, strict=True):
        if mine is not None:
            assert mine.grad.shape == mine.shape
            # 200: the longest sum of a gradient here, rounded generously.
            scale = max(1.0, float(exact.grad.abs().max()) if exact.grad.numel() else 1.0)
            assert torch.allclose(mine.grad.double(), exact.grad, rtol=0, atol=200 * 2.0**-24 * scale)


@pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])
def test_gradcheck(gemm):
    """Both orders, by finite differences; linear in each operand, so that a wide step costs no accuracy."""
    for shapes in (SHAPES[1], SHAPES[7]):
        inputs = tuple(x.requires_grad_() for x in operands(shapes))
        options = {"eps": 1e-1, "atol": 1e-3, "rtol": 1e-3, "nondet_tol": 0.0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gradcheck asks for FP64; the step is chosen for FP32
            assert torch.autograd.gradcheck(lambda a, b, c: gemm(a, b, c, 1.5, -0.5), inputs, **options)
            assert torch.autograd.gradgradcheck(lambda a, b, c: gemm(a, b, c, 1.5, -0.5), inputs, **options)


def test_backward_copies_nothing(monkeypatch):
    """The operands of the backward products are transposed views of what the caller passed."""
    from peakgemm.integrations import torch_ops

    a, b = draw((4, 5, 7)).requires_grad_(), draw((7, 3), 1).requires_grad_()
    seen = []
    plain = torch_ops._run
    monkeypatch.setattr(torch_ops, "_run", lambda x, y, *rest: (seen.append((x, y)), plain(x, y, *rest))[1])
    out = gemm_with_grad(a, b, None, 1.0, 0.0)
    out.backward(draw((4, 5, 3), 2))
    (_, (_, bt), (at, _)) = seen
    assert (bt.data_ptr(), tuple(bt.shape), bt.stride()) == (b.data_ptr(), (3, 7), (1, 3))
    assert (at.data_ptr(), tuple(at.shape), at.stride()) == (a.data_ptr(), (7, 20), (1, 7))


@pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])
def test_what_is_not_read_does_not_leak(gemm):
    a, b, c = operands(((3, 4), (4, 2), (3, 2)))
    nan, inf = torch.full((3, 2), float("nan")), float("inf")
    assert torch.equal(gemm(a, b, nan, 1.0, 0.0), gemm(a, b, None, 1.0, 0.0, "ieee"))
    assert torch.equal(gemm(a * float("nan"), b, c, 0.0, 1.0), c)
    c.requires_grad_()
    gemm(a, b, c, 1.0, 0.0).backward(torch.full((3, 2), inf))
    assert torch.equal(c.grad, torch.zeros(3, 2))


@pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])
def test_bad_input(gemm):
    a, b = operands(((3, 4), (4, 2)))
    with pytest.raises(InvalidType, match=r"b is float64; .*b\.float\(\)"):
        gemm(a, b.double(), None, 1.0, 0.0)
    with pytest.raises(InvalidValue, match=r"a \(3, 4\) and b \(3, 4\) do not match"):
        gemm(a, a, None, 1.0, 0.0)
    with pytest.raises(InvalidValue, match=r"batch dimensions must be equal or 1"):
        gemm(a.expand(2, 3, 4), b.expand(3, 4, 2), None, 1.0, 0.0)
    with pytest.raises(InvalidValue, match=r"c \(4,\) does not broadcast to the result \(3, 2\)"):
        gemm(a, b, torch.zeros(4), 1.0, 1.0)
    with pytest.raises(InvalidValue, match=r"beta = 1\.0 without c"):
        gemm(a, b, None, 1.0, 1.0)


@pytest.mark.parametrize("shapes", SHAPES[1::3], ids=IDS[1::3])
def test_opcheck(shapes):
    for grad in (False, True):
        inputs = [None if x is None else x.requires_grad_(grad) for x in operands(shapes)]
        torch.library.opcheck(torch.ops.peakgemm.gemm.default, (*inputs, 2.0, beta_for(inputs[2]), "ieee"))
    a, b, _ = operands(shapes, transposed=True)
    torch.library.opcheck(torch.ops.peakgemm.gemm.default, (a, b, None, 1.0, 0.0, "ieee"))


def test_autocast_leaves_it_alone():
    a, b = operands(((3, 4), (4, 2)))
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ b).dtype is torch.bfloat16
        for gemm in (gemm_with_grad, traced_gemm):
            got = gemm(a, b, None, 1.0, 0.0)
            assert got.dtype is torch.float32
            assert np.array_equal(got.numpy(), a.numpy() @ b.numpy())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("trained", [(True, True, True), (False, True, False), (False, False, False)], ids=str)
def test_compile(dynamic, trained):
    torch._dynamo.reset()

    def model(a, b, c):
        hidden = torch.relu(traced_gemm(a * 2, b, c, 1.5, 0.5))
        return traced_gemm(hidden, hidden.mT, None, 1.0, 0.0).sum(-1)

    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (5, 9, 12):
        one, two = ([x.requires_grad_(wanted) for x, wanted in zip(operands(((2, rows, 7), (7, 3), (3,))), trained,
                                                                  strict=True)] for _ in range(2))
        got, want = compiled(*one), model(*two)
        assert torch.allclose(got, want, atol=1e-5)
        if not any(trained):
            continue
        got.sum().backward()
        want.sum().backward()
        for x, y, wanted in zip(one, two, trained, strict=True):
            assert (x.grad is not None) == wanted
            assert not wanted or torch.allclose(x.grad, y.grad, atol=1e-4)


def use(**run):
    """The rerouting on the CPU's key: what the GPU would do, NumPy does."""
    return torch_use.Use("ieee", key="CPU", **run)


def test_use_reroutes():
    x, y, bias = operands(((6, 5), (5, 4), (4,)))
    x3, y3 = draw((2, 6, 5)), draw((2, 5, 4), 1)
    out = torch.empty(6, 4)
    xy, xy3 = x.double() @ y.double(), x3.double() @ y3.double()
    with use() as ran:
        results = [
            (x @ y, xy),
            (torch.addmm(bias, x, y, beta=0.5, alpha=2), 0.5 * bias.double() + 2 * xy),
            (torch.nn.functional.linear(x, y.T, bias), xy + bias.double()),
            (torch.nn.functional.linear(x3, y.T, bias), torch.matmul(x3, y) + bias),
            (x3 @ y3, xy3),
            (torch.baddbmm(bias, x3, y3), xy3 + bias.double()),
            (torch.einsum("bij,bjk->bik", x3, y3), xy3),
            (torch.full((6, 4), float("nan")).addmm_(x, y, beta=0), xy),
            (torch.mm(x, y, out=out), xy),
        ]
    assert results[-1][0] is out
    for got, want in results:
        assert torch.allclose(got.double(), want.double(), atol=1e-5)
    assert ran.calls == {"mm": 2, "addmm": 3, "bmm": 2, "baddbmm": 1, "addmm_": 1, "mm.out": 1}
    assert not ran.fallbacks
    torch.mm(x, y)
    assert ran.calls["mm"] == 2


class Subclass(torch.Tensor):
    pass


def test_use_leaves_the_rest_to_torch():
    x, y = operands(((6, 5), (5, 4)))
    with use() as ran:
        for dtype in (torch.float64, torch.bfloat16, torch.complex64, torch.int32):
            assert torch.equal(x.to(dtype) @ y.to(dtype), x.to(dtype).mm(y.to(dtype)))
        assert (x.as_subclass(Subclass) @ y).shape == (6, 4)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            x @ x
        with pytest.raises(RuntimeError, match="expand"):
            torch.addmm(torch.zeros(3), x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, on resizing
            assert torch.mm(x, y, out=torch.empty(0)).shape == (6, 4)
            assert (torch.sparse_coo_tensor([[0], [1]], [1.0], (6, 6)) @ x).shape == (6, 5)
    assert not ran.calls
    assert ran.fallbacks["mm"] == 10
    assert (ran.fallbacks["addmm"], ran.fallbacks["mm.out"]) == (1, 1)


def test_use_falls_back_where_peakgemm_refuses():
    def refuses(call, precision):
        raise InvalidValue("too large")

    x = draw((5, 5))
    want = torch.from_numpy(x.numpy() @ x.numpy())
    with use(run=refuses) as ran:
        assert torch.allclose(x @ x, want, atol=1e-5)
    assert not ran.calls
    assert ran.fallbacks == {"mm": 1}
    with use() as ran:
        torch.mm(x, x, out=x)  # an overlap: whatever torch does with it, no error of ours
    assert not ran.calls
    assert ran.fallbacks == {"mm.out": 1}


def test_use_passes_other_errors_on_and_restores():
    def breaks(call, precision):
        raise RuntimeError("launch failed")

    x = draw((5, 5))
    with pytest.raises(RuntimeError, match="launch failed"), use(run=breaks):
        x @ x
    assert not torch_use._active
    assert torch.allclose(x @ x, torch.from_numpy(x.numpy() @ x.numpy()), atol=1e-5)


def test_the_innermost_precision_holds():
    seen = []

    def notes(call, precision):
        seen.append(precision)
        return torch.empty(call.a.shape[0], call.b.shape[1])

    x = draw((5, 5))
    with torch_use.Use("emulated", key="CPU", run=notes) as ran:
        x @ x
        with torch_use.Use("ieee", key="CPU", run=notes):
            x @ x
        x @ x
    assert seen == ["emulated", "ieee", "emulated"] and ran.calls == {"mm": 3}
    with pytest.raises(InvalidValue, match="'fp8' is unknown"):
        torch_use.Use("fp8")


def test_use_nests_and_decorates():
    x = draw((5, 5))
    again = use()

    @again
    def recursive(depth):
        x @ x
        return depth and recursive(depth - 1)

    with again as outer, use() as inner:
        assert inner is outer
        recursive(3)
        assert outer.calls == {"mm": 4}
    assert not torch_use._active
    recursive(1)
    assert outer.calls == {"mm": 4}


def test_use_covers_backward_and_other_threads():
    weight = draw((5, 4)).requires_grad_()
    with use() as ran:
        (draw((6, 5)) @ weight).sum().backward()
        thread = threading.Thread(target=lambda: draw((6, 5)) @ draw((5, 4)))
        thread.start()
        thread.join()
    assert ran.calls == {"mm": 3}


def test_the_face_needs_no_torch():
    """`peakgemm.torch` can be named, and says what it needs, where torch is not installed."""
    code = ("import sys; sys.modules['torch'] = None\n"
            "from peakgemm import torch as face\n"
            "try: face.use()\n"
            "except RuntimeError as error: print(type(error).__name__, error)")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MissingComponent peakgemm.torch.use() needs torch 2.9")
