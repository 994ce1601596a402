"""The record of ``peakgemm run --json``, written by a process of its own when the program has ended."""

from __future__ import annotations

import marshal
import sys
from pathlib import Path

from ..errors import PeakgemmError
from ..runtime import device
from ..tools.bench import records

_NAMES = ("library", "operation", "shape", "reason", "calls", "flops", "clocked_s", "clocked")


def main(counts: str, path: str, precision: str, linalg: str, command: str) -> None:
    """Write the counts of a run as a record."""
    data = marshal.loads(Path(counts).read_bytes())
    found = [{"name": "program", "precision": precision, "linalg": bool(linalg),
              **{name: data[name] for name in ("processes", "checks", "compilations", "notes")}},
             *({"name": "products", **dict(zip(_NAMES, row, strict=True))} for row in data["rows"])]
    gpu = device.find() if data["rows"] else None
    records.write(Path(path), records.record(gpu, gpu.arch if gpu else "sm_90", [{"found": found}],
                                             command=f"peakgemm run {command}"))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (PeakgemmError, OSError) as error:
        print(f"peakgemm run: no record was written: {error}", file=sys.stderr)
