// FP32 products on Hopper's tensor cores, A split on the way, in the registers of the threads that multiply.
//
// Idea: as in product.cu, but A has not been split before. wgmma takes A from registers, so a warpgroup reads its rows
//   of A as they are, scales and splits them in the very registers from which they are multiplied: no pass over A, no
//   panels of A in memory, and shared memory is read once for each chunk of A instead of three times.
// B comes from the panels of a split pass or, compiled with SPLIT_B, is split by the warps that copy A: one kernel, and
//   nothing in memory but the operands, which pays where B is read by few blocks or a pass takes as long as the product.
// TRANS_C, it is asked for C^T, so that op(B) is what is split in registers: whichever operand is the larger one.
// Two warpgroups multiply 64 rows by 64 columns at a time, and take turns: one has the tensor cores while the other
//   splits.
// They are the guard, too, by A's elements and what they are told of B: the summaries of its panels, or what those have
//   seen who split it. A half tile for whose data the split is too coarse is computed with FFMAs instead. Tiles are
//   shared along K as in product.cu; reduce.cu adds up.

#include "include/copy/prefetch.cuh"
#include "include/copy/ring.cuh"
#include "include/epilogue/warpgroup_store.cuh"
#include "include/mma/ieee_tile.cuh"
#include "include/mma/strips.cuh"
#include "include/ptx/dependents.cuh"
#include "include/split/streamed_guard.cuh"

// What an SM's registers leave to a producer when those who multiply have taken theirs.
constexpr int DEALT = 65536 / (COMPUTE + PRODUCERS) / 8 * 8 * (COMPUTE + PRODUCERS);
constexpr int PRODUCER_REGISTERS = (DEALT - COMPUTE * REGISTERS) / PRODUCERS / 8 * 8;

using Stages = Ring<PITCH, true>;
using Rows = RowsInRegisters<!TRANS_A, WIDTH_A>;
using RowLines = Lines<!TRANS_A, WIDTH_A>;

// The last PRODUCERS threads: rows of A as they are, and B's planes, to stages and tails.
__device__ __forceinline__ void produce(const float* A, const float* B, const Emulated& e, char* workspace, Stages ring,
                                        unsigned first_stage, int chunks, int items) {
  const Gemm& g = e.g;
  const int helper = (threadIdx.x - COMPUTE) / COPIERS, thread = threadIdx.x % COPIERS;
  Right right(thread);
  int slot = helper, past = 0;  // chunks of this block, modulo HELPERS
  for (int i = 0; i < helper; ++i) ring.step();
  for_each_work(g, chunks, items, [&](int work, const Segment& s) {
    const int begin = s.begin + (helper + HELPERS - past) % HELPERS;
    past = (past + s.end - s.begin) % HELPERS;
    if (begin >= s.end) return;
    const Place place = place_of(g, s.tile);
    const long long before = batch_offset(g, g.a_batch, place.batch) + place.m * e.a_row +
                             static_cast<long long>(begin) * CHUNK * e.a_col;
    RowCopies<!TRANS_A, WIDTH_A> rows(A + before, g.M - place.m, before);
    right.start(B, workspace, e, place, begin);
    if (work == static_cast<int>(2 * blockIdx.x))
      into_l2<COPIERS, !TRANS_A, BM, CHUNK, WIDTH_A == 1>(A + before, TRANS_A ? e.a_col : e.a_row, g.M - place.m,
                                                          g.K - begin * CHUNK, thread);
    previous_kernel_has_ended();
    right.ask(e, begin);
#pragma unroll 1
    for (int chunk = begin; chunk < s.end; chunk += HELPERS) {
      ring.wait_empty();
      const unsigned to = first_stage + ring.at();
      const auto bring = [&] {
        right.bring(to + A_BYTES, first_stage + RING + slot * B_TAIL, ring.full(), e, chunk, s.end);
      };
      if (!SPLIT_B) bring();  // whatever only asks for copies comes first
      rows.copy(to, g.K - chunk * CHUNK, thread, e);
      mbarrier_arrive_after_copies(ring.full());
      if (SPLIT_B) bring();
#pragma unroll
      for (int i = 0; i < HELPERS; ++i) {
        ring.step();
        if (++slot == SLOTS) slot = 0;
      }
    }
  });
}

