// FP32 products on Hopper's tensor cores by small blocks, three an SM: a warpgroup splits and multiplies, a warp copies.
//
// Idea: no pass, no panels, no turns. While one block waits for memory, splits or stores, others multiply: what a large
//   tile overlaps by stages and roles, blocks overlap by being several. There are four times the tiles, and they are over
//   sooner: that counts where a product takes 20 us. Where it takes longer larger tiles win: here B's planes are made for
//   64 rows alone, and shared memory, 72 KB for a chunk, is what all wait for (0.43 us, of which the tensor cores need 0.2).
// An element plus half a unit of TF32's last bit, cut off there, is its first plane, the rest the second: three
//   instructions and no scale, as TF32 has FP32's exponents. A is split in the registers from which it is multiplied; B's
//   planes, which a block's warps share, go to shared memory. Any order of k-steps serves that both have: of sixteen a
//   lane takes four in a row of A.
// TURNED, it is asked for C^T, so that of few rows and many columns a tile has many rows.
// Blocks share a tile's K as in product.cu, and reduce.cu adds up. Where the split would not do a tile is computed with
//   FFMAs: elements that are not finite, or so large that sums might not be (tensor cores may stop at the largest number);
//   so small that a second plane, or a product with one, may sink below FP32's normal numbers; rows so sparse that FP32's
//   sums are nearly exact.

#include "common/gemm.cuh"
#include "common/prefetch.cuh"
#include "common/cp_async.cuh"
#include "common/dependents.cuh"
#include "common/bulk.cuh"
#include "common/mbarrier.cuh"
#include "common/store_words.cuh"
#include "common/narrow.cuh"
#include "common/split_panel.cuh"
#include "common/guard.cuh"
#include "common/output.cuh"
#include "common/ieee_tile.cuh"
#include "common/reroute.cuh"
#include "common/wgmma_fences.cuh"
#include "common/wgmma_registers.cuh"

constexpr int COMPUTE = 2 * BM, COPIERS = PRODUCERS;  // threads: a warpgroup has 64 rows
#include "common/raw_panel.cuh"

using PanelA = RawPanel<!TRANS_A, WIDTH_A, BM, false>;
using PanelB = RawPanel<TRANS_B, WIDTH_B, BN, true>;
constexpr int STAGE = PanelA::BYTES + PanelB::BYTES;
constexpr int B_PLANE = BN * 64, B_HALF = 2 * B_PLANE;  // bytes, of sixteen k-steps
constexpr int TIMES = VARIANT % 4 == 2 ? 4 : VARIANT % 4 == 1 ? 2 : 1;  // that sums are carried over in a chunk,
constexpr int APART = TIMES * STRIP_SUMS <= 32 ? TIMES : 1;  // from arrays of their own where registers suffice
static_assert(SCHEME == TF32X3 && BK == CHUNK, "a chunk is two halves of 64 bytes a row");

// The first plane is rounded, so that what a product of second planes would add is as often negative.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
  high = __float_as_uint(x) + 0x1000u & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// Sixteen k-steps of this lane's two rows: four each. Where rows are contiguous, two neighbours; else eight apart.
constexpr bool NEIGHBOURS = TRANS_A && WIDTH_A == 4;
__device__ __forceinline__ int row_of(int r) {
  const int g = threadIdx.x % 32 / 4;
  return threadIdx.x / 32 * 16 + (NEIGHBOURS ? 2 * g + r : g + 8 * r);
}
__device__ __forceinline__ void read_a(float (&x)[2][4], const PanelA& panel, const float* chunk, int k) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!TRANS_A && WIDTH_A == 4) {
      const int row = row_of(0);
      const float4 v = *reinterpret_cast<const float4*>(chunk + (row * PanelA::PITCH + (4 * t ^ PanelA::turn(row)) ^ k) +
                                                        8 * r * PanelA::PITCH);
      x[r][0] = v.x, x[r][1] = v.y, x[r][2] = v.z, x[r][3] = v.w;
    } else if (!TRANS_A) {
      const int row = row_of(0);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        x[r][j] = chunk[row * PanelA::PITCH + panel.skew(row) + 4 * t + 8 * r * PanelA::PITCH + k + j];
    } else if (!NEIGHBOURS) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        x[r][j] = chunk[4 * t * PanelA::PITCH + row_of(0) + panel.skew(j) + (k + j) * PanelA::PITCH + 8 * r];
    } else if (r == 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 v = *reinterpret_cast<const float2*>(
            chunk + (4 * t * PanelA::PITCH + (row_of(0) ^ PanelA::turn(4 * t))) + (k + j) * PanelA::PITCH);
        x[0][j] = v.x, x[1][j] = v.y;
      }
    }
  }
}

