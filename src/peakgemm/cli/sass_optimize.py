"""``peakgemm sass optimize``: a rung's main loop built anew, proved, and timed on a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from ..errors import InvalidValue
from ..kernels import validity
from ..kernels.library import compile_for
from ..kernels.registry import LADDER, Kernel, numbers, rungs
from ..problem import Config, Problem, varied
from ..runtime import device
from ..runtime.architectures import architecture
from ..runtime.compile import Compiled
from ..sass.elf import Cubin
from ..sass.facts import static_facts
from ..sass.latency import ARCH
from ..sass.rebuild.loop import Rebuilt, most_registers
from ..sass.rebuild.recipe import Recipe
from ..sass.rebuild.search import Candidate, grid, search
from ..tools.bench import records
from ..tools.bench.rebuilt import contest
from ..tools.inspect.files import SUFFIXES
from . import parse
from .console import number, out, progress, table
from .measuring import measuring

ALIGNED = Problem.contiguous(4096, 4096, 4096)


def command(
    kernel: Annotated[str, typer.Argument(help="A rung, by number or name: 14, cp_async.")],
    size: Annotated[str | None, typer.Option(help="Squares to time at, with a GPU: N or N,N,...  [4096]")] = None,
    recipe: Annotated[str | None, typer.Option(help="This recipe alone: JSON, or a file of it.")] = None,
    guarded: Annotated[bool, typer.Option("--guarded", help="The compilation for any sizes.  [aligned ones]")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the best cubin here.")] = None,
) -> None:
    """Build a main loop anew for sm_90: registers, order, control bits. Nothing is written that is not proved."""
    given = None if recipe is None or recipe.lstrip().startswith("{") else recipe
    records.check_writable(output, given)
    chosen, config = _chosen(kernel, guarded)
    compiled = compile_for(chosen, config, ALIGNED, ARCH)
    recipes = (Recipe.from_json(_json(recipe)),) if recipe else grid()
    limit = most_registers(config.block_threads, config.min_blocks)
    cubin = Cubin.read(compiled.code)
    with progress("building", len(recipes)) as done:
        candidates = search(cubin, recipes, limit, compiled.entry, done)
    gpu = device.find()
    measured_on, peer = measuring(gpu, ARCH)
    built = [one for one in candidates if one.built is not None]
    ratios: dict[int, dict[str, Any]] = {}
    if measured_on is not None and peer is not None:
        variants = {f"recipe {place}": _as(compiled, one.built) for place, one in enumerate(built) if one.built}
        for square, _, _ in parse.shapes(size, None, 4096):
            with progress("timing", len(variants)) as done:
                ratios[square] = dict(contest(chosen, config, compiled, variants, square, measured_on, peer, done))
    best = max(built, key=lambda one: _typical(ratios, built.index(one)))  # of equals, the first
    assert best.built is not None
    _show(chosen, compiled, candidates, best, best.built, ratios)
    if not ratios:
        why = device.reason_without_gpu() if gpu is None else f"no GPU of {ARCH} with a cuBLAS beside it"
        out.print(f"\nProved, not timed, and not compared bit for bit: {why}.")
    if output is not None:
        output.write_bytes(best.built.cubin)
        out.print(f"Cubin written to {output}")


def _chosen(text: str, guarded: bool) -> tuple[Kernel, Config]:
    if text.endswith(SUFFIXES):
        raise InvalidValue(f"{text} is a file, and sass optimize takes a rung ({numbers()}): to time what it builds, "
                           "it must know the launch. A cubin can be audited by peakgemm sass check, looked into by "
                           "peakgemm inspect, and edited in Python by peakgemm.sass.edit (docs/sass.md)")
    named = rungs(text)
    if len(named) != 1:
        raise InvalidValue(f"{text!r} names {len(named)} rungs; name one")
    kernel = named[0]
    if kernel.patched:  # what is optimised is the compiler's
        kernel = next(one for one in LADDER if not one.patched and one.entry == kernel.entry)
    limits = architecture(ARCH)
    config = validity.choose(kernel, kernel.config_for(ARCH), limits, ALIGNED)
    return kernel, varied(config, aligned=False) if guarded else config


def _json(text: str) -> Any:
    try:
        return json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue(f"--recipe {text}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidValue(f"--recipe {text}: no JSON: {error}") from None


def _as(compiled: Compiled, built: Rebuilt) -> Compiled:
    return replace(compiled, code=built.cubin, registers=built.registers, remake=None)


def _typical(ratios: dict[int, dict[str, Any]], place: int) -> float:
    """The geometric mean over the squares, near enough: the product of medians."""
    typical = 1.0
    for by_name in ratios.values():
        typical *= median(by_name[f"recipe {place}"])
    return typical


def _show(kernel: Kernel, compiled: Compiled, candidates: list[Candidate], best: Candidate, built: Rebuilt,
          ratios: dict[int, dict[str, Any]]) -> None:
    names = {id(one): f"recipe {place}" for place, one in enumerate(one for one in candidates if one.built is not None)}
    rows = []
    for one in candidates:
        name = names.get(id(one), "-")
        timed = [number(median(by[name]), 4) if name in by else "-" for by in ratios.values()]
        r = one.recipe
        rows.append([("*" if one is best else " ") + name, _places(r.first), _places(r.offsets), str(r.barrier),
                     number(one.slots, 0) if one.built else one.why, *timed])
    table(f"Recipes for {kernel.label} on {ARCH}", [
        ("", "left"), ("loads of step 1", "left"), ("of others", "left"), ("barrier", "right"), ("slots", "right"),
        *((f"x at {size}", "right") for size in ratios)], rows,
        "Places: FFMAs from the start of a step; the barrier, from that of the last. slots: issue slots of a\n"
        "turn by the model. x: the compiler's time over this one's, median of interleaved pairs; every timed\n"
        "one gives the compiler's bits, with alpha and beta too.")
    before, after = static_facts(compiled.code, ARCH), static_facts(built.cubin, ARCH)
    out.print()
    lines = [("registers a thread", compiled.registers, built.registers),
             ("instructions a turn", before["loop_instructions"], after["loop_instructions"]),
             *((f"of these {kind}", before["classes"][kind], after["classes"][kind]) for kind in before["classes"]
               if before["classes"][kind] or after["classes"][kind]),
             ("FFMA %", _percent(before["ffma_fraction"]), _percent(after["ffma_fraction"])),
             ("cycles an FFMA, by banks", *(number(facts["bank_cycles_per_ffma"], 3) for facts in (before, after))),
             ("accumulators moved %", _percent(before["accumulators_moved"]), _percent(after["accumulators_moved"])),
             ("loads in a row", before["loads_in_a_row"], after["loads_in_a_row"])]
    table("The loop, before and after", [("", "left"), ("compiler", "right"), ("rebuilt", "right")],
          [[name, str(old), str(new)] for name, old, new in lines],
          f"{built.hoisted} instructions left the loop. The code before and behind it is the compiler's.")


def _places(offsets: tuple[int, ...]) -> str:
    """``14+16``: the first place, and the distance of those behind it; all places where they are not even."""
    steps = {after - before for before, after in pairwise(offsets)}
    return f"{offsets[0]}+{steps.pop()}" if len(steps) == 1 else ",".join(map(str, offsets))


def _percent(fraction: float | None) -> str:
    return number(None if fraction is None else 100 * fraction)
