"""Clusters of blocks: shared memory of each other, the barrier of all, and what is wrong without it."""

from __future__ import annotations

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.tools.simulator.front.ptx import PtxError, UnknownInstruction
from simulator_cases import threads

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def cluster(blocks: int = 6, before: str = MEET, after: str = MEET, size: str = "2, 1, 1"):
    """Each thread writes its number to shared memory and reads the one of the neighbour block; what it read."""
    body = f""".shared .align 16 .b8 mine[256]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank;
      mad.lo.u32 %r3, %r1, 100, %r0; shl.b32 %r4, %r0, 2; mov.u32 %r5, mine; add.u32 %r5, %r5, %r4;
      st.shared.u32 [%r5], %r3; {before} xor.b32 %r6, %r2, 1; mapa.shared::cluster.u32 %r7, %r5, %r6;
      ld.shared::cluster.u32 %r8, [%r7]; {after}"""
    report, out = threads(body, 64, grid=blocks, leaves="%r8", bounds=f".reqnctapercluster {size}")
    return report, np.array(out)


def test_each_reads_what_the_other_wrote() -> None:
    report, out = cluster()
    assert report.clean, str(report)
    other = np.arange(6) ^ 1
    np.testing.assert_array_equal(out.reshape(6, 64), other[:, None] * 100 + np.arange(64))


@pytest.mark.parametrize(("before", "after", "says"), [
    ("", MEET, "put a barrier between them"), ("bar.sync 0;", MEET, "put a barrier between them"),
    (MEET, "", "which may have ended; put a barrier of the cluster behind it"),
    (MEET, "bar.sync 0;", "which may have ended; put a barrier of the cluster behind it"),
], ids=["nothing before", "each block's barrier before", "nothing behind", "each block's barrier behind"])
def test_without_a_barrier_of_the_cluster_it_is_a_race(before: str, after: str, says: str) -> None:
    report, _ = cluster(before=before, after=after)
    assert [fault.kind for fault in report.faults] == ["shared_race"]
    assert says in report.faults[0].message


def test_half_of_a_cluster_waits_for_ever() -> None:
    report, _ = cluster(before="setp.eq.u32 %p1, %r2, 0; @%p1 bra WAIT; SPIN: bar.sync 1, 96; bra GO; WAIT: " + MEET
                        + " GO:")
    assert any(fault.kind == "deadlock" and "the barrier of their cluster" in fault.message for fault in report.faults)


def test_what_a_cluster_cannot_be() -> None:
    with pytest.raises(InvalidValue, match=r"grid.x = 5 is no multiple of the 2 blocks"):
        cluster(blocks=5)
    with pytest.raises(PtxError, match="a cluster along x"):
        cluster(size="1, 2, 1")
    with pytest.raises(InvalidValue, match="block 2 of a cluster of 2"):
        cluster(before=f"{MEET} mapa.shared::cluster.u32 %r7, %r5, 2;")
    with pytest.raises(UnknownInstruction, match=r"follows no arrival at once|that no wait follows at once"):
        cluster(before="barrier.cluster.arrive; add.u32 %r3, %r3, 0; barrier.cluster.wait;")


@pytest.mark.parametrize("past", ["add.u32 %r5, %r5, 4;", "add.u32 %r5, %r5, 1024;"])
def test_an_access_past_the_other_blocks_memory(past: str) -> None:
    report, _ = cluster(before=f"{MEET} {past}")
    assert [fault.kind for fault in report.faults] == ["shared_out_of_bounds"]


def test_an_address_of_no_block_of_the_cluster() -> None:
    report, _ = cluster(after=f"add.u32 %r7, %r7, 100663296; ld.shared::cluster.u32 %r8, [%r7]; {MEET}")
    assert [fault.kind for fault in report.faults] == ["shared_out_of_bounds"]
    report, out = cluster(after=f"mapa.shared::cluster.u32 %r7, %r7, %r2; ld.shared::cluster.u32 %r8, [%r7]; {MEET}")
    assert report.clean and out[0] == 0 and out[64] == 100  # mapped anew: one's own


