"""What a profile's choice of kernel loses to the best candidate, from the times of every candidate of drawn products.

    python -m lab.choice measure --seed 1968 --count 200 --minutes 8 --json choice.json [--raw raw.json] [--dry-run]
    python -m lab.choice loss --rows choice.json [--profile mine.json ...]

`measure` needs a GPU. It compiles in parallel processes, then times the candidates of a product in turns; those near
the fastest are timed again, and of them the second times count. When its minutes are over it keeps what it has. One
product in three is marked as held out: no profile is fitted to it. `loss` needs no GPU.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from lab.profile import times as profile_times
from lab.profile.fit import spread
from lab.profile.plan import KERNELS, Planned, label, programs, shapes
from lab.profile.stopwatch import BURST_MS, ROUNDS, Done, GpuStopwatch, Row, Stopwatch
from peakgemm import cli
from peakgemm.cli import parse
from peakgemm.cli.console import out, progress, table
from peakgemm.errors import InvalidValue, PeakgemmError
from peakgemm.kernels.emulated.model import simplest
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.profile import Machine, Profile
from peakgemm.kernels.recipe import Recipe
from peakgemm.problem import Problem, varied
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture
from peakgemm.selection.choose import Candidate, candidates
from peakgemm.selection.machine import GENERIC, machine_with, profile_of, shipped
from peakgemm.selection.profile_file import read
from peakgemm.tools.bench import records
from peakgemm.tools.bench.peers import find_peer
from peakgemm.tools.bench.suites import Case, cases, suites

SEED = 1968        # neither that of the published suite (0) nor of the products that profiles were fitted to (2026)
HELD_OUT = 3       # one product in so many is fitted to nothing
NEAR = 5.0         # times the modelled best: what is modelled to be slower is not timed
COMPLETE = 0.95    # of a product's candidates, at least, must have been compiled
LEAST_K = 32       # of products that are timed on tensor cores too
AGAIN, FINALISTS, AGAIN_ROUNDS = 1.2, 12, 15  # up to so many times the fastest, so many candidates are timed again
COMPILING, TIMING = 0.5, 0.93  # of the minutes: until when kernels are compiled, and products timed
KEEP_EVERY = 20    # products: how often the record is written meanwhile
_COMPILE_S, _ROW_S, _PRODUCT_S = 1.0, 0.008, 0.3  # for the dry run: on one core, beside the bursts, beside the rows
_SCHEME = SCHEMES["fp16x3"]

log_ = logging.getLogger("peakgemm")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True,
                  context_settings={"help_option_names": ["-h", "--help"]})


def unruled(profile: Profile) -> Profile:
    """``profile`` without the rules that keep a candidate from being compared: all that are valid are."""
    tiles = tuple(replace(tile, least_steps=0, most_steps=None) for tile in profile.tiles)
    return replace(
        profile, tiles=tiles,
        tiled=replace(profile.tiled, crowded_share=1.0, one_slice_k=0),
        sharing=replace(profile.sharing, whole_share=2.0, least_range_steps=1, most_range_steps=1 << 30,
                        least_cluster_steps=2),
        wide=replace(profile.wide, least_tiles_factor=0.0, short_factor=1.0, medium_factor=1.0),
        small=replace(profile.small, beyond_l2_share=2.0, one_k=64, few_k=64),
        skinny=replace(profile.skinny, beyond_l2_share=2.0))


def products(suite: str, seed: int, count: int) -> list[Case]:
    """Products to time: drawn ones that are in no suite, or the cases of a suite."""
    found = shapes(seed) if suite == "drawn" else (case for some in suites(suite).values() for case in some)
    return list(islice(found, count))


def plan(chosen: Iterable[Case], gpu: Machine, near: float = NEAR) -> list[Planned]:
    """Every candidate of FFMAs and of tensor cores for each product, but for those modelled to be far from the best."""
    gpu = replace(gpu, profile=unruled(gpu.profile))
    return [Planned(case, case.problem()[0], tuple(_rows(case.problem()[0], gpu, near))) for case in chosen]


def _rows(problem: Problem, gpu: Machine, near: float) -> Iterator[Row]:
    for scheme in (None, _SCHEME) if problem.k >= LEAST_K and gpu.arch.has_cp_async else (None,):
        ranked = candidates(problem, gpu, scheme)
        yield from ((kernel, config) for kernel, config, us in ranked if us <= near * ranked[0].us)


def compile_ahead(recipes: Sequence[Recipe], deadline: float, done: Done) -> None:
    """Fill the compile cache in parallel processes, until a moment of `time.monotonic`."""
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn"), log_.setLevel, (logging.ERROR,)) as pool:
        jobs = [pool.submit(_compile, recipe) for recipe in recipes]
        for job in jobs:
            job.add_done_callback(lambda job: done("compiled"))
        wait(jobs, max(deadline - time.monotonic(), 0))
        pool.shutdown(wait=False, cancel_futures=True)


def _compile(recipe: Recipe) -> None:
    with suppress(PeakgemmError):  # met again where the recipe is needed
        recipe.make("cubin")


@dataclass(frozen=True, slots=True)
class Measured:
    """A product with the microseconds of its candidates: of all rounds, those of the second time where there was one.
    """

    case: Case
    samples: Mapping[Row, Sequence[float]]
    held_out: bool


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
                                    if kernel.family.scheme is scheme), default=0.0) for scheme in (None, _SCHEME)}
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


def fields_of(measured: Sequence[Measured]) -> dict[str, Any]:
    """The fields of a record. ``programs``: configurations with K unshared, once; of each product, for each program
    (its index, as text): parts of K and median microseconds, in turn."""
    index: dict[Row, int] = {}
    rows = []
    for product in measured:
        by_program: dict[str, list[float]] = {}
        for (kernel, config), samples in product.samples.items():
            program = index.setdefault((kernel, varied(config, split=1)), len(index))
            by_program.setdefault(str(program), []).extend((config.split, float(f"{median(samples):.4g}")))
        rows.append({"candidates": by_program, "held_out": product.held_out, **_named(product.case)})
    return {"programs": [{"kernel": label(kernel), "config": config.set_fields()} for kernel, config in index],
            "rungs": rows}


def _named(case: Case) -> dict[str, Any]:
    return {"shape": [case.m, case.n, case.k], "layout": case.layout, "batch": case.batch}


@dataclass(frozen=True, slots=True)
class Rows:
    """A product with the median microseconds of its candidates."""

    case: Case
    problem: Problem
    us: Mapping[Row, float]
    held_out: bool


def rows_of(record: Mapping[str, Any]) -> list[Rows]:
    """The products of a record of `measure`.

    Raises:
        InvalidValue: it is no such record, or names a kernel or a field of a configuration that is none any more.
    """
    try:
        programs_ = [(KERNELS[each["kernel"]], KERNELS[each["kernel"]].read(each["config"]))
                     for each in record["programs"]]
        found = []
        for row in record["rungs"]:
            m, n, k = row["shape"]
            (case,) = cases(f"{m}x{n}x{k}:{row['layout']}*{row['batch']}")
            us: dict[Row, float] = {}
            for program, flat in row["candidates"].items():
                kernel, config = programs_[int(program)]
                us |= {(kernel, varied(config, split=split) if split != config.split else config): each
                       for split, each in zip(flat[::2], flat[1::2], strict=True)}
            found.append(Rows(case, case.problem()[0], us, row["held_out"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"these are no candidates' times of this version ({type(error).__name__}: {error}); measure "
                           "them anew with: python -m lab.choice measure --json FILE") from None
    return found


@dataclass(frozen=True, slots=True)
class Loss:
    """What the choices of a profile lose for a product: the time of each over the fastest that was timed, less 1.
    ``passed``: what the models rank higher than any candidate that was timed."""

    case: Case
    ieee: float
    scheme: float | None    # of a scheme that is named
    emulated: float | None  # of precision="emulated", which takes a scheme or FFMA
    chosen: str
    best: str
    passed: int


def loss(product: Rows, gpu: Machine) -> Loss:
    """What the choices of the profile of ``gpu`` lose."""
    best_ieee = _fastest(product, tensor=False)
    ranked = candidates(product.problem, gpu)
    chosen, passed = _first(ranked, product)
    ieee = product.us[chosen[:2]] / product.us[best_ieee]
    names = _words(chosen[:2]), _words(best_ieee)
    if not any(kernel.family.scheme for kernel, _ in product.us):
        return Loss(product.case, ieee - 1, None, None, *names, passed)
    tensor = candidates(product.problem, gpu, _SCHEME)
    known = [each for each in tensor if each[:2] in product.us] or [_first(tensor, product)[0]]
    kernel, config, us = simplest(known, gpu)
    best_tensor = _fastest(product, tensor=True)
    numbers = gpu.profile.emulated
    takes = (numbers.worth_share is not None and us < numbers.worth_share * chosen.us
             and product.problem.k >= max(64, numbers.least_k))
    taken, least = (kernel, config) if takes else chosen[:2], min(product.us[best_ieee], product.us[best_tensor])
    return Loss(product.case, ieee - 1, product.us[kernel, config] / product.us[best_tensor] - 1,
                product.us[taken] / least - 1, *names, passed)


def _fastest(product: Rows, tensor: bool) -> Row:
    return min((row for row in product.us if (row[0].family.scheme is not None) is tensor), key=product.us.__getitem__)


def _first(ranked: Sequence[Candidate], product: Rows) -> tuple[Candidate, int]:
    """The first candidate that was timed, and how many are ranked higher."""
    for i, candidate in enumerate(ranked):
        if candidate[:2] in product.us:
            return candidate, i
    tensor = ranked[0].kernel.family.scheme is not None
    slowest = max((row for row in product.us if (row[0].family.scheme is not None) is tensor),
                  key=product.us.__getitem__)  # a profile whose candidates are all others
    return Candidate(*slowest, ranked[0].us), len(ranked)


def _words(row: Row) -> str:
    return f"{label(row[0])} {row[1].label()}"


@app.command()
def measure(
    json_: Annotated[Path | None, typer.Option("--json", help="The record.")] = None,
    raw: Annotated[Path | None, typer.Option(help="A second one, with every round, for lab.profile.")] = None,
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
    records.check_writable(raw, json_)
    gpu = device.require()
    here = machine_with(profile_of(gpu.arch, gpu.name, own=False), gpu.arch, gpu.sm_count, gpu.name)
    peer = find_peer()
    versions = peer.versions()  # before the operands fill the memory: cuBLAS wants some for its handle
    planned = plan(chosen, here, near)
    recipes = list(programs(planned, here).values())
    deadline = begun + 60 * minutes * COMPILING
    with progress("compiling", len(recipes)) as done:
        compile_ahead(recipes, deadline, done)
    watch = GpuStopwatch(gpu, here, peer)
    cached = watch.compile(planned, time.monotonic() + 30, lambda what: None)
    wanted = {each.case: COMPLETE * len(each.rows) for each in planned}
    ready = [each for each in cached if len(each.rows) >= wanted[each.case]]
    compiled = time.monotonic() - begun
    measured: list[Measured] = []

    def keep() -> None:
        records.write(json_, records.record(gpu, gpu.arch, [fields_of(measured)], versions=versions))
        if raw is not None:
            rounds = [(each.case, [(*row, list(us)) for row, us in each.samples.items()]) for each in measured]
            records.write(raw, records.record(gpu, gpu.arch, [profile_times.fields_of(rounds)], versions=versions))

    try:
        with progress("timing", len(ready)) as done:
            finalists = GpuStopwatch(gpu, here, peer, AGAIN_ROUNDS)
            for product in times(ready, watch, finalists, begun + 60 * minutes * TIMING, done):
                measured.append(product)
                if len(measured) % KEEP_EVERY == 0:
                    keep()
    finally:
        keep()
    out.print(f"{gpu.name}: {len(measured)} of {len(chosen)} products, {sum(len(each.samples) for each in measured)} "
              f"candidates, {len(recipes)} compilations; {compiled:.0f} s of compiling, "
              f"{time.monotonic() - begun - compiled:.0f} s of timing. {json_}: written", markup=False, soft_wrap=True)


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


@app.command("loss")
def tell_loss(
    rows: Annotated[Path, typer.Option(help="The record of `measure`.")],
    profile: Annotated[list[Path] | None, typer.Option(help="Of a profile's file; several times.")] = None,
    worst: Annotated[int, typer.Option(min=0, help="So many products of the largest losses.")] = 8,
) -> None:
    """What the choices of the shipped profile, the generic one and given ones lose to the fastest candidate."""
    try:
        record = json.loads(rows.read_text(encoding="utf-8"))
        gpu = record["device"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidValue(f"{rows} holds no candidates' times ({error}); make them with: python -m lab.choice measure "
                           "--json FILE") from None
    found = rows_of(record)
    profiles = {"shipped": profile_of(gpu["arch"], gpu["name"], own=False), "generic": shipped(GENERIC),
                **{path.stem: read(path) for path in profile or ()}}
    lines, losses = [], list[Loss]()
    for name, each in profiles.items():
        machine = machine_with(each, gpu["arch"], gpu["sm_count"], gpu["name"])
        for what, held_out in (("fitted to", False), ("held out", True)):
            losses = [loss(product, machine) for product in found if product.held_out is held_out]
            lines += [[name, what, *line] for line in _summary(losses)]
        losses = [loss(product, machine) for product in found]
    table("What choices lose", [(name, "left") for name in ("profile", "products", "precision")]
          + [(name, "right") for name in ("count", "median", "90th percentile", "mean", "largest")], lines,
          "Over the fastest candidate that was timed, less 1; mean: geometric.")
    for lost in sorted((each for each in losses if each.ieee > 0), key=lambda each: -each.ieee)[:worst]:
        out.print(f"{lost.case.size}: {lost.chosen} takes {100 * lost.ieee:.1f} % more than {lost.best}"
                  f"{f'; {lost.passed} that are ranked higher were not timed' if lost.passed else ''}", markup=False,
                  soft_wrap=True)


def _summary(losses: Sequence[Loss]) -> Iterator[list[str]]:
    for precision in ("ieee", "scheme", "emulated"):
        values = [value for each in losses if (value := getattr(each, precision)) is not None]
        if values:
            of = spread(values)
            mean = exp(sum(log(1 + value) for value in values) / len(values)) - 1
            yield [precision, str(len(values)), *(f"{100 * x:.2f} %" for x in (of["median"], of["p90"], mean,
                                                                               max(values)))]


if __name__ == "__main__":
    cli.run(app)
