"""Processes and threads that start at once: eight processes on a cold cache, threads that never saw CUDA."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

WORKER = """
import sys, torch
import peakgemm
torch.manual_seed(0)
a, b = torch.randint(-4, 5, (2, 300, 300), device="cuda").float()
exact = (a.double() @ b.double()).float()
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()  # all start together
c = peakgemm.matmul(a, b)
torch.cuda.synchronize()
assert torch.equal(c, exact), (c - exact).abs().max()  # integers come out exact
"""


def run_together(count: int, folder) -> None:
    """``count`` processes that multiply at the same moment."""
    environment = os.environ | {"PEAKGEMM_CACHE_DIR": str(folder), "PEAKGEMM_SHIPPED": "0"}
    workers = [subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=environment) for _ in range(count)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n", worker.communicate(timeout=60)
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    told = [worker.communicate(timeout=300) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count, told
    # A long compilation may announce itself; nothing may complain.
    assert not [line for _, err in told for line in err.splitlines() if "peakgemm: compiling" not in line], told


def contents(folder) -> dict:
    return {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_eight_processes_on_a_cold_cache(tmp_path) -> None:
    run_together(8, tmp_path / "cache")
    cold = contents(tmp_path / "cache")
    assert cold and not [f for f in cold if f.parent.name == "tmp"]
    run_together(2, tmp_path / "cache")
    assert contents(tmp_path / "cache") == cold  # all there already


def test_damaged_entries_are_mended(tmp_path) -> None:
    run_together(1, tmp_path / "cache")
    good = contents(tmp_path / "cache")
    for file in good:
        file.write_bytes(good[file][: len(good[file]) // 2])
    with pytest.raises(AssertionError, match=r"a damaged entry in the compile cache .* is compiled anew"):
        run_together(1, tmp_path / "cache")  # right, but says so
    assert contents(tmp_path / "cache") == good
    run_together(1, tmp_path / "cache")


def test_threads_without_a_context() -> None:
    """Each thread's first call to CUDA is our launch, on the legacy default stream."""
    import peakgemm

    a, b = torch.randint(-4, 5, (2, 200, 200), device="cuda").float()
    exact = (a.double() @ b.double()).float()
    torch.cuda.synchronize()
    with ThreadPoolExecutor(8) as pool:
        together = threading.Barrier(8)  # so that each call has a thread of its own

        def work(_: int) -> torch.Tensor:
            together.wait(60)
            return peakgemm.matmul(a, b)

        results = list(pool.map(work, range(8)))
    torch.cuda.synchronize()
    assert len(results) == 8 and all(torch.equal(c, exact) for c in results)
