// The end of a small tile that SLICES groups of warps share, thread tiles being 4 x 4 or 4 x 8: all give their sums, then all
// threads add up, scale and store some of them.
//
// What a thread loads and stores there does not wait for each other. When the slices added up first and then one of them staged
// its rows one after the other (tile_store.cuh), that took 1570 cycles of 3930 from the end of the kernel before to the last
// store at 128, and takes 410 so (results/h100/experiments-together.json).
//
// Sum e of thread t lies at e * SUM_PITCH + warp * WARP_PITCH + lane: lanes write neighbours, and 32 neighbouring results of
// one or two rows of C lie in 32 banks.
constexpr int WARP_PITCH = 40, SUM_PITCH = THREADS / 32 * WARP_PITCH + 2, SLICE_PITCH = TM * TN * SUM_PITCH;

__device__ __forceinline__ void slices_meet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS * SLICES) : "memory"); }

// Where result (row, column) of the tile lies; see warp_tile.cuh.
__device__ __forceinline__ constexpr int place_of_sum(int row, int column) {
  const int warp = row / 32 * (BN / (4 * TN)) + column / (4 * TN), quad_n = column / 4 % 4;
  return (row % 4 * TN + column % (4 * TN) / 16 * 4 + column % 4) * SUM_PITCH + warp * WARP_PITCH + quad_n % 2 +
         row / 4 % 8 * 2 + quad_n / 2 * 16;
}

// Of one sum: what the slices have, in their order.
__device__ __forceinline__ float added_up(const float* from) {
  float v = from[0];
#pragma unroll
  for (int slice = 1; slice < SLICES; ++slice) v += from[slice * SLICE_PITCH];
  return v;
}

// A template so that tiles that end otherwise need not divide evenly.
template <int GROUPS>
__device__ __forceinline__ void store_together(const float (&acc)[TM][TN], float* sums, const float* C0, float* C,
                                               float* partial, const Gemm& g, const Segment& s, int slice, int thread) {
  float* const mine = sums + thread / 32 * WARP_PITCH + thread % 32;
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) mine[slice * SLICE_PITCH + (i * TN + j) * SUM_PITCH] = acc[i][j];
  slices_meet();
  if (s.slot >= 0) {  // partial sums lie as threads hold them
    constexpr int EACH = TM * TN / SLICES;
    float* const to = partial + static_cast<long long>(s.slot) * BM * BN + slice * EACH * THREADS + thread;
#pragma unroll
    for (int e = 0; e < EACH; ++e) to[e * THREADS] = added_up(mine + (slice * EACH + e) * SUM_PITCH);
    return;
  }
  constexpr int DOWN = THREADS * GROUPS / BN, EACH = BM / DOWN;  // rows of a round, rounds
  static_assert(DOWN % 4 == 0 && 32 % DOWN == 0, "rounds are whole quads of rows, whose places are constants apart");
  const Place place = place_of(g, s.tile);
  const int row = threadIdx.x / BN, column = threadIdx.x % BN;
  const int m = first_row(g, place) + row, n = first_column(g, place) + column;
  const float* const from = sums + place_of_sum(row, column);
  float v[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) v[e] = g.alpha * added_up(from + place_of_sum(e * DOWN, 0));
  const bool inside = between(place.n, n, g.N);
  if (g.beta != 0.f) {
    const float* const c0 = C0 + batch_offset(g, g.c0_batch, place.batch) + m * g.c0_row + n * g.c0_col;
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (inside && between(place.m, m + e * DOWN, g.M)) v[e] = fmaf(g.beta, c0[e * DOWN * g.c0_row], v[e]);
  }
  float* c = C + batch_offset(g, g.c_batch, place.batch) + m * g.ldc + n;
#pragma unroll
  for (int e = 0; e < EACH; ++e, c += DOWN * g.ldc)
    if (inside && between(place.m, m + e * DOWN, g.M)) *c = v[e];
}
