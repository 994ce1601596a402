"""Kernels as tutorials have them: ``uint``, templates that nobody instantiates, ``.cuh`` files, headers of the host.

Each form runs in ``simulate``, ``inspect`` and ``explore``, named by the same option in the same words.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commands import here, run
from seldom import exhaustive

__all__ = ["here", "run"]

HEAD = """#pragma once
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <iostream>
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
const int LANES = 32;
"""
BODY = "{ assert(LANES == 32); const uint i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = CEIL_DIV("
PARTS = """namespace parts {
template <const uint N, typename T> __device__ void shift(T *to, uint at) { for (uint k = 0; k < N; ++k) to[at] += k; }
namespace { template <int A> __device__ int twice() { return 2 * A; } }
}
"""
LAUNCH = ("--grid", "2", "--block", "32", "--arg", "f32:64")
# A source, what --kernel says (empty: nothing), and the value of every element.
FORMS = {
    "a uint parameter": ("__global__ void k(float *y, uint n = 3) " + BODY + "n, 1); }", "", None),
    "an int": ("template <int N> __global__ void k(float *y) " + BODY + "N, 2); }", "k<9>", 5),
    "const uint": ("template <const uint N> __global__ void k(float *y) " + BODY + "N, 2); }", "k<9>", 5),
    "several": ("template <const int BM, const int BN, const int TM>\n"
                "__global__ void __launch_bounds__((BM * BN) / (TM * TM), 1)\n    k(float *y) " + BODY
                + "BM + BN, TM); }", "k<16,16,2>", 16),
    "a type and a bool": ("template <typename T, bool B> __global__ void k(T *y) " + BODY + "B ? 7 : 1, 1); }",
                          "k<float, true>", 7),
    "defaults alone": ("template <typename T = float, int N = 6> __global__ void k(T *y) " + BODY + "N, 1); }", "", 6),
    "defaults, by name": ("template <int N = 6> __global__ void k(float *y) " + BODY + "N, 1); }\n"
                          "__global__ void other(float *y) {}", "k", 6),
    "some defaults": ("template <int N, int M = 2> __global__ void k(float *y) " + BODY + "N, M); }", "k<9>", 5),
    "an expression": ("template <int N> __global__ void k(float *y) " + BODY + "N, 1); }",
                      "k<(2 + 3) * (LANES > 4)>", 5),
    "a namespace": ("namespace n { namespace { template <int N> __global__ void k(float *y) " + BODY + "N, 1); } } }",
                    "k<9>", 9),
    "its namespace named": ("namespace n::m { template <int N> __global__ void k(float *y) " + BODY + "N, 1); } }",
                            "n::m::k<9>", 9),
    "its parameters named": ("template <int N> __global__ void k(float *y) " + BODY + "N, 1); }", "k<9>(float*)", 9),
    "templates of the device": (PARTS + "template <int N> __global__ void k(float *y) " + BODY
                                + "parts::twice<N>(), 1); parts::shift<3>(y, i); }", "k<2>", 7),
    "two templates": ("template <int N> __global__ void a(float *y) " + BODY + "N, 1); }\n"
                      "template <int N> __global__ void k(float *y) " + BODY + "2 * N, 1); }", "k<3>", 6),
    "one that is instantiated": ("template <int N> __global__ void k(float *y) " + BODY + "N, 1); }\n"
                                 "template __global__ void k<4>(float *);", "", 4),
    "another than that": ("template <int N> __global__ void k(float *y) " + BODY + "N, 1); }\n"
                          "template __global__ void k<4>(float *);", "k<5>", 5),
    "an anonymous kernel": ("namespace { __global__ void k(float *y) " + BODY + "3, 1); } }", "k", 3),
    "of a macro": ("#define KERNEL(n) __global__ void n(float *y)\nKERNEL(k) " + BODY + "3, 1); }", "k", 3),
}  # fmt: skip


@pytest.mark.parametrize(("form", "suffix"), [
    *((form, ".cuh" if i % 4 == 1 else ".cu") for i, form in enumerate(FORMS)),
    *(exhaustive(form, ".cu" if i % 4 == 1 else ".cuh") for i, form in enumerate(FORMS))])
def test_a_kernel_runs_in_all_three(here: Path, run, form: str, suffix: str) -> None:
    text, name, value = FORMS[form]
    path = here / f"own{suffix}"
    path.write_text(HEAD + text)
    named = ("--kernel", name) if name else ()
    launch = (*LAUNCH, *(("--arg", "3") if value is None else ()))
    value = 3 if value is None else value
    code, out, err = run("simulate", str(path), *named, *launch, "--no-source")
    assert (code, err) == (0, "") and re.search(rf"float32 +64 +{value} +{value} +{value} ", out), out
    code, out, err = run("inspect", str(path), *named, "--json", "i.json")
    assert (code, err) == (0, "")
    (found,) = json.loads((here / "i.json").read_text())["inspect"]
    assert found["resources"]["registers"] > 0 and found["code"]["instructions"] > 5
    code, _, err = run("explore", str(path), *named, *launch, "-o", "out")
    assert (code, err) == (0, "")
    traced = json.loads((here / "out" / "own.json").read_text())
    # The very kernel that inspect shows, its SASS linked to the run.
    assert "global_requests" in traced["counters"] and not traced["faults"]
    assert len(traced["sass"]["lines"]) > 5 and any("code" in line for line in traced["sass"]["lines"])


PLAIN = "template <int N> __global__ void k(float *y) { y[0] = N; }"
COMMANDS = [("simulate", *LAUNCH), ("inspect",), ("explore", *LAUNCH)]
MISTAKES: list[tuple[str, str, list[str]]] = [  # a source, what --kernel says, and what the refusal says
    (PLAIN, "", ["does not instantiate k<int N>; name its template arguments, as in: peakgemm inspect own.cu --kernel "
                 "'k<8>'"]),
    (PLAIN, "k", ["does not instantiate k<int N>; name its template arguments", "--kernel 'k<8>'"]),
    ("template <typename T, bool B, int N = 4> __global__ void k(T *y) {}", "",
     ["k<typename T, bool B, int N = 4>", "--kernel 'k<float, true, 4>'"]),
    (PLAIN + "\nnamespace n { template <class T> __global__ void m(T *y) {} }", "",
     ["does not instantiate k<int N>, n::m<class T>; name one, with its template arguments"]),
    (PLAIN, "k<float>", ["does not instantiate k<int N> as k<float>: ", "an example: peakgemm inspect"]),
    (PLAIN, "k<nosuch>", ['k<nosuch>: identifier "nosuch" is undefined']),
    (PLAIN, "m<3>", ["own.cu holds no kernel 'm<3>'; it has k<int N>"]),
    ("__device__ int f() { return 3; }", "", ["own.cu holds no kernel; it has none"]),
    ("__global__ void a() {}\n__global__ void b() {}", "", ["own.cu holds 2 kernels (a(), b()); name one by --kernel"]),
    # An error within a template is shown with its line.
    ("template <int N>\n__global__ void k(float *y) {\n  y[0] = nosuch;\n}", "k<3>",
     ['own.cu(3): error: identifier "nosuch"']),
    ("template <int N>\n__global__ void k(float *y) {\n  static_assert(N > 9);\n}", "k<3>",
     ["own.cu(3): error: static"]),
    ("template <int N> __device__ int f() {\n  return nosuch;\n}\ntemplate <int N> __global__ void k(float *y) { "
     "y[0] = f<N>(); }", "k<3>", ["own.cu(2): error: identifier"]),
]


@pytest.mark.parametrize(("command", "text", "name", "says"), [
    (command, *mistake) if i % 3 == j else exhaustive(command, *mistake)
    for i, mistake in enumerate(MISTAKES) for j, command in enumerate(COMMANDS)])
def test_mistakes(here: Path, run, command, text: str, name: str, says: list[str]) -> None:
    (here / "own.cu").write_text(text)
    code, out, err = run(command[0], "own.cu", *command[1:], *(("--kernel", name) if name else ()))
    assert (code, out) == (2, "") and all(each in err for each in says), err
    assert not any(word in err for word in ("\0", "__nv_name_map", "warning"))


def test_a_kernel_without_a_loop_is_listed_whole(here: Path, run) -> None:
    (here / "own.cu").write_text("__global__ void k(float *y) { y[threadIdx.x] = y[threadIdx.x] * 3.0f + 1.0f; }")
    code, out, _ = run("inspect", "own.cu", "--listing", "--html", "own.html", "--json", "own.json")
    rows = [line for line in out.splitlines() if re.match(r"0x[0-9a-f]{6} ", line)]
    (found,) = json.loads((here / "own.json").read_text())["inspect"]
    assert code == 0 and "own.cu: k(float*) on sm_90: whole kernel, which has no loop" in out
    assert found["loop"] is None and len(rows) == found["code"]["instructions"] > 5
    assert [" FFMA " in row for row in rows].count(True) == 1 and " EXIT " in rows[-1]
    (page,) = json.loads(re.findall(r'id="data">(.*?)</script>', (here / "own.html").read_text(), re.S)[0])
    assert len(page["sass"]) == len(rows) and page["part"] == "whole kernel, which has no loop"
    assert any("* 3.0f" in line for file in page["source"] for line in file["lines"])


def test_compare_with_a_kernel_that_has_a_loop(here: Path, run) -> None:
    (here / "own.cu").write_text("__global__ void k(float *y) { y[threadIdx.x] += 1; }")
    code, out, _ = run("inspect", "own.cu", "--compare", "3", "--listing")
    assert code == 0 and "whole kernel, which has no loop" in out and "on sm_90: main loop" in out


@pytest.mark.parametrize("name", ["a.cubin", "b.cu", "c.ptx"])
def test_optimize_says_what_it_takes(here: Path, run, name: str) -> None:
    (here / name).write_bytes(b"x")
    code, out, err = run("sass", "optimize", name)
    assert (code, out) == (2, "") and f"{name} is a file, and sass optimize takes a rung (00-" in err
    assert "peakgemm sass check" in err and "unknown rung" not in err
