// FP32 products on Hopper's tensor cores: sums of products of split operands.
//
// Idea: the tensor cores multiply exactly and add badly (they truncate), so they only ever add one chunk of K; each
//   chunk's sum is scaled and added up in FP32 registers, rounded to nearest. Products with a second or third
//   plane have accumulators of their own, added first.
// One thread copies panels of split operands (split.cu) into a ring of stages, a bulk copy each; two warpgroups
//   multiply, 64 x 128 each, and take turns at the tensor cores while the other one adds up.
// A half tile for whose data the split is too coarse (guard.cuh) is computed with FFMAs instead.

#include "common/gemm.cuh"
#include "common/cp_async.cuh"
#include "common/bulk.cuh"
#include "common/dependents.cuh"
#include "common/mbarrier.cuh"
#include "common/cluster.cuh"
#include "common/narrow.cuh"
#include "common/split_panel.cuh"
#include "common/wgmma.cuh"
#include "common/guard.cuh"
#include "common/ieee_tile.cuh"

constexpr int STAGE = 2 * HALF;        // half a chunk of A, then of B
constexpr int SLOTS = STAGES / 2 + 1;  // for a chunk's scales, read until the products of the next one have begun
constexpr int SCALE_BYTES = ROWS * 4;  // of one operand's chunk
constexpr int GROUPS = BM / 64;        // warpgroups that multiply
constexpr int COMPUTE = GROUPS * 128;
constexpr bool TWICE = VARIANT & 1;    // products of first planes are added up twice a chunk
constexpr int PATIENCE = 20000;        // cycles that a copying thread waits for the others
static_assert(GROUPS == 2 && STAGES % 2 == 0, "a chunk is two stages");
static_assert(BM == ROWS && BN == ROWS && BM == 2 * IEEE_ROWS && BN == IEEE_COLUMNS, "one panel of each operand");

// The blocks of a cluster lie one below the other: see place_of.
__device__ __forceinline__ Place cluster_place(const Gemm& g, int tile) {
  const int across = (g.N + BN - 1) / BN, down = (g.M + CLUSTER * BM - 1) / (CLUSTER * BM);
  const int batch = tile / (across * down);
  tile -= batch * across * down;
  const int group = tile / (RASTER * across);
  const int inside = tile - group * RASTER * across;
  const int height = min(RASTER, down - group * RASTER);
  return {batch, ((group * RASTER + inside % height) * CLUSTER + cluster_rank()) * BM, inside / height * BN};
}

// Planes p of A and q of B, the k-th 32 bytes of their rows (descriptors count 16 bytes).
template <bool ADD>
__device__ __forceinline__ void multiply(float (&d)[ACCUMULATORS], unsigned long long a, int p, unsigned long long b,
                                         int q, int k) {
  wgmma<ADD>(d, a + (p * PLANE >> 4) + 2 * k, b + (q * PLANE >> 4) + 2 * k);
}

// A stage's products of first planes, added to `d` or, without ADD, by themselves.
template <bool ADD>
__device__ __forceinline__ void multiply_high(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b) {
  multiply<ADD>(d, a, 0, b, 0, 0);
  multiply<true>(d, a, 0, b, 0, 1);
}

// And all others, the smallest first.
template <bool ADD>
__device__ __forceinline__ void multiply_low(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (PLANES == 3) {
      if (k) multiply<true>(d, a, 2, b, 2, k);
      else multiply<ADD>(d, a, 2, b, 2, k);
      multiply<true>(d, a, 1, b, 2, k);
      multiply<true>(d, a, 2, b, 1, k);
      multiply<true>(d, a, 0, b, 2, k);
      multiply<true>(d, a, 2, b, 0, k);
      multiply<true>(d, a, 1, b, 1, k);
      multiply<true>(d, a, 0, b, 1, k);
    } else {
      if (k) multiply<true>(d, a, 0, b, 1, k);
      else multiply<ADD>(d, a, 0, b, 1, k);
    }
    multiply<true>(d, a, 1, b, 0, k);
  }
}

// sum += scale_i scale_j part, with the scales of a chunk.
__device__ __forceinline__ void promote(float (&sum)[ACCUMULATORS], const float (&part)[ACCUMULATORS],
                                        const char* scales, int row, int column) {
  const float* const rows = reinterpret_cast<const float*>(scales) + row;
  const float* const columns = reinterpret_cast<const float*>(scales) + ROWS + column;
  const float top = rows[0], bottom = rows[8];
#pragma unroll
  for (int i = 0; i < ACCUMULATORS / 4; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(columns + 8 * i);
    sum[4 * i] = fmaf(part[4 * i], top * scale.x, sum[4 * i]);
    sum[4 * i + 1] = fmaf(part[4 * i + 1], top * scale.y, sum[4 * i + 1]);
    sum[4 * i + 2] = fmaf(part[4 * i + 2], bottom * scale.x, sum[4 * i + 2]);
    sum[4 * i + 3] = fmaf(part[4 * i + 3], bottom * scale.y, sum[4 * i + 3]);
  }
}

