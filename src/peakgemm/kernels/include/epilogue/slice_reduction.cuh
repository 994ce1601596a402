// The end of a small tile that SLICES groups of warps share, thread tiles being 2 x 4 or 4 x 4: all give their sums,
// then all threads add up, scale and store some of them.
//
// What a thread loads and stores there does not wait for each other: 410 cycles at 128 instead of 1570, by slices that
// add up and then one of them storing rows one after the other (tile_store.cuh; docs/notebook/06).
//
// Sum e of thread t lies at e * SUM_PITCH + warp * WARP_PITCH + lane: lanes write neighbours, and 32 neighbouring results of
// one or two rows of C lie in 32 banks.
#include "include/copy/edge.cuh"
#include "include/epilogue/cluster_split_k.cuh"
#include "include/epilogue/epilogue.cuh"
#include "include/mma/fragment.cuh"
#include "include/mma/warp_tile.cuh"
#include "include/ptx/cp_async.cuh"

constexpr int WARP_PITCH = 40, SUM_PITCH = THREADS / 32 * WARP_PITCH + 2, SLICE_PITCH = TM * TN * SUM_PITCH;

__device__ __forceinline__ void slices_meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS * SLICES) : "memory"); }

// Where result (row, column) of the tile lies; see warp_tile.cuh.
__device__ __forceinline__ constexpr int place_of_sum(int row, int column) {
  const int warp = row / (8 * LANE_M) * (BN / (4 * TN)) + column / (4 * TN), quad_n = column / 4 % 4;
  return (row % LANE_M * TN + column % (4 * TN) / 16 * 4 + column % 4) * SUM_PITCH + warp * WARP_PITCH + quad_n % 2 +
         row / LANE_M % 8 * 2 + quad_n / 2 * 16;
}

// Of one sum: what the slices have, in their order.
__device__ __forceinline__ float added_up(const float* from) {
  float v = from[0];
#pragma unroll
  for (int slice = 1; slice < SLICES; ++slice) v += from[slice * SLICE_PITCH];
  return v;
}

// Where this thread's results of a tile go, a round of rows apart: the places of its first sum, of its first result and of
// what is added to that, if anything is; bit i of `stored` says whether it has a result in round i.
struct Ending {
  int from;
  long long c, c0;
  unsigned stored;
#if CLUSTER_SPLIT_K  // where its sums of each round are given, what counts them there, and what this block is given
  unsigned to[BM * BN / (THREADS * SLICES)], counts[BM * BN / (THREADS * SLICES)], given;
#endif
};

// GROUPS is SLICES, in a template: tiles that end otherwise need not divide evenly.
template <int GROUPS>
struct SliceReduction {
  // Rows of a round, rounds.
  static constexpr int DOWN = THREADS * GROUPS < BN ? 1 : THREADS * GROUPS / BN, EACH = BM / DOWN;
  // Of a block at most: one of a cluster stores half of the rows or less.
  static constexpr int MINE = CLUSTER_SPLIT_K && EACH > 1 ? EACH / 2 : EACH;

  // `sums`: where they will lie; `given`: see cluster_split_k.cuh.
  __device__ static __forceinline__ Ending ending(const Gemm& g, const Segment& s, const float* sums, unsigned given) {
    static_assert(DOWN % LANE_M == 0 && WARP_M % DOWN == 0, "rounds are rows of whole lanes, places that are constants apart");
    const Place place = place_of(g, s.tile);
    const int row = threadIdx.x / BN, column = threadIdx.x % BN;
    const int band = BM >> cluster_log();  // rows of each block
    const int m = first_row(g, place) + cluster_block() * band + row, n = first_column(g, place) + column;
    Ending e = {place_of_sum(row, column), batch_offset(g, g.c_batch, place.batch) + m * g.ldc + n, 0, 0};
    if (g.beta != 0.f) e.c0 = batch_offset(g, g.c0_batch, place.batch) + m * g.c0_row + n * g.c0_col;
    if (between(place.n, n, g.N))
#pragma unroll
      for (int i = 0; i < MINE; ++i)
        e.stored |= (between(place.m, m + i * DOWN, g.M) && (!CLUSTER_SPLIT_K || row + i * DOWN < band) &&
                     in_triangle(m + i * DOWN, n)) << i;
#if CLUSTER_SPLIT_K
    const int log = cluster_log(), results = BM * BN >> log;
    const unsigned mine = shared_address(sums + SLICES * SLICE_PITCH) + 4 * cluster_block() * results;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int at = i * THREADS * GROUPS + threadIdx.x, owner = (at << log) / (BM * BN);
      e.to[i] = address_in(mine + 4 * (at & (results - 1)), owner), e.counts[i] = address_in(given, owner);
      asm volatile("" : "+r"(e.to[i]), "+r"(e.counts[i]));
    }
    e.given = given;
#endif
    return e;
  }

