"""stmatrix: 8 x 8 matrices of 16-bit elements from fragments to rows in shared memory."""

import numpy as np
import pytest

from simulator_cases import threads


def go(count, transposed, step=16, generic=False):
    """Each lane stores ``count`` registers of it; the report, the registers and shared memory."""
    values = np.random.default_rng(5).integers(0, 2**32, (32, 4), dtype="u8").astype("u4")
    out = np.zeros(32 * 32, "u2")
    names = "{" + ", ".join(f"%r{4 + i}" for i in range(count)) + "}"
    at = "[%rd3]" if generic else "[%r2]"
    ins = (f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}{'' if generic else '.shared'}.b16 "
           f"{at}, {names};")
    body = f"""ld.param.u64 %rd4, [from]; mad.wide.u32 %rd4, %r0, 16, %rd4; mad.wide.u32 %rd1, %r0, 64, %rd0;
      ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd4]; mov.u32 %r1, room; mad.lo.u32 %r2, %r0, {step}, %r1;
      mad.lo.u32 %r3, %r0, 64, %r1; cvt.u64.u32 %rd2, %r2; cvta.shared.u64 %rd3, %rd2; mov.u32 %r8, 0;"""
    pieces = range(0, 64, 16)
    body += "".join(f"st.shared.v4.b32 [%r3+{at}], {{%r8, %r8, %r8, %r8}};" for at in pieces)
    body += f"bar.warp.sync -1; {ins} bar.warp.sync -1;"
    body += "".join(f"ld.shared.v4.b32 {{%r8, %r9, %r10, %r11}}, [%r3+{at}]; st.global.v4.b32 [%rd1+{at}], "
                    "{%r8, %r9, %r10, %r11};" for at in pieces)
    report, _ = threads(body, 32, leaves="", out=out, params=".param .u64 from", args=[values],
                        registers=".shared .align 128 .b8 room[2048];")
    return report, values, out


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("step", [16, 48])
def test_rows(count, transposed, step):
    report, values, out = go(count, transposed, step, generic=step == 48)
    assert report.clean, str(report)
    want = np.zeros(32 * 32, "u2")
    for matrix in range(count):
        for row in range(8):
            at = (8 * matrix + row) * step // 2
            for column in range(8):
                i, j = (column, row) if transposed else (row, column)
                want[at + column] = values.view("u2")[4 * i + j // 2, 2 * matrix + j % 2]
    assert (out == want).all()


def test_its_conflicts_and_bounds():
    report = go(4, False, 16)[0]
    item = next(item for item in report.instructions if item.opcode.startswith("stmatrix"))
    assert (item.wavefronts, item.bytes, item.space) == (4, 512, "shared")
    item = next(item for item in go(1, False, 64)[0].instructions if item.opcode.startswith("stmatrix"))
    assert item.wavefronts == 4  # eight rows 64 bytes apart: four meet in a bank
    assert {fault.kind for fault in go(4, False, 96)[0].faults} == {"shared_out_of_bounds"}
    assert "misaligned" in {fault.kind for fault in go(4, False, 8)[0].faults}
