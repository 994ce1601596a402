// Whether the inverse W of a triangle L is too large for products with it to be as accurate as substitution: whether
// the greatest row of |W| |L| is greater than a bound, for each diagonal block of L of `size` rows.
//
// Idea: two matrix-vector products with absolute values, each with 32 rows a block: row sums of |L| first, which also
// clears the flags; then |W| times them. Lanes run along what is consecutive in memory. The bottleneck is the latency
// of DRAM.
//
// A: L. B: W, [batch][ceil(n / size)][size][size]. The workspace: the row sums, [batch][n]. C0: flags, [batch][ceil(n /
// size)], int32: 1 where the bound is exceeded, or the growth is not a number.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct Growth {
  Strides matrix;
  int n, size, unit, second;
  float bound;
  int unused;
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;

// The sum over j <= row of |matrix(row, j)| x_j, x being ones where there is no vector: of row `first` + lane, for each
// thread of the first warp.
__device__ __forceinline__ float row_sum(const float* matrix, const Strides& s, const float* x, int first, int rows,
                                         bool unit) {
  __shared__ float sums[TILE][TILE + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum[LINES] = {};
#pragma unroll 4
  for (int j = 0; j < first + TILE; j += TILE)
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = s.position(warp + WARPS * line, lane);
      const int row = first + r, column = j + c;
      if (row >= rows || column > row) continue;
      sum[line] += (unit && column == row ? 1.0f : fabsf(matrix[s.at(row, column)])) * (x ? x[column] : 1.0f);
    }
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const auto [r, c] = s.position(warp + WARPS * line, lane);
    sums[r][c] = sum[line];
  }
  __syncthreads();
  float total = 0;
  for (int c = 0; c < TILE; ++c) total += sums[lane][c];
  return total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_growth(const float* A, const float* B, const float* C0, float* C, char* workspace,
              const __grid_constant__ Growth s) {
  const int slabs = (s.n + TILE - 1) / TILE, blocks = (s.n + s.size - 1) / s.size;
  const int batch = blockIdx.x / slabs, row = blockIdx.x % slabs * TILE, block = row / s.size;
  const int begin = block * s.size, rows = min(s.size, s.n - begin), first = row - begin;
  const long long number = static_cast<long long>(batch) * blocks + block;
  float* const vector = reinterpret_cast<float*>(workspace) + static_cast<long long>(batch) * s.n + begin;
  int* const flag = reinterpret_cast<int*>(const_cast<float*>(C0)) + number;
  previous_kernel_has_ended();
  if (s.second) {
    const Strides strides = {s.size, 1, 0};
    const float sum = row_sum(B + number * s.size * s.size, strides, vector, first, rows, false);
    if (threadIdx.x < 32 && first + threadIdx.x < rows && !(sum <= s.bound)) atomicOr(flag, 1);
  } else {
    const float* const corner = A + batch * s.matrix.batch + s.matrix.at(begin, begin);
    const float sum = row_sum(corner, s.matrix, nullptr, first, rows, s.unit);
    if (threadIdx.x < 32 && first + threadIdx.x < rows) vector[first + threadIdx.x] = sum;
    if (threadIdx.x == 0 && first == 0) *flag = 0;
  }
}
