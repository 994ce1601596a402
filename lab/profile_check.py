"""What the choices of the shipped profile, of the generic one and of given ones lose on this GPU, on drawn products
that no profile is fitted to.

    python -m lab.profile_check --json check.json [--profile mine.json ...] [--count 100]

Compiles on all processors first, by way of the compile cache; then some 40 s of timing for 100 products.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from lab.profile import check as profile_check
from lab.profile.plan import programs
from lab.profile.stopwatch import GpuStopwatch
from peakgemm.cli.console import out, progress, table
from peakgemm.runtime import device
from peakgemm.selection.machine import GENERIC, machine_with, profile_of, shipped
from peakgemm.selection.profile_file import read
from peakgemm.tools.bench import records
from peakgemm.tools.bench.peers import find_peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, action="append", default=[], help="a profile's file; several times")
    parser.add_argument("--count", type=int, default=100, help="products")
    parser.add_argument("--seed", type=int, default=profile_check.SEED)
    parser.add_argument("--top", type=int, default=profile_check.TOP, help="candidates of each profile")
    parser.add_argument("--compile-minutes", type=float, default=4, help="until when kernels are compiled")
    parser.add_argument("--json", type=Path, required=True, help="the record")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu = device.require()
    profiles = {"shipped": profile_of(gpu.arch, gpu.name, own=False), "generic": shipped(GENERIC),
                **{path.stem: read(path) for path in args.profile}}
    machines = {name: machine_with(profile, gpu.arch, gpu.sm_count, gpu.name) for name, profile in profiles.items()}
    planned = profile_check.plan(machines, args.count, args.seed, args.top)
    peer = find_peer()
    stopwatch = GpuStopwatch(gpu, machines["shipped"], peer)
    begun = time.monotonic()
    with progress("compiling", len(programs(planned, machines["shipped"]))) as done:
        ready = stopwatch.compile(planned, begun + 60 * args.compile_minutes, done)
    compiled = time.monotonic()
    with progress("timing", len(ready)) as done:
        rows = list(profile_check.losses(ready, machines, stopwatch, done))
    found = profile_check.summary(rows)
    records.write(args.json, records.record(gpu, gpu.arch, [{"rungs": rows}], versions=peer.versions(), losses=found))
    out.print(f"{gpu.name}: {len(rows)} of {args.count} drawn products", markup=False)
    table("What choices lose",
          [("profile", "left"), ("median", "right"), ("90th percentile", "right")],
          [[name, f"{100 * loss['median']:.1f} %", f"{100 * loss['p90']:.1f} %"] for name, loss in found.items()],
          f"{compiled - begun:.0f} s of compiling, {time.monotonic() - compiled:.0f} s of timing.")
    for row in sorted(rows, key=lambda row: -row["losses"]["shipped"])[:8]:
        m, n, k = row["shape"]
        out.print(f"{m}x{n}x{k}:{row['layout']}*{row['batch']}: {row['choices']['shipped']} takes "
                  f"{100 * row['losses']['shipped']:.0f} % more than {row['best']}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
