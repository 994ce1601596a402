"""Products, and QR and Gram matrices, of arrays that are spread over four devices; run by tests/unit/test_jax.py in a
process of its own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import peakgemm as pg

MESH = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
RNG = np.random.default_rng(0)
A, B, MANY, COLUMNS = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in (
    (64, 48), (48, 32), (4, 16, 48), (1, 48, 8)))


def put(x: Any, spec: Any) -> Any:
    return jax.device_put(x, NamedSharding(MESH, spec))


for of_a, of_b, part in ((P("x", None), P(None, "y"), "f32[32,16]"), (P("x", "y"), P("y", None), "f32[32,32]"),
                         (P(None, "x"), P("x", None), "f32[64,32]"), (P("x"), P(), "f32[32,32]")):
    a, b = put(A, of_a), put(B, of_b)
    compiled = jax.jit(pg.jax.matmul).lower(a, b).compile()
    assert (compiled(a, b) == A @ B).all(), (of_a, of_b)
    calls = [line for line in compiled.as_text().splitlines() if 'custom_call_target="peakgemm_gemm"' in line]
    assert len(calls) == 1 and f"({part}" in calls[0], (of_a, of_b, calls)  # each device has its part
for x, y, of_x, of_y in ((A, B, P("x", "y"), P("y", None)), (MANY, COLUMNS, P("x"), P())):
    by_x, by_y = jax.jit(jax.grad(lambda a, b: (pg.jax.matmul(a, b) ** 2).sum(), (0, 1)))(put(x, of_x), put(y, of_y))
    back = 2 * (x @ y)
    assert (by_x == back @ y.swapaxes(-1, -2)).all()
    assert (by_y == (x.swapaxes(-1, -2) @ back).reshape(-1, *y.shape).sum(0)).all()
for in_specs, out_specs in (((P("x", None), P(None, "y")), P("x", "y")), ((P(("x", "y"), None), P()), P(("x", "y")))):
    assert (jax.shard_map(pg.jax.matmul, mesh=MESH, in_specs=in_specs, out_specs=out_specs)(A, B) == A @ B).all()
summed = jax.shard_map(lambda a, b: jax.lax.psum(pg.jax.matmul(a, b), "x"), mesh=MESH,
                       in_specs=(P(None, "x"), P("x", None)), out_specs=P())
assert (summed(A, B) == A @ B).all()
grams = MANY @ MANY.swapaxes(-1, -2)
for spec in (P(), P("x"), P(("x", "y"))):  # XLA gathers what is spread, and shard_map does not
    assert (jax.jit(pg.linalg.gram)(put(MANY, spec)) == grams).all(), spec
    each = jax.jit(jax.shard_map(pg.linalg.qr_ex, mesh=MESH, in_specs=spec, out_specs=spec))(put(MANY, spec))
    assert np.allclose(each.Q @ each.R, MANY, atol=1e-4) and (np.asarray(each.rank) == 16).all()
