"""What a call costs the host, an import, and the first call of a process: results/<gpu>/overhead.json.

    python -m lab.overhead --json results/h100/overhead.json

Calls are issued in bursts of 200 on 64 x 64 operands with nothing else queued: the window closes before the
GPU is waited for. The bursts of all cases run in turn, round after round; a ratio is the median of
the ratios within a round. Needs torch and a GPU.

Imports and first calls are measured in fresh processes, which find bytecode as an installed package has it. Where
one of them fails its case is left out, the others go on, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

import peakgemm
import peakgemm.integrations.torch_ops  # registers the op
from peakgemm.kernels import shipped
from peakgemm.runtime import device
from peakgemm.tools.bench import records

SIZE = 64
BURST = 200
WARM_UP = 5  # rounds that are thrown away
PROCESSES = 8

IMPORT = """
import json, sys, time
start = time.perf_counter()
import peakgemm
taken = time.perf_counter() - start
assert not {"torch", "numpy", "cuda"} & set(sys.modules), "the import drags in an array library"
print(json.dumps(taken))
"""

# The first product of a process; torch has its CUDA context and cuBLAS up, as a program in its stride has.
FIRST_CALL = f"""
import json, time
import torch
a, b = (torch.randn({SIZE}, {SIZE}, device="cuda") for _ in range(2))
want = a.double() @ b.double()
torch.mm(a, b)
torch.cuda.synchronize()
start = time.perf_counter()
import peakgemm
c = peakgemm.matmul(a, b)
torch.cuda.synchronize()
taken = time.perf_counter() - start
assert torch.allclose(c.double(), want, atol=1e-4), "wrong product"
print(json.dumps(taken))
"""
# As for a kernel that no wheel brought: the compiler's, or the cache's.
UNSHIPPED = FIRST_CALL.replace(
    "c = peakgemm", "from peakgemm.kernels import shipped\nshipped.find = lambda *args: None\nc = peakgemm")
READY = UNSHIPPED.replace("import torch", "import torch, cuda.core, numpy, peakgemm", 1)
LIMIT = 120  # seconds that a process may take


def burst_us(call: Callable[[], Any]) -> float:
    """The host's microseconds a call, in a burst with nothing else queued: the GPU is waited for outside the window."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(BURST):
        call()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / BURST * 1e6


@dataclass
class Case:
    """One way to call, and the case that it is compared with; microseconds a call, a burst each."""

    name: str
    call: Callable[[], Any]
    baseline: str | None = None
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    samples: list[float] = field(default_factory=list)

    def burst(self) -> None:
        """Time one burst."""
        with self.within():
            self.samples.append(burst_us(self.call))


def cases() -> list[Case]:
    """Pairs of peakgemm and torch that do the same."""
    a, b, out = (torch.randn(SIZE, SIZE, device="cuda") for _ in range(3))
    weight = torch.randn(SIZE, SIZE, device="cuda", requires_grad=True)
    plan, op = peakgemm.plan(a, b), torch.ops.peakgemm.gemm
    mm, mm_out, mm_grad = "torch.mm(a, b)", "torch.mm(a, b, out=c)", "torch.mm(a, weight)"
    return [
        Case(mm, lambda: torch.mm(a, b)),
        Case("peakgemm.matmul(a, b)", lambda: peakgemm.matmul(a, b), mm),
        Case("torch.ops.peakgemm.gemm(a, b, None, 1.0, 0.0, 'ieee')", lambda: op(a, b, None, 1.0, 0.0, "ieee"), mm),
        Case("torch.mm(a, b) within peakgemm.torch.use()", lambda: torch.mm(a, b), mm, peakgemm.torch.use),
        Case(mm_out, lambda: torch.mm(a, b, out=out)),
        Case("peakgemm.matmul(a, b, out=c)", lambda: peakgemm.matmul(a, b, out=out), mm_out),
        Case("plan.execute(a, b, out=c)", lambda: plan.execute(a, b, out=out), mm_out),
        Case(mm_grad, lambda: torch.mm(a, weight)),
        Case("peakgemm.matmul(a, weight)", lambda: peakgemm.matmul(a, weight), mm_grad),
    ]


