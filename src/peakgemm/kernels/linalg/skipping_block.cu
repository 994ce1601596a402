// As cholesky_block.cu, of a matrix with a diagonal of about 1 that may be indefinite by rounding: a column whose pivot
// is at most `floor` is skipped. It is zeros below the diagonal and in the inverse, and -1 on the diagonal. Of NaN all
// that follows is NaN.

#include "include/linalg/elimination.cuh"
#include "include/ptx/dependents.cuh"

struct SkippingBlock {
  Strides matrix, factor, inverse;
  int n, first;
  float floor;
  int unused;
};

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_skipping_block(const float* A, const float* B, const float* C0, float* C, char* workspace,
                      const __grid_constant__ SkippingBlock s) {
  extern __shared__ __align__(16) float words[];
  Shared& shared = *reinterpret_cast<Shared*>(words);
  const long long batch = blockIdx.x;
  float* const inverse = reinterpret_cast<float*>(workspace) + batch * s.inverse.batch;
  previous_kernel_has_ended();
  next_kernel_may_start();
  eliminate<true, true>({A + batch * s.matrix.batch, C + batch * s.factor.batch, inverse, s.matrix, s.factor, s.inverse,
                         s.n, false, s.first == 0, s.floor}, shared);
}
