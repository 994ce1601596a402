"""Kernels with a race and kernels without, in shared and global memory and in the shared memory of a cluster."""

import re
from functools import cache

import numpy as np
import pytest

from peakgemm.runtime.compile import compile_source
from peakgemm.tools.simulator import run
from simulator_cases import FIXTURES, threads

SPACES = {"shared": (1, 128), "global": (4, 64), "cluster": (4, 64)}
KINDS = {"shared": {"shared_race"}, "global": {"global_race", "overlapping_blocks"},
         "cluster": {"shared_race", "global_race"}}  # fmt: skip
LINES = {space: (FIXTURES / f"races_{space}.cu").read_text().splitlines() for space in SPACES}
# What the message must say, where it is more than "put a barrier between them".
SAYS = {
    "shared.racy_init_and_atomic": "atomic of shared address 0 .* races with the write .*put a barrier between them",
    "shared.racy_volatile_exchange": "volatile read .* races with the volatile write .*volatile orders nothing",
    "shared.racy_flag_without_fences": "read .* races with the write",
    "shared.racy_lock": "races with the",
    "global.racy_increment_by_blocks": r"block \(\d, 0, 0\) .*block \(\d, 0, 0\)",
    "global.racy_init_and_atomic": "atomic of argument 0 .* races with the write .*one of them is no atomic",
    "global.racy_scope_of_a_block": r"its scope does not reach the other's block; use \.gpu scope",
    "global.racy_volatile_exchange": "volatile read of argument 0 .* races with the volatile write",
    "global.racy_flag_without_fences": r"put a fence and a flag \(__threadfence\(\)",
    "global.racy_warps": "put a barrier between them",
    "global.racy_same_value": "give each element of the output to one block",
    "global.racy_overwrites_what_is_read": "write of argument 0 .* races with the read",
    "cluster.racy_end": "which may have ended; put a barrier of the cluster behind it",
}


def kernels(space, prefix):
    names = re.findall(rf"void (?:__cluster_dims__\(2, 1, 1\) )?({prefix}_\w+)\(|KERNEL ({prefix}_\w+)\(",
                       "\n".join(LINES[space]))
    return [one or other for one, other in names]


@cache
def compiled(space):
    return compile_source("\n".join(LINES[space]), kernels(space, "racy")[0], "sm_90", None, kind="ptx",
                          name=f"races_{space}.cu").text


def simulate(space, name):
    grid, block = SPACES[space]
    c, out = np.zeros(512, "i4"), np.zeros(512, "i4")
    report = run(compiled(space), entry=name, grid=grid, block=block, args=[out] if space == "shared" else [c, out])
    return report, c, out


def line_of(space, name):
    """The lines that say "race": of the kernel, or of what it calls."""
    lines = LINES[space]
    start = next(n for n, line in enumerate(lines) if f"{name}(" in line)
    for called in ("handshake", "last_block", "bulk_copy"):
        if f"{called}(" in lines[start]:
            return {n for n, line in enumerate(lines, 1) if line.endswith(f"// race_{called}")}
    end = next(n for n in range(start, len(lines)) if lines[n].startswith("}"))
    return {n + 1 for n in range(start, end) if lines[n].endswith("// race")}


RACY = [(space, name) for space in SPACES for name in kernels(space, "racy")]
CLEAN = [(space, name) for space in SPACES for name in kernels(space, "clean")]


@pytest.mark.parametrize(("space", "name"), RACY, ids=[".".join(case) for case in RACY])
def test_a_race_is_found(space, name):
    report, _, _ = simulate(space, name)
    assert report.faults and {fault.kind for fault in report.faults} <= KINDS[space], str(report)
    assert not report.stopped
    assert line_of(space, name) & {fault.line for fault in report.faults}, str(report)
    says = SAYS.get(f"{space}.{name}", "")
    assert any(re.search(says, fault.message) for fault in report.faults), str(report)
    for fault in report.faults:
        assert len(fault.threads) >= 2 and fault.threads[0] != fault.threads[1]


@pytest.mark.parametrize(("space", "name"), CLEAN, ids=[".".join(case) for case in CLEAN])
def test_no_race_is_found_where_there_is_none(space, name):
    report, _, _ = simulate(space, name)
    assert report.clean, str(report)


def test_there_are_a_dozen_of_each():
    for space in SPACES:
        assert len(kernels(space, "racy")) >= 12 and len(kernels(space, "clean")) >= 12


def blocks_that_read_before_others_write(monkeypatch, grid, noted):
    """Each block reads its own word and the neighbour's, and writes its own: the blocks of many batches."""
    from peakgemm.tools.simulator import launch
    from peakgemm.tools.simulator.checks import global_races

    monkeypatch.setattr(global_races, "NOTED", noted)
    monkeypatch.setattr(launch, "MOST", 64)
    monkeypatch.setattr(launch, "LEAST", 64)
    body = """mov.u32 %r0, %ctaid.x; mov.u32 %r1, %nctaid.x; ld.param.u32 %r2, [step]; add.u32 %r3, %r0, %r2;
      rem.u32 %r3, %r3, %r1; mul.wide.u32 %rd1, %r3, 4; add.u64 %rd1, %rd0, %rd1; ld.global.u32 %r4, [%rd1];
      ld.global.u32 %r7, [%rd1]; sub.u32 %r5, %r1, 1; setp.ne.u32 %p0, %r0, %r5; setp.ne.u32 %p1, %r2, 0;
      and.pred %p0, %p0, %p1; @%p0 ret; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r4;
      """
    return [threads(body, 32, grid=grid, leaves="", out=np.zeros(grid, "i4"), params=".param .u32 step", args=[step])[0]
            for step in (0, 1)]


@pytest.mark.parametrize("noted", [3, 1 << 17])
def test_reads_of_blocks_that_have_ended(monkeypatch, noted):
    own, neighbours = blocks_that_read_before_others_write(monkeypatch, 40, noted)
    assert {fault.kind for fault in own.faults} <= {"global_race"}  # 32 threads of a block read and write one word
    assert all(fault.threads[0][0] == fault.threads[1][0] for fault in own.faults)
    assert any(fault.threads[0][0][0] == 39 and fault.threads[1][0][0] == 38 for fault in neighbours.faults)


@pytest.mark.parametrize(("name", "expected"), [
    ("clean_chain", 4 * np.arange(64)), ("clean_last_block", 4 * np.arange(64) + 384),
    ("clean_grid_sync", 3 * np.arange(256)[::-1] + 3), ("clean_lock", [8]), ("clean_warp_behind_a_lane", [7] * 32),
])
def test_results_of_threads_that_wait_for_each_other(name, expected):
    _, c, out = simulate("global", name)
    found = c if name in ("clean_chain", "clean_lock") else out
    np.testing.assert_array_equal(found[:len(expected)], expected)
