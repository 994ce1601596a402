// Copies of one operand into shared memory, k outermost: element (k, row) of a stage lies at k * PITCH + row,
// whichever way the operand is stored. An operand is ROWS (M or N) by K here.
//
// K_INNER: k is contiguous in memory (A as "N", B as "T"). Four-byte copies transpose on the way in, LANES of them beside
// each other along k. Eight leave four rows for a warp, which a pitch of 4 modulo 32 sends to 32 banks; but each copy then
// touches four lines of memory: 512 bytes take an SM 29 cycles so, and 17.6 along a line. With 16 or 32 lanes the rows of
// every eight k-steps change places within their quad, so that banks differ, and who reads puts them back (turned). It
// takes an address for each row, though, where eight lanes need one for each four copies: large tiles, which copy
// little, lose up to 8 % (docs/notebook/03).
// Otherwise rows are contiguous: copies of WIDTH floats, 16 bytes where addresses and the number of rows allow.
//
// Where C is smaller than a tile (edge.cuh), zeros are written for what is outside and nothing is read there.
#include "include/ptx/cp_async.cuh"

template <bool K_INNER, int WIDTH, int ROWS, int EDGE_ROUNDS = 4, int COPYING = PRODUCERS, bool FIRST_UNROLLED = false,
          int LANES = 8, bool L1 = false>
struct Panel {
  static constexpr bool VIA_L1 = L1;  // copies of sixteen bytes
  static constexpr int PITCH = K_INNER ? ROWS + 4 : ROWS;
  static constexpr int FLOATS = BK * PITCH;  // of one stage
  // Straight copies: chunks of a row of shared memory, and how many lie beside each other in one round of copies, the
  // largest power of two that divides them: of words, a warp copies whole rows; of 16 bytes the warps share a row.
  static constexpr int CHUNKS = ROWS / WIDTH, EVEN = CHUNKS & -CHUNKS, MOST = WIDTH == 1 ? 32 : COPYING;
  static constexpr int BESIDE = K_INNER ? LANES : EVEN < MOST ? EVEN : MOST;
  static constexpr int BELOW = COPYING / BESIDE;  // rows (K_INNER) or k-steps that a round of copies covers
  // Rounds along the strided dimension, and along the contiguous one, where the distance is an immediate operand.
  static constexpr int FAR = ((K_INNER ? ROWS : BK) + BELOW - 1) / BELOW;
  static constexpr int NEAR = K_INNER ? BK / LANES : CHUNKS / BESIDE;
  // Rounds that one quad of rows takes, where they change places.
  static constexpr int IN_QUAD = K_INNER && LANES > 8 && BELOW < 4 ? 4 / BELOW : 1;
  // Row r of a quad lies at r ^ turned(k).
  __device__ static constexpr int turned(int k) {
    return !K_INNER || LANES == 8 ? 0 : LANES == 16 ? k / 8 % 2 * 2 : k / 8 % 4;
  }

  const float* next;   // this thread's first element of the next tile
  long long far, tile;  // bytes to the next round, to the next tile of BK k-steps
  unsigned line;      // its k-step in stage 0,
  unsigned to[IN_QUAD];  // and its places there, of the rounds that take a quad
  int k, row, rows;   // this thread's first k-step and row; rows that the tile has from there on

  __device__ __forceinline__ Panel(unsigned shared, int thread) {
    const int x = thread % BESIDE, y = thread / BESIDE;
    k = K_INNER ? x : y;
    row = K_INNER ? y : x * WIDTH;
    line = shared + 4 * k * PITCH;
#pragma unroll
    for (int i = 0; i < IN_QUAD; ++i) to[i] = line + 4 * ((row + i * BELOW) ^ turned(k));
  }

  // The tile whose first row is `first`, from k-step `from` on, be it negative.
  __device__ __forceinline__ void start(const float* operand, long long ld, int first, int total, int from) {
    far = 4 * BELOW * ld;
    tile = K_INNER ? 4 * BK : 4 * BK * ld;
    rows = total - first - row;
    next = K_INNER ? operand + (first + row) * ld + from + k : operand + (from + k) * ld + first + row;
  }

