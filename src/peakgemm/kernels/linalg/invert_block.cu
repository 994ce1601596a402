// Inverses of the diagonal blocks of 128 of lower triangular matrices (include/linalg/elimination.cuh): a block has one.
//
// A: the matrices. C: [batch][ceil(n / size)][size][size], whose diagonal blocks get the inverses; beside them the rows
// of each get zeros. A zero on the diagonal gives infinities and NaN.

#include "include/linalg/elimination.cuh"
#include "include/ptx/dependents.cuh"

struct InvertBlock {
  Strides matrix;
  int n, size, unit, blocks;
};

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_invert_block(const float* A, const float* B, const float* C0, float* C, char* workspace,
                    const __grid_constant__ InvertBlock s) {
  __shared__ __align__(16) Shared shared;
  const int batch = blockIdx.x / s.blocks, first = blockIdx.x % s.blocks * ROWS;
  const int n = min(s.n - first, ROWS), left = first % s.size;
  const long long number = static_cast<long long>(batch) * ((s.n + s.size - 1) / s.size) + first / s.size;
  const Strides rows = {s.size, 1, 0};
  float* const to = C + (number * s.size + left) * s.size;
  previous_kernel_has_ended();
  next_kernel_may_start();
  zero_beside(to, rows, n, left, s.size);
  eliminate<false>({A + batch * s.matrix.batch + s.matrix.at(first, first), nullptr, to + left, s.matrix, rows, rows, n,
                    s.unit != 0}, shared);
}
