// X = L^-1 T by substitution, for the diagonal blocks of L whose inverses grow too much (`growth.cu`): all blocks of
// other matrices leave at once.
//
// Idea: a block has 32 columns of X, and goes down the rows by 32: it subtracts the products of tiles of L with the
// rows of X above, through shared memory, then one warp substitutes, a column a lane. Upwards, with L^T, is the same
// walk from the last row, with strides negated and swapped. The bottleneck is latency: the kernel is for rare matrices.
//
// A: the diagonal block of L. B: T. C: X, which may be T. C0: flags, int32, `blocks` for each matrix of the batch.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct Substitute {
  Strides matrix, from, to;
  int size, columns, unit, transposed, block, blocks;
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;
constexpr int WIDTH = TILE + 4;  // of a row in shared memory: four floats are read at once

// A tile of a matrix, zeros beyond its edge; to be seen by others after a barrier.
__device__ __forceinline__ void load_tile(float (&tile)[TILE][WIDTH], const float* from, const Strides& s, int i,
                                          int j, int rows, int columns) {
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const auto [r, c] = s.position(threadIdx.x / 32 + WARPS * line, threadIdx.x % 32);
    tile[r][c] = i + r < rows && j + c < columns ? from[s.at(i + r, j + c)] : 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_substitute(const float* A, const float* B, const float* C0, float* C, char* workspace,
                  const __grid_constant__ Substitute s) {
  __shared__ __align__(16) float left[TILE][WIDTH], right[TILE][WIDTH];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slabs = (s.columns + TILE - 1) / TILE;
  const int batch = blockIdx.x / slabs, column = blockIdx.x % slabs * TILE;
  Strides matrix = s.matrix, from = s.from, to = s.to;
  const float* l = A + batch * matrix.batch;
  const float* t = B + batch * from.batch;
  float* x = C + batch * to.batch;
  if (s.transposed) {
    const long long last = s.size - 1;
    l += last * (matrix.row + matrix.column), t += last * from.row, x += last * to.row;
    matrix = {-s.matrix.column, -s.matrix.row, 0};
    from.row = -from.row, to.row = -to.row;
  }
  previous_kernel_has_ended();
  if (reinterpret_cast<const int*>(C0)[batch * s.blocks + s.block] == 0) return;
  for (int i = 0; i < s.size; i += TILE) {
    float sum[LINES];  // rows `warp` + WARPS * line, a column a lane
    load_tile(right, t, from, i, column, s.size, s.columns);
    __syncthreads();
    for (int line = 0; line < LINES; ++line) sum[line] = right[warp + WARPS * line][lane];
    for (int k = 0; k < i; k += TILE) {
      __syncthreads();
      load_tile(left, l, matrix, i, k, s.size, s.size);
      load_tile(right, x, to, k, column, s.size, s.columns);
      __syncthreads();
#pragma unroll 8
      for (int e = 0; e < TILE; ++e)
#pragma unroll
        for (int line = 0; line < LINES; ++line)
          sum[line] = fmaf(-left[warp + WARPS * line][e], right[e][lane], sum[line]);
    }
    __syncthreads();
    load_tile(left, l, matrix, i, i, s.size, s.size);
    for (int line = 0; line < LINES; ++line) right[warp + WARPS * line][lane] = sum[line];
    __syncthreads();
    if (warp == 0)
      for (int r = 0; r < min(TILE, s.size - i); ++r) {
        float value = right[r][lane];
        for (int e = 0; e < r; ++e) value = fmaf(-left[r][e], right[e][lane], value);
        right[r][lane] = s.unit ? value : value / left[r][r];
      }
    __syncthreads();
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = to.position(warp + WARPS * line, lane);
      if (i + r < s.size && column + c < s.columns) x[to.at(i + r, column + c)] = right[r][c];
    }
    __syncthreads();
  }
}
