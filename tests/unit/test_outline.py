"""The outline of a source: kernels, templates' parameters, and where host code is."""

from __future__ import annotations

import pytest

from peakgemm.tools.simulator.front.outline import outline


def kernels(text: str, **macros: int) -> list[str]:
    return [str(one) for one in outline(text, tuple(macros.items())).kernels]


@pytest.mark.parametrize(("text", "found"), [
    ("__global__ void k(int* p) { if (p) { *p = 1; } }", ["k"]),
    ('extern "C" __global__ void __launch_bounds__((BM / TM) * (BN / TN), 2)\nk(int* p) {}', ["k"]),
    ('extern "C" { __global__ void __cluster_dims__(2) k() {} }\n__global__ void m() {}', ["k", "m"]),
    ("namespace a { namespace b::c { namespace { static __global__ void k() {} } } __global__ void m() {} }",
     ["a::b::c::k", "a::m"]),
    ("namespace a { inline namespace v1 { __global__ void k() {} } }", ["a::v1::k"]),
    ("__global__ void k(int*);\n__global__ void k(int* p) { *p = 1; }", ["k"]),
    ("template <const int BM, typename T = float, bool B = (3 > 2)>\n__global__ void k(T* p, int (*f)(int)) {}",
     ["k<const int BM, typename T = float, bool B = (3 > 2)>"]),
    ("template <template <typename> class C, class A = C<int>, int... N> __global__ void k() {}",
     ["k<template <typename> class C, class A = C<int>, int... N>"]),
    ("template <int N> __global__ void k() {}\ntemplate <> __global__ void k<3>() {}\ntemplate __global__ void k<4>();",
     ["k<int N>"]),
    ("template <int N> __device__ int f() { return N; }\nstruct S { int x[3]; } s;\n__global__ void k() { }", ["k"]),
    ("#define CHECK(x) (x)\nCHECK(3)\n__global__ __launch_bounds__(256) void k(int a = f(2)) {}", ["k"]),
    ('// __global__ void a() {}\n/* __global__ void b() {} */ const char* s = "__global__ void c() {";\n'
     "const char q = '{'; int n = 1'000;\n__global__ void k() { '\"'; }", ["k"]),
    ("#if 0\n__global__ void a() {}\n#elif X\n__global__ void b() {}\n#else\n__global__ void c() {}\n#endif", ["b"]),
    ("#ifdef NOT\n__global__ void a() {\n#else\n__global__ void b() {\n#endif\n}", ["b"]),
    ("#ifndef __CUDACC_RTC__\n__global__ void a() {}\n#endif\n#if defined(__CUDACC__)\n__global__ void b() {}\n#endif",
     ["b"]),
    ("#define SLOW 0\n#if SLOW\n__global__ void a() {}\n#endif\n#define LONG(x) \\\n  { x \\\n\n__global__ void b() {}",
     ["b"]),
])
def test_kernels(text: str, found: list[str]) -> None:
    assert kernels(text) == found and outline(text).complete


def test_macros_choose() -> None:
    text = ("#if FAST\n__global__ void a() {}\n#else\n__global__ void b() {}\n#endif\n"
            "#ifdef N\n__global__ void c() {}\n#endif")
    assert kernels(text, FAST=0) == ["b"] and kernels(text, FAST=1, N=2) == ["a", "c"]


@pytest.mark.parametrize("text", ["#define K(n) __global__ void n() {}\nK(a)", "M(__global__ void a() {})"])
def test_kernels_that_macros_write(text: str) -> None:
    assert not outline(text).complete


@pytest.mark.parametrize(("parameters", "needs", "example"), [
    ("typename T, int N", True, "k<float, 8>"), ("const uint B", True, "k<8>"), ("bool B, auto N", True, "k<true, 8>"),
    ("typename T = float, int N = 4", False, "k<float, 4>"), ("int N, typename T = double", True, "k<8, double>"),
    ("bool B = (1 >= 2)", False, "k<(1 >= 2)>"), ("Mode m", True, "k<Mode(0)>"), ("auto V, int... N", True, "k<8, 8>"),
    ("int... N", False, "k<8>"),
])
def test_template_parameters(parameters: str, needs: bool, example: str) -> None:
    (found,) = outline(f"template <{parameters}> __global__ void k() {{}}").kernels
    assert (found.needs_arguments, found.example) == (needs, example)


@pytest.mark.parametrize(("text", "host"), [
    ("\n\nint main(int argc, char** argv) { return 0; }", "main, line 3"), ("auto main() -> int {}", "main, line 1"),
    ('#line 1 "a.cu"\n\n#line 1 "b.cuh"\nint x;\n#line 3 "a.cu"\n\nint main() {}', "main, line 4"),
    ("void f() {\n  k<<<1, 2>>>(); }", "a launch, line 2"), ("namespace n { int main() { return 1; } }", ""),
    ("#ifndef __CUDACC_RTC__\nint main() { k<<<1, 2>>>(); }\n#endif", ""), ("// int main() {}\nint mainly() { }", ""),
    ("int main();", ""), ("__device__ int f(int x) { return x << 3; }", ""),
])
def test_host_code(text: str, host: str) -> None:
    assert outline(text).host == host
