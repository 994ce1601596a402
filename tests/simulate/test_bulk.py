"""Bulk copies and the mbarriers that count their bytes."""

import re

import numpy as np
import pytest

from peakgemm.tools.simulator import run
from simulator_cases import FIXTURES, planted_line, threads

SOURCE = FIXTURES / "bulk.cu"
RNG = np.random.default_rng(11)


def go(entry, grid, block, args, plant=0):
    return run(SOURCE, entry=entry, grid=grid, block=block, args=args, macros={"PLANT": plant})


def ring(rounds, grid=1, plant=0):
    x, out = RNG.standard_normal((grid, rounds, 4, 64)).astype("f4"), np.zeros((grid, 64), "f4")
    return go("ring", grid, 96, [x, out, rounds], plant), x.sum(axis=(1, 2)), out


@pytest.mark.parametrize(("rounds", "grid"), [(1, 1), (2, 1), (9, 1), (7, 50)])
def test_a_ring_of_stages(rounds, grid):
    report, want, out = ring(rounds, grid)
    assert report.clean, str(report)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    counters = report.counters
    assert (counters["bulk_copies"], counters["bulk_bytes"]) == (grid * rounds * 4, grid * rounds * 4 * 256)
    assert counters["global_requests"] == grid * 2  # the stores of `out`; what the copy engine reads is none
    assert counters["shared_stores"] == 0 and counters["shared_loads"] == grid * rounds * 4 * 2


RING = {1: "mbarrier", 2: "cp_async_race", 3: "mbarrier", 4: "deadlock", 5: "shared_race", 6: "cp_async_race",
        7: "shared_race", 8: "cp_async_race"}  # fmt: skip


@pytest.mark.parametrize("plant", RING)
def test_mistakes_in_the_ring(plant):
    report, _, _ = ring(2 if plant in (5, 7) else 9, plant=plant)
    found = [fault for fault in report.faults if fault.kind == RING[plant]]
    assert found, str(report)
    if plant != 4:
        assert planted_line(plant, "bulk.cu") in {fault.line for fault in found}, str(report)


@pytest.mark.parametrize(("plant", "kind"), [(0, ""), (1, "cp_async_race"), (2, "shared_race"), (3, "cp_async_race"),
                                             (4, ""), (5, "cp_async_race")])
def test_one_waits_and_the_others_meet_it(plant, kind):
    """Across barriers of all threads a copy is still under way where nobody has waited for it."""
    x, out = RNG.standard_normal((6, 64)).astype("f4"), np.zeros(64, "f4")
    report = go("met", 1, 64, [x, out, 6], plant)
    if not kind:
        assert report.clean, str(report)
        np.testing.assert_allclose(out, np.roll(x.sum(axis=0), -7), rtol=1e-5, atol=1e-5)
        return
    line = planted_line(plant, "bulk.cu", "met")
    assert (kind, line) in {(fault.kind, fault.line) for fault in report.faults}, str(report)


def test_every_lane_its_own_size_and_mbarrier():
    x, out = RNG.standard_normal((32, 8)).astype("f4"), np.zeros((32, 8), "f4")
    floats = RNG.choice([0, 4, 8], 32).astype("i4")
    report = go("own", 1, 32, [x, floats, out, 8])
    assert report.clean, str(report)
    for row, got, n in zip(x, out, floats, strict=True):
        assert (got[:n] == row[:n]).all() and (got[n:] == -1).all()


@pytest.mark.parametrize(("change", "kind", "message"), [
    ({"step": 4}, "cp_async_race", "races with the bulk copy"),  # halves of neighbouring rows
    ({"step": 12}, "shared_out_of_bounds", r"bulk copy of 32 bytes to shared address \d+, past the block's \d+ bytes"),
    ({"step": 7}, "misaligned", r"bulk copy of 32 bytes to shared address \d+, which is not a multiple of 16"),
    ({"floats": 5}, "misaligned", "bulk copy of 20 bytes is not of a multiple of 16 bytes"),
    ({"offset": 1}, "misaligned", r"not a multiple of 16: argument 0 \(1020 bytes\) at byte 0"),
    ({"offset": 4}, "out_of_bounds", r"outside every array: argument 0 \(1008 bytes\) at byte 992, 16 bytes past"),
])
def test_refused_copies(change, kind, message):
    x, floats, out = np.ones(32 * 8, "f4"), np.full(32, change.get("floats", 8), "i4"), np.zeros((32, 8), "f4")
    report = go("own", 1, 32, [x[change.get("offset", 0):], floats, out, change.get("step", 8)])
    fault = next(fault for fault in report.faults if fault.kind == kind)
    assert fault.line == planted_line(1, "bulk.cu", "own")
    assert re.search(message, fault.message), fault.message
    assert not report.stopped  # the bytes that were refused count as landed, and the run goes on


