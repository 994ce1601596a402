"""Every argument of every public call on a GPU: right, or refused by name, and the context is alive afterwards.

What once lost the context runs in a process of its own, which multiplies once more at its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

HEAD = """
import numpy as np, torch, peakgemm as pg
from peakgemm.errors import InvalidType, InvalidValue, PeakgemmError

draw = torch.Generator("cuda").manual_seed(0)
a, b, c = (torch.randn(*shape, device="cuda", generator=draw) for shape in ((64, 48), (48, 32), (64, 32)))
out = torch.empty(64, 32, device="cuda")
deep = torch.randn(64, 65536, device="cuda", generator=draw), torch.randn(65536, 64, device="cuda", generator=draw)

def close(got, want, within=1e-4):
    got, want = (x.get() if hasattr(x, "get") else x for x in (got, want))  # CuPy
    got, want = (torch.as_tensor(x if hasattr(x, "cpu") else np.asarray(x)).cpu().double() for x in (got, want))
    assert got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=within), (got - want).abs().max()

def refused(kind, says, call):
    try:
        call()
    except kind as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"not refused: {says}")
"""
TAIL = """
torch.cuda.synchronize()
close(pg.matmul(a, b), a.double() @ b.double())
torch.cuda.synchronize()
print("alive")
"""
CASES = {
    "wrappers": """
from door_cases import Wrapped, Ruleless
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode() as mode:
    fake = torch.empty(64, 32, device="cuda")
close(pg.gemm(a, b, Wrapped(c)), a.double() @ b.double() + c.double())
assert pg.matmul(a, b, out=(w := Wrapped(out))) is w
close(out, a.double() @ b.double())
made = pg.plan(a, b, c)
for bad in (Ruleless(c), fake):
    refused(InvalidType, "c is a", lambda: pg.gemm(a, b, bad))
    refused(InvalidType, "out is a", lambda: pg.matmul(a, b, out=bad))
for bad in (Wrapped(c), Ruleless(c), fake):
    refused(InvalidType, "c is a", lambda: made.execute(a, b, bad))
    refused(InvalidType, "out is a", lambda: made.execute(a, b, c, bad))
    refused(InvalidType, "b is a", lambda: pg.prepare(bad))
    refused(InvalidType, "a is a", lambda: pg.plan(bad, b))
    refused(InvalidType, "workspace is a", lambda: made.execute(a, b, c, workspace=bad))
""",
    "memory that is gone": """
w = b.clone()
made = pg.plan(a, w)
for _ in range(2):
    pg.matmul(a, w), pg.matmul(a, w, out=out), made.execute(a, w), made.execute(a, w, out=out)
w.untyped_storage().resize_(0)
gone = out.clone()
pg.matmul(a, b, out=gone)
gone.untyped_storage().resize_(0)
for call in (lambda: pg.matmul(a, w), lambda: pg.matmul(a, w, out=out), lambda: made.execute(a, w),
             lambda: made.execute(a, w, out=out)):
    refused(InvalidValue, "b has shape (48, 32) and a storage of 0 bytes", call)
for call in (lambda: pg.matmul(a, b, out=gone), lambda: pg.plan(a, b).execute(a, b, out=gone)):
    refused(InvalidValue, "out has shape (64, 32) and a storage of 0 bytes", call)
""",
    "workspace": """
x, y = deep
made = pg.plan(x, y)
size = made.workspace_bytes // 4
assert size, made
want = x.double() @ y.double()
good = torch.full((size,), float("nan"), device="cuda")
close(made.execute(x, y, workspace=good), want, 0.05)
close(made.execute(x, y, workspace=good.view(-1, 4)), want, 0.05)
two = torch.empty(2 * size + 1, device="cuda")
for kind, says, bad in ((InvalidValue, "on the host", good.cpu()), (InvalidValue, "with gaps", two[:-1:2]),
                        (InvalidValue, "with gaps", two[:1].expand(size)), (InvalidValue, "pass a packed", good[:-1]),
                        (InvalidValue, "aligned to 4", two[1:]), (InvalidValue, "overlaps a", x.view(-1)[:size]),
                        (InvalidType, "is uint8; pass", good.view(torch.uint8)),
                        (InvalidType, "a NumPy array", np.empty(size, np.float32))):
    refused(kind, "workspace ", lambda: made.execute(x, y, workspace=bad))
    refused(kind, says, lambda: made.execute(x, y, workspace=bad))
where = torch.empty(max(size, 4096) + 4096, device="cuda")
refused(InvalidValue, "workspace overlaps out",
        lambda: made.execute(x, y, workspace=where, out=where[:4096].view(64, 64)))
close(made.execute(x, y), want, 0.05)
""",
    "prepared operands in plans": """
SCHEMES = "fp16x3", "tf32x3", "bf16x9", "ieee"
for precision in ("ieee", "emulated", "fp16x3"):
    x, y = (torch.randn(1024, 1024, device="cuda", generator=draw) for _ in range(2))
    ready = pg.prepare(y, precision=precision)
    for made in (pg.plan(x, y, precision=precision), pg.plan(x, ready, precision=precision)):
        for again in (y, ready, pg.prepare(y, precision=precision)):
            close(made.execute(x, again), x.double() @ y.double(), 1e-3)
            path = made.last_path()
            assert path.startswith(SCHEMES if precision == "emulated" else precision), path
