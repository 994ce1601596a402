// 12 warp tile
//
// Idea: the 32 lanes of a warp cover a compact tile, 8 along the rows and 4 along the columns,
//   in an order that lets each pair of lanes share A's float4 and each other pair B's: a
//   fragment read multicasts and never conflicts.
// Removes: a third of the LDS wavefronts: 2.0 a load instead of 3.0.
// Leaves: global loads still pass through registers on their way to shared memory: LDG, four STS
//   to transpose A, and the registers to hold them.
// Measured: 41.83 TFLOPS at 4096 on an H100, 0.809 of cuBLAS, 0.93 times rung 11.

#include "include/rung.cuh"
#include "include/mma/fragment.cuh"
#include "include/mma/warp_tile.cuh"
#include "include/mma/outer_product.cuh"

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int A_LOADS = BM * BK / 4 / THREADS;
constexpr int B_LOADS = BK * BN / 4 / THREADS;
constexpr int A_ROWS = THREADS / (BK / 4);
constexpr int B_ROWS = THREADS / (BN / 4);

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm_12_warp_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N,
                   int K, long long lda, long long ldb, long long ldc, float alpha, float beta) {
  extern __shared__ __align__(16) float shared[];
  auto As = reinterpret_cast<float(*)[BK][BM + 4]>(shared);               // buffer, k, row
  auto Bs = reinterpret_cast<float(*)[BK][BN]>(shared + 2 * BK * (BM + 4));  // buffer, k, column

  const Tile tile = block_tile(N);
  const WarpTile mine = warp_tile();
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

  float af[2][TM], bf[2][TN];
  auto load = [&](int slot, int buffer, int k) {
    load_fragment(af[slot], &As[buffer][k][mine.m], 8);
    load_fragment(bf[slot], &Bs[buffer][k][mine.n], 4);
  };
  float acc[TM][TN] = {};

  if (K > 0) {
    fetch(0);
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
        load((k + 1) % 2, now, k + 1);
      } else if (more) {
        put(now ^ 1);
        __syncthreads();
        load((k + 1) % 2, now ^ 1, 0);
      }
      outer_product(acc, af[k % 2], bf[k % 2]);
    }
  }

  each_quad([&](int i, int j) {
    const int m = tile.m + mine.m + quad(i, 8), n = tile.n + mine.n + quad(j, 4);
    if (ALIGNED || m < M) store4(C + m * ldc + n, &acc[i][j], N - n, alpha, beta);
  });
}
