"""A JAX training script: a multilayer perceptron and attention, jit, value_and_grad, plain gradient descent."""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
keys, d = jax.random.split(jax.random.key(0), 8), args.width
w = {name: jax.random.normal(key, shape) * 0.02 for name, key, shape in zip(
    ("qkv", "out", "up", "down"), keys, ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)), strict=False)}
x, y = jax.random.normal(keys[5], (8, 512, d)), jax.random.normal(keys[6], (8, 512, d))


def loss(w):
    q, k, v = (t.reshape(8, 512, 16, d // 16) for t in jnp.split(x @ w["qkv"], 3, -1))
    seen = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (d // 16) ** 0.5)
    h = x + jnp.einsum("bhqk,bkhd->bqhd", seen, v).reshape(x.shape) @ w["out"]
    return ((h + jax.nn.gelu(h @ w["up"]) @ w["down"] - y) ** 2).mean()


@jax.jit
def step(w):
    value, slope = jax.value_and_grad(loss)(w)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, w, slope)


times, losses = [], []
for _ in range(args.steps):
    start = time.perf_counter()
    value, w = jax.block_until_ready(step(w))
    times.append(time.perf_counter() - start)
    losses.append(float(value))
print(json.dumps({"ms": 1e3 * statistics.median(times[3:]), "numbers": losses[:4]}))
