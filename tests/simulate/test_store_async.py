"""st.async between the blocks of a cluster, and clusters that the launch asks for."""

from __future__ import annotations

import re

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from simulator_cases import threads

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
EXPECT = "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r5], %r6;"
ASYNC = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
GIVE = f"{ASYNC}.u32 [%r11], %r7, [%r12];"
WAIT = "and.b32 %r17, %r20, 1; poll: mbarrier.try_wait.parity.shared.b64 %p1, [%r5], %r17; @!%p1 bra poll;"
LATE = f"{MEET} late: mbarrier.try_wait.parity.shared.b64 %p1, [%r5], 0; @!%p1 bra late;"  # at the kernel's end
NAMED = ".reqnctapercluster 2, 1, 1"


def go(cluster: int = 2, clusters: int = 2, rounds: int = 1, bounds: str = "", expect: str = EXPECT, meet: str = MEET,
       give: str = GIVE, wait: str = WAIT, end: str = "", size: int = 0, **options):
    """64 threads of each block give a word to all blocks of the cluster, in rounds, and take a neighbour's from each.

    ``size``: blocks that the kernel takes a cluster to have, where that is not ``cluster``.
    """
    body = f""".shared .align 16 .b8 given[4096]; .shared .align 8 .b64 bar; .shared .align 8 .b64 none;
      mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %cluster_nctarank;
      mov.u32 %r4, given; mov.u32 %r5, bar; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r5], 1;
      shl.b32 %r6, %r3, 8; shl.b32 %r8, %r2, 6; add.u32 %r8, %r8, %r0; shl.b32 %r8, %r8, 2; add.u32 %r8, %r4, %r8;
      mov.u32 %r20, 0;
    round:
      {expect} {meet}
      mad.lo.u32 %r7, %r1, 1000, %r0; mad.lo.u32 %r7, %r20, 64, %r7; mov.u32 %r10, 0;
    give:
      mapa.shared::cluster.u32 %r11, %r8, %r10; mapa.shared::cluster.u32 %r12, %r5, %r10;
      {give}
      add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, %r3; @%p1 bra give;
      {wait}
      add.u32 %r13, %r0, 1; and.b32 %r13, %r13, 63; shl.b32 %r13, %r13, 2; add.u32 %r13, %r4, %r13;
      mad.lo.u32 %r14, %r1, {rounds}, %r20; mul.lo.u32 %r14, %r14, %r3; mov.u32 %r10, 0;
    take:
      ld.shared.u32 %r15, [%r13]; add.u32 %r13, %r13, 256; add.u32 %r16, %r14, %r10; mad.lo.u32 %r16, %r16, 64, %r0;
      mul.wide.u32 %rd1, %r16, 4; add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r15;
      add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, %r3; @%p1 bra take;
      add.u32 %r20, %r20, 1; setp.lt.u32 %p1, %r20, {rounds}; @%p1 bra round; {end}"""
    blocks = clusters * (size or cluster)
    out = np.zeros((blocks, rounds, size or cluster, 64), np.uint32)
    return threads(body, 64, grid=blocks, leaves="", out=out, bounds=bounds, cluster=cluster, **options)[0], out


