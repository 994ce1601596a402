"""Bad input gives one message that says where and what to do; unusual arrays work as on a GPU."""

import json

import numpy as np
import pytest

from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.tools.simulator import PtxError, run
from simulator_cases import FIXTURES, ptx, values

COPY = ptx("""
  ld.param.u64 %rd0, [src]; ld.param.u64 %rd1, [dst];
  mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4;
  add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;
  ld.global.b32 %r1, [%rd3]; st.global.b32 [%rd4], %r1; ret;""", ".param .u64 src, .param .u64 dst")


def copy(src, dst, n, **options):
    return run(COPY, grid=1, block=n, args=[src, dst], **options)


@pytest.mark.parametrize(("text", "message"), [
    ("not ptx at all\n", "line 1"), ("", "is text, not PTX|no .version"),
    (COPY.replace("ret;", "ret"), "PTX line"),
    (COPY.replace("%r1, [%rd3]", "%r1, [%rd3"), r"PTX line 17: ',' where ']'|PTX line 17: ';' where"),
    (COPY.replace("%tid.x", "%nosuch"), "'%nosuch'"), (COPY.replace("}", ""), "cut off"),
    (COPY.replace("ret;", "bra NOWHERE; ret;"), "label"), (COPY.replace("mov.u32", "§"), "unexpected character"),
])
def test_malformed_ptx(text, message):
    with pytest.raises((PtxError, InvalidType), match=message):
        run(text, grid=1, block=1, args=[np.zeros(1, "f4"), np.zeros(1, "f4")])


def only(text, *args, **options):
    return run(text, grid=1, block=1, args=args, **options)


F4 = np.zeros(4, "f4")
BIG = ".shared .align 4 .b8 s[50000]; mov.u32 %r0, s; ret;"


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: copy(F4, F4, 4, entry="x"), InvalidValue, "no kernel 'x'; it has k"),
    (lambda: only(COPY, F4), InvalidValue, r"takes 2 arguments .*, 1 were given"),
    (lambda: copy(1.5, F4, 4), InvalidType, r"argument 0 \(src, .u64\) is an integer, 1.5"),
    (lambda: copy("a", F4, 4), InvalidType, "got a str"),
    (lambda: only(FIXTURES / "foreign.cu"), InvalidValue, "holds 6 kernels"),
    (lambda: run(COPY, grid=0, block=4, args=[F4, F4]), InvalidValue, "grid"),
    (lambda: copy(F4, F4, 1025), InvalidValue, "1025 threads"),
    (lambda: only("kernel.cu"), InvalidType, r"pathlib.Path\('kernel.cu'\)"),
    (lambda: only(ptx("ret;", ".param .u32 n"), F4), InvalidType, "scalar"),
    (lambda: only(ptx("ret;", ".param .u32 n"), 2**33), InvalidValue, "does not fit 32 bits"),
    (lambda: only(ptx("ret;", ".param .align 4 .b8 s[8]"), b"abc"), InvalidValue, "takes 8 bytes, 3 were given"),
    (lambda: copy(np.array([None]), F4, 1), InvalidType, "object"),
    (lambda: copy(np.zeros(4, ">f4"), F4, 1), InvalidType, "byte order"),
    (lambda: copy(np.arange(4, dtype="f4")[::-1], F4, 1), InvalidValue, "negative strides"),
    (lambda: only(ptx(BIG)), InvalidValue, "50000 bytes of static shared memory, the limit is 49152"),
    (lambda: only(ptx("ret;"), shared_bytes=200_000, arch="sm_86"), InvalidValue,
     "shared memory per block, sm_86 has 101376"),
    (lambda: copy(np.zeros(10**6, "f4"), F4, 4, max_memory=10**6), InvalidValue,
     r"needs about .* bytes, max_memory allows 1,000,000"),
])
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_scalars_follow_the_parameter_types():
    text = ptx("ld.param.u32 %r0, [n]; ld.param.f32 %f0, [x]; ld.param.u64 %rd0, [out]; st.global.u32 [%rd0], %r0;"
               "st.global.f32 [%rd0+4], %f0; ld.param.b32 %r1, [s+4]; st.global.b32 [%rd0+8], %r1; ret;",
               ".param .u32 n, .param .f32 x, .param .align 4 .b8 s[8], .param .u64 .ptr .align 1 out")
    out = np.zeros(3, "u4")
    struct = np.array((7, 9), [("a", "i4"), ("b", "i4")])[()]
    assert run(text, grid=1, block=1, args=[-1, 2, struct, out]).clean
    assert list(out) == [2**32 - 1, np.float32(2).view("u4"), 9]


def test_read_only_and_odd_arrays():
    source, out = np.ones(4, "f4"), np.zeros(4, "f4")
    source.flags.writeable = False
    assert copy(source, out, 4).clean and (out == 1).all()
    report = copy(np.zeros(4, "f4"), source, 4)
    assert report.faults[0].kind == "read_only" and (source == 1).all()
    same = np.arange(4, dtype="f4")
    assert copy(same, same, 4).clean
    shared = np.arange(8, dtype="f4")
    assert copy(shared[:4], shared[4:], 4).clean and (shared[4:] == shared[:4]).all()


def test_null_and_wild_pointers_are_reported():
    report = run(COPY, grid=1, block=4, args=[None, np.zeros(4, "f4")])
    assert "null pointer" in report.faults[0].message
    report = run(COPY, grid=1, block=4, args=[2**63 + 5, np.zeros(4, "f4")])
    assert report.faults[0].kind == "out_of_bounds"


def test_a_prefetch_moves_nothing_but_wants_an_array():
    text = ptx("""ld.param.u64 %rd0, [x]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
      setp.ge.u32 %p0, %r0, 6; @!%p0 prefetch.global.L2 [%rd1]; ret;""", ".param .u64 x")
    assert run(text, grid=1, block=4, args=[np.zeros(4, "f4")]).clean
    (fault,) = run(text, grid=1, block=8, args=[np.zeros(4, "f4")]).faults
    assert (fault.kind, [thread[0] for _, thread in fault.threads]) == ("out_of_bounds", [4, 5])
    assert fault.message.startswith("prefetch outside every array: argument 0 (16 bytes)")


def test_module_variables_and_generic_addresses():
    before = ".const .align 4 .u32 table[4] = {5, 6, 7, 8};\n.global .align 4 .u32 word = 3;"
    assert values("mov.u64 %rd5, table; ld.const.u32 %r1, [%rd5+8]; mov.u64 %rd6, word; cvta.global.u64 %rd6, %rd6;"
                  "ld.u32 %r2, [%rd6]; add.u32 %r1, %r1, %r2; .shared .align 4 .b8 s[16]; mov.u32 %r3, s;"
                  "cvt.u64.u32 %rd7, %r3; cvta.shared.u64 %rd7, %rd7; st.u32 [%rd7+4], %r1; ld.shared.u32 %r9, [s+4];",
                  before=before) == [10]


def test_json_and_text_of_a_report():
    report = copy(np.zeros(4, "f4"), np.zeros(4, "f4"), 5)
    assert json.dumps(report.to_json())
    assert "out_of_bounds" in str(report) and "global_sectors" in str(report)
    assert report.instructions[0].executions == 1 and report.instructions[0].text == "ld.param.u64 %rd0, [src]"
