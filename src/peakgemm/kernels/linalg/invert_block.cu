// Inverses of the diagonal blocks of 128 of lower triangular matrices: a block has one, and `fillers`
// more blocks store the zeros beside it.
//
// Idea: the triangle stays in shared memory; its inverse transposed comes by panels of 32 columns, as in
// `cholesky_block.cu`, and by the same code (include/linalg/triangle_tiles.cuh), with no pivot to wait for. The
// bottleneck is latency: substitution for 32 columns, 700 cycles, four times, with products between.
//
// A: the matrices. C: [batch][ceil(n / size)][size][size], whose diagonal blocks get the inverses; beside them the rows
// of each get zeros. A zero on the diagonal gives infinities and NaN.

#include "include/linalg/triangle_tiles.cuh"
#include "include/ptx/dependents.cuh"

struct InvertBlock {
  Strides matrix;
  int n, size, unit, blocks, fillers, unused;
};

extern "C" __global__ void __launch_bounds__(THREADS, 3)
linalg_invert_block(const float* A, const float* B, const float* C0, float* C, char* workspace,
                    const __grid_constant__ InvertBlock s) {
  constexpr int ROWS = TILE * MOST_BLOCKS;
  const int warp = threadIdx.x / 32, filler = blockIdx.x % (1 + s.fillers), block = blockIdx.x / (1 + s.fillers);
  const int batch = block / s.blocks, first = block % s.blocks * ROWS;
  const int n = min(s.n - first, ROWS), blocks = (n + TILE - 1) / TILE, left = first % s.size;
  const long long number = static_cast<long long>(batch) * ((s.n + s.size - 1) / s.size) + first / s.size;
  const Strides strides = {s.size, 1, 0};
  float* const rows = C + (number * s.size + left) * s.size;
  const Workers workers = {warp, WARPS};
  previous_kernel_has_ended();
  if (filler > 0) {
    store_zeros_beside(rows, strides, n, left, s.size, {WARPS * (filler - 1) + warp, WARPS * s.fillers});
    return;
  }
  load_triangle(A + batch * s.matrix.batch + s.matrix.at(first, first), s.matrix, n, true, s.unit);
  store_zeros(rows + left, strides, n, blocks, workers);
  __syncthreads();
  if (warp < blocks) {
    float* const diagonal = slot(warp, warp) + at(threadIdx.x % 32, threadIdx.x % 32);
    *diagonal = 1.0f / *diagonal;
  }
  __syncthreads();
  for (int j = 0; j < blocks; ++j) {
    if (warp < blocks) solve_block(warp, j, true);
    __syncthreads();
    update(j, blocks, true, workers);
    store_inverse(rows + left, strides, n, j, workers);
    __syncthreads();
  }
}
