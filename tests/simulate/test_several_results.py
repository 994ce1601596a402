"""Instructions with several results read their sources, their address and their guard before they write any of them."""

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from simulator_cases import apply, values

FUNCTION = """.func (.reg .b32 o1, .reg .b32 o2) swap (.reg .b32 a1, .reg .b32 a2)
  { mov.b32 o1, a2; mov.b32 o2, a1; ret; }"""
SWAP = "call (%r1, %r2), swap, (%r1, %r2);"
PREDICATES = "selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 1, 0, %p2;"


def words(body, registers="", before=""):
    """What ``body`` makes of 1 to 4 in ``%r1`` to ``%r4``, the first two of them in ``%rd1``, and true and false."""
    body = f"""mov.u32 %r1, 1; mov.u32 %r2, 2; mov.u32 %r3, 3; mov.u32 %r4, 4; mov.b64 %rd1, {{%r1, %r2}};
      setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r1, 2; {body} st.global.v4.u32 [%rd0], {{%r1, %r2, %r3, %r4}};"""
    return values(body, leaves="", out=np.zeros(4, "i4"), registers=registers, before=before)


@pytest.mark.parametrize(("body", "want"), [
    ("mov.v2.b32 {%r1, %r2}, {%r2, %r1};", [2, 1, 3, 4]),
    ("mov.v4.b32 {%r1, %r2, %r3, %r4}, {%r2, %r3, %r4, %r1};", [2, 3, 4, 1]),
    ("mov.v4.u32 {%r4, %r3, %r2, %r1}, {%r1, %r1, 7, %r4};", [4, 7, 1, 1]),
    ("mov.v2.b32 {_, %r1}, {%r1, %r2};", [2, 2, 3, 4]),
    ("@%p2 mov.v2.b32 {%r1, %r2}, {%r2, %r1};", [1, 2, 3, 4]),
    ("mov.v4.b32 q, {%r2, %r3, %r4, %r1}; mov.v4.b32 {%r1, %r2, %r3, %r4}, q;", [2, 3, 4, 1]),
    ("mov.v4.b32 q, {%r1, %r2, %r3, %r4}; mov.v4.b32 q, {q.w, q.x, q.y, q.z}; mov.v4.b32 {%r1, %r2, %r3, %r4}, q;",
     [4, 1, 2, 3]),
    ("mov.v2.u64 {%rd1, %rd2}, {5, %rd1}; mov.b64 {%r1, %r2}, %rd2; mov.b64 {%r3, %r4}, %rd1;", [1, 2, 5, 0]),
    ("mov.b64 {%r2, %r1}, %rd1;", [2, 1, 3, 4]),
    ("mov.b32 {%h1, %h2}, %r1; mov.b32 %r1, {%h2, %h1};", [65536, 2, 3, 4]),
    ("mov.b64 %rd2, {%r2, %r1}; mov.b64 {%r1, %r2}, %rd2;", [2, 1, 3, 4]),
    ("setp.lt.and.u32 %p1|%p2, %r1, %r2, %p1; " + PREDICATES, [1, 0, 3, 4]),
    ("setp.lt.and.u32 %p2|%p1, %r1, %r2, %p1; " + PREDICATES, [0, 1, 3, 4]),
    ("setp.gt.xor.u32 %p1|%p2, %r1, %r2, %p1; " + PREDICATES, [1, 0, 3, 4]),
    ("@%p1 setp.gt.u32 %p1|%p2, %r1, %r2; " + PREDICATES, [0, 1, 3, 4]),
    ("@%p1 setp.gt.u32 %p2|%p1, %r2, %r1; " + PREDICATES, [0, 1, 3, 4]),
    ("@!%p2 setp.lt.u32 %p2|%p1, %r1, %r2; " + PREDICATES, [0, 1, 3, 4]),
    ("@%p1 shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, 1; selp.u32 %r2, 1, 0, %p1;", [2, 0, 3, 4]),
    ("@%p1 match.all.sync.b32 %r2|%p1, %r2, 1;", [1, 1, 3, 4]),
    ("add.cc.u32 %r1, %r1, -1; addc.u32 %r2, %r1, %r1;", [0, 1, 3, 4]),
    ("add.cc.u32 %r2, %r2, -1; @%p2 add.cc.u32 %r2, %r1, %r1; addc.u32 %r3, 0, 0;", [1, 1, 1, 4]),
    (SWAP, [2, 1, 3, 4]),
    ("@%p1 " + SWAP, [2, 1, 3, 4]),
    ("st.global.v4.u32 [%rd0], {%r4, %r3, %r2, %r1}; ld.global.v2.u64 {%rd1, %rd0}, [%rd0]; mov.b64 {%r1, %r2}, %rd0;"
     "mov.b64 {%r3, %r4}, %rd1; ld.param.u64 %rd0, [out];", [2, 1, 4, 3]),
    ("st.shared.v2.u32 [s], {%r3, %r4}; mov.u32 %r1, s; ld.shared.v2.u32 {%r1, %r2}, [%r1];", [3, 4, 3, 4]),
    ("st.shared.v2.u32 [s], {%r3, %r4}; mov.u32 %r2, s; ld.shared.v2.u32 {%r1, %r2}, [%r2];", [3, 4, 3, 4]),
    ("st.shared.u32 [s], %r3; mov.u32 %r1, s; atom.shared.add.u32 %r1, [%r1], %r1; ", [3, 2, 3, 4]),
    ("st.shared.u32 [s], %r3; atom.shared.cas.b32 %r3, [s], %r3, %r4; ld.shared.u32 %r4, [s];", [1, 2, 3, 4]),
    ("st.shared.u32 [s], %r3; atom.shared.exch.b32 %r4, [s], %r4; ld.shared.u32 %r3, [s];", [1, 2, 4, 3]),
    ("st.global.v4.u32 [%rd0], {0, 0, 0, 0}; atom.global.add.noftz.v2.f16x2 {%r1, %r2}, [%rd0], {%r2, %r1};"
     "ld.global.v2.u32 {%r3, %r4}, [%rd0];", [0, 0, 2, 1]),
    ("ld.param.v2.u32 {%r1, %r2}, [out]; mov.b64 %rd2, {%r1, %r2}; sub.s64 %rd2, %rd2, %rd0; cvt.u32.u64 %r1, %rd2;"
     "mov.u32 %r2, 2;", [0, 2, 3, 4]),
])
def test_results_do_not_see_each_other(body, want):
    assert words(body, ".reg .v4 .b32 q; .shared .align 16 .b32 s[4];", FUNCTION) == want


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(InvalidValue, match=r"mov\.v4"):
        words("mov.v4.b32 {%r1, %r2}, {%r2, %r1, %r3, %r4};")


