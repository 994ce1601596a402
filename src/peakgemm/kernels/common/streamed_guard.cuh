// The guard of a product whose A is split in registers: what guard.cuh looks up in two panels is looked up here in A as
// it lies in a stage, and in the planes of B beside it. Rare, hence little code rather than fast code.

// The magnitude of B's first plane, scaled.
__device__ __forceinline__ float magnitude_b(const char* planes, int column, int k) {
  const char* const at = planes + k / 32 * B_HALF + column * 64 + ((k / PIECE % 4 ^ (column / 2 & 3)) << 4);
  return of_half(reinterpret_cast<const unsigned short*>(at)[k % PIECE] & 0x7fffu);
}

template <class Layout>
__device__ __forceinline__ float magnitude_a(const char* stage, const Layout& lines, int row, int k) {
  return fabsf(*reinterpret_cast<const float*>(stage + lines.at(row, k)));
}

// Whether row `row` of the tile and column `column`, one of which has lost bits, meet with a large enough sum.
template <class Layout>
__device__ __forceinline__ bool meeting_holds(const char* stage, const Layout& lines, int row, int column,
                                              const float* scales) {
  float top = 0.f;
#pragma unroll 1
  for (int k = 0; k < CHUNK; ++k) top = fmaxf(top, magnitude_a(stage, lines, row, k));
  if (top == 0.f || scales[column] == 0.f) return true;
  const float up = power_of_two(shift_of(__float_as_uint(top)));
  float sum = 0.f;
#pragma unroll 1
  for (int k = 0; k < CHUNK; ++k)
    sum = fmaf(magnitude_a(stage, lines, row, k) * up, magnitude_b(stage + A_BYTES, column, k), sum);
  return sum >= LOSSY * 0x1p23f;
}

// The same for all rows of this warp that have lost bits, a bit each, and all columns of the chunk with this tail that
// have.
template <class Layout>
__device__ __forceinline__ bool lossy_holds(const char* stage, const Layout& lines, const char* tail, unsigned rows,
                                            int first_column) {
  const float* const scales = reinterpret_cast<const float*>(tail);
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
  bool hold = __popc(rows) <= MOST_LOSSY;
#pragma unroll 1
  for (; hold && rows; rows &= rows - 1)
#pragma unroll 1
    for (int j = lane; j < BN; j += 32)
      hold = meeting_holds(stage, lines, first + __ffs(rows) - 1, j, scales) && hold;
#pragma unroll 1
  for (int word = 0; word < BN / 32; ++word) {
    unsigned bits = RightSeen::lossy_columns(tail, first_column, word);
    hold = hold && __popc(bits) <= MOST_LOSSY;
#pragma unroll 1
    for (; hold && bits; bits &= bits - 1)
      hold = meeting_holds(stage, lines, first + lane % 16, 32 * word + __ffs(bits) - 1, scales) && hold;
  }
  return __all_sync(~0u, hold);
}

// Whether a row of this warp has fewer elements that are not zero, along all of K, than a split is good for. `count`,
// of this lane's two rows, is what the quad has seen of them in all of K or, else, in a part of it; rows of which it has
// seen few are then counted in memory, from `rows` on.
__device__ __forceinline__ bool sparse_rows(const int (&count)[2], const float* rows, const Emulated& e,
                                            bool all_of_k) {
  const int lane = threadIdx.x % 32, enough = min(FEWEST, e.g.K);
  bool few = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    unsigned pending = __ballot_sync(~0u, lane % 4 == 0 && count[r] > 0 && count[r] < enough);
    if (all_of_k) {
      few |= pending != 0;
      continue;
    }
#pragma unroll 1
    for (; pending; pending &= pending - 1) {
      const float* const from = rows + ((__ffs(pending) - 1) / 4 + 8 * r) * e.a_row;
      int seen = 0;
#pragma unroll 1
      for (int k = lane; k - lane < e.g.K && seen < enough; k += 32)
        seen += __popc(__ballot_sync(~0u, k < e.g.K && from[k * e.a_col] != 0.f));
      few |= seen < enough;
    }
  }
  return few;
}
