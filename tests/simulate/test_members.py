"""Member masks: who takes part in a warp-wide instruction, lane by lane, and what is reported as undefined."""

import numpy as np
import pytest

from simulator_cases import threads

LANE = np.arange(32)
HALVES = "setp.lt.u32 %p7, %r0, 16; selp.b32 %r9, 0xffff, 0xffff0000, %p7;"
# Halves that come on different ways: by a branch of their own to one instruction, or one after the other.
CONVERGENT, ALONE = "{}", "@%p7 bra L; {} bra E; L: {} E:"
VALUES = np.random.default_rng(1).integers(-50, 50, 32).astype(np.int32)


def warp(body, values=VALUES, count=32, target="sm_90"):
    """What each lane has in ``%r2`` after ``body``; ``%r0`` is the lane, ``%r1`` its value, ``%r9`` its half's mask."""
    values = np.array(values)
    report, out = threads(f"""ld.param.u64 %rd2, [x]; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd2, %rd2, %rd3;
        ld.global.b32 %r1, [%rd2]; mov.b32 %f1, %r1; {HALVES} {body}""", count, leaves="%r2", target=target,
                          out=np.zeros(32, values.dtype), params=".param .u64 x", args=[values])
    return np.array(out, values.dtype), [fault.kind for fault in report.faults]


def by_halves(function, values=VALUES):
    return np.concatenate([np.broadcast_to(function(values[part]), 16) for part in (slice(16), slice(16, 32))])