// Splits the rows of a chunk in the stage `at`, scaled anew where they must be. `told`: what its tail says of B.
// `hold`: whether the split does still; `asked`: ASKED where elements have lost bits, and Rows::marks.
__device__ __forceinline__ void split_rows(Rows& a, RightSeen& right, unsigned at, const int4& told, int depth,
                                           float (&sum)[ACCUMULATORS], bool& hold, unsigned& asked) {
  bool over, lossy;
  asked = 0;
  hold = right.holds(told, depth, lossy) && hold;
  while (__any_sync(~0u, a.split(at, over) || lossy)) {
    int zeros[2];
    bool small[2];
    a.look(at, zeros, small);
    const bool any_small = __any_sync(~0u, small[0] || small[1]);
    if (__any_sync(~0u, over || any_small || a.pending) && a.scale_anew(at, small, sum)) continue;
    a.missing[0] += zeros[0], a.missing[1] += zeros[1];
    if (any_small || lossy) asked = ASKED | a.marks(small, lossy);
    break;
  }
}

// Whether a row of A that this thread has, or a column of B, has fewer elements that are not zero than a split is good
// for.
__device__ __forceinline__ bool too_few_elements(const Rows& a, const RightSeen& right, const float* A,
                                                 const Emulated& e, char* workspace, const Place& place,
                                                 const Segment& s, int chunks) {
  const Gemm& g = e.g;
  bool broken = right.sparse(e, workspace, place);
  // Of k-steps past the end of K there may be copies (RowCopies): so many may have been counted too many.
  const bool copied = TRANS_A || next_row_follows(e, g.M - place.m);
  const int copies = copied && s.end == chunks ? chunks * CHUNK - g.K : 0;
  if (__any_sync(~0u, copies | a.missing[0] | a.missing[1])) {
    int count[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      count[r] = 16 * (s.end - s.begin) - a.missing[r];
      count[r] += __shfl_xor_sync(~0u, count[r], 1);
      count[r] += __shfl_xor_sync(~0u, count[r], 2);
      count[r] = a.outside[r] || count[r] == 0 ? 0 : max(count[r] - copies, 1);
    }
    const int row = place.m + threadIdx.x / 32 * 16;
    broken |= sparse_rows(count, A + batch_offset(g, g.a_batch, place.batch) + row * e.a_row, e,
                          s.end - s.begin == chunks && !copies);
  }
  return broken;
}

// Whether any warp of the warpgroup says so. `verdicts`: one for each warp.
__device__ __forceinline__ bool warpgroup_agrees(bool broken, int* verdicts, int group) {
  broken = __any_sync(~0u, broken);
  if (threadIdx.x % 32 == 0) verdicts[threadIdx.x / 32] = broken;
  warpgroup_meets(group);
  broken = false;
#pragma unroll
  for (int warp = 0; warp < 4; ++warp) broken |= verdicts[4 * group + warp];
  return broken;
}