#if CLUSTER_SPLIT_K
  // A result has a word from each block, beside those of the band's other results.
  template <int BLOCKS>
  __device__ static __forceinline__ void add_given(float (&v)[MINE], const float* given) {
    constexpr int BAND = BM * BN / BLOCKS, ALL = THREADS * GROUPS;
#pragma unroll
    for (int i = 0; i < MINE; ++i)
      if (i * ALL < BAND) {
        const float* const from = given + i * ALL + threadIdx.x % BAND;
        v[i] = from[0];
#pragma unroll
        for (int block = 1; block < BLOCKS; ++block) v[i] += from[block * BAND];
      }
  }

  // Of the tile's sums this block keeps the band's. (Their places are found early: that takes longer than giving them.)
  __device__ static __forceinline__ void gather(float (&v)[MINE], const float* sums, const Ending& e) {
    const int log = cluster_log();
#pragma unroll
    for (int i = 0; i < EACH; ++i) give(e.to[i], added_up(sums + e.from + place_of_sum(i * DOWN, 0)), e.counts[i]);
    mbarrier_wait(e.given, 0);
    const float* const given = sums + SLICES * SLICE_PITCH;
    if (log == 1) add_given<2>(v, given);
    else if (log == 2) add_given<4>(v, given);
    else if (log == 3) add_given<8>(v, given);
    else add_given<16>(v, given);
  }
#endif

  // `early`: what `ending` says, where that was asked before.
  template <bool EARLY>
  __device__ static __forceinline__ void store(const float (&acc)[TM][TN], float* sums, const float* C0, float* C,
                                               float* partial, const Gemm& g, const Segment& s, int slice, int thread,
                                               const Ending& early) {
    float* const mine = sums + thread / 32 * WARP_PITCH + thread % 32;
    each_result([&](int i, int j) { mine[slice * SLICE_PITCH + (i * TN + j) * SUM_PITCH] = acc[i][j]; });
    slices_meet();
    if (s.slot >= 0) {  // partial sums lie as threads hold them
      constexpr int PART = TM * TN / SLICES;
      float* const to = partial + static_cast<long long>(s.slot) * BM * BN + slice * PART * THREADS + thread;
#pragma unroll
      for (int i = 0; i < PART; ++i) to[i * THREADS] = added_up(mine + (slice * PART + i) * SUM_PITCH);
      return;
    }
    const Ending e = EARLY ? early : ending(g, s, sums, 0);
    float v[MINE] = {};
#if CLUSTER_SPLIT_K
    gather(v, sums, e);
#else
#pragma unroll
    for (int i = 0; i < EACH; ++i) v[i] = added_up(sums + e.from + place_of_sum(i * DOWN, 0));
#endif
    scale(v, g.alpha, g.beta, [&](int i) { return e.stored >> i & 1; },
          [&](int i) { return C0 + e.c0 + i * DOWN * g.c0_row; });
    float* c = C + e.c;
#pragma unroll
    for (int i = 0; i < MINE; ++i, c += DOWN * g.ldc)
      if (e.stored >> i & 1) *c = v[i];
  }
};