def test_fragments_of_ldmatrix_and_mma_may_be_sources():
    """The address of ``ldmatrix`` among its results; of ``mma`` D among A, B and C."""
    load = """.shared .align 16 .b16 s[256]; mov.u32 %r0, %tid.x; mov.u32 %r5, s; mad.lo.u32 %r6, %r0, 16, %r5;
        st.shared.v4.b32 [%r6], {{%i0, %i0, %i0, %i0}}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}}}, [%r6]; add.u32 %r7, %r6, %r7; sub.u32 %r7, %r7, %r6;
        xor.b32 %o, {};"""
    lane = np.arange(32, dtype=np.uint32)
    names = ["%r6", "%r8", "%r9", "%r10"]
    got = apply("mov.u32 %r7, 0;" + load.format(", ".join(names), "%r6, %r10"), "u32", ("u32", lane))
    assert list(got) == [int(t // 4) ^ int(24 + t // 4) for t in lane]
    one = 0x3F803F80  # two bfloat16
    mma = """mov.b32 %r1, %i0; mov.b32 %r2, %i0; mov.b32 %r3, %i0; mov.b32 %r4, %i0; mov.b32 %r5, %i0;
        mov.b32 %r6, 0x3f800000; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{}}}, {{%r1, %r2, %r3, %r4}},
        {{%r5, %r2}}, {{%r6, %r6, %r6, %r6}}; mov.b32 %o, {};"""
    for results, which in (("%r1, %r2, %r3, %r5", "%r2"), ("%r6, %r4, %r1, %r3", "%r4")):
        got = apply(mma.format(results, which), "f32", ("b32", np.full(32, one, np.uint32)))
        assert (got == 17).all()


WORDS = (0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
FIRST = {  # what the 33rd or 65th bit of the adder is, per the hardware: a + ~b + 1 for a difference
    "add.cc.u{}": lambda a, b, c, ones: a + b, "sub.cc.u{}": lambda a, b, c, ones: a + (b ^ ones) + 1,
    "mad.lo.cc.u{}": lambda a, b, c, ones: (a * b & ones) + c,
    "mad.hi.cc.u{}": lambda a, b, c, ones: (a * b >> ones.bit_length()) + c,
}
SECOND = {
    "addc.cc.u{}": lambda a, b, c, ones, carry: a + b + carry,
    "subc.cc.u{}": lambda a, b, c, ones, carry: a + (b ^ ones) + carry,
    "madc.lo.cc.u{}": lambda a, b, c, ones, carry: (a * b & ones) + c + carry,
    "madc.hi.cc.u{}": lambda a, b, c, ones, carry: (a * b >> ones.bit_length()) + c + carry,
}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
def test_the_carry_is_the_adders(first, second, bits):
    """As ptxas has it: ``sub.cc`` sets the flag where nothing is borrowed, and ``addc`` behind it adds that."""
    ones, scale = 2**bits - 1, (2**bits - 1) // (2**32 - 1)
    a = np.array([x * scale for x in WORDS for _ in WORDS], f"u{bits // 8}")
    b = np.array([y * scale for _ in WORDS for y in WORDS], f"u{bits // 8}")
    c = np.roll(a, 5) ^ b
    zero, plus = ("%r9", "%r8") if bits == 32 else ("%rd9", "%rd8")

    def sources(text):
        return f"{zero}, %i0, %i1" + (", %i2" if "mad" in text else "")

    for part in range(3):  # the first result, the second, and the carry behind it
        text = f"{first.format(bits)} {sources(first)};"
        if part:
            text += f"{second.format(bits)} {sources(second).replace(zero, plus)}; addc.u{bits} {zero}, 0, 0;"
        text += f"mov.b{bits} %o, {plus if part == 1 else zero};"
        got = apply(text, f"u{bits}", *((f"u{bits}", x) for x in (a, b, c)))
        for x, y, z, value in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
            one = FIRST[first](x, y, z, ones)
            two = SECOND[second](x, y, z, ones, one >> bits)
            assert value == (one & ones, two & ones, two >> bits)[part], (text, x, y, z)


def test_a_long_difference_and_a_guarded_one():
    a, b = (np.array(x, np.uint64) for x in ((5, 2**40, 2**33 + 1), (7, 1, 2**33 + 2)))
    text = "mov.b64 {%r1, %r2}, %i0; mov.b64 {%r3, %r4}, %i1; sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4;"
    assert list(apply(f"{text} mov.b64 %o, {{%r5, %r6}};", "u64", ("u64", a), ("u64", b))) == list(a - b)
    text = "setp.eq.u32 %p1, %i0, 1; add.cc.u32 %r1, -1, 1; @%p1 sub.cc.u32 %r1, 0, 1; addc.u32 %o, 0, 0;"
    assert list(apply(text, "u32", ("u32", [0, 1]))) == [1, 0]


NAMES = """.global .align 4 .u32 g = 5; .const .align 4 .u32 c = 6;"""


@pytest.mark.parametrize(("body", "want"), [
    ("st.shared.b32 [s], 7; ld.b32 %r1, [s];", 7), ("st.b32 [s+4], 8; ld.shared.b32 %r1, [s+4];", 8),
    ("st.b32 [s], 9; mov.u64 %rd3, s; cvta.shared.u64 %rd3, %rd3; ld.b32 %r1, [%rd3];", 9),
    ("st.shared.b32 [s], 7; atom.add.u32 %r2, [s], 3; ld.shared.b32 %r1, [s];", 10),
    ("st.shared.b32 [s], 7; red.max.u32 [s], 30; ld.shared.b32 %r1, [s];", 30),
    ("st.b32 [l], 11; ld.local.b32 %r1, [l];", 11), ("st.local.b32 [l+8], 12; ld.b32 %r1, [l+8];", 12),
    ("ld.b32 %r1, [g];", 5), ("st.b32 [g], 21; ld.global.b32 %r1, [g];", 21),
])
def test_the_name_of_a_variable_is_an_address_in_its_own_space(body, want):
    registers = ".shared .align 16 .b32 pad[4]; .shared .align 16 .b32 s[4]; .local .align 4 .b32 first[2];" \
                ".local .align 4 .b32 l[4];"
    assert words(body, registers, NAMES)[0] == want


@pytest.mark.parametrize("text", ["ld.b32 %r1, [c];", "ld.b32 %r1, [out];", "ld.global.b32 %r1, [s];",
                                  "ld.shared.b32 %r1, [g];", "st.local.b32 [s], %r1;", "ld.const.b32 %r1, [g];",
                                  "atom.global.add.u32 %r1, [s], 1;"])
def test_a_variable_of_another_space_is_refused_as_ptxas_does(text):
    with pytest.raises(InvalidValue, match=r"PTX line \d+"):
        words(text, ".shared .align 16 .b32 s[4];", NAMES)
