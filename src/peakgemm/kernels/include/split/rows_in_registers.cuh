// Rows of A from memory to the registers of the threads that multiply: copied as they are into shared memory, then
// read, scaled and split by the threads whose rows they are.
#include "include/ptx/cp_async.cuh"
#include "include/ptx/opaque.cuh"
#include "include/split/guard.cuh"
#include "include/split/streamed_stage.cuh"

constexpr int LOSSY_EXPONENT = -13;
static_assert(SCHEME == FP16X3 && LOSSY == 0x1p-13f, "what is looked for in elements");

// Of a row whose largest magnitude has these bits: the binary orders that its elements are scaled by. Three below
// FP16's end, so that the next chunks, whose largest are seldom eight times larger, can keep the scale.
constexpr int AIM = TOP - 2, MOST_DRIFT = 32, UNSCALED = 1 << 20;
__device__ __forceinline__ int shift_of(unsigned largest) {
  return max(min(AIM + 127 - static_cast<int>(largest >> 23), 126), -126);
}
__device__ __forceinline__ float power_of_two(int exponent) { return __uint_as_float((127 + exponent) << 23); }

// Where a chunk's elements lie in a stage, a line beside the other: of 64 k-steps (K_INNER) or of 128 rows.
//
// Where lines of A start at 16 bytes, groups of eight words are exchanged, so that no two words that a half warp reads
// share a bank. Where they start anywhere, they are copied from the 16 bytes on in which they start, and lie as far
// into their line here as they do there: 17 (or 33) copies a line instead of 64 (128) of single words.
template <bool K_INNER, int WIDTH>
struct Lines {
  static constexpr bool ALIGNED_LINES = WIDTH == 4;
  static constexpr int LINES = K_INNER ? BM : CHUNK, LENGTH = K_INNER ? CHUNK : BM;
  static constexpr int PITCH = ALIGNED_LINES ? LENGTH : LENGTH + 4;
  int begin, step;  // words from the 16 bytes before the first line to it, and more for each line; modulo 4

  // `first`: of the tile, its first element at a k-step that is a multiple of 64; `line`: elements to the next line.
  __device__ __forceinline__ Lines(const float* first, long long line)
      : begin(static_cast<int>(reinterpret_cast<unsigned long long>(first) / 4 % 4)),
        step(static_cast<int>(line % 4)) {}

  __device__ __forceinline__ int skew(int line) const { return ALIGNED_LINES ? 0 : begin + line * step & 3; }

  // Byte of element (row, k).
  __device__ __forceinline__ int at(int row, int k) const {
    const int line = K_INNER ? row : k, along = K_INNER ? k : row;
    if (!ALIGNED_LINES) return (line * PITCH + skew(line) + along) * 4;
    return (line * PITCH + (along ^ (K_INNER ? (row & 3) << 3 : (k / 2 & 3) << 3))) * 4;
  }
};

// Sixteen bytes past L1; where `wanted` is false nothing is read and zeros are written. One instruction: the number of
// bytes as an operand, with all that it may be, takes ten.
__device__ __forceinline__ void copy16_where(bool wanted, unsigned to, const float* from) {
  asm volatile(
      "{.reg .pred p; setp.eq.b32 p, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, p;}" ::"r"(to), "l"(from), "r"(static_cast<int>(wanted)) : "memory");
}

// Whether all rows of a tile end where another one begins, so that what is past the end of K may be that one; `rows`: to
// the edge. Who splits B as well has no registers for it.
__device__ __forceinline__ bool next_row_follows(const Emulated& e, int rows) {
  return !SPLIT_B && e.a_row == e.g.K && e.g.K >= CHUNK && rows > BM;
}

// The part that one of COPIERS threads has in copying, 16 bytes at a time. What can be had from the launch's arguments
// is not kept: producers have few registers, and one that is spilled comes back behind all copies that are under way.
template <bool K_INNER, int WIDTH>
struct RowCopies {
  using Layout = Lines<K_INNER, WIDTH>;
  static constexpr int BESIDE = Layout::LENGTH / 4;  // copies of a line, but for the one that a skew adds
  static constexpr int BELOW = COPIERS / BESIDE, ROUNDS = Layout::LINES / BELOW;
  const float* first;  // the tile's first element of this warpgroup's next chunk
  int rows;            // from the tile's first to the edge
  int before;          // elements that A has before `first`, or more than 3

