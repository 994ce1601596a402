"""Products of arrays that are spread over four devices; run by tests/unit/test_jax.py in a process of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import peakgemm as pg

P = PartitionSpec
RNG = np.random.default_rng(0)
MESH = jax.make_mesh((2, 2), ("x", "y"), **({"axis_types": (jax.sharding.AxisType.Auto,) * 2}
                                            if hasattr(jax.sharding, "AxisType") else {}))


def drawn(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape, np.float32))


def loss(multiply: Any) -> Any:
    return jax.jit(jax.grad(lambda a, b: (multiply(a, b) ** 2).sum(), (0, 1)))


def check(multiply: Any, a: Any, b: Any) -> None:
    np.testing.assert_allclose(jax.jit(multiply)(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-4, atol=1e-4)
    for got, want in zip(loss(multiply)(a, b), loss(jnp.matmul)(a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def main() -> None:
    a, b = drawn(64, 48), drawn(48, 32)
    for of_a, of_b, spread in ((P("x", None), P(None, "y"), "f32[32,16]"), (P("x", "y"), P("y", None), "f32[32,32]"),
                               (P(None, "x"), P("x", None), "f32[64,32]"), (P("x"), P(), "f32[32,32]")):
        left, right = (jax.device_put(x, NamedSharding(MESH, spec)) for x, spec in ((a, of_a), (b, of_b)))
        check(pg.jax.matmul, left, right)
        compiled = jax.jit(pg.jax.matmul).lower(left, right).compile().as_text()
        calls = [line for line in compiled.splitlines() if 'custom_call_target="peakgemm_gemm"' in line]
        assert len(calls) == 1 and f"({spread}" in calls[0], (of_a, of_b, calls)  # each device has its part
    many, one = jax.device_put(drawn(4, 16, 48), NamedSharding(MESH, P("x"))), drawn(1, 48, 8)
    check(pg.jax.matmul, many, one)
    for in_specs, out in (((P("x", None), P(None, "y")), P("x", "y")), ((P(("x", "y"), None), P()), P(("x", "y")))):
        check(jax.shard_map(pg.jax.matmul, mesh=MESH, in_specs=in_specs, out_specs=out), a, b)
    check(jax.shard_map(lambda a, b: jax.lax.psum(pg.jax.matmul(a, b), "x"), mesh=MESH,
                        in_specs=(P(None, "x"), P("x", None)), out_specs=P()), a, b)


main()
