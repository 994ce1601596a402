// Larger tiles that SLICES groups of warps share: their sums, before they are stored row by row (tile_store.cuh).
//
// Each slice gives the others their rows (owner_of) and adds up its own, in a fixed order.
#include "include/epilogue/slice_reduction.cuh"
#include "include/epilogue/tile_store.cuh"

__device__ __forceinline__ void slices_add_up(float (&acc)[TM][TN], float* exchange, int slice) {
  // Where row i of slice `from` lies: without gaps, as its owner gives nothing.
  auto place = [&](int from, int i) {
    return exchange + ((from - (from > owner_of(i))) * TM + i) * TN * THREADS;
  };
  each_result([&](int i, int j) {
    if (slice != owner_of(i)) place(slice, i)[j * THREADS] = acc[i][j];
  });
  slices_meet();
#pragma unroll
  for (int i = 0; i < TM; ++i)
    if (slice == owner_of(i)) {
#pragma unroll
      for (int from = 0; from < SLICES; ++from)
        if (from != owner_of(i)) {
#pragma unroll
          for (int j = 0; j < TN; ++j) acc[i][j] += place(from, i)[j * THREADS];
        }
    }
}
