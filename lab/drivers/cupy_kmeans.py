"""k-means in CuPy: squared distances by one product for each iteration."""

import argparse
import json
import statistics
import time

import cupy

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=200_000)
parser.add_argument("--features", type=int, default=512)
parser.add_argument("--clusters", type=int, default=2048)
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
cupy.random.seed(0)
x = cupy.random.standard_normal((args.points, args.features), dtype=cupy.float32)
x += 4 * cupy.random.standard_normal((64, args.features), dtype=cupy.float32)[cupy.random.randint(64, size=args.points)]
centres, squares, times, inertia = x[:args.clusters].copy(), (x * x).sum(1), [], []
for _ in range(args.steps):
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    distances = squares[:, None] - 2 * (x @ centres.T) + (centres * centres).sum(1)
    nearest = distances.argmin(1)
    inertia.append(distances[cupy.arange(args.points), nearest].astype(cupy.float64).mean())
    counts = cupy.bincount(nearest, minlength=args.clusters)
    order = cupy.argsort(nearest)
    ends = cupy.concatenate([cupy.zeros((1, args.features)), cupy.cumsum(x[order].astype(cupy.float64), 0)])
    last = cupy.cumsum(counts)
    sums = ends[last] - ends[last - counts]
    centres = cupy.where(counts[:, None] > 0, sums / cupy.maximum(counts, 1)[:, None], centres).astype(cupy.float32)
    cupy.cuda.Device().synchronize()
    times.append(time.perf_counter() - start)
print(json.dumps({"ms": 1e3 * statistics.median(times[2:]), "numbers": [float(v) for v in inertia[:3]]}))
