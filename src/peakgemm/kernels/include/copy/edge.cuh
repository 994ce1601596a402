// Tiles at the edge of C.
//
// One that would pass it begins so much earlier that it ends with it, and takes results of its neighbour along, which it does
// not store: copies then need no tests, which made the tiles at the edge late.
// Where C is smaller than a tile there is no such place: then the copies are tested, and the stores as ever.
#include "include/scheduler/gemm.cuh"

// SHIFTED: columns begin at multiples of it, as copies of as many floats want; 0: tiles are not shifted.
__device__ __forceinline__ int first_row(const Gemm& g, Place place) {
  return SHIFTED ? min(place.m, max(g.M - BM, 0)) : place.m;
}
__device__ __forceinline__ int first_column(const Gemm& g, Place place) {
  constexpr int UNIT = SHIFTED ? SHIFTED : 1;
  return SHIFTED ? min(place.n, max((g.N + UNIT - 1) / UNIT * UNIT - BN, 0)) : place.n;
}

// Whether `first` <= x < `end`; of a triangle's squares at the edge some tiles begin behind it.
__device__ __forceinline__ bool between(int first, int x, int end) {
  return (!TRIANGLE || first < end) && static_cast<unsigned>(x - first) < static_cast<unsigned>(end - first);
}