def lanes(low, values=VALUES):
    """The masks of the lanes of each half that hold each lane's value."""
    return np.array([sum(1 << j for j in range(32) if j // 16 == i // 16 and low(values[i], values[j])) for i in LANE])


FLOATS = np.array([3, -1.5, np.nan, -0.0, 0.0, 7, -9, 2] * 4, np.float32)
CASES = {  # instruction: by halves
    "redux.sync.add.s32 %r2, %r1, %r9;": by_halves(np.sum),
    "redux.sync.min.s32 %r2, %r1, %r9;": by_halves(np.min),
    "redux.sync.max.s32 %r2, %r1, %r9;": by_halves(np.max),
    "redux.sync.min.u32 %r2, %r1, %r9;": by_halves(lambda v: v.view("u4").min().view("i4")),
    "redux.sync.max.u32 %r2, %r1, %r9;": by_halves(lambda v: v.view("u4").max().view("i4")),
    "redux.sync.and.b32 %r2, %r1, %r9;": by_halves(np.bitwise_and.reduce),
    "redux.sync.or.b32 %r2, %r1, %r9;": by_halves(np.bitwise_or.reduce),
    "redux.sync.xor.b32 %r2, %r1, %r9;": by_halves(np.bitwise_xor.reduce),
    "elect.sync %r2|%p1, %r9;": LANE // 16 * 16,
    "elect.sync _|%p1, %r9; selp.u32 %r2, 1, 0, %p1;": LANE % 16 == 0,
    "match.any.sync.b32 %r2, %r1, %r9;": lanes(lambda a, b: a == b),
    "setp.gt.s32 %p1, %r1, 7; vote.sync.ballot.b32 %r2, %p1, %r9;": lanes(lambda a, b: b > 7),
    "setp.eq.s32 %p1, %r0, 3; vote.sync.any.pred %p2, %p1, %r9; selp.u32 %r2, 1, 0, %p2;": LANE < 16,
    "setp.ne.s32 %p1, %r0, 3; vote.sync.all.pred %p2, %p1, %r9; selp.u32 %r2, 1, 0, %p2;": LANE >= 16,
    "setp.ne.s32 %p1, %r0, 3; vote.sync.uni.pred %p2, %p1, %r9; selp.u32 %r2, 1, 0, %p2;": LANE >= 16,
    "setp.ge.s32 %p1, %r0, 16; vote.sync.uni.pred %p2, %p1, %r9; selp.u32 %r2, 1, 0, %p2;": LANE >= 0,
    "shr.u32 %r5, %r0, 4; mul.wide.u32 %rd5, %r5, 9; match.all.sync.b64 %r2|%p1, %rd5, %r9;":
        np.where(LANE < 16, 0xFFFF, 0xFFFF0000),
    "min.u32 %r5, %r0, 16; match.all.sync.b32 %r2|%p1, %r5, %r9; @%p1 add.u32 %r2, %r2, 1;":
        np.where(LANE < 16, 0, 0xFFFF0001),
    "shfl.sync.bfly.b32 %r2, %r1, 5, 0x101f, %r9;": VALUES[LANE ^ 5],
    "shfl.sync.idx.b32 %r2, %r1, 3, 0x101f, %r9;": VALUES[LANE // 16 * 16 + 3],
    "shfl.sync.down.b32 %r2|%p1, %r1, 1, 0x101f, %r9; @!%p1 mov.u32 %r2, 99;":
        np.where(LANE % 16 == 15, 99, VALUES[(LANE + 1) % 32]),
}


@pytest.mark.parametrize("way", [CONVERGENT, ALONE])
@pytest.mark.parametrize("text", CASES)
def test_each_half_has_a_mask_of_its_own(text, way):
    got, faults = warp(way.replace("{}", text))
    assert not faults and list(got.view("u4")) == list(np.asarray(CASES[text]).astype("i8") & 0xFFFFFFFF)


@pytest.mark.parametrize(("text", "want"), [
    ("min", lambda v: np.nanmin(v)), ("max", lambda v: np.nanmax(v)),
    ("min.abs", lambda v: np.nanmin(np.abs(v))), ("max.abs", lambda v: np.nanmax(np.abs(v))),
    ("min.NaN", lambda v: np.float32(np.nan)), ("max.abs.NaN", lambda v: np.float32(np.nan))])
def test_redux_of_floats(text, want):
    body = f"redux.sync.{text}.f32 %f2, %f1, %r9; mov.b32 %r2, %f2;"
    got, faults = warp(body, FLOATS, target="sm_100a")
    half = want(FLOATS[:16])
    assert not faults and ((got == half) | np.isnan(half)).all() and (np.isnan(got) == np.isnan(half)).all()
    zeros = np.tile(np.array([0.0, -0.0], np.float32), 16)
    got, _ = warp("redux.sync.min.f32 %f2, %f1, %r9; mov.b32 %r2, %f2;", zeros, target="sm_100a")
    assert np.signbit(got).all()


def test_quarters_whose_lanes_are_strewn():
    """Every fourth lane in one mask, all at one instruction, or each on its own turn of a loop."""
    masks = "and.b32 %r5, %r0, 3; shl.b32 %r6, 0x11111111, %r5;"
    want = np.array([VALUES[i % 4::4].sum() for i in LANE])
    for body in (f"{masks} redux.sync.add.s32 %r2, %r1, %r6;",
                 f"""{masks} mov.u32 %r7, 0; L: setp.eq.u32 %p1, %r7, %r5; @!%p1 bra N;
                 redux.sync.add.s32 %r2, %r1, %r6; N: add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r7, 4; @%p2 bra L;"""):
        got, faults = warp(body)
        assert not faults and list(got) == list(want)


def test_lanes_that_come_late_are_waited_for_and_others_go_on():
    """Lanes 0 to 23 are here first: the lower half goes on, the upper waits for its last eight lanes."""
    body = """setp.lt.u32 %p1, %r0, 24; @%p1 bra M; mov.u32 %r8, 40; S: sub.u32 %r8, %r8, 1; setp.ne.u32 %p2, %r8, 0;
        @%p2 bra S; M: redux.sync.add.s32 %r2, %r1, %r9;"""
    got, faults = warp(body)
    assert not faults and list(got) == list(by_halves(np.sum))


def test_a_mask_may_name_lanes_that_have_ended_or_never_were():
    got, faults = warp("@!%p7 ret; redux.sync.add.s32 %r2, %r1, 0xffffffff;")
    assert not faults and list(got[:16]) == [VALUES[:16].sum()] * 16
    for text, want in (("redux.sync.add.s32 %r2, %r1, 0xffffffff;", VALUES[:20].sum()),
                       ("setp.ge.u32 %p1, %r0, 4; vote.sync.ballot.b32 %r2, %p1, 0xffffffff;", 0xFFFF0),
                       ("setp.ge.u32 %p1, %r0, 0; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r2, 5, 0, %p2;", 5),
                       ("match.all.sync.b32 %r2|%p1, 7, 0xffffffff;", 0xFFFFF), ("activemask.b32 %r2;", 0xFFFFF)):
        got, faults = warp(text, count=20)
        assert not faults and list(got[:20]) == [want] * 20, text
    late = """@%p7 bra L; mov.u32 %r8, 30; S: sub.u32 %r8, %r8, 1; setp.ne.u32 %p2, %r8, 0; @%p2 bra S; ret;
        L: redux.sync.add.s32 %r2, %r1, -1; redux.sync.add.s32 %r2, %r2, -1;"""
    got, faults = warp(late)
    assert not faults and list(got[:16]) == [16 * VALUES[:16].sum()] * 16


def test_only_lanes_whose_guard_holds_take_part():
    got, faults = warp("mov.u32 %r2, 1; @%p7 redux.sync.add.s32 %r2, %r1, 0xffff;")
    assert not faults and list(got) == [VALUES[:16].sum()] * 16 + [1] * 16
    got, faults = warp("mov.u32 %r2, 1; @%p7 activemask.b32 %r2;")
    assert not faults and list(got) == [0xFFFF] * 16 + [1] * 16
    got, faults = warp("mov.u32 %r2, 1; @!%p7 elect.sync %r2|%p7, 0xffff0000; @%p7 add.u32 %r2, %r2, 100;")
    assert not faults and list(got) == [101] * 16 + [116] + [16] * 15


@pytest.mark.parametrize("way", [CONVERGENT, ALONE])
def test_active_lanes_are_those_of_the_way(way):
    got, faults = warp(way.replace("{}", "activemask.b32 %r2;"))
    want = [-1] * 32 if way == CONVERGENT else list(np.where(LANE < 16, 0xFFFF, 0xFFFF0000).astype("u4").view("i4"))
    assert not faults and list(got) == want


UNDEFINED = {
    "a lane outside its own mask": ("redux.sync.add.s32 %r2, %r1, 0xffff;", "warp_mask"),
    "outside, of elect": ("elect.sync %r2|%p1, 2;", "warp_mask"),
    "outside, of a barrier": ("bar.warp.sync 0xffff;", "warp_mask"),
    "outside, of a vote": ("vote.sync.any.pred %p1, %p7, 0xffff;", "warp_mask"),
    "outside, of match": ("match.any.sync.b32 %r2, %r1, 0xffff;", "warp_mask"),
    "two masks": ("selp.b32 %r9, -1, 0xffff0000, %p7; redux.sync.add.s32 %r2, %r1, %r9;", "divergent_warp"),
    "a guard that fails": ("@%p7 redux.sync.add.s32 %r2, %r1, -1;", "divergent_warp"),
    "a guard that fails at a barrier": ("@%p7 bar.warp.sync -1;", "divergent_warp"),
    "another way": ("@%p7 bra L; redux.sync.add.s32 %r2, %r1, -1; bra E; L: redux.sync.add.s32 %r2, %r1, -1; E:",
                    "divergent_warp"),
    "from a lane beyond the mask": ("@!%p7 bra E; shfl.sync.down.b32 %r2, %r1, 8, 0x1f, 0xffff; E:", "shuffle_source"),
    "from a lane of another mask": ("shfl.sync.idx.b32 %r2, %r1, 3, 0x1f, %r9;", "shuffle_source"),
    "from a lane that has ended": ("@!%p7 ret; shfl.sync.bfly.b32 %r2, %r1, 16, 0x1f, -1;", "shuffle_source"),
    "from a lane whose guard fails": ("@%p7 shfl.sync.bfly.b32 %r2, %r1, 16, 0x1f, 0xffff;", "shuffle_source"),
}


@pytest.mark.parametrize("what", UNDEFINED)
def test_what_is_undefined_is_reported(what):
    body, kind = UNDEFINED[what]
    assert kind in warp(body)[1]


def test_a_shuffle_within_a_width_reads_no_lane_beyond():
    got, faults = warp("@!%p7 bra E; shfl.sync.down.b32 %r2, %r1, 8, 0x101f, 0xffff; E:")
    assert not faults and list(got[:16]) == [*VALUES[8:16], *VALUES[8:16]]


def test_a_barrier_of_each_half_orders_its_lanes_alone():
    """Each half passes words on within itself; to the other half they are a race."""
    body = """.shared .b32 s[32]; mov.u32 %r3, s; shl.b32 %r4, %r0, 2; add.u32 %r3, %r3, %r4; xor.b32 %r5, %r4, {};
        mov.u32 %r6, s; add.u32 %r6, %r6, %r5; st.shared.b32 [%r3], %r1; {} ld.shared.b32 %r2, [%r6];"""
    got, faults = warp(body.format(4, "bar.warp.sync %r9;"))
    assert not faults and list(got) == list(VALUES[LANE ^ 1])
    assert warp(body.format(4, ""))[1] == ["shared_race"]
