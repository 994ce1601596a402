// B of a kernel that splits A itself: here split on its way from memory to the tensor cores, by warps that do nothing
// else but ask for copies of A. Registers hold a warp's part of a chunk: as soon as that is stored, they are the target
// of loads of its next one. Warpgroups take turns, chunk by chunk, so that two chunks' loads are on the way.
//
// Where K is contiguous eight lanes share a column and a lane has a piece of every fourth; else a lane has neighbouring
// pieces of one column.
#include "include/ptx/bulk.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/opaque.cuh"
#include "include/ptx/store_shared.cuh"
#include "include/split/rows_in_registers.cuh"

constexpr int SPLIT_WARPS = COPIERS / 32, PART = BN / SPLIT_WARPS;  // columns of a warp
constexpr int RIGHT_ARRIVALS = SPLIT_WARPS;
constexpr int SPAN = 27;  // binary orders: elements so far below their column's largest lose bits (LOSSY, TOP)
constexpr int HELD = PART / 4;                       // pieces a lane
constexpr int LANE_COLUMNS = TRANS_B ? HELD : 1;     // columns that they belong to
constexpr unsigned BROKEN = 1u << 31;                // of what a warp tells of a chunk, beside a bit for each column
static_assert(PART == 16, "two warps' columns are a word");

// A producer's part in it. Magnitudes are integers: the bits of a float shifted left, which drops the sign.
struct Right {
  float held[HELD][PIECE];
  unsigned top[LANE_COLUMNS], least[LANE_COLUMNS];
  unsigned counts;     // a byte for each column: elements that are not zero, or 128 and more
  const float* next;   // this lane's first element of the chunk to be fetched
  int column, piece;   // of the tile: the first that this lane holds,
  int place;           // and its byte in a stage's B
  int there;           // columns from `column` to the edge
  bool inside;         // all lanes' columns are

  __device__ __forceinline__ explicit Right(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    // Eight lanes that store at a time are two columns by four pieces, or eight columns: eight different bank groups.
    column = warp * PART + (TRANS_B ? lane / 16 * 2 + lane / 4 % 2 : lane % PART);
    piece = TRANS_B ? lane % 4 + lane / 8 % 2 * 4 : lane / PART * HELD;
    place = piece / 4 * B_HALF + column * 64 + ((piece % 4 ^ (column / 2 & 3)) << 4);
  }

  // Of the s-th piece held: the swizzle is an exclusive or. PTXAS(13.0): of a table it keeps all in registers, that is,
  // spills them; lab/compilers.py.
  __device__ __forceinline__ unsigned place_of_piece(unsigned to, int s) const {
    return TRANS_B ? (to + place ^ s % 2 * 32) + s * 4 * 64 : to + place ^ s * 16;
  }

  __device__ __forceinline__ void count(unsigned more) {  // a byte each, 32 at most
    const unsigned full = (counts & 0x80808080u) >> 7;
    counts += more & ~(full * 255u);
  }

  // Of a tile, from chunk `chunk` on.
  __device__ __forceinline__ void start(const float* B, char*, const Emulated& e, const Place& tile, int chunk) {
    next = B + batch_offset(e.g, e.g.b_batch, tile.batch) + (tile.n + column) * e.b_row +
           (static_cast<long long>(chunk) * CHUNK + piece * PIECE) * e.b_col;
    there = e.g.N - tile.n - column;
    counts = 0;
    inside = __all_sync(~0u, there > (TRANS_B ? PART - 4 : 0));
  }

  // And asks for the first one's elements.
  __device__ __forceinline__ void ask(const Emulated& e, int chunk) { fetch(e.g.K - chunk * CHUNK, e); }

