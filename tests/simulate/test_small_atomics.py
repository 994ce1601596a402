"""Atomics on 16 bits, on pairs and on vectors: each element is one atomic."""

import numpy as np
import pytest

from simulator_cases import threads

PLACES = np.array([0, 1, 1, 2, 0, 5, 5, 5] * 8)
RNG = np.random.default_rng(3)


def floats(bits, brain):
    return (bits.astype("u4") << 16).view("f4") if brain else bits.view("f2").astype("f4")


def bits(values, brain):
    """Float32 to float16 or bfloat16, to nearest."""
    word = np.asarray(values, "f4").view("u4")
    return ((word + 0x7FFF + (word >> 16 & 1)) >> 16).astype("u2") if brain else np.asarray(values, "f2").view("u2")


def go(text, memory, values, size, space="global"):
    """``text`` by 64 threads on ``[%rd3]`` or shared ``[%r3]``, elements of ``size`` bytes; what each thread got."""
    memory, got = memory.copy(), np.zeros(64, f"u{size}")
    body = f"""ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [at]; ld.param.u64 %rd4, [got];
      mad.wide.u32 %rd2, %r0, 4, %rd2; ld.global.u32 %r1, [%rd2]; mov.u32 %r9, 0; mad.wide.u32 %rd1, %r0, {size}, %rd1;
      mad.wide.u32 %rd4, %r0, {size}, %rd4; mad.wide.u32 %rd3, %r1, {size}, %rd0; ld.global.b{8 * size} v, [%rd1];
      mov.u32 %r3, s; mad.lo.u32 %r3, %r1, {size}, %r3;"""
    kind = f"b{8 * size}"
    if space == "shared":
        body += f"""setp.lt.u32 %p1, %r0, 8; mad.wide.u32 %rd5, %r0, {size}, %rd0; mov.u32 %r4, s;
          mad.lo.u32 %r4, %r0, {size}, %r4; @%p1 ld.global.{kind} w, [%rd5]; @%p1 st.shared.{kind} [%r4], w;
          bar.sync 0; {text} bar.sync 0; @%p1 ld.shared.{kind} w, [%r4]; @%p1 st.global.{kind} [%rd5], w;"""
    else:
        body += text
    report, _ = threads(f"{body} st.global.{kind} [%rd4], d;", 64, leaves="", out=memory,
                        params=".param .u64 from, .param .u64 at, .param .u64 got",
                        args=[values, PLACES.astype("u4"), got],
                        registers=f".reg .{kind} v, w, d; .shared .align 16 .b8 s[64];")
    assert report.clean, str(report)
    return memory, got


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_sums_of_sixteen_bits(kind, packed, space):
    brain, width = kind == "bf16", 1 + packed
    start = bits(RNG.standard_normal((8, width)), brain)
    values = bits(RNG.standard_normal((64, width)) * 8, brain)
    start[2], values[3] = bits(np.inf, brain), bits(-np.inf, brain)  # a NaN
    start[7] = 1  # a subnormal, which stays
    want, before = start.copy(), np.zeros_like(values)
    for lane, place in enumerate(PLACES):  # lanes take turns
        before[lane] = want[place]
        with np.errstate(invalid="ignore"):
            total = floats(want[place], brain) + floats(values[lane], brain)
        want[place] = np.where(np.isnan(total), 0x7FFF, bits(total, brain))
    word, at = f"u{2 * width}", "[%r3]" if space == "shared" else "[%rd3]"
    text = f"atom.{space}.add.noftz.{kind}{'x2' * packed} d, {at}, v;"
    memory, got = go(text, start.view(word)[:, 0], values.view(word)[:, 0], 2 * width, space)
    assert (memory == want.view(word)[:, 0]).all() and (got == before.view(word)[:, 0]).all()
    text = text.replace("atom", "red").replace(" d,", " ") + " mov.b16 d, 0;" * (not packed) + "mov.b32 d, 0;" * packed
    memory, _ = go(text, start.view(word)[:, 0], values.view(word)[:, 0], 2 * width, space)
    assert (memory == want.view(word)[:, 0]).all()


@pytest.mark.parametrize("space", ["global", "shared"])
def test_compare_and_swap_of_sixteen_bits(space):
    start, values = np.zeros(8, "u2"), np.arange(1, 65, dtype="u2")
    at = "[%r3]" if space == "shared" else "[%rd3]"
    memory, got = go(f"atom.{space}.cas.b16 d, {at}, 0, v;", start, values, 2, space)
    first = {place: int(np.flatnonzero(place == PLACES)[0]) for place in (0, 1, 2, 5)}
    assert list(memory) == [values[first[place]] if place in first else 0 for place in range(8)]
    assert list(got) == [0 if first[place] == lane else memory[place] for lane, place in enumerate(PLACES.tolist())]


def test_neighbours_in_one_word_are_no_race():
    memory, _ = go("red.global.add.noftz.f16 [%rd3], v; mov.b16 d, 0;", np.zeros(8, "f2").view("u2"),
                   np.ones(64, "f2").view("u2"), 2)
    assert list(memory.view("f2")) == [16, 16, 8, 0, 0, 24, 0, 0]


@pytest.mark.parametrize("instruction", ["atom", "red"])
def test_vectors_of_float32(instruction):
    start, values = RNG.standard_normal((8, 2)).astype("f4"), RNG.standard_normal((64, 2)).astype("f4")
    want, before = start.copy(), np.zeros_like(values)
    for lane, place in enumerate(PLACES):
        before[lane] = want[place]
        want[place] += values[lane]
    text = "mov.b64 {%r5, %r6}, v; mov.b64 d, 0;"
    text += "red.global.add.v2.f32 [%rd3], {%r5, %r6};" if instruction == "red" else \
        "atom.global.add.v2.f32 {%r7, %r8}, [%rd3], {%r5, %r6}; mov.b64 d, {%r7, %r8};"
    memory, got = go(text, start.view("u8")[:, 0], values.view("u8")[:, 0], 8)
    assert (memory.view("f4").reshape(8, 2) == want).all()
    assert (got.view("f4").reshape(64, 2) == (before if instruction == "atom" else 0)).all()
