"""Structs by value: read at a fixed place, or through an address taken of them."""

import re

import numpy as np
import pytest

from peakgemm.tools.simulator import UnknownInstruction
from simulator_cases import threads

S, T = np.arange(10, dtype="u4") + 100, np.arange(6, dtype="u4") + 200


def go(body, count=1):
    """Run ``body`` by ``count`` threads with the structs ``s`` and ``t``; ``%rd5`` is the thread."""
    return threads(f"cvt.u64.u32 %rd5, %r0; {body}", count, args=[S.tobytes(), T.tobytes()],
                   params=".param .align 8 .b8 s[40], .param .align 8 .b8 t[24]")


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
    report, out = go(body, 10)
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
    report, out = go("mov.b64 %rd2, t; mad.lo.u64 %rd2, %rd5, 4, %rd2; ld.param.u32 %r9, [%rd2];", 8)
    assert out == [*T, 0, 0] and [(fault.kind, fault.count) for fault in report.faults] == [("out_of_bounds", 2)]


@pytest.mark.parametrize("place", ["s+40", "s+38", "t+24", "s+-4"])
def test_a_fixed_place_outside_a_parameter_is_refused(place):
    with pytest.raises(UnknownInstruction, match=r"reads 4 bytes at byte -?\d+ of a parameter of (40|24) bytes"):
        go(f"ld.param.u32 %r9, [{place}];")


def test_reads_outside_constant_memory_are_reported():
    report, out = threads("mov.u64 %rd2, table; ld.const.u32 %r1, [%rd2+12]; ld.const.u32 %r2, [%rd2+16];"
                          "add.u32 %r9, %r1, %r2;", before=".const .align 4 .u32 table[4] = {5, 6, 7, 8};")
    assert [fault.kind for fault in report.faults] == ["out_of_bounds"] and out == [8]
    assert "variable table (16 bytes) at byte 16" in report.faults[0].message


@pytest.mark.parametrize(("kind", "value", "load"), [
    ("u32", 7, "ld.param.u32 %r9, [%rd2];"), ("s8", -3, "ld.param.s8 %r9, [%rd2];"),
    ("f32", 1.5, "ld.param.b32 %r9, [%rd2];"),
    ("u64", 2**40 + 9, "ld.param.u32 %r9, [%rd2]; ld.param.u32 %r8, [%rd2+4];"),
    ("b16", 513, "cvta.param.u64 %rd3, %rd2; ld.u8 %r9, [%rd3+1];"),
])
def test_the_address_of_a_scalar(kind, value, load):
    """A parameter of any type has an address, from which it is read alone."""
    def go(body):
        return threads(f"mov.b64 %rd2, x; {body} st.global.v2.u32 [%rd0], {{%r9, %r8}};", leaves="",
                       out=np.zeros(2, "u4"), params=f".param .{kind} x", args=[value])

    report, out = go(load)
    want = {"f32": [0x3FC00000, 0], "s8": [2**32 - 3, 0], "u64": [9, 256], "b16": [2, 0]}.get(kind, [value, 0])
    assert report.clean and out == want, str(report)
    report, _ = go(load.replace("[%rd2]", "[%rd2+8]").replace("[%rd3+1]", "[%rd3+8]"))
    assert "out_of_bounds" in [fault.kind for fault in report.faults]
