// Warp-specialised: the last PRODUCERS threads of a block only copy, the others only compute.
//
// Idea: a ring of stages on mbarriers and no block-wide barrier in the loop. Copies, their addresses and their
//   predicates leave the computing warps, which issue LDS, FFMA and one wait a tile. Blocks are persistent:
//   while one tile of C is stored, the copies of the next are under way. Or they have one tile (ONE_TILE), or one range
//   of its k-steps (split_k.cuh, cluster_split_k.cuh).
// Any layout and alignment without a copy of the operand: see panel.cuh. K's remainder is the first tile, behind zeros.
// With SLICES, that many groups of warps share a tile of C: they take turns at the tiles of K and add up through
//   shared memory. A small tile then has the warps to hide its latencies.
// On sm_90a the register file is dealt anew: 40 registers for a copying thread, REGISTERS for a computing one.

#include "include/copy/edge.cuh"
#include "include/copy/panel.cuh"
#include "include/copy/prefetch.cuh"
#include "include/copy/ring.cuh"
#include "include/epilogue/slices.cuh"
#include "include/mma/outer_product.cuh"
#include "include/ptx/dependents.cuh"
#include "include/ptx/opaque.cuh"
#include "include/scheduler/split_k.cuh"

// Of the config, beside the tile, come what its properties say and why (ffma/specialised.py): UNROLL, COPY_LANES,
// EDGE_ROUNDS, COPIES_VIA_L1, FEW_REGISTERS, LATE_PDL_WAIT, PREFETCH_L2, BARRIER_LOOKAHEAD, REDUCE_ACROSS_SLICES.
enum FfmaOrder { BY_ROWS, BY_ROWS_REVERSED, BY_COLUMNS };  // of problem.FfmaOrder
constexpr int COPYING = PRODUCERS / COPY_GROUPS;           // threads of a group
constexpr int COMPUTE = THREADS * SLICES;
using PanelA = Panel<!TRANS_A, TRANS_A ? WIDTH_A : 1, BM, EDGE_ROUNDS_A, COPYING, LATE_PDL_WAIT, COPY_LANES, COPIES_VIA_L1>;
using PanelB = Panel<TRANS_B, TRANS_B ? 1 : WIDTH_B, BN, EDGE_ROUNDS_B, COPYING, LATE_PDL_WAIT, COPY_LANES, COPIES_VIA_L1>;
constexpr int STAGE = PanelA::FLOATS + PanelB::FLOATS;
using Stages = Ring<4 * STAGE>;
// Tiles of K whose lines of L2 a block asks for ahead (prefetch.cuh).
constexpr int LINES_AHEAD = AHEAD / MIN_BLOCKS / (lines_of(!TRANS_A, BM, BK) + lines_of(TRANS_B, BN, BK));
constexpr int EARLY = LINES_AHEAD < 1 ? 1 : LINES_AHEAD < STAGES ? LINES_AHEAD : STAGES;
// A block with one tile finds the places of its results while the kernel before still runs: half of the end's
// instructions.
constexpr bool ENDS_EARLY = REDUCE_ACROSS_SLICES && ONE_TILE;
static_assert(COPY_LANES <= (UNROLL < 8 ? 8 : UNROLL), "of each unrolled k-step it is known how rows have changed places");
static_assert(TM != 2 || REDUCE_ACROSS_SLICES, "others end by quads of rows");

