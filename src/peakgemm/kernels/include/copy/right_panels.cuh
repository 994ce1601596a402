// B of a kernel that splits A itself: here from the panels that a split pass has written.
#include "include/ptx/bulk.cuh"
#include "include/split/rows_in_registers.cuh"

constexpr int RIGHT_ARRIVALS = 1;  // at a stage's barrier, beside its bytes
static_assert(PRODUCERS == COPIERS, "one warpgroup copies");

// A producer's part in it: one thread asks for bulk copies.
struct Right {
  const char* next;
  int column;  // of the panel, that the tile begins with

  __device__ __forceinline__ explicit Right(int) {}

  // Of a tile, from chunk `chunk` on.
  __device__ __forceinline__ void start(const float*, char* workspace, const Emulated& e, const Place& place,
                                        int chunk) {
    next = panel_of(panels_b(e, workspace), batch_offset(e.g, e.b_step, place.batch), place.n, e.g.N, chunks_of(e.g),
                    chunk);
    column = place.n % ROWS;
  }

  __device__ __forceinline__ void ask(const Emulated&, int) {}

  // A chunk's planes to a stage, its scales and its panel's summary to a tail; on to the next.
  __device__ __forceinline__ void bring(unsigned to, unsigned tail, unsigned barrier, const Emulated&, int, int) {
    if (threadIdx.x == COMPUTE) {
      bulk_expect(barrier, 2 * B_HALF + B_TAIL);
      bulk_load(tail, next + SCALES + 4 * column, BN * 4, barrier);
      bulk_load(tail + BN * 4, next + SCALES + SUMMARY, 32, barrier);
      if (BN == ROWS) {
        bulk_load(to, next, 2 * B_HALF, barrier);
      } else {
#pragma unroll 1
        for (int plane = 0; plane < 2 * PLANES; ++plane)
          bulk_load(to + plane * B_PLANE, next + plane * PLANE + 64 * column, B_PLANE, barrier);
      }
    }
    next += PANEL_PITCH;
  }
};

// What those who multiply have to know of it.
struct RightSeen {
  bool dense = false;  // one chunk has enough elements of every column

  // Whether a chunk holds, and `lossy`: whether columns of its panel have lost bits. `summary`: four words of its tail.
  __device__ __forceinline__ bool holds(const int4& summary, int depth, bool& lossy) {
    dense |= summary.z >= min(FEWEST, depth);
    lossy = summary.w & SOME_LOSSY;
    return summary.x <= APART_HIGHEST && summary.y >= APART_LOWEST;
  }

  // Whether all columns of its panel have one scale, and that. PTXAS(13.0): -shift_to_top(...) is other code; not
  // measured.
  __device__ __forceinline__ static bool one_scale(const int4& summary) { return summary.w & ONE_SCALE; }
  __device__ __forceinline__ static float scale(const int4& summary) {
    return power_of_two(max(min(summary.x - TOP, 126), -126));
  }

  // A bit for each of 32 columns of the tile that have, from the `word`-th on.
  __device__ __forceinline__ static unsigned lossy_columns(const char* tail, int first_column, int word) {
    return reinterpret_cast<const unsigned*>(tail + BN * 4 + 16)[first_column / 32 + word];
  }

  // Whether a column has too few elements that are not zero, along all of K.
  __device__ __forceinline__ bool sparse(const Emulated& e, char* workspace, const Place& place) const {
    if (dense) return false;
    const int chunks = chunks_of(e.g);
    const char* const panels = panel_of(panels_b(e, workspace), batch_offset(e.g, e.b_step, place.batch), place.n,
                                        e.g.N, chunks, 0);
    bool few = false;
#pragma unroll 1
    for (int j = threadIdx.x % 32; j < BN; j += 32)
      few |= too_sparse(count_of(panels, place.n % ROWS + j, chunks), e.g.K);
    return __any_sync(~0u, few);
  }
};
