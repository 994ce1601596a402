// The guard: whether the split of two panels keeps the promise of FP32 accuracy.
//
// An element that lost bits (Summary::lossy) has an absolute error of at most 2^-23 LOSSY, scaled. Over a chunk that
// is harmless to element (i, j) of C where sum |a_ik| |b_kj| is not far smaller than it could be. One in 2^27 normally
// distributed elements is such a one, but most rows of a softmax have some.
// A sum of few terms is nearly exact in FP32 (a product with the identity is exact), which 22 bits are not: rows of few
// elements that are not zero are refused too.
#include "include/split/split_panel.cuh"

constexpr int HIGHEST = 100, LOWEST = -96;  // sums of two rows' exponents, between which no product leaves FP32's range
#ifndef FEWEST
#define FEWEST 32  // elements that are not zero, in a row that has any; 0: any number will do
#endif
constexpr int LOST_BITS = 4;                // of a tile's verdict, beside a bit for each half: it depends on sums

// Whether a row (or column) with that many elements that are not zero is too sparse.
__device__ __forceinline__ bool too_sparse(int count, int depth) { return count > 0 && count < min(FEWEST, depth); }

// Of a row of an operand in memory, elements that are not zero: all of them, or some from `enough` on. A warp counts.
__device__ __forceinline__ int nonzeros(const float* row, long long step, int depth, int enough) {
  int count = 0;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int k = lane; k - lane < depth && count < enough; k += 32)
    count += __popc(__ballot_sync(~0u, k < depth && row[k * step] != 0.f));
  return count;
}

// Of one row of panels, elements that are not zero in row `row`.
__device__ __forceinline__ int count_of(const char* panels, int row, int chunks) {
  int count = 0;
#pragma unroll 8
  for (int chunk = 0; chunk < chunks; ++chunk)
    count += panels[chunk * static_cast<long long>(PANEL_PITCH) + SCALES + COUNTS + row];
  return count;
}

// Which halves of a tile the split would not do for: bit 0 the upper, bit 1 the lower 64 rows; and LOST_BITS where rows or
// columns have. `a` and `b` are the tile's panels along K, in global memory. The lanes of one warp take a chunk each,
// apart from the rare cases.
__device__ __forceinline__ int broken_halves(const char* a, const char* b, int chunks, int depth) {
  const int lane = threadIdx.x % 32;
  bool broken = false, lossy = false, dense = false;
#pragma unroll 1
  for (int chunk = lane; chunk < chunks; chunk += 32) {
    const long long at = chunk * static_cast<long long>(PANEL_PITCH) + SCALES + SUMMARY;
    const int4 x = *reinterpret_cast<const int4*>(a + at), y = *reinterpret_cast<const int4*>(b + at);  // Summary
    broken |= max(x.x, y.x) == NOT_FINITE || x.x + y.x > HIGHEST || x.y + y.y < LOWEST;
    dense |= min(x.z, y.z) >= min(FEWEST, depth);
    lossy |= (x.w | y.w) & SOME_LOSSY;
  }
  if (__any_sync(~0u, broken)) return 3;
  const int verdict = __any_sync(~0u, lossy) ? LOST_BITS : 0;
  if (__any_sync(~0u, dense)) return verdict;  // one such chunk has enough elements of every row and column
  int sparse = 0;
#pragma unroll 1
  for (int row = lane; row < ROWS; row += 32) {
    if (too_sparse(count_of(a, row, chunks), depth)) sparse |= row < ROWS / 2 ? 1 : 2;
    if (too_sparse(count_of(b, row, chunks), depth)) sparse = 3;
  }
  return verdict | __reduce_or_sync(~0u, sparse);
}