// The last PRODUCERS threads: copies of A and B to stages. `remainder`: k-steps of tile 0.
__device__ __forceinline__ void produce(const float* A, const float* B, const Gemm& g, Stages ring, float* shared,
                                        int steps, int items, int remainder) {
  const int copying = threadIdx.x - COMPUTE;
  const int thread = COPY_GROUPS > 1 ? copying % COPYING : copying, group = COPY_GROUPS > 1 ? copying / COPYING : 0;
  int ahead = group;  // stages from here to this group's next one
  if (COPY_GROUPS > 1) ring.step(group);
  // The first tiles of K to be in L2.
  auto ask_ahead = [&](const Segment& s, const Place& place) {
    const int k = max(remainder + (s.begin - 1) * BK, 0), m = first_row(g, place), n = first_column(g, place);
    const float* const a = A + batch_offset(g, g.a_batch, place.batch) + (TRANS_A ? k * g.lda + m : m * g.lda + k);
    const float* const b = B + batch_offset(g, g.b_batch, place.batch) + (TRANS_B ? n * g.ldb + k : k * g.ldb + n);
    into_l2<PRODUCERS, !TRANS_A, BM, EARLY * BK, WIDTH_A == 1>(a, g.lda, g.M - m, g.K - k, copying);
    into_l2<PRODUCERS, TRANS_B, BN, EARLY * BK, WIDTH_B == 1>(b, g.ldb, g.N - n, g.K - k, copying);
  };
  Segment first;
  if (PREFETCH_L2 && !ONE_TILE && work_of(g, steps, blockIdx.x, 0, first)) ask_ahead(first, place_of(g, first.tile));
  PanelA a(shared_address(shared), thread);
  PanelB b(shared_address(shared + PanelA::FLOATS), thread);
  auto leave_stage = [&] {  // it is full once the copies have arrived
    mbarrier_arrive_after_copies(ring.full());
    ring.step(COPY_GROUPS);
  };
  for_each_segment(g, steps, items, [&](const Segment& s, int) {
    const Place place = place_of(g, s.tile);
    const int from = remainder + (s.begin - 1 + ahead) * BK;
    a.start(A + batch_offset(g, g.a_batch, place.batch), g.lda, first_row(g, place), g.M, from);
    b.start(B + batch_offset(g, g.b_batch, place.batch), g.ldb, first_column(g, place), g.N, from);
    const bool inside = g.M >= BM && g.N >= BN;
    if (COPY_GROUPS > 1) a.tile *= COPY_GROUPS, b.tile *= COPY_GROUPS;
    int wide = s.begin + ahead ? BK : remainder;  // k-steps of the tile in turn
    if (PREFETCH_L2 && ONE_TILE) ask_ahead(s, place);
    int left = s.end - s.begin - ahead;
    if (LATE_PDL_WAIT) previous_kernel_has_ended();
    // Tiles at an edge, and the remainder of K.
#pragma unroll 1
    for (; left > 0 && !(!FEW_REGISTERS && inside && wide == BK); left -= COPY_GROUPS) {
      ring.wait_empty();
      a.copy(ring.at(), FEW_REGISTERS && g.M >= BM, wide);
      b.copy(ring.at(), FEW_REGISTERS && g.N >= BN, wide);
      leave_stage();
      a.advance();
      b.advance();
      wide = BK;
    }
    // Whole tiles by a loop of nothing else. The schedulers prefer who computes, so what a tile's copies take is
    // instructions of a copying warp: 126 of them, 102 by such a loop, of which 48 copy, at 1023.
    if (!FEW_REGISTERS) {
#pragma unroll 1
      for (; left > 0; left -= COPY_GROUPS) {
        ring.wait_empty();
        a.copy_whole(ring.at());
        b.copy_whole(ring.at());
        leave_stage();
      }
    }
    if (COPY_GROUPS > 1) ahead = -left;
  });
  // Each slice reads one k-step ahead of its last tile, of which nothing is made. For whole tiles of zeros slices would
  // wait.
  for (; ahead < SLICES && steps; ahead += COPY_GROUPS) {
    ring.wait_empty();
    for (int x = 4 * thread; x < BM + BN; x += 4 * COPYING)
      *reinterpret_cast<float4*>(shared + ring.at() / 4 + (x < BM ? x : PanelA::FLOATS + x - BM)) = float4{};
    mbarrier_arrive(ring.full());
    ring.step(COPY_GROUPS);
  }
  copies_wait_all();
}

