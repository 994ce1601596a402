"""A JAX training script: a multilayer perceptron and attention, jit, value_and_grad, plain gradient descent."""

import jax
import jax.numpy as jnp
import numpy as np
import steps

args = steps.options(width=2048, batch=8, tokens=512)
jax.config.update("jax_enable_x64", args.double)
draw, d, heads = np.random.default_rng(0), args.width, 16


def normal(*shape, scale=1.0):
    """Drawn by NumPy: JAX would compile a program for each shape."""
    return jnp.asarray(scale * draw.standard_normal(shape, np.float32), np.float64 if args.double else np.float32)


w = {name: normal(*shape, scale=np.float32(0.02)) for name, shape in
     {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}.items()}
x, y = (normal(args.batch, args.tokens, d) for _ in range(2))


def loss(w):
    q, k, v = (t.reshape(*x.shape[:2], heads, d // heads) for t in jnp.split(x @ w["qkv"], 3, -1))
    seen = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (d // heads) ** 0.5)
    h = x + jnp.einsum("bhqk,bkhd->bqhd", seen, v).reshape(x.shape) @ w["out"]
    return ((h + jax.nn.gelu(h @ w["up"]) @ w["down"] - y) ** 2).mean()


@jax.jit
def train(w):
    value, slope = jax.value_and_grad(loss)(w)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, w, slope), slope


losses, gradients = [], []


def step():
    global w
    value, w, slope = jax.block_until_ready(train(w))
    losses.append(value)
    gradients.extend(slope.values() if not gradients else ())


steps.run(step, args.steps, lambda: None,
          lambda: [[float(v) for v in losses[:3]],
                   *(np.asarray(g)[::97, ::89].flatten()[:48].tolist() for g in gradients)])
