"""Every public call under every transformation and debug flag of JAX: the value that jnp has there, or refused by name.

Operands are small whole numbers, so that products, sums and derivatives are exact in float32, whatever their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from seldom import exhaustive

jax = pytest.importorskip("jax", reason="needs jax")
import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402

import peakgemm as pg  # noqa: E402
from peakgemm.errors import InvalidType, InvalidValue, PeakgemmError  # noqa: E402

P = PartitionSpec
Shape = tuple[int, ...]


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def turned(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


def gemm(call: Any, trans_a: bool = False, trans_b: bool = False, alpha: float = 2.0, beta: float = -3.0) -> Any:
    """A call with `gemm`'s arguments, and the same in jnp."""
    return (lambda *x: call(*x, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b),
            lambda a, b, c: alpha * ((turned(a) if trans_a else a) @ (turned(b) if trans_b else b)) + beta * c)


PREPARED = pg.prepare(jax.device_put(np.arange(15, dtype=np.float32).reshape(5, 3), jax.devices("cpu")[0]))
DIMENSIONS = (((2,), (0,)), ((), ()))
PLAIN = ((4, 5), (5, 3))
MATMULS: dict[str, tuple[Shape, Shape]] = {
    "": PLAIN, ", a batch": ((2, 4, 5), (5, 3)), ", batches": ((2, 1, 4, 5), (3, 5, 3)), ", a row": ((5,), (5, 3)),
    ", a column": ((2, 4, 5), (5,)), ", a dot": ((5,), (5,)), ", many batches": ((2, 1, 3, 1, 6, 5), (4, 1, 2, 5, 2)),
    ", M = 0": ((0, 5), (5, 3)), ", K = 0": ((4, 0), (0, 3)), ", K = 0, batches": ((2, 4, 0), (2, 0, 3)),
    ", no batch": ((0, 4, 5), (5, 3)), ", no batch of two": ((0, 2, 4, 5), (1, 2, 5, 3)), ", nothing": ((0,), (0,)),
}
# call: ours, the same in jnp, shapes of the operands
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Shape, ...]]] = {
    **{f"jax.matmul{name}": (pg.jax.matmul, jnp.matmul, shapes) for name, shapes in MATMULS.items()},
    "jax.matmul, reproducible": (lambda a, b: pg.jax.matmul(a, b, reproducible=True), jnp.matmul, PLAIN),
    "jax.matmul, emulated": (lambda a, b: pg.jax.matmul(a, b, precision="emulated"), jnp.matmul, PLAIN),
    "jax.gemm": (*gemm(pg.jax.gemm), (*PLAIN, (4, 3))),
    "jax.gemm, NT": (*gemm(pg.jax.gemm, False, True), ((2, 4, 5), (3, 5), (4, 1))),
    "jax.gemm, TN": (*gemm(pg.jax.gemm, True), ((5, 4), (2, 5, 3), (2, 4, 3))),
    "jax.gemm, TT": (*gemm(pg.jax.gemm, True, True), ((2, 5, 4), (3, 5), (3,))),
    "jax.gemm, alpha 0": (*gemm(pg.jax.gemm, alpha=0.0), (*PLAIN, (4, 3))),
    "jax.gemm, beta 0": (*gemm(pg.jax.gemm, beta=0.0), (*PLAIN, (4, 3))),
    "jax.gemm, M = 0": (*gemm(pg.jax.gemm), ((0, 5), (5, 3), (0, 3))),
    "jax.gemm, K = 0, batches": (*gemm(pg.jax.gemm), ((2, 4, 0), (2, 0, 3), (2, 4, 3))),
    "jax.dot_general": (lambda a, b: pg.jax.dot_general(a, b, DIMENSIONS),
                        lambda a, b: lax.dot_general(a, b, DIMENSIONS), ((2, 4, 5), (5, 3))),
    "jax.use": (pg.jax.use(lambda a, b: a @ b), jnp.matmul, PLAIN),
    "matmul": (pg.matmul, jnp.matmul, PLAIN), "matmul, K = 0": (pg.matmul, jnp.matmul, ((2, 4, 0), (0, 3))),
    "matmul, prepared": (lambda a: a @ PREPARED, lambda a: a @ PREPARED.array, ((4, 5),)),
    "gemm": (*gemm(pg.gemm), (*PLAIN, (4, 3))),
    "mm": (pg.mm, jnp.matmul, PLAIN), "bmm": (pg.bmm, jnp.matmul, ((2, 4, 5), (2, 5, 3))),
    "addmm": (lambda c, a, b: pg.addmm(c, a, b), lambda c, a, b: c + a @ b, ((3,), *PLAIN)),
    "sgemm": (lambda a, b: pg.sgemm(2.0, a, b, trans_a=1), lambda a, b: 2 * (a.T @ b), ((5, 4), (5, 3))),
}