// The warpgroups take turns at the tensor cores. Without, the hardware deals instructions evenly, both end at the
// same time and the tensor cores wait while both add up.
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(COMPUTE) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(3 - group), "n"(COMPUTE) : "memory");
}

// All blocks' copying threads: where blocks drift apart along K they no longer find each other's panels in L2
// (16384: 155 GB from memory instead of 26). Nothing depends on it, so nobody waits for ever.
__device__ __forceinline__ void meet(unsigned* met, unsigned all) {
  atomicAdd(met, 1);
  const long long begin = clock64();
  while (*reinterpret_cast<volatile unsigned*>(met) < all && clock64() - begin < PATIENCE) {
  }
}

extern "C" __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1) __cluster_dims__(CLUSTER, 1, 1)
tensor_product(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, char* workspace,
               const __grid_constant__ Emulated e) {
  extern __shared__ __align__(1024) char ring[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES + 4];
  __shared__ int verdicts[2];  // of the guard, for this tile and the next
  const Gemm& g = e.g;
  Progress* const progress = reinterpret_cast<Progress*>(workspace);
  const char* const all_a = panels_a(e, workspace);
  const char* const all_b = panels_b(e, workspace);
  char* const all_scales = ring + STAGES * STAGE;
  const unsigned first_stage = shared_address(ring), first_scales = shared_address(all_scales);
  const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
  if (threadIdx.x < STAGES) {
    mbarrier_init(full + 8 * threadIdx.x, 1);
    mbarrier_init(empty + 8 * threadIdx.x, COMPUTE / 32 * CLUSTER);
  }
  const unsigned told = empty + 8 * STAGES, heard = told + 16;
  if (threadIdx.x < 2) {
    mbarrier_init(told + 8 * threadIdx.x, 1);
    mbarrier_init(heard + 8 * threadIdx.x, COMPUTE / 32);
  }
  cluster_meets();
  previous_kernel_has_ended();

  const int chunks = chunks_of(g);
  int stage = 0;
  unsigned parity = 0;
  auto step = [&] {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  };

  if (threadIdx.x >= COMPUTE) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");  // a block shares out the 168 x 384 that it begins with
    if (threadIdx.x == COMPUTE) {
      int slot = 0;
      unsigned meetings = 0;
      for (int item = blockIdx.x / CLUSTER; item < g.whole; item += gridDim.x / CLUSTER) {
        const Place place = cluster_place(g, item);
        const char* a = panel_of(all_a, split_matrix(g, e.a_step, place.batch), place.m, g.M, chunks, 0);
        const char* b = panel_of(all_b, split_matrix(g, e.b_step, place.batch), place.n, g.N, chunks, 0);
        // A meeting is for as long as all blocks have a tile.
        if (e.meet && item + (gridDim.x - blockIdx.x + CLUSTER - 1) / CLUSTER <= g.whole)
          meet(&progress->met, ++meetings * gridDim.x);
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll 1
          for (int half = 0; half < 2; ++half) {
            mbarrier_wait(empty + 8 * stage, parity ^ 1);
            const unsigned to = first_stage + stage * STAGE, barrier = full + 8 * stage;
            bulk_expect(barrier, 2 * HALF + (half ? 0 : 2 * SCALE_BYTES));
            if (half == 0) {
              const unsigned scales = first_scales + slot * 2 * SCALE_BYTES;
              bulk_load(scales, a + SCALES, SCALE_BYTES, barrier);
              bulk_load(scales + SCALE_BYTES, b + SCALES, SCALE_BYTES, barrier);
              if (++slot == SLOTS) slot = 0;
            }
            bulk_load(to, a + half * HALF, HALF, barrier);
            if (CLUSTER == 1) {
              bulk_load(to + HALF, b + half * HALF, HALF, barrier);
            } else {  // each block fetches a part for all
              const int part = HALF / CLUSTER * cluster_rank();
              bulk_multicast(to + HALF + part, b + half * HALF + part, HALF / CLUSTER, barrier);
            }
            step();
          }
          a += PANEL_PITCH;
          b += PANEL_PITCH;
        }
      }
    }
    if (threadIdx.x / 32 == COMPUTE / 32 + 1) {  // another warp is the guard, a tile ahead at most
      int turn = 0;
      for (int item = blockIdx.x / CLUSTER; item < g.whole; item += gridDim.x / CLUSTER, ++turn) {
        const Place place = cluster_place(g, item);
        const char* a = panel_of(all_a, split_matrix(g, e.a_step, place.batch), place.m, g.M, chunks, 0);
        const char* b = panel_of(all_b, split_matrix(g, e.b_step, place.batch), place.n, g.N, chunks, 0);
        const int broken = broken_halves(a, b, chunks, g.K);
        mbarrier_wait(heard + 8 * (turn % 2), turn / 2 % 2 ^ 1);
        if (threadIdx.x % 32 == 0) {
          verdicts[turn % 2] = broken;
          mbarrier_arrive(told + 8 * (turn % 2));
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    const int row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    float sum[ACCUMULATORS], high[ACCUMULATORS], low[ACCUMULATORS];
    int slot = 0, turn = 0;
    if (group == 1) pass_turn(1);
    for (int item = blockIdx.x / CLUSTER; item < g.whole; item += gridDim.x / CLUSTER, ++turn) {
      const Place place = cluster_place(g, item);
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = 0.f;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const char* const scales = all_scales + slot * 2 * SCALE_BYTES;
        if (++slot == SLOTS) slot = 0;
        unsigned long long a[2], b[2];
        const unsigned read = empty + 8 * stage;  // both stages' barriers: a chunk's stages are neighbours
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          mbarrier_wait(full + 8 * stage, parity);
          const unsigned at = first_stage + stage * STAGE;
          a[half] = matrix_descriptor(at + group * 64 * 64);
          b[half] = matrix_descriptor(at + HALF);
          step();
        }
        take_turn(group);
        wgmma_fence();
        if (TWICE) {  // the first time under way
          multiply_high<false>(high, a[0], b[0]);
          wgmma_commit();
          multiply_low<false>(low, a[0], b[0]);
          multiply_low<true>(low, a[1], b[1]);
          wgmma_commit();
          wgmma_wait<1>();
          promote(sum, high, scales, row, column);
          wgmma_fence();
          multiply_high<false>(high, a[1], b[1]);
        } else {
          multiply_low<false>(low, a[0], b[0]);
          multiply_low<true>(low, a[1], b[1]);
          multiply_high<false>(high, a[0], b[0]);
          multiply_high<true>(high, a[1], b[1]);
        }
        wgmma_commit();
        if (group == 0 || chunk + 1 < chunks || item + gridDim.x / CLUSTER < g.whole) pass_turn(group);
        wgmma_wait<0>();
        __syncwarp();
        if (lane < 2 * CLUSTER) cluster_arrive(read + 8 * (lane % 2), lane / 2);
#pragma unroll
        for (int i = 0; i < ACCUMULATORS; ++i) high[i] = fmaf(low[i], 1.f / LOW_SCALE, high[i]);
        promote(sum, high, scales, row, column);
      }
      float* const c = C + batch_offset(g, g.c_batch, place.batch);
      const float* const c0 = C0 + batch_offset(g, g.c0_batch, place.batch);
      mbarrier_wait(told + 8 * (turn % 2), turn / 2 % 2);
      const bool broken = verdicts[turn % 2] >> group & 1;
      __syncwarp();
      if (lane == 0) mbarrier_arrive(heard + 8 * (turn % 2));
      if (broken) {
        if (place.m + 64 * group >= g.M) continue;
        float* const staging = reinterpret_cast<float*>(all_scales + SLOTS * 2 * SCALE_BYTES) + group * IEEE_FLOATS;
        ieee_tile(A + batch_offset(g, g.a_batch, place.batch), B + batch_offset(g, g.b_batch, place.batch), c0, c, e,
                  place.m + 64 * group, place.n, staging, group, threadIdx.x % 128);
        if (threadIdx.x % 128 == 0) atomicAdd(&progress->rerouted, 1);
        continue;
      }
      const bool pairs = g.ldc % 2 == 0 && reinterpret_cast<unsigned long long>(c) % 8 == 0;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const long long y = place.m + row + 8 * r;
        if (y >= g.M) continue;
#pragma unroll
        for (int i = 0; i < ACCUMULATORS / 4; ++i) {
          const long long x = place.n + column + 8 * i;
          float2 v = make_float2(g.alpha * sum[4 * i + 2 * r], g.alpha * sum[4 * i + 2 * r + 1]);
          if (g.beta != 0.f) {
            if (x < g.N) v.x = fmaf(g.beta, c0[y * g.c0_row + x * g.c0_col], v.x);
            if (x + 1 < g.N) v.y = fmaf(g.beta, c0[y * g.c0_row + (x + 1) * g.c0_col], v.y);
          }
          float* const to = c + y * g.ldc + x;
          if (pairs && x + 1 < g.N) {
            *reinterpret_cast<float2*>(to) = v;
          } else {
            if (x < g.N) to[0] = v.x;
            if (x + 1 < g.N) to[1] = v.y;
          }
        }
      }
    }
  }
  cluster_meets();  // no block leaves while another may still arrive at its barriers
}
