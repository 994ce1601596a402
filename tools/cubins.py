"""Make the cubins that come with the package: every tiled configuration of the committed table and model.

One for each layout and copy width on sm_90, those that carry their sums over, the kernels that add up their partial
sums or lay B out anew, and fp16x3. They are made with the NVRTC at hand, which the index records; ``--check`` compares
names alone and compiles nothing. ``--again`` makes the FFMA kernels of some tiles (or of one variant of a tile, or of
that in one layout and copies of so many floats, as ``:TN44``) anew: ptxas of another release allocates registers
otherwise, for better or worse, so each is shipped from the release that was measured to be the faster one
(docs/experiments.md). Another NVRTC wants a cache folder of its own, ``PEAKGEMM_CACHE_DIR``.

    python tools/cubins.py [--check | --again BMxBNxBK[vV[:LAYOUT]],...]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import product

from rich.progress import Progress

from peakgemm import tuned
from peakgemm.kernels import shipped
from peakgemm.kernels.library import (
    FAMILIES,
    RELAID,
    SPECIALISED,
    Recipe,
    first_recipe,
    recipe,
    reduce_recipe,
    relay_recipe,
)
from peakgemm.kernels.posed import TURNED
from peakgemm.kernels.schemes import (
    FOUR_TIMES,
    FUSED,
    SCHEMES,
    SMALL_BLOCKS,
    STREAMED,
    TWICE,
    carried,
    half_as_high,
    product_on,
    product_recipe,
    small_blocks,
    split_recipe,
    streamed,
    tall,
)
from peakgemm.kernels.schemes import reduce_recipe as tensor_reduce_recipe
from peakgemm.kernels.wide import WIDE
from peakgemm.problem import Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import Compiled, compile_source, in_parallel, nvrtc_version
from peakgemm.sass.placement import pad_of
from peakgemm.select import variants
from peakgemm.tile_model import configurations

ARCH = "sm_90"
MOST_PAD = 1024  # instructions: twice around the cache's sets
# Tiles (BM, BN, BK, cluster) that gain where their loops do not meet in the instruction cache, 1 to 2 %. Others that
# have as long a main loop gain nothing, or lose (docs/experiments.md).
PLACED = {(64, 128, 32, 1), (96, 128, 32, 1)}
# What `--again` may name: all of a tile, one variant, and of that one layout and width of copies.
PATTERNS = "{BM}x{BN}x{BK}", "{BM}x{BN}x{BK}v{VARIANT}", "{BM}x{BN}x{BK}v{VARIANT}:{LAYOUT}"


def problems() -> list[Problem]:
    """One of every specialisation: layouts, and copies of one or four floats along rows."""
    found: dict[tuple[tuple[str, int], ...], Problem] = {}
    for ta, tb, a, b in product((False, True), (False, True), (64, 63), (64, 63)):
        p = Problem(32, 32, 32, a, b, 32, trans_a=ta, trans_b=tb)
        found.setdefault(tuple(sorted(FAMILIES[SPECIALISED].specialisation(p).items())), p)
    return list(found.values())


def wanted() -> dict[str, Recipe]:
    """Every recipe, by the name of its cubin."""
    configs = {config for kernel, config in configurations(ARCH) if kernel is SPECIALISED}
    configs |= {replace(config, split=1) for kernel, config in tuned.table_configurations()
                if kernel in (SPECIALISED.name, RELAID.name)}
    recipes = [make(SPECIALISED, way, problem, ARCH) for config in configs for way in variants(config)
               for problem in problems()
               for make in (recipe, reduce_recipe)]
    recipes += [relay_recipe(problem, ARCH) for problem in problems()]
    recipes += [first_recipe(ARCH)]
    recipes += [make(WIDE, WIDE.default, problems()[0], ARCH) for make in (recipe, reduce_recipe)]
    return {made.name: made for made in recipes + emulated()}


def emulated() -> list[Recipe]:
    """What ``precision="emulated"`` runs: fp16x3's products in each variant, their split pass for each layout, the
    kernels that split in registers for each layout and C^T, tf32x3 in small blocks, and what adds up parts."""
    scheme = SCHEMES["fp16x3"]
    kernel, config = product_on(scheme, architecture(ARCH))
    in_registers = [(FUSED, FUSED.default), *((STREAMED, streamed(columns)) for columns in (64, 128))]
    small = [replace(small_blocks(columns), variant=turned | variant)
             for columns, turned in ((16, 0), (16, TURNED), (32, 0), (32, TURNED), (64, 0))
             for variant in sorted({carried(columns, asked) for asked in (0, TWICE, FOUR_TIMES)})]
    read = [Problem(32, 32, 32, a, b, 32, trans_a=ta, trans_b=tb)
            for ta, tb, a, b in product((False, True), (False, True), (64, 63), (64, 63))]
    return ([product_recipe(kernel, replace(config, variant=variant, cluster=cluster), read[0], ARCH)
             for variant, cluster in ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2))]
            + [product_recipe(kernel, replace(half_as_high(scheme), variant=variant), read[0], ARCH)
               for variant in (0, TWICE, FOUR_TIMES)]
            + [split_recipe(scheme, problem, ARCH) for problem in read]
            + [product_recipe(one, replace(tile, variant=variant | turned),
                              problem.turned() if turned else problem, ARCH)
               for one, tile in in_registers for variant in (0, TWICE, FOUR_TIMES) for turned in (0, TURNED)
               for problem in read]
            + [product_recipe(STREAMED, replace(tall(), variant=turned), problem, ARCH)
               for turned in (0, TURNED) for problem in read[:1]]
            + [product_recipe(SMALL_BLOCKS, tile, problem.turned() if tile.variant & TURNED else problem, ARCH)
               for tile in small for problem in read]
            + [tensor_reduce_recipe(SCHEMES["tf32x3"], tile, ARCH) for tile in small]
            + [tensor_reduce_recipe(scheme, replace(tile, variant=turned), ARCH)
               for tile in (config, FUSED.default, tall()) for turned in (0, TURNED)])


def layout_of(job: Recipe) -> dict[str, str]:
    """``NN`` and so on, and the floats of a copy of A and of B."""
    macros = job.macros
    return {"LAYOUT": "".join("NT"[macros[name]] for name in ("TRANS_A", "TRANS_B")) +
                      f"{macros['WIDTH_A']}{macros['WIDTH_B']}"}


def placed(job: Recipe) -> Compiled:
    """Compiled; some FFMA kernels so that the loop that copies lies well in the instruction cache."""
    pad, made = 0, compile_source(job.text, job.entry, job.arch, job.macros, name=job.file)
    tile = tuple(job.macros.get(name, 0) for name in ("BM", "BN", "BK", "CLUSTER"))
    while (job.entry == SPECIALISED.entry and tile in PLACED and pad < MOST_PAD
           and (more := pad_of(made.code, job.arch))):
        pad += more
        made = compile_source(job.text, job.entry, job.arch, {**job.macros, "PAD": pad}, name=job.file)
    return made


def main() -> None:
    """Compile what is missing, drop what is no longer wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--check", action="store_true")
    does.add_argument("--again", default="", metavar="BMxBNxBK[vV[:LAYOUT]],...")
    args = parser.parse_args()
    jobs = wanted()
    tiles = {name: {pattern.format(**job.macros, **layout_of(job)) for pattern in PATTERNS}
             for name, job in jobs.items() if job.entry == SPECIALISED.entry}
    again, known = set(args.again.split(",")) - {""}, set[str]().union(*tiles.values())
    if unknown := again - known:
        parser.error(f"--again: no tile {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    missing = sorted(name for name in jobs if name not in shipped.index() or tiles.get(name, set()) & again)
    if args.check:
        stale = sorted((shipped.index().keys() | {path.stem for path in shipped.FOLDER.glob("*.xz")}) - jobs.keys())
        if missing or stale:
            sys.exit(f"{len(missing)} cubins missing, {len(stale)} stale; run: make cubins")
        return
    with Progress() as progress:
        task = progress.add_task("compiling", total=len(missing))

        def make(name: str) -> Compiled:
            made = placed(jobs[name])
            progress.advance(task)
            return made

        made = dict(zip(missing, in_parallel(make, missing), strict=True))
    shipped.write(jobs.keys(), {name: (cubin, nvrtc_version()) for name, cubin in made.items()})
    print(f"{len(jobs)} cubins, {len(made)} of them new")


if __name__ == "__main__":
    main()
