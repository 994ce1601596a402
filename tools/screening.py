"""How well static figures rank configurations: from the screenings of the FFMA kernel and the tuned table; no GPU.

    python tools/screening.py [--write | --check | --compile COUNT]

Prints what stands between the markers of docs/experiments.md; ``--write`` puts it there. ``--check`` compares, and asks
for each figure that the section takes from a record. ``--compile`` compiles the first so many configurations of 4096
anew, from today's text with the NVRTC at hand, and ranks by the facts of these cubins: minutes of all processors.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from peakgemm import select, tile_model, tuned
from peakgemm.bench.suites import SUITES
from peakgemm.kernels.even_share import shared_bytes
from peakgemm.kernels.library import FAMILIES, RELAID, SPECIALISED, kernel_named, recipe
from peakgemm.kernels.validity import ends_together, is_valid
from peakgemm.kernels.wide import WIDE
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.device import Gpu
from peakgemm.sass.facts import static_facts
from peakgemm.tune.space import KEEP

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]
(RECORD, BENCH, RUNGS, TILES, COPIES, START, PAIRS, TIMES, ALL, SMALL, SHORT, PARTS, THIN, SHARE, WAVES, LINES,
 TOGETHER, UNSEEN, UNSEEN_BEFORE) = (
    ROOT / "results" / "h100" / f"{name}.json" for name in (
        "screening-ffma", "bench-ieee", "experiments-rungs", "experiments-tiles", "experiments-copies",
        "experiments-start", "experiments-pairs", "model-times", "model-ranks", "experiments-small",
        "experiments-short-k", "experiments-parts", "experiments-thin", "experiments-share", "experiments-waves",
        "experiments-lines", "experiments-together",
        "unseen", "unseen-before"))
ACCURACY, ACCURACY_BEFORE = (RECORD.with_name(f"accuracy-{name}.json") for name in ("compensation", "before"))
PAGE = ROOT / "docs" / "experiments.md"
MARKS = "<!-- screening -->\n", "<!-- /screening -->\n"
ARCH, SMS = "sm_90", 132
H100 = Gpu(0, "NVIDIA H100 80GB HBM3", ARCH, SMS, 1980, 3352.3, 50 << 20, "13.0")
_WALK = 7  # bits of a variant
LEAST = 8  # rows of a tile, for a rank correlation to say anything


def rows_of(record: Row) -> list[Row]:
    """The rows of a screening, each with its ``shape``."""
    return [{**row, "shape": run["shape"]} for run in record["runs"] for row in run["rungs"]]


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Rank correlation, equal values sharing their mean rank; None where either is constant."""
    a, b = _ranks(xs), _ranks(ys)
    mean = (len(a) - 1) / 2
    cov, va, vb = (sum((x - mean) * (y - mean) for x, y in zip(p, q, strict=True)) for p, q in ((a, b), (a, a), (b, b)))
    return cov / (va * vb) ** 0.5 if va and vb else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def cycles(row: Row) -> float:
    """Modelled issue cycles an FFMA, register-bank conflicts included."""
    return float(row["bank_cycles_per_ffma"])


def registers(row: Row) -> float:
    """What a computing thread has: ptxas's figure, or what the file dealt anew gives it."""
    return float(row["config"].get("registers") or row["registers"])