hot = x.clone()
hot[3, 5] = float("inf")
made = pg.plan(x, pg.prepare(y, precision="fp16x3"), precision="fp16x3")
made.execute(hot, pg.prepare(y, precision="fp16x3"))
assert "by ieee" in made.last_path(), made.last_path()
""",
    "CuPy at odd addresses": """
import cupy
def odd(x):
    x = cupy.asarray(x)
    room = cupy.zeros(x.nbytes + 64, cupy.uint8)
    there = cupy.ndarray(x.shape, x.dtype, room.data + 1)
    bytes_of = cupy.ndarray((*x.shape, 4), cupy.uint8, room.data + 1)
    bytes_of[...] = cupy.ascontiguousarray(x).view(cupy.uint8).reshape(*x.shape, 4)
    return there
def even(x):
    raw = cupy.ndarray((*x.shape, 4), cupy.uint8, x.data, strides=(*x.strides, 1))
    return raw.copy().view(cupy.float32)[..., 0]
x, y, z = (cupy.asarray(v) for v in (a, b, c))
want = a.double() @ b.double()
for left, right in ((odd(x), y), (x, odd(y)), (odd(x), odd(y)), (odd(x.T.copy()).T, y), (odd(x)[::2], y)):
    close(pg.matmul(left, right), want if left.shape[0] == 64 else want[::2])
close(pg.gemm(x, y, odd(z)), want + c.double())
target = odd(z)
assert pg.matmul(x, y, out=target) is target
close(even(target), want)
close(pg.matmul(x, pg.prepare(odd(y))), want)
close(pg.plan(odd(x), y).execute(odd(x), y), want)
as_torch = torch.from_dlpack(odd(x))
assert as_torch.data_ptr() % 4
close(pg.matmul(as_torch, b), want)
into = torch.from_dlpack(target)
pg.matmul(a, 2 * b, out=into)
close(even(target), 2 * want)
refused(InvalidValue, "no multiple of 4 bytes", lambda: pg.run_rung(9, x, y, odd(z)))
class Bare:
    def __init__(self, x): self.__cuda_array_interface__ = x.__cuda_array_interface__
refused(PeakgemmError, "", lambda: pg.matmul(Bare(odd(x)), Bare(y), out=Bare(z)))
""",
    "JAX beside torch and CuPy": """
import threading, cupy
z = cupy.ones((8, 8), cupy.float32) @ cupy.ones((8, 8), cupy.float32)
pg.matmul(a, b), pg.matmul(z, z)
import jax, jax.numpy as jnp
x, y = (jnp.asarray(v.cpu().numpy()) for v in (a, b))
want = a.double() @ b.double()
for _ in range(3):
    close(pg.matmul(x + 0, y * 1), want)
    pg.matmul(a, b), torch.mm(a, b), z @ z
    close(pg.matmul(jnp.flip(x, 0), y), want.flip(0))
    close(pg.matmul(x, y, precision="emulated"), want)
    close(jax.jit(lambda r: r + 1)(pg.matmul(x, y)), want + 1)
close(pg.matmul(x, pg.prepare(y)), want)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    close(pg.matmul(x, y, stream=stream), want)
failed = []
def work():
    try:
        close(pg.matmul(x, y), want)
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
assert not failed, failed
shape = jax.ShapeDtypeStruct((48, 32), np.float32)
refused(InvalidType, "b is a ShapeDtypeStruct of JAX", lambda: pg.matmul(x, shape))
""",
}


@pytest.mark.parametrize("case", CASES)
def test_in_a_process_of_its_own(case: str) -> None:
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run([sys.executable, "-c", HEAD + CASES[case] + TAIL], text=True, capture_output=True, timeout=99,
                          env=os.environ | {"PYTHONPATH": paths, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    assert told.returncode == 0 and told.stdout.rstrip().endswith("alive"), told.stderr[-3000:]


def test_every_argument_of_every_call() -> None:
    import door_cases

    wrong, said = [], {}
    for case in door_cases.cases():
        try:
            said[case] = door_cases.run(*case, "cuda")
            torch.cuda.synchronize()
        except Exception as error:
            wrong.append((case, type(error).__name__, str(error)[:200]))
    assert not wrong, wrong
    for call in ("matmul", "matmul, new", "gemm", "gemm, new", "mm", "addmm", "sgemm", "emulated"):
        for kind in ("plain", "wrapped", "subclass", "parameter", "misaligned", "expanded", "strided", "negated"):
            assert said[call, "a", kind] == said[call, "b", kind] == "right", (call, kind)
    a, b, c = (door_cases.operands("cuda")[x] for x in "abc")
    import peakgemm as pg

    assert torch.allclose(pg.gemm(a, b, c), a @ b + c, atol=1e-4)
