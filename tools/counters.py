"""Nsight Compute's counters of every rung, at one aligned and one unaligned shape, as JSON.

    python tools/counters.py --json results/h100/counters.json 256x256x256 257x129x65

Needs a GPU and ncu. Clocks are left alone (``--clock-control none``).
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from peakgemm.bench import records
from peakgemm.kernels.registry import LADDER
from peakgemm.runtime import device

METRICS = {
    "shared_loads": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared_stores": "smsp__sass_inst_executed_op_shared_st.sum",
    "ldgsts": "smsp__sass_inst_executed_op_ldgsts.sum",
    "shared_wavefronts_ld": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_wavefronts_st": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "source_shared_wavefronts": "memory_l1_wavefronts_shared",
    "source_shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "global_ldgsts_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
    "global_ldgsts_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    "l2_sectors_global": "memory_l2_theoretical_sectors_global",
    "l2_sectors_global_ideal": "memory_l2_theoretical_sectors_global_ideal",
    "instructions": "smsp__inst_executed.sum",
    "ffma_pipe_percent": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "issue_active_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "stall_short_scoreboard": "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "stall_long_scoreboard": "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "stall_dispatch": "smsp__average_warps_issue_stalled_dispatch_stall_per_issue_active.ratio",
    "stall_barrier": "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "stall_no_instruction": "smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio",
    "stall_mio_throttle": "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio",
    "stall_lg_throttle": "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",
    "dram_bytes": "dram__bytes.sum",
    "l1_hit_percent": "l1tex__t_sector_hit_rate.pct",
}


def profile(shapes: list[str]) -> list[dict[str, Any]]:
    """One dict of counters per launch, in launch order."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
               "--metrics", ",".join(METRICS.values()), sys.executable, "tools/launch_rungs.py", *shapes]
    run = subprocess.run(command, capture_output=True, text=True, check=False,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])})
    lines = run.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise SystemExit(f"ncu gave no table:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))[1:]  # the second line holds units
    found = []
    for row in rows:
        values: dict[str, Any] = {"kernel": row["Kernel Name"].split("(")[0]}
        for name, metric in METRICS.items():
            text = (row.get(metric) or "").replace(",", "")
            values[name] = float(text) if text not in ("", "n/a", "N/A") else None
        found.append(values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", help="MxNxK")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    gpu = device.require()
    launches = [(text, k, name) for text in args.shapes for k in LADDER for name in (k.named or {"default": None})]
    counted = profile(args.shapes)
    if [c["kernel"] for c in counted] != [k.entry for _, k, _ in launches]:
        raise SystemExit(f"expected {len(launches)} launches, ncu saw {[c['kernel'] for c in counted]}")
    runs = []
    for text in args.shapes:
        rows = [{"number": k.number, "name": k.name, "config_name": name, "ncu": c}
                for (t, k, name), c in zip(launches, counted, strict=True) if t == text]
        runs.append({"shape": [int(x) for x in text.split("x")], "rungs": rows})
    records.write(args.json, records.record(gpu, gpu.arch, runs))


if __name__ == "__main__":
    main()
