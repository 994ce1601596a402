"""Variables and what they begin with: their sizes, rows, vectors, addresses."""

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.front.parser import parse
from simulator_cases import ptx


def variable(text, name="g"):
    return parse(ptx("ret;").replace(".visible", f"{text}\n.visible")).variables[name]


def words(text, dtype, count, name="g"):
    """What a kernel reads from the variable."""
    size = np.dtype(dtype).itemsize
    out = np.zeros(count * size, "u1")
    body = (f"ld.param.u64 %rd0, [out]; mov.u64 %rd1, {name}; mov.u32 %r1, 0; TOP: ld.global.u8 %h1, [%rd1]; "
            "st.global.u8 [%rd0], %h1; add.u64 %rd0, %rd0, 1; add.u64 %rd1, %rd1, 1; add.u32 %r1, %r1, 1;"
            f"setp.lt.u32 %p1, %r1, {len(out)}; @%p1 bra TOP; ret;")
    report = run(ptx(body, ".param .u64 out").replace(".visible", f"{text}\n.visible"), grid=1, block=1, args=[out])
    assert report.clean, str(report)
    return out.view(dtype).tolist()


@pytest.mark.parametrize(("text", "size", "align"), [
    (".shared .v4 .f32 g[64];", 1024, 16), (".global .v2 .u16 g[3];", 12, 4), (".global .v4 .b8 g;", 4, 4),
    (".global .u32 g[] = {1, 2, 3};", 12, 4), (".global .u32 g[][2] = {{1, 2}, {3}};", 16, 4),
    (".global .u32 g[][2] = {1, 2, 3};", 16, 4), (".global .v2 .f32 g[] = {{1.0, 2.0}, {3.0, 4.0}};", 16, 8),
    (".global .align 64 .u8 g[5];", 5, 64), (".extern .shared .align 16 .b8 g[];", 0, 16),
])
def test_sizes(text, size, align):
    found = variable(text)
    assert (found.size, found.align) == (size, align)


def test_shared_vectors_have_room_for_all_their_elements():
    body = ("ld.param.u64 %rd0, [out]; .shared .v4 .f32 s[64]; mov.u32 %r0, %tid.x; mov.u32 %r1, s; mad.lo.u32 %r2, "
            "%r0, 16, %r1; cvt.rn.f32.u32 %f1, %r0; st.shared.v4.f32 [%r2], {%f1, %f1, %f1, %f1}; bar.sync 0;"
            "xor.b32 %r3, %r0, 63; mad.lo.u32 %r3, %r3, 16, %r1;"
            "ld.shared.f32 %f2, [%r3+12]; mad.wide.u32 %rd1, %r0, 4, %rd0;"
            "st.global.f32 [%rd1], %f2; ret;")
    out = np.zeros(64, "f4")
    assert run(ptx(body, ".param .u64 out"), grid=1, block=64, args=[out]).clean
    assert out.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize(("text", "dtype", "values"), [
    (".global .u32 g[2][3] = {{1, 2}, {3, 4}};", "u4", [1, 2, 0, 3, 4, 0]),
    (".global .u32 g[2][3] = {1, 2, 3, 4};", "u4", [1, 2, 3, 4, 0, 0]),
    (".global .s8 g[2][2][2] = {{{1}, {-2, 3}}, {{4}}};", "i1", [1, 0, -2, 3, 4, 0, 0, 0]),
    (".global .u32 g[] = {017, 0b101, 0b11U, 0x1FU, 5U, -1};", "u4", [15, 5, 3, 31, 5, 2**32 - 1]),
    (".global .f32 g[5] = {1.5, 0f3F800000, 1e3, -2.5, 3};", "f4", [1.5, 1, 1000, -2.5, 3]),
    (".global .f32 g[2] = {0dC000000000000000, -0f40400000};", "f4", [-2, -3]),
    (".global .f64 g[3] = {1.5, 0f40000000, -0d3FF0000000000000};", "f8", [1.5, 2, -1]),
    (".global .v4 .f32 g[2] = {{1.0, 2.0}, {5.0, 6.0, 7.0, 8.0}};", "f4", [1, 2, 0, 0, 5, 6, 7, 8]),
    (".global .v2 .u32 g = {1, 2};", "u4", [1, 2]), (".global .u32 g = 7;", "u4", [7]),
    (".global .b32 g[2] = {1.5, 2};", "u4", [0x3FC00000, 2]), (".global .u32 g[3] = {};", "u4", [0, 0, 0]),
])
def test_values(text, dtype, values):
    assert words(text, dtype, len(values)) == values


@pytest.mark.parametrize("form", ["generic(a)+8", "a+8", "generic(a)+4+4", "a+12-4"])
def test_addresses_of_other_variables(form):
    before = f".global .u64 p[2] = {{0, {form}}}; .global .align 4 .u32 a[4] = {{1, 2, 3, 4}};"
    body = ("ld.param.u64 %rd0, [out]; ld.global.u64 %rd1, [p+8]; ld.u32 %r1, [%rd1]; st.global.u32 [%rd0], %r1; ret;")
    out = np.zeros(1, "u4")
    assert run(ptx(body, ".param .u64 out").replace(".visible", f"{before}\n.visible"), grid=1, block=1,
               args=[out]).clean
    assert out[0] == 3


def test_bytes_of_an_address():
    before = ".global .u8 g[8] = {0xff(a), 0xff00(a), 0xff0000(a), 0xff000000(a), 0xff00000000(a), 0xff0000000000(a)," \
             "0xff000000000000(a), 0xff00000000000000(a)}; .global .u32 a = 5;"
    body = "ld.param.u64 %rd0, [out]; mov.u64 %rd1, g; ld.global.u64 %rd1, [%rd1]; ld.global.u32 %r1, [%rd1]; " \
           "st.global.u32 [%rd0], %r1; ret;"
    out = np.zeros(1, "u4")
    text = ptx(body, ".param .u64 out").replace(".visible", f"{before.replace('.global .u8', '.global .align 8 .u8')}"
                                                            "\n.visible")
    assert run(text, grid=1, block=1, args=[out]).clean and out[0] == 5


def test_an_initialiser_with_too_many_values_is_no_variable():
    text = ptx("mov.u64 %rd1, g; ret;").replace(".visible", ".global .u32 g[2] = {1, 2, 3};\n.visible")
    with pytest.raises(InvalidValue, match=r"g is not a variable of this kernel; not understood: line 4: `.global"):
        run(text, grid=1, block=1, args=[])
