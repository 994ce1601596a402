"""Calls of functions: arguments, results, recursion, divergence; printf and assert."""

import json
from functools import partial

import numpy as np
import pytest

import record_schema
from peakgemm.errors import InvalidValue
from peakgemm.tools.simulator import PtxError, UnknownInstruction, run
from simulator_cases import FIXTURES, clean, command, line_of, threads, values

SOURCE = FIXTURES / "calls.cu"
go = partial(clean, SOURCE)


def test_recursion_of_lanes_that_differ():
    n, i = 90, np.arange(90)
    x, y, f = np.linspace(-1.5, 1.5, n).astype("f4"), np.zeros(n, "f4"), np.zeros(n, "i4")
    go("recursion", 3, 32, [x, y, f, n])
    fib = [0, 1]
    while len(fib) < 12:
        fib.append(fib[-1] + fib[-2])
    power = np.array([np.prod(np.repeat(value, k % 7), dtype="f4") for k, value in enumerate(x)])
    np.testing.assert_allclose(y, np.where(i % 3, power + 1, 0), rtol=1e-5, atol=1e-6)
    assert f.tolist() == [fib[k % 12] + 100 * (k % 2 == 0) for k in range(n)]


def test_structs_and_addresses_of_local_arrays():
    n = 50
    x, y = np.linspace(-3, 3, n).astype("f4"), np.zeros(n, "f4")
    go("structs", 2, 32, [x, y, n])
    for k in range(n):
        want = sum([x[k], x[k], 2.5, int(x[k] + np.float32(2.5))][:1 + k % 4])
        assert abs(y[k] - want) < 1e-5


def test_virtual_functions_and_tables_of_pointers():
    y, i = np.zeros(32, "f4"), np.arange(32)
    go("virtuals", 1, 32, [y])
    assert (y == np.where(i % 2, i * i, 3 * i)).all()
    go("pointers", 1, 32, [y, 1])
    assert (y == np.where(i % 2, i + 1, 2 * i)).all()


def test_recursion_without_an_end_is_stopped():
    f = np.zeros(32, "i4")
    report = run(SOURCE, entry="deep", grid=1, block=32, args=[2_000_000, f])
    (fault,) = report.faults
    assert fault.kind == "stack_overflow" and "calls itself too often" in fault.message and report.stopped
    assert fault.count == 32 and fault.line == line_of("fib(n - 1)", "calls.cu")


def test_printf():
    x = np.linspace(0, 4, 9).astype("f4")
    report = go("prints", 1, 32, [x, 9])
    lines = report.printed.splitlines()
    assert sorted(lines) == sorted(["nothing", *(f"thread {i}: {x[i]:5.2f}|{i * 10:<6d}|ff {i << 40} {chr(97 + i)}%"
                                                 for i in (1, 3, 5, 7))])
    assert report.to_json()["printed"] == report.printed and "thread 3" in str(report)


def test_what_the_command_says_of_them(tmp_path):
    words = [SOURCE, "--grid", "1", "--block", "32", "--no-source"]
    for more, code, says in (
        (["--kernel", "prints", "--arg", "f32:9:ones", "--arg", "9", "--json", tmp_path / "r.json"], 0,
         "Printed by prints:\nthread 1:  1.00|10"),
        (["--kernel", "asserts", "--arg", "f32:32:arange", "--arg", "f32:32", "--arg", "32"], 1,
         "assertion: assertion `x[i] < 5.0f` failed"),
    ):
        ended, *texts = command(*words, *more)
        assert ended == code and says in "".join(texts)
    data = json.loads((tmp_path / "r.json").read_text())
    record_schema.validate(data)
    assert data["report"]["printed"].count("thread") == 4


def test_a_failed_assertion():
    x, y = np.arange(32, dtype="f4"), np.zeros(32, "f4")
    report = run(SOURCE, entry="asserts", grid=1, block=32, args=[x, y, 32])
    (fault,) = report.faults
    assert fault.kind == "assertion" and report.stopped and fault.count == 27
    assert "assertion `x[i] < 5.0f` failed at" in fault.message and "calls.cu" in fault.message
    assert f":{line_of('// the assertion', 'calls.cu')} in" in fault.message and "asserts" in fault.message
    assert fault.threads[0][1] == (5, 0, 0)
    go("asserts", 1, 4, [x[:4], y[:4], 4])


# ---- written by hand --------------------------------------------------------------------------

