"""Programs with and without `peakgemm run`: results/<gpu>/run.json.

    python -m lab.run_programs --json results/h200/run.json --repeats 1     on a GPU, some three minutes
    python -m lab.run_programs --json a.json --only bert,mine.py            one of lab/drivers, and a file of your own

Each program of lab/drivers is run as it is, then under ``peakgemm run`` in each precision, in turn, `--repeats` times;
one has the GPU, others import meanwhile (``--ahead``). Its last line is JSON: milliseconds of a step, and vectors of
its results. The speed-up is the median of the ratios within a repeat. Runs that are not timed follow, beside each
other: one in FP64 (``--double``), one of each precision with ``--check``. ``from_fp64`` is the root mean square of the
vectors' relative distances from FP64's, ``of_plain`` its ratio to the plain program's, ``from_plain`` the distance from
that. Then the products that `peakgemm run` counted are timed by themselves, the library's beside ours (lab/rates.py):
``amdahl`` is the speed-up that they allow. A program whose package is missing leaves a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from peakgemm.runtime import device
from peakgemm.tools.bench import records

DRIVERS = Path(__file__).parent / "drivers"
# Options of each: linear algebra, and for JAX FP32 in place of TF32, for the plain run as well.
PROGRAMS: dict[str, dict[str, Any]] = {
    "jax_training": {"environment": {"JAX_DEFAULT_MATMUL_PRECISION": "highest",  # the first, as it takes longest
                                     "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}},
    "bert": {}, "gpt2": {}, "vit": {}, "llama": {}, "graph_network": {}, "neural_ode": {},
    "sentences": {"environment": {"HF_HUB_OFFLINE": "1"}}, "gaussian_process": {"linalg": True},
    "cupy_kmeans": {}, "cupy_tensor_network": {}}
PLAIN = "plain"
ZERO = 1e-8  # vectors below it, relative to the largest, are zero but for rounding: their distances say nothing
FEW = 4  # products that are checked at least, where there are as many
LIMIT = 150  # seconds that a process may take
TIMES = ("ms", "first_ms", "all_ms", "speedup", "compilations")  # of a row, those that an earlier record may have
Run = dict[str, Any]
Runs = dict[str, dict[str, list[Run]]]


def run(program: Path, how: str, options: dict[str, Any], *words: str, check: int = 0) -> Run:
    """What a program printed at its end, and what `peakgemm run` counted; or an error."""
    with tempfile.TemporaryDirectory() as folder:
        path, command = Path(folder) / "run.json", [sys.executable]
        if how != PLAIN:
            command += ["-m", "peakgemm", "run", "--precision", how, "--json", str(path), "--check", str(check),
                        *["--linalg"] * bool(options.get("linalg"))]
        try:
            done = subprocess.run([*command, str(program), *options.get("words", ()), *words], capture_output=True,
                                  text=True, check=False, env={**os.environ, **options.get("environment", {})},
                                  timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return {"error": f"it took more than {LIMIT} s"}
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines or not lines[-1].startswith("{"):
            return {"error": (done.stderr.strip() or "it printed no JSON").splitlines()[-1]}
        counted = json.loads(path.read_text())["found"] if path.exists() else []
        return {**json.loads(lines[-1]), "counted": counted}


def timed_runs(paths: dict[str, Path], precisions: Sequence[str], repeats: int, ahead: int = 1, seconds: float = 1e9,
               exclusive: bool = True,
               done: Callable[[str, dict[str, list[Run]]], Any] = lambda name, runs: None) -> Runs:
    """Runs of each program alone, and in each precision, ``ahead`` of them at a time, of which one has the GPU if that
    is to be ``exclusive``; ``done`` is told of a program's. None begins after so many ``seconds``."""
    begun, runs = time.monotonic(), {}

    def one(path: Path, how: str, options: dict[str, Any]) -> Run:
        if time.monotonic() - begun > seconds:
            return {"error": f"left out, {seconds:g} s are spent"}
        return run(path, how, options)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(ahead) as pool:
        lock = {"STEPS_LOCK": str(Path(folder) / "lock")} if exclusive else {}
        futures: dict[str, list[tuple[str, Any]]] = {}
        for name, path in paths.items():
            options = PROGRAMS.get(name, {})
            options = options | {"environment": options.get("environment", {}) | lock}
            futures[name] = [(how, pool.submit(one, path, how, options)) for _ in range(repeats)
                             for how in (PLAIN, *precisions)]
        for name, waiting in futures.items():
            runs[name] = {how: [f.result() for of, f in waiting if of == how] for how in (PLAIN, *precisions)}
            done(name, runs[name])
    return runs


