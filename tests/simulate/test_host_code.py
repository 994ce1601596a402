"""`.cu` files with host code: what is cut out, which launch is offered, what is said where that cannot be."""

import sys

import pytest

from peakgemm.cli.own import own_launch
from peakgemm.tools.inspect.files import from_file
from peakgemm.tools.simulator.front import host_code
from peakgemm.tools.simulator.front.launches import Pointer
from peakgemm.tools.simulator.front.sources import offered
from simulator_cases import command

needs_libclang = pytest.mark.skipif(not host_code.available(), reason=f"no libclang: {host_code.REMEDY}")

# Tokens in capitals are replaced by tests.
PROGRAM = """#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <iostream>
#include <vector>
#include "nowhere.h"
#define TILE 16
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) std::cerr << cudaGetErrorString(e); } while (0)
struct Timer { std::vector<float> spans; void add(float ms) { spans.push_back(ms); } };
namespace tiled {
constexpr int half(int x) { return x / 2; }
__device__ float times(float x, float y) { return x * y; }
template <int T, typename V = float>
__global__ void product(const V *a, const V *b, V *c, int n, float alpha) {
  __shared__ V x[T][T], y[T][T];
  int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
  V sum = 0;
  for (int k = 0; k < n; k += 2 * half(T)) {
    x[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    y[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < T; ++i) sum += times(x[threadIdx.y][i], y[i][threadIdx.x]);
    BARRIER;
  }
  c[row * n + column] = alpha * sum;
}
}  // namespace tiled
__global__ void other(float *x) { not_declared_anywhere(x); }
template <int T> void run(const float *a, const float *b, float *c, int n) {
  dim3 block(T, T), grid(CEIL_DIV(n, T), CEIL_DIV(n, block.y));
  if (T == 8) tiled::product<4><<<grid, 16>>>(a, b, c, n, 1.0f);
  tiled::product<T><<<grid, block, 2 * sizeof(float)>>>(a, b, c, n, ALPHA);
}
int main(int argc, char **argv) {
  int n = SIZE;
  float *a, *b, *c;
  std::vector<float> host(n * n, 1.0f);
  CHECK(cudaMalloc(&a, n * n * sizeof(float) + 1024));
  CHECK(cudaMalloc((void **)&b, n * n * sizeof(float)));
  CHECK(cudaMalloc(&c, n * n * sizeof(float)));
  run<TILE>(a + 256, b, c, n);
  CHECK(cudaDeviceSynchronize());
}
"""


def written(folder, **tokens):
    text = PROGRAM
    for token, by in {**tokens, "BARRIER": "__syncthreads()", "SIZE": "32", "ALPHA": "1.0f", **tokens}.items():
        text = text.replace(token, by)
    path = folder / "mine.cu"
    path.write_text(text)
    return path


@needs_libclang
def test_a_program_as_it_is(tmp_path):
    """Headers that are not there, classes of the host, another kernel that does not compile: none of it matters."""
    code, out, err = command(written(tmp_path), "--expect", "matmul", "--no-source")
    assert (code, err) == (0, "") and "No fault found" in out and "Argument 2 is as expected" in out
    said = " ".join(out.split())
    assert ("mine.cu:32: tiled::product<16>, grid 2x2x1, block 16x16x1, 8 bytes of dynamic shared memory, arguments "
            "a = float32[1024], b = float32[1024], c = float32[1024], n = 32, alpha = 1.0 ") in said
    assert "tiled::product<16, float>(const float*" in out and "_ZN" not in out


@needs_libclang
def test_a_launch(tmp_path):
    launch = offered(written(tmp_path), None, None, ())
    assert launch.args == (Pointer("f32", 1280, 256, "a"), Pointer("f32", 1024, 0, "b"), Pointer("f32", 1024, 0, "c"),
                           32, 1.0)
    assert (launch.grid, launch.block, launch.shared, launch.sized) == ((2, 2, 1), (16, 16, 1), 8, ())
    args = own_launch(tmp_path / "mine.cu", None, None, None, (), None, {}, ()).args
    assert [len(one) for one in args[:3]] == [1024, 1024, 1024]
    assert args[0].ctypes.data - args[0].base.ctypes.data == 1024


