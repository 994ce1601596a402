// 02 register tile
//
// Idea: a thread computes a tile of outputs from float4 loads straight from global memory; no
//   shared memory. Four steps of k at a time: TM float4 of A, four rows of B. Configurations:
//   4x4, 8x8, 8x8 in four passes over K (each pass computes one 4x4 quadrant), 8x8 with the next
//   fragments loaded ahead.
// Removes: most loads: 8 LDG.128 for 64 FFMA in the 4x4 tile, where rung 01 has two loads an
//   FFMA.
// Leaves: every thread of a row loads the same A, every thread of a column the same B: the L1
//   cache does what shared memory should. 1 byte per FLOP of the 4x4 tile.
// Measured: 18.95 TFLOPS at 4096 on an H100, 0.364 of cuBLAS, 3.11 times rung 01.

#include "include/rung.cuh"

// A pass computes PM x PN of the thread's TM x TN outputs, all at once or in four quarters.
constexpr int PM = PASSES == 4 ? TM / 2 : TM;
constexpr int PN = PASSES == 4 ? TN / 2 : TN;

// Four steps of k: PM rows of A and four rows of B, all as float4.
struct Fragment {
  float4 a[PM];
  float4 b[4][PN / 4];
};

extern "C" __global__ void __launch_bounds__((BM / TM) * (BN / TN))
sgemm_02_register_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N,
                       int K, long long lda, long long ldb, long long ldc, float alpha, float beta) {
  const Tile tile = block_tile(N);
  const int ty = threadIdx.x / (BN / TN);
  const int tx = threadIdx.x % (BN / TN);

  auto load = [&](Fragment& f, int m, int n, int k) {
#pragma unroll
    for (int i = 0; i < PM; ++i) f.a[i] = load4(A + (m + i) * lda + k, m + i, M, K - k);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk)
#pragma unroll
      for (int j = 0; j < PN / 4; ++j) {
        const int column = n + j * (BN / TN) * 4;  // lanes of a row stay neighbours in every float4
        f.b[kk][j] = load4(B + (k + kk) * ldb + column, k + kk, K, N - column);
      }
  };

#pragma unroll 1
  for (int pass = 0; pass < PASSES; ++pass) {
    const int m = tile.m + ty * TM + (pass / 2) * PM;
    const int n = tile.n + tx * 4 + (pass % 2) * (BN / 2);
    float acc[PM][PN] = {};

    auto multiply = [&](const Fragment& f) {
#pragma unroll
      for (int kk = 0; kk < 4; ++kk)
#pragma unroll
        for (int i = 0; i < PM; ++i)
#pragma unroll
          for (int j = 0; j < PN; ++j)
            acc[i][j] = fmaf(reinterpret_cast<const float*>(&f.a[i])[kk],
                             reinterpret_cast<const float*>(&f.b[kk][j / 4])[j % 4], acc[i][j]);
    };

    Fragment now, next;
    if (FRAGMENTS == 2 && K > 0) load(now, m, n, 0);
    for (int k = 0; k < K; k += 4) {
      if (FRAGMENTS == 2) {  // the loads of the next step are in flight during the arithmetic of this one
        if (k + 4 < K) load(next, m, n, k + 4);
        multiply(now);
        now = next;
      } else {
        load(now, m, n, k);
        multiply(now);
      }
    }

#pragma unroll
    for (int i = 0; i < PM; ++i)
#pragma unroll
      for (int j = 0; j < PN; j += 4) {
        const int column = n + (j / 4) * (BN / TN) * 4;
        if (ALIGNED || m + i < M) store4(C + (m + i) * ldc + column, &acc[i][j], N - column, alpha, beta);
      }
  }
}