def test_a_store_into_a_block_that_may_have_ended() -> None:
    store = "mov.u32 %r8, 7; st.shared::cluster.u32 [%r7], %r8;"
    report, _ = cluster(after=f"{MEET} {store} {MEET}")
    assert report.clean, str(report)
    report, _ = cluster(after=f"{MEET} {store}")
    assert [fault.kind for fault in report.faults] == ["shared_race"]
    assert "writes to shared memory of the block of" in report.faults[0].message


ARRIVE = ("mapa.shared::cluster.u32 %r13, %r5, 0; mbarrier.arrive.shared::cluster.b64 _, [%r13]; "
          "mapa.shared::cluster.u32 %r13, %r5, 1; mbarrier.arrive.shared::cluster.b64 _, [%r13];")
OWN = "mbarrier.arrive.shared.b64 %rd4, [%r5];"


def multicast(readers: int = 64, arrive: str = ARRIVE, mask: int = 3):
    """Each block copies half of 64 bytes to both, twice; ``readers`` have read before it does so again."""
    body = f""".shared .align 16 .b8 here[64]; .shared .align 8 .b64 full; .shared .align 8 .b64 empty;
      mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, here; mov.u32 %r4, full; mov.u32 %r5, empty;
      ld.param.u64 %rd5, [from]; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r4], 1;
      @%p0 mbarrier.init.shared.b64 [%r5], {readers}; {MEET} mov.u32 %r6, 0;
    again:
      @!%p0 bra read;
      @%p0 mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r4], 64;
      shl.b32 %r7, %r2, 5; add.u32 %r8, %r3, %r7; mad.lo.u32 %r7, %r6, 64, %r7;
      cvt.u64.u32 %rd3, %r7; add.u64 %rd3, %rd5, %rd3; mov.u16 %h0, {mask};
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r8], [%rd3], 32, [%r4], %h0;
    read:
      mbarrier.try_wait.parity.shared.b64 %p1, [%r4], %r6;
      @!%p1 bra read;
      and.b32 %r9, %r0, 15; shl.b32 %r9, %r9, 2; add.u32 %r9, %r3, %r9; ld.shared.u32 %r10, [%r9];
      mad.lo.u32 %r11, %r1, 2, %r6; mad.lo.u32 %r11, %r11, 32, %r0; mul.wide.u32 %rd3, %r11, 4;
      add.u64 %rd3, %rd0, %rd3; st.global.u32 [%rd3], %r10; {arrive}
    wait:
      @%p0 mbarrier.try_wait.parity.shared.b64 %p1, [%r5], %r6;
      @!%p0 setp.eq.u32 %p1, 0, 0;
      @!%p1 bra wait;
      add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 2; @%p2 bra again; {MEET}"""
    report, out = threads(body, 32, grid=4, leaves="", out=np.zeros(4 * 2 * 32, "u4"), params=".param .u64 from",
                          args=[np.arange(32, dtype="u4")], bounds=".reqnctapercluster 2, 1, 1")
    return report, np.array(out)


def test_a_copy_to_both_blocks() -> None:
    report, out = multicast()
    assert report.clean, str(report)
    words = np.arange(32).reshape(2, 1, 16)  # of each round; 32 threads read 16 of them
    np.testing.assert_array_equal(out.reshape(4, 2, 2, 16), np.broadcast_to(words, (4, 2, 2, 16)))


def test_a_copy_before_the_other_block_has_read() -> None:
    report, _ = multicast(readers=32, arrive=OWN)
    assert {fault.kind for fault in report.faults} <= {"shared_race", "cp_async_race"} and report.faults


def test_a_copy_to_a_block_that_no_cluster_has() -> None:
    with pytest.raises(InvalidValue, match="to block 2 of a cluster of 2; the mask's bits count from 0 to 1"):
        multicast(mask=7)


def test_arriving_where_a_block_has_ended() -> None:
    polls = ("mov.u32 %r10, 0; again: add.u32 %r10, %r10, 1; ld.volatile.shared.u32 %r11, [%r5]; "
             "setp.lt.u32 %p2, %r10, 50; @%p2 bra again;")  # so long that the other block has its turn
    report, _ = cluster(before=f"{MEET} setp.eq.u32 %p1, %r2, 1; @%p1 ret; {polls}",
                        after="mbarrier.arrive.shared::cluster.b64 _, [%r7];")
    assert any("arrival at an mbarrier of a block that has ended" in fault.message for fault in report.faults)