  __device__ __forceinline__ RowCopies(const float* tile, int there, long long before_)
      : first(tile), rows(there), before(before_ < 4 ? static_cast<int>(before_) : 4) {}

  // A chunk to the stage `to`, of which K has `left`; on to this warpgroup's next. What lies past the edge counts
  // nowhere, as B's planes are zero from K on and results of rows from M on are not stored. There are copies of what
  // lies before it, past the end of K of the next row, or zeros: copies with a predicate take so long that all wait for
  // the tiles at the edge.
  __device__ __forceinline__ void copy(unsigned to, int left, int thread, const Emulated& e) {
    const long long line = opaque(K_INNER ? e.a_row : e.a_col);
    const Layout lines(first, line);
    const int line_at = thread / BESIDE, x_at = thread % BESIDE * 4;
    const int lines_there = K_INNER ? rows : left, length = K_INNER ? left : rows;
    const int skew = lines.skew(line_at);
    bool there = line_at < lines_there;
    int x = x_at - skew;
    if (!K_INNER && x >= length) x = (length + skew) / 4 * 4 - 4 - skew, there &= x >= 0;  // the last four inside
    const float* from = first + line_at * line + x;
    const unsigned place = to + (line_at * Layout::PITCH + x_at) * 4;
    const bool careful = before + line_at * line + x < 0;  // the first of four is before A
    const bool next_row = K_INNER && next_row_follows(e, rows);
    const bool whole = there && (x + 4 <= length || next_row) && !careful;
    if (whole && lines_there >= Layout::LINES) {
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) copy16_if(true, swizzled(place, line_at, i), from + i * BELOW * line);
    } else if (whole) {
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) {
        copy16_if(true, swizzled(place, line_at, i), from);
        if (line_at + (i + 1) * BELOW < lines_there) from += BELOW * line;
      }
    } else {
      int begin = careful ? -x : 0;
#pragma unroll 1
      for (int i = 0; i < ROUNDS; ++i) {
        copy_piece(swizzled(place, line_at, i), from, there ? length - x : 0, begin);
        if (line_at + (i + 1) * BELOW < lines_there) from += BELOW * line, begin = 0;
      }
    }
    if (!Layout::ALIGNED_LINES && thread < Layout::LINES) {
      const int skew = lines.skew(thread), last = Layout::LENGTH - skew;
      copy_piece(to + (thread * Layout::PITCH + Layout::LENGTH) * 4, first + thread * line + last,
                 thread < lines_there && skew ? next_row ? 4 : length - last : 0, 0);
    }
    first += HELPERS * CHUNK * (K_INNER ? 1 : line);
    before = 4;
  }

  // Four words, of which those from `begin` on and before `valid` are read. Copies of 16 bytes read nothing else, but
  // compute-sanitizer takes them for more.
  __device__ __forceinline__ static void copy_piece(unsigned to, const float* from, int valid, int begin) {
    if (begin || (valid > 0 && valid < 4)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) copy4_or_zero(to + 4 * i, from + i, i >= begin && i < valid);
    } else {
      copy16_where(valid > 0, to, from);
    }
  }

  // Of the i-th round: that many lines further down, the swizzle of which is the same or, of k-steps, turned by half.
  __device__ __forceinline__ static unsigned swizzled(unsigned place, int y, int i) {
    if (!Layout::ALIGNED_LINES) return place + i * BELOW * Layout::PITCH * 4;
    const int turn = K_INNER ? (y & 3) << 5 : (y / 2 + i * BELOW / 2 & 3) << 5;
    return (place ^ turn) + i * BELOW * Layout::PITCH * 4;
  }
};

