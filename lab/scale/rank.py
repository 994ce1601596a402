"""One rank of the scale suite, on a GPU of its own: run as ``python -m`` by `lab.scale.scale`.

One GPU's times and the link's come first, then the prediction, which is in the record before anything is overlapped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lab.scale.model import losses
from lab.scale.parts import Answer
from lab.scale.predict import ROWS, WIDTH, Case, alone, cases, pays_from, predicted, shapes
from peakgemm.api import matmul
from peakgemm.distributed import all_gather_matmul, explain, matmul_reduce_scatter
from peakgemm.integrations.group import known
from peakgemm.integrations.overlap import Link, Way, best
from peakgemm.torch import use

_TIMEOUT = timedelta(seconds=40)
_ROUNDS = 5
_BURST_MS = 12.0


def main(place: Path) -> None:
    """Measure what the file at ``place`` asks for; rank 0's answer lies beside it."""
    task = json.loads(place.read_text())
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("nccl", timeout=_TIMEOUT, device_id=torch.device("cuda", rank))
    answer = Answer(place if rank == 0 else None, task["seconds"])
    suite = Suite(answer, world, task["precisions"], task["quick"])
    answer.found |= {"gpus": world, "gpu": torch.cuda.get_device_name(),
                     "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    for name, part, least in (("link", suite.link, 0), ("correct", suite.correct, 0), ("one_gpu", suite.one_gpu, 10),
                              ("prediction", suite.prediction, 0), ("products", suite.products, 10),
                              ("baselines", suite.baselines, 10), ("training", suite.training, 10)):
        done = suite.in_step(answer.part(name, part, least))
        if not done and name in ("link", "correct"):
            break
    answer.save()
    dist.barrier()
    dist.destroy_process_group()