// This thread's pieces, of four k-steps four apart, of one column of B: where in the planes each belongs.
constexpr int PIECES = 8 * BN / COMPUTE;
static_assert(PIECES == 1 || PIECES == 2 || PIECES == 4, "every thread splits of B");
struct PieceOfB {
  int column, half, first;  // of the tile; sixteen k-steps of two; piece of four
  __device__ __forceinline__ PieceOfB()
      : column(threadIdx.x % BN), half(threadIdx.x / BN % 2), first(threadIdx.x / (2 * BN) * PIECES) {}

  // Of lanes whose rows lie in the same banks each begins with another piece.
  __device__ __forceinline__ int piece(int p) const {
    return first + p + (TRANS_B && WIDTH_B == 1 ? column / 8 : 0) & 3;
  }
  __device__ __forceinline__ unsigned place(int p) const {
    return half * B_HALF + column * 64 + ((piece(p) ^ (column / 2 & 3)) << 4);
  }

  __device__ __forceinline__ void read(float (&x)[PIECES][4], const PanelB& panel, const float* chunk) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (TRANS_B && WIDTH_B == 4) {
        const float* const from = chunk + (column * PanelB::PITCH + (16 * half ^ PanelB::turn(column)) ^ 4 * i) + first;
        if (PIECES == 4) {
          const float4 v = *reinterpret_cast<const float4*>(from);
          x[0][i] = v.x, x[1 % PIECES][i] = v.y, x[2 % PIECES][i] = v.z, x[3 % PIECES][i] = v.w;
        } else if (PIECES == 2) {
          const float2 v = *reinterpret_cast<const float2*>(from);
          x[0][i] = v.x, x[1 % PIECES][i] = v.y;
        } else {
          x[0][i] = *from;
        }
      } else {
#pragma unroll
        for (int p = 0; p < PIECES; ++p)
          x[p][i] = TRANS_B ? chunk[column * PanelB::PITCH + panel.skew(column) + 16 * half + piece(p) + 4 * i]
                            : chunk[(16 * half + first) * PanelB::PITCH + column + panel.skew(first + p) +
                                    (4 * i + p) * PanelB::PITCH];
      }
    }
  }
};

// Whether row i of the tile's rows, then columns, has fewer elements that are not zero, along all of K, than a split is
// good for; `zeros`: that this segment has.
__device__ __forceinline__ bool sparse(const Emulated& e, const float* A, const float* B, const Place& place,
                                       const Segment& s, int i, int zeros) {
  const Gemm& g = e.g;
  const int enough = min(FEWEST, g.K), count = (s.end - s.begin) * BK - zeros;
  const bool of_a = i < BM;
  if (count == 0 || count >= enough || (of_a ? place.m + i >= g.M : place.n + i - BM >= g.N)) return false;
  if (s.slot < 0) return true;
  const float* const from = of_a ? A + batch_offset(g, g.a_batch, place.batch) + (place.m + i) * e.a_row
                                 : B + batch_offset(g, g.b_batch, place.batch) + (place.n + i - BM) * e.b_row;
  int there = 0;
#pragma unroll 1
  for (int k = 0; k < g.K && there < enough; ++k) there += from[k * (of_a ? e.a_col : e.b_col)] != 0.f;
  return there < enough;
}

// Those who compute.
__device__ __forceinline__ void block_meets() { asm volatile("bar.sync 1, %0;" ::"n"(COMPUTE) : "memory"); }
__device__ __forceinline__ bool block_agrees(bool x) {
  int any;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %1, 0; bar.red.popc.u32 %0, 1, %2, p;}"
               : "=r"(any) : "r"(static_cast<int>(x)), "n"(COMPUTE) : "memory");
  return any;
}

// What this thread has seen of chunks in which it, or another lane, has elements that are zero or small.
constexpr float SMALL = 0x1p-48f, TINY = 0x1p-98f;  // products of second planes' last bits; those bits themselves
constexpr float LARGE = 0x1p60f;  // sum of an operand's magnitudes: below, nothing overflows; infinities and NaN are none
constexpr float SURE = 0x1p-80f;                    // results so large owe nothing to what small elements lose
struct Seen {
  int zeros_a[2] = {0, 0}, zeros_b = 0;
  bool small = false, tiny = false;

  __device__ __forceinline__ int look(float x) {
    const float magnitude = fabsf(x);
    small |= magnitude != 0.f && magnitude < SMALL;
    tiny |= magnitude != 0.f && magnitude < TINY;
    return magnitude == 0.f;
  }
};

