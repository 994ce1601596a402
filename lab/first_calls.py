"""First calls: of 20 shapes by the wheel's cubins, each in a process of its own, and a transformer's first step from a
clone, which compiles: results/<gpu>/first-calls.json.

    python -m lab.first_calls --json results/h200/first-calls.json     on a GPU, with a wheel installed: two minutes

The processes of a precision start beside each other; when each has torch, its context and its cuBLAS up, they make
their call one after the other. Without cubins (`peakgemm doctor` tells) the calls compile, and say so. The step is that
of lab/drivers/bert.py, without cubins, on an empty cache and then on what the first run has left there; ``compiling_s``
is what that saves of the step.
"""

from __future__ import annotations

import argparse
import compileall
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import peakgemm
from lab.overhead import LIMIT, ProcessFailed, processor, spawn
from lab.run_programs import DRIVERS, run
from peakgemm.runtime import device
from peakgemm.tools.bench import records

# (*batch, M, N, K): squares, products of transformers, odd ones, thin ones, batches.
SHAPES = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
          (8192, 8192, 8192), (3072, 3072, 3072), (1000, 1000, 1000), (1111, 2222, 3333), (8192, 768, 768),
          (8192, 3072, 768), (768, 3072, 8192), (4096, 11008, 4096), (8192, 8192, 128), (128, 128, 65536),
          (16384, 64, 1024), (64, 512, 512, 64), (96, 1024, 64, 1024), (16, 4096, 4096), (1, 4096, 4096))

CALL = """
import json, sys, time
import torch
shape, precision, where = {shape!r}, {precision!r}, {where!r}
*batch, m, n, k = shape
wait = torch.cuda.synchronize if where == "cuda" else int
a, b = torch.randn(*batch, m, k, device=where), torch.randn(*batch, k, n, device=where)
torch.matmul(a, b)
wait()
print("ready", flush=True)
sys.stdin.readline()
times = [time.perf_counter()]
import peakgemm
times.append(time.perf_counter())
for _ in range(2):
    c = peakgemm.matmul(a, b, precision=precision)
    wait()
    times.append(time.perf_counter())
want = a[..., :1, :].double() @ b.double()
assert ((c[..., :1, :] - want).abs().max() <= 1e-5 * k**0.5 * want.abs().max()), "wrong product"
compiler = sys.modules.get("peakgemm.runtime.nvrtc")
print(json.dumps([*(1e3 * (y - x) for x, y in zip(times, times[1:])), getattr(compiler, "builds", 0)]))
"""


def calls(precision: str, shapes: tuple[tuple[int, ...], ...] = SHAPES, where: str = "cuda") -> list[dict[str, Any]]:
    """A row for each shape."""
    rows = []
    compileall.compile_dir(Path(peakgemm.__file__).parent, quiet=2)  # as of a package that is installed
    with tempfile.TemporaryDirectory() as folder:
        processes = [spawn(CALL.format(shape=shape, precision=precision, where=where), f"{folder}/{i}",
                           subprocess.PIPE) for i, shape in enumerate(shapes)]
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            for shape, process in zip(shapes, processes, strict=True):
                row: dict[str, Any] = {"name": "first call", "shape": list(shape), "precision": precision}
                try:
                    row |= dict(zip(("import_ms", "first_ms", "second_ms", "compilations"), said(process), strict=True))
                    print(f"{'x'.join(map(str, shape)):18} {precision:9} import {row['import_ms']:5.1f} ms, first "
                          f"{row['first_ms']:7.1f}, second {row['second_ms']:6.2f}; compiled {row['compilations']}",
                          flush=True)
                except ProcessFailed as error:
                    row["failed"] = str(error)
                    print(f"{'x'.join(map(str, shape)):18} {precision:9} {error}", flush=True)
                rows.append(row)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    return rows


def said(process: subprocess.Popen[str]) -> list[float]:
    """Let a process go on, and read what it measured.

    Raises:
        ProcessFailed: it took longer than `overhead.LIMIT`, or ended with an error.
    """
    try:
        out, _ = process.communicate("\n", timeout=LIMIT)
        return list(json.loads(out.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        raise ProcessFailed(f"exit code {process.returncode}; its error, if any, is above") from None


def step(precision: str) -> dict[str, Any]:
    """A transformer's first step from a clone."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"environment": {"PEAKGEMM_CACHE_DIR": folder, "PEAKGEMM_SHIPPED": "0"}}
        cold, warm = (run(DRIVERS / "bert.py", precision, options, "--steps", "4") for _ in range(2))
    row: dict[str, Any] = {"name": "transformer's first step", "precision": precision}
    if "error" in cold or "error" in warm:
        row["failed"] = cold.get("error") or warm["error"]
    else:
        row |= {"first_ms": cold["first_ms"], "warm_first_ms": warm["first_ms"],
                "compilations": cold["counted"][0]["compilations"],
                "compiling_s": (cold["first_ms"] - warm["first_ms"]) / 1e3}
    print(row if "failed" in row else f"{row['name']}, {precision}: {row['compilations']} kernels in "
          f"{row['compiling_s']:.2f} s", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--precision", default="ieee,emulated")
    parser.add_argument("--no-step", action="store_true", help="without the transformer")
    parser.add_argument("--no-calls", action="store_true", help="without the 20 shapes")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu, rows = device.require(), []
    for precision in args.precision.split(","):
        rows += [] if args.no_calls else calls(precision)
        rows += [] if args.no_step else [step(precision)]
    records.write(args.json, records.record(gpu, gpu.arch, [{"found": rows}], versions={"processor": processor()}))
    slow = [row for row in rows if row["name"] == "first call" and row.get("first_ms", 1e9) > 60]
    print(f"{len(slow)} first calls take more than 60 ms")


if __name__ == "__main__":
    main()
