"""A tensor network in CuPy: the norm of a matrix product state by einsum, site after site."""

import cupy
import steps

args = steps.options(steps=8, bond=1024, sites=40)
dtype = cupy.float64 if args.double else cupy.float32
cupy.random.seed(0)
d, bond = 4, args.bond
sites = [(cupy.random.standard_normal((1 if i == 0 else bond, d, 1 if i == args.sites - 1 else bond),
                                      dtype=cupy.float32) / cupy.float32((d * bond) ** 0.5)).astype(dtype)
         for i in range(args.sites)]
norms, middle = [], []


def step():
    left, logarithm = cupy.ones((1, 1), dtype=dtype), 0.0
    for i, site in enumerate(sites):
        left = cupy.einsum("ab,apc,bpd->cd", left, site, site, optimize=True)
        scale = abs(left).max()
        left, logarithm = left / scale, logarithm + cupy.log(scale)
        if i == args.sites // 2:
            middle[:] = [left]
    norms.append(float(logarithm))


steps.run(step, args.steps, cupy.cuda.Device().synchronize,
          lambda: [norms[:1], *middle[0][::37, ::37].tolist()], warm_up=2)