  // To the next tile.
  __device__ __forceinline__ void advance() {
    next = reinterpret_cast<const float*>(reinterpret_cast<const char*>(next) + tile);
  }

  __device__ __forceinline__ bool idle() const {
    return BELOW > (K_INNER ? ROWS : BK) && (K_INNER ? row >= ROWS : k >= BK);
  }

  // Copy one tile to the stage `at` (bytes): of the remainder of K only `steps` k-steps, the last ones of the first tile
  // or (AT_END) the first ones of the last.
  template <bool AT_END = false>
  __device__ __forceinline__ void copy(unsigned at, bool inside, int steps) {
    if (idle()) return;
    if (steps < BK) rounds<AT_END ? LAST_TILE : FIRST_TILE>(at, steps);
    else if (inside) rounds<INSIDE>(at, steps);
    else rounds<EDGE>(at, steps);
  }

  // A whole tile that lies inside, and on to the next. PTXAS(13.0): a row's address is the one before and `far`, by an
  // addition that it cannot see through: it would find some of them from the first one, by more instructions; write
  // `from += far`.
  __device__ __forceinline__ void copy_whole(unsigned at) {
    if (idle()) return;
    const float* from = next;
#pragma unroll
    for (int f = 0; f < FAR; ++f) {
      if (f) asm volatile("add.s64 %0, %0, %1;" : "+l"(from) : "l"(far));
#pragma unroll
      for (int n = 0; n < NEAR; ++n) copy_one(at + to[f % IN_QUAD], from, f, n, true);
    }
    advance();
  }

  // INSIDE tests nothing, EDGE the rows alone. As a loop of single rounds EDGE took 10 % longer, hence EDGE_ROUNDS;
  // wholly unrolled it crowds the registers of a kernel of large tiles, as do chunks of one to three floats and an
  // unrolled remainder of K, which comes once a tile; but small tiles have few rounds and little time (FIRST_UNROLLED).
  // One path for all, with the tests, slows copies of single words: 5 % at 4096 where both operands have K contiguous.
  enum Where { INSIDE, EDGE, FIRST_TILE, LAST_TILE };

  template <Where WHERE>
  __device__ __forceinline__ void rounds(unsigned at, int steps) {
    const char* from = reinterpret_cast<const char*>(next);
#pragma unroll(WHERE == INSIDE || (WHERE == FIRST_TILE && FIRST_UNROLLED) ? FAR : WHERE == EDGE ? EDGE_ROUNDS : 1)
    for (int f = 0; f < FAR; ++f, from += far)
#pragma unroll
      for (int n = 0; n < NEAR; ++n) {
        const int own = k + steps_to(f, n);
        const bool here = WHERE == FIRST_TILE ? own >= BK - steps : WHERE == LAST_TILE ? own < steps : true;
        const unsigned first = IN_QUAD > 1 ? line + 4 * ((row + f % IN_QUAD * BELOW) ^ turned(k)) : to[0];  // f may be no constant
        copy_one(at + first, reinterpret_cast<const float*>(from), f, n, WHERE == INSIDE || (rows > rows_to(f, n) && here));
      }
  }

  // From a thread's first element to that of round f, n: k-steps, and rows.
  __device__ static constexpr int steps_to(int f, int n) { return K_INNER ? n * LANES : f * BELOW; }
  __device__ static constexpr int rows_to(int f, int n) { return K_INNER ? f * BELOW : n * BESIDE * WIDTH; }

  // Round f, n, of which `from` is the row's first element, and `first` the place of the one in the first quad; zeros where
  // it is not `valid`.
  __device__ __forceinline__ void copy_one(unsigned first, const float* from, int f, int n, bool valid) {
    const int steps_on = steps_to(f, n), rows_on = rows_to(f, n);
    const unsigned place = first + 4 * (steps_on * PITCH + rows_on - (IN_QUAD > 1 ? f % IN_QUAD * BELOW : 0));
    const float* const source = from + (K_INNER ? steps_on : rows_on);
    if constexpr (WIDTH == 4) copy16_or_zero<VIA_L1>(place, source, valid ? 4 : 0);
    else copy4_or_zero(place, source, valid);
  }
};
