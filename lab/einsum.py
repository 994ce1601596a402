"""Contractions of published networks and models by `peakgemm.einsum`, torch and CuPy: results/<gpu>/einsum.json.

    python -m lab.einsum --json results/h200/einsum.json         on a GPU: about a minute
    python -m lab.einsum --check                                 tiny, on the CPU: only whether the values are right

Each is checked against FP64 of smaller sizes first, then timed in turn with the library's own einsum, TF32 off.
``ratio`` is the library's time over ours, ``host_us`` a warm call's time of the host. ``large``: every product is of
2048 and more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import peakgemm as pg
from peakgemm.arrays.base import stream_handle
from peakgemm.errors import PeakgemmError
from peakgemm.runtime import device
from peakgemm.tools.bench import records

try:
    import torch
except ImportError:
    sys.exit("lab.einsum needs torch; run: pip install torch")

SECONDS = 0.25  # of a comparison
BURST = 20  # calls, of which the host's time is taken


class Case(NamedTuple):
    """A contraction, and the size of each label."""

    name: str
    terms: str
    sizes: dict[str, int]
    large: bool = False
    by_cupy: bool = False

    def shapes(self, most: int = 1 << 30) -> list[tuple[int, ...]]:
        """Of the operands; ``most``: of a label."""
        return [tuple(min(self.sizes[label], most) for label in term)
                for term in self.terms.partition("->")[0].split(",")]


def case(name: str, terms: str, large: bool = False, by_cupy: bool = False, **sizes: int) -> Case:
    return Case(name, terms, sizes, large, by_cupy)


CASES = (
    # Vaswani et al. 2017: heads before tokens, as BERT and GPT-2 have them, and behind, as T5X and Flax.
    case("attention scores", "bhqd,bhkd->bhqk", b=8, h=16, q=1024, k=1024, d=64),
    case("attention values", "bhqk,bhkd->bhqd", b=8, h=16, q=1024, k=1024, d=64),
    case("attention scores, tokens first", "bqhd,bkhd->bhqk", b=8, h=16, q=1024, k=1024, d=64),
    case("attention values, tokens first", "bhqk,bkhd->bqhd", b=8, h=16, q=1024, k=1024, d=64),
    case("query, key and value heads", "bsd,dche->cbshe", b=8, s=1024, d=1024, c=3, h=16, e=64),
    case("output of the heads", "bshe,hed->bsd", b=8, s=1024, d=1024, h=16, e=64),
    case("multilayer perceptron", "bsd,df->bsf", b=8, s=512, d=2048, f=8192, large=True),
    # Dai et al. 2019, Transformer-XL: positions relative to each other.
    case("relative positions", "ibnd,jnd->ijbn", i=512, j=1024, b=8, n=16, d=64),
    # Lepikhin et al. 2020, GShard: tokens to experts, through one, and back.
    case("dispatch to experts", "gsec,gsm->egcm", g=8, s=1024, e=16, c=128, m=1024),
    case("experts", "egcm,emh->egch", g=8, e=16, c=128, m=1024, h=4096),
    case("combine experts", "gsec,egcm->gsm", g=8, s=1024, e=16, c=128, m=1024),
    # Jumper et al. 2021, AlphaFold 2.
    case("triangle multiplication", "ikc,jkc->ijc", i=384, j=384, k=384, c=128),
    case("outer product mean", "sic,sjd->ijcd", s=512, i=128, j=128, c=32, d=32),
    # Yan et al. 2018, ST-GCN: joints of skeletons over time.
    case("graph of joints", "nkctv,kvw->nctw", n=64, k=3, c=64, t=300, v=25, w=25),
    # Socher et al. 2013: a bilinear form for each output.
    case("bilinear", "bi,oij,bj->bo", b=2048, i=256, j=256, o=256),
    # Schollwoeck 2011: norms and one-site steps of matrix product states; a corner of Nishino and Okunishi 1996.
    case("matrix product state", "ab,apc,bpd->cd", a=2048, b=2048, c=2048, d=2048, p=2, large=True, by_cupy=True),
    case("one-site step", "awb,wpsx,bsc,cxd->apd", a=512, b=512, c=512, d=512, w=5, x=5, p=4, s=4),
    case("corner of a projected pair state", "ab,acd,bef,cegh->dgfh",
         a=256, b=256, d=256, f=256, c=16, e=16, g=16, h=16),
    # Kolda and Bader 2009: Tucker's reconstruction, and the product of CP's least squares.
    case("Tucker", "abc,ia,jb,kc->ijk", a=128, b=128, c=128, i=384, j=384, k=384, by_cupy=True),
    case("CP", "ijk,jr,kr->ir", i=512, j=512, k=512, r=256),
    # Coupled cluster's ladder of particles.
    case("particle ladder", "abef,efij->abij", a=64, b=64, e=64, f=64, i=48, j=48, large=True, by_cupy=True),
    case("batched outer product", "bi,bj->bij", b=4096, i=128, j=128),
)


def worst(case: Case, precision: str, where: str, most: int = 96) -> float:
    """The largest error of smaller sizes against FP64, over the same contraction of absolute values."""
    torch.manual_seed(0)
    arrays = [torch.randn(shape, device=where) for shape in case.shapes(most)]
    exact = torch.einsum(case.terms, *(x.double() for x in arrays))
    scale = torch.einsum(case.terms, *(x.double().abs() for x in arrays))
    return float(((pg.einsum(case.terms, *arrays, precision=precision) - exact).abs() / scale).max())


def host_us(call: Callable[[], Any]) -> float:
    """The host's microseconds of a call: the median of bursts that the GPU's queue holds, which are waited for outside.
    """
    samples = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BURST):
            call()
        samples.append((time.perf_counter() - start) / BURST * 1e6)
    return median(samples)


def of_torch(case: Case) -> tuple[Callable[[], Any], Callable[..., Any]]:
    """torch's einsum, and ours, of which the precision is to be said."""
    arrays = [torch.randn(shape, device="cuda") for shape in case.shapes()]
    return partial(torch.einsum, case.terms, *arrays), partial(pg.einsum, case.terms, *arrays)