// All other threads: products of stages, and the end of each tile.
__device__ __forceinline__ void consume(const float* C0, float* C, float* partial, const Gemm& g, Stages ring,
                                        float* shared, unsigned given, int steps, int items) {
  Ending ending = {};
  if constexpr (ENDS_EARLY) {
    Segment only;
    work_of(g, steps, blockIdx.x, 0, only);
    ending = SliceReduction<SLICES>::ending(g, only, shared + STAGES * STAGE, given);
    asm volatile("" : "+r"(ending.from), "+l"(ending.c), "+l"(ending.c0), "+r"(ending.stored));
  }
  if (LATE_PDL_WAIT) previous_kernel_has_ended();
  const int slice = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
  const WarpTile mine = warp_tile(thread);
  const char* const first_a = reinterpret_cast<const char*>(shared + mine.m);
  const char* const first_b = reinterpret_cast<const char*>(shared + PanelA::FLOATS + mine.n);
  unsigned from_a, from_b;  // where the unrolled k-steps begin, in bytes
  float* const staging = shared + STAGES * STAGE;
  float* const exchange = staging + COMPUTE / 32 * STAGED + thread;
  unsigned* const flags = reinterpret_cast<unsigned*>(partial);
  float* const sums = HANDED ? partial + words_of_flags(g) : partial;
  int turn = slice;  // tiles until this slice's next one
  float af[2][TM], bf[2][TN];
  // A quad whose rows have changed places.
  auto load_quad = [](float* to, const char* from, int turned) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    const float words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = words[i ^ turned];
  };
  auto load_a = [&](int slot, int k) {
    if constexpr (TM == 2) {  // half a quad, or the other half
      // PTXAS(13.0): by threadIdx, as a variable of its own changes the code of all tiles; try `thread`,
      // lab/compilers.py.
      const int turned = PanelA::turned(k), half = turned & 2 ? threadIdx.x & 2 ? -8 : 8 : 0;
      const float2 v = *reinterpret_cast<const float2*>(first_a + from_a + half + 4 * k * PanelA::PITCH);
      af[slot][turned & 1] = v.x, af[slot][1 - (turned & 1)] = v.y;
      return;
    }
#pragma unroll
    for (int i = 0; i < TM; i += 4)
      load_quad(&af[slot][i], first_a + from_a + 4 * (k * PanelA::PITCH + quad(i, 8)), PanelA::turned(k));
  };
  auto load = [&](int slot, int k) {
    if (A_FIRST) load_a(slot, k);
#pragma unroll
    for (int j = 0; j < TN; j += 4)
      load_quad(&bf[slot][j], first_b + from_b + 4 * (k * PanelB::PITCH + quad(j, 4)), PanelB::turned(k));
    if (!A_FIRST) load_a(slot, k);
  };
  auto next_stage = [&](bool there) {
    if (!there) ring.wait_full();
    from_a = from_b = ring.at();
  };
  if (steps) {
    if (slice) ring.step(slice);
    next_stage(false);
    load(0, 0);
  }
  for_each_segment(g, steps, items, [&](const Segment& s, int item) {
    float acc[TM][TN] = {};
    if (HANDED && s.begin > 0) load_carry(acc, flags, sums, before(g, item), thread);
    // CHUNKED: sums over UNROLL k-steps are added up among themselves, so that the error grows with K / UNROLL + UNROLL
    // and not with K. Of 32 k-steps 512 has 0.60 of the error of one chain.
    float sum[CHUNKED ? TM : 1][CHUNKED ? TN : 1] = {};
#pragma unroll 1
    for (turn -= s.end - s.begin; turn < 0; turn += SLICES) {
      const unsigned read = ring.empty();
      bool there = false;
#pragma unroll 1
      for (int some = BK / UNROLL; some > 0; --some) {
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
          if (BARRIER_LOOKAHEAD && k == UNROLL - 1 - BARRIER_LOOKAHEAD && (UNROLL == BK || some == 1)) {
            ring.step(SLICES);
            there = mbarrier_is_complete(ring.full(), ring.parity);
          }
          if (k + 1 < UNROLL) {
            load((k + 1) % 2, k + 1);
          } else {
            if (some > 1) {
              from_a += 4 * UNROLL * PanelA::PITCH;
              from_b += 4 * UNROLL * PanelB::PITCH;
            } else {  // the next tile, be it of another tile of C
              if (!BARRIER_LOOKAHEAD) ring.step(SLICES);
              next_stage(there);
            }
            load((k + 1) % 2, 0);
          }
          if constexpr (FFMA_ORDER == BY_COLUMNS) outer_product(acc, af[k % 2], bf[k % 2]);
          else outer_product_rows<FFMA_ORDER == BY_ROWS_REVERSED>(acc, af[k % 2], bf[k % 2]);
        }
        if constexpr (CHUNKED) each_result([&](int i, int j) { sum[i][j] += acc[i][j], acc[i][j] = 0.f; });
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(read);
    }
    if constexpr (CHUNKED) each_result([&](int i, int j) { acc[i][j] = sum[i][j]; });
    if constexpr (REDUCE_ACROSS_SLICES) {
      SliceReduction<SLICES>::template store<ENDS_EARLY>(acc, staging, C0, C, partial, g, s, slice, thread, ending);
      if (!ONE_TILE) slices_meet();  // all have read
    } else {
      if constexpr (SLICES > 1) {
        slices_add_up(acc, exchange, slice);
        slices_meet();
      }
      // PTXAS(13.2): for want of registers it loads fragments of A right before their use where what the end of a tile
      // wants is held through the loop, 1.5 % at 4096; store by `thread`, lab/compilers.py.
      const int storing = FEW_REGISTERS ? opaque(thread) : thread;
      if (slice * OWNED < TM) store_tile(acc, C0, C, sums, g, s, storing, slice, staging);
      if (HANDED && s.slot >= 0) store_carry(flags, s.slot);
    }
  });
}

extern "C" __global__ void __launch_bounds__(COMPUTE + PRODUCERS, MIN_BLOCKS)
ffma_specialised(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
                 float* __restrict__ partial, const __grid_constant__ Gemm g) {
  extern __shared__ __align__(16) float shared[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES + 4 * CLUSTER_SPLIT_K];
  Stages ring(barriers);
  ring.init(COPYING, THREADS / 32);
  const unsigned given = ring.end + 8 * STAGES;
  all_are_there(given, BM * BN * 4);
  if (LATE_PDL_WAIT) next_kernel_may_start();
  else previous_kernel_has_ended();
  const int steps = (g.K + BK - 1) / BK, items = items_of(g);
  const int remainder = g.K - (steps - 1) * BK;  // k-steps of tile 0
  if (threadIdx.x >= COMPUTE) {
#if REGISTERS
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
    produce(A, B, g, ring, shared, steps, items, remainder);
  } else {
#if REGISTERS
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
    consume(C0, C, partial, g, ring, shared, given, steps, items);
  }
}
