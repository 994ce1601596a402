// ROWS_HERE rows of an operand by BK of K, copied as they are into shared memory by COPIERS threads, the block's last.
//
// A line is what is contiguous: BK k-steps of a row (K_INNER), or all rows of a k-step. WIDTH 4: lines start at 16 bytes.
// WIDTH 1: anywhere; they are copied from the 16 bytes on in which they start, and lie as far into their line here as
// they do there.
//
// IN_COLUMN: lanes that read are side by side in rows, at one k-step; else they are eight rows by four groups of four
// k-steps. Groups of words are exchanged so that no two that are read at a time share a bank.
template <bool K_INNER, int WIDTH, int ROWS_HERE, bool IN_COLUMN>
struct RawPanel {
  static constexpr bool ALIGNED_LINES = WIDTH == 4;
  static constexpr int LINES = K_INNER ? ROWS_HERE : BK, LENGTH = K_INNER ? BK : ROWS_HERE;
  static constexpr int PITCH = ALIGNED_LINES ? LENGTH : LENGTH + 4;
  static constexpr int BYTES = LINES * PITCH * 4;
  static constexpr int BESIDE = LENGTH / 4, BELOW = COPIERS / BESIDE, ROUNDS = (LINES + BELOW - 1) / BELOW;
  static_assert(BELOW, "a round covers whole lines");
  static constexpr int NEVER = 0x7fffffff;
  const float* from;  // this thread's first words of the next chunk
  long long line;     // elements from line to line
  int enough;         // of K that is left: then all that this thread copies is there
  int rows;           // to the edge
  int before;         // elements that the operand has before the chunk, or more than 3
  int phase;          // words that the tile's first line is into its 16 bytes
  int x;              // along its line, this thread's first word

  // `offset`: of the tile's first element; `there`: rows from it to the edge.
  __device__ __forceinline__ RawPanel(const float* operand, long long offset, long long row_step, long long col_step,
                                      int there)
      : line(K_INNER ? row_step : col_step), rows(there) {
    const float* const first = operand + offset;
    phase = ALIGNED_LINES ? 0 : static_cast<int>(reinterpret_cast<unsigned long long>(first) / 4 % 4);
    const int thread = threadIdx.x % COPIERS, at = thread / BESIDE, skewed = skew(at);
    x = thread % BESIDE * 4 - skewed;
    // Past the edge the last four inside, or what looks at elements would look closer for zeros.
    if (!K_INNER && rows >= 8 && x >= rows + (ALIGNED_LINES ? 0 : 3)) x = (rows + skewed) / 4 * 4 - 4 - skewed;
    from = first + at * line + x;
    before = offset < 4 ? static_cast<int>(offset) : 4;
    // Of what is past the edge there are copies of what is inside: lines that stand still.
    const bool inside = K_INNER ? at < rows : ALIGNED_LINES ? x + 4 <= rows : thread % BESIDE * 4 + 4 <= rows;
    const bool careful = !ALIGNED_LINES && before < 4 && (line < 4 || before + at * line + x < 0);
    enough = careful || !inside || at >= LINES ? NEVER : K_INNER ? x + 4 : BK;
  }

  __device__ __forceinline__ int skew(int at) const {
    return ALIGNED_LINES ? 0 : phase + static_cast<int>(line) * at & 3;
  }

  __device__ __forceinline__ static int turn(int at) {  // words, exclusive or
    if (!ALIGNED_LINES || (IN_COLUMN && !K_INNER)) return 0;
    if (IN_COLUMN) return (at & 7) << 2;
    return K_INNER ? (at & 1) << 4 : (at / 4 & 3) << 3;
  }

  // The next chunk, of which K has `left`, to `to`. Past the end of K are zeros, past the edge zeros or what is inside.
  __device__ __forceinline__ void copy(unsigned to, int left) {
    const int thread = threadIdx.x % COPIERS, at = thread / BESIDE;
    const unsigned place = to + (at * PITCH + (thread % BESIDE * 4 ^ turn(at))) * 4;
    // Lines four apart have one skew; others' words begin as much earlier as they lie farther in here.
    const auto more = [&](int i) { return ALIGNED_LINES || BELOW % 4 == 0 ? 0 : skew(at) - skew(at + i * BELOW); };
    const float* source = from;
    if (left >= enough) {
      if (!K_INNER || rows >= LINES) {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i, source += BELOW * line)
          copy16_if(true, of_round(place, i), source + more(i));
      } else {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) {
          copy16_if(true, of_round(place, i), source);
          if (at + (i + 1) * BELOW < rows) source += BELOW * line;
        }
      }
    } else {
      const int lines = K_INNER ? rows : left, valid = (K_INNER ? left : rows) - x;
#pragma unroll 1
      for (int i = 0; i < ROUNDS && at + i * BELOW < LINES; ++i) {
        const bool there = K_INNER ? at < lines : at + i * BELOW < lines;
        const int begin = ALIGNED_LINES ? 0 : static_cast<int>(max(-(before + (source - from) + at * line + x + more(i)), 0ll));
        copy_piece(of_round(place, i), source + more(i), there ? valid - more(i) : 0, begin);
        if (at + (i + 1) * BELOW < lines) source += BELOW * line;
      }
    }
    if (!ALIGNED_LINES) {  // what the skew has left over of a line
#pragma unroll
      for (int i = 0; i < LINES; i += COPIERS) {
        const int here = thread + i, skewed = skew(here), behind = LENGTH - skewed;
        if (here >= LINES) break;
        const int lines = K_INNER ? rows : left, length = K_INNER ? left : rows;
        copy_piece(to + (here * PITCH + LENGTH) * 4, from + (here - at) * line + (behind - x),
                   here < lines && skewed ? length - behind : 0, 0);
      }
    }
    from += K_INNER ? BK : BK * line;
    before = 4;
  }

  __device__ __forceinline__ static unsigned of_round(unsigned place, int i) {
    return (place ^ turn(i * BELOW) * 4) + i * BELOW * PITCH * 4;  // BELOW is a power of two: no carry
  }

  // Four words, of which those from `begin` on and before `valid` are read.
  __device__ __forceinline__ static void copy_piece(unsigned to, const float* from, int valid, int begin) {
    if (begin || (valid > 0 && valid < 4)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) copy4_or_zero(to + 4 * i, from + i, i >= begin && i < valid);
    } else {
      copy16_or_zero(to, from, valid);
    }
  }
};
