"""`peakgemm.linalg` where JAX traces, on the CPU: the handler runs NumPy; and the steps that one on CUDA would launch,
with NumPy's products and small kernels on the simulator."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax")
import jax.numpy as jnp  # noqa: E402

import linalg_case  # noqa: E402
import peakgemm as pg  # noqa: E402
import stand_in  # noqa: E402
from linalg_case import Case, definite, interpret, normal, triangular  # noqa: E402
from peakgemm import linalg  # noqa: E402
from peakgemm.errors import InvalidType, InvalidValue  # noqa: E402
from peakgemm.integrations import jax_linalg  # noqa: E402

TABLES = (linalg_case.products, linalg_case.complexes, linalg_case.triangles, linalg_case.definites,
          linalg_case.generals, linalg_case.orthogonals)
CASES = [case.traced for table in TABLES
         for case in (*list(table(9, 5))[::2], *list(table(7, 5, (2, 1), (3,)))[1::5]) if case.traced]


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def jitted(case: Case, transform: Any = jax.jit) -> Any:
    return transform(lambda *operands: case._replace(operands=operands).run())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_jit(case: Case) -> None:
    case.check(np.asarray(jitted(case)(*case.operands)))


@pytest.mark.parametrize("case", [case for case in CASES if case.operands[0].ndim == 2][::3], ids=str)
def test_vmap(case: Case) -> None:
    """Each operand mapped alone, along another axis, and all of them; twice."""
    copies = [np.stack([x] * 3) for x in case.operands]
    for mapped in range(len(case.operands)):
        axes = tuple(-1 if i == mapped else None for i in range(len(case.operands)))
        operands = [np.moveaxis(copies[i], 0, -1) if i == mapped else x for i, x in enumerate(case.operands)]
        result = np.asarray(jax.jit(jitted(case, lambda f, axes=axes: jax.vmap(f, axes)))(*operands))
        assert len(result) == 3
        for each in result:
            case.check(each)
    twice = np.asarray(jitted(case, lambda f: jax.vmap(jax.vmap(f)))(*(x[None] for x in copies)))
    assert twice.shape[:2] == (1, 3)
    case.check(twice[0, 2])


def test_of_different_matrices() -> None:
    """None of a mapped batch is another's; info is of each."""
    s, b = definite(4, 9, 9), normal(4, 9, 3)
    s[2, 5, 5] = -1

    def call(s: Any, b: Any) -> Any:
        factor, info = linalg.cholesky_ex(s)
        return factor, info, linalg.cholesky_solve(b, factor), linalg.lu_solve(*linalg.lu_factor(s), b)

    factor, info, x, y = jax.jit(jax.vmap(call))(s, b)
    assert info.tolist() == [0, 0, 6, 0] and info.dtype == np.int32
    for i in (0, 1, 3):
        np.testing.assert_allclose(factor[i], linalg.cholesky(s[i]), atol=1e-6)
        np.testing.assert_allclose(x[i], np.linalg.solve(s[i], b[i]), atol=1e-4)
    np.testing.assert_allclose(y, np.linalg.solve(s, b), atol=1e-4)


def test_within_loops_and_beside_products() -> None:
    s, b = definite(9, 9), normal(9, 2)

    def step(x: Any, _: Any) -> Any:
        return x + linalg.cholesky_solve(b - s @ x, linalg.cholesky_ex(s)[0]), linalg.gram(x, trans=True)

    x, grams = jax.jit(lambda: jax.lax.scan(step, jnp.zeros((9, 2)), None, 2))()
    np.testing.assert_allclose(x, np.linalg.solve(s, b), atol=1e-5)
    np.testing.assert_allclose(grams[1], np.asarray(x.T @ x), rtol=1e-3)
    with jax.disable_jit():
        np.testing.assert_allclose(jax.vmap(linalg.gram)(s[None])[0], s @ s.T, rtol=1e-5)


def test_sizes_of_zero() -> None:
    for call, shape in linalg_case.EMPTY[:8]:
        assert jax.jit(lambda call=call: call(jnp.zeros))().shape == shape
    q, r, rank = jax.jit(linalg.qr_ex)(jnp.zeros((2, 0, 3)))
    assert q.shape == (2, 0, 0) and r.shape == (2, 0, 3) and rank.tolist() == [0, 0]
    assert not jax.jit(linalg.syrk)(jnp.zeros((3, 0))).any()


