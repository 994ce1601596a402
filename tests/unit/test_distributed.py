"""`peakgemm.distributed` and DTensor, on ranks of gloo that are processes of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs torch.distributed with gloo", allow_module_level=True)

SCRIPT = Path(__file__).parents[1] / "support" / "distributed_ranks.py"


def processes(world: int, folder: Path, *more: str) -> list[str]:
    """Run the ranks; what each wrote to stderr."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PEAKGEMM_CACHE_DIR": str(folder / "cache")}
    ranks = [subprocess.Popen([sys.executable, str(SCRIPT), str(rank), str(world), str(port), str(folder), *more],
                              env=env, stderr=subprocess.PIPE, text=True) for rank in range(world)]
    try:
        return [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize(("world", "count"), [(2, 6), (3, 4)])
def test_ranks(tmp_path: Path, world: int, count: int) -> None:
    """What each rank checks, and what failed."""
    said = processes(world, tmp_path)
    for rank in range(world):
        answer = tmp_path / f"{world}-{rank}.json"
        assert answer.exists(), said[rank]
        failed = json.loads(answer.read_text())
        assert not any(failed.values()) and len(failed) == count, failed


def test_a_rank_that_dies_is_an_error_of_the_others(tmp_path: Path) -> None:
    """gloo's, at once."""
    start = time.monotonic()
    said = processes(2, tmp_path, "alone")
    answer = tmp_path / "alone.txt"
    assert answer.exists(), said
    assert answer.read_text().startswith("call 5: ") and "Error" in answer.read_text(), answer.read_text()
    assert time.monotonic() - start < 60
