"""FP32 products on tensor cores through the public calls, against FP64 on the GPU.

PEAKGEMM_FUZZ_CASES sets how many are drawn (1,000); PEAKGEMM_FUZZ_SEED where the drawing starts.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

import peakgemm as pg

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("tensor-core kernels are for sm_90", allow_module_level=True)

CASES = int(os.environ.get("PEAKGEMM_FUZZ_CASES", "1000"))
SEED = int(os.environ.get("PEAKGEMM_FUZZ_SEED", "1"))
SCHEMES = ("fp16x3", "tf32x3", "bf16x9")
UNIT = 2.0**-24
FAMILIES = ("normal", "uniform", "wide", "wider", "tiny", "huge", "integers", "relu", "sparse", "mixed")


def draw(family: str, shape: tuple[int, ...]) -> Any:
    """Data of a family, on the GPU."""
    normal = torch.randn(shape, device="cuda")
    if family == "uniform":
        return torch.rand(shape, device="cuda")
    if family in ("wide", "wider"):
        return (torch.rand(shape, device="cuda") - 0.5) * torch.exp((1 if family == "wide" else 4) * normal)
    if family == "tiny":
        return normal * 2.0**-140
    if family == "huge":
        return normal * 2.0**60
    if family == "integers":
        return torch.randint(-8, 9, shape, device="cuda").float()
    if family == "relu":
        return torch.relu(normal)
    if family == "sparse":
        return normal * (torch.rand(shape, device="cuda") < 0.03)
    if family == "mixed":  # rows of every size
        return normal * torch.exp2(torch.randint(-40, 41, (*shape[:-1], 1), device="cuda").float())
    return normal


def check(got: Any, a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Within the scheme's bound where the result is finite, and of IEEE's class where it is not."""
    k = a.shape[-1]
    wide_a, wide_b = a.double(), b.double()
    want = alpha * (wide_a @ wide_b)
    scale = abs(alpha) * (wide_a.abs() @ wide_b.abs())
    if beta:
        want, scale = want + beta * c.double(), scale + abs(beta) * c.double().abs()
    finite = scale < 2.0**127  # beyond, the order of FP32's sums decides what overflows
    # Two splits and the product that is left out, at most 8 units; a chunk's sum, cut off to 24 bits, 2, and rounded
    # where it is added to those of second planes, 1; alignment within it, half a unit a product at most, and one
    # rounding for each chunk of K. Near the subnormals IEEE rounds each step.
    bound = (11 + k / 16 if k > 128 else 11 + k / 2) * UNIT * scale + (2 + k * max(1.0, abs(alpha))) * 2.0**-149
    assert bool((((got.double() - want).abs() <= bound) | ~finite).all()), float(
        (((got.double() - want).abs() - bound) / scale.clamp_min(1e-300))[finite].max()) / UNIT
    assert torch.equal(torch.isnan(got), torch.isnan(want)) or not bool(torch.isfinite(scale).all())
    special = ~torch.isfinite(want)
    assert bool((torch.isnan(want[special]) == torch.isnan(got[special])).all())
    assert bool((want[special].nan_to_num() == got[special].double().nan_to_num()).all() or got.numel() == 0)


def cut(shape: tuple[int, int], family: str, how: str) -> Any:
    """A matrix stored as ``how`` says: packed, transposed, or in wider rows, from an odd address."""
    if how == "transposed":
        return draw(family, shape[::-1]).T
    if how == "padded":
        return draw(family, (shape[0], shape[1] + 5))[:, 3:3 + shape[1]]
    return draw(family, shape)


def test_out_and_c_of_any_layout() -> None:
    """C in place, a transposed result, batches that share an operand; kernels are in test_families.py."""
    for precision in SCHEMES:
        a, b, c = draw("normal", (300, 517)), draw("normal", (517, 333)), draw("normal", (300, 333))
        kept, out = c.clone(), torch.full((333, 300), float("nan"), device="cuda").T
        check(pg.gemm(a, b, c, beta=2.0, out=c, precision=precision), a, b, kept, 1.0, 2.0)
        check(pg.matmul(a, b, out=out, precision=precision), a, b)
        x, y = draw("normal", (3, 2, 100, 70)), draw("normal", (3, 2, 70, 90))
        for left, right in ((x, y), (x, y[0, 0]), (x[:, :1], y), (x[0, 0], y), (x.transpose(0, 1), y.transpose(0, 1))):
            lead = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
            check(pg.matmul(left, right, precision=precision), left.expand(*lead, *left.shape[-2:]), right)


def test_what_is_small_is_ieee() -> None:
    a = draw("normal", (32, 32))
    assert pg.explain(a, a, precision="emulated").kernel not in SCHEMES
    large = draw("normal", (4096, 4096))
    assert pg.explain(large, large, precision="emulated").kernel == "fp16x3"
    assert torch.equal(pg.matmul(a, a, precision="emulated"), pg.matmul(a, a))


def test_paths() -> None:
    a, b = draw("normal", (2048, 2048)), draw("normal", (2048, 2048))
    plan = pg.plan(a, b, precision="emulated")
    with pytest.raises(ValueError, match="execute"):
        plan.last_path()
    plan.execute(a, b)
    assert plan.last_path() == "fp16x3"
    a[5, 7] = float("inf")
    got = plan.execute(a, b)
    assert plan.last_path() == "fp16x3, 32 of 512 half tiles by ieee"
    check(got, a, b)
    assert plan.workspace_bytes > 4 * 2 * 2048 * 2048
    assert pg.plan(a, b).last_path() == "ieee"


@pytest.mark.parametrize(("m", "n", "k"), [(1024, 1024, 1024), (1023, 1023, 1023), (16384, 64, 640),
                                             (64, 4096, 1280)])
