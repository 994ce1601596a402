// FP32 products on Hopper's tensor cores: sums of products of split operands.
//
// Idea: the tensor cores multiply exactly and add badly (they truncate), so they only ever add one chunk of K; each
//   chunk's sum is scaled and added up in FP32 registers, rounded to nearest. Products with a second or third
//   plane have accumulators of their own, added first.
// One thread copies panels of split operands (split.cu) into a ring of stages, a bulk copy each; two warpgroups
//   multiply, 64 x 128 each, and take turns at the tensor cores. A chunk's sums are promoted while the next one's
//   corrections are multiplied.
// Of tiles of 64 x 128, for products that have few, both warpgroups have the same rows and every other chunk each: to the
//   tensor cores that is the same, and twice as many SMs have a tile. At its end each gives the other half of its sums.
// A half tile for whose data the split is too coarse (guard.cuh) is computed with FFMAs instead. Tiles that would not
//   fill the GPU's SMs are shared along K: see segment_of, and reduce.cu.

#include "include/copy/ring.cuh"
#include "include/epilogue/warpgroup_store.cuh"
#include "include/mma/ieee_tile.cuh"
#include "include/mma/tensor_tile.cuh"
#include "include/ptx/bulk.cuh"
#include "include/ptx/cluster.cuh"
#include "include/ptx/dependents.cuh"
#include "include/ptx/opaque.cuh"
#include "include/split/guard.cuh"
#include "include/split/lost_bits.cuh"

constexpr int A_HALF = PLANES * A_PLANE;
constexpr int STAGE = A_HALF + HALF;   // half a chunk of A, then of B
using Stages = Ring<STAGE, true>;
// For a chunk's scales, read until the products of its warpgroup's next chunk have begun.
constexpr int SLOTS = STAGES / 2 + (ALTERNATE ? 2 : 1);
constexpr int SCALE_BYTES = (BM + BN) * 4;  // of a chunk: of A's rows, then of B's columns
constexpr int READERS = ALTERNATE ? COMPUTE / 64 : COMPUTE / 32;  // warps, of a stage
constexpr int PATIENCE = 20000;        // cycles that a copying thread waits for the others

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

__device__ __forceinline__ void warpgroups_meet() { asm volatile("bar.sync 1, %0;" ::"n"(COMPUTE) : "memory"); }

// Two warpgroups have sums of the same 64 x 128: each gives the other those of one strip of 64 columns and adds what it is
// given to its own of the other one. By way of 16 KB that both use, one after the other.
__device__ __forceinline__ void exchange(float (&sum)[ACCUMULATORS], float* shared, int group) {
  float4* const mine = reinterpret_cast<float4*>(shared) + threadIdx.x % 128;
#pragma unroll
  for (int strip = 0; strip < 2; ++strip) {
    warpgroups_meet();  // all has been read that was there
    if (group != strip)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float* const part = sum + strip * 32 + 4 * i;
        mine[i * 128] = make_float4(part[0], part[1], part[2], part[3]);
      }
    warpgroups_meet();
    if (group == strip)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 other = mine[i * 128];
        float* const part = sum + strip * 32 + 4 * i;
        part[0] += other.x, part[1] += other.y, part[2] += other.z, part[3] += other.w;
      }
  }
  warpgroups_meet();
}

// A tile's panels of A and of B along K, from chunk `begin` on.
struct Panels {
  const char *a, *b;

  __device__ __forceinline__ Panels(const Emulated& e, const char* all_a, const char* all_b, const Place& place,
                                    int chunks, int begin)
      : a(panel_of(all_a, batch_offset(e.g, e.a_step, place.batch), place.m, e.g.M, chunks, begin)),
        b(panel_of(all_b, batch_offset(e.g, e.b_step, place.batch), place.n, e.g.N, chunks, begin)) {}
};

