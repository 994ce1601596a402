"""The cost models' numbers for this GPU, fitted to times of it (docs/contributing/fit-a-gpu.md).

    python -m lab.profile --minutes 10
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lab.profile import fit as profile_fit
from lab.profile import times as profile_times
from lab.profile.plan import Planned, plan, programs
from lab.profile.stopwatch import BURST_MS, ROUNDS, GpuStopwatch, Stopwatch
from lab.profile.times import Measured, TimedProduct
from lab.runner import run
from peakgemm.cli import parse
from peakgemm.cli.console import out, progress, table
from peakgemm.errors import InvalidValue
from peakgemm.kernels.profile import Machine, Profile
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.device import Gpu
from peakgemm.selection.machine import machine
from peakgemm.selection.tuned import slug
from peakgemm.tools.bench import records
from peakgemm.tools.bench.peers import find_peer
from peakgemm.tools.tune import store

TIMES = "profile-times.json"  # beside the profile that is kept, if nothing else is said
COMPILING, TIMING = 0.6, 0.95  # of the budget: until when kernels are compiled, and products timed
_LAUNCHES_S = 0.02  # a kernel's other launches: the estimate of its time, and a graph's capture
_COMPILE_S = 3.0    # a kernel, on one core: for the plan alone


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; needs no GPU.")] = False,
    minutes: Annotated[float, typer.Option(min=0.1, max=120, help="At most.")] = 10,
    json: Annotated[Path | None, typer.Option(help="Keep the times.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Fit to times kept; no GPU.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the profile here, not into the cache."
                                                )] = None,
    arch: Annotated[str | None, typer.Option(help="With --dry-run: for sm_NN.  [the GPU's, else sm_90]")] = None,
) -> None:
    """Measure, or read times from ``source``; fit; keep the profile for GPUs of that name, or write it to
    ``output``."""
    records.check_writable(json, output)
    records.check_writable(output, source)
    gpu = device.find()
    if dry_run:
        _plan(parse.target(arch, gpu), gpu, minutes)
        return
    if source is not None:
        if json is not None:
            raise InvalidValue("--json keeps times that are measured, --from reads times that were: give one of them")
        record, timed = profile_times.read(source)
        _finish(timed, Gpu(**record["device"]), source.name, records.command(), output)
        return
    gpu = device.require()
    if output is None:
        folder = store.folder(gpu.name)  # refused before the work, not after it
        json = json or folder / TIMES
    versions = find_peer().versions()  # before the operands fill the memory: cuBLAS wants some for its handle
    record = records.record(gpu, gpu.arch, [profile_times.fields_of(_measured(gpu, minutes))], versions=versions)
    if json is not None:
        records.write(json, record)
    source_name = json.name if json is not None else "times that were not kept"
    _finish(profile_times.products(record), gpu, source_name, record["command"], output)


def _measured(gpu: Gpu, minutes: float) -> list[Measured]:
    begun, here = time.monotonic(), machine(gpu.arch, gpu.sm_count, gpu.name)
    planned = plan(here)
    return measure(planned, GpuStopwatch(gpu, here, find_peer()), here, begun, 60 * minutes)


def measure(planned: Sequence[Planned], stopwatch: Stopwatch, here: Machine, begun: float,
            seconds: float) -> list[Measured]:
    """Compile, then time, each until its share of the budget is spent."""
    with progress("compiling", len(programs(planned, here))) as done:
        ready = stopwatch.compile(planned, begun + COMPILING * seconds, done)
    if len(ready) < len(planned):
        out.print(f"{len(ready)} of {len(planned)} products were compiled in time; more with a larger --minutes.")
    with progress("timing", len(ready)) as done:
        return list(profile_times.measure(ready, stopwatch, begun + TIMING * seconds, done))


def _finish(timed: Sequence[TimedProduct], gpu: Gpu, source: str, command_line: str, output: Path | None) -> None:
    """Fit, say what came of it, and keep it."""
    name = output.stem if output is not None else slug(gpu.name)
    profile = profile_fit.made(timed, gpu, name, source, command_line)
    path = store.save_profile(gpu.name, profile, output)
    _tell(profile, path)


def _tell(profile: Profile, path: Path) -> None:
    found = profile.residuals
    lines = [[name, what.replace("_", " "), f"{100 * found[name][what]['median']:.1f} %",
              f"{100 * found[name][what]['p90']:.1f} %"]
             for name in ("ieee", "emulated") if name in found for what in ("model_error", "choice_loss")]
    table(f"Profile {profile.name}: {found['times']} times of {found['products']} products, of which "
          f"{found['held_out']} held out", [("kernels", "left"), ("held out", "left"), ("median", "right"),
                                            ("90th percentile", "right")], lines,
          "model error: modelled over measured time, less 1. choice loss: chosen over the fastest timed, less 1.")
    worth = profile.emulated.worth_share
    out.print('"emulated" takes ' + ("IEEE FFMA: tensor cores did not win" if worth is None else
                                     f"tensor cores from K = {profile.emulated.least_k} on, where they take less than "
                                     f"{worth:.3f} of IEEE's modelled time"), markup=False)
    out.print(f"{path}: written", markup=False, soft_wrap=True)


def _plan(arch: str, gpu: Gpu | None, minutes: float) -> None:
    own = gpu is not None and gpu.arch == arch
    here = machine(arch, gpu.sm_count, gpu.name) if gpu and own else machine(arch, architecture(arch).gpu_sms)
    planned = plan(here)
    rows, kernels = sum(len(one.rows) for one in planned), len(programs(planned, here))
    timing, compiling = rows * (ROUNDS * BURST_MS / 1e3 + _LAUNCHES_S), _COMPILE_S * kernels / (os.cpu_count() or 1)
    out.print(f"For {gpu.name if gpu and own else here.arch.gpu} ({arch}), beginning with the profile "
              f"'{here.profile.name}': {len(planned)} products, {rows} times, {kernels} kernels to compile where they "
              f"are not cached. Timing takes {timing / 60:.1f} minutes, compiling {compiling / 60:.1f} here, both "
              f"estimated. Of {minutes:g} minutes compiling gets {100 * COMPILING:.0f} %; products that it does not "
              "reach are left out.", markup=False)


if __name__ == "__main__":
    run(command)