// The other warpgroups: products of their rows, the guard, and the end of each tile.
__device__ __forceinline__ void consume(const float* A, const float* B, const float* C0, float* C, const Emulated& e,
                                        char* workspace, Stages ring, char* stages, int (&verdicts)[2][COMPUTE / 32],
                                        int chunks, int items) {
  const Gemm& g = e.g;
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  char* const all_tails = stages + RING;
  const unsigned first_stage = shared_address(stages);
  float* const staging = reinterpret_cast<float*>(all_tails + SLOTS * B_TAIL) + group * IEEE_FLOATS;
  int slot = 0, turn = 0, left = chunks_left(g, chunks, items);
  previous_kernel_has_ended();
  if (group == 1) pass_turn(1);
  for_each_work(g, chunks, items, [&](int work, Segment s) {
    float sum[ACCUMULATORS];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = 0.f;
    const Place place = place_of(g, s.tile);
    const RowLines lines(A + batch_offset(g, g.a_batch, place.batch) + place.m * e.a_row, TRANS_A ? e.a_col : e.a_row);
    Rows a;
    RightSeen right;
    bool hold = true;
    ring.wait_full();
    a.start(first_stage + ring.at(), lines, row, column, g.M - place.m - row);
    int todo = s.end - s.begin;
    unsigned asked;
    int4 told;
    const auto next = [&] {
      ring.step();
      if (++slot == SLOTS) slot = 0;
      return --todo > 0;
    };
    const auto arrives = [&] {
      const unsigned at = first_stage + ring.at();
      ring.wait_full();
      told = *reinterpret_cast<const int4*>(all_tails + slot * B_TAIL + BN * 4);
      split_rows(a, right, at, told, g.K, sum, hold, asked);
      return !SPLIT_B && __any_sync(~0u, right.one_scale(told));
    };
    // A chunk's products, added to the sums. `alike`: all columns have the scale `common`.
    const auto multiply = [&](bool alike, float common) __attribute__((always_inline)) {
      const bool keep = __any_sync(~0u, asked);  // A as it lies is read again where sums are asked for
      const char* const tail = all_tails + slot * B_TAIL;
      const float* const scales = reinterpret_cast<const float*>(tail) + column;
      take_turn(group);
      multiply_strips(
          a, first_stage + ring.at() + A_BYTES, keep,
          [&](const float (&sums)[STRIP_SUMS], int strip) {  // where a strip's sums are asked for: whether they hold
            const char* const held = stages + ring.at();
            if (hold && keep)
              hold = lossy_sums_hold(sums, strip, held, held + A_BYTES, lines, tail, place.n % ROWS,
                                     g.N - place.n - strip * STRIP, asked);
          },
          [&](const float (&part)[STRIP_SUMS], int strip) {
            promote_strip(sum, part, scales, APIECE ? alike : __any_sync(~0u, alike), common, strip);
          },
          [&] {
            if (--left > 0 || group == 0) pass_turn(group);
          },
          [&] {
            __syncwarp();
            if (lane == 0) mbarrier_arrive(ring.empty());
          });
    };
    for (bool more = true; more;) {
      bool alike;
      if (APIECE) {
#pragma unroll 1
        while (arrives()) {
          multiply(true, right.scale(told));
          more = next();
          if (!more) break;
        }
        if (!more) break;
        alike = false;
      } else {
        alike = arrives();
      }
      multiply(alike, right.scale(told));
      more = next();
    }
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] *= power_of_two(-a.shift[i / 2 % 2]);
    segment_of(g, chunks, opaque(work) / 2, opaque(work) % 2, s);  // again, for want of registers
    const Place here = place_of(g, s.tile);
    const Output out(g, here, C0, C, reinterpret_cast<float*>(workspace + e.partial_offset), s.slot);
    const bool broken = warpgroup_agrees(
        too_few_elements(a, right, A, e, workspace, here, s, chunks) || a.broken || !hold, verdicts[turn++ % 2], group);
    // Every tile's mark is written by whoever has its first k-steps: nobody has set them to zero before.
    int* const marks = reinterpret_cast<int*>(workspace + WORKSPACE_HEAD) + GROUPS * s.tile;
    const bool inside = IEEE_ROWS * group < (TRANS_C ? g.M - here.m : out.rows);
    if (threadIdx.x % 128 == 0 && s.begin == 0) marks[group] = broken && inside;
    if (broken) reroute(A, B, out, e, here, s, staging, group);
    else store_sums(sum, out, staging + threadIdx.x / 32 % 4 * (IEEE_FLOATS / 4), threadIdx.x / 32 * 16, lane);
  });
}

extern "C" __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1)
tensor_streamed(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, char* workspace,
                const __grid_constant__ Emulated e) {
  extern __shared__ __align__(1024) char stages[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  __shared__ int verdicts[2][COMPUTE / 32];
  Stages ring(barriers);
  ring.init(COPIERS + RIGHT_ARRIVALS, COMPUTE / 32);
  __syncthreads();
  next_kernel_may_start();
  const int chunks = chunks_of(e.g), items = e.g.whole + e.g.parts;
  if (threadIdx.x >= COMPUTE) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    produce(A, B, e, workspace, ring, shared_address(stages), chunks, items);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
    consume(A, B, C0, C, e, workspace, ring, stages, verdicts, chunks, items);
  }
}