def of_cupy(case: Case) -> tuple[Callable[[], Any], Callable[..., Any]]:
    """The same of CuPy."""
    import cupy

    arrays = [cupy.random.standard_normal(shape, dtype=cupy.float32) for shape in case.shapes()]
    return partial(cupy.einsum, case.terms, *arrays, optimize=True), partial(pg.einsum, case.terms, *arrays)


def timed(timer: Any, case: Case, library: str, precisions: list[str], stream: int) -> list[dict[str, Any]]:
    """A row for each precision."""
    if library == "cupy":
        import cupy

        with cupy.cuda.ExternalStream(stream):
            return _timed(timer, case, library, of_cupy(case), precisions)
    return _timed(timer, case, library, of_torch(case), precisions)


def _timed(timer: Any, case: Case, library: str, calls: Any, precisions: list[str]) -> list[dict[str, Any]]:
    theirs, rows = calls[0], []
    for precision in precisions:
        ours = partial(calls[1], precision=precision)
        start = time.perf_counter()
        ours()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        found = timer.compare([ours], [theirs], capture=False, seconds=SECONDS)
        host = {"ours": host_us(ours), library: host_us(theirs)}
        rows.append({"name": case.name, "terms": case.terms, "shapes": [list(x) for x in case.shapes()],
                     "large": case.large, "library": library, "precision": precision,
                     "error": worst(case, precision, "cuda") if library == "torch" else None,
                     "ms": median(found.ours_ms), "baseline_ms": median(found.baseline_ms),
                     "ratio": median(found.ratios), "ratio_spread": list(found.spread), "first_s": first,
                     "host_us": host, **found.state,
                     "samples_ms": {"ours": found.ours_ms, "baseline": found.baseline_ms}})
        row = rows[-1]
        print(f"{case.name:34} {library:6} {precision:9} {row['ms']:8.3f} ms, {row['ratio']:6.3f} x, first "
              f"{first:5.2f} s, host {host['ours']:.0f} us beside {host[library]:.0f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="on the CPU, tiny")
    parser.add_argument("--precision", default="ieee,emulated")
    parser.add_argument("--only", help="cases whose name begins so")
    parser.add_argument("--seconds", type=float, default=120, help="begin no further case after so many (120)")
    args = parser.parse_args()
    cases = [case for case in CASES if case.name.startswith(args.only or "")]
    if args.check:
        for case in cases:
            print(f"{case.name:34} {worst(case, 'ieee', 'cpu', 6):.2g}")
        return
    from peakgemm.tools.bench.peers import TorchPeer
    from peakgemm.tools.bench.timer import Timer

    records.check_writable(args.json)
    gpu, begun, rows, peer = device.require(), time.monotonic(), [], TorchPeer()
    timer = Timer(peer)
    for case in cases:
        for library in ("torch", "cupy")[:1 + case.by_cupy]:
            if time.monotonic() - begun > args.seconds:
                print(f"{case.name}: left out, {args.seconds:g} s are spent", flush=True)
                continue
            try:
                rows += timed(timer, case, library, args.precision.split(","), stream_handle(peer.stream))
            except (ImportError, PeakgemmError, RuntimeError) as error:
                rows.append({"name": case.name, "library": library, "failed": str(error).splitlines()[0]})
                print(f"{case.name}: {library}: {error}", flush=True)
            torch.cuda.empty_cache()
    versions = peer.versions()
    peer.leave()
    slow = [f"{row['name']} {row['library']} {row['precision']} {row['ratio']:.3f}" for row in rows
            if row.get("ratio", 1) < (2 if row.get("large") and row["precision"] == "emulated" else 0.98)]
    print(f"{time.monotonic() - begun:.0f} s; short of the aim: {'; '.join(slow) or 'none'}")
    if args.json:
        records.write(args.json, records.record(gpu, gpu.arch, [{"found": rows}], versions=versions))


if __name__ == "__main__":
    main()
