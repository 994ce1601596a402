"""Time the tensor-core kernels of fp16x3 in every way to share K, and compare the model with the times.

    python tools/tensor_kernels.py --json results/h100/tensor-kernels.json [--shapes MxNxK[:layout][*batch],...]
    python tools/tensor_kernels.py --model results/h100/tensor-kernels.json      (no GPU)

What `peakgemm.emulate.estimate` was fitted to: its constants are to be fitted anew where a kernel has changed. Prints
the root mean square error of the model and what its choice costs against the fastest.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from peakgemm.bench import records
from peakgemm.bench.operands import Arrays, launches
from peakgemm.bench.peers import find_peer
from peakgemm.bench.suites import cases
from peakgemm.bench.timer import Comparison, Timer
from peakgemm.cli.console import out, progress
from peakgemm.emulate.bound import bind
from peakgemm.emulate.estimate import best, candidates, estimate_us
from peakgemm.kernels.posed import TURNED
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.schemes import FOUR_TIMES, FUSED, PRODUCTS, SCHEMES, STREAMED
from peakgemm.kernels.short_sums import sliced
from peakgemm.problem import Config
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture

Row = dict[str, Any]
SCHEME = SCHEMES["fp16x3"]
SHAPES = (
    "256x256x256,384x384x384,512x512x512,640x640x640,768x768x768,1024x1024x1024,1023x1023x1023,1280x1280x1280,"
    "1536x1536x1536,1535x1535x1535,2048x2048x2048,2047x2047x2047,3072x3072x3072,4096x4096x4096,512x512x1024,"
    "512x512x32768,256x256x65536,"
    "64x4096x4096,128x4096x4096,4096x64x4096,4096x128x4096,100352x64x576:NT,25088x128x1152:NT,6272x256x2304:NT,"
    "1568x512x4608:NT,128x2304x768:NT,64x4096x1024:NT,512x512x64:NT*96,512x64x512*96,256x256x256*64,128x128x262144:TN,"
    "4096x4096x64,4096x4096x128,401408x64x147:NT,4096x2304x768:NT,4096x768x3072,3072x768x4096:TN,6304x3072x768:NT,"
    "1024x50257x768:NT,512x11008x4096:NT,512x4096x11008:NT,100352x256x64:NT,1021x1021x1021,1024x1024x1024:TT,"
    "2048x2048x1024,1024x1024x16384,2048x4096x4096:NT,8192x8192x256,511x511x511,32x1000x2048:NT,16x11008x4096:NT,"
    "32x4096x4096,256x1024x1024,512x4096x4096:NT,1024x1024x1024:TN,1023x1023x1023:TN")
_SLOWEST = 2.5  # what the model thinks so many times slower than its best is not timed


def measure(shapes: str, seconds: float, path: Path) -> list[Row]:
    """A row each for kernel and split, written as they come."""
    gpu, peer = device.require(), find_peer()
    timer, rows = Timer(peer, seconds), []
    chosen = cases(shapes)
    with progress("timing", len(chosen)) as done:
        for case in chosen:
            arrays = Arrays(case, gpu, peer)
            works = [lambda each=each: peer.multiply(*each) for each in zip(arrays.a, arrays.b, arrays.c, strict=True)]
            found = list(candidates(SCHEME, arrays.problem, gpu.limits, gpu.sm_count, sliced=sliced(arrays.problem)))
            least = min(us for _, _, us in found)
            for kernel, config, us in found:
                if us <= _SLOWEST * least:
                    ours = launches(bind(kernel, config, arrays.problem, gpu), arrays.addresses(), peer)
                    rows.append({"suite": "tensor-kernels", "name": case.name, "shape": [case.m, case.n, case.k],
                                 "layout": case.layout, "batch": case.batch, "precision": SCHEME.name,
                                 "kernel": kernel.name, "config": config.to_json(), "source": "named",
                                 "operand_sets": len(works), **timed(timer.compare(ours, works), case.flops)})
            records.write(path, records.record(gpu, gpu.arch, [{"rungs": rows}], versions=peer.versions()))
            done(case.name)
    return rows


def kernel_of(config: Config) -> Kernel:
    """Whose configuration it is; all are called by the scheme's name."""
    if config.producers == FUSED.default.producers:
        return FUSED
    return PRODUCTS[SCHEME.name] if config.stages >= PRODUCTS[SCHEME.name].default.stages else STREAMED


def timed(comparison: Comparison, flops: int) -> Row:
    """What the comparison says, without what `peakgemm bench` alone has a use for."""
    return {key: value for key, value in comparison.to_json(flops).items() if key not in ("mode", "eager_tflops")}


def microseconds(row: Row) -> float:
    """A call's."""
    return float(2 * math.prod(row["shape"]) * row["batch"] / row["tflops"] / 1e6)


def judge(rows: Sequence[Row], sm_count: int) -> str:
    """How far the model is from the times; a record may be older than what is chosen now."""
    limits, errors, costs = architecture("sm_90"), [], {}
    names = dict.fromkeys(row["name"] for row in rows)
    for name in names:
        problem = cases(name)[0].problem()[0]
        own = {Config(**row["config"]): microseconds(row) for row in rows if row["name"] == name}
        for config, us in own.items():
            errors.append(math.log(estimate_us(kernel_of(config), config, problem, limits, sm_count) / us))
        _, config, _ = best(SCHEME, problem, limits, sm_count, sliced=sliced(problem))
        if config not in own:  # of a record from when sums of long parts of K were carried over four times, too
            config = replace(config, variant=config.variant & TURNED | FOUR_TIMES)
        if config in own:
            costs[name] = own[config] / min(own.values())
    worst = max(costs, key=lambda name: costs[name])
    off, more = math.sqrt(fmean(e * e for e in errors)), geometric_mean(costs.values()) - 1
    untimed = f"; of {len(names) - len(costs)} it was not timed" if len(costs) < len(names) else ""
    return (f"{len(errors)} times of {len(names)} shapes: the model's root mean square error is {off:.1%}; its choice "
            f"takes {more:.1%} more than the fastest in the geometric mean, {costs[worst] - 1:.1%} at worst "
            f"({worst}){untimed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", type=Path, help="a record to compare the model with")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--seconds", type=float, default=0.03, help="of timing, for each row (0.03)")
    args = parser.parse_args()
    if (args.json is None) == (args.model is None):
        parser.error("either --json or --model")
    if args.model is not None:
        record = json.loads(args.model.read_text())
        rows, sms = record["rungs"], record["device"]["sm_count"]
    else:
        records.check_writable(args.json)
        rows, sms = measure(args.shapes, args.seconds, args.json), device.require().sm_count
    out.print(judge(rows, sms), markup=False)


if __name__ == "__main__":
    main()
