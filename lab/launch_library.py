"""Launch every kernel and configuration of the library on awkward shapes, for compute-sanitizer; results are checked.

    python -m lab.launch_library [tiled | reducing | cluster | wide | handed | skinny | chain | small | tensor]...

Only these: FFMA kernels of tiles, of those whose slices reduce together, of cluster split-K, wide ones, tiles whose
accumulators are handed on, thin products, those by one chain an element, and small ones; tensor-core ones.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import cycle, product

from peakgemm.errors import PeakgemmError
from peakgemm.kernels.bound import bind
from peakgemm.kernels.emulated.product import PRODUCTS, half_as_high, product_on
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.kernels.ffma import chain, skinny, small
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.tile_model import compiled, may_hand_on, tilings
from peakgemm.kernels.ffma.tiled import cluster_split, reduces_across_slices
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import KERNELS, recipes
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.schedule import handing_on
from peakgemm.problem import Batch, Config, Problem, varied
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import in_parallel
from peakgemm.selection.machine import machine

GROUPS = ("tiled", "reducing", "cluster", "wide", "handed", "skinny", "chain", "small", "tensor")
TILED = ((257, 129, 65, 1), (33, 300, 7, 3), (64, 128, 64, 2), (1, 1, 1, 1), (300, 200, 260, 1))
SMALL_SHAPES = ((13, 11, 150, 5), (8, 8, 8, 3), (40, 37, 33, 2), (260, 12, 64, 1), (70, 130, 20, 1))
SKINNY_SHAPES = ((1, 300, 257, 1), (300, 5, 130, 2), (16, 129, 64, 1), (7, 3, 40, 3), (300, 12, 257, 1))
CHAIN_SHAPES = (*SKINNY_SHAPES, (32, 70, 1000, 1), (300, 25, 200, 2), (3, 5000, 70, 1))


def compile_ahead(jobs: list[tuple[Kernel, Config, tuple[int, int, int, int], bool, bool, float]], arch: str) -> None:
    """The kernels of all launches, on all processors: one after the other takes ten times as long."""
    found = {}
    for kernel, config, (m, n, k, count), ta, tb, _ in jobs:
        batch = Batch.merged((count,), (m * k,), (k * n,), (m * n,), (m * n,))
        problem = Problem(m, n, k, m if ta else k, k if tb else n, n, trans_a=ta, trans_b=tb, batch=batch)
        found |= {made.name: made for made in recipes(kernel, config, problem, arch, device.require().sm_count)}
    in_parallel(lambda made: made.make("cubin"), list(found.values()))


def launch(kernel: Kernel, config: Config, shape: tuple[int, int, int, int], ta: bool, tb: bool, beta: float) -> bool:
    """One product on small integers, which must come out exactly; the output is NaN before it where beta is 0."""
    gpu = device.require()
    m, n, k, count = shape
    draw = torch.Generator(device="cuda").manual_seed(m + n + k)
    a, b, c = (torch.randint(-3, 4, (count, *s), generator=draw, device="cuda").float()
               for s in (((k, m) if ta else (m, k)), ((n, k) if tb else (k, n)), (m, n)))
    exact = (a.mT if ta else a) @ (b.mT if tb else b) + beta * c
    out = c if beta else torch.full_like(c, float("nan"))
    batch = Batch.merged((count,), (m * k,), (k * n,), (m * n,), (m * n,))
    address = [min(16, x.data_ptr() & -x.data_ptr()) for x in (a, b, out)]
    problem = Problem(m, n, k, a.shape[-1], b.shape[-1], n, 1.0, beta, (address[0], address[1], address[2]), ta, tb,
                      batch=batch)
    bound = bind(kernel, config, problem, gpu)
    partial = torch.empty(max(bound.workspace_bytes // 4, 1), device="cuda")
    bound.launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), out.data_ptr(), partial.data_ptr(),
                 torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return torch.equal(out, exact)


def main(asked: list[str]) -> None:
    """Every configuration on every layout; shapes, splits and beta take turns."""
    wrong = launched = 0
    arch = device.require().arch
    gpu, few = machine(arch, device.require().sm_count), machine(arch, 8)
    turns, ranges, clusters = cycle(product((1, 0, 3), (0.0, 1.0))), cycle((1, 2, 5, 11)), cycle((2, 4, 16, 8))
    tiled = [kernel for kernel in KERNELS if kernel.family.tiled]
    jobs = [(kernel, way, shape) for kernel in tiled if kernel is not WIDE
            for way in compiled(kernel, gpu) for shape in TILED]
    jobs += [(kernel, config, (40, 70, 1100, 2)) for kernel, config, shape in jobs if shape == TILED[0]]
    of_wide = [(WIDE, WIDE.default, (m, n, k, 1)) for m, n, k, _ in (*TILED, (400, 600, 50, 1), (130, 4, 1000, 1))]
    of_handed = []
    for kernel, one in [(each, config) for each in tiled for config in tilings(each, gpu)]:
        if may_hand_on(kernel, one):  # a third more tiles than blocks
            down = gpu.sms * one.min_blocks * 4 // 15 + 1
            of_handed.append((kernel, handing_on(varied(one, chunked=False)),
                              (down * one.bm - 3, 5 * one.bn - 9, 70, 1)))
    of_thin = [(SKINNY, config, shape) for shape in SKINNY_SHAPES
               for config in dict.fromkeys(replace(one, split=1) for one in
                                           skinny.configurations(Problem.contiguous(*shape[:3]), few))]
    of_chain = [(CHAIN, config, shape) for shape in CHAIN_SHAPES
                for config in chain.configurations(Problem.contiguous(*shape[:3]), gpu)]
    of_small = [(SMALL, tile, shape) for shape in SMALL_SHAPES for tile in small.tiles(shape[2])]
    emulated = [(*product_on(scheme, architecture(arch)), shape) for scheme in SCHEMES.values() for shape in TILED]
    emulated += [(kernel, replace(config, cluster=2), shape) for kernel, config, shape in emulated if kernel.wgmma]
    emulated += [(PRODUCTS["fp16x3"], half_as_high(SCHEMES["fp16x3"]), shape) for shape in TILED]
    in_registers = [(FUSED, FUSED.default), *((STREAMED, streamed(columns)) for columns in (64, 128))]
    emulated += [(kernel, replace(config, trans_c=trans_c), shape) for kernel, config in in_registers
                 for trans_c in (False, True) for shape in TILED]
    groups = {"tiled": [job for job in jobs if not reduces_across_slices(job[1])],
              "reducing": [job for job in jobs if reduces_across_slices(job[1]) and not cluster_split(job[1])],
              "cluster": [job for job in jobs if cluster_split(job[1])],
              "wide": of_wide, "handed": of_handed, "skinny": of_thin, "chain": of_chain, "small": of_small,
              "tensor": emulated}
    launches = []
    for kernel, config, shape in (job for name in asked or GROUPS for job in groups[name]):
        for ta, tb in product((False, True), (False, True)):
            split, beta = next(turns)
            cut = config
            if config.handed:
                pass
            elif cluster_split(config):
                cut = replace(config, cluster=next(clusters))
            elif config.one_tile:
                cut = replace(config, split=next(ranges))
            elif kernel is not SKINNY and kernel.varies("split") and config.cluster == 1:
                cut = replace(config, split=split)
            launches.append((kernel, cut, shape, ta, tb, beta))
    compile_ahead(launches, arch)
    for each in launches:
        launched += 1
        if not launch(*each):
            wrong += 1
            kernel, cut, *rest = each
            print(f"wrong: {kernel.name} {cut.label()} {rest}")
    print(f"{launched} launches, {wrong} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS) + "  [all]")
    words = parse.parse_args().groups
    if unknown := sorted(set(words) - set(GROUPS)):
        parse.error(f"{', '.join(unknown)}: there are {', '.join(GROUPS)}")
    try:
        device.require()
        import torch
    except (PeakgemmError, ImportError) as missing:
        sys.exit(f"launch_library.py needs torch and a GPU: {missing}")
    main(words)