// One thread: asks for the bulk copies of all stages. `scales`: where chunks' scales go.
__device__ __forceinline__ void produce(const Emulated& e, char* workspace, const char* all_a,
                                        const char* all_b, Stages ring, unsigned first_stage, unsigned all_scales,
                                        int chunks, int items) {
  const Gemm& g = e.g;
  int slot = 0;
  unsigned meetings = 0;
  bool waited = false;
  for_each_work(g, chunks, items, [&](int work, const Segment& s) {
    const Place place = cluster_place(g, s.tile);
    Panels panels(e, all_a, all_b, place, chunks, s.begin);
    const int row = place.m % ROWS;  // of the panel, that the tile begins with
    if (!waited) previous_kernel_has_ended(), waited = true;  // after what takes 0.4 us without it
    // A meeting is for as long as all blocks have a tile.
    if (e.meet && work / 2 + (gridDim.x - blockIdx.x + CLUSTER - 1) / CLUSTER <= g.whole)
      meet(&reinterpret_cast<Progress*>(workspace)->met, ++meetings * gridDim.x);
#pragma unroll 1
    for (int left = s.end - s.begin; left > 0; --left) {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        ring.wait_empty();
        const unsigned to = first_stage + ring.at(), barrier = ring.full();
        bulk_expect(barrier, STAGE + (half ? 0 : SCALE_BYTES));
        if (half == 0) {
          const unsigned scales = all_scales + slot * SCALE_BYTES;
          bulk_load(scales, panels.a + SCALES + 4 * row, BM * 4, barrier);
          bulk_load(scales + BM * 4, panels.b + SCALES, BN * 4, barrier);
          if (++slot == SLOTS) slot = 0;
        }
        if (ALTERNATE) {
#pragma unroll
          for (int plane = 0; plane < PLANES; ++plane)
            bulk_load(to + plane * A_PLANE, panels.a + half * HALF + plane * PLANE + 64 * row, A_PLANE, barrier);
        } else {
          bulk_load(to, panels.a + half * HALF, HALF, barrier);
        }
        if (CLUSTER == 1) {
          bulk_load(to + A_HALF, panels.b + half * HALF, HALF, barrier);
        } else {  // each block fetches a part for all
          const int part = HALF / CLUSTER * cluster_rank();
          bulk_multicast(to + A_HALF + part, panels.b + half * HALF + part, HALF / CLUSTER, barrier);
        }
        ring.step();
      }
      panels.a += PANEL_PITCH;
      panels.b += PANEL_PITCH;
    }
  });
}

// Of a tile of each turn, and of the next: what the guard says, and barriers that it has, and that all have read it.
struct Verdicts {
  int* verdicts;
  unsigned ready, read;

  __device__ __forceinline__ void say(int turn, int broken) const {
    mbarrier_wait(read + 8 * (turn % 2), turn / 2 % 2 ^ 1);
    if (threadIdx.x % 32 == 0) {
      verdicts[turn % 2] = broken;
      mbarrier_arrive(ready + 8 * (turn % 2));
    }
  }

  __device__ __forceinline__ int hear(int turn, int lane) const {
    mbarrier_wait(ready + 8 * (turn % 2), turn / 2 % 2);
    const int verdict = verdicts[turn % 2];
    __syncwarp();
    if (lane == 0) mbarrier_arrive(read + 8 * (turn % 2));
    return verdict;
  }
};

// One warp, a tile ahead at most. Of the whole tile, whatever part of K this block has: all that share it must come to
// the same verdict, but for LOST_BITS, which each follows up in its own part.
__device__ __forceinline__ void guard(const Emulated& e, const char* all_a, const char* all_b,
                                      const Verdicts& verdicts, int chunks, int items) {
  int turn = 0;
  previous_kernel_has_ended();
  for_each_work(e.g, chunks, items, [&](int, const Segment& s) {
    const Panels panels(e, all_a, all_b, cluster_place(e.g, s.tile), chunks, 0);
    verdicts.say(turn++, broken_halves(panels.a, panels.b, chunks, e.g.K));
  });
}

