"""Real workloads in torch, with torch's FP32 products and with peakgemm's in their place: results/<gpu>/workload.json.

    python -m lab.workload --json results/h100/workload.json
    python -m lab.workload --quick --json quick.json           tiny, on the CPU: only to see it run

- transformer: training steps in FP32, AdamW, on tokens that a fixed permutation maps to the next.
- cholesky: A X = B, A positive definite: blocked factorisation, block columns updated by products, two substitutions.
- block-cg: the same A X = B by block conjugate gradients (BCGrQ, Dubrulle 2001: residuals kept orthonormal).

Every repeat runs all of them in turn on the same data, torch's own first, TF32 off; the first repeats warm up. The
speed-up is the median of the ratios within a repeat. The same work in FP64 says how far each is from exact arithmetic.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

import peakgemm
from peakgemm.runtime import device
from peakgemm.tools.bench import records
from peakgemm.tools.bench.sensors import Reading, Sensors, summary

TORCH = "torch"
WARM_UP = 3  # repeats that are not timed
TOLERANCE = 1e-6  # of block-cg: residual over right-hand side
Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How large it all is; ``repeats`` are timed."""

    layers: int = 4
    width: int = 1024
    mlp: int = 4096
    heads: int = 16
    sequence: int = 512
    batch: int = 8
    vocabulary: int = 512
    n: int = 8192
    block: int = 1024
    right_hand_sides: int = 64
    steps: int = 30
    repeats: int = 10


QUICK = Sizes(layers=1, width=32, mlp=64, heads=2, sequence=16, batch=2, vocabulary=16, n=96, block=32,
              right_hand_sides=4, steps=3, repeats=2)


def using(products: str, linalg: bool = False) -> AbstractContextManager[Any]:
    """Within it torch's FP32 products, with ``linalg`` its linear algebra too, are torch's own (``torch``), or
    peakgemm's in that precision."""
    return nullcontext() if products == TORCH else peakgemm.torch.use(products, linalg=linalg)


@dataclass
class Entry:
    """Who runs the products of a workload, and what came of it; seconds a repeat."""

    products: str
    linalg: bool = False
    seconds: list[float] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    outcomes: list[Any] = field(default_factory=list)
    rerouted: int = 0
    fallbacks: int = 0


class Clock:
    """Seconds of work on a device, begun and ended with nothing queued."""

    def __init__(self, place: str) -> None:
        self._wait: Callable[[], None] = torch.cuda.synchronize if place == "cuda" else lambda: None
        self._sensors = Sensors()

    def run(self, entry: Entry, work: Callable[[], Any], *, keep: bool) -> None:
        """Time ``work`` with the entry's products; its time counts where ``keep``, its outcome always."""
        with using(entry.products, entry.linalg) as counts:
            self._wait()
            start = time.perf_counter()
            outcome = work()
            self._wait()
            taken = time.perf_counter() - start
            reading = self._sensors.read()
        entry.outcomes.append(outcome)
        if counts is not None:
            entry.rerouted += sum(counts.calls.values())
            entry.fallbacks += sum(counts.fallbacks.values())
        if keep:
            entry.seconds.append(taken)
            entry.readings.append(reading)