extern "C" __global__ void __launch_bounds__(COMPUTE + COPIERS, MIN_BLOCKS)
tensor_small_blocks(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, char* workspace,
                    const __grid_constant__ Emulated e) {
  extern __shared__ __align__(1024) char ring[];
  __shared__ int verdict, zeros[BM + BN];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  const Gemm& g = e.g;
  const unsigned planes = shared_address(ring), first_stage = planes + 2 * B_HALF;
  const unsigned full = shared_address(barriers), empty = full + 8 * STAGES;
  if (threadIdx.x < STAGES) {
    mbarrier_init(full + 8 * threadIdx.x, COPIERS);
    mbarrier_init(empty + 8 * threadIdx.x, COMPUTE / 32);
  }
  if (threadIdx.x == 0) verdict = 0;
  __syncthreads();
  next_kernel_may_start();
  Segment s;
  segment_of(g, chunks_of(g), blockIdx.x, 0, s);
  const Place place = place_of(g, s.tile);
  const long long k0 = static_cast<long long>(s.begin) * BK;
  const long long first_a = batch_offset(g, g.a_batch, place.batch) + place.m * e.a_row + k0 * e.a_col;
  const long long first_b = batch_offset(g, g.b_batch, place.batch) + place.n * e.b_row + k0 * e.b_col;
  PanelA a(A, first_a, e.a_row, e.a_col, g.M - place.m);
  PanelB b(B, first_b, e.b_row, e.b_col, g.N - place.n);
  if (threadIdx.x >= COMPUTE) {
    if (asks_ahead(lines_of(true, BM + BN, BK))) {
      const int thread = threadIdx.x - COMPUTE, steps = g.K - s.begin * BK;
      into_l2<COPIERS, !TRANS_A, BM, BK, WIDTH_A == 1>(A + first_a, TRANS_A ? e.a_col : e.a_row, a.rows, steps, thread);
      into_l2<COPIERS, TRANS_B, BN, BK, WIDTH_B == 1>(B + first_b, TRANS_B ? e.b_row : e.b_col, b.rows, steps, thread);
    }
    previous_kernel_has_ended();
    int stage = 0, left = g.K - s.begin * BK;
    unsigned parity = 1;
#pragma unroll 1
    for (int chunk = s.begin; chunk < s.end; ++chunk, left -= BK) {
      mbarrier_wait(empty + 8 * stage, parity);
      const unsigned to = first_stage + stage * STAGE;
      a.copy(to, left);
      b.copy(to + PanelA::BYTES, left);
      mbarrier_arrive_after_copies(full + 8 * stage);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    return;
  }
  const PieceOfB mine;
  const int lane = threadIdx.x % 32;
  float sum[STRIP_SUMS] = {}, total[2] = {};
  Seen seen;
  int stage = 0;
  unsigned parity = 0;
  previous_kernel_has_ended();
#pragma unroll 1
  for (int chunk = s.begin; chunk < s.end; ++chunk) {
    const float* const chunk_a = reinterpret_cast<const float*>(ring + 2 * B_HALF + stage * STAGE);
    const float* const chunk_b = chunk_a + PanelA::BYTES / 4;
    float least = 1.f;
    unsigned high[4][4], low[4][4];  // of A, eight k-steps each
    mbarrier_wait(full + 8 * stage, parity);
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      float x[2][4];
      read_a(x, a, chunk_a, 8 * k);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        least = fminf(least, fabsf(x[i % 2][i / 2]));
        total[0] += fabsf(x[i % 2][i / 2]);
        split(x[i % 2][i / 2], high[k + i / 4][i % 4], low[k + i / 4][i % 4]);
      }
    }
    // All is done before the tensor cores are asked.
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(high[k][i]), "+r"(low[k][i]));
    block_meets();  // all have multiplied the planes of the chunk before
    {
      float x[PIECES][4];
      mine.read(x, b, chunk_b);
#pragma unroll
      for (int p = 0; p < PIECES; ++p) {
        unsigned first[4], second[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          least = fminf(least, fabsf(x[p][i]));
          total[1] += fabsf(x[p][i]);
          split(x[p][i], first[i], second[i]);
        }
        store_shared(planes + mine.place(p), first);
        store_shared(planes + mine.place(p) + B_PLANE, second);
      }
    }
    if (__builtin_expect(__any_sync(~0u, least < SMALL), 0)) {
      float x[PIECES][4], y[2][4];
      mine.read(x, b, chunk_b);
#pragma unroll
      for (int i = 0; i < 4 * PIECES; ++i) seen.zeros_b += seen.look(x[i / 4][i % 4]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        read_a(y, a, chunk_a, 16 * k);
#pragma unroll
        for (int i = 0; i < 8; ++i) seen.zeros_a[i / 4] += seen.look(y[i / 4][i % 4]);
      }
    }
    fence_for_async_proxy();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * stage);
    block_meets();  // all planes are there
    const unsigned long long planes_of_b = matrix_descriptor(planes);
    const auto descriptor = [&](int plane, int k) {
      return planes_of_b + (k / 2 * B_HALF + plane * B_PLANE + k % 2 * 32 >> 4);
    };
    float part[APART][STRIP_SUMS];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k) wgmma<true>(part[0], low[k], descriptor(0, k));
      else wgmma<false>(part[0], low[k], descriptor(0, k));
      wgmma<true>(part[0], high[k], descriptor(1, k));
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      constexpr int STEPS = 4 / TIMES;
      float (&sums)[STRIP_SUMS] = part[k / STEPS % APART];
      const bool begins = k && k % STEPS == 0, ends = k % STEPS == STEPS - 1;
      if (begins && APART == 1) wgmma_fence();
      if (begins) wgmma<false>(sums, high[k], descriptor(0, k));
      else wgmma<true>(sums, high[k], descriptor(0, k));
      if (APART > 1 ? k < 3 : !ends) continue;
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int times = 0; times < APART; ++times)
#pragma unroll
        for (int i = 0; i < STRIP_SUMS; ++i) sum[i] += part[times][i];
    }
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  block_meets();

  // What the guard has to say.
  constexpr int BROKEN = 1, ZEROS = 2, SMALL_SEEN = 4;
  int found = !(total[0] + total[1] < LARGE) || seen.tiny ? BROKEN : 0;
  if (seen.zeros_a[0] | seen.zeros_a[1] | seen.zeros_b) found |= ZEROS;
  if (seen.small) found |= SMALL_SEEN;
  found = __reduce_or_sync(~0u, found);
  if (found && lane == 0) atomicOr(&verdict, found);
  block_meets();
  float* const staged = reinterpret_cast<float*>(ring);
  const Output out(g, place, C0, C, reinterpret_cast<float*>(workspace + e.partial_offset), s.slot);
  bool broken = false;
  if (__builtin_expect(verdict != 0, 0)) {
    const int told = verdict;
    broken = told & BROKEN;
    if (told & SMALL_SEEN) {
#pragma unroll
      for (int i = 0; i < STRIP_SUMS; ++i)
        broken |= fabsf(sum[i]) < SURE && place.m + row_of(i / 2 % 2) < g.M &&
                  place.n + i / 4 * 8 + lane % 4 * 2 + i % 2 < g.N;
    }
    if (told & ZEROS) {
      for (int i = threadIdx.x; i < BM + BN; i += COMPUTE) zeros[i] = 0;
      block_meets();
#pragma unroll
      for (int r = 0; r < 2; ++r) atomicAdd(&zeros[row_of(r)], seen.zeros_a[r]);
      atomicAdd(&zeros[BM + mine.column], seen.zeros_b);
      block_meets();
      for (int i = threadIdx.x; i < BM + BN; i += COMPUTE) broken |= sparse(e, A, B, place, s, i, zeros[i]);
    }
    broken = block_agrees(broken);
  }
  int* const marks = reinterpret_cast<int*>(workspace + WORKSPACE_HEAD) + BM / 64 * s.tile;
  if (threadIdx.x % 128 == 0 && s.begin == 0)
    marks[threadIdx.x / 128] = broken && 64 * (threadIdx.x / 128) < g.M - place.m;
  if (broken) {
    reroute(A, B, out, e, place, s, staged + threadIdx.x / 128 * IEEE_FLOATS, threadIdx.x / 128);
    return;
  }
  constexpr int PITCH = TURNED ? BM + 4 : BN + 8, ALONG = TURNED ? BM : BN, LINES = BM * BN / ALONG;
