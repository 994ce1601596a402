// 03 shared tile, with bank conflicts
//
// Idea: the block copies a 32x32 tile of A and of B into shared memory and reads each element 32
//   times. Both tiles lie with k innermost, as a dot product suggests.
// Removes: reuse left to the cache: 0.125 bytes per FLOP asked of global memory, 32 times less
//   than rung 01.
// Leaves: lanes read Bs 32 words apart, all in one bank: 17 wavefronts per LDS on average
//   (4,456,448 for 262,144 loads at 256x256x256), and the transposing store conflicts too. That
//   makes it slower than rung 02.
// Measured: 1.71 TFLOPS at 4096 on an H100, 0.033 of cuBLAS, 0.09 times rung 02.

#include "include/rung.cuh"

extern "C" __global__ void __launch_bounds__(BM * BN)
sgemm_03_shared_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N,
                     int K, long long lda, long long ldb, long long ldc, float alpha, float beta) {
  __shared__ float As[BM][BK];  // row, k
  __shared__ float Bs[BN][BK];  // column, k: lanes of a warp sit BK = 32 words apart, all in one bank
  static_assert(BM == BK && BN == BK, "a thread copies one element of each tile");

  const Tile tile = block_tile(N);
  const int ty = threadIdx.x / BN;
  const int tx = threadIdx.x % BN;
  const int m = tile.m + ty;
  const int n = tile.n + tx;

  float acc = 0.f;
  for (int k0 = 0; k0 < K; k0 += BK) {
    As[ty][tx] = ALIGNED || (m < M && k0 + tx < K) ? A[m * lda + k0 + tx] : 0.f;
    Bs[tx][ty] = ALIGNED || (n < N && k0 + ty < K) ? B[(k0 + ty) * ldb + n] : 0.f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) acc = fmaf(As[ty][k], Bs[tx][k], acc);
    __syncthreads();
  }
  if (ALIGNED || (m < M && n < N)) store(C + m * ldc + n, acc, alpha, beta);
}