def distance(numbers: Sequence[Any], exact: Sequence[Any]) -> float:
    """The root mean square of the vectors' relative distances."""
    pairs = [(x if isinstance(x, list) else [x], y if isinstance(y, list) else [y])
             for x, y in zip(numbers, exact, strict=True)]
    norms = [sum(y * y for y in of) for _, of in pairs]
    each = [sum((p - q)**2 for p, q in zip(x, y, strict=True)) / norm
            for (x, y), norm in zip(pairs, norms, strict=True) if norm > ZERO**2 * max(norms)]
    return (sum(each) / len(each))**0.5 if each else 0.0


def rows_of(name: str, runs: dict[str, list[Run]], untimed: dict[str, Run]) -> list[dict[str, Any]]:
    """A row for the program alone, and for each precision; ``untimed``: the runs in FP64, by `PLAIN`, and with checks.
    """
    rows, plain, exact = [], runs[PLAIN], untimed.get(PLAIN, {}).get("numbers")
    for how, all_of in runs.items():
        if failed := [one["error"] for one in (*plain, *all_of) if "error" in one]:
            rows.append({"name": name, "how": how, "error": failed[0]})
            continue
        row = {"name": name, "how": how, "ms": median(one["ms"] for one in all_of),
               "first_ms": all_of[0].get("first_ms"),
               "all_ms": [one["ms"] for one in all_of],
               "speedup": median(p["ms"] / one["ms"] for p, one in zip(plain, all_of, strict=True)),
               "from_plain": distance(all_of[0]["numbers"], plain[0]["numbers"])}
        if exact:
            row["from_fp64"] = distance(all_of[0]["numbers"], exact)
            row["of_plain"] = row["from_fp64"] / max(distance(plain[0]["numbers"], exact), 1e-30)
        if how != PLAIN:
            checked, counted = untimed.get(how, {}), all_of[0]["counted"]
            products = [x for x in counted if x["name"] == "products"]
            ours = sum(x["flops"] for x in products if not x["reason"])
            row |= {"calls": sum(x["calls"] for x in products if not x["reason"]),
                    "compilations": counted[0]["compilations"] if counted else 0,
                    "share": ours / max(sum(x["flops"] for x in products), 1),
                    "stayed": {f"{x['operation']}: {x['reason']}": x["calls"] for x in products if x["reason"]},
                    "checks": (checked.get("counted") or [{}])[0].get("checks")}
            if "error" in checked:
                row["check_failed"] = checked["error"]
        rows.append(row)
    return rows


