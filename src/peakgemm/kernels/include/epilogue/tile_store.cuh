// The end of a tile: C = alpha acc + beta C0, or partial sums where others have the rest of K.
//
// A warp passes its rows through shared memory, eight at a time, so that lanes write neighbouring columns:
// from the registers themselves a store would touch 32 sectors for 32 words, 16 thousand cycles of L2 writes
// for a tile of 128 x 256.
//
// PTXAS(13.0): the accumulators leave one word at a time, by an instruction that it cannot merge with its neighbours:
// pairs and quads would pin the parity of their registers, and with it the register banks of every FFMA. What is live
// here beside the accumulators decides how the whole kernel's registers are allocated: of 16 words under way at once
// the main loop has 1.4 to 1.7 modelled cycles an FFMA, of four 1.07. Hence a loop with few words; lab/compilers.py.
#include "include/copy/edge.cuh"
#include "include/epilogue/epilogue.cuh"
#include "include/epilogue/store_partial.cuh"
#include "include/mma/warp_tile.cuh"
#include "include/ptx/cp_async.cuh"
#include "include/ptx/store_shared.cuh"

constexpr int STAGED_COLUMNS = 4 * TN;
constexpr int STAGED_LANE = TN + 1;  // words of one lane: its columns
constexpr int STAGED_PITCH = 4 * STAGED_LANE;
constexpr int STAGED = 8 * STAGED_PITCH;  // floats of one warp

// Row i of a thread's results to shared memory, by branches: predicated stores of every row would take issue slots.
template <int FIRST, int COUNT>
__device__ __forceinline__ void stage_row(const float (&acc)[TM][TN], int i, unsigned to) {
  if constexpr (COUNT > 1) {
    if (i < FIRST + COUNT / 2) stage_row<FIRST, COUNT / 2>(acc, i, to);
    else stage_row<FIRST + COUNT / 2, COUNT - COUNT / 2>(acc, i, to);
  } else {
    __syncwarp();  // the row before has been read
#pragma unroll
    for (int j = 0; j < TN; ++j) store_shared(to + 4 * j, acc[FIRST][j]);
  }
}

// Groups of warps that share a tile (SLICES) end it together, each with whole quads of rows of every thread tile: 1 %
// at 1023. Where there are not as many, the first ends it alone, or all threads do (slice_reduction.cuh).
constexpr int OWNED = TM % (4 * SLICES) ? TM : TM / SLICES;  // rows of an owner
__device__ constexpr int owner_of(int i) { return i / OWNED; }

// Rows first..first + count of every thread tile, which `stage` puts into shared memory one at a time.
template <typename Stage>
__device__ __forceinline__ void store_rows(int first, int count, Stage stage, const float* C0, float* C, const Gemm& g,
                                           int tile, int thread, int slice, float* staging) {
  const Place place = place_of(g, tile);
  const WarpTile mine = warp_tile(thread);
  const int warp = thread / 32, lane = thread % 32;
  const int lane_m = lane / 2 % 8, lane_n = lane % 2 + lane / 16 * 2;
  float* const rows = staging + (slice * (THREADS / 32) + warp) * STAGED;
  const unsigned to = shared_address(rows + lane_m * STAGED_PITCH + lane_n * STAGED_LANE);
  // Of eight rows, four apart, a lane stores TN words: ACROSS beside each other, then DOWN rows further.
  constexpr int ACROSS = STAGED_COLUMNS > 32 ? STAGED_COLUMNS / 32 : 1;
  constexpr int DOWN = STAGED_COLUMNS < 32 ? 32 / STAGED_COLUMNS : 1;
  static_assert(STAGED_COLUMNS * DOWN == 32 * ACROSS, "a round of lanes covers whole rows, or rows whole rounds");
  constexpr int WORDS = 4;  // at once: their latencies overlap
  const int row = lane / STAGED_COLUMNS, column = lane % STAGED_COLUMNS;
  const float* const from = rows + row * STAGED_PITCH + column / 4 % 4 * STAGED_LANE + column / 16 * 4 + column % 4;
  int m = first_row(g, place) + mine.m - lane_m * 4 + 4 * row + quad(first, 8);
  const int n = first_column(g, place) + mine.n - lane_n * 4 + column;
  const float* const c0 = C0 + batch_offset(g, g.c0_batch, place.batch);
  float* c = C + batch_offset(g, g.c_batch, place.batch) + m * g.ldc + n;
#pragma unroll 1
  for (int i = first; i < first + count; ++i) {
    stage(i, to);
    __syncwarp();
    float* at = c;
#pragma unroll
    for (int begin = 0; begin < TN; begin += WORDS) {
      float v[WORDS];
      bool inside[WORDS];
#pragma unroll
      for (int w = 0; w < WORDS; ++w) {
        const int down = (begin + w) / ACROSS * DOWN, right = (begin + w) % ACROSS * 32;
        v[w] = from[down * STAGED_PITCH + right / 4];
        inside[w] = between(place.m, m + 4 * down, g.M) && between(place.n, n + right, g.N) &&
                    in_triangle(m + 4 * down, n + right);
      }
      scale(v, g.alpha, g.beta, [&](int w) { return inside[w]; }, [&](int w) {
        const int down = (begin + w) / ACROSS * DOWN, right = (begin + w) % ACROSS * 32;
        return c0 + (m + 4 * down) * g.c0_row + (n + right) * g.c0_col;
      });
#pragma unroll
      for (int w = 0; w < WORDS; ++w) {
        if (inside[w]) at[(begin + w) % ACROSS * 32] = v[w];
        if ((begin + w) % ACROSS == ACROSS - 1) at += 4 * DOWN * g.ldc;
      }
    }
    const int next = i % 4 == 3 ? 29 : 1;  // quad(i + 1, 8) - quad(i, 8)
    m += next;
    c += next * g.ldc;
  }
}

__device__ __forceinline__ void store_tile(const float (&acc)[TM][TN], const float* C0, float* C, float* partial,
                                           const Gemm& g, const Segment& s, int thread, int slice, float* staging) {
  if (s.slot >= 0) return store_partial(acc, partial, s.slot, thread, [=](int i) { return slice == owner_of(i); });
  store_rows(slice * OWNED, OWNED, [&](int i, unsigned to) { stage_row<0, TM>(acc, i, to); }, C0, C, g, s.tile, thread,
             slice, staging);
}
