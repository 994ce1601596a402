// Adds up the partial sums of the tiles whose K several blocks have shared.
//
// In the order of K, whichever block was first: the same bits every time, and no float atomics. A thread takes four
// neighbours of a row, so that C is written by whole sectors, or one where there are few tiles and many parts. A block
// takes the same place of the thread tiles, as the kernel that wrote them held them.

#include "include/copy/edge.cuh"
#include "include/epilogue/epilogue.cuh"
#include "include/epilogue/partial_sums.cuh"
#include "include/mma/fragment.cuh"
#include "include/mma/warp_tile.cuh"
#include "include/ptx/dependents.cuh"
#include "include/scheduler/shares.cuh"

template <int WORDS>
__device__ __forceinline__ void add_up(const float* C0, float* C, const float* partial, const Gemm& g) {
  constexpr int BLOCKS = TM * TN / WORDS;  // of a tile
  const int steps = (g.K + BK - 1) / BK;
  const int tile = blockIdx.x / BLOCKS, element = blockIdx.x % BLOCKS * WORDS;
  const Shares shares(g, steps, tile);
  const Place place = place_of(g, g.whole + tile);
  const WarpTile mine = warp_tile();
  const int m = first_row(g, place) + mine.m + quad(element / TN, 8);
  const int n = first_column(g, place) + mine.n + quad(element % TN, 4);
  previous_kernel_has_ended();
  if (shares.whole || !between(place.m, m, g.M) || n >= g.N || n + WORDS <= place.n) return;
  const float* const from = partial + element * THREADS + threadIdx.x;
  auto load = [&](long long slot) {
    Sums<WORDS> sums;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) sums.of[w] = from[slot * BM * BN + w * THREADS];
    return sums;
  };
  Sums<WORDS> sum = load(shares.first_slot);
  add_parts(sum, shares.last - shares.first, [&](int i) { return load(shares.first + 1ll + i); });

  const float* const c0 = C0 + batch_offset(g, g.c0_batch, place.batch) + m * g.c0_row + n * g.c0_col;
  float* const c = C + batch_offset(g, g.c_batch, place.batch) + m * g.ldc + n;
  auto inside = [&](int w) { return between(place.n, n + w, g.N) && in_triangle(m, n + w); };
  scale(sum.of, g.alpha, g.beta, inside, [&](int w) { return c0 + w * g.c0_col; });
  if (WORDS == 4 && !TRIANGLE && n >= place.n && n + WORDS <= g.N && reinterpret_cast<unsigned long long>(c) % 16 == 0) {
    *reinterpret_cast<Sums<WORDS>*>(c) = sum;
  } else {
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
      if (inside(w)) c[w] = sum.of[w];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
ffma_reduce(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
            const float* __restrict__ partial, const __grid_constant__ Gemm g) {
  next_kernel_may_start();
  if (gridDim.x == g.shared * TM * TN) add_up<1>(C0, C, partial, g);
  else add_up<4>(C0, C, partial, g);
}