def test_what_is_looked_at_twice_is_not_rerouted(m: int, n: int, k: int) -> None:
    """Zeros, elements that lose bits, magnitudes that change along K: the tensor cores keep them."""
    for planted in ("zero", "tiny", "relu", "grows", "falls"):
        a, b = draw("relu" if planted == "relu" else "normal", (m, k)), draw("normal", (k, n))
        if planted in ("zero", "tiny"):
            a[m // 3, k // 2] = 0 if planted == "zero" else 1e-10
        elif planted != "relu":
            a *= torch.exp2(torch.linspace(0, 20 if planted == "grows" else -20, k, device="cuda"))
        plan = pg.plan(a, b, precision="emulated")
        check(plan.execute(a, b), a, b)
        assert plan.last_path() in ("fp16x3", "tf32x3"), planted


def test_identity_is_exact() -> None:
    b = draw("wide", (2048, 2048))
    eye = torch.eye(2048, device="cuda")
    for precision in ("emulated", *SCHEMES):
        assert torch.equal(pg.matmul(eye, b, precision=precision), b)
        assert torch.equal(pg.matmul(b, eye, precision=precision), b)


def test_prepared() -> None:
    a, b = draw("normal", (2048, 1024)), draw("normal", (1024, 2048))
    for precision in ("emulated", *SCHEMES):
        ready = pg.prepare(b, precision=precision)
        got = pg.matmul(a, ready, precision=precision)  # by another kernel, it may be
        check(got, a, b)
        assert torch.equal(pg.gemm(a, pg.prepare(b.T, precision=precision, trans_b=True), trans_b=True,
                                   precision=precision), got)
        out = torch.empty(2048, 2048, device="cuda").T  # the operands change places
        check(pg.matmul(a, ready, out=out, precision=precision), a, b)
        check(pg.matmul(a.reshape(2, 1024, 1024), ready, precision=precision), a.reshape(2, 1024, 1024), b)
        check(pg.matmul(a, ready), a, b)


def test_captured_and_repeated() -> None:
    a, b = draw("normal", (1024, 1024)), draw("normal", (1024, 1024))
    want = pg.matmul(a, b, precision="fp16x3")
    a[3] = float("nan")
    with_nan = pg.matmul(a, b, precision="fp16x3")
    a[3] = 0.5
    out = torch.empty_like(want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pg.matmul(a, b, out=out, precision="fp16x3")
    for value in (0.5, float("nan"), 0.5):
        a[3] = value
        graph.replay()
        again = pg.matmul(a, b, precision="fp16x3")
        assert torch.equal(out.view(torch.int32), again.view(torch.int32))
    assert bool(torch.isnan(with_nan[3]).all()) and torch.equal(with_nan[128:], want[128:])


def test_gradients_and_rerouting() -> None:
    x, w = draw("normal", (512, 1024)).requires_grad_(), draw("normal", (1024, 768)).requires_grad_()
    pg.matmul(x, w, precision="fp16x3").square().sum().backward()
    grad = 2 * (x.detach().double() @ w.detach().double())
    assert torch.allclose(x.grad.double(), grad @ w.detach().double().T, rtol=1e-4, atol=1e-1)
    assert torch.allclose(w.grad.double(), x.detach().double().T @ grad, rtol=1e-4, atol=1e-1)
    a = draw("normal", (2048, 2048))
    with pg.torch.use(precision="emulated") as ran:
        got = a @ a
        with pg.torch.use():
            inner = a @ a
    assert ran.calls["mm"] == 2
    assert torch.equal(got, pg.matmul(a, a, precision="emulated")) and torch.equal(inner, pg.matmul(a, a))
    compiled = torch.compile(lambda p, q: pg.matmul(p, q, precision="fp16x3"), fullgraph=True)
    assert torch.equal(compiled(a, a), pg.matmul(a, a, precision="fp16x3"))


def test_drawn_products() -> None:
    """Shapes, layouts, scale factors, families, planted infinities and NaN; twice, with the same bits."""
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    sizes = (1, 3, 31, 64, 65, 127, 128, 129, 200, 256, 257, 384, 517, 700)
    failures = []
    for i in range(CASES):
        m, n, k = (rng.choice(sizes) for _ in range(3))
        family, precision = rng.choice(FAMILIES), rng.choice(("emulated", *SCHEMES))
        if i % 50 == 0:
            m, n, k = rng.choice((1024, 1500)), rng.choice((1024, 1111)), rng.choice((1000, 2048))
            precision = "emulated"
        a = cut((m, k), family, rng.choice(("packed", "transposed", "padded")))
        b = cut((k, n), rng.choice((family, "normal")), rng.choice(("packed", "transposed", "padded")))
        for x in (a, b):
            if rng.random() < 0.15:
                x[rng.randrange(x.shape[0]), rng.randrange(x.shape[1])] = rng.choice(
                    (float("inf"), -float("inf"), float("nan")))
        c = draw("normal", (m, n))
        alpha, beta = rng.choice((1.0, 1.0, -1.5, 0.5)), rng.choice((0.0, 0.0, 1.0, -0.5))
        case = f"{m} x {n} x {k}, {family}, {precision}, alpha {alpha}, beta {beta}, case {i}"
        try:
            one, two = (pg.gemm(a, b, c, alpha=alpha, beta=beta, precision=precision) for _ in range(2))
            assert torch.equal(one.view(torch.int32), two.view(torch.int32)), "other bits the second time"
            check(one, a, b, c, alpha, beta)
        except (AssertionError, pg.PeakgemmError) as error:
            failures.append(f"{type(error).__name__}: {error}: {case}")
            if len(failures) == 10:
                break
    print(f"\n{CASES} drawn products, {len(failures)} failures")
    assert not failures, "\n".join(failures)
