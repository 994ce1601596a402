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
WEIGHTS = {"layers": jnp.asarray(RNG.standard_normal((3, 16, 16), np.float32) / 4),
           "in": jnp.asarray(RNG.standard_normal((8, 16), np.float32) / 3),
           "out": jnp.asarray(RNG.standard_normal((16, 4), np.float32) / 4)}
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


def count(f: Any, *args: Any) -> tuple[int, int]:
    text = str(jax.make_jaxpr(f)(*args))
    return text.count("dot_general["), text.count("peakgemm_gemm[")


def test_every_product_within_is_ours() -> None:
    ours = pg.jax.use(network)
    np.testing.assert_allclose(ours(WEIGHTS, X), network(WEIGHTS, X), rtol=1e-5, atol=1e-5)
    assert count(network, WEIGHTS, X)[0] == 6 and count(ours, WEIGHTS, X) == (0, 6)
    assert ours.report is not None and ours.report.changed.total() == 6 and not ours.report.left
    assert "float32[5,8] x float32[8,16]" in str(ours.report)


def test_gradients_either_way() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return (network(weights, x) ** 2).mean()

    want = jax.grad(loss)(WEIGHTS, X)
    within, without = jax.jit(pg.jax.use(jax.grad(loss))), jax.jit(jax.grad(pg.jax.use(loss)))
    for got in (within(WEIGHTS, X), without(WEIGHTS, X)):
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
    assert count(pg.jax.use(jax.grad(loss)), WEIGHTS, X)[0] == 0


def test_a_loop_whose_length_is_not_known() -> None:
    def f(w: Any, x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ w), (0, x))[1]

    ours = pg.jax.use(f)
    w, x = WEIGHTS["layers"][0], jnp.ones((2, 16))
    np.testing.assert_allclose(ours(w, x), f(w, x), rtol=1e-5, atol=1e-5)
    assert count(ours, w, x) == (0, 1)


def test_what_is_left_is_listed() -> None:
    def f(x: Any, image: Any) -> Any:
        half = x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)
        return half.astype(jnp.float32) @ x, lax.conv(image, image[:, :, :2, :2], (1, 1), "SAME")

    image = jnp.ones((1, 1, 4, 4))
    ours = pg.jax.use(f, reproducible=True)
    ours(X, image)
    assert ours.report.precision == "reproducible" and ours.report.changed.total() == 1
    left = sorted(ours.report.left)
    assert left[0].startswith("conv_general_dilated") and left[1].startswith("dot_general bfloat16[5,8]")


def test_it_reports_once(caplog: pytest.LogCaptureFixture) -> None:
    ours = pg.jax.use(lambda x: x @ x.T)
    with caplog.at_level(logging.INFO, logger="peakgemm"):
        ours(X)
        ours(X)
    assert len([r for r in caplog.records if "1 products by peakgemm, 0 left" in r.getMessage()]) == 1


def test_arguments_of_any_kind() -> None:
    ours = pg.jax.use(lambda x, *, twice, name: {"out": (2 if twice else 1) * (x @ x.T), "name": name is None})
    got = ours(X, twice=1, name=None)
    np.testing.assert_allclose(got["out"], 2 * (X @ X.T), rtol=1e-5)
