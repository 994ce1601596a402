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
constexpr int ROWS = 32, WARPS = 8, THREADS = 32 * WARPS;

// The sum over j <= row of |matrix(row, j)| x_j; x: 1 where there is no vector. The row's sum for each thread of the
// first warp, for row `first` + lane.
__device__ __forceinline__ float row_sum(const float* matrix, const Strides& s, const float* x, int first, int rows,
                                         bool unit) {
  __shared__ float sums[WARPS][ROWS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto term = [&](int row, int j) {
    const float value = unit && j == row ? 1.0f : fabsf(matrix[s.at(row, j)]);
    return x ? value * x[j] : value;
  };
  if (s.along_rows()) {  // a row a lane, and every eighth column a warp
    const int row = first + lane;
    float sum = 0;
#pragma unroll 8
    for (int j = warp; j < min(rows, first + ROWS); j += WARPS)
      if (row < rows && j <= row) sum += term(row, j);
    sums[warp][lane] = sum;
  } else {  // four rows a warp, and every 32nd column a lane
    for (int i = warp; i < ROWS; i += WARPS) {
      const int row = first + i;
      float sum = 0;
      if (row < rows)
#pragma unroll 8
        for (int j = lane; j <= row; j += 32) sum += term(row, j);
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane < WARPS) sums[lane][i] = lane == 0 ? sum : 0.0f;
    }
  }
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < WARPS; ++w) sum += sums[w][lane];
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_growth(const float* A, const float* B, const float* C0, float* C, char* workspace,
              const __grid_constant__ Growth s) {
  const int slabs = (s.n + ROWS - 1) / ROWS, blocks = (s.n + s.size - 1) / s.size;
  const int batch = blockIdx.x / slabs, row = blockIdx.x % slabs * ROWS, block = row / s.size;
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