// Two rows of a chunk, as wgmma wants them of this thread, and what has been seen of them.
//
// A row's scale is that of the tile's first chunk until a chunk overflows FP16 or has elements so small that they lose
// bits: its largest element is looked for then alone, and sums are kept in the row's scale.
template <bool K_INNER, int WIDTH>
struct RowsInRegisters {
  using Layout = Lines<K_INNER, WIDTH>;
  unsigned high[4][4], low[4][4];  // planes, for each 16 of K
  int shift[2];                    // binary orders that the rows are scaled by,
  int lowest[2], highest[2];       // so far
  unsigned pending;                // bits that `split` returns as long as all of a row has been zero: it has no scale
  int missing[2];                  // elements that are zero
  unsigned outside[2];             // of rows past the edge all bits: their zeros are none
  bool broken;                     // infinities, NaN, exponents out of bounds
  unsigned even, odd;              // bytes in a stage: of this thread's first k-step, and of the next one

  // Elements (row + 8 r, k..k+1) of the thread's, k = 8 i. PTXAS(13.0): volatile, or it keeps what `split` has read for
  // those who seldom look at it again, and computes planes twice to have the registers; leave volatile out, peakgemm
  // sass.
  __device__ __forceinline__ float2 pair(unsigned stage, int r, int i) const {
    constexpr int LINE = Layout::PITCH * 4;
    float2 v;
    if (K_INNER && WIDTH == 4) {
      asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(v.x), "=f"(v.y) : "r"((stage + even ^ (i % 4 << 5)) + i / 4 * 128 + r * 8 * LINE));
    } else {
      const unsigned to = K_INNER ? r * 8 * LINE + i * 32 : i * 8 * LINE + (WIDTH == 4 ? 0 : r * 32);
      const unsigned x = stage + even, y = stage + odd, turn = !K_INNER && WIDTH == 4 ? r << 5 : 0;
      asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(v.x) : "r"((x ^ turn) + to));
      asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(v.y) : "r"((y ^ turn) + to));
    }
    return v;
  }

  // The largest magnitudes of a chunk's rows, NaN where there is one.
  __device__ __forceinline__ void largest(unsigned from, float (&most)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float2 x = pair(from, r, i);
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most[r]) : "f"(fabsf(x.x)));
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most[r]) : "f"(fabsf(x.y)));
      }
    }
