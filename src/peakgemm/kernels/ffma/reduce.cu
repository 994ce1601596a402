// Adds up the partial sums of the tiles whose K several blocks have shared.
//
// In the order of K, whichever block was first: the same bits every time, and no float atomics. A block takes
// one row of the thread tiles (TN elements a thread), as the kernel that wrote them held them.

#include "common/gemm.cuh"
#include "common/fragment.cuh"
#include "common/warp_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
ffma_reduce(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
            const float* __restrict__ partial, const __grid_constant__ Gemm g) {
  const int steps = (g.K + BK - 1) / BK;
  const int tile = blockIdx.x / TM, i = blockIdx.x % TM;
  const long long begin = static_cast<long long>(tile) * steps, total = static_cast<long long>(g.shared) * steps;
  // Range p holds k-step x where p total / parts <= x: the largest such p.
  const int first = static_cast<int>(((begin + 1) * g.parts - 1) / total);
  const int last = static_cast<int>(((begin + steps) * g.parts - 1) / total);
  if (first == last && part_begin(g, steps, first) == begin && part_begin(g, steps, first + 1) == begin + steps)
    return;  // computed whole, and stored

  float sum[TN] = {};
  for (int part = first; part <= last; ++part) {
    const int half = part_begin(g, steps, part) < begin;
    const long long slot = half ? part + g.parts : part;
    const float* from = partial + slot * BM * BN + i * TN * THREADS + threadIdx.x;
#pragma unroll
    for (int j = 0; j < TN; ++j) sum[j] += from[j * THREADS];
  }
  const Place place = place_of(g, g.whole + tile);
  const WarpTile mine = warp_tile();
  const int m = place.m + mine.m + quad(i, 8);
  if (m >= g.M) return;
  float* const c = C + batch_offset(g, g.c_batch, place.batch) + m * g.ldc;
  const float* const c0 = C0 + batch_offset(g, g.c0_batch, place.batch) + m * g.c0_row;
#pragma unroll
  for (int j = 0; j < TN; ++j) {
    const int n = place.n + mine.n + quad(j, 4);
    if (n < g.N) {
      float v = g.alpha * sum[j];
      if (g.beta != 0.f) v = fmaf(g.beta, c0[n * g.c0_col], v);
      c[n] = v;
    }
  }
}
