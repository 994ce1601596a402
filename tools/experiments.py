"""Variants of the multi-stage rungs at 4096: the figures behind docs/experiments.md.

    python tools/experiments.py --json results/h100/experiments-rungs.json

Each variant edits common/multistage.cuh in memory of this run only: the file is restored at the end.
Needs a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from peakgemm.bench import records
from peakgemm.bench.ladder import Bench
from peakgemm.bench.peers import find_peer
from peakgemm.bench.timer import Timer
from peakgemm.kernels import execute
from peakgemm.kernels.registry import LADDER, rung
from peakgemm.problem import Config
from peakgemm.runtime import device, source

FILE = source.KERNELS / "common" / "multistage.cuh"
SPREAD_A = "if (c * (BK - 1) / A_COPIES == k) copy_a"
SPREAD_B = "if (c * (BK - 1) / B_COPIES == k) copy_b"


def at_step(condition: str) -> list[tuple[str, str]]:
    """Edits that issue every copy of a tile where ``condition`` holds."""
    return [(SPREAD_A, f"if ({condition}) copy_a"), (SPREAD_B, f"if ({condition}) copy_b")]


VARIANTS: dict[str, list[tuple[str, str]]] = {
    "copies spread over the k-steps": [],
    "all copies at the first k-step": at_step("k == 0"),
    "all copies at the second k-step": at_step("k == 1"),
    "copies spread, one k-step later": [
        (SPREAD_A, "if (1 + c * (BK - 3) / A_COPIES == k) copy_a"),
        (SPREAD_B, "if (1 + c * (BK - 3) / B_COPIES == k) copy_b")],
}

R13 = Config(128, 128, 16, 8, 8, stages=3, fragments=2, min_blocks=2)


def large(bm: int, bn: int, bk: int, tm: int, tn: int, stages: int = 3, raster: int = 8, blocks: int = 1) -> Config:
    """A tile of rung 14."""
    return Config(bm, bn, bk, tm, tn, stages=stages, fragments=2, raster=raster, min_blocks=blocks)


def jobs() -> list[tuple[str, int, Config]]:
    """(variant, rung, tile)."""
    first = next(iter(VARIANTS))
    found = [(v, n, c) for v in VARIANTS for n, c in (
        (13, R13), (14, large(128, 256, 16, 8, 16)), (14, large(128, 256, 8, 8, 16, 4)),
        (14, large(256, 128, 16, 16, 8)))]
    found += [(first, 14, large(128, 256, 16, 8, 16, raster=r)) for r in (1, 2, 4, 16, 32)]
    found += [(first, 14, c) for c in (
        large(128, 256, 16, 8, 16, 2), large(128, 256, 16, 8, 16, 4), large(128, 256, 8, 8, 16, 6),
        large(128, 256, 32, 8, 16, 2), large(128, 128, 16, 8, 16), large(128, 128, 16, 8, 16, blocks=2))]
    found += [(first, n, Config(128, 128, bk, 8, 8, stages=2, fragments=2, min_blocks=blocks))
              for n in (11, 12) for bk in (8, 16) for blocks in (1, 2)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu, peer = device.require(), find_peer()
    bench = Bench((4096, 4096, 4096), gpu, peer, Timer(peer))
    original = FILE.read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = []
    try:
        for variant, number, config in jobs():
            text = original
            for old, new in VARIANTS[variant]:
                assert old in text, old
                text = text.replace(old, new)
            FILE.write_text(text, encoding="utf-8")
            execute.loaded.cache_clear()
            for kernel in LADDER:
                kernel.__dict__.pop("source", None)
            row = {"variant": variant, "number": number, "config": config.to_json(),
                   **bench.measure(rung(number), config)}
            rows.append(row)
            print(f"{variant:34} {number} {config.label():24} raster {config.raster} blocks {config.min_blocks} "
                  f"{row['tflops']:.2f} TFLOPS, {row['ratio_to_cublas']:.4f} of cuBLAS", flush=True)
    finally:
        FILE.write_text(original, encoding="utf-8")
    run = {"shape": [4096, 4096, 4096], "rungs": rows}
    records.write(args.json, records.record(gpu, gpu.arch, [run], versions=peer.versions()))


if __name__ == "__main__":
    main()
