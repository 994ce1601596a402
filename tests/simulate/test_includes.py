"""Headers: those of CUDA, of the host, of the caller; what is said where they are missing."""

import numpy as np
import pytest

from peakgemm import cli
from peakgemm.errors import CompileFailed, InvalidValue, MissingComponent
from peakgemm.runtime import includes
from peakgemm.simulator import run

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
#include <mma.h>
#include <cassert>
#include <cstdio>
namespace cg = cooperative_groups;
__global__ void sum(const __half* x, __half scale, __nv_bfloat16 shift, float* y, int n) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  int i = block.thread_rank();
  assert(n <= 64);
  float v = i < n ? __half2float(x[i] * scale) : 0.0f;
  v = cg::reduce(warp, v, cg::plus<float>());
  block.sync();
  if (warp.thread_rank() == 0) y[warp.meta_group_rank()] = v + __bfloat162float(shift);
}
__global__ void other(float* y) {
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c;
  nvcuda::wmma::fill_fragment(c, 0.0f);
  nvcuda::wmma::store_matrix_sync(y, c, 16, nvcuda::wmma::mem_row_major);
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


def test_headers_of_the_host(tmp_path, nowhere):
    (tmp_path / "h.cu").write_text(HOST)
    x, y = np.array([-2.5, 3, np.inf, 0], "f4"), np.zeros(4, "u4")
    report = run(tmp_path / "h.cu", grid=1, block=4, args=[x, y, 41])
    assert report.clean and y.tolist() == [2, 3, 7, 0] and report.printed == "41\n"


@needs_cuda_headers
def test_headers_of_cuda(tmp_path):
    (tmp_path / "c.cu").write_text(CUDA)
    x, y = np.arange(64, dtype="f2"), np.zeros(2, "f4")
    args = [x, np.float16(0.5), np.uint16(0x3F80), y, 50]
    assert run(tmp_path / "c.cu", entry="sum", grid=1, block=64, args=args).clean
    assert y.tolist() == [x[:32].astype("f4").sum() / 2 + 1, x[32:50].astype("f4").sum() / 2 + 1]
    with pytest.raises(InvalidValue, match=r"wmma.store.d.*the simulator does not know it"):
        run(tmp_path / "c.cu", entry="other", grid=1, block=32, args=[np.zeros(256, "f4")])


@pytest.mark.parametrize("form", ["<cuda_fp16.h>", "<nosuch.h>"])
def test_what_to_do_about_a_missing_header(tmp_path, nowhere, form):
    (tmp_path / "m.cu").write_text(f"#include {form}\n__global__ void k() {{}}")
    with pytest.raises(CompileFailed, match=r"was not found, and no headers of CUDA were found: install CUDA's headers "
                       r"\(pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl.*CUDA_HOME.*--include DIR"):
        run(tmp_path / "m.cu", grid=1, block=1, args=[])
    (tmp_path / "m.cu").write_text('#include "cuda_fp16.h"\n__global__ void k() {}')
    with pytest.raises(MissingComponent, match=r'm.cu:1: #include "cuda_fp16.h" is neither .*; install CUDA'):
        run(tmp_path / "m.cu", grid=1, block=1, args=[])


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
        assert includes.folders([tmp_path])[:2] == [str(tmp_path), str(tmp_path / folder / "include")]
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


def test_the_option_of_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "mine.h").write_text("#define MINE 3\n")
    (tmp_path / "i.cu").write_text("#include <mine.h>\n#include <cstdio>\nnamespace n { __global__ void k(int* y) {"
                                   ' *y = MINE; printf("[%d]", MINE); } }')
    words = ["peakgemm", "simulate", str(tmp_path / "i.cu"), "--grid", "1", "--block", "1", "--arg", "s32:1",
             "--kernel", "k", "--no-source"]
    for more, code in ((["--include", str(tmp_path), "--include", str(tmp_path / "inc")], 0), ([], 2)):
        monkeypatch.setattr("sys.argv", [*words, *more])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert (end.value.code or 0) == code
        out, err = capsys.readouterr()
        assert "[3]" in out if code == 0 else "mine.h was not found" in err