@needs_libclang
@pytest.mark.parametrize(("tokens", "size", "expected"), [
    ({}, 64, (64, ("n",))),  # a variable has a size, but it may have another
    ({"SIZE": "argc > 1 ? atoi(argv[1]) : 1024"}, 64, (64, ("n",))),
    ({"SIZE": "std::stoi(argv[1])", "ALPHA": "atof(getenv())"}, 64, (64, ("n",))),
    ({"SIZE": "sizes[0]", "int main": "int sizes[] = {32, 64};\nint main"}, None, (32, ())),
    ({"SIZE": "sizes[1]", "int main": "int sizes[] = {32, 64};\nint main"}, None, (64, ())),
    ({"int n = SIZE": "const int n = 48"}, 64, (48, ())),  # a constant has not
    ({"int n = SIZE": "int n; n = -(-TILE) * 2 + tiled::half(33) % 16"}, None, (32, ())),
    ({"int n = SIZE": "const long rows = 5; int n = rows > 4 ? rows << 4 : 7"}, None, (80, ())),
])
def test_a_size(tmp_path, tokens, size, expected):
    launch = offered(written(tmp_path, **tokens), None, None, (), size)
    n, sized = expected
    assert launch.grid == (n // 16, n // 16, 1) and launch.args[1].elements == n * n and launch.args[3] == n
    assert launch.sized == sized and launch.args[4] == 1.0


@needs_libclang
def test_what_depends_on_the_run(tmp_path):
    path = written(tmp_path, SIZE="atoi(argv[1])")
    code, _, err = command(path)
    assert code == 2 and "\n" not in err.strip()
    assert ("mine.cu:32: the launch of tiled::product<16> takes values that only a run knows (--grid from atoi(); "
            "--arg (a) from the size of a;") in err
    assert "pass --size N, or --grid, --arg. not found: nowhere.h; pass --include DIR" in err
    given = own_launch(path, None, "2x2", None, ["f32:1024"] * 3 + ["32", "1.0"], None, {}, ())
    assert [*given.block] == [16, 16, 1] and given.args[3] == 32


@needs_libclang
@pytest.mark.parametrize(("text", "kernel", "says"), [
    ("__global__ void k(int *x);\nint main() { k<<<1, 2>>>(0); }", None,
     "mine.cu:1 declares kernel k, and its code is in another file; name that file"),
    ("void go(void (*k)(int *)) { k<<<1, 2>>>(0); }", None,
     "mine.cu holds no kernel; mine.cu:1 launches what only a run knows (k)"),
    ('#include "k.h"\nint main() { k<<<1, 2>>>(0); }', None, "not found: k.h; pass --include DIR"),
    ("__global__ void a() {}\n__global__ void b() {}\nint main() {}", None,
     "2 kernels and no launch of one; name one by --kernel, of a, b"),
    ("__global__ void a() {}\nint main() { a<<<1, 2>>>(); }", "c",
     "mine.cu holds no kernel c; name one by --kernel, of a"),
    ("__global__ void a() {}\nint main() { a<<<0, 2>>>(); }", None, "--grid from a dimension of 0"),
    ("__global__ void a(int *x) {}\nvoid go(int *x) { int *p; p = p + 1; int n; n = n + 1; a<<<n, 2>>>(p); }", None,
     "(--grid from n; --arg (x) from the size of p)"),
    ("__global__ void a(\nint main() { a<<<1, 2>>>(); }", None, "mine.cu:2: "),
    ("__global__ void a(int *x) { *x = nosuch; }\nint main() { int *p; cudaMalloc(&p, 4); a<<<1, 2>>>(p); }", None,
     'mine.cu(1): error: identifier "nosuch" is undefined'),
    ("__global__ void a(int *x) { }\nint main() { int *p; cudaMalloc(&p, 4); a<<<1, 2>>>(p + 9); }", None,
     "mine.cu:2: x is p + 9, beyond its 1 elements"),
    ('__global__ void a(int *x) { asm("brkpt;"); }\nint main() { int *p; cudaMalloc(&p, 4); a<<<1, 2>>>(p); }', None,
     "brkpt"),
])
def test_what_is_refused(tmp_path, text, kernel, says):
    (tmp_path / "mine.cu").write_text(text)
    code, _, err = command(tmp_path / "mine.cu", *(["--kernel", kernel] if kernel else []))
    assert code == 2 and says in err and "Traceback" not in err


def test_without_libclang(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "clang", None)
    host_code.library.cache_clear()
    try:
        path = written(tmp_path)
        code, _, err = command(path)
        assert code == 2 and "needs --grid and --block" in err and "pip install 'peakgemm[cuda-files]'" in err
        code, _, err = command(path, "--grid", 1, "--block", 1)
        assert code == 2 and "holds host code (main, line 34)" in err and "pip install 'peakgemm[cuda-files]'" in err
    finally:
        monkeypatch.undo()
        host_code.library.cache_clear()


@needs_libclang
def test_one_cause_is_told_once(tmp_path):
    """A forgotten barrier: both stores of a turn race with the loads of the turn before."""
    code, _, err = command(written(tmp_path, BARRIER=""), "--no-source")
    assert code == 1 and err.count("shared_race") == 1
    assert "and 1 more of this cause, in " in err and "kernel tiled::product<16, float>(const float*" in err


@needs_libclang
def test_a_result_that_is_wrong(tmp_path):
    code, out, err = command(written(tmp_path, ALPHA="1.5f"), "--expect", "matmul", "--no-source")
    assert code == 1 and "Argument 2 is not as expected in 1,02" in err and "No fault" not in out


@needs_libclang
def test_limits_of_a_file(tmp_path, capsys):
    from peakgemm.cli import limits

    limits.command(str(written(tmp_path)), size="64", json=tmp_path / "found.json")
    out = capsys.readouterr().out
    assert "mine.cu:32: tiled::product<16>, grid 4x4x1" in out and "64 stands for n" in out
    assert "Limited by: " in out and "TFLOPS" in out
    assert (tmp_path / "found.json").is_file()


@needs_libclang
def test_inspect_and_explore(tmp_path, capsys):
    from peakgemm.cli import explore

    path = written(tmp_path)
    subject = from_file(path, None)
    assert (subject.threads, subject.dynamic_shared) == (256, 8) and "tiled::product<16, float>" in subject.label
    explore.command([str(path)], output=tmp_path / "page.html", sass=False)
    assert "mine.cu:32: tiled::product<16>, grid 2x2x1" in capsys.readouterr().out
    assert (tmp_path / "page.html").is_file()


@needs_libclang
@pytest.mark.parametrize(("host", "says"), [
    ("int halves(int n) { return n < 2 ? 1 : halves(n / 2) + halves(n / 2 + n % 2); }\n"
     "int main() { float *d; int n = 4096; cudaMalloc(&d, n); k<<<halves(n), 64>>>(d, n); }", "--grid from n"),
    ("typedef void (*F)(float *, int); int main() { F p, q; p = q; q = p; float *d; p<<<1, 64>>>(d, 3); }", ""),
    ("int main() { float *p, *q; p = q; q = p; k<<<1, 64>>>(p, 256); }", "--arg (d) from"),
    ("int main() { float *d; long long e = 4000000000000ll; k<<<1ll << e, 64>>>(d, 1); }", "a shift by 4000000000000"),
    ("template <int M> void go(float *d) { k<<<M / (M - 3), 64>>>(d, 256); } int main() { go<3>(nullptr); }",
     "--grid from")])
def test_what_has_no_value_ends(host, says, tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(f"__global__ void k(float *d, int n) {{ d[threadIdx.x] = n; }}\n{host}\n")
    launch = offered(path, None, None, (), None)
    assert launch is None if not says else any(says in one for one in launch.unknown), launch