def each(x: Any) -> tuple[int, ...]:
    return tuple(range(len(x)))


def loss(f: Any) -> Any:
    return lambda *x: (f(*x) ** 2).sum()


def grad(f: Any, x: Any) -> Any:
    return jax.grad(loss(f), each(x))(*x)


def twice(x: Any, axis: int = 0) -> Any:
    return jnp.stack([x, x + 1], axis)


def mapped(which: Callable[[int], list[int | None]]) -> Callable[..., Any]:
    def run(f: Any, *x: Any) -> Any:
        axes = which(len(x))
        return jax.vmap(f, tuple(axes))(*(y if axis is None else twice(y, axis)
                                          for y, axis in zip(x, axes, strict=True)))
    return run


def grad_of_scan(f: Any, *x: Any) -> Any:
    def run(*y: Any) -> Any:
        return lax.scan(lambda s, _: (s + 1.0, f(y[0] + s, *y[1:])), jnp.float32(0), np.arange(3, dtype=np.float32))[1]
    return jax.grad(lambda *y: run(*y).sum(), each(x))(*x)


def exported(f: Any, *x: Any, order: int = 0) -> Any:
    checks = [export.DisabledSafetyCheck.custom_call("peakgemm_gemm")]
    made = export.export(jax.jit(f), disabled_checks=checks)(*x)
    return export.deserialize(made.serialize(vjp_order=order))


def symbolic(f: Any, *x: Any) -> Any:
    (size,) = export.symbolic_shape("size")
    said = [jax.ShapeDtypeStruct((size, *y.shape), y.dtype) for y in x]
    return export.export(jax.jit(jax.vmap(f)))(*said).call(*map(twice, x))


def sharded(f: Any, *x: Any) -> Any:
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("i",))
    return jax.shard_map(lambda *y: f(*(z[0] for z in y))[None], mesh=mesh, in_specs=(P("i"),) * len(x),
                         out_specs=P("i"))(*(y[None] for y in x))


def sharded_beside(f: Any, *x: Any) -> Any:
    """One operand varies over the mesh, the others do not."""
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("i",))
    return jax.shard_map(lambda s, *y: f(y[0] + s[0], *y[1:])[None], mesh=mesh, in_specs=(P("i"), *[P()] * len(x)),
                         out_specs=P("i"))(jnp.ones(1, jnp.float32), *x)


def transposed(f: Any, *x: Any, by: tuple[int, ...] = (0,)) -> Any:
    """A product with c is linear in a and c together; one of a and b is not, and jnp refuses it."""
    def of(*y: Any) -> Any:
        return f(*(y[by.index(i)] if i in by else z for i, z in enumerate(x)))

    out = jax.eval_shape(f, *x)
    return jax.linear_transpose(of, *(x[i] for i in by))(jnp.ones(out.shape, out.dtype))


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "none": lambda f, *x: f(*x), "jit": lambda f, *x: jax.jit(f)(*x),
    "jit, operands closed over": lambda f, *x: jax.jit(lambda: f(*x))(),
    "jit, the others NumPy's": lambda f, *x: jax.jit(lambda a: f(a, *map(np.asarray, x[1:])))(x[0]),
    "grad": lambda f, *x: grad(f, x),
    "jvp": lambda f, *x: jax.jvp(f, x, tuple(2 * y - 1 for y in x)),
    "linear_transpose": transposed,
    "linear_transpose by the first and the last": lambda f, *x: transposed(f, *x, by=(0, len(x) - 1)),
    "jacfwd": lambda f, *x: jax.jacfwd(f, each(x))(*x),
    "hessian": lambda f, *x: jax.hessian(loss(f))(*x),
    "vmap": mapped(lambda n: [0] * n),
    "vmap of the first": mapped(lambda n: [0] + [None] * (n - 1)),
    "vmap of the last": mapped(lambda n: [None] * (n - 1) + [-1]),
    "vmap over nothing": lambda f, *x: jax.vmap(f)(*(jnp.zeros((0, *y.shape), y.dtype) for y in x)),
    "grad of scan": grad_of_scan,
    "remat, a policy": lambda f, *x: grad(jax.remat(f, policy=jax.checkpoint_policies.dots_saveable), x),
    "shard_map": sharded,
    "shard_map, one spread": sharded_beside,
    "grad of shard_map": lambda f, *x: grad(lambda *y: sharded(f, *y), x),
    "export": lambda f, *x: exported(f, *x).call(*x),
    "grad of export": lambda f, *x: grad(exported(f, *x, order=1).call, x),
    "export, symbolic": symbolic,
}
FLAGS: dict[str, Callable[[], Any]] = {
    "no flag": nullcontext,
    "jax_debug_nans": lambda: jax.debug_nans(True),
    "jax_debug_infs": lambda: jax.debug_infs(True),
    "jax_disable_jit": lambda: jax.disable_jit(),
    "jax_enable_checks": lambda: jax.enable_checks(True),
    "jax_check_tracer_leaks": lambda: jax.checking_leaks(),
    "jax_enable_x64": lambda: (jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64)(True),
    "jax_numpy_dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "jax_numpy_rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "jax_default_matmul_precision": lambda: jax.default_matmul_precision("bfloat16"),
}
MAIN = ("jax.matmul", "jax.gemm", "jax.use", "gemm", "matmul, K = 0", "jax.gemm, K = 0, batches")
COMPOSED = "hessian", "grad of scan", "remat, a policy", "shard_map", "grad of shard_map", "grad of export"


