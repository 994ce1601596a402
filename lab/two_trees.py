"""This checkout beside another one of the project, on one GPU in one process: is what changed as fast as before?

    git worktree add build/before COMMIT
    python -m lab.two_trees build/before/src/peakgemm --json results/h100/two-trees.json

Both trees' public calls run in turns on the same arrays, with cuBLAS between them: the products of the bench's suites,
the host's time of calls, first calls of a shape, arrays in host memory. A ratio is before / now: above 1 where this
checkout is faster. Needs torch and a GPU. ``--suite ''`` leaves the products out, ``--calls ''`` the rest.
Which tree is loaded first shows in times of host arrays; name this checkout's own folder to see by how much.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
import torch

import peakgemm
from lab.overhead import burst_us
from peakgemm.cli.console import progress
from peakgemm.runtime import device
from peakgemm.tools.bench import records
from peakgemm.tools.bench.operands import Arrays
from peakgemm.tools.bench.peers import Peer, visiting
from peakgemm.tools.bench.suites import NAMES, Case, suites
from peakgemm.tools.bench.timer import Timer

PRECISIONS = ("ieee", "emulated")
#: FLOPs from which each tree has pairs of its own: at the power limit, what ran just before decides the clock.
IN_PAIRS = 3e10
COLD_SHAPES = 40
HOST_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "1024 square": ((1024, 1024), (1024, 1024)),
    "4096 square": ((4096, 4096), (4096, 4096)),
    "8192 square": ((8192, 8192), (8192, 8192)),
    "batch of 8 MB": ((64, 128, 256), (64, 256, 128)),
    "batch of 200 MB": ((50, 1024, 1024), (50, 1024, 1024)),
}
Call = Callable[[], Any]


def load(folder: Path, name: str = "peakgemm_before") -> ModuleType:
    """The package in ``folder`` under another name: its own imports are relative, so both trees live side by side."""
    file = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None or not file.exists():
        raise SystemExit(f"{folder} is no package; name the folder src/peakgemm of the other checkout")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compile_ahead(trees: Sequence[Path], chosen: str, precisions: Sequence[str], processes: int) -> None:
    """Fill the cubin cache of each tree by processes of their own: compilers run beside each other then."""
    for tree in trees:
        path = os.pathsep.join([str(tree.resolve().parent), os.environ.get("PYTHONPATH", "")])
        jobs = [subprocess.Popen([sys.executable, "-c", COMPILE, chosen, ",".join(precisions), str(i), str(processes)],
                                 env={**os.environ, "PYTHONPATH": path}) for i in range(processes)]
        if any(job.wait() for job in jobs):
            raise SystemExit(f"a product of {tree} failed; its error is above")


# Runs by either tree, so it asks nothing of it but the public call; the shapes come from this checkout's lab.
COMPILE = """
import json, sys
import torch
import peakgemm
torch.set_default_device("cuda")
chosen, precisions, part, parts = sys.argv[1:]
for m, n, k, batch, ta, tb in json.loads(chosen)[int(part)::int(parts)]:
    lead = (batch,) if batch > 1 else ()
    a = torch.zeros(*lead, k, m).mT if ta else torch.zeros(*lead, m, k)
    b = torch.zeros(*lead, n, k).mT if tb else torch.zeros(*lead, k, n)
    for precision in precisions.split(","):
        peakgemm.matmul(a, b, precision=precision)
    del a, b
    torch.cuda.empty_cache()
