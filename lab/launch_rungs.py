"""Launch rungs once each on the GPU and check them: the program that profilers and sanitizers watch.

    python -m lab.launch_rungs 256x256x256 257x129x65

NumPy in, NumPy out: nothing but peakgemm's own kernels runs on the device.
"""

from __future__ import annotations

import argparse

import numpy as np

from peakgemm import run_rung
from peakgemm.kernels.registry import rungs, supported
from peakgemm.runtime import device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", help="MxNxK")
    parser.add_argument("--rungs", help="which; without: all that the GPU has the instructions for")
    parser.add_argument("--beta", type=float, default=0.0)
    args = parser.parse_args()
    chosen = rungs(args.rungs) if args.rungs else supported(device.require().limits)
    draw = np.random.default_rng(0)
    for text in args.shapes:
        m, n, k = map(int, text.split("x"))
        a = draw.standard_normal((m, k), dtype=np.float32)
        b = draw.standard_normal((k, n), dtype=np.float32)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        bound = (k + 3) * 2.0**-24 * (abs(a).astype(np.float64) @ abs(b).astype(np.float64) + abs(args.beta))
        for kernel in chosen:
            for name, config in (kernel.named or {"default": None}).items():
                c = np.full((m, n), 1.0 if args.beta else np.nan, np.float32)
                run_rung(kernel.number, a, b, c, beta=args.beta, config=config)
                error = np.abs(c - (exact + args.beta))
                assert (error <= bound).all(), (kernel.label, name, text, float(error.max()))  # NaN fails too
                print(f"{text} {kernel.label} {name}: {float(error.max(initial=0)):.2e}", flush=True)


if __name__ == "__main__":
    main()
