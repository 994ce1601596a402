"""Labels in blocks in braces: each block has its own, and sees those around it."""

import numpy as np
import pytest

from peakgemm.tools.simulator import PtxError, run
from simulator_cases import ptx


def go(body, threads=1):
    """Run ``body``, which leaves a number in ``%r9``; the number of each thread."""
    out = np.zeros(threads, "u4")
    report = run(ptx(f"mov.u32 %r0, %tid.x; {body} ld.param.u64 %rd0, [out]; mad.wide.u32 %rd1, %r0, 4, %rd0;"
                     "st.global.u32 [%rd1], %r9; ret;", ".param .u64 out"), grid=1, block=threads, args=[out])
    assert report.clean, str(report)
    return list(out)


# Adds 10 while %r9 is below the bound.
LOOP = "{{ .reg .pred p; again: setp.lt.u32 p, %r9, {}; @!p bra done; add.u32 %r9, %r9, 10; bra again; done: }}"


def test_two_blocks_may_hold_one_label():
    assert go(LOOP.format(25) + "add.u32 %r9, %r9, 1;" + LOOP.format(45)) == [51]
    assert go(LOOP.format(5) + "add.u32 %r9, %r9, 1;" + LOOP.format(5)) == [11]


def test_a_block_sees_the_labels_around_it_before_and_after():
    assert go("{ { bra end; } add.u32 %r9, %r9, 1; } add.u32 %r9, %r9, 2; end: add.u32 %r9, %r9, 4;") == [4]
    body = "top: add.u32 %r9, %r9, 1; { setp.lt.u32 %p1, %r9, 3; @%p1 bra top; }"
    assert go(body) == [3]


@pytest.mark.parametrize("body", ["{ hidden: } bra hidden;", "bra hidden; { hidden: }", "{ hidden: } { bra hidden; }",
                                  "{ t: .branchtargets a; } a: brx.idx %r0, t;", "t: .branchtargets b; brx.idx %r0, t;",
                                  "a: brx.idx %r0, a;", "t: .branchtargets a; a: bra t;"])
def test_a_label_in_another_block_is_no_target(body):
    with pytest.raises(PtxError, match=r"PTX line \d+: .* names a label that is not in kernel k, or is in a block"):
        go(body)


@pytest.mark.parametrize("body", ["x: x:", "{ x: add.u32 %r9, %r9, 1; x: }", "x: x: .branchtargets x;"])
def test_one_block_may_not_declare_a_label_twice(body):
    with pytest.raises(PtxError, match=r"PTX line \d+: label x is declared twice in one block"):
        go(body)
