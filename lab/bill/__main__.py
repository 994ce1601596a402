"""What each thing in a main loop costs, in per cent of the issue slots (docs/bill.md).

    python -m lab.bill 11-16,wide,specialised --size 8192 --rounds 5 --profile --json results/h100/bill.json
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from lab.bill import bill
from lab.bill import process as bill_process
from lab.bill.loop_variants import Variants
from lab.runner import run
from peakgemm.cli import parse
from peakgemm.cli.console import number, out, progress, table
from peakgemm.errors import InvalidValue, MissingComponent
from peakgemm.kernels.registry import rungs
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench import records
from peakgemm.tools.bench.suites import cases
from peakgemm.tools.inspect.named import named

ARCH = "sm_90"
_VARIANTS = 8  # a kernel's steps of the progress bar: its variants, and the last of half K


def command(
    kernels: Annotated[str, typer.Argument(help="Rungs and kernels of the library: 14, 11-15, 14,wide,specialised.")],
    size: Annotated[str | None, typer.Option(help="N[,N...], squares.  [8192]")] = None,
    rounds: Annotated[int, typer.Option(min=3, max=100, help="Times that each variant is timed, interleaved.")] = 7,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a variant counts as hung.")] = 30,
    profile: Annotated[bool, typer.Option("--profile", help="Sample under ncu what the last one waits for.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the variants, without a GPU.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
) -> None:
    """Time a kernel's main loop without its bank conflicts, loads, copies, other instructions and waits.

    The variants are made in a copy of the compiled code, compute something else, and run in a process of their own.
    """
    records.check_writable(json)
    names = _names(kernels)
    jobs = [(name, "x".join(map(str, shape))) for shape in parse.shapes(size, None, 8192) for name in names]
    if dry_run:
        entries, gpu, versions = [_static(*job) for job in jobs], None, dict[str, str]()
        _show_variants(entries)
    else:
        gpu = device.require()
        if gpu.arch != ARCH:
            raise InvalidValue(f"{gpu.name} is {gpu.arch}, the variants are made for {ARCH}; --dry-run shows them")
        ncu = _ncu() if profile else None
        with progress("variants", _VARIANTS * len(jobs)) as done:
            entries, versions = bill_process.bills(jobs, gpu, rounds, timeout, done)
        if ncu is not None:
            _profile(ncu, jobs, entries, gpu.sm_count)
        _show(entries, gpu)
    if json is not None:
        records.write(json, records.record(gpu, ARCH, [{"bills": entries}], versions=versions))
        out.print(f"Record written to {json}", markup=False)


def _names(text: str) -> list[str]:
    """``11-13,wide`` as 11, 12, 13 and wide."""
    found = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            found += [str(one.number) for one in rungs(part)]
        else:
            found.append(part.strip())
    return found


def _ncu() -> str:
    found = shutil.which("ncu")
    if found is None:
        raise MissingComponent("--profile needs ncu, which is not on the PATH; install Nsight Compute, or leave it out")
    return found


def _static(what: str, shape: str) -> dict[str, Any]:
    sms = architecture(ARCH).gpu_sms
    subject = named(what, ARCH, shape=shape, sm_count=sms)
    variants = Variants.of(subject.cubin, subject.function)
    done = bill.work(subject, variants, cases(shape)[0].problem()[0], sms)
    return {**bill.static(subject, variants, done), "shape": [int(size) for size in shape.split("x")]}


def _profile(ncu: str, jobs: list[tuple[str, str]], entries: list[dict[str, Any]], sms: int) -> None:
    timed = [place for place, entry in enumerate(entries) if "parts" in entry]
    seen, said = bill_process.profile(ncu, [jobs[place] for place in timed], [entries[place] for place in timed])
    if not seen:
        out.print(f"ncu gave no counters: what they would explain is not explained. It said: {said}", markup=False)
    for place, more in zip(timed, seen, strict=False):
        entries[place] = bill_process.settled({**entries[place], **more}, sms)


def _show_variants(entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        slots = entry["slots"]
        body = sum(slots.values())
        out.print(f"{entry['label']}: variants of the main loop", markup=False)
        table("", [("step", "left"), ("instructions changed", "left")],
              [[one["name"], ", ".join(f"{name} {count}" for name, count in one["changed"].items()) or "-"]
               for one in entry["steps"]],
              "Issue slots of a turn: " + ", ".join(f"{name} {count} ({100 * count / body:.1f} %)"
                                                    for name, count in slots.items())
              + f". Bank conflicts, modelled: {entry['late_cycles']} cycles.", wrap=range(2))
        out.print()


def _show(entries: list[dict[str, Any]], gpu: Gpu) -> None:
    for shape in dict.fromkeys(tuple(entry.get("shape", ())) for entry in entries if "parts" in entry):
        chosen = [entry for entry in entries if "parts" in entry and tuple(entry["shape"]) == shape]
        rows = [[what, *(number(100 * entry["parts"][part], 2) for entry in chosen)]
                for part, what in bill.PARTS.items() if any(round(entry["parts"][part], 5) for entry in chosen)]
        rows.append(["sum", *(number(100 * sum(entry["parts"].values()), 2) for entry in chosen)])
        rows.append(["ms", *(number(median(entry["samples_ms"]["as it is"]), 3) for entry in chosen)])
        table(f"M, N, K = {', '.join(map(str, shape))}, {gpu.name}: per cent of the issue slots",
              [("", "left"), *((_short(entry), "right") for entry in chosen)], rows,
              "\n".join(_checks(entry) for entry in chosen))
        out.print()
    for entry in entries:
        if "failed" in entry:
            out.print(f"{entry['kernel']}: {entry['failed']}", markup=False)


def _short(entry: dict[str, Any]) -> str:
    return entry["kernel"] if entry["number"] is None else f"{entry['number']:02}"


def _checks(entry: dict[str, Any]) -> str:
    left, good = bill.verdict(entry["parts"])
    said = f"{_short(entry)}: {100 * left:+.2f} % of the slots not explained" + ("" if good else ", which is too much")
    if "profiler" in entry:
        seen = entry["profiler"]
        said += (f"; ncu: instructions that grow with K {seen['executed_over_predicted']:.4f} of the loop's, FFMAs "
                 f"{seen['ffma_over_predicted']:.4f}, cycles {seen['cycles_over_measured']:.3f}")
    return f"{said}."


if __name__ == "__main__":
    run(command)