class Layer(nn.Module):
    """Attention and an MLP, each behind a layer norm; attention as two batched products."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.heads = s.heads
        self.norms = nn.ModuleList([nn.LayerNorm(s.width), nn.LayerNorm(s.width)])
        self.qkv, self.joined = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.mlp = nn.Sequential(nn.Linear(s.width, s.mlp), nn.GELU(), nn.Linear(s.mlp, s.width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * (width // self.heads) ** -0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        x = x + self.joined(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Tokens ``(batch, sequence)`` to logits ``(batch, sequence, vocabulary)``."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(s.vocabulary, s.width), nn.Embedding(s.sequence, s.width)
        self.layers = nn.Sequential(*(Layer(s) for _ in range(s.layers)))
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.tokens(x) + self.places.weight)))  # type: ignore[no-any-return]


class Training:
    """A model of its own, from the same start and on the same data as any other's."""

    def __init__(self, s: Sizes, place: str, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self._model = Transformer(s).to(place, dtype)
        self._optimiser = torch.optim.AdamW(self._model.parameters(), lr=5e-4)
        self._draw = torch.Generator().manual_seed(1)
        self._rule, self._shape = torch.randperm(s.vocabulary, generator=self._draw).to(place), (s.batch, s.sequence)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next tokens and what is to be said of them."""
        x = torch.randint(len(self._rule), self._shape, generator=self._draw).to(self._rule.device)
        return x, self._rule[x]

    def step(self, x: Tensor, y: Tensor) -> float:
        """One step of training; the loss before it."""
        self._optimiser.zero_grad()
        loss = nn.functional.cross_entropy(self._model(x).flatten(0, 1), y.flatten())
        loss.backward()
        self._optimiser.step()
        return float(loss.detach())


def transformer(entries: Sequence[Entry], s: Sizes, place: str) -> list[Row]:
    """Loss curves and times of a step. Differences are the largest of a loss, of any step."""
    clock, models = Clock(place), [Training(s, place) for _ in entries]
    for step in range(WARM_UP + s.steps):
        for entry, model in zip(entries, models, strict=True):
            x, y = model.batch()
            clock.run(entry, lambda model=model, x=x, y=y: model.step(x, y), keep=step >= WARM_UP)
    del models
    exact = Training(s, place, torch.float64)
    losses = [exact.step(*exact.batch()) for _ in range(WARM_UP + s.steps)]

    def distance(one: list[float], other: list[float]) -> float:
        return max(abs(p - q) for p, q in zip(one, other, strict=True))

    size = {name: getattr(s, name) for name in ("layers", "width", "mlp", "heads", "sequence", "batch", "vocabulary")}
    return [{**row_of("transformer", "training step", entry, entries[0], size),
             "from_fp32": distance(entry.outcomes, entries[0].outcomes), "from_fp64": distance(entry.outcomes, losses),
             "losses": entry.outcomes} for entry in entries]


def factorise(a: Tensor, block: int) -> None:
    """``A = L L^T`` in place, L in the lower triangle; right-looking, block column by block column."""
    n = a.shape[0]
    for j in range(0, n, block):
        end = j + block
        a[j:end, j:end] = torch.linalg.cholesky(a[j:end, j:end])
        if end < n:
            a[end:, j:end] = torch.linalg.solve_triangular(a[j:end, j:end].mT, a[end:, j:end], upper=True, left=False)
        for k in range(end, n, block):
            a[k:, k:k + block].addmm_(a[k:, j:end], a[k:k + block, j:end].mT, alpha=-1)


def cholesky(a: Tensor, b: Tensor, block: int) -> tuple[Tensor, int]:
    """X of ``A X = B``; A is overwritten."""
    factorise(a, block)
    x, n = b.clone(), a.shape[0]
    for j in range(0, n, block):
        end = j + block
        x[j:end] = torch.linalg.solve_triangular(a[j:end, j:end], x[j:end], upper=False)
        x[end:].addmm_(a[end:, j:end], x[j:end], alpha=-1)
    for j in reversed(range(0, n, block)):
        end = j + block
        x[j:end] = torch.linalg.solve_triangular(a[j:end, j:end].mT, x[j:end], upper=True)
        x[:j].addmm_(a[j:end, :j].mT, x[j:end], alpha=-1)
    return x, 1


def block_cg(a: Tensor, b: Tensor, block: int) -> tuple[Tensor, int]:
    """X of ``A X = B``, and the iterations that it took; ``block`` is not used."""
    q, c = torch.linalg.qr(b)
    s, x, norm = q, torch.zeros_like(b), torch.linalg.norm(b)
    for iteration in range(1, 1001):
        t = a @ s
        xi = torch.linalg.inv(s.mT @ t)
        x += s @ (xi @ c)
        q, zeta = torch.linalg.qr(q - t @ xi)
        s = q + s @ zeta.mT
        c = zeta @ c
        if torch.linalg.norm(c) <= TOLERANCE * norm:
            return x, iteration
    raise SystemExit(f"block-cg: a residual above {TOLERANCE:g} after {iteration} iterations")


def system(s: Sizes, place: str) -> tuple[Tensor, Tensor]:
    """A, of eigenvalues from 0.01 to about 4, and B; float32 numbers in float64."""
    draw = torch.Generator(device=place).manual_seed(2)
    g = torch.randn(s.n, s.n, generator=draw, device=place, dtype=torch.float64)
    b = torch.randn(s.n, s.right_hand_sides, generator=draw, device=place, dtype=torch.float64)
    a = g @ g.mT / s.n
    a.diagonal().add_(0.01)
    return a.float().double(), b.float().double()


def solves(name: str, solve: Callable[[Tensor, Tensor, int], tuple[Tensor, int]], entries: Sequence[Entry], s: Sizes,
           place: str) -> list[Row]:
    """Times of a solve. Differences are ||X - X'|| / ||X'||; ``residual`` is ||B - A X|| / (||A|| ||X||); Frobenius."""
    clock, (a64, b64) = Clock(place), system(s, place)
    a, b = a64.float(), b64.float()
    for repeat in range(WARM_UP + s.repeats):
        for entry in entries:
            entry.outcomes.clear()  # of all repeats the last is looked at
            copy = a.clone()
            clock.run(entry, lambda copy=copy: solve(copy, b, s.block), keep=repeat >= WARM_UP)
    exact = torch.cholesky_solve(b64, torch.linalg.cholesky(a64))
    norm = torch.linalg.norm

    def distance(x: Tensor, other: Tensor) -> float:
        return float(norm(x.double() - other) / norm(other))

    size = {"n": s.n, "block": s.block, "right_hand_sides": s.right_hand_sides}
    rows = []
    for entry in entries:
        (x, iterations), = entry.outcomes
        residual = float(norm(b64 - a64 @ x.double()) / (norm(a64) * norm(x.double())))
        rows.append({**row_of(name, "solve", entry, entries[0], size), "iterations": iterations, "residual": residual,
                     "from_fp32": distance(x, entries[0].outcomes[0][0].double()), "from_fp64": distance(x, exact)})
    return rows


def row_of(workload: str, unit: str, entry: Entry, base: Entry, size: dict[str, int]) -> Row:
    """What every row says; ``base`` are torch's own products."""
    ms = [1e3 * x for x in entry.seconds]
    tenths = quantiles(ms, n=10, method="inclusive")
    ratios = [theirs / ours for ours, theirs in zip(entry.seconds, base.seconds, strict=True)]
    return {"workload": workload, "products": entry.products, "unit": unit, "size": size, "ms": median(ms),
            "spread_ms": [tenths[0], tenths[-1]], "speedup": median(ratios), "rerouted": entry.rerouted,
            "fallbacks": entry.fallbacks, **summary(entry.readings), "samples_ms": ms}


def measured(precisions: Sequence[str], s: Sizes, place: str) -> list[Row]:
    """The rows of all workloads, each with torch's products and peakgemm's in each precision.

    Raises:
        SystemExit: on the GPU, where peakgemm ran no product at all.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for work in (transformer,
                 lambda *args: solves("cholesky", cholesky, *args),
                 lambda *args: solves("block-cg", block_cg, *args)):
        found = work([Entry(products) for products in (TORCH, *precisions)], s, place)
        for row in found:
            if place == "cuda" and row["products"] != TORCH and not row["rerouted"]:
                raise SystemExit(f"{row['workload']}: no product went to peakgemm in {row['products']}")
            print(f"{row['workload']:12} {row['products']:10} {row['ms']:9.2f} ms a {row['unit']}, "
                  f"{row['speedup']:.3f} x torch; from FP64 {row['from_fp64']:.2g}, from torch {row['from_fp32']:.2g}",
                  flush=True)
        rows += found
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--precision", default="ieee,emulated", help="of peakgemm.torch.use (ieee,emulated)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the CPU, where nothing is rerouted")
    args = parser.parse_args()
    records.check_writable(args.json)
    gpu = None if args.quick else device.require()
    rows = measured(args.precision.split(","), QUICK if args.quick else Sizes(), "cpu" if args.quick else "cuda")
    records.write(args.json, records.record(gpu, gpu.arch if gpu else "sm_90", [{"rungs": rows}],
                                            versions={"torch": torch.__version__}))


if __name__ == "__main__":
    main()
