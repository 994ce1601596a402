// Adds up the partial sums that `skinny` leaves where several blocks have shared K.
//
// In a fixed order: the same bits every time, and no float atomics. `shared` threads a sum, each takes every
// `shared`-th part; neighbouring threads read neighbouring sums.

#include "include/ptx/dependents.cuh"
#include "include/scheduler/gemm.cuh"
#include "include/epilogue/epilogue.cuh"
#include "include/epilogue/partial_sums.cuh"

constexpr int BLOCK = 256;

extern "C" __global__ void __launch_bounds__(BLOCK)
ffma_skinny_reduce(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
                   const float* __restrict__ partial, const __grid_constant__ Gemm g) {
  __shared__ float sums[BLOCK];
  next_kernel_may_start();
  const int outputs = over(BLOCK, g.by_shared), turn = static_cast<int>(threadIdx.x) * g.shared / BLOCK;
  const long long total = static_cast<long long>(g.whole) * (BM * BN);
  const long long output = static_cast<long long>(blockIdx.x) * outputs + threadIdx.x - turn * outputs;
  const int mine = turn < g.parts ? over(g.parts - 1 - turn, g.by_shared) + 1 : 0;  // parts
  Sums<1> sum = {};
  previous_kernel_has_ended();
  if (output < total)
    add_parts(sum, mine, [&](int i) { return Sums<1>{partial[(turn + static_cast<long long>(i) * g.shared) * total + output]}; });
  sums[threadIdx.x] = sum.of[0];
  __syncthreads();
  if (turn || output >= total) return;
  for (int other = 1; other < g.shared; ++other) sum.of[0] += sums[other * outputs + threadIdx.x];

  const int rows = SWAPPED ? g.N : g.M, columns = SWAPPED ? g.M : g.N;
  const int tile = static_cast<int>(output / (BM * BN)), e = static_cast<int>(output % (BM * BN));
  const int down = (rows + BM - 1) / BM, batch = over(tile, g.matrix);
  const int row = (tile - batch * down) * BM + (SWAPPED ? e % BM : e / BN), s = SWAPPED ? e / BM : e % BN;
  if (row >= rows || s >= columns) return;
  const long long m = SWAPPED ? s : row, n = SWAPPED ? row : s;
  const float* const c0 = C0 + batch_offset(g, g.c0_batch, batch);
  C[batch_offset(g, g.c_batch, batch) + m * g.ldc + n] =
      scaled(sum.of[0], g.alpha, g.beta, c0 + m * g.c0_row + n * g.c0_col);
}
