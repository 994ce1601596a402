"""peakgemm in JAX on a GPU: right under jit, grad, vmap and in command buffers; what a call costs; how fast it is.

    python -m lab.jax_check --json results/h100/jax.json

Results are compared with FP64 on the host; a check that fails ends the run with exit code 1, after the record is
written. ``host_us`` is what a product of 64 x 64 in a compiled chain of 40 costs, beside XLA's own. Takes
about 60 s.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

import peakgemm as pg
from peakgemm.runtime import device
from peakgemm.tools.bench import records

EPS = 2.0**-23
CHAIN, SMALL, LARGE = 40, 64, 4096
RNG = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape, np.float32))


def error(got: Any, a: Any, b: Any) -> float:
    """Largest |C - AB| / (eps |A||B|); NaN counts as infinite."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    off = np.abs(np.asarray(got) - x @ y) / (EPS * (np.abs(x) @ np.abs(y)))
    return float(np.where(np.isnan(off), np.inf, off).max())


def checks(precision: str) -> dict[str, Any]:
    """Figures of correctness of one precision: errors in eps |A||B|, all below 8."""
    def f(a: Any, b: Any) -> Any:
        return pg.jax.matmul(a, b, precision=precision)

    found: dict[str, Any] = {}
    for shape in ((511, 300, 257), (1024, 1024, 1024), (5, 4096, 512)):
        a, b = drawn(shape[0], shape[2]), drawn(shape[2], shape[1])
        found[f"jit {shape}"] = error(jax.jit(f)(a, b), a, b)
        found[f"eager {shape}"] = error(f(a, b), a, b)
    a, b, g = drawn(384, 640), drawn(640, 256), drawn(384, 256)
    of_a, of_b = jax.jit(jax.grad(lambda a, b: (f(a, b) * g).sum(), (0, 1)))(a, b)
    found["grad a"], found["grad b"] = error(of_a, g, b.T), error(of_b, a.T, g)
    tangent = jax.jit(lambda a, b: jax.jvp(lambda a: f(a, b), (a,), (a,))[1])(a, b)
    found["jvp"] = error(tangent, a, b)
    many, other = drawn(6, 200, 128), drawn(6, 128, 96)
    found["vmap both"] = max(error(c, x, y) for c, x, y in zip(
        jax.jit(jax.vmap(f))(many, other), many, other, strict=True))
    found["vmap one"] = max(error(c, x, other[0]) for c, x in zip(
        jax.jit(jax.vmap(f, (0, None)))(many, other[0]), many, strict=True))
    c = drawn(384, 256)
    scaled = jax.jit(lambda a, b, c: pg.jax.gemm(a, b, c, alpha=2.0, beta=0.5, precision=precision))(a, b, c)
    found["alpha, beta"] = error((scaled - 0.5 * c) / 2, a, b)
    return found


