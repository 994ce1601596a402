// FP32 products on Hopper's tensor cores, A split on the way, in the registers of the threads that multiply.
//
// Idea: as in product.cu, but A has not been split before. wgmma takes A from registers, so a warpgroup reads its rows
//   of A as they are, scales and splits them in the very registers from which they are multiplied: no pass over A, no
//   panels of A in memory, and shared memory is read once for each chunk of A instead of three times.
// B comes from the panels of a split pass or, compiled with SPLIT_B, is split by the warps that copy A: one kernel, and
//   nothing in memory but the operands, which pays where B is read by few blocks or a pass takes as long as the product.
// TRANS_C, it is asked for C^T, so that op(B) is what is split in registers: whichever operand is the larger one.
// Two warpgroups multiply 64 rows by 64 columns at a time, and take turns: one has the tensor cores while the other
//   splits. What a warpgroup does between its turns takes longer than the other one's turn, so in tiles of 192 rows there
//   are three, which have registers for 32 columns at a time and need no turns: 25088 x 128 x 1152, a tile for each SM,
//   takes 60 us so and 65 by 128 x 128; where those fill the SMs as well they are faster (docs/notebook/16).
// They are the guard, too, by A's elements and what they are told of B: the summaries of its panels, or what those have
//   seen who split it. A half tile for whose data the split is too coarse is computed with FFMAs instead. Tiles are
//   shared along K as in product.cu; reduce.cu adds up.

#include "include/copy/prefetch.cuh"
#include "include/epilogue/warpgroup_store.cuh"
#include "include/mma/strips.cuh"
#include "include/ptx/dependents.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/split/reroute.cuh"
#include "include/split/streamed_guard.cuh"

// What an SM's registers leave to a producer when those who multiply have taken theirs.
constexpr int DEALT = 65536 / (COMPUTE + PRODUCERS) / 8 * 8 * (COMPUTE + PRODUCERS);
constexpr int PRODUCER_REGISTERS = (DEALT - COMPUTE * REGISTERS) / PRODUCERS / 8 * 8;

