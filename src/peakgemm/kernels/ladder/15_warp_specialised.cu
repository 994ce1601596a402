// 15 warp specialised
//
// Idea: warps that only compute, and warps that only copy. One thread asks the copy engine (TMA)
//   for whole boxes of A and B, stages ahead; zeros arrive where a box passes the edge, so
//   nobody tests bounds. The stages of the ring have mbarriers in the place of a block's
//   barrier, and setmaxnreg deals the registers anew: 40 for a copying thread, 232 for a
//   computing one. The engine cannot transpose. Read along K, as it lies, A has register bank
//   conflicts: ptxas keeps four k-steps of a row in a quad of registers. So three warps
//   transpose its box in shared memory. Operands that no map can describe (addresses or pitches
//   that are no multiples of 16 bytes) come by cp.async.
// Removes: copies, their addresses and predicates from the computing warps, which issue LDS,
//   FFMA and one wait a tile of K (94 % FFMA), and the barrier at which eight warps waited for
//   the slowest.
// Leaves: register banks, 1.01 modelled cycles an FFMA. The first boxes and the stores of C, 16
//   sectors for 32 words, while the SM computes nothing. And large tiles want large problems, as
//   in rung 14.
// Measured: 50.23 TFLOPS at 4096 on an H100, 0.972 of cuBLAS, 0.98 times rung 14.

#include "include/copy/panel.cuh"
#include "include/epilogue/store_words.cuh"
#include "include/mma/warp_tile.cuh"
#include "include/ptx/bulk.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/rung.cuh"

// What the computing warps read, k outermost: rows of BM + 4 floats, and of BN.
using PanelA = Panel<true, 1, BM>;
using PanelB = Panel<false, 1, BN>;
constexpr int COMPUTE = (BM / TM) * (BN / TN);
constexpr int TRANSPOSERS = PRODUCERS / 32 - 1;  // warps; the last one copies
static_assert(COMPUTE == 256 && PRODUCERS == 128, "registers are dealt to whole warpgroups");

// A stage: A's box as it arrives, B's, and A transposed.
constexpr int ROW = 4 * BK;  // bytes of a row of A's box, and the span of its swizzle
constexpr int BOX_A = BM * ROW, BOX_B = 4 * PanelB::FLOATS;
constexpr int B_AT = BOX_A, A_AT = BOX_A + BOX_B;
constexpr int STAGE = (A_AT + 4 * PanelA::FLOATS + 1023) / 1024 * 1024;  // a swizzle repeats every 1024 bytes at most

// A warp takes four k-steps of all rows, a lane a row: LDS.128 along K and four STS along M, none of which conflict.
// (Four rows a lane and STS.128 want half the instructions, but pin quads of registers so that ptxas gives the whole
// kernel a worse allocation: 1.75 modelled cycles an FFMA.)
__device__ __forceinline__ void transpose(char* stage, int warp, int lane) {
#pragma unroll 1
  for (int chunk = warp; chunk < BK / 4; chunk += TRANSPOSERS) {
    const int from = lane * ROW + chunk * 16;
    const char* const row = stage + (from ^ (from >> 3 & (ROW - 1) & ~15));
    float* const to = reinterpret_cast<float*>(stage + A_AT) + chunk * 4 * PanelA::PITCH + lane;
#pragma unroll 4
    for (int m = 0; m < BM; m += 32) {
      const float4 v = *reinterpret_cast<const float4*>(row + m * ROW);
      to[m] = v.x;
      to[m + PanelA::PITCH] = v.y;
      to[m + 2 * PanelA::PITCH] = v.z;
      to[m + 3 * PanelA::PITCH] = v.w;
    }
  }
}

// The last parameters of the aligned compilation, which alone has operands that a map can describe.
#if ALIGNED
#define TENSOR_MAPS , const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b
#else
#define TENSOR_MAPS
#endif

