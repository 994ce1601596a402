"""Headers: those of CUDA, of the host, of the caller; what is said where they are missing."""

import numpy as np
import pytest

from peakgemm.errors import CompileFailed, InvalidValue
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.front import host_code, includes
from simulator_cases import command

needs_cuda_headers = pytest.mark.skipif(includes.toolkit() is None, reason="no headers of CUDA: pip install "
                                        "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl")
HOST = """#include <cassert>
#include <cstdio>
#include <cstdint>
#include <cmath>
#include <cfloat>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
__global__ void k(const float* x, uint32_t* y, int32_t n) {
  size_t i = threadIdx.x;
  assert(n < INT_MAX);
  y[i] = x[i] < FLT_MAX ? (uint32_t)fabsf(x[i]) : 7;
  if (i == 0) printf("%d\\n", n);
}
"""
CUDA = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cassert>
#include <cstdio>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
namespace cg = cooperative_groups;
template <typename T>
__global__ void sum(const __half* x, __half scale, __nv_bfloat16 shift, float* y, int n) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  int i = block.thread_rank();
  assert(n <= 64);
  float v = i < n ? __half2float(x[i] * scale) : 0.0f;
  v = cg::reduce(warp, v, cg::plus<float>());
  block.sync();
  if (warp.thread_rank() == 0) y[warp.meta_group_rank()] = v + __bfloat162float(shift);
  if (i) return;
  static_assert(std::is_same<T, float>::value && !std::is_integral_v<T>);
  std::conditional_t<sizeof(T) == 4, float, double> top = std::numeric_limits<T>::max();
  std::pair<int, float> p{1, 2.0f};
  y[2] = top; y[3] = std::sqrt(4.0f) + p.first + std::get<0>(std::make_tuple(5, 6)); y[4] = -INFINITY;
}
"""


@pytest.fixture
def nowhere(monkeypatch):
    """No headers of CUDA are installed."""
    monkeypatch.setattr(includes, "_candidates", lambda: iter(()))
    includes.forget()
    yield
    monkeypatch.undo()
    includes.forget()


def go(folder, text, *args, block=1, **options):
    """Run the kernel of a file ``k.cu`` of this text."""
    (folder / "k.cu").write_text(text)
    return run(folder / "k.cu", grid=1, block=block, args=args, **options)


def test_headers_of_the_host(tmp_path, nowhere):
    x, y = np.array([-2.5, 3, np.inf, 0], "f4"), np.zeros(4, "u4")
    report = go(tmp_path, HOST, x, y, 41, block=4)
    assert report.clean and y.tolist() == [2, 3, 7, 0] and report.printed == "41\n"


@needs_cuda_headers
def test_headers_of_cuda_and_of_its_library(tmp_path):
    x, y = np.arange(64, dtype="f2"), np.zeros(5, "f4")
    args = [x, np.float16(0.5), np.uint16(0x3F80), y, 50]
    assert go(tmp_path, CUDA, *args, entry="sum<float>", block=64).clean
    assert y.tolist() == [x[:32].astype("f4").sum() / 2 + 1, x[32:50].astype("f4").sum() / 2 + 1,
                          np.finfo("f4").max, 8, -np.inf]


@pytest.mark.parametrize("form", ["<cuda_fp16.h>", '"cuda_fp16.h"', "<cub/cub.cuh>", "<cuda/std/tuple>", "<mma.h>"])
def test_a_header_of_cuda_that_is_not_here(tmp_path, nowhere, form):
    with pytest.raises(CompileFailed, match=r"was not found, and no headers of CUDA were found: install CUDA's headers "
                       r"\(pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl.*CUDA_HOME") as error:
        go(tmp_path, f"#include {form}\n__global__ void k() {{}}")
    assert "--include" not in str(error.value)


@pytest.mark.parametrize(("form", "says"), [
    ("<nosuch.h>", "nosuch.h was not found: if it is a header of yours, pass --include DIR .*only device code"),
    ('"a/mine.cuh"', "a/mine.cuh was not found: if it is a header of yours, pass --include DIR"),
    ("<cutlass/gemm.h>", "--include DIR with the folder include of CUTLASS"),
    ("<curand_kernel.h>", "pip install nvidia-curand"),
])
def test_a_header_that_is_not_cudas(tmp_path, form, says):
    with pytest.raises(CompileFailed, match=says) as error:
        go(tmp_path, f"#include {form}\n__global__ void k() {{}}")
    text = str(error.value)
    assert "nvidia-cuda-runtime" not in text and text.count("was not found") == 1 and "k.cu(1)" in text


def test_a_header_that_nobody_asks_for(tmp_path):
    """What the preprocessor excludes need not be there, so that host code can be guarded."""
    y = np.zeros(1, "i4")
    assert go(tmp_path, '#ifndef __CUDACC_RTC__\n#include "helpers.h"\n#include <boost/any.hpp>\n#endif\n'
              "__global__ void k(int* y) { *y = 3; }", y).clean and y[0] == 3


LEFT_OUT = """#include <iostream>
#include "cublas_v2.h"
#include <cuda_runtime.h>  /* built in */
#include <algorithm>
#include <cuda.h>
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
__global__ void k(int* y) { *y = CEIL_DIV(7, 2) + sizeof(CUtensorMap); MORE }
"""


def test_headers_of_host_code_are_left_out(tmp_path, nowhere):
    y = np.zeros(1, "i4")
    assert go(tmp_path, LEFT_OUT.replace("MORE", ""), y).clean and y[0] == 4 + 128
    with pytest.raises(CompileFailed, match=r"k.cu\(7\): error(.|\n)*<iostream>, <cublas_v2.h>, <cuda_runtime.h>, "
                       r"<algorithm>: left out") as error:
        go(tmp_path, LEFT_OUT.replace("MORE", 'std::cout << "x";'), y)
    assert str(error.value).count("left out") == 1


NVCC = """
template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
#define IS(name, size, sign) static_assert(sizeof(name) == size && (name(-1) < name(0)) == sign)
IS(uint, 4, false); IS(ulong, 8, false); IS(ushort, 2, false); IS(u_int, 4, false); IS(u_long, 8, false);
IS(u_short, 2, false); IS(u_char, 1, false); IS(int8_t, 1, true); IS(int16_t, 2, true); IS(int32_t, 4, true);
IS(int64_t, 8, true); IS(u_int8_t, 1, false); IS(u_int16_t, 2, false); IS(u_int32_t, 4, false);
IS(u_int64_t, 8, false); IS(size_t, 8, false); IS(ssize_t, 8, true); IS(std::size_t, 8, false); IS(ptrdiff_t, 8, true);
static_assert(same<std::nullptr_t, decltype(nullptr)>::value && same<uint, unsigned>::value);
static_assert(INT_MAX == 2147483647 && INT_MIN == -INT_MAX - 1 && UINT_MAX == 4294967295u && CHAR_BIT == 8);
static_assert(SHRT_MAX == 32767 && USHRT_MAX == 65535 && SCHAR_MIN == -128 && UCHAR_MAX == 255);
static_assert(LONG_MAX == 9223372036854775807 && ULONG_MAX == 18446744073709551615u && LLONG_MIN == -LLONG_MAX - 1);
typedef unsigned int uint;  // again, as many write it
constexpr float top = INFINITY;
__global__ void k(const uint n, double* y) {
  y[0] = M_PI; y[1] = top; y[3] = NAN; y[4] = HUGE_VAL; y[5] = n;
  y[2] = std::abs(-2.5f) + std::sqrt(4.0) + std::fma(2.0f, 3.0f, 1.0f) + max(1, 2) + std::floor(1.5f);
}
"""


def test_what_nvcc_knows_without_an_include(tmp_path, nowhere):
    y = np.zeros(6)
    assert go(tmp_path, NVCC, 7, y).clean
    assert y[:3].tolist() == [np.pi, np.inf, 14.5] and np.isnan(y[3]) and y[4:].tolist() == [np.inf, 7]


@needs_cuda_headers
def test_it_agrees_with_cudas_headers(tmp_path):
    headers = ("cuda_fp16.h", "cuda_bf16.h", "cooperative_groups.h", "cuda/std/cstdint", "cuda/std/cmath", "mma.h",
               "cuComplex.h", "cstdint", "cfloat")
    y = np.zeros(1, "u4")
    assert go(tmp_path, "".join(f"#include <{header}>\n" for header in headers) +
              "__global__ void k(uint* y) { *y = sizeof(int64_t) + sizeof(std::uint32_t); }", y).clean and y[0] == 12


@pytest.mark.parametrize(("text", "says"), [
    ("#include <cstdio>\n\nint main() {\n  float* x; cudaMalloc(&x, 4); k<<<1, 2>>>(x); return 0;\n}", "main, line 5"),
    ("void go(float* x) {\n  k<<<1, 2>>>(x); }", "a launch, line 4"),
    ("float half_of(float x) { return x / 2; }", "a function without __device__, line 3"),
    ("struct S { int x; S(int y) : x(y) {} };", "a function without __device__, line 3"),
    ("__host__ int twice(int x) { return 2 * x; }", "a function without __device__, line 3"),
])
def test_host_code_is_refused_in_a_sentence(tmp_path, monkeypatch, text, says):
    monkeypatch.setattr(host_code, "available", lambda: False)  # which cuts kernels out (test_host_code.py)
    kernel = "// A program.\n__global__ void k(float* x) { *x = 1; }\n"
    with pytest.raises(CompileFailed, match=rf"k.cu holds host code \({says}\), and only device code is") as error:
        go(tmp_path, kernel + text, None)
    assert "\n" not in str(error.value)
    guarded, x = f"{kernel}#ifndef __CUDACC_RTC__\n{text}\n#endif", np.zeros(1, "f4")
    assert go(tmp_path, guarded, x).clean and x[0] == 1
    with pytest.raises(CompileFailed, match=r'k.cu\(2\): error: identifier "nosuch"') as error:
        go(tmp_path, guarded.replace("*x = 1", "*x = nosuch"), x)
    assert "host code" not in str(error.value)


@pytest.mark.parametrize(("variable", "folder"), [("CUDA_HOME", "a"), ("CUDA_PATH", "b")])
def test_where_headers_are_looked_for(tmp_path, monkeypatch, variable, folder):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / folder / "include").mkdir(parents=True)
    (tmp_path / folder / "include" / includes.PROBE).touch()
    monkeypatch.setenv(variable, str(tmp_path / folder))
    includes.forget()
    try:
        assert includes.toolkit() == tmp_path / folder / "include"
        expected = [tmp_path, includes.HOST, tmp_path / folder / "include"]
        assert includes.folders([tmp_path])[:3] == list(map(str, expected))
    finally:
        monkeypatch.undo()
        includes.forget()


def test_folders_of_the_caller(tmp_path, nowhere):
    for folder, value in (("one", 3), ("two", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.h").write_text(f"#pragma once\n#define MINE {value}\n")
    (tmp_path / "two" / "only.h").write_text('#include "mine.h"\n#define ONLY 10\n')
    (tmp_path / "i.cu").write_text("#include <only.h>\n__global__ void k(int* y) { *y = MINE + ONLY; }")
    (tmp_path / "j.cu").write_text('#include "mine.h"\n__global__ void k(int* y) { *y = MINE; }')
    y = np.zeros(1, "i4")
    both = [tmp_path / "one", str(tmp_path / "two")]
    assert run(tmp_path / "i.cu", grid=1, block=1, args=[y], include=both).clean and y[0] == 4 + 10
    assert run(tmp_path / "j.cu", grid=1, block=1, args=[y], include=both).clean and y[0] == 3
    (tmp_path / "two" / "only.h").write_text("#define MINE 3\n#define ONLY 20\n")  # compiled anew
    assert run(tmp_path / "i.cu", grid=1, block=1, args=[y], include=both).clean and y[0] == 23
    with pytest.raises(InvalidValue, match=r"--include .*three is not a folder; name the folder"):
        run(tmp_path / "i.cu", grid=1, block=1, args=[y], include=[tmp_path / "three"])


def test_the_option_of_the_command_line(tmp_path):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "mine.h").write_text("#define MINE 3\n")
    (tmp_path / "i.cu").write_text("#include <mine.h>\n#include <cstdio>\nnamespace n { __global__ void k(int* y) {"
                                   ' *y = MINE; printf("[%d]", MINE); } }')
    words = [tmp_path / "i.cu", "--grid", "1", "--block", "1", "--arg", "s32:1", "--kernel", "k", "--no-source"]
    code, out, _ = command(*words, "--include", tmp_path, "--include", tmp_path / "inc")
    assert code == 0 and "[3]" in out
    code, _, err = command(*words)
    assert code == 2 and "mine.h was not found" in err
