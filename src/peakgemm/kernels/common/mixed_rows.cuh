// Copies of an operand whose rows are contiguous, an odd number of floats apart: of four that follow each other one begins
// at 16 bytes, one at 8 and two at words, whatever the address of the first. So each thread copies rows of all four kinds,
// by 4, 2 and 1 floats: 11 copies where words alone are 16, as many for each warp, and no branch. 255 takes 3.55 us so, 3.63
// by words, 511 9.07 and 9.26. Where the rows of a kind lie is found while the kernel before still runs; after that it takes
// 0.1 us more than it saves.
//
// P is the operand's panel (panel.cuh), of ROWS rows and COPYING threads, which does the rest.
template <typename P, int ROWS, int COPYING>
struct MixedRows {
  static constexpr int GROUPS = BK / 4;  // of four rows in memory each, one of each kind
  // Of kind 0 to 3, whose rows begin so many floats behind a multiple of 16 bytes: the floats of a copy, copies that lie
  // beside each other in a round, such rounds of a row, rows of a round, rounds of a tile.
  __device__ static constexpr int width(int kind) { return kind == 0 ? 4 : kind == 2 ? 2 : 1; }
  __device__ static constexpr int beside(int kind) {
    const int chunks = ROWS / width(kind), even = chunks & -chunks;
    return even < 32 ? even : 32;
  }
  __device__ static constexpr int near(int kind) { return ROWS / width(kind) / beside(kind); }
  __device__ static constexpr int below(int kind) { return COPYING / beside(kind); }
  __device__ static constexpr int far(int kind) { return (GROUPS + below(kind) - 1) / below(kind); }

  const float* next[4];  // of each kind: this thread's first element of the next tile,
  unsigned to[4];        // its place in stage 0,
  int k[4];              // and its k-step
  int thread;
  long long pitch, tile;  // bytes from row to row, to the next tile

  // From where panel `p`, which has been started, is; its rows are `ld` floats apart.
  __device__ __forceinline__ void start(const P& p, long long ld, int thread) {
    this->thread = thread;
    pitch = 4 * ld;
    tile = p.tile;
    const float* const first = p.next - (p.k * ld + p.row);
    const unsigned shared = p.line - 4 * p.k * P::PITCH;
    const int begins = static_cast<int>(reinterpret_cast<unsigned long long>(first) / 4), by = static_cast<int>(ld);
#pragma unroll
    for (int kind = 0; kind < 4; ++kind) {
      const int column = thread % beside(kind) * width(kind);
      // Row r begins `begins + r by` floats behind a multiple of 16 bytes; an odd number is its own inverse modulo 4.
      k[kind] = (((kind - begins) * by) & 3) + 4 * (thread / beside(kind));
      next[kind] = first + k[kind] * ld + column;
      to[kind] = shared + 4 * (k[kind] * P::PITCH + column);
    }
  }

  // A tile, and on to the next. Of the first one there are `steps` k-steps, the last ones.
  __device__ __forceinline__ void copy_whole(unsigned at) { copy_all<false>(at, BK); }
  __device__ __forceinline__ void copy_first(unsigned at, int steps) { copy_all<true>(at, steps); }

  template <bool FIRST>
  __device__ __forceinline__ void copy_all(unsigned at, int steps) {
    copy_kind<1, FIRST>(at, steps);
    copy_kind<3, FIRST>(at, steps);
    copy_kind<2, FIRST>(at, steps);
    copy_kind<0, FIRST>(at, steps);
  }

  template <int KIND, bool FIRST>
  __device__ __forceinline__ void copy_kind(unsigned at, int steps) {
    constexpr int ROUND = 4 * below(KIND);  // k-steps from round to round
    if (below(KIND) <= GROUPS || thread / beside(KIND) < GROUPS) {
      const float* from = next[KIND];
#pragma unroll
      for (int f = 0; f < far(KIND); ++f) {
        if (f) asm volatile("add.s64 %0, %0, %1;" : "+l"(from) : "l"(ROUND * pitch));
        const bool valid = !FIRST || k[KIND] + f * ROUND >= BK - steps;
#pragma unroll
        for (int n = 0; n < near(KIND); ++n) {
          const int right = n * beside(KIND) * width(KIND);
          const unsigned place = to[KIND] + at + 4 * (f * ROUND * P::PITCH + right);
          if constexpr (width(KIND) == 4) copy16_or_zero<P::VIA_L1>(place, from + right, valid ? 4 : 0);
          else if constexpr (width(KIND) == 2) copy8_or_zero(place, from + right, valid);
          else copy4_or_zero(place, from + right, valid);
        }
      }
    }
    next[KIND] = reinterpret_cast<const float*>(reinterpret_cast<const char*>(next[KIND]) + tile);
  }
};
