"""What a profile's choice of kernel loses to the best candidate, and a profile fitted to the times of candidates.

    python -m lab.choice measure --seed 1968 --count 200 --minutes 8 --json choice.json [--dry-run]
    python -m lab.choice loss --rows choice.json [--profile mine.json ...]
    python -m lab.choice autotune --rows choice.json --json autotuned.json
    python -m lab.choice fit --rows choice.json [-o mine.json]

`measure` needs a GPU. It compiles in parallel processes, then times the candidates of a product in turns; those near
the fastest are timed again, and of them the second times count. When its minutes are over it keeps what it has. One
product in three is marked as held out: no profile is fitted to it. `loss` and `fit` need no GPU.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from lab.choice.compiling import compile_ahead
from lab.choice.fit import fitted
from lab.choice.loss import loss, spread, summary
from lab.choice.plan import NEAR, Planned, plan, products, programs
from lab.choice.rows import SCHEME, Measured, Row, Rows, fields_of, label, rows_of
from lab.choice.stopwatch import BURST_MS, ROUNDS, Done, GpuStopwatch, Stopwatch
from peakgemm import cli
from peakgemm.cli import parse
from peakgemm.cli.console import out, progress, table
from peakgemm.errors import InvalidValue
from peakgemm.kernels.profile import Machine, Profile
from peakgemm.problem import Problem
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture
from peakgemm.selection.machine import machine_with, profile_of, shipped
from peakgemm.selection.profile_file import read
from peakgemm.selection.tuned import slug
from peakgemm.tools.bench import records
from peakgemm.tools.bench.peers import find_peer
from peakgemm.tools.bench.suites import Case
from peakgemm.tools.tune import store
from peakgemm.tools.tune.search import best

SEED = 1968        # neither that of the published suite (0) nor of others
HELD_OUT = 3       # one product in so many is fitted to nothing
COMPLETE = 0.95    # of a product's candidates, at least, must have been compiled
AGAIN, FINALISTS, AGAIN_ROUNDS = 1.2, 12, 15  # up to so many times the fastest, so many candidates are timed again
COMPILING, TIMING = 0.5, 0.93  # of the minutes: until when kernels are compiled, and products timed
KEEP_EVERY = 20    # products: how often the record is written meanwhile
LEAST = 10         # products that a profile is fitted to
_COMPILE_S, _ROW_S, _PRODUCT_S = 1.0, 0.008, 0.3  # for the dry run: on one core, beside the bursts, beside the rows

log_ = logging.getLogger("peakgemm")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True,
                  context_settings={"help_option_names": ["-h", "--help"]})


def ready(planned: Sequence[Planned], compiled: set[Any], gpu: Machine) -> list[Planned]:
    """Of products nearly all of whose candidates were compiled, those candidates."""
    kept = [replace(product, rows=tuple(row for row in product.rows
                                        if set(programs([replace(product, rows=(row,))], gpu)) <= compiled))
            for product in planned]
    return [each for each, product in zip(kept, planned, strict=True)
            if len(each.rows) >= max(COMPLETE * len(product.rows), 1)]


def times(planned: Sequence[Planned], first: Stopwatch, again: Stopwatch, deadline: float, done: Done
          ) -> Iterator[Measured]:
    """The times of each product's candidates, until a moment of `time.monotonic`. What does not run is left out.

    The least of a hundred noisy times is less than any kernel takes: those near it are timed again, by ``again``.
    """
    for i, product in enumerate(planned):
        if time.monotonic() > deadline:
            return
        try:
            samples = _samples(product.problem, product.rows, first)
            fastest = {scheme: min((median(us) for (kernel, _), us in samples.items()
                                    if kernel.family.scheme is scheme), default=0.0) for scheme in (None, SCHEME)}
            close = {row: median(us) / fastest[row[0].family.scheme] for row, us in samples.items()}
            finalists = sorted((row for row in close if close[row] <= AGAIN), key=close.__getitem__)[:FINALISTS]
            samples |= _samples(product.problem, finalists, again)
        except Exception:  # out of memory, say: the other products still run
            log_.warning("%s does not run", product.case.size, exc_info=True)
            samples = {}
        done(product.case.size)
        if samples:
            yield Measured(product.case, samples, i % HELD_OUT == 0)


def _samples(problem: Problem, rows: Sequence[Row], stopwatch: Stopwatch) -> dict[Row, list[float]]:
    return {row: us for row, us in zip(rows, stopwatch.times(problem, rows), strict=True) if us}


@app.command()
def measure(
    json_: Annotated[Path | None, typer.Option("--json", help="The record.")] = None,
    suite: Annotated[str, typer.Option(help="drawn, or the suites of peakgemm bench.")] = "drawn",
    seed: Annotated[int, typer.Option(help="Of drawn products.")] = SEED,
    count: Annotated[int, typer.Option(min=1, help="Products.")] = 200,
    minutes: Annotated[float, typer.Option(min=0.1, max=120, help="At most.")] = 8,
    near: Annotated[float, typer.Option(min=1, help="Candidates up to so many times the modelled best.")] = NEAR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; needs no GPU.")] = False,
    arch: Annotated[str | None, typer.Option(help="With --dry-run: for sm_NN.  [the GPU's, else sm_90]")] = None,
) -> None:
    """Time every candidate of drawn products."""
    begun, chosen = time.monotonic(), products(suite, seed, count)
    if dry_run:
        _tell_plan(chosen, parse.target(arch, device.find()), near, minutes)
        return
    if json_ is None:
        raise InvalidValue("--json FILE is missing: where the times are kept; or give --dry-run")
    records.check_writable(json_)
    gpu = device.require()
    here = machine_with(profile_of(gpu.arch, gpu.name), gpu.arch, gpu.sm_count, gpu.name)
    peer = find_peer()
    versions = peer.versions()  # before the operands fill the memory: cuBLAS wants some for its handle
    planned = plan(chosen, here, near)
    recipes = programs(planned, here)
    with progress("compiling", len(recipes)) as done:
        compiled = compile_ahead(recipes, begun + 60 * minutes * COMPILING, done)
    compilable = ready(planned, compiled, here)
    compiling_s = time.monotonic() - begun
    measured: list[Measured] = []

    def keep() -> None:
        records.write(json_, records.record(gpu, gpu.arch, [fields_of(measured)], versions=versions))

    try:
        with progress("timing", len(compilable)) as done:
            finalists = GpuStopwatch(gpu, peer, AGAIN_ROUNDS)
            for product in times(compilable, GpuStopwatch(gpu, peer), finalists, begun + 60 * minutes * TIMING, done):
                measured.append(product)
                if len(measured) % KEEP_EVERY == 0:
                    keep()
    finally:
        keep()
    out.print(f"{gpu.name}: {len(measured)} of {len(chosen)} products, {sum(len(each.samples) for each in measured)} "
              f"candidates, {len(recipes)} compilations; {compiling_s:.0f} s of compiling, "
              f"{time.monotonic() - begun - compiling_s:.0f} s of timing. {json_}: written", markup=False,
              soft_wrap=True)


def _tell_plan(chosen: Sequence[Case], arch: str, near: float, minutes: float) -> None:
    here = machine_with(profile_of(arch), arch, architecture(arch).gpu_sms)
    planned = plan(chosen, here, near)
    kernels, candidates_ = len(programs(planned, here)), sum(len(each.rows) for each in planned)
    timing = (candidates_ * (_ROW_S + ROUNDS * BURST_MS / 1e3)
              + len(planned) * (_PRODUCT_S + FINALISTS * (_ROW_S + AGAIN_ROUNDS * BURST_MS / 1e3)))
    cores = os.cpu_count() or 1
    out.print(f"For {arch}: {len(planned)} products, {candidates_} candidates up to {near:g} times the modelled best, "
              f"{kernels} compilations. Compiling takes {_COMPILE_S * kernels / cores / 60:.1f} minutes on {cores} "
              f"processors ({_COMPILE_S * kernels / 16 / 60:.1f} on 16), timing {timing / 60:.1f}, all estimated. Of "
              f"{minutes:g} minutes compiling gets {100 * COMPILING:.0f} %, timing "
              f"{100 * (TIMING - COMPILING):.0f} %.", markup=False)


def _record(path: Path) -> tuple[Mapping[str, Any], list[Rows]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        record["device"]["sm_count"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidValue(f"{path} holds no candidates' times ({error}); make them with: python -m lab.choice measure "
                           "--json FILE") from None
    return record, rows_of(record)


def _machine(profile: Profile, record: Mapping[str, Any]) -> Machine:
    """The GPU that was timed, as it said of itself."""
    gpu = record["device"]
    return replace(machine_with(profile, gpu["arch"], gpu["sm_count"]), mhz=gpu["clock_mhz"],
                   bandwidth=1e3 * gpu["bandwidth_gbs"], l2_bytes=gpu["l2_bytes"])


def _lost(found: Sequence[Rows], machine: Machine) -> dict[str, dict[str, dict[str, float]]]:
    """What is lost on the products that were fitted to, and on those held out."""
    return {what: summary([loss(product, machine) for product in found if product.held_out is held_out])
            for what, held_out in (("fitted to", False), ("held out", True))}


def _tell(losses: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> None:
    lines = [[name, what, precision, f"{spread['count']:.0f}",
              *(f"{100 * spread[value]:.2f} %" for value in ("median", "p90", "mean", "largest"))]
             for name, each in losses.items() for what, some in each.items() for precision, spread in some.items()]
    table("What choices lose", [(name, "left") for name in ("profile", "products", "precision")]
          + [(name, "right") for name in ("count", "median", "90th percentile", "mean", "largest")], lines,
          "Over the fastest candidate that was timed, less 1; mean: geometric.")


@app.command("loss")
def tell_loss(
    rows: Annotated[Path, typer.Option(help="The record of `measure`.")],
    profile: Annotated[list[Path] | None, typer.Option(help="Of a profile's file; several times.")] = None,
    worst: Annotated[int, typer.Option(min=0, help="So many products of the largest losses.")] = 8,
) -> None:
    """What the choices of the shipped profile and of given ones lose to the fastest candidate."""
    record, found = _record(rows)
    machines = {each.name: _machine(each, record) for each in (shipped(), *map(read, profile or ()))}
    _tell({name: _lost(found, machine) for name, machine in machines.items()})
    machine = list(machines.values())[-1]
    losses = [loss(product, machine) for product in found]
    for lost in sorted((each for each in losses if each.ieee > 0), key=lambda each: -each.ieee)[:worst]:
        chosen, best = (f"{label(kernel)} {config.label()}" for kernel, config in (lost.chosen, lost.best))
        out.print(f"{lost.case.size}: {chosen} takes {100 * lost.ieee:.1f} % more than {best}"
                  f"{f'; {lost.passed} that are ranked higher were not timed' if lost.passed else ''}", markup=False,
                  soft_wrap=True)


@app.command("autotune")
def tell_autotuned(
    rows: Annotated[Path, typer.Option(help="The record of `measure`, made on this GPU just before.")],
    json_: Annotated[Path | None, typer.Option("--json", help="The record.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, max=120, help="Search for no further product after so many.")] = 8,
) -> None:
    """What the choices of autotuning lose to the fastest candidate; each product is searched anew."""
    records.check_writable(json_, rows)
    deadline = time.monotonic() + 60 * minutes
    gpu, (_, found) = device.require(), _record(rows)
    losses = {"ieee": list[float](), "emulated": list[float]()}
    untimed = 0
    with progress("autotuning", len(found)) as done:
        for product in found:
            if time.monotonic() > deadline:
                break
            for precision, lost in losses.items():
                row = best(product.problem, gpu, precision)
                among = product.of(tensor=False)[:1] + product.of(tensor=True)[:1 if precision == "emulated" else 0]
                if row in product.us:
                    lost.append(product.us[row] / min(map(product.us.__getitem__, among)) - 1)
                else:
                    untimed += 1
            done(product.case.size)
    spreads = {precision: {"count": len(lost), **spread(lost)} for precision, lost in losses.items() if lost}
    _tell({"autotuned": {"all": spreads}})
    out.print(f"{untimed} choices are none of the candidates that `measure` timed", markup=False)
    if json_ is not None:
        records.write(json_, records.record(gpu, gpu.arch, [{"found": [
            {"name": "autotuned", "precision": precision, **each} for precision, each in spreads.items()]}]))


@app.command("fit")
def tell_fit(
    rows: Annotated[Path, typer.Option(help="The record of `measure`.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the profile here, not into the cache."
                                                )] = None,
) -> None:
    """Fit the shipped profile's numbers to the times of a GPU; keep them for GPUs of that name, or write them."""
    records.check_writable(output, rows)
    record, found = _record(rows)
    if sum(not product.held_out for product in found) < LEAST:
        raise InvalidValue(f"{rows} has {len(found)} products; a profile is fitted to {LEAST} at least, besides those "
                           "held out: give `measure` more --minutes")
    profile = fitted(found, _machine(shipped(), record))
    losses = _lost(found, _machine(profile, record))
    gpu = record["device"]
    profile = replace(profile, name=output.stem if output is not None else slug(gpu["name"]), architecture=gpu["arch"],
                      date=date.today().isoformat(), source=rows.name, command=records.command(), residuals=losses)
    _tell({profile.name: losses})
    out.print(f"{store.save_profile(gpu['name'], profile, output)}: written", markup=False, soft_wrap=True)


if __name__ == "__main__":
    cli.run(app)
