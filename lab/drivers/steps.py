"""Options, timed steps, and a line of JSON at the end: milliseconds of a step (the median), and numbers to compare.

The numbers are vectors. ``--double`` computes them in FP64 from the same data, which is drawn in FP32. A program waits
for the file that ``STEPS_LOCK`` names, and holds it to its end, so that its imports may be done while another one has
the GPU.
"""

import argparse
import fcntl
import json
import os
import statistics
import time


def options(steps=12, **sizes):
    parser = argparse.ArgumentParser()
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--device", default="cuda")
    for name, value in {"steps": steps, **sizes}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if "STEPS_LOCK" in os.environ:
        fcntl.flock(os.open(os.environ["STEPS_LOCK"], os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
    return args


def run(step, steps, wait, numbers, warm_up=3):
    """``numbers()`` is asked when the steps are done."""
    times = []
    for _ in range(steps):
        wait()
        start = time.perf_counter()
        step()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"ms": statistics.median(times[warm_up:] or times), "first_ms": times[0], "steps": steps,
                      "numbers": numbers()}))
