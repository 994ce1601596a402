"""The speed of one library by several compilers, on one GPU, in one run.

    python -m lab.compiler_speed compile build/speed/13.5.37.cubins   # in an environment with that NVRTC; no GPU
    python -m lab.compiler_speed time build/speed/*.cubins --precision ieee --json results/h100/compiler-speed-ieee.json

Every kernel that the bench's suites launch, compiled ahead; then each product by each compiler's kernels and by cuBLAS,
in turns, on the same arrays. Reproducible products must have the same bits by all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from lab.cubins import compile_all
from peakgemm.cli.console import progress
from peakgemm.kernels import shipped
from peakgemm.kernels.bound import Bound, cubin
from peakgemm.kernels.library import recipes
from peakgemm.kernels.recipe import Recipe
from peakgemm.runtime import device
from peakgemm.selection.choose import Choice, choose
from peakgemm.tools.bench import records
from peakgemm.tools.bench.operands import Arrays, launches
from peakgemm.tools.bench.peers import visiting
from peakgemm.tools.bench.suites import SUITES, Case, distinct
from peakgemm.tools.bench.timer import Timer

ARCH, SMS, GPU = "sm_90", 132, "NVIDIA H100 80GB HBM3"
PRECISIONS = ("ieee", "emulated")
#: FLOPs above which each compiler's kernel has pairs with cuBLAS of its own: at the power limit, what ran just before
#: decides the clock, and so a place in a turn of six would.
IN_PAIRS = 3e10
CHAINED = (1024, 4096)  # squares whose reproducible bits are compared


def choice_of(case: Case, precision: str) -> Choice:
    """What the H100's profile says, whoever compiles."""
    return choose(case.problem()[0], ARCH, SMS, GPU, precision)


def wanted() -> dict[str, Recipe]:
    """Every recipe of the suites' products, by the name of its cubin."""
    found: dict[str, Recipe] = {}
    squares = [case for case in SUITES["square"] if case.m in CHAINED]
    for case, precision in (*((case, p) for case in distinct(SUITES) for p in PRECISIONS),
                            *((case, "reproducible") for case in squares)):
        problem, choice = case.problem()[0], choice_of(case, precision)
        found.update({one.name: one for one in recipes(choice.kernel, choice.config, problem, ARCH, SMS)})
    return found


@contextmanager
def kernels_of(path: Path) -> Iterator[None]:
    """Within the block every kernel comes from the container ``path``, and none from a compiler."""
    before = shipped.container
    known = shipped.index(path).cubins

    def only(arch: str) -> Path:
        return path

    def find(name: str, entry: str, arch: str) -> Any:
        if name not in known:
            raise SystemExit(f"{path} has no {entry} for {arch}: compile it anew from this source")
        return original(name, entry, arch)

    original = shipped.find
    shipped.container, shipped.find = only, find
    cubin.cache_clear()
    try:
        yield
    finally:
        shipped.container, shipped.find = before, original
        cubin.cache_clear()


def bind(choice: Choice, case: Case, gpu: device.Gpu) -> Bound:
    """A product, bound anew."""
    return Bound(choice.kernel, choice.config, case.problem()[0], gpu)