#pragma unroll
    for (int lane = 1; lane <= 2; lane *= 2)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most[r]) : "f"(__shfl_xor_sync(~0u, most[r], lane)));
  }

  __device__ __forceinline__ void bound(unsigned largest) {
    const int exponent = static_cast<int>(largest >> 23) - 127;
    broken |= exponent > APART_HIGHEST || (largest && exponent < APART_LOWEST);
  }

  // The tile's first chunk, in the stage `from`; `row` and `k` are this thread's first, `there` the rows from there to
  // the edge.
  __device__ __forceinline__ void start(unsigned from, const Layout& lines, int row, int k, int there) {
    even = lines.at(row, k), odd = lines.at(row, k + 1);
    float most[2];
    largest(from, most);
    broken = false;
    pending = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned bits = __float_as_uint(most[r]);
      bound(bits);
      shift[r] = bits ? shift_of(bits) : 0;
      lowest[r] = bits ? shift[r] : UNSCALED;
      highest[r] = bits ? shift[r] : -UNSCALED;
      missing[r] = 0;
      outside[r] = there > 8 * r ? 0 : ~0u;
      if (!bits && !outside[r]) pending = 0x8000u;
    }
  }

  // Splits a chunk. Whether something may be wrong, and `over`: whether it is overflow, an infinity or a NaN.
  __device__ __forceinline__ bool split(unsigned from, bool& over) {
    float2 held[2][8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) held[r][i] = pair(from, r, i);
    const float up[2] = {power_of_two(shift[0]), power_of_two(shift[1])};
    // Of the first plane, two at a time; both rows together, an instruction instead of two for each 16 bytes of planes.
    unsigned most = 0, least = 0x7bff7bffu;
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = held[i % 2][2 * k + i / 2];
        const float first = x.x * up[i % 2], second = x.y * up[i % 2];
        const unsigned both = high[k][i] = halves_of(first, second);
        low[k][i] = rest_of(first, second, both, LOW_SCALE);
        asm("{.reg .b32 x; abs.f16x2 x, %2; max.NaN.f16x2 %0, %0, x; min.NaN.f16x2 %1, %1, x;}"
            : "+r"(most), "+r"(least) : "r"(both));
      }
    // All is done before the warpgroup asks for its turn at the tensor cores.
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(high[k][i]), "+r"(low[k][i]));
    over = (most + 0x04000400u) & 0x80008000u;  // in either half
    // Less than 2^-13. A row past the edge beside one inside has copies of others, seldom zeros (RowCopies), and `look` knows
    // better.
    return over || (pending | (least - 0x08000800u & ~(outside[0] & outside[1]))) & 0x80008000u;
  }

  // Where something may be wrong with a chunk: counts each row's zeros, and of either row whether elements lose bits.
  __device__ __forceinline__ void look(unsigned from, int (&zeros)[2], bool (&small)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // PTXAS(13.0): as an integer, for of __float_as_uint(LOSSY * power_of_two(-shift[r])) << 1 it makes 0 (13.4 as
      // well); write that, and the guard's tests fail on a GPU.
      const unsigned limit = max(127 + LOSSY_EXPONENT - shift[r], 1) << 24;
      zeros[r] = 0, small[r] = false;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float2 v = pair(from, r, i);
        const unsigned x = __float_as_uint(v.x) << 1, y = __float_as_uint(v.y) << 1;  // without the sign
        zeros[r] += (x == 0) + (y == 0);
        small[r] |= x - 1 < limit - 1 || y - 1 < limit - 1;
      }
      small[r] = small[r] && !outside[r];
    }
  }

  // Scales rows of a chunk anew where that helps, and `sum` with them; whether it did, so that the chunk is to be split
  // again.
  template <int SUMS>
  __device__ __forceinline__ bool scale_anew(unsigned from, const bool (&small)[2], float (&sum)[SUMS]) {
    float most[2], factor[2];
    largest(from, most);
    bool changed = false;
    pending = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned quad = __ballot_sync(~0u, small[r]) >> threadIdx.x % 32 / 4 * 4 & 15u;
      const unsigned bits = __float_as_uint(most[r]);
      bound(bits);
      const int wanted = shift_of(bits);
      const bool over = !(most[r] * power_of_two(shift[r]) < 65504.f);
      const bool unscaled = lowest[r] == UNSCALED;  // and its sums are zero
      factor[r] = 1.f;
      if (bits && bits < 0x7f800000u && (over || unscaled || (quad && wanted > shift[r]))) {
        changed |= wanted != shift[r];
        factor[r] = power_of_two(max(min(wanted - shift[r], MOST_DRIFT), -MOST_DRIFT));
        shift[r] = wanted;
        lowest[r] = min(lowest[r], wanted);
        highest[r] = max(highest[r], wanted);
        broken |= highest[r] - lowest[r] > MOST_DRIFT;  // sums could leave FP32's range
      }
      if (lowest[r] == UNSCALED && !outside[r]) pending = 0x8000u;
    }
    if (!__any_sync(~0u, changed)) return false;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] *= factor[i / 2 % 2];
    return true;
  }

  // What the quad knows of this lane's two rows, a bit each: which have `small` elements; and, two bits up, where
  // columns have lost bits, which have elements that are not zero.
  __device__ __forceinline__ unsigned marks(const bool (&small)[2], bool columns) const {
    unsigned marks = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) bits |= high[i / 2][i % 2 * 2 + r];
      marks |= static_cast<unsigned>(small[r]) << r;
      marks |= static_cast<unsigned>(columns && !outside[r] && bits & 0x7fff7fffu) << 2 + r;
    }
    marks |= __shfl_xor_sync(~0u, marks, 1);
    return marks | __shfl_xor_sync(~0u, marks, 2);
  }
};
