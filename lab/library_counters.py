"""What the library's kernels ask of shared and global memory, by the simulator: no GPU needed.

    python -m lab.library_counters --json results/sm_90/library-counters.json

Each row is what `peakgemm.matmul` would run for a case on an H100's SMs (tensor-core kernels, which the model takes for
larger products, on 8), with counters of each launch. docs/simulator.md shows them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.progress import Progress

from peakgemm.tools.bench import records
from peakgemm.tools.bench.bench import static_row
from peakgemm.tools.bench.simulated import simulate_call
from peakgemm.tools.bench.suites import cases
from peakgemm.tools.bench.variants import Variant

ARCH, SUITE = "sm_90", "library-counters"
CASES = (
    ("ieee", 132, "512x512x128,256x256x256,256x256x256:NT,256x256x256:TN,255x255x255,64x1024x256:NT,32x1000x512:NT,"
                  "1x2048x512:NT,1024x4x512,1024x16x512,16x1024x512:NT,8x8x8*500,32x32x32*100,32x32x32:NT*100,"
                  "33x33x33*40,20000x16x16,40000x16x32:TN"),
    ("emulated", 8, "512x512x256,512x512x256:NT,512x512x256:TN,511x511x255,1024x64x576:NT,255x255x257"),
)
COUNTERS = ("warp_instructions", "global_requests", "global_sectors", "global_sectors_ideal", "shared_loads",
            "shared_stores", "shared_wavefronts", "shared_wavefronts_ideal", "bulk_bytes", "wgmma_instructions")


def row(precision: str, sms: int, text: str) -> dict[str, Any]:
    """A case's row: the choice, its error, and counters by launch."""
    (case,) = cases(text)
    call = simulate_call(case, precision, ARCH, sms)
    return {**static_row(SUITE, case, call.choice, Variant(precision)), "backend": "simulator",
            "max_error": call.max_error,
            "launches": {report.kernel: {name: report.counters[name] for name in COUNTERS if report.counters.get(name)}
                         for report in call.reports}}


def main() -> None:
    """All of them, with progress."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    records.check_writable(args.json)
    jobs = [(precision, sms, text) for precision, sms, texts in CASES for text in texts.split(",")]
    with Progress(transient=True) as progress:
        rows = [row(*job) for job in progress.track(jobs)]
    records.write(args.json, records.record(None, ARCH, [{"rungs": rows}]))


if __name__ == "__main__":
    main()
