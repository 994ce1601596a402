"""Kernels of public ``.cu`` files, predicted here and timed on a card: results/<gpu>/public-timing.json.

    python -m lab.public_timing FOLDER --prepare READY    # without a GPU: cut, compiled, predicted: READY/jobs.json
    python -m lab.public_timing READY --json FILE         # on the card, which needs neither the files nor a compiler

``lab/public_cuda.json`` names the kernels. FOLDER holds their repositories as OWNER+NAME. What is timed is the very
code that is predicted. Each kernel runs in a process of its own, which is ended where it hangs.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from peakgemm.errors import PeakgemmError
from peakgemm.runtime import device, driver
from peakgemm.tools.bench import records

SIZES = (4096, 2048)  # the second where the first takes longer than a second
SLOW_MS, RUNS, SECONDS = 1000.0, 5, 30
ROWS = 64  # of the result that are compared with FP64
ALLOWED = 2e-7  # times K and |A||B|: what sums in any order stay below


def main() -> None:
    """Prepare, or time, or time one kernel (a process of its own)."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--matrices", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.folder, options.prepare)
        return
    jobs = json.loads((options.folder / "jobs.json").read_text())
    if options.one is not None:
        print(json.dumps(timed(jobs[options.one], options.matrices)))
        return
    gpu = device.require()
    rows = all_timed(jobs, options.folder)
    errors = summary(rows)
    print(", ".join(f"{name} {value:.3g}" for name, value in errors.items()))
    if options.json:
        records.write(options.json, records.record(gpu, "sm_90", [{"found": [{"summary": errors}, *rows]}]))


def prepare(folder: Path, ready: Path) -> None:
    """The jobs of the kernels in the list, one JSON."""
    from . import public_cuda  # what it needs is not on the card

    jobs = []
    for listed in json.loads(public_cuda.LIST.read_text())["kernels"]:
        job = {"name": f"{listed['repository']} {listed['path']} {listed['kernel']}", "storage": listed["storage"],
               "arguments": listed["arguments"], "sizes": {}}
        for size in SIZES:
            try:
                launch, predicted = public_cuda.predicted(folder, listed, size, listed["kernel"])
            except PeakgemmError as error:
                job["refused"] = str(error)
                break
            if size == SIZES[0] and [*launch.grid] != [*listed["grid"], 1, 1][:3]:
                job["launch"] = f"the file launches a grid of {launch.grid}, the list has {listed['grid']}"
            job.update(kernel=launch.function, cubin=base64.b64encode(launch.cubin.data).decode())
            job["sizes"][size] = {"grid": launch.grid, "block": launch.block, "shared": launch.shared,
                                  "tflops": predicted["tflops"], "limiter": predicted["limiter"]}
            if predicted["ms"] < SLOW_MS / 4:
                break
        print(job["name"], job.get("refused") or {size: one["tflops"] for size, one in job["sizes"].items()},
              job.get("launch", ""), flush=True)
        jobs.append(job)
    ready.mkdir(parents=True, exist_ok=True)
    (ready / "jobs.json").write_text(json.dumps(jobs))


