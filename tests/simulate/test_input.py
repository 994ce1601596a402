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


def test_entry_and_arguments():
    a, b = np.zeros(4, "f4"), np.zeros(4, "f4")
    with pytest.raises(InvalidValue, match="no kernel 'x'; it has k"):
        copy(a, b, 4, entry="x")
    with pytest.raises(InvalidValue, match=r"takes 2 arguments .*, 1 were given"):
        run(COPY, grid=1, block=4, args=[a])
    with pytest.raises(InvalidType, match=r"argument 0 \(src, .u64\) is an integer, 1.5"):
        run(COPY, grid=1, block=4, args=[1.5, b])
    with pytest.raises(InvalidType, match="got a str"):
        run(COPY, grid=1, block=4, args=["a", b])
    with pytest.raises(InvalidValue, match="holds 6 kernels"):
        run(FIXTURES / "foreign.cu", grid=1, block=1, args=[])
    with pytest.raises(InvalidValue, match="grid"):
        run(COPY, grid=0, block=4, args=[a, b])
    with pytest.raises(InvalidValue, match="1025 threads"):
        copy(a, b, 1025)
    with pytest.raises(InvalidType, match=r"pathlib.Path\('kernel.cu'\)"):
        run("kernel.cu", grid=1, block=1, args=[])
    with pytest.raises(InvalidType, match="scalar"):
        run(ptx("ret;", ".param .u32 n"), grid=1, block=1, args=[a])


def test_scalars_follow_the_parameter_types():
    text = ptx("ld.param.u32 %r0, [n]; ld.param.f32 %f0, [x]; ld.param.u64 %rd0, [out]; st.global.u32 [%rd0], %r0;"
               "st.global.f32 [%rd0+4], %f0; ld.param.b32 %r1, [s+4]; st.global.b32 [%rd0+8], %r1; ret;",
               ".param .u32 n, .param .f32 x, .param .align 4 .b8 s[8], .param .u64 .ptr .align 1 out")
    out = np.zeros(3, "u4")
    struct = np.array((7, 9), [("a", "i4"), ("b", "i4")])[()]
    assert run(text, grid=1, block=1, args=[-1, 2, struct, out]).clean
    assert list(out) == [2**32 - 1, np.float32(2).view("u4"), 9]
    with pytest.raises(InvalidValue, match="does not fit 32 bits"):
        run(text, grid=1, block=1, args=[2**33, 2, struct, out])
    with pytest.raises(InvalidValue, match="takes 8 bytes, 3 were given"):
        run(text, grid=1, block=1, args=[1, 2, b"abc", out])


def test_limits():
    big = ptx(".shared .align 4 .b8 s[50000]; mov.u32 %r0, s; ret;")
    with pytest.raises(InvalidValue, match="50000 bytes of static shared memory, the limit is 49152"):
        run(big, grid=1, block=1, args=[])
    with pytest.raises(InvalidValue, match="shared memory per block, sm_86 has 101376"):
        run(ptx("ret;"), grid=1, block=1, args=[], shared_bytes=200_000, arch="sm_86")
    with pytest.raises(InvalidValue, match=r"needs about .* bytes, max_memory allows 1,000,000"):
        copy(np.zeros(10**6, "f4"), np.zeros(4, "f4"), 4, max_memory=10**6)


def test_read_only_and_odd_arrays():
    source, out = np.ones(4, "f4"), np.zeros(4, "f4")
    source.flags.writeable = False
    assert copy(source, out, 4).clean and (out == 1).all()
    report = copy(np.zeros(4, "f4"), source, 4)
    assert report.faults[0].kind == "read_only" and (source == 1).all()
    with pytest.raises(InvalidType, match="object"):
        copy(np.array([None]), out, 1)
    with pytest.raises(InvalidType, match="byte order"):
        copy(np.zeros(4, ">f4"), out, 1)
    with pytest.raises(InvalidValue, match="negative strides"):
        copy(np.arange(4, dtype="f4")[::-1], out, 1)
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
