// Copies of one operand into shared memory, k outermost: element (k, row) of a stage lies at k * PITCH + row,
// whichever way the operand is stored. An operand is ROWS (M or N) by K here.
//
// K_INNER: k is contiguous in memory (A as "N", B as "T"). Four-byte copies transpose on the way in: eight
// lanes along k, four along the rows, and a pitch of 4 modulo 32 sends the 32 words to 32 banks.
// Otherwise rows are contiguous: copies of WIDTH floats, 16 bytes where addresses and the number of rows allow.
//
// Where C is smaller than a tile (edge.cuh), zeros are written for what is outside and nothing is read there.
template <bool K_INNER, int WIDTH, int ROWS, int EDGE_ROUNDS = 4, int COPYING = PRODUCERS, bool FIRST_UNROLLED = false>
struct Panel {
  static constexpr int PITCH = K_INNER ? ROWS + 4 : ROWS;
  static constexpr int FLOATS = BK * PITCH;  // of one stage
  // Straight copies: chunks of a row of shared memory, how many lie beside each other in one round of copies
  // (the largest power of two that divides them), rounds beside each other, whose addresses are free: of words, a warp
  // copies whole rows (0.5 % at 2047); of 16 bytes the warps share a row (with one each, 2048 takes 5 % longer).
  static constexpr int CHUNKS = ROWS / WIDTH, EVEN = CHUNKS & -CHUNKS, MOST = WIDTH == 1 ? 32 : COPYING;
  static constexpr int BESIDE = K_INNER ? 8 : EVEN < MOST ? EVEN : MOST;
  static constexpr int BELOW = COPYING / BESIDE;  // rows (K_INNER) or k-steps that a round of copies covers
  // Rounds along the strided dimension, and along the contiguous one, where the distance is an immediate operand.
  static constexpr int FAR = ((K_INNER ? ROWS : BK) + BELOW - 1) / BELOW;
  static constexpr int NEAR = K_INNER ? BK / 8 : CHUNKS / BESIDE;

  const float* next;   // this thread's first element of the next tile
  long long far, tile;  // bytes to the next round, to the next tile of BK k-steps
  unsigned to;        // its place in stage 0
  int k, row, rows;   // this thread's first k-step and row; rows that the tile has from there on

  __device__ __forceinline__ Panel(unsigned shared, int thread) {
    const int x = thread % BESIDE, y = thread / BESIDE;
    k = K_INNER ? x : y;
    row = K_INNER ? y : x * WIDTH;
    to = shared + 4 * (k * PITCH + row);
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

  // Copy one tile to the stage `at` (bytes): of the remainder of K only `steps` k-steps, the last ones of the first tile
  // or (AT_END) the first ones of the last.
  template <bool AT_END = false>
  __device__ __forceinline__ void copy(unsigned at, bool inside, int steps) {
    const bool idle = BELOW > (K_INNER ? ROWS : BK) && (K_INNER ? row >= ROWS : k >= BK);
    if (idle) return;
    if (steps < BK) rounds<AT_END ? LAST_TILE : FIRST_TILE>(at, steps);
    else if (inside) rounds<INSIDE>(at, steps);
    else rounds<EDGE>(at, steps);
  }

  // A whole tile that lies inside, and on to the next. A row's address is the one before and `far`, by an addition that
  // compilers cannot see through: they would find some of them from the first one, by more instructions.
  __device__ __forceinline__ void copy_whole(unsigned at) {
    if (BELOW > (K_INNER ? ROWS : BK) && (K_INNER ? row >= ROWS : k >= BK)) return;
    const unsigned place = to + at;
    const float* from = next;
#pragma unroll
    for (int f = 0; f < FAR; ++f) {
      if (f) asm volatile("add.s64 %0, %0, %1;" : "+l"(from) : "l"(far));
#pragma unroll
      for (int n = 0; n < NEAR; ++n) {
        const int dk = K_INNER ? n * 8 : f * BELOW, dr = K_INNER ? f * BELOW : n * BESIDE * WIDTH;
        if constexpr (WIDTH == 4) copy16_or_zero(place + 4 * (dk * PITCH + dr), from + (K_INNER ? dk : dr), 4);
        else copy4_or_zero(place + 4 * (dk * PITCH + dr), from + (K_INNER ? dk : dr), true);
      }
    }
    advance();
  }

  // INSIDE tests nothing, EDGE the rows alone. As a loop of single rounds EDGE took 10 % longer, hence EDGE_ROUNDS;
  // wholly unrolled it crowds the registers of a kernel of large tiles (1.07 modelled cycles an FFMA become 1.58), as do
  // chunks of one to three floats and an unrolled remainder of K, which comes once a tile; but small tiles have few rounds
  // and little time (FIRST_UNROLLED; with the shifted tiles of edge.cuh 127 takes 3.05 us, 3.10 without either). One path for
  // all, with the tests, slows copies of single words: 5 % at 4096 where both operands have K contiguous.
  enum Where { INSIDE, EDGE, FIRST_TILE, LAST_TILE };

  template <Where WHERE>
  __device__ __forceinline__ void rounds(unsigned at, int steps) {
    const char* from = reinterpret_cast<const char*>(next);
#pragma unroll(WHERE == INSIDE || (WHERE == FIRST_TILE && FIRST_UNROLLED) ? FAR : WHERE == EDGE ? EDGE_ROUNDS : 1)
    for (int f = 0; f < FAR; ++f, from += far)
#pragma unroll
      for (int n = 0; n < NEAR; ++n) {
        const int dk = K_INNER ? n * 8 : f * BELOW, dr = K_INNER ? f * BELOW : n * BESIDE * WIDTH;
        const float* const source = reinterpret_cast<const float*>(from) + (K_INNER ? dk : dr);
        const unsigned place = to + at + 4 * (dk * PITCH + dr);
        const bool here = WHERE == FIRST_TILE ? k + dk >= BK - steps : WHERE == LAST_TILE ? k + dk < steps : true;
        const bool valid = WHERE == INSIDE || (rows > dr && here);
        if constexpr (WIDTH == 4) copy16_or_zero(place, source, valid ? 4 : 0);
        else copy4_or_zero(place, source, valid);
      }
  }
};
