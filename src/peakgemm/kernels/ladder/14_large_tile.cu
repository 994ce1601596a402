// 14 large thread tile
//
// Idea: 8x16 outputs a thread, 128x256 (or 256x128) a block, blocks walked in groups of rows so
//   that what runs at the same time shares its operands in L2. The epilogue stores scalars with
//   alpha applied, which leaves ptxas free in where it puts the accumulators: float4 stores
//   would force them into quads, and every FFMA of a quad would read two registers of one bank.
// Removes: a quarter of the LDS per FFMA (128 FFMA per six LDS.128) and a quarter of the global
//   traffic.
// Leaves: one block of eight warps per SM: two warps a scheduler hide little, and a 35 KB loop
//   strains the instruction cache (stall: no instruction, 0.07). And large tiles need large
//   problems: at 1024 there are 32 blocks for 132 SMs, and rung 06 with its 256 is the fastest.
// Measured: 51.35 TFLOPS at 4096 on an H100, 0.994 of cuBLAS, 1.01 times rung 13.

#include "include/epilogue/store_words.cuh"
#include "include/mma/multistage.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm_14_large_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N,
                  int K, long long lda, long long ldb, long long ldc, float alpha, float beta) {
  const Tile tile = raster_tile(M, N);
  const WarpTile mine = warp_tile();
  float acc[TM][TN] = {};
  multistage(acc, A, B, M, N, K, lda, ldb, tile, mine);
  store_words<ALIGNED>(acc, C, ldc, tile.m + mine.m, tile.n + mine.n, M, N, alpha, beta);
}