  // The next chunk of this warpgroup, of which K has `left` elements.
  __device__ __forceinline__ void fetch(int left, const Emulated& e) {
    const long long step = TRANS_B ? 4 * opaque(e.b_row) : opaque(e.b_col);  // elements: four columns on; or along K
    const float* from = next;
    if (inside && left >= CHUNK) {
#pragma unroll
      for (int s = 0; s < HELD; ++s, from += TRANS_B ? step : 0)
#pragma unroll
        for (int i = 0; i < PIECE; i += TRANS_B ? WIDTH_B : 1, from += TRANS_B ? 0 : step) {
          if (TRANS_B && WIDTH_B == 4)
            *reinterpret_cast<float4*>(&held[s][i]) = __ldg(reinterpret_cast<const float4*>(from + i));
          else
            held[s][i] = __ldg(from + (TRANS_B ? i : 0));
        }
    } else {
#pragma unroll
      for (int s = 0; s < HELD; ++s, from += TRANS_B ? step : 0) {
        const int rest = there > (TRANS_B ? 4 * s : 0) ? left - (TRANS_B ? piece : piece + s) * PIECE : 0;
#pragma unroll
        for (int i = 0; i < PIECE; ++i, from += TRANS_B ? 0 : step)
          held[s][i] = i < rest ? __ldg(from + (TRANS_B ? i : 0)) : 0.f;
      }
    }
    next += HELPERS * CHUNK * (TRANS_B ? 1 : step);
  }

  // The largest and the smallest magnitudes of what is held; whether there are zeros.
  __device__ __forceinline__ bool look() {
    bool zeros = false;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) {
      top[c] = 0;
      least[c] = ~0u;
#pragma unroll
      for (int s = c; s < (TRANS_B ? c + 1 : HELD); ++s)
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
          const unsigned magnitude = __float_as_uint(held[s][i]) << 1;
          top[c] = max(top[c], magnitude);
          least[c] = min(least[c], magnitude);
        }
      zeros |= least[c] == 0;
    }
    return zeros;
  }

  // How many elements are not zero, a byte for each column, and the smallest of those: where there are zeros. Not by
  // the words that `look` has made, or all of those would be kept for it.
  __device__ __forceinline__ unsigned look_closer() {
    unsigned nonzeros = 0;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) {
      least[c] = ~0u;
#pragma unroll
      for (int s = c; s < (TRANS_B ? c + 1 : HELD); ++s)
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
          const unsigned magnitude = __float_as_uint(held[s][i]) & 0x7fffffffu;
          least[c] = min(least[c], magnitude - 1);  // a zero wraps around
          nonzeros += (magnitude != 0) << 8 * c;
        }
      least[c] = least[c] == ~0u ? ~0u : (least[c] + 1) << 1;
    }
    return nonzeros;
  }

  // Whether lanes `lane` apart share a column.
  __device__ static constexpr bool shared(int lane) {
    return TRANS_B ? lane == 1 || lane == 2 || lane == 8 : lane >= PART;
  }

  // A bit for each of the warp's columns that has elements that lose bits.
  __device__ __forceinline__ unsigned lossy_columns() const {
    unsigned mine = 0, all = 0;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) mine |= (top[c] - min(top[c], least[c]) > unsigned(SPAN) << 24) << c;
    if (__builtin_expect(!__any_sync(~0u, mine), 1)) return 0;
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) all |= (mine >> c & 1) << column % PART + 4 * c;
    return __reduce_or_sync(~0u, all);
  }

  // The planes of what is held, scaled by a power of two that brings each column to where FP16 has all its bits.
  // Whether there are infinities, NaN, exponents too large or too small among this lane's columns.
  __device__ __forceinline__ bool split(unsigned to, unsigned scales) const {
    unsigned high = 0, low = ~0u;  // of columns' largest elements: the largest; the smallest that is not zero, minus 1
    float up[LANE_COLUMNS];
#pragma unroll
    for (int c = 0; c < LANE_COLUMNS; ++c) {
      high = max(high, top[c]);
      low = min(low, top[c] - 1);
      const int shift = shift_to_top(static_cast<int>(top[c] >> 24) - 127);
      up[c] = __uint_as_float((127 + shift) << 23);
      if (piece == 0) store_shared(scales + 4 * (column + 4 * c), top[c] ? unsigned(127 - shift) << 23 : 0u);
    }
#pragma unroll
    for (int s = 0; s < HELD; ++s) {
      unsigned first[PIECE / 2], second[PIECE / 2];
#pragma unroll
      for (int i = 0; i < PIECE; i += 2) {
        const float x = held[s][i] * up[TRANS_B ? s : 0], y = held[s][i + 1] * up[TRANS_B ? s : 0];
        const unsigned both = first[i / 2] = halves_of(x, y);
        second[i / 2] = rest_of(x, y, both, LOW_SCALE);
      }
      const unsigned at = place_of_piece(to, s);
      store_shared(at, first);
      store_shared(at + B_PLANE, second);
    }
    return static_cast<int>(high >> 24) - 127 > APART_HIGHEST ||
           (low != ~0u && static_cast<int>((low + 1) >> 24) - 127 < APART_LOWEST);
  }

  // What is held, chunk `chunk`, to a stage and a tail; the next one before chunk `end` is asked for.
  __device__ __forceinline__ void bring(unsigned to, unsigned tail, unsigned barrier, const Emulated& e, int chunk,
                                        int end) {
    unsigned more = LANE_COLUMNS > 1 ? 0x01010101u * PIECE : HELD * PIECE;
    if (__builtin_expect(__any_sync(~0u, look()), 0)) more = look_closer();
    count(more);
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2)
      if (shared(lane))
