"""Speed of ``reproducible=True`` beside our default, cuBLAS and a batch-invariant Triton product.

    python -m lab.reproducible_speed --json results/h100/reproducible-speed.json

Squares of 1024 to 16384, 1 to 64 rows against 4096 x 4096 stored either way, and few columns, in FP32. Bursts of all
four run in turn, round after round; a ratio is the median of the rounds' ratios. The Triton product is one tile for
all shapes, 64 x 64 by 32 summed in their order, which is what makes it batch-invariant; ``tl.dot`` with
``input_precision="ieee"``. Every result is compared with FP64 before it is timed. Needs torch, Triton and a GPU; takes
about 70 s.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from peakgemm.calls.launch import bound_for, choice_for
from peakgemm.errors import MissingComponent, PeakgemmError
from peakgemm.runtime import device
from peakgemm.tools.bench import records
from peakgemm.tools.bench.errors import errors as errors_of
from peakgemm.tools.bench.operands import Arrays, launches
from peakgemm.tools.bench.peers import TorchPeer
from peakgemm.tools.bench.suites import Case, cases
from peakgemm.tools.bench.timer import Timer

SQUARES = (1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)
ROWS = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = (1, 16)
WIDE = 4096
TILE = {"BM": 64, "BN": 64, "BK": 32}


def triton_work(a: Any, b: Any, out: Any) -> Callable[[], None]:
    """One tile for every shape, whatever would be faster."""
    from peakgemm.tools.bench import triton_gemm

    (m, k), n = a.shape, b.shape[1]
    grid = (triton_gemm.triton.cdiv(m, TILE["BM"]) * triton_gemm.triton.cdiv(n, TILE["BN"]), 1)

    def run() -> None:
        triton_gemm._gemm[grid](a, b, out, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
                                   out.stride(0), 0, 0, 0, PRECISION="ieee", **TILE, num_warps=4, num_stages=4)
    return run


def row(case: Case, peer: TorchPeer, timer: Timer, rounds: int) -> dict[str, Any]:
    """Times of one shape, and which kernels ran."""
    gpu, m, n, k = device.require(), case.m, case.n, case.k
    arrays = Arrays(case, gpu, peer)
    choices = {name: choice_for(arrays.problem, gpu, precision)
               for name, precision in (("reproducible", "reproducible"), ("default", "ieee"))}
    bounds = {name: bound_for(arrays.problem, gpu, choice) for name, choice in choices.items()}
    works: dict[str, Any] = {name: launches(bound, arrays.addresses(), peer) for name, bound in bounds.items()}
    works["cublas"] = [lambda a=a, b=b, c=c: peer.multiply(a, b, c) for a, b, c in arrays.sets]
    works["triton"] = [triton_work(*each) for each in arrays.sets]
    errors = {}
    for name, work in works.items():
        arrays.c[0].fill_(float("nan"))
        work[0]()
        errors[name] = errors_of(arrays.a[0], arrays.b[0], [arrays.c[0]])[0] if m * n * k < 2**37 else None
    times = dict(zip(works, timer.each(list(works.values()), ms=15, rounds=rounds), strict=True))
    flops = 2e-9 * m * n * k
    ratios = {name: median(theirs / ours for ours, theirs in zip(times["reproducible"], ms, strict=True))
              for name, ms in times.items() if name != "reproducible"}
    return {"shape": [m, n, k], "layout": case.layout,
            "tflops": {name: flops / median(ms) for name, ms in times.items()}, "ratios": ratios,
            "kernels": {name: f"{c.kernel.name} {c.config.label()}" for name, c in choices.items()}, "errors": errors,
            "samples_ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    records.check_writable(options.json)
    try:
        device.require()
        peer = TorchPeer()
        from peakgemm.tools.bench import triton_gemm
    except ImportError as error:
        raise MissingComponent(f"needs torch and Triton, and {error.name} cannot be imported ({error}); install it, or "
                               "run this where both are") from None
    except RuntimeError as error:
        raise MissingComponent(f"needs a GPU: {error}") from None
    timer = Timer(peer)
    shapes = [f"{n}x{n}x{n}" for n in SQUARES]
    shapes += [f"{m}x{WIDE}x{WIDE}:{layout}" for layout in ("NN", "NT") for m in ROWS]
    shapes += [f"{WIDE}x{n}x{WIDE}" for n in COLUMNS]
    rows = []
    print(f"{'M x N x K':>20} {'reproducible':>12} {'/default':>9} {'/cuBLAS':>8} {'/Triton':>8}  kernel")
    for case in cases(",".join(shapes)):
        found = row(case, peer, timer, 3 if case.m > 8192 else options.rounds)
        rows.append(found)
        ratio = found["ratios"]
        print(f"{case.size:>20} {found['tflops']['reproducible']:>12.1f} {ratio['default']:>9.3f} "
              f"{ratio['cublas']:>8.3f} {ratio['triton']:>8.3f}  {found['kernels']['reproducible']}", flush=True)
    squares = rows[:len(SQUARES)]
    mean = prod(x["ratios"]["cublas"] for x in squares) ** (1 / len(squares))
    summary = {"squares_geomean_of_cublas": mean,
               "least_of_default_from_2048": min(x["ratios"]["default"] for x in squares if x["shape"][0] >= 2048),
               "least_of_default_of_few_rows": min(x["ratios"]["default"] for x in rows[len(SQUARES):])}
    print(summary)
    gpu = device.require()
    records.write(options.json, records.record(gpu, gpu.arch, [{"speeds": {"rows": rows, "summary": summary}}],
                                               versions=peer.versions() | {"triton": triton_gemm.triton.__version__}))


if __name__ == "__main__":
    try:
        main()
    except PeakgemmError as error:
        sys.exit(f"reproducible_speed.py: {error}")
