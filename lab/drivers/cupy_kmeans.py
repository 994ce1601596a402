"""k-means in CuPy: squared distances by one product for each iteration."""

import cupy
import steps

args = steps.options(points=200_000, features=512, clusters=2048)
dtype = cupy.float64 if args.double else cupy.float32
cupy.random.seed(0)
x = cupy.random.standard_normal((args.points, args.features), dtype=cupy.float32)
x += 4 * cupy.random.standard_normal((64, args.features), dtype=cupy.float32)[cupy.random.randint(64, size=args.points)]
x = x.astype(dtype)
centres, squares, inertia, first = x[:args.clusters].copy(), (x * x).sum(1), [], []


def step():
    global centres
    distances = squares[:, None] - 2 * (x @ centres.T) + (centres * centres).sum(1)
    nearest = distances.argmin(1)
    inertia.append(distances[cupy.arange(args.points), nearest].astype(cupy.float64).mean())
    first.extend([distances[::4099, ::97]] if not first else [])
    counts = cupy.bincount(nearest, minlength=args.clusters)
    order = cupy.argsort(nearest)
    ends = cupy.concatenate([cupy.zeros((1, args.features)), cupy.cumsum(x[order].astype(cupy.float64), 0)])
    last = cupy.cumsum(counts)
    sums = ends[last] - ends[last - counts]
    centres = cupy.where(counts[:, None] > 0, sums / cupy.maximum(counts, 1)[:, None], centres).astype(dtype)


steps.run(step, args.steps, cupy.cuda.Device().synchronize,
          lambda: [[float(v) for v in inertia[:3]], first[0].ravel().tolist()], warm_up=2)
