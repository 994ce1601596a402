// The end of a tile whose accumulators lie in pairs of rows: C = alpha acc + beta C0, or partial sums.
//
// Rows 2p + 1 and 2p of a column leave by one store of eight bytes, in this order. A pair has an even register and the
// odd one behind it, so acc[i][j] gets the parity that row i's element of A, loaded by sixteen bytes, has not: down
// a column, where B's element is reused, no FFMA reads one bank twice. PTXAS(13.0): with single words it takes any
// parity, up to 1.7 modelled cycles an FFMA in 12 x 16 results a thread, with pairs of columns up to 2.0;
// lab/compilers.py.
//
// Lanes write the 32 columns of a row's half, eight pairs of rows at a time, as in tile_store.cuh. What a lane stages, and
// what eight lanes read of it, lies in banks that no other's of its half of the warp does.
#include "include/epilogue/epilogue.cuh"
#include "include/epilogue/store_partial.cuh"
#include "include/mma/warp_tile.cuh"
#include "include/ptx/cp_async.cuh"
#include "include/scheduler/gemm.cuh"

constexpr int PAIRED_LANE = 2 * TN + 16;  // words of one lane: its columns, two rows of each
constexpr int PAIRED_PITCH = 4 * PAIRED_LANE + 2;
constexpr int PAIRED = 8 * PAIRED_PITCH;  // floats of one warp
static_assert(TN == 16 && TM % 4 == 0, "a row of a warp is 64 columns, two for each lane");

// Rows 2 pair and 2 pair + 1 of a thread's results to shared memory.
template <int FIRST, int COUNT>
__device__ __forceinline__ void stage_pair(const float (&acc)[TM][TN], int pair, unsigned to) {
  if constexpr (COUNT > 1) {
    if (pair < FIRST + COUNT / 2) stage_pair<FIRST, COUNT / 2>(acc, pair, to);
    else stage_pair<FIRST + COUNT / 2, COUNT - COUNT / 2>(acc, pair, to);
  } else {
    __syncwarp();  // the pair before has been read
#pragma unroll
    for (int j = 0; j < TN; ++j)
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + 8 * j), "f"(acc[2 * FIRST + 1][j]),
                   "f"(acc[2 * FIRST][j]) : "memory");
  }
}

__device__ __forceinline__ void store_tile_pairs(const float (&acc)[TM][TN], const float* C0, float* C, float* partial,
                                                 const Gemm& g, int tile, int slot, int thread, float* staging) {
  if (slot >= 0) return store_partial(acc, partial, slot, thread, [](int) { return true; });
  const Place place = place_of(g, tile);
  const WarpTile mine = warp_tile(thread);
  const int lane = thread % 32, lane_m = lane / 2 % 8, lane_n = lane % 2 + lane / 16 * 2;
  float* const rows = staging + thread / 32 * PAIRED;
  const unsigned to = shared_address(rows + lane_m * PAIRED_PITCH + lane_n * PAIRED_LANE);
  const float* const from = rows + lane / 8 * PAIRED_LANE + lane % 8 * 2;
  int m = place.m + mine.m - lane_m * 4;
  const int n = place.n + mine.n - lane_n * 4 + lane / 8 * 4 + lane % 8 / 4 * 16 + lane % 4;
  float* c = C + m * g.ldc + n;
  // PTXAS(13.2): of eight words, beside all accumulators, it runs out of registers here, and then moves accumulators
  // about in the main loop as well; make it 8, lab/compilers.py.
  constexpr int WORDS = 4;  // at once
#pragma unroll 1
  for (int pair = 0; pair < TM / 2; ++pair) {
    stage_pair<0, TM / 2>(acc, pair, to);
    __syncwarp();
    float* at = c;
#pragma unroll
    for (int down = 0; down < 8; down += WORDS / 4) {
      float v[WORDS];
      bool inside[WORDS];
      auto row = [&](int w) { return 4 * (down + w / 4) + w / 2 % 2; };  // words: two halves of two rows
#pragma unroll
      for (int w = 0; w < WORDS; ++w) inside[w] = row(w) < g.M - m && w % 2 * 32 < g.N - n;
#pragma unroll
      for (int w = 0; w < WORDS; w += 4)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 both =
              *reinterpret_cast<const float2*>(from + (down + w / 4) * PAIRED_PITCH + half * 16);
          v[w + half] = both.y;
          v[w + half + 2] = both.x;
        }
      scale(v, g.alpha, g.beta, [&](int w) { return inside[w]; },
            [&](int w) { return C0 + (m + row(w)) * g.c0_row + (n + w % 2 * 32) * g.c0_col; });
#pragma unroll
      for (int w = 0; w < WORDS; ++w) {
        if (inside[w]) at[w % 2 * 32] = v[w];
        if (w % 2) at += (w % 4 == 1 ? 1 : 3) * g.ldc;
      }
    }
    const int next = pair % 2 ? 30 : 2;  // quad(2 pair + 2, 8) - quad(2 pair, 8)
    m += next;
    c += next * g.ldc;
  }
}
