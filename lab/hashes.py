"""Digests of what the GPU computes for fixed problems: results/<gpu>/hashes.json.

    python -m lab.hashes --json results/h100/hashes.json

The tests run the same problems in the simulator and demand the same bits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lab.bits import digests
from peakgemm import run_rung
from peakgemm.kernels.registry import LADDER
from peakgemm.runtime import device
from peakgemm.tools.bench import records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    gpu = device.require()
    rows = [{"number": k.number, "name": k.name,
             "digests": dict(digests(k, lambda kernel, *x, **y: run_rung(kernel.number, *x, **y)))} for k in LADDER]
    records.write(args.json, records.record(gpu, gpu.arch, [{"rungs": rows}]))


if __name__ == "__main__":
    main()