"""


def shapes(cases: Sequence[Case]) -> list[list[int]]:
    """What `COMPILE` reads of ``cases``."""
    return [[case.m, case.n, case.k, case.batch, case.trans_a, case.trans_b] for case in cases]


def product_row(case: Case, precision: str, trees: dict[str, Any], arrays: Arrays, peer: Peer, timer: Timer,
                args: argparse.Namespace) -> dict[str, Any]:
    """One product by cuBLAS and by both trees."""
    cublas = [partial(peer.multiply, *each) for each in arrays.sets]
    before, now = ([partial(tree.matmul, a, b, out=c, precision=precision) for a, b, c in arrays.sets]
                   for tree in trees.values())
    if case.flops > IN_PAIRS:
        pairs = timer.compare(now, before, seconds=args.seconds)
        with_cublas = timer.compare(now, cublas, seconds=args.seconds)
        ratio, to_cublas = median(pairs.ratios), median(with_cublas.ratios)
        samples = {"now": pairs.ours_ms, "before": pairs.baseline_ms, "cublas": with_cublas.baseline_ms}
    else:
        base, old, new = timer.each([cublas, before, now], ms=args.ms, rounds=args.rounds)
        ratio = median(x / y for x, y in zip(old, new, strict=True))
        to_cublas = median(x / y for x, y in zip(base, new, strict=True))
        samples = {"now": new, "before": old, "cublas": base}
    return {"name": case.name, "shape": [case.m, case.n, case.k], "layout": case.layout, "batch": case.batch,
            "precision": precision, "before_over_now": ratio, "ratio_to_cublas": to_cublas, "samples_ms": samples}


def product_rows(trees: dict[str, Any], args: argparse.Namespace, peer: Peer) -> list[dict[str, Any]]:
    """A row for each product of the suites that are asked for."""
    gpu, timer, rows = device.require(), Timer(peer), []
    groups = suites(args.suite)
    precisions = args.precision.split(",")
    with progress("products", sum(map(len, groups.values())) * len(precisions)) as done:
        for suite, case in ((suite, case) for suite, cases in groups.items() for case in cases):
            arrays = Arrays(case, gpu, peer)
            for precision in precisions:
                rows.append({"suite": suite, **product_row(case, precision, trees, arrays, peer, timer, args)})
                done(case.name)
    return rows


def host_calls(tree: Any) -> dict[str, Call]:
    """Calls whose host time is taken, by name."""
    a, b, c, out = (torch.randn(64, 64, device="cuda") for _ in range(4))
    plan = tree.plan(a, b)
    return {"matmul(a, b)": lambda: tree.matmul(a, b), "matmul(a, b, out=c)": lambda: tree.matmul(a, b, out=out),
            "matmul(a, b, precision='emulated')": lambda: tree.matmul(a, b, precision="emulated"),
            "gemm(a, b, c, alpha=2, beta=0.5)": lambda: tree.gemm(a, b, c, alpha=2.0, beta=0.5),
            "plan.execute(a, b)": lambda: plan.execute(a, b)}


def waited_ms(call: Call) -> float:
    """Milliseconds of one call until its result is there."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def in_turns(what: str, unit: str, calls: Mapping[str, Sequence[Call]], measure: Callable[[Call], float],
             rounds: int) -> dict[str, Any]:
    """A row: ``measure`` of each tree's calls, one after the other; the tree that begins changes each round."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    for turn in range(rounds):
        for name in (list(calls), list(calls)[::-1])[turn % 2]:
            samples[name].append(measure(calls[name][turn % len(calls[name])]))
    before, now = samples.values()
    return {"what": what, "unit": unit, "before": median(before), "now": median(now),
            "before_over_now": median(x / y for x, y in zip(before, now, strict=True)), "samples": samples}


def warm_rows(trees: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the host's time of calls that the trees remember."""
    rows, calls = [], {name: host_calls(tree) for name, tree in trees.items()}
    for what in calls["now"]:
        for name in calls:
            burst_us(calls[name][what])
        rows.append(in_turns(f"host: {what}", "us", {name: [calls[name][what]] for name in calls}, burst_us, 21))
    return rows


def cold_rows(trees: dict[str, Any]) -> list[dict[str, Any]]:
    """A row of first calls of shapes whose kernels are loaded."""
    return [in_turns("first call of a shape, kernels loaded", "ms", cold_calls(trees), waited_ms, COLD_SHAPES)]


