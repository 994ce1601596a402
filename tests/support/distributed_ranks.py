"""What each rank of a process group checks of `peakgemm.distributed`; run as a script, it prints what failed.

    python distributed_ranks.py RANK WORLD PORT FOLDER [alone]

With "alone" rank 1 ends in the middle of a run, and the other one writes down what it is told.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import peakgemm as pg

M, N, K = 48, 20, 36  # divided by 1, 2, 3 and 4


def whole(seed: int, *shape: int) -> Tensor:
    """The same small integers on all ranks, so that sums are exact in any order."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def mine(x: Tensor, dim: int) -> Tensor:
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def gathered() -> None:
    a, b = whole(1, M, K), whole(2, K, N)
    for chunks in (None, None, 0, 2):
        for right in (b, b.T.contiguous().T):
            got = pg.distributed.all_gather_matmul(mine(a, 0), right, chunks=chunks)
            assert torch.equal(got, a @ b), chunks
    negated = torch._neg_view(mine(-a, 0))  # its bytes are another matrix's
    assert torch.equal(pg.distributed.all_gather_matmul(negated, b, chunks=1), a @ b)


def scattered() -> None:
    a, b = whole(3, M, K), whole(4, K, N)
    for chunks in (None, None, 0, 2):
        got = pg.distributed.matmul_reduce_scatter(mine(a, 1), mine(b, 0), chunks=chunks)
        assert torch.equal(got, mine(a @ b, 0)), chunks


def gradients() -> None:
    a, b, weight = whole(5, M, K), whole(6, K, N), whole(7, M, N)
    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
    ((x @ y) * weight).sum().backward()
    part, own = mine(a, 0).requires_grad_(), b.clone().requires_grad_()
    (pg.distributed.all_gather_matmul(part, own, chunks=2) * weight).sum().backward()
    assert torch.equal(part.grad, dist.get_world_size() * mine(x.grad, 0))  # all ranks' losses are the same sum
    assert torch.equal(own.grad, y.grad)
    part, own = mine(a, 1).requires_grad_(), mine(b, 0).requires_grad_()
    (pg.distributed.matmul_reduce_scatter(part, own, chunks=2) * mine(weight, 0)).sum().backward()
    assert torch.equal(part.grad, mine(x.grad, 1)) and torch.equal(own.grad, mine(y.grad, 0))
    pg.distributed.matmul_reduce_scatter(mine(a, 1).requires_grad_(), mine(b, 0)).sum().backward()  # b needs none


def refusals() -> None:
    a, b = torch.ones(M, K), torch.ones(K, N)
    gather, scatter = pg.distributed.all_gather_matmul, pg.distributed.matmul_reduce_scatter
    for call, x, y, more, says in (
            (gather, a, torch.ones(5, 5), {}, "do not match"), (gather, a[None], b, {}, "a matrix"),
            (gather, a.double(), b, {}, "a is float64"), (scatter, torch.ones(5, K), b, {}, "ranks do not divide"),
            *((gather, a, b, {"chunks": chunks}, "chunks") for chunks in (5, -1, 1.5))):
        try:
            call(x, y, **more)
        except (TypeError, ValueError) as error:
            assert says in str(error), error
        else:
            raise AssertionError(says)


def dtensors() -> None:
    """Every placement of both operands, and of c."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole_one, partial, rows, columns = Replicate(), Partial(), Shard(0), Shard(1)

    def spread(x: Tensor, placement: Any) -> Any:
        if isinstance(placement, Partial):
            return DTensor.from_local(torch.zeros_like(x) if dist.get_rank() else x, mesh, [placement])
        return distribute_tensor(x, mesh, [placement])

    def is_right(got: Any, want: Tensor, *what: Any) -> None:
        assert isinstance(got, DTensor) and torch.equal(got.full_tensor(), want), what

    a, b, c, row = whole(8, 12, 6), whole(9, 6, 18), whole(10, 12, 18), whole(11, 18)
    every = whole_one, partial, rows, columns
    for of_a, of_b in product(every, every):
        x, y = spread(a, of_a), spread(b, of_b)
        is_right(pg.matmul(x, y), a @ b, of_a, of_b)
        is_right(pg.gemm(x, spread(b.T.contiguous(), of_b), trans_b=True, alpha=2.0), 2 * (a @ b), of_a, of_b)
        for of_c in every:
            is_right(pg.gemm(x, y, spread(c, of_c), beta=-1.0), a @ b - c, of_a, of_b, of_c)
    for of_a, of_b, wanted in ((rows, whole_one, rows), (whole_one, columns, columns), (columns, rows, partial)):
        # without a copy between ranks
        assert pg.matmul(spread(a, of_a), spread(b, of_b)).placements == (wanted,), (of_a, of_b)
    is_right(pg.gemm(spread(a, rows), spread(b, whole_one), spread(row, whole_one)), a @ b + row, "row")
    batch, alone = whole(12, 6, 12, 6), whole(13, 1, 6, 18)
    for of_a in (*every, Shard(2)):
        is_right(pg.matmul(spread(batch, of_a), spread(b, whole_one)), batch @ b, of_a)
        is_right(pg.matmul(spread(batch, of_a), spread(alone, whole_one)), batch @ alone, of_a)
    for of_a, of_b in ((rows, columns), (whole_one, whole_one), (rows, whole_one)):
        x, y = spread(a, of_a).requires_grad_(), spread(b, of_b).requires_grad_()
        left, right = a.clone().requires_grad_(), b.clone().requires_grad_()
        (pg.matmul(x, y) * spread(c, whole_one)).sum().backward()
        ((left @ right) * c).sum().backward()
        is_right(x.grad, left.grad, of_a, of_b)
        is_right(y.grad, right.grad, of_a, of_b)


def training() -> None:
    """A transformer's block, tensor-parallel under `use`, against the same on one rank without it."""
    from torch.distributed.device_mesh import init_device_mesh

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from lab.scale.model import losses
    from peakgemm.integrations.torch_use import Use

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    alone = losses(None, steps=20, width=24, device="cpu")
    with Use("ieee", "CPU") as seen:
        together = losses(mesh, steps=20, width=24, device="cpu")
    assert sum(seen.calls.values()) > 100
    assert len(alone) == 20 and alone[-1] < alone[0]
    assert max(abs(x - y) / abs(x) for x, y in zip(alone, together, strict=True)) < 1e-5, (alone, together)


def left_alone() -> str:
    """What a rank says whose partner ends in the middle of a run: the library's own error, and no hang."""
    a, b = whole(1, 12, K), whole(2, K, N)
    for call in range(10):
        if call == 5 and dist.get_rank() == 1:
            os._exit(7)
        try:
            pg.distributed.all_gather_matmul(a, b)
        except RuntimeError as error:
            return f"call {call}: {type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    rank, world, port, folder = sys.argv[1:5]
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE=world)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    if len(sys.argv) > 5:
        Path(folder, "alone.txt").write_text(left_alone())
        os._exit(0)
    failed = {}
    for check in (gathered, scattered, gradients, refusals, *((dtensors, training) if int(world) == 2 else ())):
        failed[check.__name__] = ""
        try:
            check()
        except BaseException:
            failed[check.__name__] = traceback.format_exc()
            break  # the ranks are no longer in step
    Path(folder, f"{world}-{rank}.json").write_text(json.dumps(failed))
    os._exit(0)  # not to wait for a rank that has failed


if __name__ == "__main__":
    main()