def combined(row: Row) -> float:
    """Issue cycles of a scheduler's main loops, for each FFMA that the product asks: those of its FFMAs, one for each
    other instruction, for the work with what tiles reach past the edges and, where K is not shared, with idle SMs."""
    config, (m, n, _) = Config(**row["config"]), row["shape"]
    tiles, slots = -(-m // config.bm) * -(-n // config.bn), SMS * config.min_blocks
    turns = tiles if config.split == 0 else -(-tiles * config.split // slots) * slots / config.split
    return float((cycles(row) + 1 / row["ffma_fraction"] - 1) * turns * config.bm * config.bn / (m * n))


PREDICTORS: dict[str, Callable[[Row], float]] = {
    "cycles an FFMA": cycles, "registers": registers, "combined": combined,
}


def with_facts(rows: Iterable[Row], size: int = 4096) -> list[Row]:
    """Rows of a square that hold the facts of the cubin that was timed."""
    return [row for row in rows if row["shape"] == [size] * 3 and row.get("bank_cycles_per_ffma")]


def correlations(rows: Sequence[Row]) -> list[tuple[str, int, list[float | None]]]:
    """Group, rows, and the correlation of each predictor with the measured time: all, without spills, each tile.

    Every row of a size has the same baseline, so that times are ranked as 1 / ratio.
    """
    groups = {"all": list(rows), "no spills": [row for row in rows if not row["spill_bytes"]]}
    for row in rows:
        groups.setdefault(f"screening: {row['screening']}", []).append(row)
        groups.setdefault(f"layout {row['layout']}", []).append(row)
    for row in rows:
        groups.setdefault("{bm}x{bn}x{bk} / {tm}x{tn}".format(**row["config"]), []).append(row)
    return [(name, len(own), [_rho(own, predict) for predict in PREDICTORS.values()])
            for name, own in groups.items() if len(own) >= LEAST]


def _rho(rows: Sequence[Row], predict: Callable[[Row], float]) -> float | None:
    return spearman([predict(row) for row in rows], [1 / row["ratio_to_cublas"] for row in rows])


def picked(rows: Sequence[Row], predict: Callable[[Row], float], keep: int = 1) -> float:
    """Speed of the best of the ``keep`` that a model names first, over the fastest of ``rows``; of equals, the
    slowest come first."""
    first = sorted(rows, key=lambda row: (predict(row), row["ratio_to_cublas"]))[:keep]
    return float(max(row["ratio_to_cublas"] for row in first) / max(row["ratio_to_cublas"] for row in rows))


def problem(shape: Sequence[int], layout: str = "NN", batch: int = 1) -> Problem:
    """The aligned, packed product of a row."""
    (m, n, k), (ta, tb) = shape, (letter == "T" for letter in layout)
    repeat = Batch((batch,), (m * k,), (k * n,), (m * n,), (m * n,)) if batch > 1 else Batch()
    return Problem(m, n, k, m if ta else k, k if tb else n, n, trans_a=ta, trans_b=tb, batch=repeat)


def estimate(row: Row) -> float:
    """`tile_model.estimate_us` of a row's configuration; with operands laid out anew what `select.candidates` says of
    its tile, whose variant may have been another when it was timed."""
    config, asked = Config(**row["config"]), problem(row["shape"], row["layout"], row.get("batch", 1))
    if row.get("kernel") in (RELAID.name, WIDE.name):
        return next(us for kernel, one, us in select.candidates(asked, ARCH, SMS)
                    if kernel.name == row["kernel"] and replace(one, variant=0) == replace(config, variant=0))
    return tile_model.estimate_us(config, asked, architecture(ARCH), SMS)



def table(rows: Sequence[Row]) -> str:
    """The correlations, and the speed of what each predictor names first, over the fastest."""
    lines = [f"| configurations | number | {' | '.join(PREDICTORS)} |", "|---|---:|" + "---:|" * len(PREDICTORS)]
    for name, count, found in correlations(rows):
        lines.append(f"| {name} | {count} | {' | '.join('' if rho is None else f'{rho:.2f}' for rho in found)} |")
    for keep, words in ((1, "first"), (KEEP, f"best of the first {KEEP}")):
        named = (f"{picked(rows, predict, keep):.3f}" for predict in PREDICTORS.values())
        lines.append(f"| speed of the model's {words}, over the fastest | | {' | '.join(named)} |")
    return "\n".join(lines) + "\n"


def others(rows: Sequence[Row]) -> str:
    """The combined figure at sizes with few rows."""
    found = ((size, with_facts(rows, size)) for size in sorted({row["shape"][0] for row in rows} - {4096}))
    return "Combined, at sizes with few configurations, which were taken for being fast at 4096 or small: " + "; ".join(
        f"{size}: {_figure(_rho(own, combined))} ({len(own)})" for size, own in found if own) + ".\n"


def entries(device: str) -> list[tuple[Row, float, int, int]]:
    """Of the committed table: entry, modelled time of its configuration over the model's least, its place in the
    model's ranking (from 0), candidates."""
    found = []
    for key, entry in json.loads((tuned.TABLES / f"{tuned.slug(device)}.json").read_text())["entries"].items():
        layout, shape, batch, _ = key.split("-")
        asked = problem([int(size) for size in shape.split("x")], layout, int(batch[1:]))
        assert tuned.key(asked) == key, key
        ranked = select.candidates(asked, ARCH, SMS)
        wanted = entry["kernel"], Config(**entry["config"])
        place = next(i for i, (kernel, config, _) in enumerate(ranked) if (kernel.name, config) == wanted)
        found.append((entry, ranked[place][2] / ranked[0][2], place, len(ranked)))
    return found


def choices(rows: Sequence[Row], device: str, bench: Sequence[Row]) -> str:
    """What can be told of `tile_model.estimate_us` without a GPU."""
    known = entries(device)
    gains = sorted(entry["ratio"] for entry, *_ in known)
    untuned = [row for row in bench if row["source"] == "heuristic"]
    now = [select.candidates(problem(row["shape"], row["layout"], row["batch"]), ARCH, SMS)[0] for row in untuned]
    same = sum((kernel.name, config) == (row["kernel"], Config(**row["config"]))
               for row, (kernel, config, _) in zip(untuned, now, strict=True))
    tiled = [row for row in bench if row["kernel"] in (SPECIALISED.name, RELAID.name, WIDE.name)]
    off = sorted(estimate(row) / microseconds(row) for row in tiled)
    tenth = len(off) // 10
    lines = [
        f"- The committed table has {len(known)} shapes on which the tuner's best beat the default of its day, by "
        f"{median(gains):.3f} in the median, {gains[-1]:.3f} at most; {sum(g <= 1.05 for g in gains)} of them by at "
        f"most 5 %. Today's model names the tuned configuration itself for {sum(not p for _, _, p, _ in known)}, has "
        f"it among its first two for {sum(p < 2 for _, _, p, _ in known)} and among its first seven for "
        f"{sum(p < 7 for _, _, p, _ in known)}; it gives it at most {max(over for _, over, *_ in known):.2f} times "
        f"its least time.",
        f"- Of {len(bench)} measured shapes {len(untuned)} ran what the model named, and today's model names the same "
        f"for {same}.",
        f"- Modelled over measured time of {len(tiled)} tiled products: {median(off):.2f} in the median, "
        f"{off[tenth]:.2f} to {off[-1 - tenth]:.2f} from the 10th to the 90th percentile; rank correlation "
        f"{_figure(spearman([estimate(row) for row in tiled], [microseconds(row) for row in tiled]))}, over shapes "
        f"whose times span {min(map(microseconds, tiled)):.0f} to {max(map(microseconds, tiled)):.0f} us, which any "
        f"count of operations would nearly reach. The model's rates were measured on the same GPU: this is a fit, no "
        f"prediction.",
        fitted(TIMES, "fitted to", "Its constants were fitted to {times} times of {shapes} shapes, drawn and of the "
                                   "suites, each with up to twelve candidates"),
        fitted(ALL, "fitted to, all", "And to {times} times of {shapes} shapes, each with all of its candidates"),
        fitted(LINES, "candidates",
               "Rates of tiles below 128 x 256 were fitted anew to drawn shapes, then scaled by what tiles gained, and "
               "four of them fitted to times of 336 more, of which {times} times of {shapes} shapes are not of tiles "
               "that end otherwise since"),
        fitted(TOGETHER, "candidates",
               "Those of tiles that end together, and what that takes, to {times} times of {shapes} shapes, the "
               "model's first of each such tile and up to three others", together=True),
        fitted(ALL, "held out",
               "To {times} times of {shapes} shapes, all candidates of each, no constant had been fitted before"),
        fitted(SMALL, "small, the smaller operand by way of L1",
               "For small and thin products: {times} times of {shapes} shapes that its constants were fitted to, with "
               "every tile of that kernel and the best candidate of others"),
        fitted(SHORT, "all tiles",
               "And with any short K: {times} times of {shapes} shapes, drawn or such that cuBLAS had been faster"),
        fitted(SHARE, "every tile, short K", "And to {times} times of {shapes} more, with blocks dealt evenly"),
        fitted(SHARE, "drawn, short K",
               "And to {times} times of {shapes} drawn shapes with K from 6 to 110, the model's first tiles of that "
               "kernel and of others"),
        fitted(PARTS, "36 to 64 k-steps",
               "Its rates with more than 32 k-steps also to {times} times of {shapes} problems with up to 64"),
        fitted(PARTS, "50 to 256 k-steps", "And to {times} times of {shapes} with up to 256, batches mostly"),
        fitted(PARTS, "16 to 128 k-steps", "And to {times} times of {shapes} with 16 to 128"),
        fitted(PARTS, "two models",
               "And to {times} times of {shapes} drawn ones, of which two models had named different configurations"),
        fitted(THIN, "fitted to",
               "For products with up to 16 rows or columns: {times} times of {shapes} drawn ones that its constants "
               "were fitted to, with every configuration of that kernel"),
        fitted(THIN, "held out", "To {times} times of {shapes} more, drawn as well, none was fitted"),
        fitted(THIN, "suites", "Nor to {times} times of {shapes} of the suites and their like"),
        fitted(THIN, "first of the model before",
               "Beside other kernels, {times} times of {shapes} that those were fitted to"),
        fitted(THIN, "other kernels",
               "And {times} times of {shapes} drawn ones that other kernels compute, none fitted"),
        "- Modelled against measured time of tiles and splits of an earlier text, one size each, with rates of "
        "the same tiles today or 0.5: " + "; ".join(
            f"{size}: {_figure(spearman([estimate(r) for r in own], [microseconds(r) for r in own]))} "
            f"({len(own)} configurations, named first {picked(own, estimate):.2f} of the fastest)"
            for size, own in _earlier(rows)) + ".",
    ]
    return "\n".join(lines) + "\n"


@cache  # most of what the page takes to reckon
def fitted(path: Path, screening: str, what: str, together: bool = False) -> str:
    """What the model makes of the times that its constants were fitted to: the choice among what was timed of each
    problem of a screening. Left out is what was timed before blocks were dealt evenly and is launched otherwise now,
    and tiles that slices share and end ``together`` where they were timed before they did; the walks of those were
    chosen after."""
    def named(config: Config) -> Config:
        return replace(config, variant=config.variant & ~_WALK) if ends_together(config) else config

    over, xs, ys = list[float](), list[float](), list[float]()
    for run in json.loads(path.read_text())["runs"]:
        kinds: dict[tuple[str, int], list[Row]] = {}
        for row in run["rungs"]:
            if row["screening"] != screening or row.get("text") == "before":
                continue
            if row.get("text") == "even" or not gathers(run["shape"], row):
                kinds.setdefault((row["layout"], row.get("batch", 1)), []).append(row)
        for (layout, batch), rows in kinds.items():
            asked = problem(run["shape"], layout, batch)
            modelled = {(kernel.name, named(config)): us for kernel, config, us in select.candidates(asked, ARCH, SMS)}
            timed_with = [(Config(**row["config"]), row) for row in rows]
            ran = [((row.get("kernel", SPECIALISED.name), named(config)), row["microseconds"])
                   for config, row in timed_with if together or not ends_together(config)]
            timed = [(modelled[which], us) for which, us in ran if which in modelled]
            if not timed:
                continue
            least, fastest = min(us for us, _ in timed), min(us for _, us in timed)
            over.append(min(timed)[1] / fastest)
            xs += [us / least for us, _ in timed]
            ys += [us / fastest for _, us in timed]
    over.sort()
    rank = _figure(spearman(xs, ys))
    return (f"- {what.format(times=len(xs), shapes=len(over))} (`results/h100/{path.name}`): there its choice takes "
            f"{sum(over) / len(over):.3f} times the least in the mean, {over[int(0.9 * (len(over) - 1))]:.2f} at the "
            f"90th percentile, {over[-1]:.2f} at most, and is within 5 % of it for "
            f"{sum(x <= 1.05 for x in over) / len(over):.0%}. Rank correlation of modelled and measured times, each "
            f"over the least of its shape: {rank}.")


def gathers(shape: Sequence[int], row: Row) -> bool:
    """Whether blocks of a row's launch gathered on few SMs (`kernels.even_share`), with two or more for each."""
    kernel, config = kernel_named(row.get("kernel", SPECIALISED.name)), Config(**row["config"])
    family, wanted = FAMILIES[kernel], kernel.shared_bytes(config)
    blocks = family.schedule(config, problem(shape, row["layout"], row.get("batch", 1)), SMS).blocks
    return (blocks > SMS and not family.lives_on_l1
            and shared_bytes(wanted, blocks, config.min_blocks, H100) > wanted)


def microseconds(row: Row) -> float:
    """The measured time of a row."""
    m, n, k = row["shape"]
    return float(2e-6 * m * n * k * row.get("batch", 1) / row["tflops"])


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}".rstrip("0")


def _earlier(rows: Sequence[Row]) -> list[tuple[int, list[Row]]]:
    old = [row for row in rows if "walk" in row]
    return [(size, [row for row in old if row["shape"][0] == size]) for size in sorted({r["shape"][0] for r in old})]


def block() -> str:
    """What stands between the markers."""
    record, bench = json.loads(RECORD.read_text()), json.loads(BENCH.read_text())
    rows = rows_of(record)
    parts = table(with_facts(rows)), others(rows), choices(rows, record["device"]["name"], bench["rungs"])
    return "\n".join(parts)


def pairs(rows: Sequence[Row], key: Callable[[Row], Any], first: Callable[[Row], bool],
          second: Callable[[Row], bool]) -> list[float]:
    """Speed of the second over the first, of rows alike under ``key``; sorted."""
    found = {key(row): row["ratio_to_cublas"] for row in rows if first(row)}
    return sorted(row["ratio_to_cublas"] / found[key(row)] for row in rows if second(row) and key(row) in found)


def by_name(bench: Sequence[Row]) -> dict[str, Row]:
    """Rows by their shape's name; of two suites with a shape the first, `square` before all others."""
    return {row["name"]: row for row in reversed(bench)}


def quoted() -> list[str]:
    """Phrases of docs/experiments.md, section "The library's kernels", whose figures come from records."""
    rows = rows_of(json.loads(RECORD.read_text()))
    bench = by_name(json.loads(BENCH.read_text())["rungs"])
    rungs = json.loads(RUNGS.read_text())["rungs"]

    def best(**wanted: Any) -> float:
        return max(float(row["ratio_to_cublas"]) for row in rows if all(
            row.get(name, row["config"].get(name)) == value for name, value in wanted.items()))

    def ratio(name: str) -> str:
        return f"{bench[name]['ratio_to_cublas']:.3f}"

    def without(*names: str) -> Callable[[Row], Any]:
        return lambda r: (r["layout"], r["nvrtc"], *sorted((k, v) for k, v in r["config"].items() if k not in names))

    def bits(row: Row) -> int:
        return int(row["config"].get("variant", 0))

    size = [4096] * 3
    big = [row for row in with_facts(rows) if (row["config"]["bm"], row["config"]["bn"]) == (128, 256)]
    six = [row for row in big if (row["config"]["bk"], row["config"]["stages"]) == (16, 6)]
    old = {"shape": size, "bm": 128, "bn": 256, "screening": "tiles and splits"}
    plain = max(r["ratio_to_cublas"] for r in rows if "walk" in r and r["shape"] == size
                and r["config"]["bn"] == 256 and r["config"].get("split", 1) == 1)
    out = [f"{len(rows)} comparisons",
           f"rung 14 {max(r['ratio_to_cublas'] for r in rungs if r['number'] == 14):.3f}; the first text {plain:.3f}, "
           f"{best(**old, split=0):.3f} with stream-K, {best(shape=size, layout='NN', nvrtc='13.4'):.3f} at the best "
           f"register allocation, {ratio('4096x4096x4096')} in the library"]
    walks = [(walk, pairs([r for r in six if bits(r) & 5 in (1, bit)],
                          lambda r: (r["layout"], r["config"]["registers"], bits(r) & 10),
                          lambda r: bits(r) & 5 != 1, lambda r: bits(r) & 5 == 1))
             for walk, bit in (("rows", 0), ("rows in snake", 4))]
    out += [f"{sum(q > 1 for q in found)} of {len(found)} pairs with {walk}, {median(found):.3f} in the median"
            for walk, found in walks]
    columns, snake = (max((r for r in six if bits(r) & 5 == bit and r["layout"] == "NN"),
                          key=lambda r: r["ratio_to_cublas"]) for bit in (1, 4))
    out.append(f"{columns['ratio_to_cublas']:.3f} at {cycles(columns):.2f} modelled cycles by columns, "
               f"{snake['ratio_to_cublas']:.3f} at {cycles(snake):.2f} by rows")
    wide = [row for row in with_facts(rows) if row["config"]["tm"] == row["config"]["tn"] == 12]
    out.append(f"{best(**{**old, 'bm': 192, 'bn': 192}):.3f} at BK = 16, {best(bm=192, bn=192, bk=8, layout='NN'):.3f} "
               f"(NN) and {best(bm=192, bn=192, bk=8, layout='TN'):.3f} (TN) at BK = 8 at most; "
               f"{sum(row['spill_bytes'] > 0 for row in wide)} of {len(wide)} variants spill, and the model has "
               f"{min(map(cycles, wide)):.2f} to {max(map(cycles, wide)):.2f} cycles an FFMA")
    for long, kib in ((0, 35), (8, 18)):
        found = pairs([r for r in big if r["config"]["bk"] == 8 or (r in six and bits(r) & 8 == long)],
                      lambda r: (r["layout"], r["config"]["registers"], bits(r) & 7),
                      lambda r: r["config"]["bk"] == 16, lambda r: r["config"]["bk"] == 8)
        out.append(f"{median(found):.3f} of BK = 16 in a loop of {kib} KB")
    found = pairs(six, lambda r: (r["layout"], r["config"]["registers"], bits(r) & 7), lambda r: bool(bits(r) & 8),
                  lambda r: not bits(r) & 8)
    out.append(f"{median(found):.3f} of the shorter one's speed in the median of {len(found)} pairs, "
               f"{found[0]:.3f} to {found[-1]:.3f}")
    deep = [pairs([r for r in big if r["config"]["bk"] == 16 and r["config"]["stages"] in (few, 8)], without("stages"),
                  lambda r: r["config"]["stages"] != 8, lambda r: r["config"]["stages"] == 8) for few in (6, 7)]
    out.append(f"{median(deep[0]):.3f} of six stages' speed in {len(deep[0])} pairs of two runs, {median(deep[1]):.3f} "
               f"of seven's in {len(deep[1])} of one run")
    out.append(f"{ratio('511x511x511')} at 511 against {ratio('512x512x512')} at 512")
    sliced = best(shape=[1024] * 3, slices=2)
    out.append(f"{best(shape=[1024] * 3, screening='tiles and splits'):.3f} without slices, {sliced:.3f} with two")
    out.append(f"{sliced:.3f} to {ratio('1024x1024x1024')} there, {ratio('4096x4096x16')} at 4096x4096x16")
    out.append(f"{ratio('128x128x128')} at 128, {ratio('256x256x256')} at 256, {ratio('512x512x512')} at 512")
    both = pairs(rows, lambda r: (r["layout"], sorted(r["config"].items()), r["screening"], r["shape"]).__repr__(),
                 lambda r: r["nvrtc"] == "13.4", lambda r: r["nvrtc"] == "13.0")
    out.append(f"{sum(abs(q - 1) > 0.02 for q in both)} of {len(both)} configurations differ by more than 2 %, from "
               f"{both[0]:.3f} to {both[-1]:.3f} (13.0 over 13.4), {median(both):.3f} in the median")
    vector = bench["1x8192x8192"]
    unseen, before = (json.loads(path.read_text())["unseen"] for path in (UNSEEN, UNSEEN_BEFORE))
    out.append(f"{unseen['rows']} drawn shapes that no table holds, the choice took {unseen['median']:.3f} times the "
               f"best time found in the median, {unseen['p90']:.2f} at the 90th percentile, "
               f"{unseen['worst']:.2f} at most ({unseen['worst_name']})")
    out.append(f"{before['median']:.3f}, {before['p90']:.2f} and {before['worst']:.2f} on {before['rows']}")
    out.append(f"{vector['gbs']:.0f} GB/s at 1x8192x8192, {vector['share_of_copy']:.2f} of a copy")
    return (out + quoted_drawn() + quoted_tiles() + quoted_copies() + quoted_start() + quoted_pairs()
            + quoted_compensation())


def quoted_drawn() -> list[str]:
    """Phrases of the sections "Any product with a short K" and "Blocks dealt evenly, and tiles between"."""
    def summed(path: Path, screening: str) -> tuple[float, int, int]:
        rows = [row for run in json.loads(path.read_text())["runs"] for row in run["rungs"]
                if row["screening"] == screening]
        ratios = [row["ratio_to_cublas"] for row in rows]
        return exp(fmean(map(log, ratios))), sum(ratio < 0.97 for ratio in ratios), len(ratios)

    (old, few, _), (new, fewer, count) = (summed(SHORT, f"the suite drawn, {when}") for when in ("before", "after"))
    now, fewest, _ = summed(SHARE, "the suite drawn")
    today, least, _ = summed(WAVES, "the suite drawn")
    return [f"{count} products of the suite `drawn` go from {old:.2f} of cuBLAS to {new:.2f} in the geometric mean, "
            f"those below 0.97 from {few} to {fewer}",
            f"The suite `drawn` goes from {new:.2f} of cuBLAS to {now:.2f} in the geometric mean, those below 0.97 "
            f"from {fewer} to {fewest}",
            f"The suite `drawn` goes from {now:.2f} of cuBLAS to {today:.2f} in the geometric mean, those below 0.97 "
            f"from {fewest} to {least}"]


def quoted_tiles() -> list[str]:
    """Phrases of the section "The end of a tile, and its edges"."""
    rows = rows_of(json.loads(TILES.read_text()))

    def best(shape: Sequence[int], layout: str = "NN", **wanted: Any) -> float:
        def value(row: Row, name: str) -> Any:
            return row.get(name, row["config"].get(name, 0 if name == "variant" else 1))

        return max(float(row["ratio_to_cublas"]) for row in rows if (row["shape"], row["layout"]) == (shape, layout)
                   and all(value(row, name) == one for name, one in wanted.items()))

    bench = {row["shape"][0]: row["ratio_to_cublas"] for row in json.loads(BENCH.read_text())["rungs"]
             if row["suite"] == "odd"}
    odd = [f"{microseconds(row):.1f}" for row in rows if row["screening"] == "what makes a size odd"
           and (row["shape"] == [2048] * 3 or (row["ld"] == [2048] * 3 and row["shape"].count(2047) == 1))]
    as_is, longer_a, longer_b, longer_c, _, fewer_m, fewer_n, fewer_k = odd
    loop, predicated = "one path for copies, results leave by a loop with branches", "stores predicated"
    four, branches = "four words at a time", "branches to the row, two paths for copies"
    shallow, big = [4096, 4096, 8], {"shape": [4096] * 3, "bm": 128, "bn": 256}
    last = {"screening": "texts and compilers"}
    new = {**last, "text": "new"}

    def releases(**wanted: Any) -> str:
        return " against ".join(f"{best(**new, **wanted, nvrtc=nvrtc):.3f}" for nvrtc in ("13.0", "13.4"))

    def walks(layout: str, *variants: int) -> str:
        return " and ".join(f"{best(**big, **new, layout=layout, nvrtc='13.4', variant=v):.3f}" for v in variants)

    first, behind = (best(**big, screening=four, variant=v) for v in (1, 65))
    single = best(**big, layout="NT", screening=four)
    return [
        f"{as_is} us as it is; a row of A less {fewer_m}, a column of B less {fewer_n}, a k-step less {fewer_k}; rows "
        f"of A, B or C one element longer {longer_a}, {longer_b} and {longer_c}",
        ", ".join(f"{size} from {best([size] * 3, screening='candidates', bm=32, bn=32, split=1):.2f} "
                  f"to {bench[size]:.2f}" for size in (127, 255)) + " in the library",
        f"4096 x 4096 x 8 at {best(shallow, screening=loop):.2f}. Predicated stores instead "
        f"{best(shallow, screening=predicated):.2f}",
        f"take an issue slot for each store, {best(shallow, screening=branches):.2f}",
        " against ".join(f"{best([1024] * 3, **last, text=text, nvrtc='13.4'):.3f}"
                         for text in ("eight words", "new")) + " at 1024",
        f"{single:.3f} of cuBLAS at 4096 NT, {best(**big, layout='NT', screening=branches):.3f} with two paths",
        f"{first:.3f} against {behind:.3f} at 4096",
        f"{walks('NN', 0, 4)} at 4096, {walks('NT', 0, 4)} at 4096 NT. Columns, at 1.118, have {walks('NN', 1)} and "
        f"{walks('NT', 1)}",
        f"32 x 64 a block {releases(shape=[512] * 3, bm=32, bn=64)} at 512, "
        f"32 x 32 {releases(shape=[256] * 3, bm=32)} at 256",
        f"64 x 128 {releases(shape=[1024] * 3, layout='NT', bm=64, bn=128)} at 1024 NT and "
        f"{releases(shape=[64, 4096, 4096], bm=64, bn=128)} at 64 x 4096 x 4096; but "
        f"128 x 256 {releases(**big)} at 4096",
    ]


def shortest(rows: Sequence[Row], name: str, text: str, kernel: str = SPECIALISED.name, tile: str = "",
             nvrtc: str = "") -> float:
    """The least microseconds that a case of the suites took in the screening ``text``."""
    case = next(case for group in SUITES.values() for case in group if case.name == name)
    asked = [case.m, case.n, case.k], case.layout, case.batch
    return min(row["microseconds"] for row in rows if (row["shape"], row["layout"], row.get("batch", 1)) == asked
               and (row["screening"], row.get("kernel", SPECIALISED.name)) == (text, kernel)
               and Config(**row["config"]).label().startswith(tile) and row["nvrtc"].startswith(nvrtc))


def quoted_start() -> list[str]:
    """Phrases of the section "The start of a kernel, and its divisions"."""
    record = json.loads(START.read_text())
    rows = rows_of(record)
    bench = {name: row["ratio_to_cublas"] for name, row in by_name(json.loads(BENCH.read_text())["rungs"]).items()}
    stamps = record["stamps"]["before"]
    small, shared = stamps["128x128x128"], stamps["128x2304x768:NT"]
    parts = [small[name] for name in ("waited", "addresses", "tile", "loop", "slices", "stored")]
    copy, tile, loop, slices, stored = (later - earlier for earlier, later in pairwise(parts))

    def us(name: str, text: str = "before") -> str:
        cube = "x".join([name] * 3) if name.isdigit() else name
        return f"{shortest(rows, cube, text):.{1 if name == '4096' else 2}f}"

    tests, divisors = "a test before each division", "divisors from the host"
    late, along = "addresses before the wait, each tile", "A by 16 bytes along k"
    pairs_, spread = f"{along}, two k-steps a read", f"{along}, reads spread"
    first, thin = "addresses before the wait, first tile", "4096x32x4096"
    return [
        f"What takes {us('128')} us at a size of 128",
        f"{copy} cycles to the first copy, {tile} until its tile is there, {loop} for the first slice's part",
        f"{slices} until the sums of all slices are added up, {stored} until results are stored",
        f"768, {shared['addresses'] - shared['waited']} to the first copy",
        " and ".join(str(record["stamps"][late][name]["addresses"]) for name in ("128x128x128", "128x2304x768:NT"))
        + " cycles from the barrier",
        f"{len(rows):,} comparisons".replace(",", " "),
        "refuted: " + ", ".join(f"{n} from {us(n)}{' us' if n == '128' else ''} to {us(n, tests)}"
                                for n in ("128", "512", "1024")),
        f"128 from {us('128')} us to {us('128', divisors)}, 512 to {us('512', divisors)}, 1024 to "
        f"{us('1024', divisors)}, 1000 products of 64 from {us('1000 blocks of 64')} to "
        f"{us('1000 blocks of 64', divisors)}, 4096 x 4096 x 16 from {us('4096x4096x16')} to "
        f"{us('4096x4096x16', divisors)}, 4096 from {us('4096')} to {us('4096', divisors)}, 128 x 2304 x 768 from "
        f"{us('BERT qkv, 128 tokens')} to {us('BERT qkv, 128 tokens', divisors)}",
        f"128 from {us('128', divisors)} us to {us('128', late)}, 64 x 4096 x 4096 from "
        f"{us('64x4096x4096', divisors)} to {us('64x4096x4096', late)}, 1024 from {us('1024', divisors)} to "
        f"{us('1024', late)}; but 4096 from {us('4096', divisors)} to {us('4096', late)}, and {us('4096', first)} "
        "where only",
        f"128 in the library {bench['128x128x128']:.2f} of cuBLAS and 127 {bench['127x127x127']:.2f}",
        f"128 from {us('128')} us to {us('128', pairs_)} and 256 from {us('256')} to {us('256', pairs_)}, 512 "
        f"{us('512', along)} instead of {us('512')}, 1024 {us('1024', spread)} instead of {us('1024')}, "
        f"4096 x 32 x 4096 {us(thin, along)} instead of {us(thin)}",
        f"refuted: 512 in {us('512', spread + ', two k-steps a read')} us",
    ]


def quoted_pairs() -> list[str]:
    """Phrases of the section "Two blocks a tile, and blocks with one"."""
    record = json.loads(PAIRS.read_text())
    rows = rows_of(record)
    bench = {name: row["ratio_to_cublas"] for name, row in by_name(json.loads(BENCH.read_text())["rungs"]).items()}
    endings = {"boxes": "copy engine", "zeros": "remainder of K", "read": "what it reads", "given": "by stores",
               "pair": "reads, no loop", "alone": "a block, no loop", "one": "shared memory", "four": "straight"}
    text = {word: next(name for name in record["screenings"] if name.endswith(end)) for word, end in endings.items()}
    text |= {"before": "before", "since": "as shipped since"}

    def us(name: str, word: str = "before", cluster: int = 0, dealt: int | None = None, **how: str) -> str:
        cube = "x".join([name] * 3) if name.split(":")[0].isdigit() else name
        own = [row for row in rows if cluster in (0, row["config"].get("cluster", 1))
               and dealt in (None, row["config"].get("registers", 0))]
        least = shortest(own, cube, text[word], **how)
        return f"{least:.2f}" if least < 100 else f"{least:.1f}"

    def change(name: str, first: str, second: str, **how: Any) -> str:
        return f"{us(name, first)} to {us(name, second, **how)}"

    thin, thick, half, cell = "128x4096x4096", "4096x32x4096", "512x512x1024", "LSTM-1024 cell, batch 64"
    conv, qkv = "ResNet-50 conv5 3x3", "BERT qkv, 128 tokens"
    copied, illegal = (sorted({column for column, _ in record["boxes"][kind]}) for kind in ("copied", "illegal"))
    return [
        f"{len(rows):,} comparisons".replace(",", " "),
        f"columns {', '.join(map(str, illegal))} of floats; {', '.join(map(str, copied))} are copied",
        ", ".join(f"{n} takes {us(n, 'boxes')} us instead of {us(n, 'zeros')}" if n == "128" else
                  f"{n} {us(n, 'boxes')} instead of {us(n, 'zeros')}" for n in ("128", "512", "1536", "4096")),
        f"4096 TN from {change('4096x4096x4096:TN', 'before', 'zeros')} us, 1536 from "
        f"{change('1536', 'before', 'zeros')}",
        f"128 x 4096 x 4096 from {change(thin, 'before', 'read', cluster=2)} us, 4096 x 32 x 4096 from "
        f"{change(thick, 'before', 'read', cluster=2)}, 512 x 512 x 1024 from "
        f"{change(half, 'before', 'read', cluster=2)}",
        f"128 x 4096 x 4096 takes {us(thin, 'read', cluster=4)} us with four",
        f"512 x 512 x 1024 {us(half, 'given', cluster=2)} us, 64 x 4096 x 1024 {us(cell, 'given', cluster=2)} instead "
        f"of {us(cell, 'read', cluster=2)}; and with stream-K 1568 x 512 x 4608 {us(conv, 'given', cluster=2)} instead "
        f"of {us(conv)}",
        f"128 x 4096 x 4096 {us(thin, 'pair', cluster=2)} us, 4096 x 128 x 4096 "
        f"{us('4096x128x4096', 'pair', cluster=2)}, but 4096 x 32 x 4096 {us(thick, 'pair', cluster=2)}",
        f"though 128 x 4096 x 4096 takes {us(thin, 'given', cluster=2)}",
        f"128 x 4096 x 4096 takes {us(thin, 'since', cluster=1)} us in two parts then, "
        f"{us(thin, 'since', cluster=2)} as a pair",
        f"128 from {change('128', 'before', 'alone')} us, 512 from {change('512', 'before', 'alone')}; but 1023 "
        f"from {change('1023', 'before', 'alone')}",
        f"1568 x 512 x 4608 {us(conv, 'since', dealt=232)} us instead of {us(conv, 'since', dealt=0)}",
        f"1568 x 512 x 4608 from {change(conv, 'one', 'four')} us, 128 x 2304 x 768 from {change(qkv, 'one', 'four')}",
        f"2047 laid out anew from {us('2047', 'one', kernel=RELAID.name)} us to "
        f"{us('2047', 'four', kernel=RELAID.name)}",
        f"{bench[thin]:.3f} of cuBLAS at 128 x 4096 x 4096, {bench[thick]:.3f} at 4096 x 32 x 4096 and "
        f"{bench[conv]:.3f} at 1568 x 512 x 4608",
    ]


def quoted_compensation() -> list[str]:
    """Phrases of the section "Products on tensor cores": errors of what is rerouted."""
    now, before = ([row for row in json.loads(path.read_text())["rungs"] if row["contender"] == "peakgemm:emulated"]
                   for path in (ACCURACY, ACCURACY_BEFORE))

    def errors(rows: Sequence[Row], family: str, shape: Sequence[int], name: str = "{}_error") -> list[float]:
        row = next(row for row in rows if (row["family"], row["shape"]) == (family, shape)
                   and row["test"] in ("random", "long-k"))
        return [row[name.format(which)] for which in ("max", "mean")]

    def both(family: str, shape: Sequence[int], word: str) -> str:
        ours, then = (errors(rows, family, shape) for rows in (now, before))
        theirs = errors(now, family, shape, "reference_{}")
        link, name = (" at most and ", "cuBLAS ") if word else (" and ", "")
        return (f"{ours[0]:.2f}{link}{ours[1]:.2f}{word} ({name}{theirs[0]:.2f} and {theirs[1]:.2f}; before "
                f"{then[0]:.2f} and {then[1]:.2f}")

    return ["log-uniform at 1024 " + both("log-uniform", [1024] * 3, " in the mean"),
            "exp4 at 256 x 256 x 65536 " + both("exp4", [256, 256, 65536], "")]


def quoted_copies() -> list[str]:
    """Phrases of the section "Copies, and who ends a tile"."""
    rows = rows_of(json.loads(COPIES.read_text()))

    def us(name: str, text: str, kernel: str = SPECIALISED.name, tile: str = "", nvrtc: str = "") -> str:
        return f"{shortest(rows, name, text, kernel, tile, nvrtc):.1f}"

    words, one, along = "words by warps beside themselves", ", one slice ends a tile", "16 lanes along k"
    group, tile = "through registers, one round at a time", "through registers, a tile at a time"
    every, paced, landed = "all copies by warps beside themselves", ", 60 ns of sleep after four words", "as it landed"
    conv, cell, context = "ResNet-50 conv2 3x3", "LSTM-1024 cell, batch 64", "BERT context, 8 x 12 heads"
    five, kilo, odd, two, big = "512x512x512", "1024x1024x1024", "1023x1023x1023", "2047x2047x2047", "8191x8191x8191"
    turned, less = "4096x4096x4096:NT", "1024x1024x1024:TN"
    down = "BERT MLP down, 8 x 512"
    return [
        f"{len(rows):,} comparisons".replace(",", " "),
        f"512 takes {us(five, group)} us instead of {us(five, 'before')}, 4096 NT {us(turned, group)} instead of "
        f"{us(turned, 'before')}",
        f"512 takes {us(five, tile)}, 1024 NT {us('1024x1024x1024:NT', tile)} instead of "
        f"{us('1024x1024x1024:NT', words)}; 100352 x 64 x 576 alone gains, {us(conv, tile)} instead of "
        f"{us(conv, words)}",
        f"2047 in {us(two, every + paced)} us instead of {us(two, every, nvrtc='13.4')}",
        f"64 x 4096 x 1024 {us(cell, along + one)} us instead of {us(cell, words + one)}, 1024 {us(kilo, along)} "
        f"instead of {us(kilo, words)}, 100352 x 64 x 576 {us(conv, along)} instead of {us(conv, words)}; but 1023 "
        f"{us(odd, along)} instead of {us(odd, words)}, 4096 x 768 x 3072 {us(down, along)} instead of "
        f"{us(down, words)}",
        f"2047 from {us(two, 'before')} us to {us(two, every, nvrtc='13.4')}; copies of 16 bytes in that way, 2048 "
        f"from {us('2048x2048x2048', 'before')} to {us('2048x2048x2048', every, nvrtc='13.4')}",
        f"1023 from {us(odd, words + one)} us to {us(odd, words)}, 96 products of 512 x 64 x 512 from "
        f"{us(context, words + one)} to {us(context, words)}; but 512 from {us(five, words + one)} to "
        f"{us(five, words)}",
        f"1024 TN in {us(less, group, tile='64x64x32/8x8')} us, {us(less, group, tile='64x32x16/8x8')} with 64 x 32 in "
        f"eight, {us(less, group, tile='64x128x32')} with 64 x 128 in two",
        f"8191 from {us(big, landed)} us to {us(big, landed, 'relaid')}, 4096 NT from {us(turned, landed)} to "
        f"{us(turned, landed, 'relaid')}; not at 1023, {us(odd, landed)} to {us(odd, landed, 'relaid')}",
    ]


def fresh(row: Row) -> Row:
    """A row with the facts of a cubin compiled now."""
    made = recipe(SPECIALISED, Config(**row["config"]), problem(row["shape"], row["layout"]), ARCH).make("cubin")
    return {**row, **static_facts(made.code, ARCH), "registers": made.registers, "spill_bytes": made.spill_bytes}


def quotes(page: str, phrase: str) -> bool:
    """Whether the phrase is there, and not as a part of a longer figure."""
    whole = re.compile(rf"(?<![\d.]){re.escape(phrase)}(?!\.?\d)")
    at = page.find(phrase)  # a pattern that looks behind is tried everywhere: 0.6 ms a page, against 0.02
    while at >= 0 and not whole.match(page, at):
        at = page.find(phrase, at + 1)
    return at >= 0


def main() -> None:
    """Print, write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--write", action="store_true")
    does.add_argument("--check", action="store_true")
    does.add_argument("--compile", type=int, metavar="COUNT")
    args = parser.parse_args()
    if args.compile:
        before = [row for row in with_facts(rows_of(json.loads(RECORD.read_text())))
                  if is_valid(SPECIALISED, Config(**row["config"]), architecture(ARCH))][:args.compile]
        with ProcessPoolExecutor() as pool:
            after = list(pool.map(fresh, before))
        print(table(after))
        print(f"{sum(round(cycles(a), 4) == round(cycles(b), 4) for a, b in zip(before, after, strict=True))} of "
              f"{len(after)} with the modelled cycles of the cubin that was timed")
        return
    page = PAGE.read_text(encoding="utf-8")
    above, rest = page.split(MARKS[0])
    made = above + MARKS[0] + block() + MARKS[1] + rest.split(MARKS[1])[1]
    if args.write:
        PAGE.write_text(made, encoding="utf-8")
    elif args.check:
        absent = [phrase for phrase in quoted() if not quotes(page, phrase)]
        if made != page or absent:
            sys.exit("\n".join(["docs/experiments.md differs from the records; run: python tools/screening.py --write",
                                *(f"and quote: {phrase}" for phrase in absent)]))
    else:
        print(block(), *quoted(), sep="\n")


if __name__ == "__main__":
    main()
