"""Errors of small products, which show where cuBLAS cuts K into sums of their own: results/<gpu>/sums.json.

    python tools/sums.py --json results/h100/sums.json
    python tools/sums.py --drawn 300 --json results/h100/sums-drawn.json

A row for each shape and family of data, with the largest and the mean error (in 2^-24 |A||B|) of cuBLAS FP32 and of
peakgemm in two precisions. A chain of K multiply-adds errs by what K says; where cuBLAS errs less, it makes more sums
(kernels/short_sums.py). Needs a GPU and torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from peakgemm.accuracy.arrays import find
from peakgemm.accuracy.contenders import make
from peakgemm.accuracy.families import FAMILIES
from peakgemm.accuracy.measure import Exact, Figures
from peakgemm.bench import records
from peakgemm.bench.drawn import log_uniform
from peakgemm.cli.console import progress
from peakgemm.kernels.short_sums import SLICED
from peakgemm.runtime import device

CONTENDERS = ("cublas", "peakgemm:ieee", "peakgemm:emulated")
DATA = ("uniform", "normal", "cancellation")
SIDES = ((16, 16), (32, 32), (64, 64), (100, 100), (128, 128), (192, 192), (256, 256), (384, 384), (512, 512),
         (1000, 500), (16, 1000), (32, 512), (64, 256), (64, 512), (32, 4096), (128, 4096), (700, 90), (333, 77))
STEPS = (33, 48, 64, 80, 96, 112, 127, 128, 129, 144, 160, 192, 224, 256, 320)
DEEP = tuple(product(((64, 64), (128, 128), (256, 256), (512, 512), (64, 1000), (128, 2000)),
                     (384, 512, 1024, 4096, 65536)))
ELEMENTS = 1 << 15  # judged, at least: of fewer results several draws are pooled


def drawn() -> Iterator[tuple[int, int, int]]:
    """Shapes nobody chose, without end: log-uniform, half of them of a K where most is at stake."""
    draw = Random(19).random
    while True:
        m, n = log_uniform(draw, 8, 8192), log_uniform(draw, 8, 8192)
        k = log_uniform(draw, 33, 8192) if draw() < 0.5 else log_uniform(draw, 130, 700)
        if m * n <= SLICED:
            yield m, n, k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--drawn", type=int, metavar="COUNT", help="of drawn shapes, instead of those chosen here")
    args = parser.parse_args()
    path = args.json
    records.check_writable(path)
    gpu, arrays = device.require(), find(False)
    gemms = [make(name, arrays) for name in CONTENDERS]
    rows: list[dict[str, Any]] = []
    chosen = ((m, n, k) for (m, n), k in (*product(SIDES, STEPS), *DEEP))
    shapes = list(chosen if args.drawn is None else islice(drawn(), args.drawn))
    with progress("shapes", len(shapes)) as done:
        for m, n, k in shapes:
            done(f"{m}x{n}x{k}")
            for data in DATA:
                draw = arrays.draw(crc32(f"{m} {n} {k} {data}".encode()))
                found: dict[str, list[Figures]] = {name: [] for name in CONTENDERS}
                for _ in range(max(1, ELEMENTS // (m * n))):
                    a, b = FAMILIES[data](arrays, draw, m, n, k)
                    exact = Exact(arrays, a, b)
                    for gemm in gemms:
                        found[gemm.name].append(exact.figures(gemm.multiply(a, b)))
                pooled = {name: Figures.pooled(figures) for name, figures in found.items()}
                rows.append({"shape": [m, n, k], "batch": 1, "family": data,
                             "errors": {name: [2 * one.largest, 2 * one.mean] for name, one in pooled.items()}})
    records.write(path, records.record(gpu, gpu.arch, [{"rungs": rows}]))


if __name__ == "__main__":
    main()
