"""A tensor network in CuPy: the norm of a matrix product state by einsum, site after site."""

import argparse
import json
import statistics
import time

import cupy

parser = argparse.ArgumentParser()
parser.add_argument("--bond", type=int, default=1024)
parser.add_argument("--sites", type=int, default=40)
parser.add_argument("--steps", type=int, default=8)
args = parser.parse_args()
cupy.random.seed(0)
d, bond = 4, args.bond
sites = [cupy.random.standard_normal((1 if i == 0 else bond, d, 1 if i == args.sites - 1 else bond),
                                     dtype=cupy.float32) / (d * bond) ** 0.5 for i in range(args.sites)]
times, norms = [], []
for _ in range(args.steps):
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    left, logarithm = cupy.ones((1, 1), dtype=cupy.float32), 0.0
    for site in sites:
        left = cupy.einsum("ab,apc,bpd->cd", left, site, site, optimize=True)
        scale = abs(left).max()
        left, logarithm = left / scale, logarithm + cupy.log(scale)
    norms.append(float(logarithm))
    cupy.cuda.Device().synchronize()
    times.append(time.perf_counter() - start)
print(json.dumps({"ms": 1e3 * statistics.median(times[2:]), "numbers": norms[:1]}))