extern "C" __global__ void __launch_bounds__(COMPUTE + PRODUCERS, MIN_BLOCKS)
sgemm_15_warp_specialised(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int M, int N,
                  int K, long long lda, long long ldb, long long ldc, float alpha, float beta TENSOR_MAPS) {
  extern __shared__ __align__(1024) char ring[];
  // Per stage: A's box has landed; the stage is full, transposed A and B; the computing warps have read it.
  const unsigned stages = shared_address(ring), landed = stages + STAGES * STAGE;
  const unsigned full = landed + 8 * STAGES, empty = full + 8 * STAGES;
  if (threadIdx.x < STAGES) {
    mbarrier_init(landed + 8 * threadIdx.x, 1);
    mbarrier_init(full + 8 * threadIdx.x, ALIGNED ? 1 + TRANSPOSERS : PRODUCERS);
    mbarrier_init(empty + 8 * threadIdx.x, COMPUTE / 32);
    fence_for_copies();
  }
  __syncthreads();

  const Tile tile = raster_tile(M, N);
  const int lane = threadIdx.x % 32;
  int tiles = (K + BK - 1) / BK;
  unsigned at = 0, barrier = full, parity = 0;  // of the stage in turn
  auto step = [&] {
    at += STAGE, barrier += 8;
    if (barrier == empty) at = 0, barrier = full, parity ^= 1;
  };

  if (threadIdx.x >= COMPUTE) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const int thread = threadIdx.x - COMPUTE;
#if ALIGNED
    const int warp = thread / 32;
    if (warp < TRANSPOSERS) {
#pragma unroll 1
      for (; tiles > 0; --tiles) {
        mbarrier_wait(barrier - 8 * STAGES, parity);
        transpose(ring + at, warp, lane);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(barrier);
        step();
      }
    } else if (lane == 0) {
#pragma unroll 1
      for (int k = 0; k < K; k += BK) {
        mbarrier_wait(barrier + 8 * STAGES, parity ^ 1);
        bulk_expect(barrier - 8 * STAGES, BOX_A);
        tensor_load(stages + at, map_a, tile.m, k, barrier - 8 * STAGES);
        bulk_expect(barrier, BOX_B);
        tensor_load(stages + at + B_AT, map_b, k, tile.n, barrier);
        step();
      }
    }
#else
    PanelA a(stages + A_AT, thread);
    PanelB b(stages + B_AT, thread);
    a.start(A, lda, tile.m, M, 0);
    b.start(B, ldb, tile.n, N, 0);
    const bool inside_a = tile.m + BM <= M, inside_b = tile.n + BN <= N;
#pragma unroll 1
    for (int left = K; left > 0; left -= BK) {
      mbarrier_wait(barrier + 8 * STAGES, parity ^ 1);
      a.copy<true>(at, inside_a, min(left, BK));
      b.copy<true>(at, inside_b, min(left, BK));
      mbarrier_arrive_after_copies(barrier);
      a.advance();
      b.advance();
      step();
    }
    copies_wait_all();
#endif
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
  const WarpTile mine = warp_tile();
  const char* const first_a = ring + A_AT + 4 * mine.m;
  const char* const first_b = ring + B_AT + 4 * mine.n;
  float acc[TM][TN] = {}, af[2][TM], bf[2][TN];
  auto load = [&](int slot, int k) {
#pragma unroll
    for (int j = 0; j < TN; j += 4)
      *reinterpret_cast<float4*>(&bf[slot][j]) =
          *reinterpret_cast<const float4*>(first_b + at + 4 * (k * PanelB::PITCH + quad(j, 4)));
#pragma unroll
    for (int i = 0; i < TM; i += 4)
      *reinterpret_cast<float4*>(&af[slot][i]) =
          *reinterpret_cast<const float4*>(first_a + at + 4 * (k * PanelA::PITCH + quad(i, 8)));
  };

  if (tiles > 0) {
    mbarrier_wait(barrier, parity);
    load(0, 0);
  }
#pragma unroll 1
  for (; tiles > 0; --tiles) {
    const unsigned read = barrier + 8 * STAGES;
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      if (k + 1 == BK) {
        if (tiles > 1) step();  // after the last tile there is none: read this one again rather than branch
        mbarrier_wait(barrier, parity);
      }
      load((k + 1) % 2, (k + 1) % BK);
      // Columns, up one and down the next, and the first one up: of the walks the one with the fewest bank conflicts.
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int s = 0; s < TM; ++s) {
          const int i = j % 2 ? s : TM - 1 - s;
          acc[i][j] = fmaf(af[k % 2][i], bf[k % 2][j], acc[i][j]);
        }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(read);
  }
  store_words<false>(acc, C, ldc, tile.m + mine.m, tile.n + mine.n, M, N, alpha, beta);
}
