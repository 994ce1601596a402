"""Products in JAX on the CPU, where the handler runs NumPy: transformations, shapes, several devices, refusals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax")
import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402

import peakgemm as pg  # noqa: E402
from peakgemm.calls.launch import canonical_request  # noqa: E402
from peakgemm.calls.request import Request  # noqa: E402
from peakgemm.errors import InvalidType, InvalidValue, MissingComponent  # noqa: E402
from peakgemm.integrations import jax_abi, jax_handler  # noqa: E402

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def drawn(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape, np.float32))


def close(x: Any, y: Any) -> None:
    assert x.shape == y.shape
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5, atol=2e-5)


def products(f: Any, *args: Any) -> list[tuple[tuple[int, ...], ...]]:
    """Shapes of the operands of every product in a jaxpr."""
    return [tuple(x.aval.shape for x in eqn.invars) for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns
            if eqn.primitive.name == "peakgemm_gemm"]


def test_vmap_makes_one_product() -> None:
    x, y, z = drawn(7, 3, 5), drawn(5, 4), drawn(5, 4, 7)
    mapped, both = jax.vmap(pg.jax.matmul, (0, None)), jax.vmap(pg.jax.matmul, (0, 2), 1)
    close(mapped(x, y), x @ y)
    assert products(mapped, x, y) == [((21, 5), (5, 4))]
    close(both(x, z), jnp.einsum("bij,jkb->ibk", x, z))
    assert products(both, x, z) == [((7, 3, 5), (7, 5, 4))]
    ours, theirs = pg.jax.gemm, jnp.matmul
    for axes in ((0, None), (None, 0), (0, 0), (None, 0), (0, None)):
        ours, theirs = jax.vmap(ours, axes), jax.vmap(theirs, axes)
    p, q = drawn(2, 3, 2, 3, 5), drawn(3, 3, 2, 5, 4)
    close(ours(p, q), theirs(p, q))


@pytest.mark.parametrize(("a", "b", "c"), [
    ((2, 1, 3, 1, 6, 5), (1, 4, 1, 2, 5, 2), None), ((2, 3, 2, 3, 6, 5), (2, 1, 2, 1, 5, 4), (3, 1, 3, 1, 4)),
    ((2, 3, 2, 3, 2, 6, 5), (3, 1, 3, 1, 5, 4), None), ((2, 2, 2, 2, 6, 5), (5, 4), (2, 1, 2, 2, 6, 1))])
def test_a_batch_of_many_dimensions_is_one_that_kernels_step_through(a: Any, b: Any, c: Any) -> None:
    operands = [drawn(*shape) for shape in (a, b, c) if shape]
    close(pg.jax.gemm(*operands), jnp.matmul(*operands[:2]) + (operands[2] if c else 0))
    ((x, y, *z),) = products(pg.jax.gemm, *operands)
    call = Request(x, y, z[0] if z else None, (*np.broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1]), beta=bool(z))
    assert canonical_request(call, jax_handler.packed_views(call)).problem is not None


def test_a_weight_of_a_batch_has_one_product_for_its_gradient() -> None:
    x, w = drawn(6, 3, 5), drawn(5, 4)
    grad = jax.grad(lambda x, w: (pg.jax.matmul(x, w) ** 2).sum(), (0, 1))
    assert sorted(products(grad, x, w)) == [((18, 4), (5, 4)), ((18, 5), (5, 4)), ((18, 5), (18, 4))]


@pytest.mark.parametrize(("a", "b", "numbers"), [
    ((2, 3, 4), (4, 2, 5), (((2,), (0,)), ((0,), (1,)))), ((2, 3, 4), (3, 2, 6), (((0, 1), (1, 0)), ((), ()))),
    ((3,), (3,), (((0,), (0,)), ((), ()))), ((4, 2, 3), (2, 4), (((0,), (1,)), ((1,), (0,)))),
    ((2, 3, 4, 5), (5, 3, 7, 2), (((3,), (0,)), ((1, 0), (1, 3)))),
    ((2, 4, 3), (5, 3, 6, 4), (((2, 1), (1, 3)), ((), ())))])
def test_dot_general(a: Any, b: Any, numbers: Any) -> None:
    x, y = drawn(*a), drawn(*b)
    close(pg.jax.dot_general(x, y, numbers), lax.dot_general(x, y, numbers))


@pytest.mark.parametrize("transformed", [lambda f: f, jax.jit, lambda f: jax.grad(lambda *x: jnp.abs(f(*x)).sum())])
def test_complex(transformed: Any) -> None:
    a, b, c = (lax.complex(drawn(*shape), drawn(*shape)) for shape in ((3, 5), (5, 4), (4,)))
    close(transformed(lambda a, b, c: pg.gemm(a, b.mT, c, alpha=1j, beta=2 - 1j, trans_b="C"))(a, b, c),
          transformed(lambda a, b, c: 1j * (a @ b.conj()) + (2 - 1j) * c)(a, b, c))
    with pytest.raises(InvalidValue, match="out was given for JAX arrays"):
        jax.jit(lambda a: pg.matmul(a, b, out=c))(a)


def test_refusals() -> None:
    a, b = drawn(3, 5), drawn(5, 4)
    for call, kind, says in (
            (lambda: pg.jax.matmul(a, b[:4]), InvalidValue, "do not match"),
            (lambda: pg.jax.matmul(a.astype(jnp.float16), b), InvalidType, "a is float16"),
            (lambda: pg.jax.matmul([1.0], b), InvalidType, "a is a list"),
            (lambda: pg.jax.matmul(a, b, precision="fp8"), InvalidValue, "precision = 'fp8' is unknown"),
            (lambda: pg.jax.matmul(a, b, precision="fp16x3"), InvalidValue, "needs a GPU"),
            (lambda: pg.jax.matmul(a, b, precision="emulated", reproducible=True), InvalidValue, "whole tiles"),
            (lambda: pg.jax.gemm(a, b, drawn(2, 4)), InvalidValue, "c has shape"),
            (lambda: pg.jax.gemm(a, b, beta=1.0), InvalidValue, "without c"),
            (lambda: pg.jax.gemm(a, b, alpha=1e39), InvalidValue, "beyond the largest float32"),
            (lambda: pg.jax.gemm(a, b, alpha=None), InvalidType, "alpha is a NoneType"),
            (lambda: jax.jit(lambda s: pg.jax.gemm(a, b, alpha=s))(2.0), InvalidType, "alpha is a"),
            (lambda: jax.linear_transpose(pg.jax.matmul, a, b)(a @ b), InvalidValue, "in a or in b, not in both"),
            (lambda: export.export(jax.jit(lambda a: pg.jax.matmul(a, b)))(jax.ShapeDtypeStruct(
                export.symbolic_shape("m, 5"), np.float32)), InvalidValue, r"a has symbolic sizes \(m, 5\)"),
            (lambda: pg.jax.dot_general(a, b, (((0,), (0,)), ((), ()))), InvalidValue, "sizes"),
            (lambda: jax.jit(lambda a: pg.matmul(a, b, out=np.zeros((3, 4), np.float32)))(a), InvalidValue,
             "out was given for JAX arrays under jit"),
            (lambda: jax.jit(lambda a: pg.plan(a, b))(a), InvalidType, r"under jit, grad or vmap, which has no mem")):
        with pytest.raises(kind, match=says):
            call()


def test_a_failing_handler_raises_where_the_result_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(request: Any) -> None:
        raise MissingComponent("no such luck")

    monkeypatch.setattr(jax_handler, "by_numpy", fails)
    with pytest.raises(Exception, match="peakgemm: MissingComponent: no such luck"):
        jax.block_until_ready(jax.jit(pg.jax.matmul)(drawn(11, 5), drawn(5, 4)))
    monkeypatch.undo()
    for text in (b'{"of":"another version"}', b"[]", b"no JSON"):
        with pytest.raises(InvalidValue, match="clear JAX's compilation cache"):
            jax_handler.from_text(text)


def header() -> str:
    return (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()


@pytest.mark.parametrize(("old", "new", "says"), [
    ("#define XLA_FFI_API_MAJOR 0", "#define XLA_FFI_API_MAJOR 1", r"is version 1\.\d+, peakgemm knows 0\.1"),
    ("#define XLA_FFI_API_MAJOR 0", "", "defines no XLA_FFI_API_MAJOR"),
    ("  int64_t rank;", "  int32_t flags;\n  int64_t rank;", "has struct XLA_FFI_Buffer with the fields"),
    ("XLA_FFI_ExecutionStage_EXECUTE = 3", "XLA_FFI_ExecutionStage_EXECUTE = 4", "another XLA_FFI_ExecutionStage_EXEC"),
    ("_XLA_FFI_API_STRUCT_FIELD(XLA_FFI_Error_Create);", "", "without a function XLA_FFI_Error_Cr"),
    ("  XLA_FFI_Args args;", "  XLA_FFI_Args* args;", "where peakgemm reads .*, XLA_FFI_Args args,"),
])
def test_another_interface_is_refused_by_name(old: str, new: str, says: str) -> None:
    text = header()
    assert old in text
    assert jax_abi.read_header(text, "c_api.h") == jax_abi.interface()
    with pytest.raises(MissingComponent, match=says):
        jax_abi.read_header(text.replace(old, new), "c_api.h")


def test_a_later_minor_version_with_more_fields_is_taken() -> None:
    later = re.sub(r"MINOR \d+", "MINOR 99", header()).replace("  int64_t* dims;", "  int64_t* dims;\n  void* more;")
    later = later.replace("XLA_FFI_Extension_Base", "XLA_FFI_InternalExtension")
    assert jax_abi.read_header(later, "c_api.h").functions == jax_abi.interface().functions


def test_several_devices() -> None:
    """jit of spread arrays and shard_map, in a process of four CPU devices."""
    script = Path(__file__).parents[1] / "support" / "jax_devices.py"
    told = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"})
    assert told.returncode == 0, told.stderr[-2000:]
