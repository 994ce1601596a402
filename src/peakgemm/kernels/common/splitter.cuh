// A warp that splits its part of both operands' chunks on their way from memory to the tensor cores. Registers hold
// all of it: as soon as an operand's is stored, they are the target of loads of the next chunk, so that some 48 KB an
// SM are on the way. Everything is done for all rows side by side: a warp has its scheduler nearly to itself, and with
// one row after another, waiting for each one's shuffles, 1024 took 42.9 us instead of 34.6.
//
// Where K is contiguous eight lanes share a row and a lane has a piece of every fourth row; else a lane has neighbouring
// pieces of one row.
constexpr int SPLIT_WARPS = PRODUCERS / 32;
constexpr int FUSED_HIGHEST = HIGHEST / 2, FUSED_LOWEST = LOWEST / 2;  // exponents: no two operands are compared
constexpr int SPAN = 27;  // binary orders: elements so far below their row's largest lose bits (LOSSY, TOP)
static_assert(SCHEME == FP16X3, "what is looked for in elements");

// What a lane has found. Magnitudes are integers: the bits of a float shifted left, which drops the sign.
struct Findings {
  unsigned high = 0, low = ~0u;  // of rows' largest elements: the largest; the smallest that is not zero, minus 1

  __device__ __forceinline__ void row(unsigned top) {
    high = max(high, top);
    low = min(low, top - 1);
  }

  // An infinity, a NaN, exponents too large or too small.
  __device__ __forceinline__ bool broken() const {
    return static_cast<int>(high >> 24) - 127 > FUSED_HIGHEST ||
           (low != ~0u && static_cast<int>((low + 1) >> 24) - 127 < FUSED_LOWEST);
  }
};

