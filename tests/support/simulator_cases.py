"""Helpers of the simulator's tests: one-instruction kernels, fixtures, planted lines."""

import ctypes
import ctypes.util
import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from peakgemm import cli
from peakgemm.cli import console
from peakgemm.tools.simulator import run

FIXTURES = Path(__file__).parent / "fixtures"
BITS = {"f32": "b32", "f64": "b64", "f16": "b16", "u32": "b32", "s32": "b32", "u64": "b64", "s64": "b64", "b32": "b32",
        "b64": "b64", "b16": "b16", "u16": "b16", "s16": "b16"}
NUMPY = {"f32": "f4", "f64": "f8", "f16": "f2", "u32": "u4", "s32": "i4", "u64": "u8", "s64": "i8", "b32": "u4",
         "b64": "u8", "b16": "u2", "u16": "u2", "s16": "i2"}


def ptx(body, params="", registers=""):
    """A kernel ``k`` with the usual registers around ``body``."""
    return f""".version 8.0
.target sm_90
.address_size 64
.visible .entry k({params})
{{
  .reg .pred %p<8>;
  .reg .b16 %h<8>;
  .reg .b32 %r<32>;
  .reg .f32 %f<32>;
  .reg .b64 %rd<32>;
  .reg .f64 %d<8>;
  {registers}
{body}
}}
"""


def threads(body, count=1, *, grid=1, leaves="%r9", out=None, params="", args=(), registers="", before="", bounds="",
            target="sm_90", **options):
    """Run ``body`` by ``count`` threads of each block; the report, and ``out`` as a list, by default a word of each.

    ``body`` finds the thread in ``%r0``, the address of ``out`` in ``%rd0`` and of the thread's word in ``%rd1``, to
    which ``leaves`` is stored behind it. ``params`` and ``args`` are further parameters; ``before`` goes before the
    kernel, ``bounds`` behind its parameters.
    """
    out = np.zeros(grid * count, "u4") if out is None else out
    head = ("mov.u32 %r0, %tid.x; mov.u32 %r31, %ctaid.x; ld.param.u64 %rd0, [out];"
            f"mad.lo.u32 %r31, %r31, {count}, %r0; mad.wide.u32 %rd1, %r31, 4, %rd0;")
    tail = f"st.global.u32 [%rd1], {leaves}; ret;" if leaves else "ret;"
    text = ptx(f"{head} {body} {tail}", ".param .u64 out" + (params and f", {params}"), registers)
    text = text.replace(".visible", f"{before}\n.visible", 1).replace("sm_90", target, 1)
    text = text.replace(")\n{", f") {bounds}\n{{", 1)
    return run(text, entry="k", grid=grid, block=count, args=[out, *args], **options), out.tolist()


def values(body, count=1, **options):
    """``out`` of `threads`, where no fault is found."""
    report, out = threads(body, count, **options)
    assert report.clean, str(report)
    return out


def clean(source, entry, grid, block, args, **options):
    """Run a kernel in which no fault is found; the report."""
    report = run(source, entry=entry, grid=grid, block=block, args=args, **options)
    assert report.clean, str(report)
    return report


def command(*words):
    """Run ``peakgemm simulate`` in this process: exit code, what it printed, what it complained of.

    Exceptions other than the exit pass.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["peakgemm", "simulate", *map(str, words)])
        patch.setattr(console.out, "width", 100)
        patch.setattr(console.err, "width", 1000)
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()


def apply(text, result, *inputs, block=None):
    """Run PTX ``text`` on operands ``%i0``, ``%i1``... per thread; the values of ``%o``, an array of type ``result``.

    ``inputs`` are ``(type, values)``; all of one length, at most 1024.
    """
    arrays = [np.ascontiguousarray(values, NUMPY[kind]) for kind, values in inputs]
    n = len(arrays[0])
    out = np.zeros(n, NUMPY[result])
    names = [f"p{i}" for i in range(len(arrays) + 1)]
    size = np.dtype(NUMPY[result]).itemsize
    lines = ["mov.u32 %r0, %tid.x;"]
    for i, ((kind, _), name) in enumerate(zip(inputs, names, strict=False)):
        width = np.dtype(NUMPY[kind]).itemsize
        lines += [f"ld.param.u64 %rd0, [{name}];", f"mad.wide.u32 %rd1, %r0, {width}, %rd0;",
                  f"ld.global.{BITS[kind]} %i{i}, [%rd1];"]
    lines += [text, f"ld.param.u64 %rd0, [{names[-1]}];", f"mad.wide.u32 %rd1, %r0, {size}, %rd0;",
              f"st.global.{BITS[result]} [%rd1], %o;", "ret;"]
    declared = [f".reg .{BITS[kind]} %i{i};" for i, (kind, _) in enumerate(inputs)]
    registers = " ".join([*declared, f".reg .{BITS[result]} %o;"])
    source = ptx("\n".join(lines), ", ".join(f".param .u64 {name}" for name in names), registers)
    report = run(source, grid=1, block=block or n, args=[*arrays, out])
    assert report.clean, report
    return out


def line_of(text, file):
    """The first line of a fixture that holds ``text``."""
    return next(i for i, line in enumerate((FIXTURES / file).read_text().splitlines(), 1) if text in line)


def planted_line(number, file="planted.cu", entry=""):
    """The line that carries ``plant number``."""
    lines = (FIXTURES / file).read_text().splitlines()
    start = line_of(f"void {entry}(", file) if entry else 0
    return next(i for i, line in enumerate(lines[start:], start + 1) if re.search(rf"plant {number}\b", line))


def libm(name, kind):
    """A function of the C library, for single values."""
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    function.restype, function.argtypes = kind, [kind] * 3
    return function


def random_floats(count, seed):
    """Float32 of all magnitudes, special values among them."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38,
                        3.4028235e38, 0.5, 2.0**-24, 16777216.0], np.float32)
    values[: len(special)] = rng.permutation(special)
    return values
