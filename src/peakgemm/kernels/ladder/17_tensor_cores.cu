// 17 tensor cores
//
// Idea: FP32 accuracy from FP16 tensor cores, in one kernel. A power of two per row of A, per column of B and per 64
//   of K scales the elements; FP16's nearest h and the rest (x - h) 2^11, FP16 again, hold 22 bits of one, so
//   three products of halves make a product of floats. The tensor cores multiply exactly but cut their sums
//   off, so they add up 64 of K and no more; FP32 registers add those up, rounded to nearest. Four warps
//   load, split and store the operands as wgmma reads them, and two warpgroups of 64x128 take turns at
//   the tensor cores: one multiplies while the other adds up.
// Removes: the FP32 peak. Of a product's 64 FFMA along 64 of K two remain, to add up; three FP16 products in the place
//   of one allow 16/3 times the FFMA units' rate.
// Leaves: every block splits its operands anew, an element N/128 or M/128 times, and the stores of the halves take
//   shared memory's time from the tensor cores. From some size on a pass that splits once, and copies that need no
//   threads, are worth their workspace. Nothing is promised for infinities, NaN and elements below 2^-27 of
//   the largest beside them: the library's kernels look for those.
// Measured: 62.87 TFLOPS at 4096 on an H100, 1.168 of cuBLAS, 1.16 times rung 16.

#undef SCHEME  // the included files serve other splits too
#define SCHEME FP16X3

#include "include/rung.cuh"
#include "include/ptx/cp_async.cuh"
#include "include/ptx/bulk.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/split/narrow.cuh"
#include "include/ptx/wgmma_fences.cuh"
#include "include/ptx/wgmma.cuh"
#include "include/split/split_tile.cuh"

constexpr int COMPUTE = (BM / TM) * (BN / TN);
constexpr int THREADS = COMPUTE + PRODUCERS;
constexpr int POOL = 65536 / THREADS / 8 * 8 * THREADS;  // registers that the launch gives a block
constexpr int LOADER_REGISTERS = (POOL - COMPUTE * REGISTERS) / PRODUCERS / 8 * 8;
static_assert(BM == 128 && BN == 128 && BK == 64 && COMPUTE == 256 && PRODUCERS == 128, "two warpgroups and a third");

// The twelve products of a chunk for 64 rows: `low` gets those with a second half, which are 2^11 too large.
__device__ __forceinline__ void multiply(float (&high)[ACCUMULATORS], float (&low)[ACCUMULATORS], unsigned a,
                                         unsigned b) {
  const unsigned long long a0 = matrix_descriptor(a), b0 = matrix_descriptor(b);
  // Second halves lie one plane on; a k-step is 32 bytes, and each half of the chunk two planes. Units of 16 bytes.
  constexpr int SECOND = PLANE / 16, STEP = 2;
  wgmma<false>(low, a0, b0 + SECOND);
  wgmma<true>(low, a0 + SECOND, b0);
#pragma unroll
  for (int k = 1; k < 4; ++k) {
    const int at = k / 2 * 2 * SECOND + k % 2 * STEP;
    wgmma<true>(low, a0 + at, b0 + at + SECOND);
    wgmma<true>(low, a0 + at + SECOND, b0 + at);
  }
  wgmma<false>(high, a0, b0);
#pragma unroll
  for (int k = 1; k < 4; ++k) {
    const int at = k / 2 * 2 * SECOND + k % 2 * STEP;
    wgmma<true>(high, a0 + at, b0 + at);
  }
}

// Only one warpgroup at a time issues, so that one adds up while the other one multiplies.
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(COMPUTE) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(2 - group), "n"(COMPUTE) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm_17_tensor_cores(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N,
                  int K, long long lda, long long ldb, long long ldc, float alpha, float beta) {
  extern __shared__ __align__(1024) char ring[];
  char* const all_scales = ring + STAGES * STAGE;
  const unsigned full = shared_address(all_scales + STAGES * SCALES), empty = full + 8 * STAGES;
  if (threadIdx.x < STAGES) {
    mbarrier_init(full + 8 * threadIdx.x, PRODUCERS / 32);
    mbarrier_init(empty + 8 * threadIdx.x, COMPUTE / 32);
  }
  __syncthreads();

  const Tile tile = raster_tile(M, N);
  const int chunks = (K + BK - 1) / BK, lane = threadIdx.x % 32;
  int stage = 0;
  unsigned parity = 0;
  auto step = [&] {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  };

  if (threadIdx.x >= COMPUTE) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
    const int warp = (threadIdx.x - COMPUTE) / 32;
    Loader loader(A, B, M, N, lda, ldb, tile, warp, lane);
    if (chunks > 0) loader.fetch_b(K);
#pragma unroll 1
    for (int left = K; left > 0; left -= BK) {
      char* const to = ring + stage * STAGE;
      float* const scales = reinterpret_cast<float*>(all_scales + stage * SCALES);
      mbarrier_wait(empty + 8 * stage, parity ^ 1);
      loader.split_chunk(to, scales, left);
      fence_for_async_proxy();
      __syncwarp();
      if (lane == 0) mbarrier_arrive(full + 8 * stage);
      step();
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so descriptors are made in uniform registers
  const int row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  float sum[ACCUMULATORS], high[ACCUMULATORS], low[ACCUMULATORS];
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = 0.f;
  if (group == 1 && chunks > 0) pass_turn(1);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const unsigned at = shared_address(ring) + stage * STAGE;
    mbarrier_wait(full + 8 * stage, parity);
    take_turn(group);
    wgmma_fence();
    multiply(high, low, at + group * 64 * ROW, at + B_PLANES);
    wgmma_commit();
    if (group == 0 || chunk + 1 < chunks) pass_turn(group);
    wgmma_wait<0>();
    const float* const scales = reinterpret_cast<const float*>(all_scales + stage * SCALES);
    const float top = scales[row], bottom = scales[row + 8];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS / 4; ++i) {
      const float2 scale = *reinterpret_cast<const float2*>(scales + BM + column + 8 * i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float both = fmaf(low[4 * i + e], 1.f / LOW_SCALE, high[4 * i + e]);
        sum[4 * i + e] = fmaf(both, (e < 2 ? top : bottom) * (e % 2 ? scale.y : scale.x), sum[4 * i + e]);
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * stage);
    step();
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const long long m = tile.m + row + 8 * r;
    if (!ALIGNED && m >= M) continue;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS / 4; ++i) {
      const int n = tile.n + column + 8 * i;
      float* const c = C + m * ldc + n;
      const float* const acc = &sum[4 * i + 2 * r];
#if ALIGNED
      float2 v = make_float2(alpha * acc[0], alpha * acc[1]);
      if (beta != 0.f) {
        const float2 old = *reinterpret_cast<const float2*>(c);
        v = make_float2(fmaf(beta, old.x, v.x), fmaf(beta, old.y, v.y));
      }
      *reinterpret_cast<float2*>(c) = v;
#else
      if (n < N) store(c, acc[0], alpha, beta);
      if (n + 1 < N) store(c + 1, acc[1], alpha, beta);
#endif
    }
  }
}
