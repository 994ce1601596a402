"""setmaxnreg: what a block begins with, who waits for whom, and how a wait without end is reported."""

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.runtime.compile import compile_source
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.core.register_pool import registers_at_launch
from peakgemm.tools.simulator.front.parser import parse
from peakgemm.tools.simulator.front.ptx import UnknownInstruction
from simulator_cases import FIXTURES, planted_line, ptx

SOURCE = FIXTURES / "registers.cu"
BOUNDS = ".maxntid 384, 1, 1\n.minnctapersm 1"
INC, DEC = "setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32"


def share(more, less, wait=0, grid=3):
    out = np.full((grid, 384), -1, "i4")
    report = run(SOURCE, entry="share", grid=grid, block=384, arch="sm_90a", args=[out],
                 macros={"MORE": more, "LESS": less, "WAIT": wait})
    return report, out


def text(body, bounds=BOUNDS):
    """A kernel whose threads have their warpgroup in ``%r1`` and write 1 to ``out`` at ``done``."""
    head = """mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 7; setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r1, 1;
      setp.eq.u32 %p2, %r1, 2; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 384, %r0;"""
    tail = """done: ld.param.u64 %rd0, [out]; mul.wide.u32 %rd1, %r3, 4; add.s64 %rd1, %rd0, %rd1;
      mov.u32 %r9, 1; st.global.u32 [%rd1], %r9; ret;"""
    return ptx(f"{head} {body} {tail}", ".param .u64 out").replace(")\n{", f")\n{bounds}\n{{")


def go(body, bounds=BOUNDS, grid=1):
    out = np.zeros((grid, 384), "i4")
    return run(text(body, bounds), grid=grid, block=384, arch="sm_90a", args=[out]), out


@pytest.mark.parametrize("wait", [0, 1, 2])
@pytest.mark.parametrize(("more", "less"), [(232, 40), (224, 48)])
def test_registers_that_suffice(more, less, wait):
    report, out = share(more, less, wait)
    assert report.clean, str(report)
    assert (out == np.arange(384) // 128).all()


@pytest.mark.parametrize("wait", [0, 1, 2])
def test_registers_that_do_not_suffice(wait):
    """The SM has the 232 x 256 + 48 x 128 registers that are asked for; the block was launched with fewer."""
    report, out = share(232, 48, wait)
    assert report.stopped.startswith("deadlock")
    fault = next(fault for fault in report.faults if "setmaxnreg" in fault.instruction)
    assert (fault.kind, fault.line) == ("deadlock", planted_line(1, "registers.cu"))
    for part in ("setmaxnreg.inc 232 waits for 8,192 registers for 128 threads", "7,168 of the block's 64,512 are free",
                 "168 for each of 384 threads", "at most 224 here, or give 1,024 more away by setmaxnreg.dec"):
        assert part in fault.message, fault.message
    assert {thread[0] // 128 for _, thread in fault.threads} == {1} and (out[:, 128:256] == -1).all()
    others = {fault.kind for fault in report.faults if "setmaxnreg" not in fault.instruction}
    assert others == ({"deadlock"} if wait else set()), str(report)


@pytest.mark.parametrize(("threads", "blocks", "more"), [
    *((threads, blocks, 232) for threads, blocks in (
        (32, 10), (64, 5), (96, 1), (96, 7), (128, 3), (160, 2), (200, 3), (256, 1), (256, 2), (300, 1), (384, 1),
        (640, 1), (1024, 1))), (96, 1, 80), (256, 2, 80), (384, 1, 80)])
def test_what_a_thread_begins_with_is_what_ptxas_gives(threads, blocks, more):
    macros = {"MORE": more, "LESS": 24, "THREADS": threads, "BLOCKS": blocks}
    source = SOURCE.read_text(encoding="utf-8")
    kernel = parse(compile_source(source, "share", "sm_90a", macros, kind="ptx").text).kernels["share"]
    assert registers_at_launch(kernel) == compile_source(source, "share", "sm_90a", macros).registers


@pytest.mark.parametrize(("bounds", "each"), [("", None), (".maxntid 384", None), (".maxnreg 160", 160),
                                              (".maxnreg 164", 168), (".maxnreg 255", 232), (BOUNDS, 168)])
def test_bounds_in_the_ptx(bounds, each):
    """Without an upper limit ptxas drops setmaxnreg (10 registers where 232 are asked for), so nobody waits."""
    body = f"{INC} 232;"
    assert registers_at_launch(parse(text(body, bounds)).kernels["k"]) == each
    report, out = go(body, bounds)
    assert report.clean == (each in (None, 232)) == bool(out.all()), str(report)


def test_a_warpgroup_that_is_not_whole():
    half = "setp.lt.u32 %p3, %r0, 32; @%p3 {}; @%p2 bra give;" + f"{INC} 168; bra done; give: {DEC} 40;"
    report, _ = go(half.format("bra done"))
    assert report.clean, str(report)  # the warp has ended, and is not waited for
    report, _ = go(half.format("bra meet").replace("bra done; give", "bar.sync 0; bra done; meet: bar.sync 0; bra "
                                                     "done; give"))
    assert "96 threads of a warpgroup wait at setmaxnreg.inc 168, the others never come" in report.faults[0].message


@pytest.mark.parametrize("number", [16, 20, 100, 252, 264])
@pytest.mark.parametrize("bounds", ["", BOUNDS])
def test_numbers_that_ptxas_refuses(number, bounds):
    with pytest.raises(InvalidValue, match=f"setmaxnreg of {number} .* multiple of 8 from 24 to 256"):
        go(f"{INC} {number};", bounds)


def test_a_predicated_one_is_refused():
    with pytest.raises(UnknownInstruction, match="branch around it"):
        go(f"@%p2 {DEC} 40;")
