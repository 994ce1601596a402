// FP32 products on Hopper's tensor cores: sums of products of split operands.
//
// Idea: the tensor cores multiply exactly and add badly (they truncate), so they only ever add one chunk of K; each
//   chunk's sum is scaled and added up in FP32 registers, rounded to nearest. Products with a second or third
//   plane have accumulators of their own, added first.
// One thread copies panels of split operands (split.cu) into a ring of stages, a bulk copy each; two warpgroups
//   multiply, 64 x 128 each, and take turns at the tensor cores. A chunk's sums are promoted while the next one's
//   corrections are multiplied: 4096 took 733 us then, and 778 before.
// A half tile for whose data the split is too coarse (guard.cuh) is computed with FFMAs instead. Tiles that would not
//   fill the GPU's SMs are shared along K: see segment_of, and reduce.cu.

#include "common/gemm.cuh"
#include "common/anew.cuh"
#include "common/cp_async.cuh"
#include "common/bulk.cuh"
#include "common/dependents.cuh"
#include "common/mbarrier.cuh"
#include "common/cluster.cuh"
#include "common/narrow.cuh"
#include "common/split_panel.cuh"
#include "common/wgmma.cuh"
#include "common/guard.cuh"
#include "common/mma.cuh"
#include "common/lost_bits.cuh"
#include "common/output.cuh"
#include "common/ieee_tile.cuh"
#include "common/tensor_tile.cuh"

constexpr int STAGE = 2 * HALF;        // half a chunk of A, then of B
constexpr int SLOTS = STAGES / 2 + 1;  // for a chunk's scales, read until the products of the next one have begun
constexpr int SCALE_BYTES = ROWS * 4;  // of one operand's chunk
constexpr int PATIENCE = 20000;        // cycles that a copying thread waits for the others
static_assert(STAGES % 2 == 0, "a chunk is two stages");

// The blocks of a cluster lie one below the other.
__device__ __forceinline__ Place cluster_place(const Gemm& g, int tile) {
  const Place first = place_of<CLUSTER * BM>(g, tile);
  return {first.batch, first.m + cluster_rank() * BM, first.n};
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
  __shared__ int lost[COMPUTE / 32];  // each warp's, where bits were lost
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

  const int chunks = chunks_of(g), items = g.whole + g.parts;
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
      for (int work = first_work(); work < 2 * items; work = next_work(work)) {
        Segment s;
        if (!segment_of(g, chunks, work / 2, work % 2, s)) continue;
        const Place place = cluster_place(g, s.tile);
        const char* a = panel_of(all_a, batch_offset(g, e.a_step, place.batch), place.m, g.M, chunks, s.begin);
        const char* b = panel_of(all_b, batch_offset(g, e.b_step, place.batch), place.n, g.N, chunks, s.begin);
        // A meeting is for as long as all blocks have a tile.
        if (e.meet && work / 2 + (gridDim.x - blockIdx.x + CLUSTER - 1) / CLUSTER <= g.whole)
          meet(&progress->met, ++meetings * gridDim.x);
#pragma unroll 1
        for (int left = s.end - s.begin; left > 0; --left) {
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
      for (int work = first_work(); work < 2 * items; work = next_work(work)) {
        Segment s;
        if (!segment_of(g, chunks, work / 2, work % 2, s)) continue;
        // Of the whole tile, whatever part of K this block has: all that share it must come to the same verdict, but for
        // LOST_BITS, which each follows up in its own part.
        const Place place = cluster_place(g, s.tile);
        const char* a = panel_of(all_a, batch_offset(g, e.a_step, place.batch), place.m, g.M, chunks, 0);
        const char* b = panel_of(all_b, batch_offset(g, e.b_step, place.batch), place.n, g.N, chunks, 0);
        const int broken = broken_halves(a, b, chunks, g.K);
        mbarrier_wait(heard + 8 * (turn % 2), turn / 2 % 2 ^ 1);
        if (threadIdx.x % 32 == 0) {
          verdicts[turn % 2] = broken;
          mbarrier_arrive(told + 8 * (turn % 2));
        }
        ++turn;
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    const int lane = threadIdx.x % 32, group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
    float sum[ACCUMULATORS], rest[ACCUMULATORS];
    int slot = 0, turn = 0, left = 0;  // chunks that this block still has
    for (int item = blockIdx.x / CLUSTER; item < items; item += gridDim.x / CLUSTER)
      left += item < g.whole ? chunks : static_cast<int>(part_begin(g, item - g.whole + 1) -
                                                         part_begin(g, item - g.whole));
    if (group == 1) pass_turn(1);
    for (int work = first_work(); work < 2 * items; work = next_work(work)) {
      Segment s;
      if (!segment_of(g, chunks, work / 2, work % 2, s)) continue;
#pragma unroll
      for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = rest[i] = 0.f;
      const float* last = reinterpret_cast<const float*>(all_scales + slot * 2 * SCALE_BYTES);  // of no products yet
      Factors factors = {0.f, 0.f};
#pragma unroll 1
      for (int then = left - (s.end - s.begin); left > then;) {
        const float* const scales = reinterpret_cast<const float*>(all_scales + slot * 2 * SCALE_BYTES);
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
        const bool more = --left > 0;
        add_chunk(
            sum, rest, a, b, last, factors, scales, row, column,
            [=] {
              if (more || group == 0) pass_turn(group);
            },
            [=] {
              __syncwarp();
              if (lane < 2 * CLUSTER) cluster_arrive(read + 8 * (lane % 2), lane / 2);
            });
        last = scales;
      }
      if (LATER) promote(sum, rest, factors, last, row, column);
      mbarrier_wait(told + 8 * (turn % 2), turn / 2 % 2);
      const int verdict = verdicts[turn % 2];
      __syncwarp();
      if (lane == 0) mbarrier_arrive(heard + 8 * (turn % 2));
      ++turn;
      segment_of(g, chunks, anew(work) / 2, anew(work) % 2, s);  // again, for want of registers
      const Place place = cluster_place(g, s.tile);
      const bool wholly = verdict >> group & 1;
      bool broken = wholly;
      if (!wholly && verdict & LOST_BITS) {
        const char* const a = panel_of(all_a, batch_offset(g, e.a_step, place.batch), place.m, g.M, chunks, 0);
        const char* const b = panel_of(all_b, batch_offset(g, e.b_step, place.batch), place.n, g.N, chunks, 0);
        const bool holds = lossy_sums_hold(a, b, s.begin, s.end, threadIdx.x / 32 * 16);
        if (lane == 0) lost[threadIdx.x / 32] = !holds;
        warpgroup_meets(group);
#pragma unroll
        for (int warp = 0; warp < 4; ++warp) broken |= lost[4 * group + warp];
      }
      const Output out(g, place, C0, C, reinterpret_cast<float*>(workspace + e.partial_offset), s.slot);
      float* const staging = reinterpret_cast<float*>(all_scales + SLOTS * 2 * SCALE_BYTES) + group * IEEE_FLOATS;
      if (broken) {
        reroute(A, B, out, e, place, s, staging, group);
        if (threadIdx.x % 128 == 0 && (s.begin == 0 || !wholly) && 64 * group < out.rows)
          atomicAdd(&progress->rerouted, 1);  // of a tile or, where bits were lost, of a part of its K
        continue;
      }
      store_sums(sum, out, staging + threadIdx.x / 32 % 4 * (IEEE_FLOATS / 4), threadIdx.x / 32 * 16, lane);
    }
  }
  cluster_meets();  // no block leaves while another may still arrive at its barriers
}