// To a byte of shared memory.
__device__ __forceinline__ void store_shared(unsigned to, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void store_shared(unsigned to, const unsigned (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}

// Its PART_ROWS rows of one operand.
template <bool K_INNER, int WIDTH, int PART_ROWS>
struct Part {
  static constexpr int HELD = PART_ROWS / 4;           // pieces a lane
  static constexpr int LANE_ROWS = K_INNER ? HELD : 1;  // rows that they belong to
  float held[HELD][PIECE];
  unsigned top[LANE_ROWS], least[LANE_ROWS];
  unsigned counts;    // a byte for each row: elements that are not zero, or 128 and more
  const float* next;  // this lane's first element of the chunk to be fetched
  long long step;     // elements: four rows on; or along K
  int row, piece;     // of the panel: the first that this lane holds,
  int place;          // and its byte in a stage's operand
  int there;          // rows from `row` to the edge
  bool inside;        // all lanes' rows are

  __device__ __forceinline__ Part(int warp, int lane) {
    // Eight lanes that store at a time are two rows by four pieces, or eight rows: eight different bank groups.
    row = warp * PART_ROWS + (K_INNER ? lane / 16 * 2 + lane / 4 % 2 : lane % PART_ROWS);
    piece = K_INNER ? lane % 4 + lane / 8 % 2 * 4 : lane / PART_ROWS * HELD;
    place = piece_at(row, piece);
  }

  // Of the s-th piece held: piece_at's swizzle is an exclusive or. Left to itself the compiler keeps all of them in
  // registers, that is, spills them.
  __device__ __forceinline__ unsigned place_of_piece(unsigned operand, int s) const {
    return K_INNER ? (operand + place ^ s % 2 * 32) + s * 4 * 64 : operand + place ^ s * 16;
  }

  __device__ __forceinline__ void count(unsigned more) {  // a byte each, 32 at most
    const unsigned full = (counts & 0x80808080u) >> 7;
    counts += more & ~(full * 255u);
  }

  // From row `first` of the operand and k-step `k` on.
  __device__ __forceinline__ void start(const float* operand, long long row_step, long long col_step, int first,
                                        int rows, int k) {
    step = K_INNER ? 4 * row_step : col_step;
    next = operand + (first + row) * row_step + (k + piece * PIECE) * col_step;
    there = rows - first - row;
    counts = 0;
    inside = __all_sync(~0u, there > (K_INNER ? PART_ROWS - 4 : 0));
  }

  // The next chunk, of which K has `left` elements.
  __device__ __forceinline__ void fetch(int left) {
    const float* from = next;
    if (inside && left >= CHUNK) {
#pragma unroll
      for (int s = 0; s < HELD; ++s, from += K_INNER ? step : 0)
#pragma unroll
        for (int i = 0; i < PIECE; i += K_INNER ? WIDTH : 1, from += K_INNER ? 0 : step) {
          if (K_INNER && WIDTH == 4)
            *reinterpret_cast<float4*>(&held[s][i]) = __ldg(reinterpret_cast<const float4*>(from + i));
          else
            held[s][i] = __ldg(from + (K_INNER ? i : 0));
        }
    } else {
#pragma unroll
      for (int s = 0; s < HELD; ++s, from += K_INNER ? step : 0) {
        const int rest = there > (K_INNER ? 4 * s : 0) ? left - (K_INNER ? piece : piece + s) * PIECE : 0;
#pragma unroll
        for (int i = 0; i < PIECE; ++i, from += K_INNER ? 0 : step)
          held[s][i] = i < rest ? __ldg(from + (K_INNER ? i : 0)) : 0.f;
      }
    }
    next += K_INNER ? CHUNK : CHUNK * step;
  }

  // The largest and the smallest magnitudes of what is held; whether there are zeros.
  __device__ __forceinline__ bool look() {
    bool zeros = false;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
      top[r] = 0;
      least[r] = ~0u;
#pragma unroll
      for (int s = r; s < (K_INNER ? r + 1 : HELD); ++s)
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
          const unsigned magnitude = __float_as_uint(held[s][i]) << 1;
          top[r] = max(top[r], magnitude);
          least[r] = min(least[r], magnitude);
        }
      zeros |= least[r] == 0;
    }
    return zeros;
  }

  // How many elements are not zero, a byte for each row, and the smallest of those: where there are zeros. Not by the
  // words that `look` has made, or all of those would be kept for it.
  __device__ __forceinline__ unsigned look_closer() {
    unsigned nonzeros = 0;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
      least[r] = ~0u;
#pragma unroll
      for (int s = r; s < (K_INNER ? r + 1 : HELD); ++s)
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
          const unsigned magnitude = __float_as_uint(held[s][i]) & 0x7fffffffu;
          least[r] = min(least[r], magnitude - 1);  // a zero wraps around
          nonzeros += (magnitude != 0) << 8 * r;
        }
      least[r] = least[r] == ~0u ? ~0u : (least[r] + 1) << 1;
    }
    return nonzeros;
  }

  // Whether lanes `lane` apart share a row.
  __device__ static constexpr bool shared(int lane) {
    return K_INNER ? lane == 1 || lane == 2 || lane == 8 : lane >= PART_ROWS;
  }

  __device__ __forceinline__ void share(int lane) {
    if (shared(lane))
#pragma unroll
      for (int r = 0; r < LANE_ROWS; ++r) top[r] = max(top[r], __shfl_xor_sync(~0u, top[r], lane));
  }

  __device__ __forceinline__ int row_sum(int x) const {
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2)
      if (shared(lane)) x += __shfl_xor_sync(~0u, x, lane);
    return x;
  }

  // Whether a row has elements that lose bits, among this lane's; a bit for each of the rows held.
  __device__ __forceinline__ unsigned lossy() const {
    unsigned rows = 0;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) rows |= (top[r] - min(top[r], least[r]) > unsigned(SPAN) << 24) << r;
    return rows;
  }

  // Those bits of all lanes, where the rows are in the warp's part.
  __device__ __forceinline__ unsigned lossy_rows(unsigned mine) const {
    unsigned rows = 0;
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) rows |= (mine >> r & 1) << row % PART_ROWS + 4 * r;
    return __reduce_or_sync(~0u, rows);
  }

  // The planes of what is held, scaled by a power of two that brings each row to where FP16 has all its bits.
  __device__ __forceinline__ void split(unsigned operand, unsigned scales, Findings& found) const {
    float up[LANE_ROWS];
#pragma unroll
    for (int r = 0; r < LANE_ROWS; ++r) {
      found.row(top[r]);
      const int shift = max(min(TOP + 127 - static_cast<int>(top[r] >> 24), 126), -126);
      up[r] = __uint_as_float((127 + shift) << 23);
      if (piece == 0) store_shared(scales + 4 * (row + 4 * r), top[r] ? (127 - shift) << 23 : 0);
    }
#pragma unroll
    for (int s = 0; s < HELD; ++s) {
      unsigned high[PIECE / 2], low[PIECE / 2];
#pragma unroll
      for (int i = 0; i < PIECE; i += 2) {
        const float x = held[s][i] * up[K_INNER ? s : 0], y = held[s][i + 1] * up[K_INNER ? s : 0];
        const unsigned both = high[i / 2] = halves_of(x, y);
        low[i / 2] = halves_of((x - of_half(both & 0xffffu)) * LOW_SCALE, (y - of_half(both >> 16)) * LOW_SCALE);
      }
      const unsigned to = place_of_piece(operand, s);
      store_shared(to, high);
      store_shared(to + PLANE, low);
    }
  }
};