def time_all(paths: list[Path], suites: list[str], precisions: list[str], milliseconds: float, rounds: int,
             seconds: float, json: Path | None) -> None:
    """Time every product by every container's kernels."""
    gpu = device.require()
    names = {path: path.name.removesuffix(".cubins") for path in paths}
    rows: list[dict[str, Any]] = []
    cases = [(suite, case) for suite in suites for case in SUITES[suite]]
    with visiting() as peer, progress("timing", len(cases) * len(precisions)) as done:
        timer = Timer(peer)
        for suite, case in cases:
            arrays = Arrays(case, gpu, peer)
            for precision in precisions:
                choice, kinds = choice_of(case, precision), [[partial(peer.multiply, *each) for each in arrays.sets]]
                for path in paths:
                    with kernels_of(path):
                        kinds.append(launches(bind(choice, case, gpu), arrays.addresses(), peer))
                if case.flops > IN_PAIRS:
                    pairs = [timer.compare(kind, kinds[0], seconds=seconds) for kind in kinds[1:]]
                    times = [(one.baseline_ms, one.ours_ms) for one in pairs]
                else:
                    cublas, *ours = timer.each(kinds, ms=milliseconds, rounds=rounds)
                    times = [(cublas, each) for each in ours]
                ratios = {name: median(theirs / ours for theirs, ours in zip(*each, strict=True))
                          for name, each in zip(names.values(), times, strict=True)}
                baselines = {name: theirs for name, (theirs, _) in zip(names.values(), times, strict=True)}
                samples = {"cublas": baselines if case.flops > IN_PAIRS else cublas,
                           "ours": {name: ours for name, (_, ours) in zip(names.values(), times, strict=True)}}
                rows.append({"suite": suite, "name": case.name, "shape": [case.m, case.n, case.k],
                             "layout": case.layout, "batch": case.batch, "precision": precision,
                             "kernel": choice.kernel.name, "config_label": choice.config.label(), "ratios": ratios,
                             "samples_ms": samples})
                done(case.name)
        same = all(same_bits(case, paths, gpu, peer) for case in SUITES["square"] if case.m in CHAINED)
    show(rows, precisions, list(names.values()))
    print(f"Bits of reproducible products: {'the same by all' if same else 'DIFFERENT'}")
    if json is not None:
        compilers = {names[path]: f"NVRTC {shipped.index(path).nvrtc}" for path in paths}
        records.write(json, records.record(gpu, ARCH, [{"found": rows}], versions=peer.versions(), compilers=compilers,
                                           same_bits=same))


def same_bits(case: Case, paths: list[Path], gpu: device.Gpu, peer: Any) -> bool:
    """Whether a reproducible product has the same bits by all."""
    arrays, choice = Arrays(case, gpu, peer), choice_of(case, "reproducible")
    found = []
    for path in paths:
        out = arrays.blank()
        with kernels_of(path):
            launches(bind(choice, case, gpu), [arrays.of(arrays.a[0], arrays.b[0], out)], peer)[0]()
        peer.stream.sync()
        found.append(out.cpu().numpy().tobytes())
    return len(set(found)) == 1


def show(rows: list[dict[str, Any]], precisions: list[str], names: list[str]) -> None:
    """Geometric means of a suite, each release's over the best one's, and squares below the bars."""
    for precision in precisions:
        print(f"\n{precision:10}" + "".join(f"{name:>12}" for name in names) + "   worst of best")
        for suite in dict.fromkeys(row["suite"] for row in rows):
            means = {name: exp(sum(log(row["ratios"][name]) for row in rows
                                   if (row["suite"], row["precision"]) == (suite, precision))
                               / sum((row["suite"], row["precision"]) == (suite, precision) for row in rows))
                     for name in names}
            print(f"{suite:10}" + "".join(f"{means[name]:12.4f}" for name in names)
                  + f"   {min(means.values()) / max(means.values()):.4f}")
        for row in rows:
            if (row["suite"], row["precision"]) == ("square", precision):
                ratios = row["ratios"]
                print(f"  {row['shape'][0]:8}" + "".join(f"{ratios[name]:12.4f}" for name in names)
                      + f"   {min(ratios.values()) / max(ratios.values()):.4f}  {row['kernel']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("compile").add_argument("file", type=Path)
    timing = commands.add_parser("time")
    timing.add_argument("files", type=Path, nargs="+")
    timing.add_argument("--suite", default=",".join(SUITES), help="suites, with commas")
    timing.add_argument("--precision", default=",".join(PRECISIONS), help="one or both, with a comma")
    timing.add_argument("--ms", type=float, default=3.0, help="milliseconds of a burst")
    timing.add_argument("--rounds", type=int, default=9)
    timing.add_argument("--seconds", type=float, default=0.5, help="of pairs with cuBLAS of a large product")
    timing.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.command == "compile":
        compile_all(wanted(), args.file)
    else:
        time_all(args.files, args.suite.split(","), args.precision.split(","), args.ms, args.rounds, args.seconds,
                 args.json)


if __name__ == "__main__":
    main()
