// The end of a tile: C = alpha acc + beta C0, or partial sums where others have the rest of K.
//
// A warp passes its rows through shared memory, eight at a time, so that lanes write neighbouring columns:
// from the registers themselves a store would touch 32 sectors for 32 words, 16 thousand cycles of L2 writes
// for a tile of 128 x 256. The accumulators leave one word at a time, by an instruction that the compiler cannot
// merge with its neighbours: pairs and quads would pin the parity of their registers, and with it the
// register banks of every FFMA (1.06 modelled cycles an FFMA against 1.07 to 1.5 with pairs).
constexpr int THREADS_N = BN / TN;
constexpr int STAGED_COLUMNS = 4 * TN;
constexpr int STAGED_LANE = TN + 1;  // words of one lane: its columns
constexpr int STAGED_PITCH = 4 * STAGED_LANE;
constexpr int STAGED = 8 * STAGED_PITCH;  // floats of one warp

__device__ __forceinline__ void store_shared(unsigned to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

// Partial sums lie as the threads hold them, one thread beside the other: element e of thread t at e * THREADS + t.
__device__ __forceinline__ void store_tile(const float (&acc)[TM][TN], const float* C0, float* C, float* partial,
                                           const Gemm& g, const Segment& s, int thread, float* staging) {
  if (s.slot >= 0) {
    float* to = partial + static_cast<long long>(s.slot) * BM * BN + thread;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) to[(i * TN + j) * THREADS] = acc[i][j];
    return;
  }
  const Place place = place_of(g, s.tile);
  const WarpTile mine = warp_tile(thread);
  const int warp = thread / 32, lane = thread % 32;
  const int lane_m = lane / 2 % 8, lane_n = lane % 2 + lane / 16 * 2;
  const int first_m = place.m + mine.m - lane_m * 4, first_n = place.n + mine.n - lane_n * 4;
  float* const c = C + batch_offset(g, g.c_batch, place.batch);
  const float* const c0 = C0 + batch_offset(g, g.c0_batch, place.batch);
  float* const rows = staging + warp * STAGED;
  const unsigned to = shared_address(rows + lane_m * STAGED_PITCH + lane_n * STAGED_LANE);
  const bool simple = g.beta == 0.f && place.m + BM <= g.M && place.n + BN <= g.N;
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < TN; ++j) store_shared(to + 4 * j, acc[i][j]);
    __syncwarp();
    // A lane's words of eight rows: all read before the first is stored, so that their latencies overlap.
    float v[TN];
    int row[TN], column[TN];
#pragma unroll
    for (int t = 0; t < TN; ++t) {
      row[t] = (lane + 32 * t) / STAGED_COLUMNS;
      column[t] = (lane + 32 * t) % STAGED_COLUMNS;
      v[t] = g.alpha * rows[row[t] * STAGED_PITCH + column[t] / 4 % 4 * STAGED_LANE + column[t] / 16 * 4 + column[t] % 4];
    }
    float* const first = c + (first_m + quad(i, 8)) * g.ldc + first_n;
    if (simple) {
#pragma unroll
      for (int t = 0; t < TN; ++t) first[4 * row[t] * g.ldc + column[t]] = v[t];
    } else {
#pragma unroll
      for (int t = 0; t < TN; ++t) {
        const int m = first_m + 4 * row[t] + quad(i, 8), n = first_n + column[t];
        if (m < g.M && n < g.N) {
          if (g.beta != 0.f) v[t] = fmaf(g.beta, c0[m * g.c0_row + n * g.c0_col], v[t]);
          c[m * g.ldc + n] = v[t];
        }
      }
    }
  }
}
