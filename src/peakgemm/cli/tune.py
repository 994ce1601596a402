"""``peakgemm tune``: the fastest configuration of each shape, kept where it beats the default."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from ..errors import InvalidValue
from ..runtime import device
from ..runtime.architectures import architecture
from ..runtime.device import Gpu
from ..selection import tuned
from ..tools.bench.peers import find_peer
from ..tools.bench.suites import NAMES, Case, distinct, groups
from ..tools.bench.timer import Timer
from ..tools.tune import search, store
from ..tools.tune.halving import Outcome, estimate_s
from ..tools.tune.space import KEEP, candidates, compilations
from . import parse
from .console import err, number, out, progress, table
from .measuring import chosen_for

COMPILE_S = 2.0  # a kernel, on one core: for the estimate alone


def command(
    suite: Annotated[str | None, typer.Option(help=f"all, or some of {', '.join(NAMES)}.")] = None,
    shape: Annotated[str | None, typer.Option(help="MxNxK[:layout][*batch], or several.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; needs no GPU.")] = False,
    seconds: Annotated[float, typer.Option(min=0.05, max=60, help="Of timing, for each finalist.")] = search.SECONDS,
    keep: Annotated[int, typer.Option(min=1, max=1000, help="Candidates a shape, the model's best.")] = KEEP,
    again: Annotated[bool, typer.Option("--again", help="Shapes that are tuned already, too.")] = False,
    arch: Annotated[str | None, typer.Option(help="With --dry-run: for sm_NN.  [the GPU's, else sm_90]")] = None,
) -> None:
    """Search the tile space for each shape; keep what beats the default."""
    cases = distinct(groups(suite, shape))
    if not cases:
        raise InvalidValue(f"nothing to tune: give --suite (all, {', '.join(NAMES)}) or --shape MxNxK[:layout]")
    if arch and not dry_run:
        raise InvalidValue("--arch goes with --dry-run: a search times on the GPU at hand; leave it out")
    gpu = device.find()
    if dry_run:
        target = parse.target(arch, gpu)
        _plan(cases, target, gpu if gpu and gpu.arch == target else None, seconds, keep, again)
        return
    gpu = device.require()
    left = [case for case in cases if again or tuned.entry(gpu.name, tuned.key(case.problem()[0])) is None]
    if len(left) < len(cases):
        out.print(f"{len(cases) - len(left)} of {len(cases)} shapes are tuned already; --again tunes them again.")
    failed = _tune(left, gpu, seconds, keep) if left else 0
    if failed:
        raise typer.Exit(1)


def _tune(cases: Sequence[Case], gpu: Gpu, seconds: float, keep: int) -> int:
    """Tune each; how many failed. A line a shape as it is decided, since a search is often cut short."""
    store.folder(gpu.name)  # refused before the work, not after it
    peer = find_peer()
    timer = Timer(peer, seconds)
    failed = 0
    with progress("tuning", len(cases)) as done:
        for case in cases:
            try:
                outcome = search.tune(case.problem()[0], gpu, peer, timer, seconds=seconds, keep=keep)
                out.print(_line(case, outcome), soft_wrap=True)
            except Exception as error:  # out of memory, or a launch refused: the other shapes still can
                failed += 1
                err.print(f"Failed: {case.name}: {type(error).__name__}: {error}", soft_wrap=True)
            done(case.name)
    return failed


def _line(case: Case, outcome: Outcome) -> str:
    what = case.name if case.name == case.size else f"{case.name} ({case.size})"
    if outcome.best is None:
        return f"{what}: {outcome.winner.label} stays; no other ran"
    ratio = f"{outcome.ratio:.3f} ({outcome.spread[0]:.3f}-{outcome.spread[1]:.3f})"
    return (f"{what}: {outcome.winner.label}, {ratio} of the default's speed" if outcome.replaced else
            f"{what}: {outcome.winner.label} stays; best of {outcome.timed} others {ratio}")


def _plan(cases: Sequence[Case], arch: str, gpu: Gpu | None, seconds: float, keep: int, again: bool) -> None:
    lines, total, programs = [], 0.0, set()
    for case in cases:
        ranked = candidates(case.problem()[0], arch, *chosen_for(gpu, arch), keep)
        takes = estimate_s(ranked, seconds)
        there = gpu is not None and not again and tuned.entry(gpu.name, tuned.key(case.problem()[0])) is not None
        if not there:
            total += takes
            programs |= compilations(case.problem()[0], ranked)
        lines.append([case.name, str(len(ranked) - 1), ranked[0].label, number(ranked[0].us, 0),
                      "tuned" if there else number(takes, 0)])
    table(f"What tune would time on {gpu.name if gpu else architecture(arch).gpu} ({arch})", [
        ("case", "left"), ("others", "right"), ("default", "left"), ("model us", "right"), ("s", "right"),
    ], lines, "others: candidates beside the default, the model's best. s: of timing, estimated.")
    compiling = COMPILE_S * len(programs) / (os.cpu_count() or 1)
    out.print(f"{len(cases)} shapes: {total / 60:.1f} minutes of timing, estimated; {len(programs)} kernels to compile "
              f"where they are not cached, {compiling / 60:.1f} minutes here.")
