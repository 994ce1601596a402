// 11 double-buffered fragments, the template
//
// Idea: the fragments of the next k-step are loaded during the arithmetic of this one. This file
//   is *the* template of the tile table: any BM, BN, BK, TM, TN, double buffering on or off.
//   From here on the outer product is walked in snake order (include/mma/outer_product.cuh).
// Removes: the wait for LDS at the head of each k-step (stall short scoreboard: 1.30 in rung 10,
//   0.31 here).
// Leaves: LDS wavefronts: 3.0 a load, three quarters of what the path to the registers can
//   carry.
// Measured: 44.78 TFLOPS at 4096 on an H100, 0.866 of cuBLAS, 1.06 times rung 10.

#include "include/rung.cuh"
#include "include/mma/fragment.cuh"
#include "include/mma/outer_product.cuh"

// The template of the tile table: any BM, BN, BK, TM, TN, and double buffering (of shared memory
// and of fragments together) on or off.
constexpr bool DOUBLE_BUFFER = STAGES == 2;
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int A_LOADS = BM * BK / 4 / THREADS;  // float4 that a thread copies of each tile of A
constexpr int B_LOADS = BK * BN / 4 / THREADS;
constexpr int A_ROWS = THREADS / (BK / 4);  // rows of A between two copies of a thread
constexpr int B_ROWS = THREADS / (BN / 4);

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm_11_double_fragments(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M,
                          int N, int K, long long lda, long long ldb, long long ldc, float alpha, float beta) {
  extern __shared__ __align__(16) float shared[];
  auto As = reinterpret_cast<float(*)[BK][BM]>(shared);                     // buffer, k, row
  auto Bs = reinterpret_cast<float(*)[BK][BN]>(shared + STAGES * BK * BM);  // buffer, k, column

  const Tile tile = block_tile(N);
  const int ty = threadIdx.x / (BN / TN) * 4;
  const int tx = threadIdx.x % (BN / TN) * 4;
  const int arow = threadIdx.x / (BK / 4), acol = threadIdx.x % (BK / 4) * 4;
  const int brow = threadIdx.x / (BN / 4), bcol = threadIdx.x % (BN / 4) * 4;
  const float* a = A + (tile.m + arow) * lda + acol;
  const float* b = B + brow * ldb + tile.n + bcol;

  float4 anext[A_LOADS], bnext[B_LOADS];
  auto fetch = [&](int k0) {
#pragma unroll
    for (int i = 0; i < A_LOADS; ++i)
      anext[i] = load4(a + k0 + i * A_ROWS * lda, tile.m + arow + i * A_ROWS, M, K - k0 - acol);
#pragma unroll
    for (int i = 0; i < B_LOADS; ++i)
      bnext[i] = load4(b + (k0 + i * B_ROWS) * ldb, k0 + brow + i * B_ROWS, K, N - tile.n - bcol);
  };
  auto put = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < A_LOADS; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        As[buffer][acol + e][arow + i * A_ROWS] = reinterpret_cast<const float*>(&anext[i])[e];
#pragma unroll
    for (int i = 0; i < B_LOADS; ++i) *reinterpret_cast<float4*>(&Bs[buffer][brow + i * B_ROWS][bcol]) = bnext[i];
  };

  float af[FRAGMENTS][TM], bf[FRAGMENTS][TN];
  auto load = [&](int slot, int buffer, int k) {
    load_fragment(af[slot], &As[buffer][k][ty], BM / TM);
    load_fragment(bf[slot], &Bs[buffer][k][tx], BN / TN);
  };
  float acc[TM][TN] = {};

  if (K > 0) fetch(0);
  if constexpr (DOUBLE_BUFFER) {
    if (K > 0) {
      put(0);
      __syncthreads();
      load(0, 0, 0);
    }
    for (int k0 = 0, now = 0; k0 < K; k0 += BK, now ^= 1) {
      const bool more = k0 + BK < K;
      if (more) fetch(k0 + BK);
#pragma unroll
      for (int k = 0; k < BK; ++k) {
        if (k + 1 < BK) {
          load((k + 1) % 2, now, k + 1);  // the fragment of the next step, a whole step ahead
        } else if (more) {
          put(now ^ 1);
          __syncthreads();
          load((k + 1) % 2, now ^ 1, 0);  // BK is even: slot 0 again
        }
        outer_product(acc, af[k % 2], bf[k % 2]);
      }
    }
  } else {
    for (int k0 = 0; k0 < K; k0 += BK) {
      put(0);
      __syncthreads();
      if (k0 + BK < K) fetch(k0 + BK);
#pragma unroll
      for (int k = 0; k < BK; ++k) {
        load(0, 0, k);
        outer_product(acc, af[0], bf[0]);
      }
      __syncthreads();
    }
  }

  each_quad([&](int i, int j) {
    const int m = tile.m + ty + quad(i, BM / TM), n = tile.n + tx + quad(j, BN / TN);
    if (ALIGNED || m < M) store4(C + m * ldc + n, &acc[i][j], N - n, alpha, beta);
  });
}
