// Whether elements that lost bits matter (guard.cuh), of panels in memory: sum |a||b| of the first planes, on the tensor
// cores, by those who have multiplied a tile and only where the guard asks. A warp has 16 rows and all columns, so two
// warpgroups ask for no more products than a third of the tile's own.
#include "include/ptx/mma.cuh"
#include "include/split/split_panel.cuh"

// 16 bytes of a row's magnitudes: this lane's quarter of half a chunk of row `row`.
__device__ __forceinline__ uint4 magnitudes(const char* panel, int half, int row) {
  constexpr unsigned MASK = ELEMENT == 2 ? 0x7fff7fffu : 0x7fffffffu;
  uint4 x = *reinterpret_cast<const uint4*>(panel + piece_at(row, half * 4 + threadIdx.x % 4));
  x.x &= MASK, x.y &= MASK, x.z &= MASK, x.w &= MASK;
  return x;
}

// Rows `row`.. to `row` + 15 of a chunk's panel with every column of the other one. All lanes of a warp call.
__device__ __forceinline__ bool chunk_holds(const char* a, const char* b, int row) {
  constexpr int BESIDE = 4;  // matrices of eight columns that are read at a time
  const int lane = threadIdx.x % 32, x = lane / 4, y = lane % 4 * 2;
  const float* const downs = reinterpret_cast<const float*>(a + SCALES) + row + x;
  const unsigned rows = reinterpret_cast<const Summary*>(a + SCALES + SUMMARY)->lossy[row / 32] >> row % 32 & 0xffffu;
  uint4 left[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int r = 0; r < 2; ++r) left[half][r] = magnitudes(a, half, row + x + 8 * r);
  const bool there[2] = {downs[0] != 0.f, downs[8] != 0.f};
  bool hold = true;
#pragma unroll 1
  for (int column = 0; column < BN; column += 8 * BESIDE) {
    static_assert(8 * BESIDE == 32, "a word of Summary::lossy");
    const unsigned columns = reinterpret_cast<const Summary*>(b + SCALES + SUMMARY)->lossy[column / 32];
    if (!__any_sync(~0u, rows | columns)) continue;
    uint4 right[BESIDE][2];
    float2 scales[BESIDE];
#pragma unroll
    for (int i = 0; i < BESIDE; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) right[i][half] = magnitudes(b, half, column + 8 * i + x);
      scales[i] = *reinterpret_cast<const float2*>(b + SCALES + 4 * (column + 8 * i + y));
    }
#pragma unroll
    for (int i = 0; i < BESIDE; ++i) {
      float sum[4] = {};  // any order of k-steps serves that both operands share
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 &p = left[half][0], &q = left[half][1], &z = right[i][half];
        const unsigned first[4] = {p.x, q.x, p.y, q.y}, second[4] = {p.z, q.z, p.w, q.w};
        mma(sum, first, z.x, z.y);
        mma(sum, second, z.z, z.w);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool asked = (rows >> x + j / 2 * 8 | columns >> 8 * i + y + j % 2) & 1;
        const float scale = j % 2 ? scales[i].y : scales[i].x;  // of zeros: zero
        hold = hold && !(asked && there[j / 2] && scale != 0.f && sum[j] < LOSSY * 0x1p23f);
      }
    }
  }
  return __all_sync(~0u, hold);
}

// Of chunks `begin` to `end` of two panels along K, whose first are `a` and `b`.
__device__ __forceinline__ bool lossy_sums_hold(const char* a, const char* b, int begin, int end, int row) {
#pragma unroll 1
  for (int first = begin; first < end; first += 32) {
    const int mine = first + static_cast<int>(threadIdx.x % 32);
    bool lossy = false;
    if (mine < end) {
      const long long at = mine * static_cast<long long>(PANEL_PITCH) + SCALES + SUMMARY;
      const auto flags = [=](const char* panel) { return reinterpret_cast<const Summary*>(panel + at)->flags; };
      lossy = (flags(a) | flags(b)) & SOME_LOSSY;
    }
#pragma unroll 1
    for (unsigned pending = __ballot_sync(~0u, lossy); pending; pending &= pending - 1) {
      const long long at = (first + __ffs(pending) - 1) * static_cast<long long>(PANEL_PITCH);
      if (!chunk_holds(a + at, b + at, row)) return false;
    }
  }
  return true;
}
