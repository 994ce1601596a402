// The Cholesky factor of up to 128 rows, and its inverse (include/linalg/elimination.cuh): each of the first `count`
// blocks has a matrix of the batch, and others store the zeros beside inverses: of 1,024 columns half a megabyte each.
//
// A: the matrix, of which the lower triangle is read. C: the factor, zeros above; it may be A. The workspace: rows of
// the inverse, from their first column; the inverse begins at column `left`, zeros are beside. C0: LAPACK's info, an
// int32 for each matrix: where it is not 0 at the start nothing is done; it becomes the order of the leading minor that
// is not positive definite, `first` included, and what is then in both outputs is undefined.

#include "include/linalg/elimination.cuh"
#include "include/ptx/dependents.cuh"

struct CholeskyBlock {
  Strides matrix, factor, inverse;
  int n, first, left, columns;
  unsigned count, unused;
};

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_cholesky_block(const float* A, const float* B, const float* C0, float* C, char* workspace,
                      const __grid_constant__ CholeskyBlock s) {
  __shared__ __align__(16) Shared shared;
  float* const rows = reinterpret_cast<float*>(workspace);
  int* const info = reinterpret_cast<int*>(const_cast<float*>(C0)) + blockIdx.x;
  previous_kernel_has_ended();
  next_kernel_may_start();
  if (blockIdx.x >= s.count) {
    const int fillers = gridDim.x / s.count - 1, width = (s.columns + fillers - 1) / fillers;
    const int from = (blockIdx.x / s.count - 1) * width;
    float* const to = rows + blockIdx.x % s.count * s.inverse.batch + s.inverse.at(0, from);
    zero_beside(to, s.inverse, s.n, s.left - from, min(width, s.columns - from));
    return;
  }
  if (*info != 0) return;
  const int failed = eliminate<true>({A + blockIdx.x * s.matrix.batch, C + blockIdx.x * s.factor.batch,
                                      rows + blockIdx.x * s.inverse.batch + s.left * s.inverse.column, s.matrix,
                                      s.factor, s.inverse, s.n, false},
                                     shared);
  if (failed && threadIdx.x == 0) *info = s.first + failed;
}