#pragma unroll
  for (int i = 0; i < STRIP_SUMS; i += 2) {
    const int at = row_of(i / 2 % 2), beside = i / 4 * 8 + lane % 4 * 2;
    if (TURNED) {
      staged[beside * PITCH + at] = sum[i];
      staged[(beside + 1) * PITCH + at] = sum[i + 1];
    } else {
      *reinterpret_cast<float2*>(staged + at * PITCH + beside) = make_float2(sum[i], sum[i + 1]);
    }
  }
  block_meets();
  constexpr int QUADS = ALONG / 4, BELOW = COMPUTE / QUADS;
  if (out.plain) {
    const int line = threadIdx.x / QUADS, at = threadIdx.x % QUADS * 4;
    float* to = out.c + line * out.ldc + at;
#pragma unroll
    for (int i = 0; i < LINES; i += BELOW, to += BELOW * out.ldc) {
      if (LINES % BELOW && line + i >= LINES) break;
      const float4 v = *reinterpret_cast<const float4*>(staged + (line + i) * PITCH + at);
      *reinterpret_cast<float4*>(to) = make_float4(out.alpha * v.x, out.alpha * v.y, out.alpha * v.z, out.alpha * v.w);
    }
    return;
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < BM * BN; i += COMPUTE) {
    const int line = i / ALONG, at = i % ALONG;
    out.store(TURNED ? at : line, TURNED ? line : at, staged[line * PITCH + at]);
  }
}
