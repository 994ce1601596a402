// FP32 products on Hopper's tensor cores, split on the way: one kernel, for small and for narrow products.
//
// Idea: as in product.cu, but eight warps read A and B as they are, split them and store the planes where the tensor cores
//   read them: no split pass, and no panels written to memory and read again. Every block splits its operands
//   anew, so this pays where an operand is read by few blocks, or where a pass of its own takes as long as
//   the product.
// The splitting warps are the guard, too; a half tile for whose data the split is too coarse is computed with FFMAs
//   instead. Tiles are shared along K as in product.cu; reduce.cu adds up.

#include "common/gemm.cuh"
#include "common/anew.cuh"
#include "common/cp_async.cuh"
#include "common/dependents.cuh"
#include "common/bulk.cuh"
#include "common/mbarrier.cuh"
#include "common/narrow.cuh"
#include "common/split_panel.cuh"
#include "common/wgmma.cuh"
#include "common/guard.cuh"
#include "common/splitter.cuh"
#include "common/output.cuh"
#include "common/ieee_tile.cuh"
#include "common/tensor_tile.cuh"

constexpr int STAGE = 4 * HALF;      // a chunk of A, then of B
constexpr int SCALE_FLOATS = 2 * ROWS;  // of a chunk: of rows of A, then of columns of B
constexpr int SPLITTER_REGISTERS = (65536 - COMPUTE * REGISTERS) / PRODUCERS;
static_assert(COMPUTE + PRODUCERS == 512, "all of an SM's registers are dealt");
constexpr int VERDICTS = STAGES + 1;  // segments that can be under way: a splitting warp is STAGES chunks ahead at most

