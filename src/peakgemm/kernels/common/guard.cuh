// The guard: whether the split of two panels keeps the promise of FP32 accuracy.
//
// An element that lost bits (Summary::lossy) has an absolute error of at most 2^-23 LOSSY, scaled. Over a chunk that
// is harmless to element (i, j) of C where sum |a_ik| |b_kj| is not far smaller than it could be; that is
// looked up in the planes for each such row: there is about one in 2^27 normally distributed elements.
// A sum of few terms is nearly exact in FP32 (a product with the identity is exact), which 22 bits are not: rows of few
// elements that are not zero are refused too.
constexpr int HIGHEST = 100, LOWEST = -96;  // sums of two rows' exponents, between which no product leaves FP32's range
constexpr int FEWEST = 32;                  // elements that are not zero, in a row that has any
constexpr int MOST_LOSSY = 4;               // of 32 rows of a panel; with more the tile is not worth the checks

// The magnitude of an element of the first plane.
__device__ __forceinline__ float magnitude(const char* panel, int row, int k) {
  const char* const at = panel + piece_at(row, k / PIECE) + k % PIECE * ELEMENT;
  if (SCHEME == TF32X3) return fabsf(*reinterpret_cast<const float*>(at));
  const unsigned bits = *reinterpret_cast<const unsigned short*>(at) & 0x7fffu;
  return SCHEME == FP16X3 ? of_half(bits) : __uint_as_float(bits << 16);
}

// Whether row `row` of `panel`, which has lost bits, meets rows `begin`.. of the other panel with large enough sums: of
// those that this lane looks at. `scales` are the other's.
__device__ __forceinline__ bool lossy_row_holds(const char* panel, int row, const char* other, const float* scales,
                                                int begin, int end) {
  bool hold = true;
#pragma unroll 1
  for (int j = begin + threadIdx.x % 32; j < end; j += 32) {
    float sum = 0.f;
#pragma unroll 1
    for (int k = 0; k < CHUNK; ++k) sum = fmaf(magnitude(panel, row, k), magnitude(other, j, k), sum);
    hold = hold && (sum >= LOSSY * 0x1p23f || scales[j] == 0.f);
  }
  return hold;
}

// The same for every lossy row of a panel; all lanes of a warp call.
__device__ __forceinline__ bool lossy_rows_hold(const char* panel, const char* other) {
  const Summary* const summary = reinterpret_cast<const Summary*>(panel + SCALES + SUMMARY);
  if (!summary->any_lossy) return true;
  const unsigned* const lossy = summary->lossy;
  bool hold = true;
#pragma unroll 1
  for (int row = 0; row < ROWS; ++row)
    if (lossy[row / 32] >> row % 32 & 1)
      hold = lossy_row_holds(panel, row, other, reinterpret_cast<const float*>(other + SCALES), 0, ROWS) && hold;
  return __all_sync(~0u, hold);
}

// Whether a row (or column) with that many elements that are not zero is too sparse.
__device__ __forceinline__ bool too_sparse(int count, int depth) { return count > 0 && count < min(FEWEST, depth); }

// Of one row of panels, elements that are not zero in row `row`.
__device__ __forceinline__ int count_of(const char* panels, int row, int chunks) {
  int count = 0;
#pragma unroll 8
  for (int chunk = 0; chunk < chunks; ++chunk)
    count += panels[chunk * static_cast<long long>(PANEL_PITCH) + SCALES + COUNTS + row];
  return count;
}

// Which halves of a tile the split would not do for: bit 0 the upper, bit 1 the lower 64 rows. `a` and `b` are the
// tile's panels along K, in global memory. The lanes of one warp take a chunk each, apart from the rare cases.
__device__ __forceinline__ int broken_halves(const char* a, const char* b, int chunks, int depth) {
  const int lane = threadIdx.x % 32;
  bool broken = false, lossy = false, dense = false;
#pragma unroll 1
  for (int chunk = lane; chunk < chunks; chunk += 32) {
    const long long at = chunk * static_cast<long long>(PANEL_PITCH) + SCALES + SUMMARY;
    const int4 x = *reinterpret_cast<const int4*>(a + at), y = *reinterpret_cast<const int4*>(b + at);  // Summary
    broken |= max(x.x, y.x) == NOT_FINITE || x.x + y.x > HIGHEST || x.y + y.y < LOWEST;
    dense |= min(x.z, y.z) >= min(FEWEST, depth);
    lossy |= x.w || y.w;
  }
  if (__any_sync(~0u, broken)) return 3;
  if (__any_sync(~0u, lossy)) {
    int rows = 0;  // in the panel that has most
#pragma unroll 1
    for (int chunk = lane; chunk < chunks; chunk += 32)
#pragma unroll 1
      for (int word = 0; word < 4; ++word) {
        const long long at = chunk * static_cast<long long>(PANEL_PITCH) + SCALES + SUMMARY + 16 + 4 * word;
        rows = max(rows, __popc(*reinterpret_cast<const unsigned*>(a + at)));
        rows = max(rows, __popc(*reinterpret_cast<const unsigned*>(b + at)));
      }
    if (__any_sync(~0u, rows > MOST_LOSSY)) return 3;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const long long at = chunk * static_cast<long long>(PANEL_PITCH);
      if (!lossy_rows_hold(a + at, b + at) || !lossy_rows_hold(b + at, a + at)) return 3;
    }
  }
  if (__any_sync(~0u, dense)) return 0;  // one such chunk has enough elements of every row and column
  int sparse = 0;
#pragma unroll 1
  for (int row = lane; row < ROWS; row += 32) {
    if (too_sparse(count_of(a, row, chunks), depth)) sparse |= row < ROWS / 2 ? 1 : 2;
    if (too_sparse(count_of(b, row, chunks), depth)) sparse = 3;
  }
  return __reduce_or_sync(~0u, sparse);
}
