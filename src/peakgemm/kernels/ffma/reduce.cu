// Adds up the partial sums of the tiles whose K several blocks have shared.
//
// In the order of K, whichever block was first: the same bits every time, and no float atomics. A block takes one
// element of the thread tiles, as the kernel that wrote them held them: with few tiles and many parts, as a
// deep K makes them, there are still hundreds of blocks.

#include "common/gemm.cuh"
#include "common/dependents.cuh"
#include "common/shares.cuh"
#include "common/fragment.cuh"
#include "common/warp_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
ffma_reduce(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
            const float* __restrict__ partial, const __grid_constant__ Gemm g) {
  next_kernel_may_start();
  const int steps = (g.K + BK - 1) / BK;
  const int tile = blockIdx.x / (TM * TN), element = blockIdx.x % (TM * TN);
  const Shares shares(g, steps, tile);
  previous_kernel_has_ended();
  if (shares.whole) return;
  const float* const from = partial + element * THREADS + threadIdx.x;
  float sum = from[shares.first_slot * BM * BN];
#pragma unroll 8
  for (long long part = shares.first + 1; part <= shares.last; ++part) sum += from[part * BM * BN];

  const Place place = place_of(g, g.whole + tile);
  const WarpTile mine = warp_tile();
  const int m = place.m + mine.m + quad(element / TN, 8), n = place.n + mine.n + quad(element % TN, 4);
  if (m >= g.M || n >= g.N) return;
  float v = g.alpha * sum;
  if (g.beta != 0.f) v = fmaf(g.beta, C0[batch_offset(g, g.c0_batch, place.batch) + m * g.c0_row + n * g.c0_col], v);
  C[batch_offset(g, g.c_batch, place.batch) + m * g.ldc + n] = v;
}
