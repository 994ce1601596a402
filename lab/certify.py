"""Certificates on a card: false alarms and bounds of drawn products, planted faults, and what a certificate costs.

    python -m lab.certify --json results/h200/certify.json
    python -m lab.certify --host --faults 200          # a small draw on torch's CPU; times nothing

Errors: products of every family of the accuracy suite in IEEE FP32, emulated, by cuBLAS in FP32 and in TF32, of
several shapes, layouts and scales, as batches, with and without C0, against FP64. Faults: bits flipped in C and in
operands behind the product's back, lost and transposed tiles, swapped rows. Cost: the GPU's time of a certificate
beside one read of A, B and C, and of matmul(certify=True) beside matmul, by CUDA graphs and eager. Needs torch; takes
some two minutes on a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import peakgemm as pg
from peakgemm.errors import MissingComponent, PeakgemmError
from peakgemm.runtime import device
from peakgemm.tools.accuracy.families import FAMILIES
from peakgemm.tools.bench import records

try:
    import torch
except ImportError:
    sys.exit("lab.certify needs torch; run: pip install torch")

SHAPES = ((16, 16, 16), (64, 64, 64), (1, 512, 256), (512, 16, 96), (257, 130, 65), (256, 256, 256), (128, 128, 512),
          (64, 64, 4096))
WIDE_RANGE = ("log-uniform", "subnormal", "huge")  # whose scale is the family's
CONTENDERS = ("ieee", "emulated", "cublas", "cublas-tf32")
KINDS = ("bit of C", "bit of A", "bit of B", "lost tile", "transposed tile", "swapped rows")
TILE = 32
CALLS = 8  # in a CUDA graph, so that it takes long enough to be timed by itself


def multiply(contender: str, a: Any, b: Any, c0: Any, alpha: float, beta: float) -> Any:
    """``alpha a b + beta c0`` by a contender; on the CPU TF32 is a truncation of the operands."""
    if contender in ("ieee", "emulated"):
        return pg.gemm(a, b, c0, alpha=alpha, beta=beta, precision=contender)
    tf32 = contender.endswith("tf32")
    if tf32 and not a.is_cuda:
        a, b = ((x.contiguous().view(torch.int32) & -0x2000).view(torch.float32) for x in (a, b))
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        return alpha * torch.matmul(a, b) + (beta * c0 if c0 is not None else 0)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def wrong_products(certificate: Any) -> int:
    """How many matrices of a batch have a wrong row or column; all where they are wrong together alone."""
    wrong = {int(x[0]) for x in (*certificate.rows, *certificate.columns)}
    return len(wrong) or certificate.shape[0] * certificate.spread


def norms(values: Any, axis: int) -> Any:
    return np.sqrt((values * values).sum(axis))


def errors(where: str, batch: int, seed: int, family: str) -> tuple[dict[str, dict[str, int]], list[dict[str, Any]]]:
    """Certificates of drawn products of a family, counted by contender; medians by contender and K."""
    make, draw = FAMILIES[family], np.random.default_rng((seed, *family.encode()))
    counts: dict[str, dict[str, int]] = {x: defaultdict(int) for x in CONTENDERS}
    ratios: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number, (m, n, k) in enumerate(SHAPES):
        pairs = [make(draw, m, n, k) for _ in range(batch)]
        a, b = (torch.from_numpy(np.stack(each)).to(where) for each in zip(*pairs, strict=True))
        if family not in WIDE_RANGE:
            a, b = a * 2.0**(20 * (number % 3 - 1)), b * 2.0**(10 * (number % 2))
        if number % 2:  # the same values, columns contiguous
            a = a.mT.contiguous().mT
        if number % 4 > 1:
            b = b.mT.contiguous().mT
        alpha, beta, c0 = 1.0, 0.0, None
        if number % 3 == 2 and family not in WIDE_RANGE:
            alpha, beta = -0.75, 1.5
            c0 = torch.from_numpy(draw.standard_normal((batch, m, n)).astype(np.float32)).to(where)
            c0 *= torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b) / (batch * max(m * n, 1)**0.5)
        exact = alpha * (a.double() @ b.double()) + (beta * c0.double() if c0 is not None else 0)
        for contender in CONTENDERS:
            c = multiply(contender, a, b, c0, alpha, beta)
            options = {"alpha": alpha, "beta": beta, "c0": c0} if c0 is not None else {}
            of = pg.certify(a, b, c, precision=contender if contender == "emulated" else "ieee", **options)
            off = (c.double() - exact).abs().cpu().numpy()
            count, ratio = counts[contender], ratios[contender, k]
            finite = np.isfinite(off)
            count["products"] += batch
            count["called wrong"] += wrong_products(of)
            for name, failure in (("rigorous", None), ("likely", 1e-9)):
                rows, columns = of.bounds(failure)
                bound = rows[..., :, None] * columns[..., None, :]
                count[f"elements above the {name} bound"] += int((finite & (off > bound)).sum())
                seen = finite & (off > 0)
                ratio[name].extend((bound[seen] / off[seen])[:4096].tolist())
            count["elements"] += off.size
            by_columns = n > m  # the shorter lines are always checked
            line = norms(np.where(finite, off, 0), -2 if by_columns else -1)
            limit, residual = of.thresholds[by_columns], of.residuals[by_columns]
            ratio["threshold"].extend((limit[line > 0] / line[line > 0]).tolist())
            ratio["residual"].extend((residual / limit)[limit > 0].tolist())
    return {name: dict(each) for name, each in counts.items()}, [
        {"contender": contender, "family": family, "k": k,
         **{f"{name} over the error": median(ratio[name]) if ratio[name] else None
            for name in ("threshold", "rigorous", "likely")},
         "largest residual over the threshold": max(ratio["residual"], default=0.0)}
        for (contender, k), ratio in ratios.items()]


def planted(where: str, each: int, seed: int, kind: str, batch: int = 250) -> dict[str, int]:
    """Faults of a kind, in batches of copies of one product: how many are above the threshold, found and located."""
    m, n, k = 256, 192, 128
    draw = np.random.default_rng((seed, *kind.encode()))
    count: dict[str, int] = defaultdict(int)
    for first in range(0, each, batch):
        size = min(batch, each - first)
        a, b = (torch.from_numpy(draw.standard_normal(of).astype(np.float32)).to(where) for of in ((m, k), (k, n)))
        right = pg.matmul(a, b)
        thresholds = pg.certify(a, b, torch.zeros_like(right)).thresholds  # where both sides are looked at
        given = {"A": a.expand(size, -1, -1), "B": b.expand(size, -1, -1), "C": right.expand(size, -1, -1).clone()}
        c = given["C"]
        if kind.startswith("bit"):
            target = given[kind[-1]] = given[kind[-1]].clone()
            c = given["C"]
            i, j, bits = (torch.from_numpy(draw.integers(0, top, size)).to(where)
                          for top in (*target.shape[-2:], 32))
            index = (torch.arange(size, device=where), i, j)
            flips = (torch.ones_like(bits) << bits).to(torch.int32)
            target.view(torch.int32)[index] = target.view(torch.int32)[index] ^ flips
        else:
            for copy in range(size):
                i, j = (int(draw.integers(0, top // TILE)) * TILE for top in (m, n))
                tile = c[copy, i:i + TILE, j:j + TILE]
                if kind == "swapped rows":
                    first, second = draw.choice(m, 2, replace=False)
                    c[copy, [first, second]] = right[[second, first]]
                else:
                    tile.copy_(tile.mT.clone() if kind == "transposed tile" else torch.zeros_like(tile))
        found = pg.certify(given["A"], given["B"], c)
        off = (c.double() - given["A"].double() @ given["B"].double()).abs().cpu().numpy()
        rows, columns = (np.zeros((size, length), bool) for length in (m, n))
        for lines, indices in ((rows, found.rows), (columns, found.columns)):
            lines[tuple(indices.T)] = True
        skipped = np.zeros(size, bool)
        for indices in found.unjudged:
            skipped[indices[:, 0]] = True
        for copy in range(size):
            tally(count, off[copy], rows[copy], columns[copy], thresholds, bool(skipped[copy]))
    return dict(count)


def tally(count: dict[str, int], off: Any, rows: Any, columns: Any, thresholds: Any, skipped: bool) -> None:
    """One fault. Lines are far off whose errors' norm is above twice the threshold; a fault is above the threshold if a
    row is, of which there are more than columns here. It is located if most of these lines are named, of rows or
    columns, whichever are fewer, and no line off by less than a tenth of the threshold."""
    count["planted"] += 1
    count["not judged"] += skipped
    near, far, named = True, False, dict[int, bool]()
    for lines, axis, threshold in ((rows, 1, thresholds.rows), (columns, 0, thresholds.columns)):
        with np.errstate(all="ignore"):
            size = norms(off, axis)
        above = ~(size <= 2 * threshold)
        near &= not (lines & (size < threshold / 10)).any()
        if above.any():
            named.setdefault(int(above.sum()), bool(lines[above].mean() > 0.5))
            far |= axis == 1
    seen = bool(rows.any() or columns.any())
    count["above the threshold"] += far and not skipped
    count["of these found"] += far and not skipped and seen
    count["of these located"] += far and not skipped and seen and near and named[min(named)]
    count["below, found"] += not far and seen
    count["right lines called wrong"] += not near and not skipped


def timed(a: Any, b: Any, precision: str) -> dict[str, Callable[[], Any]]:
    """What `cost` compares."""
    c = pg.matmul(a, b, precision=precision)
    # In turns, products behind what takes little power: hot GPUs clock lower.
    return {"read": lambda: [torch.sum(x) for x in (a, b, c)],
            "matmul": lambda: pg.matmul(a, b, precision=precision),
            "certify": lambda: pg.certify(a, b, c, precision=precision),
            "with certificate": lambda: pg.matmul(a, b, precision=precision, certify=True)}


def repeat(work: Callable[[], Any]) -> None:
    for _ in range(CALLS):
        work()


def cost(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Milliseconds a call on the GPU, of CUDA graphs of several; and eager, of products with and without certificate.
    """
    from peakgemm.tools.bench.peers import TorchPeer
    from peakgemm.tools.bench.timer import Timer

    peer, rows = TorchPeer(), []
    timer = Timer(peer)
    for n in sizes:
        a, b = (peer.random(n, n, seed) for seed in (1, 2))
        for precision in ("ieee", "emulated"):
            works, graphs = timed(a, b, precision), []
            for work in works.values():
                work()
                graphs.append([peer.capture(partial(repeat, work))])
            samples = {name: [ms / CALLS for ms in each] for name, each in
                       zip(works, timer.each(graphs, ms=20, rounds=9), strict=True)}
            ms = {name: median(each) for name, each in samples.items()}
            eager = timer.compare([works["with certificate"]], [works["matmul"]], capture=False)
            rows.append({"n": n, "precision": precision, "ms": ms, "samples_ms": samples,
                         "certify_over_read": ms["certify"] / ms["read"],
                         "gb_per_s": 4e-6 * 3 * n * n / ms["certify"],
                         "with_certificate_over_matmul": ms["with certificate"] / ms["matmul"],
                         "eager_ms": {"with certificate": median(eager.ours_ms), "matmul": median(eager.baseline_ms)}})
            print({name: value for name, value in rows[-1].items() if name != "samples_ms"}, flush=True)
    peer.leave()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--host", action="store_true", help="on torch's CPU, without times")
    parser.add_argument("--batch", type=int, default=8, help="products a draw")
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", default="errors,faults,cost")
    options = parser.parse_args()
    if options.json:
        records.check_writable(options.json)
    if not options.host and not torch.cuda.is_available():
        raise MissingComponent("torch sees no GPU; pass --host for a draw on the CPU")
    where, parts = "cpu" if options.host else "cuda", options.parts.split(",")
    found: dict[str, Any] = {"seed": options.seed}
    begun = time.perf_counter()
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(FAMILIES)), get_context("spawn")) as pool:
        if "errors" in parts:
            of_families = list(pool.map(partial(errors, where, options.batch, options.seed), FAMILIES))
            counts = {name: {what: sum(each[name][what] for each, _ in of_families) for what in of_families[0][0][name]}
                      for name in CONTENDERS}
            found["errors"] = {"counts": counts, "medians": [row for _, rows in of_families for row in rows]}
            print("\n".join(f"{name}: {each}" for name, each in counts.items()), flush=True)
            print(f"{time.perf_counter() - begun:.0f} s", flush=True)
        if "faults" in parts:
            plant = partial(planted, where, -(-options.faults // len(KINDS)), options.seed)
            found["faults"] = dict(zip(KINDS, pool.map(plant, KINDS), strict=True))
            print("\n".join(f"{kind}: {count}" for kind, count in found["faults"].items()), flush=True)
            print(f"{time.perf_counter() - begun:.0f} s", flush=True)
    if "cost" in parts and not options.host:
        found["cost"] = cost((4096, 8192))
    if options.json:
        gpu = None if options.host else device.require()
        records.write(options.json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"certificates": found}],
                                                   versions={"torch": torch.__version__}))


if __name__ == "__main__":
    try:
        main()
    except PeakgemmError as error:
        sys.exit(f"certify.py: {error}")
