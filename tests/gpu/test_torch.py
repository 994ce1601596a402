"""torch on the GPU: the op, gradients, the compiler, graphs, streams, threads and processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")

import peakgemm as pg  # noqa: E402
from peakgemm.errors import InvalidValue  # noqa: E402
from peakgemm.integrations.torch_ops import gemm_with_grad, traced_gemm  # noqa: E402
from torch_cases import agrees, close, draw, operands, reference  # noqa: E402

ROOT = Path(__file__).parents[2]

# a, b and c: plain, past a tile's edge, batched, broadcast either way, empty.
SHAPES = [
    ((65, 33), (33, 129), (129,)),
    ((128, 128), (128, 128), (128, 128)),
    ((4, 65, 33), (4, 33, 17), (65, 1)),
    ((4, 65, 33), (33, 17), None),
    ((1, 65, 33), (3, 33, 17), (17,)),
    ((2, 1, 9, 33), (3, 33, 17), (3, 1, 1)),
    ((0, 33), (33, 17), (17,)),
    ((65, 0), (0, 17), (65, 17)),
]
IDS = [f"{a}-{b}-{c}".replace(" ", "") for a, b, c in SHAPES]


@pytest.mark.parametrize("shapes", SHAPES, ids=IDS)
def test_opcheck(shapes):
    for grad in (False, True):
        a, b, c = operands(shapes, grad)
        torch.library.opcheck(torch.ops.peakgemm.gemm.default, (a, b, c, 2.0, 0.0 if c is None else -0.5, "ieee"))
    a, b, _ = operands(shapes)
    views = a.mT.contiguous().mT, b.mT.contiguous().mT, None, 1.0, 0.0, "ieee"
    torch.library.opcheck(torch.ops.peakgemm.gemm.default, views)


@pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])
@pytest.mark.parametrize("shapes", SHAPES, ids=IDS)
def test_gradients_against_fp64(gemm, shapes):
    single = operands(shapes, grad=True)
    double = [None if x is None else x.detach().double().requires_grad_() for x in single]
    beta = 0.0 if single[2] is None else -0.5
    got = gemm(*single, 2.0, beta)
    assert agrees(got, *single, alpha=2.0, beta=beta)
    grad = draw(*got.shape, seed=9)
    got.backward(grad)
    reference(*double, 2.0, beta).backward(grad.double())
    for mine, exact in zip(single, double, strict=True):
        if mine is not None:
            assert mine.grad.shape == mine.shape
            assert close(mine.grad, exact.grad, terms=500)


@pytest.mark.parametrize("gemm", [gemm_with_grad, traced_gemm])
@pytest.mark.filterwarnings("ignore:.*double precision")
@pytest.mark.parametrize("shapes", [((5, 7), (7, 3), (3,)), ((4, 5, 7), (7, 3), (1, 3)),
                                    ((2, 1, 5, 7), (4, 7, 3), (4, 1, 1))], ids=str)
def test_gradcheck(gemm, shapes):
    """Finite differences in FP32, both orders: the product is linear in each operand, so a wide step is exact."""
    inputs = tuple(operands(shapes, grad=True))
    options = {"eps": 1e-1, "atol": 1e-3, "rtol": 1e-3, "nondet_tol": 0.0}
    assert torch.autograd.gradcheck(lambda a, b, c: gemm(a, b, c, 1.5, -0.5), inputs, **options)
    assert torch.autograd.gradgradcheck(lambda a, b, c: gemm(a, b, c, 1.5, -0.5), inputs, **options)


def test_public_calls_have_gradients():
    def model(library, x, weight, bias):
        wide = weight.expand(3, 33, 17)
        return (library.matmul(x, weight) + library.addmm(bias, x[0], weight) + library.bmm(x, wide)
                + library.mm(x[1], weight))

    x, weight, bias = (t.requires_grad_() for t in (draw(3, 9, 33), draw(33, 17, seed=1), draw(17, seed=2)))
    x2, weight2, bias2 = (t.detach().clone().requires_grad_() for t in (x, weight, bias))
    got, want = model(pg, x, weight, bias), model(torch, x2, weight2, bias2)
    got.square().sum().backward()
    want.square().sum().backward()
    for mine, theirs in ((x, x2), (weight, weight2), (bias, bias2)):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-1)
    with torch.no_grad():
        assert not pg.matmul(x, weight).requires_grad
    with torch.inference_mode():
        assert agrees(pg.matmul(x, weight), x, weight)


def test_gradient_through_out_is_refused():
    a, b, out = draw(4, 4).requires_grad_(), draw(4, 4), torch.empty(4, 4, device="cuda")
    with pytest.raises(InvalidValue, match="out"):
        pg.matmul(a, b, out=out)
    with torch.no_grad():
        pg.matmul(a, b, out=out)
    assert agrees(out, a, b)


@pytest.mark.parametrize("view", [
    lambda x: x.mT.contiguous().mT, lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]], lambda x: x.flip(-1),
    lambda x: torch.stack([x, x], -1)[..., 0], lambda x: x[:1].expand_as(x), lambda x: x[..., :1].expand_as(x),
], ids=["transposed", "sliced", "flipped", "strided", "broadcast-rows", "broadcast-columns"])
@pytest.mark.parametrize("shape", [(65, 65), (3, 65, 65)])
def test_any_strides(view, shape):
    a, b, c = view(draw(*shape)), view(draw(*shape, seed=1)), view(draw(*shape, seed=2))
    assert agrees(traced_gemm(a, b, c, 1.5, -0.5), a, b, c, 1.5, -0.5)
    assert agrees(pg.matmul(a, b), a, b)
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    pg.matmul(a, b).sum().backward()  # the gradient of sum() has no unit stride either
    ones = torch.ones(shape, device="cuda")
    assert agrees(a.grad, ones, b.mT)
    assert agrees(b.grad, a.mT, ones)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    torch._dynamo.reset()

    def model(x, weight, bias):
        hidden = torch.relu(pg.matmul(x, weight) * 2)
        flat = pg.addmm(bias, hidden[0], weight.mT, beta=0.5)
        return pg.bmm(hidden, hidden.mT).sum() + pg.mm(flat, flat.mT).sum()

    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (9, 33, 70):
        one, two = ([t.requires_grad_() for t in operands(((2, rows, 33), (33, 17), (33,)))] for _ in range(2))
        got, want = compiled(*one), model(*two)
        got.backward()
        want.backward()
        assert torch.allclose(got, want, rtol=1e-4)
        for x, y in zip(one, two, strict=True):
            assert torch.allclose(x.grad, y.grad, rtol=1e-3, atol=1e-3 * float(y.grad.abs().max()))


def test_compile_with_graphs():
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: torch.relu(pg.matmul(a, b)), fullgraph=True, mode="reduce-overhead")
    for seed in range(6):
        a, b = draw(65, 33, seed=seed), draw(33, 129, seed=seed + 10)
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(a, b).clone()
        assert torch.allclose(got, torch.relu(reference(a, b)).float(), atol=1e-4)


@pytest.mark.parametrize("shape", [(65, 33, 129), (512, 512, 512), (16, 16384, 16)], ids=str)
def test_graph_capture(shape):
    """Replays read what their inputs hold then; the result, and a workspace, come from the graph's pool."""
    m, k, n = shape
    a, b, out = draw(m, k), draw(k, n), torch.full((m, n), float("nan"), device="cuda")
    plan = pg.plan(a, b)
    warm = pg.matmul(a, b)
    pg.matmul(warm, warm.mT)
    plan.execute(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = pg.matmul(a, b)
        plan.execute(a, b, out=out)
        twice = pg.matmul(made, made.mT)
    for seed in range(3):
        a.copy_(draw(m, k, seed=seed + 5))
        out.fill_(float("nan"))
        graph.replay()
        assert agrees(made, a, b)
        assert agrees(out, a, b)
        assert agrees(twice, made, made.mT)


def test_two_streams():
    """Each stream's chain is right, ordered by nothing but an event."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    a, b = draw(1024, 1024), draw(1024, 1024, seed=1) / 32
    want = reference(reference(a, b), b)
    ready = torch.cuda.Event()
    ready.record()
    results = []
    for _ in range(10):
        for stream in streams:
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                results.append(pg.matmul(pg.matmul(a, b), b))
    held = torch.empty_like(a)
    streams[0].wait_stream(torch.cuda.current_stream())
    pg.matmul(a, b, out=held, stream=streams[0])
    done = streams[0].record_event()
    streams[1].wait_event(done)
    results.append(pg.matmul(held, b, stream=streams[1]))
    torch.cuda.synchronize()
    for got in results:
        assert close(got, want, 2048)
    assert all(torch.equal(got, results[0]) for got in results)


def test_a_result_on_a_named_stream_is_not_reused_too_early():
    """The result is dropped while its stream is still busy: its memory must not be handed to another stream."""
    side = torch.cuda.Stream()
    a, b = draw(2048, 2048), draw(2048, 2048, seed=1)
    pg.matmul(a, b)
    torch.cuda.synchronize()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # the product waits behind this
    made = pg.matmul(a, b, stream=side)
    address = made.data_ptr()
    del made
    fresh = torch.empty(2048, 2048, device="cuda")
    assert fresh.data_ptr() != address
    torch.cuda.synchronize()


def test_autocast_leaves_precision_alone():
    a, b = draw(256, 256), draw(256, 256, seed=1)
    with torch.autocast("cuda", torch.float16):
        assert (a @ b).dtype is torch.float16
        for got in (pg.matmul(a, b), traced_gemm(a, b, None, 1.0, 0.0)):
            assert got.dtype is torch.float32
            assert agrees(got, a, b)


def test_the_page_runs(tmp_path):
    text = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_overhead_tool(tmp_path):
    path = tmp_path / "overhead.json"
    subprocess.run([sys.executable, "-m", "lab.overhead", "--json", str(path), "--rounds", "3", "--repeats", "1"],
                   cwd=ROOT, check=True)
    data = json.loads(path.read_text())
    cases = {row["case"]: row for row in data["rungs"]}
    assert len(cases) == 14
    # The bounds themselves are for a quiet machine: these only catch a call that syncs or compiles each time.
    assert cases["peakgemm.matmul(a, b)"]["ratio"] < 10
    assert cases["plan.execute(a, b, out=c)"]["ratio"] < 10
    schema = json.loads((ROOT / "docs" / "record.schema.json").read_text())
    pytest.importorskip("jsonschema_rs").validator_for(schema).validate(data)
