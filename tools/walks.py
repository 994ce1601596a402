"""The orders in which an outer product can be walked, by the register-bank model: no GPU needed.

    python tools/walks.py --json results/sm_90/walks.json

Each row is a ladder row whose ``config_name`` is the order. Edits common/outer_product.cuh for the run; it is
restored at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from peakgemm.bench import records
from peakgemm.bench.ladder import path_for, static_row
from peakgemm.kernels.registry import LADDER, rung
from peakgemm.runtime import source

FILE = source.KERNELS / "common" / "outer_product.cuh"
ARCH, SHAPE = "sm_90", (4096, 4096, 4096)
COLUMNS, ROWS = ("for (int j = 0; j < TN; ++j)", "for (int step = 0; step < TM; ++step) {")
TURN = "const int i = j % 2 ? TM - 1 - step : step;"
WALKS = {
    "columns, snake": {},
    "columns": {TURN: "const int i = step;"},
    "rows": {COLUMNS: "for (int i = 0; i < TM; ++i)", ROWS: "for (int j = 0; j < TN; ++j) {", TURN: ""},
    "rows, snake": {COLUMNS: "for (int i = 0; i < TM; ++i)", ROWS: "for (int step = 0; step < TN; ++step) {",
                    TURN: "const int j = i % 2 ? TN - 1 - step : step;"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    records.check_writable(args.json)
    original = FILE.read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = []
    try:
        for walk, edits in WALKS.items():
            text = original
            for old, new in edits.items():
                assert old in text, old
                text = text.replace(old, new)
            FILE.write_text(text, encoding="utf-8")
            for kernel in LADDER:
                kernel.__dict__.pop("source", None)
            for number in (12, 13, 14):
                kernel = rung(number)
                for config in kernel.named.values() or [kernel.config_for(ARCH)]:
                    row = static_row(kernel, path_for(kernel, config, ARCH, SHAPE), ARCH)
                    rows.append({**row, "config_name": walk})
                    print(f"{walk:16} {kernel.label:14} {config.label():26} {row['bank_cycles_per_ffma']:.3f}")
    finally:
        FILE.write_text(original, encoding="utf-8")
    records.write(args.json, records.record(None, ARCH, [{"shape": list(SHAPE), "rungs": rows}]))


if __name__ == "__main__":
    main()