def cells() -> Iterator[Any]:
    """Flag, call, transformations: some that run for every change, all of them exhaustively."""
    yield "no flag", "jax.matmul", [name for name in TRANSFORMS if name not in COMPOSED]
    for call in CALLS:
        yield "no flag", call, ["grad" if call.startswith("jax.") else "vmap of the last"]
        yield exhaustive("no flag", call, list(TRANSFORMS))
    for flag in list(FLAGS)[1:]:
        yield flag, "jax.gemm", ["jit"]
        for call in MAIN:
            yield exhaustive(flag, call, list(TRANSFORMS))


def drawn(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32))


def outcome(transform: Any, f: Any, flag: str, operands: Any) -> Any:
    """The result's leaves, or the error."""
    try:
        with FLAGS[flag]():
            return jax.tree.leaves(transform(f, *operands))
    except Exception as error:
        return error


def verdict(got: Any, want: Any) -> str:
    """Nothing where a cell is as it must be: what JAX itself refuses, or fails at, may be refused."""
    if isinstance(want, Exception):
        right = isinstance(got, (type(want), PeakgemmError)) or not isinstance(want, FloatingPointError)
        return "" if right else f"no {type(want).__name__}: {got!r}"
    if isinstance(got, Exception) or [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in want]:
        return f"{got!r} for {want}"
    return "".join(f"{x} for {y}" for x, y in zip(got, want, strict=True) if (np.asarray(x) != np.asarray(y)).any())


def refusal(call: str, name: str, flag: str) -> type[PeakgemmError] | None:
    """What a cell is refused with, by design."""
    if name == "export, symbolic" and "M = 0" not in call and "K = 0" not in call:
        return InvalidValue  # a kernel is chosen for sizes
    if name == "jit, the others NumPy's" and flag == "jax_disable_jit" and not call.startswith("jax."):
        return InvalidType  # no tracers there: arrays of two libraries
    return None


@pytest.mark.parametrize(("flag", "call", "names"), list(cells()))
def test_right_or_refused(flag: str, call: str, names: list[str]) -> None:
    ours, theirs, shapes = CALLS[call]
    operands = [drawn(*shape) for shape in shapes]
    wrong, compared = {}, 0
    for name in names:
        transform = TRANSFORMS[name]
        got, want = (outcome(transform, f, flag, operands) for f in (ours, theirs))
        compared += not isinstance(want, Exception)
        kind = refusal(call, name, flag)
        if kind is not None and isinstance(got, kind):
            continue
        if said := verdict(got, want):
            wrong[name] = said[:300]
    if len(names) > 1:
        jax.clear_caches()  # of programs that are called once, some MB each
    assert not wrong and compared, wrong


@pytest.mark.parametrize("flag", ["jax_debug_nans", "jax_debug_infs"])
@pytest.mark.parametrize(("call", "name"), [("jax.matmul", "jit"), ("matmul", "none"), *(
    exhaustive(call, name) for call in ("jax.gemm", "jax.use", "gemm") for name in ("none", "vmap", "grad"))])
def test_what_debug_flags_look_for(flag: str, call: str, name: str) -> None:
    """A NaN or an infinity that a product makes is the error that it is of jnp's."""
    ours, theirs, shapes = CALLS[call]
    large = np.float32(np.inf if flag == "jax_debug_nans" else 3e38)
    operands = [jnp.full(shapes[0], large), *(jnp.full(x, 0.0 if np.isinf(large) else 3.0) for x in shapes[1:])]
    got, want = (outcome(TRANSFORMS[name], f, flag, operands) for f in (ours, theirs))
    assert isinstance(want, FloatingPointError) and isinstance(got, FloatingPointError), (got, want)