def test_without_checks_a_refused_copy_stops_the_run():
    x, floats, out = np.ones(32 * 8, "f4"), np.full(32, 8, "i4"), np.zeros((32, 8), "f4")
    report = run(SOURCE, entry="own", grid=1, block=32, args=[x[4:], floats, out, 8], checks=False)
    assert "out_of_bounds" in report.stopped and not out.any()


BARRIER = ".shared .align 8 .b64 bar; .shared .align 16 .b8 room[64]; mov.u32 %r0, bar; mov.u32 %r1, room;"


def steps(text, data=None):
    """One thread's PTX with an mbarrier at ``%r0``, ``data`` at ``%rd2``, shared memory at ``%r1``; the report, and
    what it leaves in ``%r9``."""
    report, out = threads(f"{BARRIER} ld.param.u64 %rd2, [data]; {text} st.global.u32 [%rd0], %r9;", leaves="",
                          params=".param .u64 data", args=[np.zeros(8, "f4") if data is None else data])
    return report, out[0]


TEST = "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r0], 0; selp.u32 %r8, 1, 0, %p1; shl.b32 %r9, %r9, 1;" \
       "or.b32 %r9, %r9, %r8;"  # fmt: skip
INIT = "mbarrier.init.shared::cta.b64 [%r0], 1;"
ARRIVE = "mbarrier.arrive.shared::cta.b64 %rd1, [%r0];"
EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 32;"
BULK = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2], {}, [%r0];"


@pytest.mark.parametrize(("order", "want"), [
    ([EXPECT, ARRIVE, 32], 0b001), ([ARRIVE, EXPECT, 32], 0b111), ([EXPECT, 16, ARRIVE, 16], 0b0001),
    ([32, EXPECT, ARRIVE], 0b001), ([EXPECT, 32, ARRIVE], 0b001), ([EXPECT, EXPECT, 32, ARRIVE, 32], 0b00001),
    ([ARRIVE], 1), ([EXPECT, ARRIVE, 16], 0b000),
])
def test_a_phase_ends_with_its_last_arrival_and_its_last_byte(order, want):
    body = " ".join((f"{BULK.format(step)} add.u32 %r1, %r1, {step};" if isinstance(step, int) else step) + TEST
                    for step in order)
    report, got = steps(f"{INIT} {body}")
    assert report.clean and got == want, f"{report} {got:b}"


def test_the_last_arrival_before_the_bytes_are_announced():
    report, got = steps(f"{INIT} {BULK.format(32)} {ARRIVE} {TEST}")
    assert [fault.kind for fault in report.faults] == ["mbarrier"] and got == 1
    assert "32 bytes under way are not announced" in report.faults[0].message


def test_more_bytes_than_an_mbarrier_counts():
    report, _ = steps(f"{INIT} mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 1048576;")
    assert [fault.kind for fault in report.faults] == ["mbarrier"] and "1048575" in report.faults[0].message


def test_an_mbarrier_made_anew_forgets_its_bytes_and_phases():
    text = f"{INIT} {ARRIVE} {TEST} {EXPECT} mbarrier.inval.shared::cta.b64 [%r0]; {INIT} {TEST} {ARRIVE} {TEST}"
    report, got = steps(text)
    assert report.clean and got == 0b101


def test_a_wait_on_an_mbarrier_made_anew_is_for_its_own_copies():
    copied = f"{EXPECT} {BULK.format(32)} {ARRIVE}"
    wait = f"again: {TEST.split(';')[0]}; @!%p1 bra again;"
    for waits in (True, False):
        report, _ = steps(f"{INIT} {{{copied} {wait}}} mbarrier.inval.shared::cta.b64 [%r0]; {INIT} {copied}"
                          f"{{{wait if waits else ''}}} ld.shared.u32 %r9, [%r1+28];", np.arange(8, dtype="f4"))
        assert [fault.kind for fault in report.faults] == ([] if waits else ["cp_async_race"]), str(report)


@pytest.mark.parametrize("text", [
    "cp.async.bulk.prefetch.L2.global [%rd0], 16;", "prefetch.tensormap [%rd0];",
    "createpolicy.fractional.L2::evict_first.b64 %rd1, 1.0;", "fence.mbarrier_init.release.cluster;",
    "griddepcontrol.wait;", "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;",
])
def test_what_changes_nothing_here(text):
    report, got = steps(f"mov.u32 %r9, 5; {text}")
    assert report.clean and got == 5