extern "C" __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1)
tensor_fused(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, char* workspace,
             const __grid_constant__ Emulated e) {
  extern __shared__ __align__(1024) char ring[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  __shared__ int verdicts[VERDICTS][SPLIT_WARPS];  // halves of a tile that are to be rerouted
  __shared__ __align__(16) unsigned lossy[STAGES][SPLIT_WARPS];  // see split_chunk
  const Gemm& g = e.g;
  float* const all_scales = reinterpret_cast<float*>(ring + STAGES * STAGE);
  const unsigned first_stage = shared_address(ring), first_scales = first_stage + STAGES * STAGE;
  const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
  if (threadIdx.x < STAGES) {
    mbarrier_init(full + 8 * threadIdx.x, SPLIT_WARPS);
    mbarrier_init(empty + 8 * threadIdx.x, COMPUTE / 32);
  }
  __syncthreads();

  const int chunks = chunks_of(g), items = g.whole + g.parts, lane = threadIdx.x % 32;
  int stage = 0, turn = 0;
  unsigned parity = 0;
  auto step = [&] {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  };

  if (threadIdx.x >= COMPUTE) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SPLITTER_REGISTERS));
    const int warp = (threadIdx.x - COMPUTE) / 32;
    Part<!TRANS_A, WIDTH_A, ROWS / SPLIT_WARPS> a(warp, lane);
    Part<TRANS_B, WIDTH_B, BN / SPLIT_WARPS> b(warp, lane);
    next_kernel_may_start();
    for (int work = first_work(); work < 2 * items; work = next_work(work)) {
      Segment s;
      if (!segment_of(g, chunks, work / 2, work % 2, s)) continue;
      const Place place = place_of(g, s.tile);
      a.start(A + batch_offset(g, g.a_batch, place.batch), e.a_row, e.a_col, place.m, g.M, s.begin * CHUNK);
      b.start(B + batch_offset(g, g.b_batch, place.batch), e.b_row, e.b_col, place.n, g.N, s.begin * CHUNK);
      Findings found;
      previous_kernel_has_ended();
      a.fetch(g.K - s.begin * CHUNK);
      b.fetch(g.K - s.begin * CHUNK);
      const int end = min(g.K, s.end * CHUNK);
      auto stored = [&] {
        fence_for_async_proxy();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(full + 8 * stage);
        step();
      };
#pragma unroll 1
      for (int k = s.begin * CHUNK + CHUNK;; k += CHUNK) {
        mbarrier_wait(empty + 8 * stage, parity ^ 1);
        split_chunk(a, b, first_stage + stage * STAGE, first_scales + stage * SCALE_FLOATS * 4,
                    shared_address(&lossy[stage][warp]), found, k < end ? g.K - k : 0);
        if (k >= end) break;
        stored();
      }
      segment_of(g, chunks, anew(work) / 2, anew(work) % 2, s);  // again, for want of registers
      const Place here = place_of(g, s.tile);
      const bool few_a = sparse(a, A + batch_offset(g, g.a_batch, here.batch), e.a_row, e.a_col, here.m, g.K,
                                s.slot < 0);
      const bool few_b = sparse(b, B + batch_offset(g, g.b_batch, here.batch), e.b_row, e.b_col, here.n, g.K,
                                s.slot < 0);
      const bool all = __any_sync(~0u, found.broken()) || few_b;
      if (lane == 0) verdicts[turn % VERDICTS][warp] = all ? 3 : few_a ? (warp < SPLIT_WARPS / 2 ? 1 : 2) : 0;
      ++turn;
      stored();  // the last chunk, and with it the verdict
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that descriptors are made in uniform registers
  const int row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  float* const staging = all_scales + STAGES * SCALE_FLOATS + group * IEEE_FLOATS;
  int left = 0;  // chunks that this block still has
  for (int item = blockIdx.x; item < items; item += gridDim.x)
    left += item < g.whole ? chunks : static_cast<int>(part_begin(g, item - g.whole + 1) -
                                                       part_begin(g, item - g.whole));
  next_kernel_may_start();
  previous_kernel_has_ended();
  if (group == 1) pass_turn(1);
  for (int work = first_work(); work < 2 * items; work = next_work(work)) {
    Segment s;
    if (!segment_of(g, chunks, work / 2, work % 2, s)) continue;
    float sum[ACCUMULATORS];
    int broken = 0;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = 0.f;
#pragma unroll 1
    for (int then = left - (s.end - s.begin); left > then;) {
      mbarrier_wait(full + 8 * stage, parity);
      const unsigned at = first_stage + stage * STAGE;
      unsigned long long a[2], b[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[half] = matrix_descriptor(at + half * HALF + group * 64 * 64);
        b[half] = matrix_descriptor(at + (2 + half) * HALF);
      }
      take_turn(group);
      const bool more = --left > 0;
      add_chunk(
          sum, a, b, all_scales + stage * SCALE_FLOATS, row, column,
          [=] {
            if (more || group == 0) pass_turn(group);
          },
          [] {});
      unsigned any = 0;
#pragma unroll
      for (int warp = 0; warp < SPLIT_WARPS; ++warp) any |= lossy[stage][warp];
      if (__builtin_expect(any != 0, 0))
        broken |= !lossy_chunk_holds(ring + stage * STAGE, all_scales + stage * SCALE_FLOATS, lossy[stage], group)
                  << group;
      __syncwarp();
      if (lane == 0) mbarrier_arrive(empty + 8 * stage);
      step();
    }
#pragma unroll
    for (int warp = 0; warp < SPLIT_WARPS; ++warp) broken |= verdicts[turn % VERDICTS][warp];
    ++turn;
    segment_of(g, chunks, anew(work) / 2, anew(work) % 2, s);  // again, for want of registers
    const Place place = place_of(g, s.tile);
    const Output out(g, place, C0, C, reinterpret_cast<float*>(workspace + e.partial_offset), s.slot);
    // Every tile's mark is written by whoever has its first k-steps: nobody has set them to zero before.
    int* const marks = reinterpret_cast<int*>(workspace + WORKSPACE_HEAD) + 2 * s.tile;
    broken = broken >> group & 1;
    if (threadIdx.x % 128 == 0 && s.begin == 0) marks[group] = broken && IEEE_ROWS * group < out.rows;
    if (broken) {
      reroute(A, B, out, e, place, s, staging, group);
      continue;
    }
    store_sums(sum, out, staging + threadIdx.x / 32 % 4 * (IEEE_FLOATS / 4), threadIdx.x / 32 * 16, lane);
  }
}
