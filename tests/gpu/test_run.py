"""`peakgemm run` and `peakgemm.use` on the GPU: torch, CuPy and JAX in programs of which no line is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")
pytest.register_assert_rewrite("torch_cases")

import peakgemm as pg  # noqa: E402
from torch_cases import draw  # noqa: E402

SOURCE = Path(pg.__file__).parents[1]
TORCH = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)).cuda()
x = torch.randn(128, 256, device="cuda")
model(x).square().mean().backward()
(x.half() @ x.half().T).sum().item()
torch.backends.cuda.matmul.allow_tf32 = True
(x @ x.T).sum().item()
print(float(model[0].weight.grad.norm()))
"""
JAX = """
import jax, jax.numpy as jnp
step = jax.jit(jax.grad(lambda w, x: jnp.tanh(x @ w).sum()))
w, x = jnp.ones((96, 64)) / 96, jnp.ones((128, 96))
for _ in range(3):
    w = w - 0.1 * jax.block_until_ready(step(w, x))
print(float(w.sum()))
"""
CUPY = """
import cupy
cupy.random.seed(0)
a, b = (cupy.random.standard_normal(shape, dtype=cupy.float32) for shape in ((300, 200), (200, 100)))
with cupy.cuda.Stream() as stream:
    c = a @ b
    d = cupy.einsum("ij,jk,lk->il", a, b, b)
    e = cupy.tensordot(a, b, 1) + cupy.dot(a, b)
    stream.synchronize()
print(float(abs(c).sum()), float(abs(d).sum()), float(abs(e).sum()))
"""


def run(tmp_path: Path, program: str, *options: str, **environment: str) -> list[dict]:
    """The rows of the record; the program prints the same numbers as without."""
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    said = []
    for command in (["-m", "peakgemm", "run", "--json", "run.json", *options, "program.py"], ["program.py"]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    ours, theirs = ([float(x) for x in text.split()] for text in said)
    assert ours == pytest.approx(theirs, rel=1e-3)
    return json.loads((tmp_path / "run.json").read_text())["found"]


@pytest.mark.parametrize("precision", ["ieee", "emulated"])
def test_torch(tmp_path, precision):
    program, *rows = run(tmp_path, TORCH, "--check", "1", "--precision", precision)
    ours = [row for row in rows if not row["reason"]]
    assert {row["operation"] for row in ours} == {"addmm", "mm"} and sum(row["calls"] for row in ours) >= 5
    assert {row["reason"] for row in rows if row["reason"]} == {"float16", "TF32 allowed"}
    assert program["checks"]["done"] == sum(row["calls"] for row in ours) and 0 < program["checks"]["largest"] < 1


def test_jax(tmp_path):
    pytest.importorskip("jax", reason="needs jax")
    _, *rows = run(tmp_path, JAX, JAX_DEFAULT_MATMUL_PRECISION="highest")
    assert sum(row["calls"] for row in rows) >= 6 and not any(row["reason"] for row in rows)
    _, *rows = run(tmp_path, JAX)
    assert rows and all("TF32 allowed" in row["reason"] for row in rows)


def test_cupy(tmp_path):
    pytest.importorskip("cupy", reason="needs CuPy")
    program, *rows = run(tmp_path, CUPY, "--check", "1")
    assert {row["operation"] for row in rows if not row["reason"]} == {"matmul", "einsum", "tensordot", "dot"}
    assert program["checks"]["done"] == 4 and program["checks"]["largest"] < 1


def test_cupy_linear_algebra():
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    x = cupy.asarray(draw(2048, 2048))
    s = x @ x.T / 2048 + cupy.eye(2048, dtype=cupy.float32)
    want = [cupy.linalg.cholesky(s), cupy.linalg.solve(s, x), cupy.linalg.inv(s)]
    with pg.cupy.use("emulated", linalg=True) as ran:
        got = [cupy.linalg.cholesky(s), cupy.linalg.solve(s, x), cupy.linalg.inv(s)]
    assert ran.calls["cholesky"] == 1 and not ran.fallbacks["cholesky"]
    for ours, theirs in zip(got, want, strict=True):
        assert float(abs(ours - theirs).max() / abs(theirs).max()) < 1e-4


def test_compiled_code_and_graphs():
    """Inductor's calls of `mm` and `addmm` are rerouted as well; a product in a capture is not checked."""
    torch._dynamo.reset()
    x, w, b = draw(256, 512), draw(512, 384, seed=1), draw(384, seed=2)
    want = torch.relu(torch.addmm(b.double(), x.double(), w.double()))
    with torch.no_grad(), pg.use(check=1) as ran:
        got = torch.compile(lambda x: torch.relu(torch.addmm(b, x, w)))(x)
        before = ran.recorder.checks["done"]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = x @ w
        graph.replay()
        assert ran.recorder.checks == {**ran.recorder.checks, "done": before, "left_out": 1}
    assert torch.allclose(got.double(), want, atol=1e-3)
    assert torch.allclose(made.double(), x.double() @ w.double(), atol=1e-3)
    assert before >= 1 and any(key[1] in ("addmm", "addmm.out", "mm.out") and not key[3] for key in ran.recorder.rows)
