"""`peakgemm.distributed` and DTensor, on ranks of gloo that are processes of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs torch.distributed with gloo", allow_module_level=True)

SCRIPT = Path(__file__).parents[1] / "support" / "distributed_ranks.py"
COLLECTIVES = ["gathered", "scattered", "gradients", "refusals"]


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


def ran(world: int, folder: Path) -> list[dict[str, str]]:
    """What failed on each rank, by check."""
    said = processes(world, folder)
    answers = [folder / f"{world}-{rank}.json" for rank in range(world)]
    return [json.loads(path.read_text()) if path.exists() else {"start": said[rank]}
            for rank, path in enumerate(answers)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ran(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ran(3, tmp_path_factory.mktemp("three"))


@pytest.mark.parametrize("name", [*COLLECTIVES, "dtensors", "training"])
def test_two_ranks(two: list[dict[str, str]], name: str) -> None:
    for rank in two:
        assert rank.get(name, f"not reached: {rank}") == ""


@pytest.mark.parametrize("name", COLLECTIVES)
def test_three_ranks(three: list[dict[str, str]], name: str) -> None:
    for rank in three:
        assert rank.get(name, f"not reached: {rank}") == ""


def test_a_rank_that_dies_is_an_error_of_the_others(tmp_path: Path) -> None:
    """gloo's, at once."""
    start = time.monotonic()
    said = processes(2, tmp_path, "alone")
    answer = tmp_path / "alone.txt"
    assert answer.exists(), said
    assert answer.read_text().startswith("call 5: ") and "Error" in answer.read_text(), answer.read_text()
    assert time.monotonic() - start < 60
