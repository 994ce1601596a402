// Inverses of the diagonal blocks of 128 of lower triangular matrices (include/linalg/elimination.cuh): each of the
// first `count` blocks has one, and others store the zeros beside them.
//
// A: the matrices. C: [batch][ceil(n / size)][size][size], whose diagonal blocks get the inverses; beside them the rows
// of each get zeros. A zero on the diagonal gives infinities and NaN.

#include "include/linalg/elimination.cuh"
#include "include/ptx/dependents.cuh"

struct InvertBlock {
  Strides matrix;
  int n, size, unit, blocks, count, unused;
};

// Zeros in `rows` rows of `columns`, but for as many columns as rows behind `left`. Lanes along the rows of W, or down.
__device__ __forceinline__ void zero_beside(float* to, const Strides& s, int rows, int left, int columns) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool along = s.along_rows();
  const int down = along ? 32 : THREADS / 32, right = along ? THREADS / 32 : 32;
#pragma unroll 1
  for (int r = along ? lane : warp; r < rows; r += down)
#pragma unroll 4
    for (int c = along ? warp : lane; c < columns; c += right)
      if (c < left || c >= left + rows) to[s.at(r, c)] = 0.f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_invert_block(const float* A, const float* B, const float* C0, float* C, char* workspace,
                    const __grid_constant__ InvertBlock s) {
  extern __shared__ __align__(16) float words[];
  Shared& shared = *reinterpret_cast<Shared*>(words);
  const int block = blockIdx.x % s.count, turn = blockIdx.x / s.count;
  const int batch = block / s.blocks, first = block % s.blocks * ROWS;
  const int n = min(s.n - first, ROWS), left = first % s.size;
  const long long number = static_cast<long long>(batch) * ((s.n + s.size - 1) / s.size) + first / s.size;
  const Strides rows = {s.size, 1, 0};
  float* const to = C + (number * s.size + left) * s.size;
  previous_kernel_has_ended();
  next_kernel_may_start();
  if (turn > 0) {
    const int fillers = gridDim.x / s.count - 1, width = (s.size + fillers - 1) / fillers, from = (turn - 1) * width;
    zero_beside(to + from, rows, n, left - from, min(width, s.size - from));
    return;
  }
  eliminate<false>({A + batch * s.matrix.batch + s.matrix.at(first, first), nullptr, to + left, s.matrix, rows, rows, n,
                    s.unit != 0, true}, shared);
}