def host_rows(rounds: int) -> list[dict[str, Any]]:
    """A row for each case of `cases`."""
    found = {case.name: case for case in cases()}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds + WARM_UP):
            for case in found.values():
                case.burst()
    finally:
        gc.enable()
    rows = []
    for case in found.values():
        kept = case.samples[WARM_UP:]
        base = found[case.baseline].samples[WARM_UP:] if case.baseline else None
        ratio = median(x / y for x, y in zip(kept, base, strict=True)) if base else None
        rows.append(row(case.name, kept, case.baseline, ratio))
    return rows


def row(case: str, samples: list[float], baseline: str | None = None, ratio: float | None = None) -> dict[str, Any]:
    """Samples in microseconds, with their median and spread."""
    tenths = quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else [samples[0]] * 9
    found = {"case": case, "microseconds": median(samples), "spread_us": [tenths[0], tenths[-1]],
             "baseline": baseline, "ratio": ratio, "samples_us": samples}
    ratio_said = "" if ratio is None else f"  {ratio:.2f} x {baseline}"
    print(f"{case:62} {median(samples):12.1f} us{ratio_said}", flush=True)
    return found


class ProcessFailed(RuntimeError):
    """A measured process failed; its error is on stderr."""


def spawn(code: str, folder: str, stdin: Any = None) -> subprocess.Popen[str]:
    """A fresh process with its compile cache in ``folder``."""
    environment = {**os.environ, "PEAKGEMM_CACHE_DIR": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.Popen([sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE, text=True,
                            env=environment)


def microseconds(process: subprocess.Popen[str]) -> float:
    """What it measured.

    Raises:
        ProcessFailed: it took longer than `LIMIT`, or ended with an error.
    """
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ProcessFailed(f"it took more than {LIMIT} s") from None
    if process.returncode:
        raise ProcessFailed(f"exit code {process.returncode}; its error is above")
    return float(json.loads(said)) * 1e6


def together(code: str, count: int) -> list[float]:
    """What ``count`` processes measure that start at once on an empty cache."""
    with tempfile.TemporaryDirectory() as empty:
        processes = [spawn(code, empty) for _ in range(count)]
        try:
            return [microseconds(x) for x in processes]
        finally:
            for x in processes:  # those that a failure left behind
                if x.poll() is None:
                    x.kill()
                    x.communicate()


def _of_a_wheel() -> bool:
    """Whether peakgemm was installed from a wheel that brings cubins for this GPU."""
    return shipped.container(device.require().arch).exists()


def process_rows(repeats: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Imports and first calls, in processes of their own: the rows, and the cases that failed."""
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        def warm(code: str) -> list[float]:
            microseconds(spawn(code, folder))  # fills the cache, writes bytecode
            return [microseconds(spawn(code, folder)) for _ in range(repeats)]

        first = "first matmul, "
        for case, measure in (
            ("import peakgemm", lambda: warm(IMPORT)),
            *([(f"{first}kernel of the wheel, imports included", lambda: warm(FIRST_CALL))] if _of_a_wheel() else []),
            (f"{first}kernel from the warm disk cache, imports included", lambda: warm(UNSHIPPED)),
            (f"{first}the same, cuda.core and numpy imported before", lambda: warm(READY)),
            (f"{first}cold disk cache, imports included",
             lambda: [x for _ in range(repeats) for x in together(UNSHIPPED, 1)]),
            (f"the same in each of {PROCESSES} processes at once", lambda: together(UNSHIPPED, PROCESSES)),
        ):
            try:
                rows.append(row(case, measure()))
            except ProcessFailed as error:
                failed.append(case)
                print(f"{case:62} failed: {error}", flush=True)
    return rows, failed


def processor() -> str:
    """The host's processor: these figures are its own."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=60, help="bursts of each case (60)")
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes of each kind (7)")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu = device.require()
    rows = host_rows(args.rounds)
    more, failed = process_rows(args.repeats)
    rows += more
    versions = {"torch": torch.__version__, "processor": processor()}
    run = {"shape": [SIZE, SIZE, SIZE], "rungs": rows}
    records.write(args.json, records.record(gpu, gpu.arch, [run], versions=versions))
    if failed:
        raise SystemExit(f"{len(failed)} case(s) failed and are not in {args.json}: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
