"""Nsight Compute's counters of every rung beside the simulator's: results/<gpu>/counters.json.

    python -m lab.counters --json results/h100/counters.json 256x256x256 257x129x65 4096x4096x4096
    python -m lab.counters --json results/h100/counters.json --simulator     # that column only, without a GPU

Needs a GPU and ncu for the first form. Clocks are left alone (``--clock-control none``). Shapes above
512^3 are not simulated.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from peakgemm.kernels.registry import LADDER, rung
from peakgemm.runtime import device
from peakgemm.tools.bench import records
from peakgemm.tools.bench.simulated import matrices
from peakgemm.tools.simulator import run_rung

L1 = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_"
METRICS = {
    "shared_loads": "smsp__sass_inst_executed_op_shared_ld.sum",
    "shared_stores": "smsp__sass_inst_executed_op_shared_st.sum",
    "ldgsts": "smsp__sass_inst_executed_op_ldgsts.sum",
    "shared_wavefronts_ld": L1 + "ld.sum",
    "shared_wavefronts_st": L1 + "st.sum",
    "shared_wavefronts_ldgsts_access": L1 + "ldgsts_cache_access.sum",
    "shared_wavefronts_ldgsts_bypass": L1 + "ldgsts_cache_bypass.sum",
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
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
COMPARED = [name for name in METRICS if name.startswith(("shared_", "global_")) or name == "ldgsts"]


def profile(shapes: list[str]) -> list[dict[str, Any]]:
    """One dict of counters per launch, in launch order."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
               "--metrics", ",".join(METRICS.values()), sys.executable, "-m", "lab.launch_rungs", *shapes]
    run = subprocess.run(command, capture_output=True, text=True, check=False,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])})
    lines = run.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise SystemExit(f"ncu gave no table:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
    found = []
    for row in list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))[1:]:  # the second line holds units
        values: dict[str, Any] = {"kernel": row["Kernel Name"].split("(")[0]}
        for name, metric in METRICS.items():
            text = (row.get(metric) or "").replace(",", "")
            values[name] = float(text) if text not in ("", "n/a", "N/A") else None
        found.append(values)
    return found


def simulated(number: int, config_name: str, shape: tuple[int, int, int], arch: str) -> dict[str, int]:
    """The simulator's counters under the names of `COMPARED`."""
    kernel = rung(number)
    a, b, c = matrices(shape)
    found = run_rung(kernel, a, b, c, config=kernel.named.get(config_name), arch=arch).counters
    asynchronous = sum(value for name, value in found.items() if "inst_executed_op_ldgsts" in name)
    own = {name: found.get(metric, 0) for name, metric in METRICS.items() if name in COMPARED}
    for name in ("ld", "st"):
        own[f"shared_wavefronts_{name}"] = found[f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{name}.sum"]
    return {**own, "ldgsts": asynchronous}


def explain(number: int, ncu: dict[str, Any], own: dict[str, int]) -> str | None:
    """Why a rung's columns differ, where the reason is known and accounts for the whole difference; else None."""
    differ = {name: own[name] - ncu[name] for name in COMPARED if own[name] != ncu[name]}
    # Half of rung 03's loads read one word of As for all lanes (1 wavefront), half words of Bs, in one bank (32); half
    # of the merged ones one float4 of As (2), half float4s of Bs (32; 4 without conflicts).
    loads, pairs = own["shared_loads"], own["shared_loads"] // 8
    merged = {**own, "shared_loads": loads // 4, "shared_wavefronts_ld": pairs * (2 + 32),
              "shared_wavefronts": own["shared_wavefronts"] - loads // 2 * (1 + 32) + pairs * (2 + 32),
              "shared_wavefronts_ideal": own["shared_wavefronts_ideal"] - loads + pairs * (2 + 4)}
    if number == 3 and own["shared_wavefronts_ld"] == loads // 2 * (1 + 32) and all(
            merged[name] == ncu[name] for name in COMPARED):
        return ("ptxas vectorises: each four consecutive ld.shared.f32 of the unrolled k loop become one LDS.128 "
                "(16 in the SASS loop for 64 in the PTX)")
    missing = differ.get("shared_wavefronts_ldgsts_bypass", 0)
    if missing and set(differ) == {"shared_wavefronts_ldgsts_bypass", "shared_wavefronts", "shared_wavefronts_ideal"} \
            and len(set(differ.values())) == 1:
        return ("the profiler gives no wavefronts to LDGSTS.E.BYPASS.128 predicated by P0 (its source page shows their "
                f"tag requests, and 0 wavefronts): {int(missing)} wavefronts, 4 each, are theirs")
    # Rung 17: a wgmma of 64 x 128 x 16 reads 2 KB of A and 4 KB of B, 48 wavefronts of 128 bytes.
    read = -differ.get("shared_wavefronts", 0)
    if number == 17 and read > 0 and read % 48 == 0 and differ == {"shared_wavefronts": -read,
                                                                   "shared_wavefronts_ideal": -read}:
        return (f"the profiler's totals hold what the tensor cores read of shared memory: {int(read)} wavefronts, 48 "
                "for each wgmma; the simulator counts those of loads and stores")
    return None


def compare(row: dict[str, Any], shape: tuple[int, int, int], arch: str) -> None:
    """Add the simulator's column to a row, and whether the two agree."""
    if shape[0] * shape[1] * shape[2] > 512**3:
        return
    own = simulated(row["number"], row["config_name"], shape, arch)
    row["simulator"] = own
    row["differs"] = [name for name in COMPARED if own[name] != row["ncu"][name]]
    row["explained"] = explain(row["number"], row["ncu"], own) if row["differs"] else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", help="MxNxK")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--simulator", action="store_true")
    args = parser.parse_args()
    if args.simulator:
        record = json.loads(args.json.read_text(encoding="utf-8"))
        runs = records.runs_of(record)
    else:
        gpu = device.require()
        launches = [(text, k, name) for text in args.shapes for k in LADDER for name in (k.named or {"default": None})]
        counted = profile(args.shapes)
        if [c["kernel"] for c in counted] != [k.entry for _, k, _ in launches]:
            raise SystemExit(f"expected {len(launches)} launches, ncu saw {[c['kernel'] for c in counted]}")
        runs = [{"shape": [int(x) for x in text.split("x")],
                 "rungs": [{"number": k.number, "name": k.name, "config_name": name, "ncu": c}
                           for (t, k, name), c in zip(launches, counted, strict=True) if t == text]}
                for text in args.shapes]
        record = records.record(gpu, gpu.arch, runs)
    for run in runs:
        for row in run["rungs"]:
            compare(row, tuple(run["shape"]), record["arch"])
            if row.get("differs"):
                print(run["shape"], row["number"], row["config_name"], row["differs"], row["explained"])
    records.write(args.json, {**record, **records.together(runs)})


if __name__ == "__main__":
    main()