A, S = normal(4, 3), definite(4, 4)
REFUSED: dict[str, tuple[Any, Any, type, str]] = {
    "cholesky": (linalg.cholesky, S, InvalidValue, "not known under JAX's jit.* cholesky_ex"),
    "solve": (lambda a: linalg.solve(a, A), S, InvalidValue, "not known under JAX's jit.* solve_ex"),
    "lstsq": (lambda a: linalg.lstsq(a, A), S, InvalidValue, "not known under JAX's jit.* lstsq_ex"),
    "out": (lambda a: linalg.syrk(a, out=S), A, InvalidValue, "out was given for JAX arrays under jit.*leave it out"),
    "stream": (lambda a: linalg.herk(a, stream=0), A, InvalidValue, "stream was given.*leave it out"),
    "float16": (linalg.syrk, np.float16(A), InvalidType, r"a is float16.*a.astype\('float32'\)"),
    "complex64": (lambda a: linalg.trsm(a, A), S + 0j, InvalidType, "a is complex64"),
    "a real c": (lambda a: linalg.herk(a, jnp.asarray(S)), A + 0j, InvalidType, "c is float32, and a is complex"),
    "pivots": (lambda a: linalg.lu_solve(a, a[0], A), S, InvalidType, "pivots is float32; it is int32"),
    "not square": (linalg.cholesky_ex, A, InvalidValue, "takes square"),
    "precision": (lambda a: linalg.gram(a, precision="reproducible"), A, InvalidValue, "gram does not keep"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, operand, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        jax.jit(call)(operand)


def test_derivatives_and_other_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match=r"linalg\.gram has no derivative in JAX; call jax\.numpy\.linalg"):
        jax.grad(lambda a: linalg.gram(a).sum())(A)
    program = jax.jit(linalg.trsm).lower(triangular(4, 4), A).compile()
    monkeypatch.setattr(jax_linalg, "_operations", {})
    with pytest.raises(Exception, match=r"asks for \('trsm'\), whose steps .* another process; trace its function"):
        jax.block_until_ready(program(triangular(4, 4), A))


# ---- what a handler on CUDA launches -----------------------------------------------------------------------------


class Bound:
    """A bound program, interpreted."""

    def __init__(self, program: Any, gpu: Any) -> None:
        self.program, self.workspace_bytes = program, program.bytes


@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of packed arrays at any address; int32 results are zeros before."""
    monkeypatch.setattr(jax_linalg, "BoundProgram", Bound)
    monkeypatch.setattr(jax_linalg.device, "require", lambda index: stand_in.GPU)
    monkeypatch.setattr(jax_linalg, "calls", kept := {})
    monkeypatch.setattr(jax_linalg, "remember", lambda key, bound: kept.setdefault(key, bound))
    closed = jax.make_jaxpr(jitted(case))(*case.operands)
    (inner,) = (eqn.params["jaxpr"] for eqn in closed.jaxpr.eqns)
    (eqn,) = (eqn for eqn in inner.jaxpr.eqns if eqn.primitive is jax_linalg.linalg_p)
    given = [np.stack((x.real, x.imag), -1) if np.iscomplexobj(x) else x[..., None, :] if x.dtype == np.int32 else x
             for x in case.operands]
    operation = jax_linalg._operations[eqn.params["text"]]
    if case.function == "cholesky_solve":
        given.reverse()
    if case.function == "lu_solve":
        given = [given[0], given[2], given[1]]
    assert len(given) == len(operation.operands) + len(operation.integers)
    buffers, inside = [], []
    for i, (shape, dtype) in enumerate((x.aval.shape, x.aval.dtype) for x in (*eqn.invars, *eqn.outvars)):
        shift, size = i % 2 * operation.parts, int(np.prod(shape))
        buffers.append(np.full(shift + size + 4, 0 if dtype == np.int32 else np.nan, np.float32))
        inside.append(buffers[-1][shift:shift + size].view(dtype).reshape(shape))
        if i < len(given):
            inside[-1][...] = np.broadcast_to(given[i], shape)
    addresses = [4096 + i % 2 * 4 * operation.parts for i in range(len(buffers))]
    interpret(jax_linalg.bind(eqn.params["text"], 0, addresses).program, buffers)
    results = inside[len(given):]
    if operation.parts == 2:
        results[0] = results[0].view(np.complex64)[..., 0]
    case.check(results[case.part == "R"])


def test_numpy_arrays_that_jax_has_wrapped() -> None:
    """As arguments of a function with a rule of its own for derivatives."""
    @jax.custom_jvp
    def gram(x: Any) -> Any:
        return pg.linalg.gram(x)

    gram.defjvp(lambda primals, tangents: (pg.linalg.gram(*primals), 2 * tangents[0]))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(gram(x), x @ x.T)


# ---- the end of a process -----------------------------------------------------------------------------------------

END = """
import jax, jax.numpy as jnp
import peakgemm as pg
x = 3 * jnp.eye(64)
products, factors = jax.jit(pg.matmul), jax.jit(lambda a: pg.linalg.cholesky_ex(a)[0])
for _ in range(5):
    KEPT products(x, x), factors(x)
print("the end", flush=True)
"""


LATE = """
import jax, jax.numpy as jnp, time
import peakgemm as pg
x, large = 3 * jnp.eye(64), jnp.ones((1500, 1500))
f = jax.jit(lambda x, y: pg.matmul(x + 0 * (y @ y @ y)[0, 0], x))
jax.block_until_ready(f(x, large))
time.sleep(0.1)
f(x, large)
print("the end", flush=True)
"""
SERVING = """
import jax, jax.numpy as jnp, threading, time
import peakgemm as pg
x, f = jnp.eye(64), jax.jit(lambda x: pg.matmul(x, x))
def serve():
    while True:
        jax.block_until_ready(f(x))
        time.sleep(0.01)
threading.Thread(target=serve, daemon=True).start()
time.sleep(0.5)
print("the end", flush=True)
"""


@pytest.mark.parametrize("program", [END.replace("KEPT", "last ="), END.replace("KEPT", ""), LATE, SERVING],
                         ids=["kept", "dropped", "late", "serving"])
def test_a_program_may_end_before_its_results_are_there(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    ends = (0, -signal.SIGABRT) if program == SERVING else (0,)  # as JAX's own, with a daemon thread
    assert done.returncode in ends and done.stdout == "the end\n", done.stderr