FUNCTIONS = """
.func (.reg .u32 r) twice(.reg .u32 a, .param .b32 b) { .reg .u32 t; ld.param.u32 t, [b]; mad.lo.u32 r, a, 2, t; ret; }
.func (.param .align 8 .b8 r[16]) pair(.param .b64 a) {
  .reg .b64 t; .reg .pred p; ld.param.b64 t, [a]; st.param.b64 [r], t; setp.gt.u64 p, t, 2; @p ret;
  add.u64 t, t, 1; st.param.b64 [r+8], t; }
.func nothing { ret; }
.func (.param .b32 r) third(.param .b32 a) { .reg .b32 t; ld.param.b32 t, [a]; mul.lo.u32 t, t, 3; st.param.b32 [r], t;
  ret; }
.func (.param .b32 r) fourth(.param .b32 a) { .reg .b32 t; ld.param.b32 t, [a]; mul.lo.u32 t, t, 4; st.param.b32 [r], t;
  ret; }
.alias also, third;
.extern .func (.param .b32 r) elsewhere(.param .b32 a);
.global .u64 table[2] = {third, fourth};
"""


def hand(body, functions=FUNCTIONS):
    """What six threads leave in ``%r9``, 1000 at first; ``%p1`` holds for the first three."""
    return values(f"mov.u32 %r9, 1000; setp.lt.u32 %p1, %r0, 3; {body}", 6, before=functions)


ONE = "{{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r0; {} ld.param.b32 %r9, [q]; }}"


@pytest.mark.parametrize(("body", "want"), [
    ("call (%r9), twice, (%r0, 7);", [2 * i + 7 for i in range(6)]),
    ("@%p1 call (%r9), twice, (%r0, %r0);", [3 * i if i < 3 else 1000 for i in range(6)]),
    ("@!%p1 call.uni (%r9), twice, (5, %r0);", [10 + i if i >= 3 else 1000 for i in range(6)]),
    ("call nothing; call.uni nothing, (); add.u32 %r9, %r9, %r0;", [1000 + i for i in range(6)]),
    (ONE.format("call (q), third, (p);"), [3 * i for i in range(6)]),
    (ONE.format("call (q), also, (p);"), [3 * i for i in range(6)]),
    (ONE.format("@%p1 bra A; call (q), third, (p); bra B; A: call (q), fourth, (p); B:"),
     [4 * i if i < 3 else 3 * i for i in range(6)]),
    (ONE.format("and.b32 %r1, %r0, 1; mul.wide.u32 %rd2, %r1, 8; mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2;"
                "ld.global.u64 %rd4, [%rd3]; to: .callprototype (.param .b32 _) _ (.param .b32 _);"
                "call (q), %rd4, (p), to;"), [4 * i if i % 2 else 3 * i for i in range(6)]),
    (ONE.format("mov.u64 %rd4, fourth; call (q), %rd4, (p), to;"), [4 * i for i in range(6)]),
    ("{ .param .b64 a; .param .align 16 .b8 r[16]; cvt.u64.u32 %rd3, %r0; st.param.b64 [a], %rd3; call (r), pair, (a);"
     "ld.param.v2.b64 {%rd4, %rd5}, [r]; cvt.u32.u64 %r1, %rd4; mov.u32 %r9, %r1; @%p1 ld.param.u32 %r9, [r+8]; }",
     [1, 2, 3, 3, 4, 5]),
])
def test_calls_by_hand(body, want):
    assert hand(body) == want


@pytest.mark.parametrize(("body", "says"), [
    (ONE.format("call (q), elsewhere, (p);"), r"it calls elsewhere, which is not simulated.*has no body in this PTX"),
    (ONE.format("call (q), free, (p);"), r"it calls free, which is not simulated: there is no heap"),
    (ONE.format("call (q), third, (p, p);"), r"third has 1 parameters and 1 results"),
    ("{ .param .b8 p[2]; .param .b32 q; call (q), third, (p); }", None),
    ("{ .param .b64 p; call (%r9), pair, (p); }", r"takes no result of 16 bytes"),
    ("call (%r9), 5, (%r0);", r"names no function"), ("call bad, (%r0);", r"'.b999' where a parameter type"),
])
def test_calls_that_are_refused(body, says):
    if says is None:
        assert hand(body)  # two bytes of padding are passed on
        return
    functions = FUNCTIONS + ".func bad(.param .b999 x) { ret; }"
    with pytest.raises((UnknownInstruction, PtxError), match=says):
        hand(body, functions)
    assert hand(f"mov.u32 %r5, 0; setp.eq.u32 %p2, %r5, 0; @%p2 bra OVER; {body} OVER:", functions) == [1000] * 6


def test_local_memory_has_an_end():
    big = ".func big { .local .b8 room[600000]; .reg .b64 t; mov.u64 t, room; ret; }"
    with pytest.raises(InvalidValue, match=r"bytes of local memory per thread, a GPU has 524,288"):
        threads("call big;", before=big)