def wanted(out):
    """What each block takes: the words of the neighbour threads of all blocks of its cluster."""
    blocks, rounds, size, threads = out.shape
    block, step, other, thread = np.ogrid[:blocks, :rounds, :size, :threads]
    return (block // size * size + other) * 1000 + step * 64 + (thread + 1) % threads


def test_a_cluster_of_one_block() -> None:
    """An illegal instruction, on an H100 and an H200."""
    (fault,) = faults(go(cluster=1)[0], "mbarrier")
    assert "in a cluster of one block faults on a GPU; launch clusters of two" in fault.message


def faults(report, kind: str):
    """Those of st.async, or of reads of what it stores."""
    return [fault for fault in report.faults
            if fault.kind == kind and fault.instruction.startswith(("st.async", "ld."))]


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize(("cluster", "rounds"), [(2, 2), (8, 1), (16, 3)])
def test_every_block_gives_to_all(cluster: int, rounds: int, checks: bool) -> None:
    report, out = go(cluster, rounds=rounds, checks=checks)
    assert report.clean, str(report)
    np.testing.assert_array_equal(out, wanted(out))
    store = next(item for item in report.instructions if item.opcode.startswith("st.async"))
    warps = 2 * cluster * rounds * cluster * 2
    assert (store.executions, store.requests, store.threads, store.bytes) == (warps, warps, 32 * warps, 128 * warps)
    assert report.counters["shared_stores"] == store.wavefronts == 0  # it is the network between SMs that it takes


def test_one_gives_and_the_other_counts() -> None:
    fill = "shl.b32 %r21, %r0, 2; add.u32 %r21, %r4, %r21; st.shared.u32 [%r21], 7; st.shared.u32 [%r21+256], 7;"
    report, out = go(expect=f"{fill} shl.b32 %r6, %r2, 8; {EXPECT}", give=f"setp.lt.u32 %p2, %r2, %r10; @%p2 {GIVE}")
    assert report.clean, str(report)
    assert (out[::2] == 7).all() and (out[1::2, 0, 1] == 7).all()
    np.testing.assert_array_equal(out[1::2, 0, 0], wanted(out)[1::2, 0, 0])


@pytest.mark.parametrize(("form", "value", "words"), [
    ("b64", "%rd4", 2), ("u64", "%rd4", 2), ("v2.b32", "{%r21, %r22}", 2), ("v2.f32", "{%r21, 0f40490FDB}", 2),
    ("v4.u32", "{%r21, %r22, 7, %r21}", 4), ("v2.s64", "{%rd4, %rd5}", 4), ("v2.f64", "{%rd4, 0d400921FB54442D18}", 4),
])
def test_wide_values(form: str, value: str, words: int) -> None:
    # Threads whose words others' would cover give nothing.
    give = (f"rem.u32 %r23, %r0, {words}; setp.eq.u32 %p2, %r23, 0; or.b32 %r21, %r7, 0; xor.b32 %r22, %r7, -1; "
            f"mov.b64 %rd4, {{%r21, %r22}}; mov.b64 %rd5, {{%r22, %r21}}; @%p2 {ASYNC}.{form} [%r11], {value}, [%r12];")
    report, out = go(give=give)
    assert report.clean, str(report)
    blocks = np.arange(4).reshape(2, 2, 1)
    first = (blocks * 1000 + np.arange(0, 64, words)).astype(np.uint32)
    pi = np.float64(np.pi).view(np.uint64)
    each = {"b64": [first, ~first], "u64": [first, ~first], "v2.b32": [first, ~first],
            "v2.f32": [first, np.float32(np.pi).view(np.uint32)], "v4.u32": [first, ~first, 7, first],
            "v2.s64": [first, ~first, ~first, first], "v2.f64": [first, ~first, pi & 0xFFFFFFFF, pi >> 32]}[form]
    given = np.stack([np.broadcast_to(np.uint32(word), first.shape) for word in each], -1).reshape(2, 2, 64)
    taken = np.broadcast_to(np.roll(given, -1, 2)[:, None], (2, 2, 2, 64))  # by both blocks of a cluster
    np.testing.assert_array_equal(out.reshape(taken.shape), taken)


def test_reading_without_a_wait_is_a_race() -> None:
    report, _ = go(wait="", end=LATE)
    assert [fault.kind for fault in report.faults] == ["cp_async_race"]
    fault = report.faults[0]
    assert fault.instruction.startswith("ld.shared") and "a wait for the phase of its mbarrier" in fault.message
    assert "races with the st.async, not waited for, at (PTX line" in fault.message
    report, _ = go(wait=f"bar.sync 0; {MEET}", end=LATE)  # barriers tell nothing of it
    assert faults(report, "cp_async_race")


def test_giving_again_before_the_others_have_taken() -> None:
    assert go(rounds=3)[0].clean
    once = f"setp.gt.u32 %p2, %r20, 0; @%p2 bra met; {MEET} met:"
    report, _ = go(rounds=2, meet=once, expect=f"{EXPECT} bar.sync 0;")
    assert any(fault.kind in ("shared_race", "cp_async_race") and fault.instruction.startswith(("st.async", "ld."))
               for fault in report.faults), str(report)


def test_value_and_mbarrier_in_different_blocks() -> None:
    report, _ = go(give=GIVE.replace("[%r12]", "[%r5]"))
    fault = next(fault for fault in report.faults if fault.instruction.startswith("st.async"))
    assert fault.kind == "mbarrier" and fault.count == 4 * 64  # to oneself is right
    assert "in one block of the cluster and counted by an mbarrier of another" in fault.message


def test_no_mbarrier_there() -> None:
    report, _ = go(give=GIVE.replace("[%r12]", "[%r12+8]"))
    assert any("holds no initialised mbarrier" in fault.message for fault in faults(report, "mbarrier"))
    report, _ = go(give=f"add.u32 %r12, %r12, 50331648; {GIVE}")  # in no block of the cluster
    assert any("holds no initialised mbarrier" in fault.message for fault in faults(report, "mbarrier"))


@pytest.mark.parametrize(("give", "kind", "message"), [
    (GIVE.replace("[%r11]", "[%r11+2]"), "misaligned", r"4-byte write at shared address \d+ is in shared memory, not a "
                                                       "multiple of 4"),
    (f"{ASYNC}.v2.u32 [%r11+4], {{%r7, %r7}}, [%r12];", "misaligned", "8-byte write at .* not a multiple of 8"),
    (GIVE.replace("[%r11]", "[%r11+4096]"), "shared_out_of_bounds", "past the block's 4112 bytes of shared memory"),
    (f"add.u32 %r11, %r11, 50331648; {GIVE}", "shared_out_of_bounds", "past the block's 4112 bytes"),  # in no block
])
def test_refused_stores(give: str, kind: str, message: str) -> None:
    report, _ = go(give=give)
    found = faults(report, kind)
    assert found and re.search(message, found[0].message), str(report)
    assert not [fault for fault in report.faults if fault.kind == "mbarrier"]
    assert (kind == "misaligned" and "v2" in give) or not report.stopped  # what is refused is counted, the run goes on


@pytest.mark.parametrize(("value", "races"), [("%r0", True), ("%r1", True), ("7", False)])
def test_threads_that_give_to_one_word(value: str, races: bool) -> None:
    give = f"mapa.shared::cluster.u32 %r11, %r4, %r10; {ASYNC}.u32 [%r11], {value}, [%r12];"
    report, _ = go(give=give)
    found = [fault for fault in report.faults if fault.instruction.startswith("st.async")]
    assert [fault.kind for fault in found] == ["shared_race"] * races
    assert all("with different values in one instruction" in fault.message for fault in found)


def test_giving_to_a_block_that_has_ended() -> None:
    polls = ("mov.u32 %r24, 0; again: add.u32 %r24, %r24, 1; ld.volatile.shared.u32 %r25, [%r5]; "
             "setp.lt.u32 %p2, %r24, 50; @%p2 bra again;")  # so long that the other block has its turn
    report, _ = go(meet=f"{MEET} setp.eq.u32 %p1, %r2, 1; @%p1 ret; {polls}")
    assert any("4-byte write of the shared memory of a block that has ended" in fault.message
               for fault in faults(report, "shared_race")), str(report)


def test_giving_to_a_block_that_does_not_wait() -> None:
    report, _ = go(wait="bra done;", end="done:")
    assert [fault.kind for fault in report.faults] == ["shared_race"]
    assert re.search("writes to shared memory of the block of .*, which may have ended; let it wait for the phase",
                     report.faults[0].message)


@pytest.mark.parametrize(("cluster", "bounds", "message"), [
    (0, "", "cluster = 0 must be 1 to 16, .*; pass 1 for none"), (-2, "", "cluster = -2 must be 1 to 16"),
    (17, "", "cluster = 17 must be 1 to 16, .*; pass 1 for none, or give fewer blocks"),
    (4, NAMED, r"cluster = 4, but kernel k was compiled for clusters of 2 \(.reqnctapercluster\); leave cluster out"),
    (5, "", "grid.x = 12 is no multiple of the 5 blocks of a cluster that the launch asks for"),
    (1, NAMED.replace("2", "5"), "grid.x = 12 is no multiple of the 5 blocks of a cluster that kernel k asks for"),
])
def test_clusters_that_a_launch_cannot_have(cluster: int, bounds: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        go(cluster, size=2, clusters=6, bounds=bounds)


def test_clusters_where_there_are_none() -> None:
    with pytest.raises(InvalidValue, match="cluster = 2, but sm_80 has no clusters"):
        go(arch="sm_80")


def test_rank_and_size_of_a_cluster_of_the_launch() -> None:
    reads = ("mov.u32 %r21, %cluster_nctarank; mov.u32 %r22, %cluster_ctarank; mov.u32 %r23, %clusterid.x; "
             "mad.lo.u32 %r7, %r21, 100, %r22; mad.lo.u32 %r7, %r23, 1000, %r7; mov.u32 %r21, %nclusterid.x; "
             "mad.lo.u32 %r7, %r21, 10000, %r7;")
    report, out = go(4, clusters=3, give=f"{reads} {GIVE}")
    assert report.clean, str(report)
    assert out[:, 0, :, 5].tolist() == [[30400 + block // 4 * 1000 + rank for rank in range(4)] for block in range(12)]
    with pytest.raises(InvalidValue, match="mapa names block 4 of a cluster of 4; ranks count from 0 to 3"):
        go(4, give=f"mapa.shared::cluster.u32 %r11, %r8, 4; {GIVE}")