// The other warpgroups: products of stages, and the end of each tile. `lost`: each warp's, where bits were lost.
__device__ __forceinline__ void consume(const float* A, const float* B, const float* C0, float* C, const Emulated& e,
                                        char* workspace, const char* all_a, const char* all_b, Stages ring,
                                        unsigned first_stage, char* all_scales, const Verdicts& verdicts, int* lost,
                                        int chunks, int items) {
  const Gemm& g = e.g;
  const int lane = threadIdx.x % 32, group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const int first = (ALTERNATE ? threadIdx.x / 32 % 4 : threadIdx.x / 32) * 16;  // of a warp's rows
  const int row = first + lane / 4, column = lane % 4 * 2;
  float sum[ACCUMULATORS], rest[ACCUMULATORS];
  int slot = 0, turn = 0, left = chunks_left(g, chunks, items);
  int whose = 0;  // ALTERNATE: the next one
  previous_kernel_has_ended();
  if (group == 1) pass_turn(1);
  for_each_work(g, chunks, items, [&](int work, Segment s) {
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = rest[i] = 0.f;
    const float* last = reinterpret_cast<const float*>(all_scales + slot * SCALE_BYTES);  // of no products yet
    Factors factors = {0.f, 0.f};
#pragma unroll 1
    for (int then = left - (s.end - s.begin); left > then;) {
      const float* const scales = reinterpret_cast<const float*>(all_scales + slot * SCALE_BYTES);
      if (++slot == SLOTS) slot = 0;
      if (ALTERNATE && (whose ^= 1) == group) {  // it was the other one's
        ring.step();
        ring.step();
        --left;
        continue;
      }
      unsigned long long a[2], b[2];
      const unsigned read = ring.empty();  // both stages' barriers: a chunk's stages are neighbours
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ring.wait_full();
        const unsigned at = first_stage + ring.at();
        a[half] = matrix_descriptor(ALTERNATE ? at : at + group * 64 * 64);
        b[half] = matrix_descriptor(at + A_HALF);
        ring.step();
      }
      take_turn(group);
      const bool more = --left > 0;
      add_chunk(
          sum, rest, a, b, last, factors, scales, row, column,
          [=] {
            if (more || (group == 0 && !ALTERNATE)) pass_turn(group);
          },
          [=] {
            __syncwarp();
            if (lane < 2 * CLUSTER) cluster_arrive(read + 8 * (lane % 2), lane / 2);
          });
      last = scales;
    }
    if (LATER) promote(sum, rest, factors, last, row, column);
    const int verdict = verdicts.hear(turn++, lane);
    segment_of(g, chunks, opaque(work) / 2, opaque(work) % 2, s);  // again, for want of registers
    const Place place = cluster_place(g, s.tile);
    const bool wholly = verdict >> (ALTERNATE ? place.m / 64 % 2 : group) & 1;
    bool broken = wholly;
    if (!wholly && verdict & LOST_BITS) {
      const Panels panels(e, all_a, all_b, place, chunks, 0);
      const int middle = (s.begin + s.end) / 2;
      const int begin = ALTERNATE && group ? middle : s.begin, end = ALTERNATE && !group ? middle : s.end;
      const bool holds = lossy_sums_hold(panels.a, panels.b, begin, end, (ALTERNATE ? place.m % ROWS : 0) + first);
      if (lane == 0) lost[threadIdx.x / 32] = !holds;
      if (ALTERNATE) warpgroups_meet();
      else warpgroup_meets(group);
#pragma unroll
      for (int warp = 0; warp < (ALTERNATE ? 8 : 4); ++warp) broken |= lost[ALTERNATE ? warp : 4 * group + warp];
      if (ALTERNATE) warpgroups_meet();  // before one of them writes the next tile's
    }
    const Output out(g, place, C0, C, reinterpret_cast<float*>(workspace + e.partial_offset), s.slot);
    float* const staging = reinterpret_cast<float*>(all_scales + SLOTS * SCALE_BYTES) + group * IEEE_FLOATS;
    if (broken) {
      if (ALTERNATE && group == 1) return;
      reroute(A, B, out, e, place, s, staging, group);
      // Of a tile or, where bits were lost, of a part of its K.
      if (threadIdx.x % 128 == 0 && (s.begin == 0 || !wholly) && 64 * group < out.rows)
        atomicAdd(&reinterpret_cast<Progress*>(workspace)->rerouted, 1);
      return;
    }
    if (ALTERNATE) exchange(sum, staging - group * IEEE_FLOATS, group);
    store_sums(sum, out, staging + threadIdx.x / 32 % 4 * (IEEE_FLOATS / 4), first, lane, ALTERNATE ? group : 0);
  });
}

extern "C" __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1) __cluster_dims__(CLUSTER, 1, 1)
tensor_product(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, char* workspace,
               const __grid_constant__ Emulated e) {
  extern __shared__ __align__(1024) char stages[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES + 4];
  __shared__ int verdicts[2];
  __shared__ int lost[COMPUTE / 32];
  Stages ring(barriers);
  ring.init(1, READERS * CLUSTER);
  const unsigned ready = ring.end + 8 * STAGES;
  const Verdicts verdict = {verdicts, ready, ready + 16};
  if (threadIdx.x < 2) {
    mbarrier_init(verdict.ready + 8 * threadIdx.x, 1);
    mbarrier_init(verdict.read + 8 * threadIdx.x, COMPUTE / 32);
  }
  cluster_meets();
  next_kernel_may_start();

  const char* const all_a = panels_a(e, workspace);
  const char* const all_b = panels_b(e, workspace);
  char* const all_scales = stages + STAGES * STAGE;
  const unsigned first_stage = shared_address(stages);
  const int chunks = chunks_of(e.g), items = e.g.whole + e.g.parts;
  if (threadIdx.x >= COMPUTE) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");  // a block shares out the 168 x 384 that it begins with
    if (threadIdx.x == COMPUTE)
      produce(e, workspace, all_a, all_b, ring, first_stage, shared_address(all_scales), chunks, items);
    if (threadIdx.x / 32 == COMPUTE / 32 + 1) guard(e, all_a, all_b, verdict, chunks, items);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    consume(A, B, C0, C, e, workspace, all_a, all_b, ring, first_stage, all_scales, verdict, lost, chunks, items);
  }
  cluster_meets();  // no block leaves while another may still arrive at its barriers
}