class Suite:
    """The parts, each a collective call."""

    def __init__(self, answer: Answer, world: int, precisions: Sequence[str], quick: bool) -> None:
        self._answer, self._world, self._quick = answer, world, quick
        self._precisions = list(precisions)
        self._cases = list(cases(world, precisions, quick))
        self._times: dict[tuple[int, int, int, str], float] = {}
        self._link: Link | None = None

    def in_step(self, well: bool) -> bool:
        """Whether a part ended well on all ranks."""
        every = torch.tensor(int(well), device="cuda")
        dist.all_reduce(every, dist.ReduceOp.MIN)
        return bool(every.item())

    def link(self) -> None:
        """What connects the GPUs, measured."""
        group = known(None, _TIMEOUT)
        self._link = group.link
        self._answer.found["link"] = None if group.link is None else group.link.to_json()
        if group.link is None:
            raise RuntimeError("no symmetric memory between these GPUs: nothing is overlapped")

    def correct(self) -> None:
        """Errors in eps against FP64 of all ways of both calls, and of DTensors in all placements."""
        found: dict[str, float] = {}
        for precision in self._precisions:
            for m, n, k in ((self._world * 384, 640, 512), (self._world * 256, 512, self._world * 384)):
                a, b = _drawn(m, k, 1), _drawn(k, n, 2)
                for chunks in (0, 1, 2, None):
                    for _ in range(3):  # halves of the exchange's memory in turn
                        whole = all_gather_matmul(self._mine(a, 0), b, precision=precision,
                                                                 chunks=chunks)
                        if k % self._world == 0:
                            part = matmul_reduce_scatter(self._mine(a, 1), self._mine(b, 0),
                                                                        precision=precision, chunks=chunks)
                            _note(found, f"scatter {precision} {chunks}", self._mine(a, 0), b, part)
                    _note(found, f"gather {precision} {chunks}", a, b, whole)
        self._answer.found["errors_eps"] = found
        self._placements(found)
        if not max(found.values()) < 50:
            raise AssertionError(f"largest errors: {sorted(found.items(), key=lambda x: -x[1])[:3]}")

    def _placements(self, found: dict[str, float]) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cuda", (self._world,))
        a, b = _drawn(512, 384, 3), _drawn(384, 640, 4)

        def spread(x: Tensor, placement: Any) -> Any:
            if isinstance(placement, Partial):
                return DTensor.from_local(x if dist.get_rank() == 0 else torch.zeros_like(x), mesh, [placement])
            return distribute_tensor(x, mesh, [placement])

        placements = (Replicate(), Partial(), Shard(0), Shard(1))
        for precision in self._precisions:
            for first in placements:
                for second in placements:
                    got = matmul(spread(a, first), spread(b, second), precision=precision)
                    _note(found, f"DTensor {precision} {first} {second}", a, b, got.full_tensor())

    def one_gpu(self) -> None:
        """Times of the products that the prediction asks for, the slowest rank's."""
        wanted = shapes(self._cases, self._world, self._chosen)
        found = []
        for m, n, k, precision in wanted:
            a, b, out = _drawn(m, k, 1), _drawn(k, n, 2), torch.empty(m, n, device="cuda")
            found.append(_timed([lambda a=a, b=b, out=out, precision=precision:  # type: ignore[misc]
                                 matmul(a, b, out=out, precision=precision)], 4, together=False)[0])
        shared = torch.tensor(found, device="cuda")
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        self._times = {key: 1e3 * ms for key, ms in zip(wanted, shared.tolist(), strict=True)}
        self._answer.found["one_gpu"] = [{"shape": key[:3], "precision": key[3], "ms": us / 1e3}
                                         for key, us in self._times.items()]

    def _chosen(self, case: Case) -> Way:
        """As the call itself chooses."""
        return best(explain(case.m, case.n, case.k, precision=case.precision,
                            scatter=case.call != "all_gather_matmul"))

    def prediction(self) -> None:
        """Written down before the run."""
        assert self._link is not None
        link = self._link
        rows = [predicted(case, self._world, lambda *key: self._times[key], link, self._chosen) for case in self._cases]
        self._answer.found["prediction"] = {
            "products": rows, "times": "measured",
            "overlap_pays_from_rows": {precision: pays_from(rows, precision) for precision in self._precisions}}

    def products(self) -> None:
        """Strong and weak scaling."""
        rows: list[dict[str, Any]] = []
        self._answer.found["products"] = rows
        for case in self._cases:
            if case.scaling != "rows":
                gather = case.call == "all_gather_matmul"
                call = all_gather_matmul if gather else matmul_reduce_scatter
                a, b = _drawn(case.m // self._world if gather else case.m, case.k, 1), _drawn(case.k, case.n, 2)
                ms = _timed([lambda call=call, a=a, b=b, case=case:  # type: ignore[misc]
                             call(a, b, precision=case.precision)], _ROUNDS)[0]
                share = self._world if case.scaling == "strong" else 1
                one = self._times[alone(case, self._world)] / 1e3
                rows.append({**case._asdict(), "gpus": self._world, "ms": ms, "one_gpu_ms": one,
                             "speedup": one * self._world / share / ms, "efficiency": one / share / ms})
                self._answer.save()

    def baselines(self) -> None:
        """One weight and M rows: ours, against NCCL and then torch's FP32 product, or ours."""
        rows = self._answer.found["products"]
        for precision in self._precisions:
            for m in ROWS[::3] if self._quick else ROWS:
                if m % self._world:
                    continue
                a, b = _drawn(m // self._world, WIDTH, 1), _drawn(WIDTH, WIDTH, 2)
                gathered = torch.empty(m, WIDTH, device="cuda")

                def nccl(multiply: Callable[..., Any], a: Tensor = a, b: Tensor = b, to: Tensor = gathered) -> Any:
                    dist.all_gather_into_tensor(to, a)
                    return multiply(to, b)

                def ours(x: Tensor, y: Tensor, precision: str = precision) -> Any:
                    return matmul(x, y, precision=precision)

                works: list[Callable[[], Any]] = [
                    lambda a=a, b=b, precision=precision:  # type: ignore[misc]
                    all_gather_matmul(a, b, precision=precision),
                    lambda nccl=nccl: nccl(torch.mm), lambda nccl=nccl, ours=ours: nccl(ours)]  # type: ignore[misc]
                ms, with_torch, with_ours = _timed(works, _ROUNDS)
                rows.append({**Case("all_gather_matmul", "rows", m, WIDTH, WIDTH, precision)._asdict(),
                             "gpus": self._world, "ms": ms, "nccl_torch_ms": with_torch, "nccl_ours_ms": with_ours,
                             "ratio_to_nccl_torch": with_torch / ms, "ratio_to_nccl_ours": with_ours / ms})
                self._answer.save()

    def training(self) -> None:
        """A small transformer, tensor-parallel under `use`, against the same on one GPU."""
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cuda", (self._world,))
        alone = losses(None, steps=20, width=512, device="cuda")
        with use() as seen:
            together = losses(mesh, steps=20, width=512, device="cuda")
        off = max(abs(x - y) / abs(x) for x, y in zip(alone, together, strict=True))
        self._answer.found["training"] = {"one_gpu": alone, "together": together, "largest_difference": off,
                                          "rerouted": dict(seen.calls)}
        if not off < 1e-5:
            raise AssertionError(f"losses differ by {off:.2e}")

    def _mine(self, x: Tensor, dim: int) -> Tensor:
        return x.chunk(self._world, dim)[dist.get_rank()].contiguous()


def _drawn(rows: int, columns: int, seed: int) -> Tensor:
    """Random normal values, the same on all ranks."""
    draw = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(rows, columns, device="cuda", generator=draw)


def _note(found: dict[str, float], name: str, a: Tensor, b: Tensor, c: Tensor) -> None:
    """The largest error of all ranks, in eps of ``|A||B|``; NaN is infinite."""
    left, right = a.double(), b.double()
    scale = 2.0**-23 * (left.abs() @ right.abs())
    worst = ((c.double() - left @ right).abs() / scale).nan_to_num(nan=float("inf")).max()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    found[name] = max(found.get(name, 0.0), float(worst))


def _timed(works: Sequence[Callable[[], Any]], rounds: int, together: bool = True) -> list[float]:
    """Milliseconds a call of several kinds of work in turns: medians of bursts, of the slowest rank.

    ``together``: ranks begin each burst together, and agree on how long it is.
    """
    calls = []
    for work in works:
        for _ in range(2):
            work()
        ms = torch.tensor(_burst(work, 2), device="cuda")
        if together:
            dist.all_reduce(ms, dist.ReduceOp.MAX)
        calls.append(max(1, min(200, round(_BURST_MS / max(float(ms), 1e-3)))))
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, count, each in zip(works, calls, times, strict=True):
            if together:
                dist.barrier()
            each.append(_burst(work, count))
    found = torch.tensor([median(each) for each in times], device="cuda")
    if together:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    result: list[float] = found.tolist()
    return result


def _burst(work: Callable[[], Any], calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end) / calls)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
