"""wgmma: every layout, operands from registers, scales; what its checks find."""

import numpy as np
import pytest

from peakgemm.tools.simulator import UnknownInstruction
from wgmma_cases import (
    COMMIT,
    DEPTH,
    FENCE,
    ROOM,
    WAIT,
    accumulators,
    bits_of,
    descriptor,
    exact,
    fragment_a,
    go,
    kernel,
    of_threads,
    opcode,
    place,
)


@pytest.fixture
def rng():
    return np.random.default_rng(23)


def product(rng, kind="f16", n=16, swizzle="128B", major=("k", "k"), registers=False, scale_d="%p2", scales=(1, 1),
            around=(FENCE, COMMIT + WAIT), **options):
    """D of one instruction on random operands, the sum that it should be, and the report."""
    k = DEPTH[kind]
    a, b, c = exact(rng, (64, k), kind), exact(rng, (n, k), kind), rng.standard_normal((128, n // 2)).astype("f4")
    image = np.zeros(ROOM, "u1")
    place_a = place(image, 0, bits_of(a, kind), swizzle, major[0])
    place_b = place(image, ROOM // 2, bits_of(b, kind), swizzle, major[1])
    first = "{%a0, %a1, %a2, %a3}" if registers else str(descriptor(0, place_a, swizzle))
    trans = "" if kind == "tf32" else ", ".join(
        ["", *([] if registers else [str(int(major[0] == "mn"))]), str(int(major[1] == "mn"))])
    ins = (f"{opcode(kind, n)} {accumulators(n)}, {first}, {descriptor(ROOM // 2, place_b, swizzle)}, {scale_d}, "
           f"{scales[0]}, {scales[1]}{trans};")
    text = kernel(around[0] + ins + around[1], n)
    report, out = go(text, image, fragment_a(bits_of(a, kind), 4 if kind == "tf32" else 2), c, **options)
    want = (scales[0] * scales[1]) * (a.astype("f8") @ b.T.astype("f8"))
    if scale_d == "%p2":
        want = want + of_threads(c, n)
    return of_threads(out, n), want, report


def check(result):
    out, want, report = result
    assert report.clean, str(report)
    np.testing.assert_allclose(out, want, atol=3e-5)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("major", [("k", "k"), ("k", "mn"), ("mn", "k"), ("mn", "mn")])
@pytest.mark.parametrize("n", [16, 136])
def test_layouts(rng, swizzle, major, n):
    if n * 2 % 128 and major[1] == "mn" and swizzle != "none":
        n = {16: 64, 136: 192}[n]  # whole spans
    check(product(rng, n=n, swizzle=swizzle, major=major))


@pytest.mark.parametrize("kind", ["bf16", "tf32"])
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_other_types(rng, kind, swizzle):
    check(product(rng, kind=kind, swizzle=swizzle))


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
def test_a_from_registers(rng, kind):
    check(product(rng, kind=kind, registers=True))


@pytest.mark.parametrize("scales", [(1, -1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("scale_d", ["%p2", "%p3"])
def test_scales(rng, scales, scale_d):
    check(product(rng, scales=scales, scale_d=scale_d))


def test_its_counts(rng):
    _, _, report = product(rng, n=64)
    assert report.counters["wgmma_instructions"] == 1
    assert report.counters["wgmma_flops"] == 2 * 64 * 64 * 16
    assert report.counters["wgmma_shared_bytes"] == 2 * 16 * (64 + 64)


def test_tf32_drops_the_lower_bits(rng):
    image = np.zeros(ROOM, "u1")
    a = np.full((64, 8), 1 + 2.0**-11 + 2.0**-20, "f4")
    where = descriptor(ROOM // 2, place(image, ROOM // 2, np.eye(8, dtype="f4").view("u4"), "none", "k"), "none")
    ins = f"{FENCE} {opcode('tf32', 8)} {accumulators(8)}, {{%a0, %a1, %a2, %a3}}, {where}, %p3, 1, 1; {COMMIT} {WAIT}"
    report, out = go(kernel(ins, 8), image, fragment_a(a.view("u4"), 4), np.zeros((128, 4), "f4"))
    assert report.clean and (out == 1).all()


MOVES = "add.f32 %d1, %d1, %d1;"


@pytest.mark.parametrize(("around", "kind"), [
    (("", COMMIT + WAIT), "wgmma_fence"),
    ((FENCE + MOVES, COMMIT + WAIT), "wgmma_fence"),  # touched after the fence
    ((FENCE, COMMIT), "wgmma_registers"),  # the stores that follow
    ((FENCE, WAIT), "wgmma_registers"),  # never committed
    ((FENCE, COMMIT + WAIT.replace("0", "1")), "wgmma_registers"),
    ((FENCE, MOVES + COMMIT + WAIT), "wgmma_registers"),
    ((FENCE, "mov.b32 %r9, %d1; mov.b32 %r10, %r9; add.u32 %r10, %r10, 1;" + COMMIT + WAIT), "wgmma_registers"),
    ((FENCE, "@%p2 add.f32 %d1, %d1, %d1;" + COMMIT + WAIT), "wgmma_registers"),
])
def test_registers_touched_too_soon(rng, around, kind):
    _, _, report = product(rng, around=around)
    assert [fault.kind for fault in report.faults][:1] == [kind], str(report)


def test_a_move_or_a_constant_is_no_access(rng):
    check(product(rng, around=(FENCE + "mov.f32 %f1, %d1; mov.f32 %d1, 0f00000000; mov.f32 %d1, %f1;",
                               COMMIT + "mov.f32 %f2, %d0;" + WAIT)))


def test_what_a_false_guard_skips_is_no_access(rng):
    check(product(rng, around=(FENCE, "@%p3 add.f32 %d1, %d1, %d1;" + COMMIT + WAIT)))


def test_a_register_of_a_must_not_change(rng):
    for text, kinds in (("add.u32 %a0, %a0, 1;", ["wgmma_registers"]), ("add.u32 %r9, %a0, 1;", [])):
        _, _, report = product(rng, registers=True, around=(FENCE, text + COMMIT + WAIT))
        assert [fault.kind for fault in report.faults] == kinds, str(report)


def of_zeros(*where, n=8, changes=(), **options):
    """The report of a product of zeros at two descriptors, the text of its kernel changed."""
    ins = f"{opcode('f16', n)} {accumulators(n)}, {where[0]}, {where[-1]}, %p2, 1, 1, 0, 0;"
    text = kernel(f"{FENCE} {ins} {COMMIT} {WAIT}", n)
    for old, new in changes:
        text = text.replace(old, new)
    return go(text, np.zeros(ROOM, "u1"), np.zeros((128, 4), "u4"), np.zeros((128, n // 2), "f4"), **options)[0]


def test_without_the_proxy_fence():
    image, zeros = np.zeros(ROOM, "u1"), np.zeros((64, DEPTH["f16"]), "u2")
    where = [descriptor(start, place(image, start, zeros, "128B", "k"), "128B") for start in (0, ROOM // 2)]
    proxy, write = "fence.proxy.async.shared::cta;", "setp.eq.u32 %p4, %r0, 0; @%p4 st.shared.u32 [%r1], %r0;"
    for changes, kind, says in (
        ([], "", ""), ([(proxy, "")], "async_proxy", "fence.proxy.async"),
        ([(proxy, ""), (FENCE, "fence.proxy.async;" + FENCE)], "", ""),  # by the reader, after the barrier
        ([("bar.sync 0;", "")], "shared_race", ""), ([(WAIT, WAIT + write)], "", ""),
        ([(WAIT, write + WAIT)], "shared_race", "read by wgmma, not waited for"),
    ):
        report = of_zeros(*where, n=16, changes=changes)
        assert report.clean == (not kind) and {kind} - {""} <= {fault.kind for fault in report.faults}, str(report)
        assert report.clean or says in report.faults[0].message


def test_memory_that_nobody_wrote_or_has(rng):
    _, _, report = product(rng, shared_bytes=ROOM // 2)
    assert "shared_out_of_bounds" in {fault.kind for fault in report.faults}
    report = of_zeros(descriptor(ROOM, (16, 1024), "128B"), shared_bytes=2 * ROOM)
    assert {fault.kind for fault in report.faults} == {"shared_unwritten"}


def test_a_warpgroup_must_be_whole(rng):
    _, _, report = product(rng, block=96)
    assert "divergent_warp" in {fault.kind for fault in report.faults}


def test_warps_of_a_warpgroup_wait_for_each_other(rng):
    late = ("shr.u32 %r9, %r0, 5; setp.ne.u32 %p4, %r9, 2; @%p4 bra on; mov.u32 %r10, 0; spin: add.u32 %r10, %r10, 1;"
            "setp.lt.u32 %p5, %r10, 50; @%p5 bra spin; on:")
    check(product(rng, around=(late + FENCE, COMMIT + WAIT)))


@pytest.mark.parametrize("change", [
    (".f32.f16.f16", ".f16.f16.f16"), ("m64n16k16", "m64n12k16"), ("m64n16k16", "m64n16k8"),
    (", 1, 1, 0, 0", ", 2, 1, 0, 0"), (", 1, 1, 0, 0", ", 1, 1"), (".f32.f16.f16", ".f32.e4m3.e4m3"),
])
def test_what_is_not_simulated(change):
    with pytest.raises(UnknownInstruction, match=r"wgmma\.mma_async"):
        of_zeros(0, n=16, changes=[change])


def test_a_base_offset_is_refused():
    with pytest.raises(UnknownInstruction, match="base offset 3"):
        of_zeros(descriptor(0, (16, 1024), "128B") | 3 << 49)
