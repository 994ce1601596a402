"""Structs by value: read at a fixed place, or through an address taken of them."""

import re

import numpy as np
import pytest

from peakgemm.tools.simulator import UnknownInstruction, run
from simulator_cases import ptx

PARAMS = ".param .u64 out, .param .align 8 .b8 s[40], .param .align 8 .b8 t[24]"
S, T = np.arange(10, dtype="u4") + 100, np.arange(6, dtype="u4") + 200


def go(body, threads=1):
    """Run ``body`` per thread, which leaves a number in ``%r9``; the report and the numbers."""
    out = np.zeros(threads, "u4")
    report = run(ptx("mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [out]; mad.wide.u32 %rd1, %r0, 4, %rd0;"
                     f"cvt.u64.u32 %rd5, %r0; {body} st.global.u32 [%rd1], %r9; ret;", PARAMS),
                 grid=1, block=threads, args=[out, S.tobytes(), T.tobytes()])
    return report, list(out)


@pytest.mark.parametrize(("body", "want"), [
    ("mov.b64 %rd2, s; ld.param.u32 %r9, [%rd2+36];", [109] * 10),
    ("mov.b64 %rd2, t; ld.param.u32 %r9, [%rd2];", [200] * 10),
    ("mov.b64 %rd2, s; mad.lo.u64 %rd2, %rd5, 4, %rd2; ld.param.b32 %r9, [%rd2];", list(S)),
    ("mov.b64 %rd2, s; mad.lo.u64 %rd2, %rd5, 4, %rd2; ld.param.b32 %r9, [%rd2+-0];", list(S)),
    ("mov.b64 %rd2, s; ld.param.v2.u32 {%r8, %r9}, [%rd2+8];", [103] * 10),
    ("ld.param.u32 %r9, [s+12];", [103] * 10),
    ("mov.b64 %rd2, t; setp.lt.u32 %p1, %r0, 3; mov.u32 %r9, 7; @%p1 ld.param.u32 %r9, [%rd2+4];", [201] * 3 + [7] * 7),
    ("mov.b64 %rd2, s; cvta.param.u64 %rd3, %rd2; ld.u32 %r9, [%rd3+4];", [101] * 10),
])
def test_members(body, want):
    report, out = go(body, threads=10)
    assert report.clean and out == want, str(report)


@pytest.mark.parametrize(("body", "kind", "message"), [
    ("mov.b64 %rd2, s; ld.param.u32 %r9, [%rd2+40];", "out_of_bounds", r"parameter s .* at byte 40, 4 bytes past"),
    ("mov.b64 %rd2, t; ld.param.u32 %r9, [%rd2+-4];", "out_of_bounds", r"parameter t .* at 4 bytes before its start"),
    ("mov.b64 %rd2, t; ld.param.v2.u32 {%r8, %r9}, [%rd2+24];", "out_of_bounds", "8-byte read outside every .param"),
    ("mov.b64 %rd2, s; ld.param.u32 %r9, [%rd2+2];", "misaligned", r"a multiple of 4: parameter s .* at byte 2$"),
    ("ld.param.u32 %r9, [%rd0];", "out_of_bounds", "outside every .param variable"),  # an array is no parameter
])
def test_reads_outside_a_parameter_are_reported_and_give_zero(body, kind, message):
    report, out = go("mov.u32 %r9, 5;" + body)
    assert [fault.kind for fault in report.faults] == [kind] and out == [0], str(report)
    assert re.search(message, report.faults[0].message), report.faults[0].message


def test_only_the_lanes_outside_are_refused():
    report, out = go("mov.b64 %rd2, t; mad.lo.u64 %rd2, %rd5, 4, %rd2; ld.param.u32 %r9, [%rd2];", threads=8)
    assert out == [*T, 0, 0] and [(fault.kind, fault.count) for fault in report.faults] == [("out_of_bounds", 2)]


@pytest.mark.parametrize("place", ["s+40", "s+38", "t+24", "s+-4"])
def test_a_fixed_place_outside_a_parameter_is_refused(place):
    with pytest.raises(UnknownInstruction, match=r"reads 4 bytes at byte -?\d+ of a parameter of (40|24) bytes"):
        go(f"ld.param.u32 %r9, [{place}];")


def test_reads_outside_constant_memory_are_reported():
    text = ptx("ld.param.u64 %rd0, [out]; mov.u64 %rd2, table; ld.const.u32 %r1, [%rd2+12]; ld.const.u32 %r2, "
               "[%rd2+16]; add.u32 %r1, %r1, %r2; st.global.u32 [%rd0], %r1; ret;", ".param .u64 out")
    text = text.replace(".visible", ".const .align 4 .u32 table[4] = {5, 6, 7, 8};\n.visible")
    out = np.zeros(1, "u4")
    report = run(text, grid=1, block=1, args=[out])
    assert [fault.kind for fault in report.faults] == ["out_of_bounds"] and out[0] == 8
    assert "variable table (16 bytes) at byte 16" in report.faults[0].message


@pytest.mark.parametrize(("kind", "value", "load"), [
    ("u32", 7, "ld.param.u32 %r9, [%rd2];"), ("s8", -3, "ld.param.s8 %r9, [%rd2];"),
    ("f32", 1.5, "ld.param.b32 %r9, [%rd2];"),
    ("u64", 2**40 + 9, "ld.param.u32 %r9, [%rd2]; ld.param.u32 %r8, [%rd2+4];"),
    ("b16", 513, "cvta.param.u64 %rd3, %rd2; ld.u8 %r9, [%rd3+1];"),
])
def test_the_address_of_a_scalar(kind, value, load):
    """A parameter of any type has an address, from which it is read alone."""
    out = np.zeros(2, "u4")
    text = ptx(f"ld.param.u64 %rd0, [out]; mov.u32 %r8, 0; mov.b64 %rd2, x; {load}"
               "st.global.v2.u32 [%rd0], {%r9, %r8}; ret;", f".param .u64 out, .param .{kind} x")
    report = run(text, grid=1, block=1, args=[out, value])
    want = {"f32": [0x3FC00000, 0], "s8": [2**32 - 3, 0], "u64": [9, 256], "b16": [2, 0]}.get(kind, [value, 0])
    assert report.clean and list(out) == want, str(report)
    beyond = text.replace("[%rd2]", "[%rd2+8]").replace("[%rd3+1]", "[%rd3+8]")
    assert "out_of_bounds" in [fault.kind for fault in run(beyond, grid=1, block=1, args=[out, value]).faults]
