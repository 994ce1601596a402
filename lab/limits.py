"""What `peakgemm limits` says of every rung, beside what was measured: results/h100/limits.json.

    python -m lab.limits --json results/h100/limits.json

Counts of a block times the grid beside Nsight Compute's at 4096 (counters.json), modelled TFLOPS beside those of
ladder.json, and the limiter beside the profiler's: its fullest pipe, or the stall that costs warps most.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lab.runner import run
from peakgemm.kernels.registry import LADDER
from peakgemm.tools.bench import records
from peakgemm.tools.limits.launches import of_rung
from peakgemm.tools.limits.limits import FULL, limits

SIZE = 4096
#: A resource of the model, and the profiler's stalls that mean it.
_LIKE = {"shared memory": ("mio_throttle", "short_scoreboard"), "L1": ("lg_throttle",), "issue slots": ("issue slots",),
         "FP32 pipe": ("issue slots",)}
COMPARED = ("instructions", "shared_loads", "shared_stores", "ldgsts", "shared_wavefronts_ld", "shared_wavefronts_st",
            "global_store_requests", "global_store_sectors", "global_load_sectors")


def command(json_: Annotated[Path, typer.Option("--json", help="Write the record to this file.")],
            results: Annotated[Path, typer.Option(help="Where the measured records are.")] = Path("results/h100"),
            rungs: Annotated[str, typer.Option(help="Of them, such as 03,07.  [all]")] = "") -> None:
    """Modelled beside measured, rung by rung."""
    records.check_writable(json_)
    measured = {row["number"]: row for row in _run(results / "ladder.json")}
    profiled = {(row["number"], row["config_name"]): row["ncu"] for row in _run(results / "counters.json")}
    rows = []
    for kernel in LADDER:
        if rungs and f"{kernel.number:02}" not in rungs.split(","):
            continue
        found, ncu = limits(of_rung(kernel, (SIZE,) * 3, "sm_90")), _default(kernel, profiled)
        tflops = measured[kernel.number]["tflops"]
        row: dict[str, Any] = {
            "number": kernel.number, "name": kernel.name, "modelled_tflops": found["tflops"], "tflops": tflops,
            "error": found["tflops"] / tflops - 1, "limiter": found["limiter"], "profiler": _profiler(ncu),
            "stalls": found["stalls"], "busy": found["busy"],
            "agrees": _profiler(ncu) in _LIKE.get(found["limiter"], (found["limiter"].replace(" ", "_"),)),
            "counts_off": {name: found["counts"].get(name, 0) / ncu[name] - 1 for name in COMPARED
                           if ncu.get(name) and not _accounted(name, ncu)
                           and abs(found["counts"].get(name, 0) / ncu[name] - 1) > 1e-6}}
        rows.append(row)
        print(f"{kernel.number:02} {found['tflops']:6.2f} {tflops:6.2f} {row['error']:+.0%}  {row['limiter']} / "
              f"{row['profiler']}  {row['counts_off']}", flush=True)
    errors = sorted(abs(row["error"]) for row in rows)
    print(f"{sum(one <= 0.15 for one in errors)} of {len(errors)} within 15 %, {sum(one <= 0.3 for one in errors)} "
          f"within 30 %, median {errors[len(errors) // 2]:.1%}; the limiter agrees for "
          f"{sum(row['agrees'] for row in rows)}")
    records.write(json_, records.record(None, "sm_90", [{"found": rows}]))


def _run(path: Path) -> list[dict[str, Any]]:
    runs = records.runs_of(json.loads(path.read_text(encoding="utf-8")))
    return [dict(row) for one in runs if one["shape"] == [SIZE] * 3 for row in one["rungs"]]


def _default(kernel: Any, profiled: dict[Any, Any]) -> dict[str, Any]:
    """The counters of a rung's default configuration."""
    default = kernel.config_for("sm_90")
    names = [name for name, config in kernel.named.items() if config == default]
    found = next((profiled[kernel.number, name] for name in (*names, "default")
                  if (kernel.number, name) in profiled), None)
    return dict(found or {})


def _accounted(name: str, ncu: dict[str, Any]) -> bool:
    """LDGSTS count among the global loads of the profiler, copies of boxes do not."""
    return name == "global_load_sectors" and not ncu.get("global_load_requests")


def _profiler(ncu: dict[str, Any]) -> str:
    """The issue slots where they are that busy, else the stall that costs warps most."""
    if ncu.get("issue_active_percent", 0.0) >= 100 * FULL:
        return "issue slots"
    stalls = {name.removeprefix("stall_"): value for name, value in ncu.items()
              if name.startswith("stall_") and value is not None}
    return max(stalls, key=stalls.__getitem__, default="")


if __name__ == "__main__":
    run(command)
