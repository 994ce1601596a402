"""torch on the GPU: the op, gradients, the compiler, graphs, streams, threads and processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")
pytest.register_assert_rewrite("torch_cases")

import peakgemm as pg  # noqa: E402
from peakgemm.errors import InvalidValue  # noqa: E402
from torch_cases import ProductCases, agrees, close, draw, reference  # noqa: E402

ROOT = Path(__file__).parents[2]


class TestProducts(ProductCases):
    device, backend = "cuda", "inductor"


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
    assert {"peakgemm.matmul(a, b)", "plan.execute(a, b, out=c)"} < {row["case"] for row in data["rungs"]}
    schema = json.loads((ROOT / "docs" / "record.schema.json").read_text())
    pytest.importorskip("jsonschema_rs").validator_for(schema).validate(data)
