"""Lane-instructions per second of the simulator. Run: ``python tests/support/bench_simulator.py [size]``."""

import resource
import sys
from dataclasses import replace

import numpy as np

from peakgemm.kernels.registry import LADDER
from peakgemm.simulator import run


def measure(kernel, size, checks):
    """Simulate a rung on a size x size x size product; print its speed."""
    config = replace(kernel.config_for("sm_90"), aligned=size % 128 == 0)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, size, size)).astype("f4")
    c = np.zeros((size, size), "f4")
    report = run(kernel.path, grid=-(-size // config.bm) * -(-size // config.bn), block=config.threads,
                 macros=config.macros(), args=[a, b, c, size, size, size, size, size, size, 1.0, 0.0], checks=checks,
                 shared_bytes=kernel.shared_bytes(config) if kernel.dynamic else 0)
    assert report.clean, str(report)
    lanes = report.counters["lane_instructions"]
    speed = lanes / report.seconds / 1e6
    print(f"{kernel.label:<22}{size:>6}{'yes' if checks else 'no':>8}{report.seconds:>9.2f}{speed:>12.0f}")


def main():
    sizes = [int(arg) for arg in sys.argv[1:]] or [256, 512]
    print(f"{'rung':<22}{'size':>6}{'checks':>8}{'seconds':>9}{'Mlane/s':>12}")
    for size in sizes:
        for kernel in LADDER:
            for checks in (True, False):
                measure(kernel, size, checks)
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
