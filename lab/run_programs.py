"""Programs with and without `peakgemm run`: results/<gpu>/run.json.

    python -m lab.run_programs --json results/h200/run.json            on a GPU, some eight minutes
    python -m lab.run_programs --json a.json --only bert,mine.py       one of lab/drivers, and a file of your own
    python -m lab.run_programs --json a.json --repeats 1 --check 0     every program once each way: two minutes

Each program of lab/drivers is run as it is, then under ``peakgemm run`` in each precision, in turn, `--repeats` times.
Its last line is JSON: milliseconds of a step, and numbers of its results. The speed-up is the median of the ratios
within a repeat; ``from_plain`` is the largest relative difference of the numbers. What the table of `peakgemm run`
counted is in the row; a last run with ``--check`` is not timed. A program whose package is missing leaves a row that
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from peakgemm.runtime import device
from peakgemm.tools.bench import records

DRIVERS = Path(__file__).parent / "drivers"
# Options of each: linear algebra, and for JAX FP32 in place of TF32, for the plain run as well.
PROGRAMS: dict[str, dict[str, Any]] = {
    "bert": {}, "gaussian_process": {"linalg": True}, "neural_ode": {}, "cupy_kmeans": {}, "cupy_tensor_network": {},
    "jax_training": {"environment": {"JAX_DEFAULT_MATMUL_PRECISION": "highest",
                                     "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}}}
PLAIN = "plain"


def run(program: Path, how: str, options: dict[str, Any], check: int = 0) -> dict[str, Any]:
    """What a program printed at its end, the seconds of its process, and what `peakgemm run` counted; or an error."""
    with tempfile.TemporaryDirectory() as folder:
        path, command = Path(folder) / "run.json", [sys.executable]
        if how != PLAIN:
            command += ["-m", "peakgemm", "run", "--precision", how, "--json", str(path), "--check", str(check),
                        *["--linalg"] * bool(options.get("linalg"))]
        start = time.perf_counter()
        done = subprocess.run([*command, str(program), *options.get("words", ())], capture_output=True, text=True,
                              check=False, env={**os.environ, **options.get("environment", {})})
        seconds = time.perf_counter() - start
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines or not lines[-1].startswith("{"):
            return {"error": (done.stderr.strip() or "it printed no JSON").splitlines()[-1]}
        counted = json.loads(path.read_text())["found"] if path.exists() else []
        return {**json.loads(lines[-1]), "process_s": seconds, "counted": counted}


def rows_of(program: Path, options: dict[str, Any], precisions: list[str], repeats: int,
            check: int = 10) -> list[dict[str, Any]]:
    """A row for the program alone, and for each precision."""
    runs: dict[str, list[dict[str, Any]]] = {how: [] for how in (PLAIN, *precisions)}
    for _ in range(repeats):
        for how, all_of in runs.items():
            all_of.append(run(program, how, options))
            if "error" in all_of[-1]:
                return [{"name": program.stem, "how": how, "error": all_of[-1]["error"]}]
    rows = []
    for how, all_of in runs.items():
        plain = runs[PLAIN]
        row = {"name": program.stem, "how": how, "ms": median(one["ms"] for one in all_of),
               "process_s": median(one["process_s"] for one in all_of), "all_ms": [one["ms"] for one in all_of],
               "speedup": median(p["ms"] / one["ms"] for p, one in zip(plain, all_of, strict=True)),
               "from_plain": max(abs(x - y) / max(abs(y), 1e-30) for x, y in zip(
                   all_of[0]["numbers"], plain[0]["numbers"], strict=True))}
        if how != PLAIN:
            checked = run(program, how, options, check) if check else {}
            products = [x for x in all_of[0]["counted"] if x["name"] == "products"]
            ours = sum(x["flops"] for x in products if not x["reason"])
            row |= {"calls": sum(x["calls"] for x in products if not x["reason"]),
                    "share": ours / max(sum(x["flops"] for x in products), 1),
                    "stayed": {f"{x['operation']}: {x['reason']}": x["calls"] for x in products if x["reason"]},
                    "checks": (checked.get("counted") or [{}])[0].get("checks")}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--precision", default="ieee,emulated")
    parser.add_argument("--only", help="drivers by name, or files, with commas (all drivers)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", type=int, default=10, help="of a last run that is not timed; 0: none (10)")
    parser.add_argument("--seconds", type=float, default=480, help="begin no further program after so many (480)")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu, begun = device.find(), time.monotonic()
    found: list[dict[str, Any]] = []
    for name in args.only.split(",") if args.only else PROGRAMS:
        if time.monotonic() - begun > args.seconds:
            print(f"{name}: left out, {args.seconds:g} s are spent", flush=True)
            continue
        path = DRIVERS / f"{name}.py" if name in PROGRAMS else Path(name)
        for row in rows_of(path, PROGRAMS.get(name, {}), args.precision.split(","), args.repeats,
                           args.check):
            found.append(row)
            print(f"{row['name']:20} {row['how']:10} " + (row.get("error") or
                  f"{row['ms']:9.2f} ms, {row['speedup']:.3f} x, share {row.get('share', 0):.3f}, from plain "
                  f"{row['from_plain']:.2g}, checks {row.get('checks')}"), flush=True)
        records.write(args.json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"found": found}]))


if __name__ == "__main__":
    main()
