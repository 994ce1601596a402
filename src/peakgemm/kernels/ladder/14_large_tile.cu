#include "common/tile.cuh"
#include "common/epilogue.cuh"
#include "common/fragment.cuh"
#include "common/warp_tile.cuh"
#include "common/cp_async.cuh"
#include "common/outer_product.cuh"
#include "common/multistage.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm_14_large_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N,
                  int K, long long lda, long long ldb, long long ldc, float alpha, float beta) {
  const Tile tile = raster_tile(M, N);
  const WarpTile mine = warp_tile();
  float acc[TM][TN] = {};
  multistage(acc, A, B, M, N, K, lda, ldb, tile, mine);

#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int m = tile.m + mine.m + quad(i, 8);
    if (!ALIGNED && m >= M) continue;
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int n = tile.n + mine.n + quad(j, 4);
      if (ALIGNED || n < N) store(C + m * ldc + n, acc[i][j], alpha, beta);
    }
  }
}
