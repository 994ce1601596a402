"""Bills of several kernels, timed by a process that may fail (`bill_worker`), and what the profiler counts."""

from __future__ import annotations

import csv
import json
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from lab.bill import bill
from peakgemm.runtime.device import Gpu

Job = tuple[str, str]  # a kernel as `named` takes it, and a shape
_END = None
_LAUNCHES = 4  # that `bill_worker` counts: as it is and the last variant, with K and with half of it
_SAMPLER = ("--section", "SourceCounters")
_STALL, _NOT_ISSUED, _DISPATCH = "stall_", " (Not Issued)", "dispatch"
#: What `profile` reads, by the names of a record.
METRICS = {"executed": "smsp__inst_executed.sum", "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
           "cycles_active": "smsp__cycles_active.avg", "issue_active": "smsp__issue_active.avg",
           "cycles_elapsed": "smsp__cycles_elapsed.avg"}


def bills(jobs: Sequence[Job], gpu: Gpu, rounds: int, timeout: float,
          tell: Callable[[str], None]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """An entry for each job, and the versions of what was measured with.

    A variant that does not end within ``timeout`` seconds, or that ends its process, is named in ``failed`` of its
    kernel's entry, which then has no ``parts``. The kernels behind it get a new process.
    """
    found: dict[Job, dict[str, Any]] = {}
    versions: dict[str, str] = {}
    left = list(jobs)
    while left:
        trying, job = "", left[0]
        with _Worker({"jobs": left, "rounds": rounds}) as worker:
            failed = f"no answer within {timeout:g} s"
            for line in worker.lines(timeout):
                if line is _END:
                    failed = f"the process ended: {worker.last_words()}"
                    break
                versions |= line.get("versions", {})
                trying = line.get("trying", trying)
                if "trying" in line:
                    tell(f"{line['kernel']}: {trying}")
                if "timed" in line:
                    found[job] = line["timed"]
                if "failed" in line:
                    failed = line["failed"]
                    break
                if "done" in line:
                    left.pop(0)
                    if not left:
                        break
                    job, trying = left[0], ""
            if left:
                where = f"variant {trying!r}: " if trying else ""
                found[job] = {"kernel": job[0], **found.get(job, {}), "failed": where + failed}
                left.pop(0)
    return [settled(found[job], gpu.sm_count) for job in jobs], versions


def settled(entry: dict[str, Any], sm_count: int) -> dict[str, Any]:
    """An entry with its parts, where it was timed."""
    if "samples_cycles" not in entry:
        return entry
    m, n, k = entry["shape"]
    done = bill.Work(entry["turns"], entry["busiest_turns"], entry["warps"], m * n * k / bill.LANES)
    shares, _ = bill.relative(entry)
    return {**entry, "relative": shares, "parts": bill.parts(entry, done, sm_count)}


class _Worker:
    """A process that does jobs, read line by line; it does not outlive the block."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(command(asked), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._said: list[str] = []

    def __enter__(self) -> _Worker:
        self._threads = [Thread(target=self._read, daemon=True), Thread(target=self._listen, daemon=True)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()

    def lines(self, timeout: float) -> Iterator[Any]:
        """What it tells, then `_END`; ends early where it says nothing for ``timeout`` seconds."""
        while True:
            try:
                line = self._lines.get(timeout=timeout)
            except queue.Empty:
                return
            yield line
            if line is _END:
                return

    def last_words(self) -> str:
        """The last line that it wrote to its standard error."""
        self._threads[1].join(timeout=5)
        return self._said[-1].strip() if self._said else "without a word"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put(_END)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)


def command(asked: Mapping[str, Any]) -> list[str]:
    """What starts a worker."""
    return [sys.executable, "-m", "lab.bill.worker", json.dumps(asked)]


def profile(ncu: str, jobs: Sequence[Job], entries: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """What Nsight Compute sees of each job's kernel, for its entry: ``profiler`` as `bill.beside` makes it of the
    counters in `METRICS`, and ``sampled``, of the main loop of the last variant. Where ncu gives nothing, nothing, and
    its last words.
    """
    # Of what runs only the kernels: not what fills the operands, or adds up partial sums.
    chosen = ["--clock-control", "none", "--kernel-name",
              f"regex:^({'|'.join(dict.fromkeys(entry['function'] for entry in entries))})$"]
    counted = _run([ncu, *chosen, "--csv", "--page", "raw", "--print-units", "base", "--metrics",
                    ",".join(METRICS.values()), *command({"jobs": list(jobs), "once": "counts"})])
    counts = _counters(counted)
    with TemporaryDirectory() as folder:
        report = str(Path(folder) / "samples")
        ran = _run([ncu, *chosen, *_SAMPLER, "-o", report, *command({"jobs": list(jobs), "once": "last"})])
        listings = _listings(_run([ncu, "--import", f"{report}.ncu-rep", "--page", "source", "--print-source", "sass",
                                   "--csv"]))
    if len(counts) != _LAUNCHES * len(jobs) or len(listings) != len(jobs):
        words = ran if len(counts) == _LAUNCHES * len(jobs) else counted
        return [], next((line for line in reversed(words) if "==" in line), "not a word")
    return [{"profiler": bill.beside(counts[_LAUNCHES * place:_LAUNCHES * (place + 1)], entry),
             "sampled": sampled(listing, entry["loop"])}
            for place, (listing, entry) in enumerate(zip(listings, entries, strict=True))], ""


def sampled(listing: Sequence[Mapping[str, str]], loop: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What `bill.lost_slots` takes, of ncu's rows of a kernel, one an instruction; ``loop``: ranges of its places."""
    rows = [row for start, stop in loop for row in listing[start:stop]]

    def total(column: str) -> int:
        return sum(int(row[column] or 0) for row in rows)

    reasons = {column: column.removeprefix(_STALL).removesuffix(_NOT_ISSUED) for column in (rows[0] if rows else ())
               if column.startswith(_STALL) and column.endswith(_NOT_ISSUED)}
    counts = {reason: total(column) for column, reason in reasons.items()}
    held_back = counts.pop(_DISPATCH, 0)  # the same as some of those below
    return {"samples": total("# Samples"), "dispatch": max(total(_STALL + _DISPATCH), held_back),
            "not_issued": {reason: count for reason, count in counts.items() if count}}


def _run(arguments: Sequence[str]) -> list[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout.splitlines()


def _counters(lines: Sequence[str]) -> list[dict[str, float]]:
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))[1:]
    found = [{name: float((row.get(metric) or "0").replace(",", "") or 0) for name, metric in METRICS.items()}
             for row in rows]
    for one in found:
        one["ffma"] /= bill.LANES
    return found


def _listings(lines: Sequence[str]) -> list[list[dict[str, str]]]:
    """The rows of each kernel that ncu prints: its name, the heads of columns, and an instruction a line."""
    starts = [place for place, line in enumerate(lines) if line.startswith('"Kernel Name"')]
    return [list(csv.DictReader(lines[start + 1:stop])) for start, stop in pairwise([*starts, len(lines)])]