// Splits what is held of both operands into a stage and fetches the next chunk, of which K has `left` elements.
// `lossy` gets a bit for each row of A and, further up, of B that has elements that lose bits.
template <class PartA, class PartB>
__device__ __forceinline__ void split_chunk(PartA& a, PartB& b, unsigned stage, unsigned scales, unsigned lossy,
                                            Findings& found, int left) {
  unsigned count_a = (PartA::LANE_ROWS > 1 ? 0x01010101u * PIECE : PartA::HELD * PIECE);
  unsigned count_b = (PartB::LANE_ROWS > 1 ? 0x01010101u * PIECE : PartB::HELD * PIECE);
  const bool zeros_a = a.look(), zeros_b = b.look();
  if (__builtin_expect(__any_sync(~0u, zeros_a || zeros_b), 0)) {
    count_a = a.look_closer();
    count_b = b.look_closer();
  }
  a.count(count_a);
  b.count(count_b);
#pragma unroll
  for (int lane = 1; lane < 32; lane *= 2) {
    a.share(lane);
    b.share(lane);
  }
  const unsigned lossy_a = a.lossy(), lossy_b = b.lossy();
  unsigned rows = 0;
  if (__builtin_expect(__any_sync(~0u, lossy_a | lossy_b), 0)) {
    rows = a.lossy_rows(lossy_a) | b.lossy_rows(lossy_b) << ROWS / SPLIT_WARPS;
    if (__popc(rows) > MOST_LOSSY) found.high = ~0u;
  }
  if (threadIdx.x % 32 == 0) store_shared(lossy, rows);
  a.split(stage, scales, found);
  a.fetch(left);
  b.split(stage + 2 * HALF, scales + 4 * ROWS, found);
  b.fetch(left);
}

// Whether rows that have lost bits in a chunk meet large enough sums, in `group`'s half of the tile; `lossy` is what the
// splitting warps have told. All warps of the group come to the same result.
__device__ __forceinline__ bool lossy_chunk_holds(const char* stage, const float* scales, const unsigned* lossy,
                                                  int group) {
  const char* const other = stage + 2 * HALF;
  bool hold = true;
#pragma unroll 1
  for (int warp = 0; warp < SPLIT_WARPS; ++warp)
#pragma unroll 1
    for (unsigned rows = lossy[warp]; rows; rows &= rows - 1) {
      const int bit = __ffs(rows) - 1, column = bit - ROWS / SPLIT_WARPS;
      if (column >= 0)
        hold = lossy_row_holds(other, warp * (BN / SPLIT_WARPS) + column, stage, scales, 64 * group, 64 * group + 64) &&
               hold;
      else if (warp / (SPLIT_WARPS / 2) == group)
        hold = lossy_row_holds(stage, warp * (ROWS / SPLIT_WARPS) + bit, other, scales + ROWS, 0, BN) && hold;
    }
  return __all_sync(~0u, hold);
}

// Whether a row of this warp's part has fewer elements that are not zero than a split is good for, along all of K. Where
// the segment was not all of K, rows of which it has seen few are counted from memory.
template <class Part>
__device__ __forceinline__ bool sparse(const Part& part, const float* operand, long long row_step, long long col_step,
                                       int first, int K, bool all_of_k) {
  const int lane = threadIdx.x % 32, enough = min(FEWEST, K);
  bool few = false;
#pragma unroll 1
  for (int r = 0; r < Part::LANE_ROWS; ++r) {
    const int count = part.row_sum(part.counts >> 8 * r & 255);
    unsigned pending = __ballot_sync(~0u, part.piece == 0 && count > 0 && count < enough);
    if (all_of_k) {
      few |= pending != 0;
      continue;
    }
    while (pending) {
      const int leader = __ffs(pending) - 1;
      pending &= pending - 1;
      const int row = __shfl_sync(~0u, part.row, leader) + 4 * r;
      const float* const from = operand + (first + row) * row_step;
      int seen = 0;
#pragma unroll 1
      for (int k = lane; k - lane < K && seen < enough; k += 32)
        seen += __popc(__ballot_sync(~0u, k < K && from[k * col_step] != 0.f));
      few |= seen < enough;
    }
  }
  return few;
}