def array_rows(trees: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of products of arrays in the host's memory."""
    rows = []
    rng = np.random.default_rng(0)
    for name, (sa, sb) in HOST_SHAPES.items():
        a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in (sa, sb))
        out = np.empty((*sa[:-1], sb[-1]), np.float32)
        by_tree = {tree: [partial(trees[tree].matmul, a, b, out=out)] for tree in trees}
        for (call,) in by_tree.values():
            for _ in range(3):
                call()
        rows.append(in_turns(f"host arrays: {name}", "ms", by_tree, waited_ms, 21 if a.nbytes < 2**27 else 11))
    return rows


def cold_calls(trees: dict[str, Any]) -> dict[str, Sequence[Call]]:
    """For each tree a call of each of some shapes that it never saw, whose kernels a neighbouring shape loaded."""
    operands = [(torch.randn(400 + 4 * i, 320, device="cuda"), torch.randn(320, 480, device="cuda"))
                for i in range(COLD_SHAPES)]
    for tree in trees.values():
        for m in range(402, 402 + 4 * COLD_SHAPES, 4):
            tree.matmul(torch.randn(m, 320, device="cuda"), torch.randn(320, 480, device="cuda"))
    return {name: [partial(tree.matmul, a, b) for a, b in operands] for name, tree in trees.items()}


ROWS = {"warm": warm_rows, "cold": cold_rows, "arrays": array_rows}


def mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def show(products: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    """Each suite's geometric means and its worst product, then the calls."""
    print(f"{'':10}{'':10}{'products':>9}{'before/now':>12}{'worst':>8}{'of cuBLAS':>11}{'worst':>8}")
    for precision in dict.fromkeys(row["precision"] for row in products):
        of_it = [row for row in products if row["precision"] == precision]
        groups = {suite: [row for row in of_it if row["suite"] == suite] for suite in dict.fromkeys(
            row["suite"] for row in of_it)}
        if any(suite != "drawn" for suite in groups):
            groups["all named"] = [row for row in of_it if row["suite"] != "drawn"]
        for suite, rows in groups.items():
            ratios, to_cublas = ([row[key] for row in rows] for key in ("before_over_now", "ratio_to_cublas"))
            print(f"{precision:10}{suite:10}{len(rows):9}{mean(ratios):12.4f}{min(ratios):8.3f}{mean(to_cublas):11.4f}"
                  f"{min(to_cublas):8.3f}")
    for row in sorted(products, key=lambda row: float(row["before_over_now"]))[:10]:
        print(f"  slowest beside before: {row['precision']} {row['name']} {row['before_over_now']:.3f}")
    for row in calls:
        print(f"{row['what']:50}{row['before']:10.2f}{row['now']:10.2f} {row['unit']}  {row['before_over_now']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the folder src/peakgemm of the other checkout")
    parser.add_argument("--label", default="", help="what the other checkout is: its commit")
    parser.add_argument("--suite", default=",".join(NAMES), help="suites, with commas")
    parser.add_argument("--precision", default=",".join(PRECISIONS), help="with commas")
    parser.add_argument("--ms", type=float, default=1.5, help="milliseconds of a burst")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.15, help="of the pairs of a large product")
    parser.add_argument("--processes", type=int, default=8, help="that compile ahead; 0: none")
    parser.add_argument("--calls", default=",".join(ROWS), help="which times of the host, with commas")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.suite and args.processes:
        cases = [case for group in suites(args.suite).values() for case in group]
        compile_ahead([args.before, Path(peakgemm.__file__).parent], json.dumps(shapes(cases)),
                      args.precision.split(","), args.processes)
    trees = {"before": load(args.before), "now": peakgemm}
    gpu = device.require()
    with visiting() as peer:
        products = product_rows(trees, args, peer) if args.suite else []
        versions = peer.versions()
    calls = [row for kind in args.calls.split(",") if kind for row in ROWS[kind](trees)]
    show(products, calls)
    if args.json is not None:
        records.write(args.json, records.record(gpu, gpu.arch, [{"found": products, "calls": calls}],
                                                versions=versions, before=args.label))


if __name__ == "__main__":
    main()