#pragma unroll
        for (int c = 0; c < LANE_COLUMNS; ++c) top[c] = max(top[c], __shfl_xor_sync(~0u, top[c], lane));
    unsigned told = lossy_columns();
    const bool broken = __any_sync(~0u, split(to, tail));
    chunk += HELPERS;
    const bool last = chunk >= end;
    if (broken || (last && sparse(e, chunk))) told |= BROKEN;
    const int lane = threadIdx.x % 32;
    if (lane == 0) store_shared(tail + BN * 4 + threadIdx.x % COPIERS / 32 * 4, told);
    fence_for_async_proxy();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barrier);
    // After the fence, which would wait for what is asked for before it.
    fetch(last ? 0 : e.g.K - chunk * CHUNK, e);
  }

  // Whether a column of the warp has fewer elements that are not zero than a split is good for, along all of K: those
  // of which this warp has seen few are counted in memory. `next` is at chunk `chunk`.
  __device__ __forceinline__ bool sparse(const Emulated& e, int chunk) const {
    const int enough = min(FEWEST, e.g.K);
    const float* const mine = next - (static_cast<long long>(chunk) * CHUNK + piece * PIECE) * e.b_col;
    bool few = false;
#pragma unroll 1
    for (int c = 0; c < LANE_COLUMNS; ++c) {
      int seen = counts >> 8 * c & 255;
#pragma unroll
      for (int other = 1; other < 32; other *= 2)
        if (shared(other)) seen += __shfl_xor_sync(~0u, seen, other);
      unsigned pending = __ballot_sync(~0u, piece == 0 && seen > 0 && seen < enough);
#pragma unroll 1
      for (; pending; pending &= pending - 1) {
        const float* const from = reinterpret_cast<const float*>(__shfl_sync(
            ~0u, reinterpret_cast<unsigned long long>(mine + 4 * c * e.b_row), __ffs(pending) - 1));
        few |= nonzeros(from, e.b_col, e.g.K, enough) < enough;
      }
    }
    return few;
  }
};

// What those who multiply have to know of it.
struct RightSeen {
  // Whether a chunk holds, and `lossy`: whether columns have lost bits. `told`: four words of its tail, a warp's each.
  __device__ __forceinline__ bool holds(const int4& told, int, bool& lossy) {
    const unsigned all = told.x | told.y | told.z | told.w;
    lossy = all & ~BROKEN;
    return !(all & BROKEN);
  }

  // Each column has its own.
  __device__ __forceinline__ static bool one_scale(const int4&) { return false; }
  __device__ __forceinline__ static float scale(const int4&) { return 0.f; }

  // A bit for each of 32 columns of the tile that have, from the `word`-th on.
  __device__ __forceinline__ static unsigned lossy_columns(const char* tail, int, int word) {
    const unsigned* const told = reinterpret_cast<const unsigned*>(tail + BN * 4) + 2 * word;
    return (told[0] & 0xffffu) | told[1] << 16;
  }

  __device__ __forceinline__ bool sparse(const Emulated&, char*, const Place&) const { return false; }
};
