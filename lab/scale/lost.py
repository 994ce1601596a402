"""A rank that ends in the middle of a run: what the others say, and after how long.

As a process, ``python -m lab.scale.lost WAY``, it is one of the ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

TIMEOUT_S = 8      # of the process group
# For processes to start, and NCCL to end one: 36 s after the loss it still wrote down what it knows, on 2 x H200.
_PATIENCE_S = 100.0
_NO_DUMP = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
_KEPT = 600  # characters of what a rank says, at each end
WAYS = {"plain": 0, "overlapped": 1}  # chunks
_DEATH = 7


def watched(way: str, environments: Sequence[Mapping[str, str]],
            program: Sequence[str] = (sys.executable, "-m", "lab.scale.lost")) -> dict[str, Any]:
    """Start a rank for each environment, the last of which ends by itself, and watch the others.

    Returns:
        ``way``; ``hung``: whether one had to be ended; ``after_s``: until the last had ended, after the one that was
        meant to; ``exits`` and ``said``: of each other rank.
    """
    logs = [tempfile.TemporaryFile("w+") for _ in environments]  # noqa: SIM115  closed below
    ranks = [subprocess.Popen([*program, way], env={**os.environ, **_NO_DUMP, **more}, stderr=log, stdout=log,
                              text=True)
             for more, log in zip(environments, logs, strict=True)]
    end, died = time.monotonic() + _PATIENCE_S, None
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        if died is None and ranks[-1].poll() is not None:
            died = time.monotonic()
        time.sleep(0.05)
    after, hung = time.monotonic() - (died or end), False
    for rank in ranks:
        if rank.poll() is None:
            hung = True
            rank.kill()
        rank.wait()
    said = []
    for log in logs:
        log.seek(0)
        text = log.read()
        said.append(text if len(text) <= 2 * _KEPT else f"{text[:_KEPT]}\n...\n{text[-_KEPT:]}")
        log.close()
    return {"way": way, "hung": hung, "after_s": round(after, 1), "exits": [rank.returncode for rank in ranks],
            "said": said}


def main(way: str) -> None:
    """One rank: the last one ends before its sixth call."""
    import torch
    import torch.distributed as dist

    from peakgemm.distributed import all_gather_matmul

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S), device_id=torch.device("cuda", rank))
    a, b = torch.ones(512, 1024, device="cuda"), torch.ones(1024, 1024, device="cuda")
    for call in range(10):
        if call == 5 and rank == world - 1:
            os._exit(_DEATH)
        try:
            all_gather_matmul(a, b, chunks=WAYS[way])
            torch.cuda.synchronize()
        except Exception as error:
            print(f"call {call}: {type(error).__name__}: {error}", flush=True)
            os._exit(3)
    print("no error in ten calls", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