def captured() -> float:
    """A compiled program that XLA replays as a command buffer, with other operands each time."""
    def layers(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = jnp.tanh(pg.jax.matmul(x, w))
        return x

    ours, theirs = jax.jit(layers), jax.jit(lambda x, w: plain(x, w))

    def plain(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = jnp.tanh(jnp.matmul(x, w, precision="highest"))
        return x

    worst = 0.0
    for _ in range(6):
        x, w = drawn(256, 256), drawn(256, 256) / 16
        worst = max(worst, float(jnp.abs(ours(x, w) - theirs(x, w)).max()))
    return worst


def chain(multiply: Callable[[Any, Any], Any]) -> Any:
    def run(x: Any, w: Any) -> Any:
        for _ in range(CHAIN):
            x = multiply(x, w)
        return x
    return jax.jit(run)


def seconds(f: Any, args: tuple[Any, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        out = f(*args)
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / calls


def compare(ours: Any, theirs: Any, args: tuple[Any, ...], calls: int, rounds: int) -> tuple[float, float, float]:
    """Seconds of a call of both, in turns, and the median of the rounds' ratios theirs / ours."""
    for f in (ours, theirs):
        for _ in range(3):
            jax.block_until_ready(f(*args))
    times = [(seconds(ours, args, calls), seconds(theirs, args, calls)) for _ in range(rounds)]
    return median(x for x, _ in times), median(y for _, y in times), median(y / x for x, y in times)


def training() -> dict[str, Any]:
    """Twenty steps of a small network with Adam: losses beside XLA's at highest precision, and a step's time."""
    sizes = (256, 1024, 1024, 64)
    weights = [(drawn(m, n) / np.sqrt(m), jnp.zeros(n)) for m, n in pairwise(sizes)]
    x, y = drawn(512, sizes[0]), drawn(512, sizes[-1])

    def loss(weights: Any, x: Any, y: Any) -> Any:
        for i, (w, b) in enumerate(weights):
            x = jnp.matmul(x, w, precision="highest") + b
            if i + 1 < len(weights):
                x = jax.nn.gelu((x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5))
        return ((x - y) ** 2).mean()

    def step(state: Any, x: Any, y: Any) -> Any:
        weights, first, second, t = state
        value, grad = jax.value_and_grad(loss)(weights, x, y)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grad)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grad)
        lower = (1 - 0.9 ** t), (1 - 0.999 ** t)
        weights = jax.tree.map(lambda w, m, v: w - 1e-3 * (m / lower[0]) / (jnp.sqrt(v / lower[1]) + 1e-8), weights,
                               first, second)
        return (weights, first, second, t + 1), value

    zeros = jax.tree.map(jnp.zeros_like, weights)
    found: dict[str, Any] = {}
    kinds = {"xla": jax.jit(step), **{p: jax.jit(pg.jax.use(step, precision=p)) for p in ("ieee", "emulated")}}
    for name, f in kinds.items():
        state, losses = (weights, zeros, zeros, jnp.float32(1)), []
        for _ in range(20):
            state, value = f(state, x, y)
            losses.append(float(value))
        found[name] = {"losses": losses, "step_us": 1e6 * seconds(f, (state, x, y), 30)}
    for name in ("ieee", "emulated"):
        found[name]["off"] = max(abs(p / q - 1) for p, q in zip(found[name]["losses"], found["xla"]["losses"],
                                                               strict=True))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true", help="a trial without a GPU: small, and IEEE alone")
    options = parser.parse_args()
    records.check_writable(options.json)
    if not options.cpu and jax.default_backend() != "gpu":
        print(f"JAX computes on {jax.default_backend()}; install jax[cuda13], or pass --cpu", file=sys.stderr)
        return 2
    large = 128 if options.cpu else LARGE
    result: dict[str, Any] = {"checks": {p: checks(p) for p in ("ieee", "emulated", "reproducible")},
                              "captured_off": captured()}
    a, b = drawn(300, 200), drawn(200, 100)
    bits = np.asarray(jax.jit(lambda a, b: pg.jax.matmul(a, b, reproducible=True))(a, b)).view(np.uint32)
    replayed = pg.replay(np.asarray(a), np.asarray(b)).view(np.uint32)
    result["reproducible_bits_as_replayed"] = bool((bits == replayed).all())
    x, w = drawn(SMALL, SMALL), drawn(SMALL, SMALL) / 8
    ours, theirs, _ = compare(chain(pg.jax.matmul), chain(lambda x, w: jnp.matmul(x, w, precision="highest")), (x, w),
                              5 if options.cpu else 50, 9)
    result["host_us"] = {"ours": 1e6 * ours / CHAIN, "xla": 1e6 * theirs / CHAIN, "more": 1e6 * (ours - theirs) / CHAIN}
    one = compare(jax.jit(pg.jax.matmul), jax.jit(lambda x, w: jnp.matmul(x, w, precision="highest")), (x, w), 200, 9)
    result["one_call_us"] = {"ours": 1e6 * one[0], "xla": 1e6 * one[1]}
    a, b = drawn(large, large), drawn(large, large)
    for precision in ("ieee", "emulated", "reproducible"):
        mine, xla, ratio = compare(jax.jit(lambda a, b, p=precision: pg.jax.matmul(a, b, precision=p)),
                                   jax.jit(lambda a, b: jnp.matmul(a, b, precision="highest")), (a, b), 10, 9)
        result[f"{large} {precision}"] = {"ms": 1e3 * mine, "highest_ms": 1e3 * xla, "ratio": ratio}
    result["training"] = training()
    failed = [f"{p}: {name} errs by {figure:.3g}" for p, all_of in result["checks"].items()
              for name, figure in all_of.items() if not figure < 8]
    failed += [] if result["captured_off"] < 1e-4 else [f"captured: {result['captured_off']}"]
    failed += [] if result["reproducible_bits_as_replayed"] else ["reproducible bits are not replay's"]
    failed += [f"training {p}: {result['training'][p]['off']}" for p in ("ieee", "emulated")
               if not result["training"][p]["off"] < 1e-3]
    result["failed"] = failed
    gpu = None if options.cpu else device.require(0)
    records.write(options.json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"jax": result}], versions={
        "jax": jax.__version__, "jaxlib": jax.lib.__version__}))
    for key, value in result.items():
        if key != "training":
            print(key, value)
    print({name: (each["step_us"], each.get("off")) for name, each in result["training"].items()})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
