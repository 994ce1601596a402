// 00 naive, uncoalesced
//
// Idea: one thread computes one element of C; neighbouring lanes take neighbouring rows.
// Removes: nothing: this is where everyone starts.
// Leaves: every load of A touches 32 rows, so 32 sectors of 32 bytes for 128 useful bytes, and
//   so does the store. 17.3 M sectors at 256x256x256, against 2.6 M in rung 01.
// Measured: 0.50 TFLOPS at 4096 on an H100, 0.010 of cuBLAS.

#include "include/rung.cuh"

extern "C" __global__ void __launch_bounds__(BM * BN)
sgemm_00_naive(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N, int K,
               long long lda, long long ldb, long long ldc, float alpha, float beta) {
  const Tile tile = block_tile(N);
  const int m = tile.m + threadIdx.x % BM;  // neighbouring lanes: neighbouring rows, ldc apart
  const int n = tile.n + threadIdx.x / BM;
  if (!ALIGNED && (m >= M || n >= N)) return;

  const float* a = A + m * lda;
  const float* b = B + n;
  float acc = 0.f;
  for (int k = 0; k < K; ++k) acc = fmaf(a[k], b[k * ldb], acc);
  store(C + m * ldc + n, acc, alpha, beta);
}
