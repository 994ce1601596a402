"""Our kernels with something forgotten, each found: synchronisation by the simulator's checks, terms by the results.

The checks of the other tests can fail.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from library_case import SMALL as TILE
from library_case import Case, multiply
from peakgemm.kernels.ffma import repack
from peakgemm.kernels.ffma.specialised import SpecialisedConfig
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.registry import rung
from seldom import exhaustive

pytestmark = pytest.mark.usefixtures("many_lanes")

COPIES, TENSOR = rung(15), rung(17)
BOXES = Case(128, 256, 16 * 14, pad=4, values="integers", kernel=COPIES, config=None)  # the ring goes round twice
CHUNKS = Case(128, 128, 320, alpha=1.0, beta=0.0, kernel=TENSOR, config=None)  # five, so that the ring goes round
CLUSTER = Case(64, 32, 48, config=SpecialisedConfig(32, 32, 8, 4, 4, stages=8, raster=4, producers=128, slices=4,
                                                    copy_groups=4, one_tile=True, cluster=4))
HANDED = Case(96, 80, 100, config=replace(TILE, bk=16, tn=4, producers=64, split=0, handed=True))
REPACKED = Case(40, 20, 200, kernel=WIDE, config=WIDE.default)
UNCHANGED = (BOXES, CHUNKS, CLUSTER, HANDED, REPACKED)

RELEASE = "    __syncwarp();\n    if (lane == 0) mbarrier_arrive(read);\n"
TRANSPOSE = "        transpose(ring + at, warp, lane);\n        __syncwarp();\n"
ARRIVE = "        if (lane == 0) mbarrier_arrive(barrier);\n"
WAIT_EMPTY = "        mbarrier_wait(barrier + 8 * STAGES, parity ^ 1);\n        bulk_expect"
CHUNK_READ = "if (lane == 0) mbarrier_arrive(empty + 8 * stage);\n"
ACQUIRE = ("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32")
RELEASED = '  __threadfence();\n  __syncwarp();\n  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu'
RELAXED = '  __syncwarp();\n  if (threadIdx.x % 32 == 0) asm volatile("red.relaxed.gpu'
RACE_OF_FLAGS = r"handed\.cuh\S* global_race|global_race: .*handed\.cuh"
RACE_OF_UNITS = r"global_race: read by a copy .* races with the write at \S*/repack"
WRONG = "results are wrong"

FORGOTTEN = {
    # Rung 15: copying beside computing warps.
    "no wait for full": (BOXES, "shared_race", [("        mbarrier_wait(barrier, parity);\n      }\n", "      }\n")]),
    "no wait for the box": (BOXES, "shared_race", [("        mbarrier_wait(barrier - 8 * STAGES, parity);\n", "")]),
    "full before it is transposed": (BOXES, "shared_race", [(TRANSPOSE + ARRIVE, ARRIVE + TRANSPOSE)]),
    "released before it is read": (BOXES, "shared_race", [
        (RELEASE, ""), ("    const unsigned read = barrier + 8 * STAGES;\n",
                        "    if (lane == 0) mbarrier_arrive(barrier + 8 * STAGES);\n")]),
    "no wait for empty": (BOXES, "deadlock", [(WAIT_EMPTY, "        bulk_expect")]),
    "never released": (BOXES, "deadlock", [(RELEASE, "")]),
    "more bytes than come": (BOXES, "deadlock", [("bulk_expect(barrier, BOX_B)", "bulk_expect(barrier, BOX_B + 16)")]),
    "a swizzle": (BOXES, WRONG, [("(from ^ (from >> 3 & (ROW - 1) & ~15))", "from")]),
    # Rung 17: tensor cores.
    "no fence": (CHUNKS, "async_proxy", [("      fence_for_async_proxy();\n", "")]),
    "loaders lap the phases": (CHUNKS, "deadlock", [("      mbarrier_wait(empty + 8 * stage, parity ^ 1);\n", "")]),
    "no wait for a chunk": (CHUNKS, "shared_race", [("    mbarrier_wait(full + 8 * stage, parity);\n", "")]),
    "a chunk released too early": (CHUNKS, "shared_race", [
        (f"    __syncwarp();\n    {CHUNK_READ}", ""), ("    wgmma_wait<0>();\n", f"{CHUNK_READ}wgmma_wait<0>();\n")]),
    "no wait for wgmma": (CHUNKS, "wgmma_registers", [("    wgmma_wait<0>();\n", "")]),
    "never full": (CHUNKS, "deadlock", [("if (lane == 0) mbarrier_arrive(full + 8 * stage);", "")]),
    "first halves alone": (CHUNKS, WRONG, [("fmaf(low[4 * i + e], 1.f / LOW_SCALE, high[4 * i + e])",
                                            "high[4 * i + e]")]),
    "scale of a row": (CHUNKS, WRONG, [("(e < 2 ? top : bottom)", "top")]),
    "scale of a column": (CHUNKS, WRONG, [("(e % 2 ? scale.y : scale.x)", "scale.x")]),
    "one product of a k-step": (CHUNKS, WRONG, [("wgmma<true>(low, a0 + at + SECOND, b0 + at);", "")]),
    # Blocks that give each other sums.
    "cluster: no wait": (CLUSTER, "races with", [("    mbarrier_wait(e.given, 0);\n", "")]),
    "cluster: too few bytes": (CLUSTER, "deadlock", [("(given, BM * BN * 4);", "(given, BM * BN * 4 - 64);")]),
    "cluster: too many bytes": (CLUSTER, "deadlock", [("(given, BM * BN * 4);", "(given, BM * BN * 4 + 64);")]),
    "flags: acquire": (HANDED, RACE_OF_FLAGS, [ACQUIRE]),
    "flags: release": (HANDED, RACE_OF_FLAGS, [(RELEASED, RELAXED)]),
    "units: acquire": (REPACKED, RACE_OF_UNITS, [ACQUIRE]),
    "units: release": (REPACKED, RACE_OF_UNITS, [(RELEASED, RELAXED)]),
    "units: the rest of the warp": (REPACKED, RACE_OF_UNITS, [(RELEASED, RELEASED.replace("  __syncwarp();\n", ""))]),
}
SELDOM = ("no fence", "more bytes than come", "a chunk released too early", "no wait for wgmma", "first halves alone",
          "flags: acquire", "never released", "no wait for the box", "units: acquire")


@pytest.mark.parametrize("case", UNCHANGED, ids=str)
def test_nothing_changed(case: Case) -> None:
    multiply(case)


@pytest.mark.parametrize("what", [exhaustive(what) if what in SELDOM else what for what in FORGOTTEN])
def test_what_is_forgotten_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, finding, edits = FORGOTTEN[what]
    before, marker, text = case.kernel.source.rpartition(
        '#line 1 "include/copy/repack.cuh"' if case is REPACKED else "\0")
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    monkeypatch.setitem(case.kernel.__dict__, "source", before + marker + text)
    with pytest.raises(AssertionError, match=finding):
        multiply(case)


def test_the_copy_engine_waits_for_what_is_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody makes the last unit, the product never ends."""
    real = repack._REPACK
    monkeypatch.setattr(repack, "_REPACK", SimpleNamespace(pack=lambda *x: real.pack(*x[:7], x[7] - 1, *x[8:])))
    with pytest.raises(AssertionError, match="deadlock"):
        multiply(REPACKED)