def untimed_runs(paths: dict[str, Path], runs: Runs, check: int, beside: int) -> dict[str, dict[str, Run]]:
    """Of each program that runs: by `PLAIN` in FP64, by precision with checks of every so many products, or of more
    where it has few."""
    with ThreadPoolExecutor(beside) as pool:
        waiting = {}
        for name, all_of in runs.items():
            for how, (first, *_) in all_of.items():
                options, counted = PROGRAMS.get(name, {}), first.get("counted", ())
                calls = int(sum(x.get("calls", 0) for x in counted))
                if "error" not in first and how == PLAIN:
                    waiting[name, how] = pool.submit(run, paths[name], how, options, "--double")
                elif "error" not in first and check:
                    waiting[name, how] = pool.submit(run, paths[name], how, options,
                                                     check=min(check, max(calls // FEW, 1)))
        done: dict[str, dict[str, Run]] = {name: {} for name in runs}
        for (name, how), future in waiting.items():
            done[name][how] = future.result()
        return done


def add_rates(rows: Sequence[dict[str, Any]], runs: Runs) -> None:
    """To each row what its products take by themselves, a step, and the speed-up that Amdahl's law allows for them."""
    from lab.rates import Rates

    with Rates() as rates:
        for row in rows:
            if row["how"] == PLAIN or "error" in row:
                continue
            first = runs[row["name"]][row["how"]][0]
            products = [x for x in first["counted"] if x["name"] == "products" and not x["reason"]]
            theirs, ours, left_out = rates.of(products, row["how"], row["name"])
            theirs, ours = theirs / first.get("steps", 1), ours / first.get("steps", 1)
            ms = next(r["ms"] for r in rows if r["name"] == row["name"] and r["how"] == PLAIN)
            row |= {"product_ms": [theirs, ours], "not_timed": left_out,
                    "amdahl": ms / max(ms - theirs + ours, 1e-9)}
            row["of_amdahl"] = row["speedup"] / row["amdahl"]


def line_of(row: dict[str, Any]) -> str:
    """A row in a line."""
    if "error" in row:
        return f"{row['name']:20} {row['how']:10} {row['error']}"
    said = (f"{row['name']:20} {row['how']:10} {row['ms']:9.2f} ms, first {row['first_ms'] or 0:.0f}, "
            f"{row['speedup']:.3f} x")
    for name in ("amdahl", "of_amdahl", "share", "compilations", "from_plain", "from_fp64", "of_plain"):
        said += f", {name} {row[name]:.3g}" if name in row else ""
    return said + (f", largest check {row['checks']['largest']:.3g} of {row['checks']['done']}"
                   if row.get("checks") else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--precision", default="emulated", help="one or several, with commas (emulated)")
    parser.add_argument("--only", help="drivers by name, or files, with commas (all drivers)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", type=int, default=50, help="every so many products; 0: no such run (50)")
    parser.add_argument("--beside", type=int, default=5, help="runs beside each other that are not timed; 0: none (5)")
    parser.add_argument("--ahead", type=int, default=3, help="timed programs that are started at a time (3)")
    parser.add_argument("--no-rates", action="store_true", help="without Amdahl's law")
    parser.add_argument("--times", type=Path, help="take times from this record, and time nothing but products: all "
                        "programs then run beside each other")
    parser.add_argument("--seconds", type=float, default=480, help="begin no further program after so many (480)")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu, begun = device.find(), time.monotonic()
    names = args.only.split(",") if args.only else PROGRAMS
    paths = {Path(name).stem: DRIVERS / f"{name}.py" if name in PROGRAMS else Path(name) for name in names}

    earlier_rows = json.loads(args.times.read_text())["found"] if args.times else []
    timed = {(row["name"], row["how"]): row for row in earlier_rows}

    def write(runs: Runs, untimed: dict[str, dict[str, Run]]) -> list[dict[str, Any]]:
        rows = [row for name, of in runs.items() for row in rows_of(name, of, untimed.get(name, {}))]
        for row in rows:
            earlier = timed.get((row["name"], row["how"]), {})
            row |= {field: earlier[field] for field in TIMES if field in earlier}
        records.write(args.json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"found": rows}]))
        return rows

    def tell(name: str, of: dict[str, list[Run]]) -> None:
        for row in rows_of(name, of, {}):
            print(line_of(row), flush=True)

    ahead = args.beside if args.times else args.ahead
    runs = timed_runs(paths, args.precision.split(","), args.repeats, ahead, args.seconds, not args.times, tell)
    write(runs, {})
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    rows = write(runs, untimed_runs(paths, runs, args.check, args.beside) if args.beside else {})
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    if gpu and not args.no_rates:
        add_rates(rows, runs)
        records.write(args.json, records.record(gpu, gpu.arch, [{"found": rows}]))
    for row in rows:
        print(line_of(row), flush=True)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
