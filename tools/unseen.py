"""How close the choice for a shape that was never tuned is to the tuned best: results/<gpu>/unseen.json.

    python tools/unseen.py --json results/h100/unseen.json [--count N] [--seconds-in-all S]

Draws shapes that no table holds, and lets `peakgemm.tune.search` look for something faster than what
`select.choose` names for each, which never saw it. The record is written after every shape; one that is
there is gone on with. Needs a GPU, and torch or CuPy.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from peakgemm import tuned
from peakgemm.bench import records
from peakgemm.bench.drawn import log_uniform
from peakgemm.bench.peers import Peer, find_peer
from peakgemm.bench.suites import Case, cases
from peakgemm.bench.timer import Timer
from peakgemm.cli.console import err, out, progress
from peakgemm.errors import InvalidValue
from peakgemm.runtime import device
from peakgemm.runtime.device import Gpu
from peakgemm.select import choose
from peakgemm.tune import search
from peakgemm.tune.halving import Outcome
from peakgemm.tune.space import KEEP

Row = dict[str, Any]
SMALLEST, LARGEST = 16, 8192
MULTIPLES = (1, 4, 32, 128)
MOST = 1 << 36        # M N K: 2 to 3 ms at the FP32 peak of an H100
OTHER_LAYOUTS = 0.25  # share of shapes that are not NN
CLOSE = 1.05


def drawn(seed: int) -> Iterator[Case]:
    """Shapes without end, none twice: M, N and K log-uniform, each rounded down to a multiple drawn from those that are
    no larger; of `Random` only ``random()``, whose values no version of Python changes."""
    draw, seen = Random(seed).random, set()
    while True:
        sizes = []
        for _ in range(3):
            size = log_uniform(draw, SMALLEST, LARGEST)
            fitting = [multiple for multiple in MULTIPLES if multiple <= size]
            sizes.append(size - size % fitting[int(draw() * len(fitting))])
        layout = ("NT", "TN", "TT")[int(draw() * 3)] if draw() < OTHER_LAYOUTS else "NN"
        (case,) = cases("x".join(map(str, sizes)) + f":{layout}")
        if math.prod(sizes) <= MOST and case not in seen:
            seen.add(case)
            yield case


def unseen(count: int, seed: int, gpu: Gpu) -> list[Case]:
    """The first ``count`` drawn shapes that neither the committed table nor the user's entries hold."""
    found = []
    for case in drawn(seed):
        if len(found) == count:
            break
        if tuned.lookup(case.problem()[0], gpu.name) is None:
            found.append(case)
    return found


def chosen(case: Case, gpu: Gpu) -> Row:
    """What a row says of the shape and of the choice for it."""
    choice = choose(case.problem()[0], gpu.arch, gpu.sm_count, gpu.name)
    return {"suite": "unseen", "name": case.name, "shape": [case.m, case.n, case.k], "layout": case.layout,
            "batch": case.batch, "kernel": choice.kernel.name, "config": choice.config.to_json(),
            "source": choice.source}


def row_of(case: Case, gpu: Gpu, found: Outcome) -> Row:
    """A row: the choice's time over that of the fastest that was timed, itself among them, within the noise or not."""
    fastest, ratio, spread = found.winner, 1.0, (1.0, 1.0)
    if found.best is not None and found.ratio > 1:
        fastest, ratio, spread = found.best, found.ratio, found.spread
    return {**chosen(case, gpu), "fastest": {
        "kernel": fastest.kernel.name, "config": fastest.config.to_json(), "ratio": ratio, "spread": list(spread),
        "replaces": found.replaced, "timed": found.timed, "refused": found.refused}}


def summary(rows: list[Row]) -> Row:
    """Of the ratios; 1: the choice was the fastest."""
    ratios = [row["fastest"]["ratio"] for row in rows]
    worst = max(rows, key=lambda row: row["fastest"]["ratio"])
    return {"rows": len(rows), "median": median(ratios),
            "p90": quantiles(ratios, n=10, method="inclusive")[-1] if len(ratios) > 1 else ratios[0],
            "worst": max(ratios), "worst_name": worst["name"],
            "within_5_percent": sum(ratio <= CLOSE for ratio in ratios) / len(ratios)}


def kept(path: Path, asked: Row, versions: dict[str, str], gpu: Gpu) -> list[Row]:
    """The rows of a record that is there, but for those whose choice is another today.

    Raises:
        InvalidValue: it was made with other options, versions or another GPU.
    """
    if not path.exists():
        return []
    record = json.loads(path.read_text(encoding="utf-8"))
    there = {name: record.get("unseen", {}).get(name) for name in asked}
    for what, old, new in (("options", there, asked), ("device", record["device"], gpu.to_json()),
                           ("environment", record["environment"], records.environment(versions))):
        if old != new:
            raise InvalidValue(f"{path} was made with {what} {old}, this run has {new}; name another file")
    found = []
    for row in record["rungs"]:
        (case,) = cases(row["name"])
        if all(row[name] == value for name, value in chosen(case, gpu).items()):
            found.append(row)
    return found


def measure(shapes: list[Case], rows: list[Row], gpu: Gpu, peer: Peer, asked: Row, args: argparse.Namespace) -> int:
    """Search for each shape that ``rows`` lacks, and write the record each time; how many failed."""
    timer, began, failed = Timer(peer, asked["seconds"]), time.monotonic(), 0
    known = {row["name"] for row in rows}
    left = [case for case in shapes if case.name not in known]
    with progress("searching", len(left)) as done:
        for i, case in enumerate(left):
            if time.monotonic() - began >= args.seconds_in_all:
                out.print(f"{args.seconds_in_all:g} s are over: {len(left) - i} of {len(shapes)} shapes are left; run "
                          "it again.", markup=False)
                break
            try:
                found = search.search(case.problem()[0], gpu, peer, timer, seconds=asked["seconds"], keep=asked["keep"])
            except Exception as error:  # out of memory, or a launch refused: the other shapes still can
                failed += 1
                err.print(f"Failed: {case.name}: {type(error).__name__}: {error}", markup=False, soft_wrap=True)
            else:
                rows.append(row_of(case, gpu, found))
                records.write(args.json, records.record(gpu, gpu.arch, [{"rungs": rows}], versions=peer.versions(),
                                                        unseen={**asked, **summary(rows)}))
                out.print(f"{case.name}: {rows[-1]['fastest']['ratio']:.3f}, {found.timed} others timed", markup=False)
            done(case.name)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100, help="shapes (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the shapes (0)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing, for each finalist (0.5); a search takes "
                        "about twelve times that")
    parser.add_argument("--keep", type=int, default=KEEP, help=f"candidates a shape, the model's best ({KEEP})")
    parser.add_argument("--seconds-in-all", type=float, default=math.inf, help="begin no search after so many")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu, peer = device.require(), find_peer()
    asked = {"seed": args.seed, "seconds": args.seconds, "keep": args.keep}
    rows = kept(args.json, asked, peer.versions(), gpu)
    failed = measure(unseen(args.count, args.seed, gpu), rows, gpu, peer, asked, args)
    if rows:
        s = summary(rows)
        out.print(f"{s['rows']} shapes, time of the choice over the fastest found: {s['median']:.3f} in the median, "
                  f"{s['p90']:.3f} at the 90th percentile, {s['worst']:.3f} at worst ({s['worst_name']}); "
                  f"{s['within_5_percent']:.0%} within 5 %.", markup=False, soft_wrap=True)
    if failed:
        raise SystemExit(f"{failed} shape(s) failed and are not in {args.json}")


if __name__ == "__main__":
    main()
