"""`peakgemm.jax.use`: which products of a jaxpr are rewritten, and that results are those of the function."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import peakgemm as pg  # noqa: E402

RNG = np.random.default_rng(0)
WEIGHTS = {name: jnp.asarray(RNG.standard_normal(shape, np.float32) / 4)
           for name, shape in {"layers": (3, 16, 16), "in": (8, 16), "out": (16, 4)}.items()}
X = jnp.asarray(RNG.standard_normal((5, 8), np.float32))


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def network(weights: Any, x: Any) -> Any:
    """Products at the top, in scan, checkpoint, cond, while, jit and a custom derivative."""
    h = jax.nn.silu(x @ weights["in"])
    h, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, weights["layers"])
    h = jax.checkpoint(lambda h: jax.nn.relu(h @ weights["layers"][0]))(h)
    h = lax.cond(h.sum() > 0, lambda h: h @ weights["layers"][1], lambda h: -h @ weights["layers"][1], h)
    return jax.jit(lambda h: h @ weights["out"])(h)


def loss(weights: Any, x: Any) -> Any:
    return (network(weights, x) ** 2).mean()


def in_a_loop(weights: Any, x: Any) -> Any:
    """Of a length that is not known."""
    start = (0, x @ weights["in"])
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ weights["layers"][0]), start)[1]


def count(f: Any, *args: Any) -> tuple[int, int]:
    """JAX's products in a jaxpr, and ours."""
    text = str(jax.make_jaxpr(f)(*args))
    return text.count("dot_general["), text.count("peakgemm_gemm[")


@pytest.mark.parametrize(("ours", "theirs"), [
    (pg.jax.use(network), network), (pg.jax.use(in_a_loop), in_a_loop), (pg.jax.use(jax.grad(loss)), jax.grad(loss)),
    (jax.grad(pg.jax.use(loss)), jax.grad(loss))], ids=["network", "loop", "use of grad", "grad of use"])
def test_every_product_within_is_ours(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
                 jax.jit(ours)(WEIGHTS, X), theirs(WEIGHTS, X))
    products = count(theirs, WEIGHTS, X)[0]
    assert products > 0 and count(ours, WEIGHTS, X) == (0, products)


def test_what_is_changed_and_left_is_listed_once(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any, image: Any, *, name: str) -> Any:
        half = x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)
        return {name: half.astype(jnp.float32) @ x, "image": lax.conv(image, image[:, :, :2, :2], (1, 1), "SAME")}

    ours, image = pg.jax.use(f, reproducible=True), jnp.ones((1, 1, 4, 4))
    with caplog.at_level(logging.INFO, logger="peakgemm"):
        for _ in range(2):
            got, want = (g(X, image, name="out") for g in (ours, f))
            np.testing.assert_allclose(got["out"], want["out"], rtol=1e-5)
    assert len([r for r in caplog.records if "1 products by peakgemm, 2 left" in r.getMessage()]) == 1
    assert ours.report.precision == "reproducible" and ours.report.changed.total() == 1
    assert "float32[5,5] x float32[5,8]" in str(ours.report)
    left = sorted(ours.report.left)
    assert left[0].startswith("conv_general_dilated") and left[1].startswith("dot_general bfloat16[5,8]")


def test_every_product_that_is_compiled_meanwhile() -> None:
    """`peakgemm.use` and `peakgemm run`: after differentiation and batching, and what was compiled before as well."""
    from peakgemm.integrations import jax_reroute
    from peakgemm.integrations.recorder import Recorder

    step, recorder = jax.jit(jax.grad(loss)), Recorder()
    want = step(WEIGHTS, X)
    block = jax_reroute.make_use("emulated", pg.jax.dot_general, platform="cpu", recorder=recorder)
    with block as ran:
        got = step(WEIGHTS, X)
        rows = jax.vmap(lambda row: row @ WEIGHTS["in"])(X)
        vector = WEIGHTS["in"].T @ X[0]
        half = X.astype(jnp.bfloat16) @ X.T.astype(jnp.bfloat16)
        jax.block_until_ready((got, rows, vector, half))
        seen = dict(recorder.rows)
        assert sum(row[0] for (*_, why), row in seen.items() if not why) >= count(jax.grad(loss), WEIGHTS, X)[0]
        assert seen["jax", "dot_general", (5, 16, 8), ""][1] % (2 * 5 * 16 * 8) == 0
        assert {why for *_, why in seen if why} == {"vectors", "bfloat16"} and ran.fallbacks["dot_general"] == 2
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, want)
    step(WEIGHTS, X)
    assert recorder.rows == seen


def test_products_that_xla_runs_in_tf32_stay() -> None:
    from peakgemm.integrations.jax_reroute import _obstacle

    a = jax.typeof(X)
    avals, numbers = (a, jax.typeof(X.T), jax.typeof(X @ X.T)), (((1,), (0,)), ((), ()))
    assert _obstacle(avals, numbers, None).startswith("TF32 allowed")
    for name in ("DEFAULT", "HIGH"):
        assert _obstacle(avals, numbers, (lax.Precision[name],) * 2).startswith("TF32 allowed")
    for precision in ((lax.Precision.HIGHEST,) * 2, lax.DotAlgorithmPreset.F32_F32_F32):
        assert _obstacle(avals, numbers, precision) == ""