extern "C" __global__ void __launch_bounds__(COMPUTE + PRODUCERS, 1)
tensor_streamed(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, char* workspace,
                const __grid_constant__ Emulated e) {
  extern __shared__ __align__(1024) char ring[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  __shared__ int verdicts[2][COMPUTE / 32];
  const Gemm& g = e.g;
  char* const all_tails = ring + RING;
  const unsigned first_stage = shared_address(ring), first_tail = first_stage + RING;
  const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
  if (threadIdx.x < STAGES) {
    mbarrier_init(full + 8 * threadIdx.x, COPIERS + RIGHT_ARRIVALS);
    mbarrier_init(empty + 8 * threadIdx.x, COMPUTE / 32);
  }
  __syncthreads();
  next_kernel_may_start();

  const int chunks = chunks_of(g), items = g.whole + g.parts;
  int stage = 0;
  unsigned parity = 0;
  auto step = [&] {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  };

  if (threadIdx.x >= COMPUTE) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
    const int helper = (threadIdx.x - COMPUTE) / COPIERS, thread = threadIdx.x % COPIERS;
    Right right(thread);
    int slot = helper, past = 0;  // chunks of this block, modulo HELPERS
    for (int i = 0; i < helper; ++i) step();
    for (int work = first_work(); work < 2 * items; work = next_work(work)) {
      Segment s;
      if (!segment_of(g, chunks, work / 2, work % 2, s)) continue;
      const int begin = s.begin + (helper + HELPERS - past) % HELPERS;
      past = (past + s.end - s.begin) % HELPERS;
      if (begin >= s.end) continue;
      const Place place = place_of(g, s.tile);
      const long long before = batch_offset(g, g.a_batch, place.batch) + place.m * e.a_row +
                               static_cast<long long>(begin) * CHUNK * e.a_col;
      RowCopies<!TRANS_A, WIDTH_A> rows(A + before, g.M - place.m, before);
      right.start(B, workspace, e, place, begin);
      if (work == first_work())
        into_l2<COPIERS, !TRANS_A, BM, CHUNK, WIDTH_A == 1>(A + before, TRANS_A ? e.a_col : e.a_row, g.M - place.m,
                                                            g.K - begin * CHUNK, thread);
      previous_kernel_has_ended();
      right.ask(e, begin);
#pragma unroll 1
      for (int chunk = begin; chunk < s.end; chunk += HELPERS) {
        mbarrier_wait(empty + 8 * stage, parity ^ 1);
        const unsigned to = first_stage + stage * PITCH, barrier = full + 8 * stage;
        const auto bring = [&] { right.bring(to + A_BYTES, first_tail + slot * B_TAIL, barrier, e, chunk, s.end); };
        if (!SPLIT_B) bring();  // whatever only asks for copies comes first
        rows.copy(to, g.K - chunk * CHUNK, thread, e);
        mbarrier_arrive_after_copies(barrier);
        if (SPLIT_B) bring();
#pragma unroll
        for (int i = 0; i < HELPERS; ++i) {
          step();
          if (++slot == SLOTS) slot = 0;
        }
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  float* const staging = reinterpret_cast<float*>(all_tails + SLOTS * B_TAIL) + group * IEEE_FLOATS;
  int slot = 0, turn = 0, left = 0;  // chunks that this block still has
  for (int item = blockIdx.x; item < items; item += gridDim.x)
    left += item < g.whole ? chunks : static_cast<int>(part_begin(g, item - g.whole + 1) -
                                                       part_begin(g, item - g.whole));
  previous_kernel_has_ended();
  if (group == 1) pass_turn(1);
  for (int work = first_work(); work < 2 * items; work = next_work(work)) {
    Segment s;
    if (!segment_of(g, chunks, work / 2, work % 2, s)) continue;
    float sum[ACCUMULATORS];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = 0.f;
    const Place place = place_of(g, s.tile);
    const Lines<!TRANS_A, WIDTH_A> lines(A + batch_offset(g, g.a_batch, place.batch) + place.m * e.a_row,
                                         TRANS_A ? e.a_col : e.a_row);
    RowsInRegisters<!TRANS_A, WIDTH_A> a;
    RightSeen right;
    bool hold = true;
    mbarrier_wait(full + 8 * stage, parity);
    a.start(first_stage + stage * PITCH, lines, row, column, g.M - place.m - row);
    int todo = s.end - s.begin;
    unsigned asked;  // ASKED where elements of a chunk have lost bits, and RowsInRegisters::marks
    const auto next = [&] {
      step();
      if (++slot == SLOTS) slot = 0;
      return --todo > 0;
    };
    // A chunk's products, added to the sums. `alike`: all columns have the scale `common`.
    const auto multiply = [&](bool alike, float common) __attribute__((always_inline)) {
      const bool keep = __any_sync(~0u, asked);  // A as it lies is read again where sums are asked for
      const char* const tail = all_tails + slot * B_TAIL;
      const float* const scales = reinterpret_cast<const float*>(tail) + column;
      const unsigned at_b = first_stage + stage * PITCH + A_BYTES;
      const unsigned long long b = matrix_descriptor(at_b);
      const auto descriptor = [&](int strip, int plane, int k) {
        return b + (k / 2 * B_HALF + plane * B_PLANE + strip * STRIP * 64 + k % 2 * 32 >> 4);
      };
      const auto multiply_low = [&](float (&sums)[STRIP_SUMS], int strip) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k) wgmma<true>(sums, a.high[k], descriptor(strip, 1, k));
          else wgmma<false>(sums, a.high[k], descriptor(strip, 1, k));
          wgmma<true>(sums, a.low[k], descriptor(strip, 0, k));
        }
      };
      // Where a strip's sums are asked for: whether they hold.
      const auto look_at = [&](const float (&sums)[STRIP_SUMS], int strip) {
        const char* const held = ring + stage * PITCH;
        if (hold && keep)
          hold = lossy_sums_hold(sums, strip, held, held + A_BYTES, lines, tail,
                                 place.n % ROWS, g.N - place.n - strip * STRIP, asked);
      };
      const auto all_is_read = [&] {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
      };
      const auto promote = [&](const float (&part)[STRIP_SUMS], int strip) {
        promote_strip(sum, part, scales, APIECE ? alike : __any_sync(~0u, alike), common, strip);
      };
      take_turn(group);
      wgmma_fence();
      if constexpr (IN_PAIRS) {
        float part[2][STRIP_SUMS];  // of two strips corrections, and then all products
        const auto multiply_high = [&](int strip) {
          float (&sums)[STRIP_SUMS] = part[strip % 2];
#pragma unroll
          for (int i = 0; i < STRIP_SUMS; ++i) {
            sums[i] *= 1.f / LOW_SCALE;
            asm volatile("" : "+f"(sums[i]));  // before the fence
          }
          wgmma_fence();
#pragma unroll
          for (int k = 0; k < 4 / TIMES; ++k) wgmma<true>(sums, a.high[k], descriptor(strip, 0, k));
          wgmma_commit();
        };
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip += 2) {
          // Twice: the last k-steps by themselves first. What is left at the end is of some that a short chunk has, too.
          if (TIMES == 2) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              wgmma<false>(part[i], a.high[3], descriptor(strip + i, 0, 3));
              wgmma<true>(part[i], a.high[2], descriptor(strip + i, 0, 2));
              wgmma_commit();
            }
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (TIMES == 2 || strip) {
              wgmma_wait<1>();
              if (TIMES == 1) look_at(part[i], strip + i - 2);
              promote(part[i], TIMES == 2 ? strip + i : strip + i - 2);
              wgmma_fence();
            }
            multiply_low(part[i], strip + i);
            wgmma_commit();
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            wgmma_wait<1>();
            multiply_high(strip + i);
          }
        }
        if (--left > 0 || group == 0) pass_turn(group);
        wgmma_wait<1>();
        if (TIMES == 2) look_at(part[0], STRIPS - 2);
        if (TIMES == 1 && keep) {  // one place to be jumped over, not two
          wgmma_wait<0>();
#pragma unroll 1
          for (int i = 0; i < 2; ++i) {
            float sums[STRIP_SUMS];
#pragma unroll
            for (int j = 0; j < STRIP_SUMS; ++j) sums[j] = i ? part[1][j] : part[0][j];
            look_at(sums, STRIPS - 2 + i);
          }
        }
        promote(part[0], STRIPS - 2);
        wgmma_wait<0>();
        if (TIMES == 2) look_at(part[1], STRIPS - 1);
        all_is_read();
        promote(part[1], STRIPS - 1);
      } else {
        float high[STRIP_SUMS], low[STRIP_SUMS];
#pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip) {
          const bool last = strip + 1 == STRIPS;
          if (!MEANWHILE) multiply_low(low, strip);
#pragma unroll
          for (int part = 0; part < TIMES; ++part) {
            const bool ends = part + 1 == TIMES;
#pragma unroll
            for (int step = 0; step < 4 / TIMES; ++step) {
              // Parts from the last one on: what is left at the end is of k-steps that a short chunk has, too.
              const int k = TIMES == 1 ? step : 3 - part * (4 / TIMES) - step;
              if (step) wgmma<true>(high, a.high[k], descriptor(strip, 0, k));
              else wgmma<false>(high, a.high[k], descriptor(strip, 0, k));
            }
            wgmma_commit();
            if (MEANWHILE && !ends) {
              multiply_low(low, strip);
              wgmma_commit();
              wgmma_wait<1>();
            } else {
              if (ends && last && (--left > 0 || group == 0)) pass_turn(group);
              wgmma_wait<0>();
            }
            if (ends) {
              look_at(high, strip);
              if (last) all_is_read();
#pragma unroll
              for (int i = 0; i < STRIP_SUMS; ++i) high[i] = fmaf(low[i], 1.f / LOW_SCALE, high[i]);
            }
            promote(high, strip);
            if (!ends || !last) wgmma_fence();
          }
        }
      }
    };
    for (bool more = true; more;) {
      int4 told;
      const auto arrives = [&] {
        const unsigned at = first_stage + stage * PITCH;
        mbarrier_wait(full + 8 * stage, parity);
        told = *reinterpret_cast<const int4*>(all_tails + slot * B_TAIL + BN * 4);
        bool over, lossy;
        asked = 0;
        hold = right.holds(told, g.K, lossy) && hold;
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
        return !SPLIT_B && __any_sync(~0u, right.one_scale(told));
      };
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
    bool broken = a.broken || !hold;
    segment_of(g, chunks, opaque(work) / 2, opaque(work) % 2, s);  // again, for want of registers
    const Place here = place_of(g, s.tile);
    const Output out(g, here, C0, C, reinterpret_cast<float*>(workspace + e.partial_offset), s.slot);
    broken |= right.sparse(e, workspace, here);
    // Of k-steps past the end of K there may be copies (RowCopies): so many may have been counted too many.
    const bool copied = TRANS_A || next_row_follows(e, g.M - here.m);
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
      const float* const first = A + batch_offset(g, g.a_batch, here.batch) + (here.m + threadIdx.x / 32 * 16) * e.a_row;
      broken |= sparse_rows(count, first, e, s.end - s.begin == chunks && !copies);
    }
    broken = __any_sync(~0u, broken);
    if (lane == 0) verdicts[turn % 2][threadIdx.x / 32] = broken;
    warpgroup_meets(group);
    broken = false;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) broken |= verdicts[turn % 2][4 * group + warp];
    ++turn;
    // Every tile's mark is written by whoever has its first k-steps: nobody has set them to zero before.
    int* const marks = reinterpret_cast<int*>(workspace + WORKSPACE_HEAD) + GROUPS * s.tile;
    const bool inside = IEEE_ROWS * group < (TRANS_C ? g.M - here.m : out.rows);
    if (threadIdx.x % 128 == 0 && s.begin == 0) marks[group] = broken && inside;
    if (broken) {
      reroute(A, B, out, e, here, s, staging, group);
      continue;
    }
    store_sums(sum, out, staging + threadIdx.x / 32 % 4 * (IEEE_FLOATS / 4), threadIdx.x / 32 * 16, lane);
  }
}
