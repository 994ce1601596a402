"""The kernel that brings ranks' rows together, one rank after the other on the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from peakgemm.kernels.exchange import all_gather
from peakgemm.tools.simulator.launch import run

# Arguments as the kernel's, so that the simulator places the arrays alike.
TELL = """struct Gather { long long of[21]; };
extern "C" __global__ void tell(const float* A, float* B, const float* C0, float* C, float* partial,
                                const __grid_constant__ Gather g) {
  *reinterpret_cast<long long*>(B) = reinterpret_cast<long long>(B);
}
"""
WORDS, HALF = 64, 4096  # words of flags, and floats, of a rank's memory


class Host:
    """Ranks' memory in one array of 4-byte words, where the simulator puts it."""

    def __init__(self, world: int, folder: Path) -> None:
        self.world, self.memory = world, np.zeros(world * (HALF + WORDS), np.int32)
        (folder / "tell.cu").write_text(TELL)
        self.x = np.zeros(HALF, np.float32)
        args = [self.x, self.memory, None, None, None, bytes(21 * 8)]
        assert not run(folder / "tell.cu", grid=1, block=1, args=args).faults
        self.base = int(self.memory[:2].view(np.int64)[0])
        self.memory[:2] = 0

    def address(self, rank: int, word: int) -> int:
        return self.base + 4 * (rank * (HALF + WORDS) + word)

    def launch(self, rank: int, rows: np.ndarray, blocks: int) -> list[str]:
        """Faults of the kernel of ``rank``, which has ``rows``."""
        self.x[:rows.size] = rows.ravel()
        every = range(self.world)
        places = all_gather.Places([self.address(to, rank * rows.size) for to in every],
                                   [self.address(to, HALF + rank) for to in every], self.address(rank, HALF),
                                   self.address(rank, HALF + 16), self.address(rank, HALF + 17))
        found = run(all_gather.SOURCE, grid=blocks, block=all_gather.THREADS, macros=all_gather.MACROS,
                    args=[self.x, self.memory, None, None, None, all_gather.argument(rows.nbytes, rank, places)])
        return [str(fault) for fault in found.faults]


@pytest.mark.parametrize(("world", "floats", "blocks"), [(2, 64, 1), (3, 1000, 1), (2, 4000 // 2, 3)])
def test_rows_come_together(tmp_path: Path, world: int, floats: int, blocks: int) -> None:
    """A rank that comes last finds the others' words and waits no longer; those before it are given up, as a word here
    says, so that their kernels end."""
    host = Host(world, tmp_path)
    drawn = np.random.default_rng(1).standard_normal((world, floats), np.float32)
    flags = host.memory.reshape(world, HALF + WORDS)[:, HALF:]
    for call in (1, 2):
        for rank in range(world):
            flags[rank, 17] = rank < world - 1
            assert host.launch(rank, call * drawn[rank], blocks) == []
        for rank in range(world):
            there = host.memory.reshape(world, -1)[rank, :world * floats].view(np.float32)
            assert (there == (call * drawn).ravel()).all()
            others = [call * blocks * (source != rank) for source in range(world)]
            assert flags[rank, :world].tolist() == others and flags[rank, 16] == call * blocks


def test_it_waits(tmp_path: Path) -> None:
    host = Host(2, tmp_path)
    said = host.launch(0, np.ones(16, np.float32), 1)
    assert "deadlock: threads poll here for a flag" in said[0], said


def test_what_it_is_compiled_to() -> None:
    for arch in ("sm_80", "sm_90", "sm_100"):
        assert all_gather.compiled(arch).spill_bytes == 0
    assert [all_gather.blocks(size) for size in (16, 8192, 8208, 1 << 30)] == [1, 1, 2, 32]