def all_timed(jobs: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """A row for each job, what became of it in ``failed`` where it gave no time."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for size in SIZES:
            draw = np.random.default_rng(size)
            for name in "ABC":
                np.save(f"{scratch}/{name}{size}.npy", draw.standard_normal(size * size, dtype=np.float32))
        for number, job in enumerate(jobs):
            row = {name: job[name] for name in ("name", "refused", "launch") if name in job}
            if "refused" not in job:
                try:
                    done = subprocess.run([sys.executable, "-m", "lab.public_timing", str(folder), "--one", str(number),
                                           "--matrices", scratch], capture_output=True, text=True, timeout=SECONDS)
                    row |= (json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else
                            {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]})
                except subprocess.TimeoutExpired:
                    row["failed"] = f"not done after {SECONDS} s"
            print(row, flush=True)
            rows.append(row)
    return rows


def timed(job: Mapping[str, Any], matrices: Path) -> dict[str, Any]:
    """TFLOPS of a kernel at the largest size at which it is not slow, beside the prediction."""
    device.make_current(device.require().index)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.demand("loading", "cuModuleLoadData", ctypes.byref(module), base64.b64decode(job["cubin"]))
    driver.demand("the kernel", "cuModuleGetFunction", ctypes.byref(function), module, job["kernel"].encode())
    for size in SIZES:
        launch = job["sizes"][str(size)]
        a, b, c = (np.load(matrices / f"{name}{size}.npy") for name in "ABC")
        addresses = {name: _copied(array) for name, array in (("A", a), ("B", b), ("C", c))}
        kept = [_argument(word, size, addresses) for word in job["arguments"]]
        pointers = (ctypes.c_void_p * len(kept))(*(ctypes.cast(one, ctypes.c_void_p) for one in kept))
        if launch["shared"]:
            driver.demand("shared memory", "cuFuncSetAttribute", function, 8, launch["shared"])

        def run(launch: Mapping[str, Any] = launch, pointers: Any = pointers) -> float:
            first, last, ms = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
            for one in (first, last):
                driver.demand("an event", "cuEventCreate", ctypes.byref(one), 0)
            driver.demand("an event", "cuEventRecord", first, None)
            driver.demand("the launch", "cuLaunchKernel", function, *launch["grid"], *launch["block"], launch["shared"],
                          None, pointers, None)
            driver.demand("an event", "cuEventRecord", last, None)
            driver.demand("the kernel", "cuEventSynchronize", last)
            driver.demand("an event", "cuEventElapsedTime", ctypes.byref(ms), first, last)
            return ms.value

        first_ms, found = run(), np.empty_like(c)
        driver.demand("the result", "cuMemcpyDtoH_v2", ctypes.c_void_p(found.ctypes.data),
                      ctypes.c_uint64(addresses["C"]), ctypes.c_size_t(found.nbytes))
        if first_ms > SLOW_MS and str(size) != [*job["sizes"]][-1]:
            continue
        samples = [run() for _ in range(RUNS + 2)][2:]
        tflops = 2 * size ** 3 / median(samples) / 1e9
        return {"size": size, "error": _error(a, b, found, size, job["storage"] == "column"), "ms": samples,
                "tflops": tflops, "predicted": launch["tflops"], "limiter": launch["limiter"]}
    raise AssertionError("the last size is timed")


def _copied(array: np.ndarray[Any, Any]) -> int:
    address = ctypes.c_uint64()
    driver.demand("memory", "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(array.nbytes))
    driver.demand("a copy", "cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data),
                  ctypes.c_size_t(array.nbytes))
    return address.value


def _argument(word: str, size: int, addresses: Mapping[str, int]) -> Any:
    """The bytes of a parameter; one of 4 bytes takes the first 4."""
    if word in addresses:
        return ctypes.create_string_buffer(struct.pack("<Q", addresses[word]))
    scale = {"alpha": 1.0, "beta": 0.0}.get(word)
    return ctypes.create_string_buffer(struct.pack("<q", size) if scale is None else struct.pack("<f4x", scale))


def _error(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], c: np.ndarray[Any, Any], size: int,
           by_columns: bool) -> float:
    """The largest error of some rows (columns) of the result, in what is allowed: beyond 1 the result is wrong."""
    if by_columns:
        a, b = b, a
    rows = np.random.default_rng(0).choice(size, ROWS, replace=False)
    x, y = a.reshape(size, size)[rows].astype(np.float64), b.reshape(size, size).astype(np.float64)
    error = np.abs(c.reshape(size, size)[rows] - x @ y) / (np.abs(x) @ np.abs(y)) / (ALLOWED * size)
    return float(np.max(np.nan_to_num(error, nan=np.inf)))


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Errors of the predictions, as shares of what was measured; kernels with a wrong result are left out."""
    pairs = [(row["predicted"], row["tflops"]) for row in rows if "tflops" in row and row["error"] <= 1]
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    if len(pairs) < 2:
        return {"timed": len(pairs)}
    ranks = [np.argsort(np.argsort(one)) for one in zip(*pairs, strict=True)]
    return {"timed": len(pairs), "median_error": median(errors), "largest_error": max(errors),
            "rank_correlation": float(np.corrcoef(*ranks)[0, 1])}


if __name__ == "__main__":
    main()
