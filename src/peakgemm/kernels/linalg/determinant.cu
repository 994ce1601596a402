// Determinants from LU: their sign, the logarithm of their absolute value, and themselves.
//
// Idea: a block a matrix; logarithms are added up in FP64, so that neither overflow nor the length of the sum costs
// anything. The bottleneck is a launch.
//
// A: L and U, of `n` rows. B: the pivots, int32, from 1 on. C: sign and logarithm of each matrix, or with `whole` the
// determinant.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct Determinant {
  Strides matrix;
  int n, whole;
};
constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_determinant(const float* A, const float* B, const float* C0, float* C, char* workspace,
                   const __grid_constant__ Determinant s) {
  __shared__ double sums[THREADS];
  __shared__ float signs[THREADS];
  const int thread = threadIdx.x;
  const float* const matrix = A + blockIdx.x * s.matrix.batch;
  const int* const pivots = reinterpret_cast<const int*>(B) + static_cast<long long>(blockIdx.x) * s.n;
  previous_kernel_has_ended();
  double sum = 0;
  float sign = 1;
  for (int i = thread; i < s.n; i += THREADS) {
    const float pivot = matrix[s.matrix.at(i, i)];
    sum += log(fabs(static_cast<double>(pivot)));
    sign *= pivot > 0 ? 1.f : pivot < 0 ? -1.f : pivot;  // 0 and NaN stay
    if (pivots[i] != i + 1) sign = -sign;
  }
  sums[thread] = sum, signs[thread] = sign;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half], signs[thread] *= signs[thread + half];
  }
  if (thread > 0) return;
  if (s.whole) C[blockIdx.x] = signs[0] == 0 ? signs[0] : static_cast<float>(signs[0] * exp(sums[0]));
  else C[2 * blockIdx.x] = signs[0], C[2 * blockIdx.x + 1] = static_cast<float>(sums[0]);
}
