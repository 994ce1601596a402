// The permutation of a matrix's rows that LAPACK's pivots stand for.
//
// Idea: one thread exchanges one pair of rows after the other, in shared memory. Where there are more rows than fit
// they are exchanged in global memory. The bottleneck is that chain.
//
// A: the pivots, int32, from 1 on, a row of `pivots` for each matrix; those that name no row are taken for the nearest.
// C: int32, `rows` for each matrix: which row comes there.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct Permutation {
  Strides layout;
  int rows, pivots, is_shared, unused;
};

extern "C" __global__ void __launch_bounds__(256)
linalg_permutation(const float* A, const float* B, const float* C0, float* C, char* workspace,
                   const __grid_constant__ Permutation s) {
  extern __shared__ int order[];
  const int* const pivots = reinterpret_cast<const int*>(A) + blockIdx.x * s.layout.batch;
  int* const out = reinterpret_cast<int*>(C) + static_cast<long long>(blockIdx.x) * s.rows;
  int* const rows = s.is_shared ? order : out;
  previous_kernel_has_ended();
  for (int i = threadIdx.x; i < s.rows; i += blockDim.x) rows[i] = i;
  __syncthreads();
  if (threadIdx.x == 0)
#pragma unroll 4
    for (int i = 0; i < s.pivots; ++i) {
      const int pivot = min(max(pivots[i * s.layout.column], 1), s.rows) - 1, row = rows[i];
      rows[i] = rows[pivot];
      rows[pivot] = row;
    }
  __syncthreads();
  if (s.is_shared)
    for (int i = threadIdx.x; i < s.rows; i += blockDim.x) out[i] = order[i];
}
