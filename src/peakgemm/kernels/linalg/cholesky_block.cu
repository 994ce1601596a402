// The Cholesky factor of up to 128 rows, and its inverse (include/linalg/elimination.cuh): a block has one matrix of the
// batch.
//
// A: the matrix, of which the lower triangle is read. C: the factor; it may be A. The workspace: the inverse. Above both
// the first block of a matrix stores zeros; the later ones share its inverse, and leave the factor as it is there.
// C0: LAPACK's info, an int32 for each matrix: where it is not 0 at the start nothing is done; it becomes the order of
// the leading minor that is not positive definite, `first` included, and what is then in both outputs is undefined.

#include "include/linalg/elimination.cuh"
#include "include/ptx/dependents.cuh"

struct CholeskyBlock {
  Strides matrix, factor, inverse;
  int n, first;
};

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_cholesky_block(const float* A, const float* B, const float* C0, float* C, char* workspace,
                      const __grid_constant__ CholeskyBlock s) {
  extern __shared__ __align__(16) float words[];
  Shared& shared = *reinterpret_cast<Shared*>(words);
  const int batch = blockIdx.x;
  int* const info = reinterpret_cast<int*>(const_cast<float*>(C0)) + batch;
  float* const inverse = reinterpret_cast<float*>(workspace) + batch * s.inverse.batch;
  previous_kernel_has_ended();
  next_kernel_may_start();
  if (*info != 0) return;
  const int failed = eliminate<true>({A + batch * s.matrix.batch, C + batch * s.factor.batch, inverse, s.matrix, s.factor,
                                      s.inverse, s.n, false, s.first == 0}, shared);
  if (failed && threadIdx.x == THREADS - 1) *info = s.first + failed;
}
