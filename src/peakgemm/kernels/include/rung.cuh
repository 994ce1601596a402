// What rungs of the ladder have in common besides their ideas: a block's tile of C, four floats of global memory that may
// lie past an edge, stores of results.
#include "include/epilogue/epilogue.cuh"

// Which part of C a block computes. One-dimensional grids: no limit of 65,535 on either side.
struct Tile {
  int m, n;  // first row and first column
};

// Row by row over tiles of BM x BN.
__device__ __forceinline__ Tile block_tile(int N) {
  const int across = (N + BN - 1) / BN;
  const int row = blockIdx.x / across;
  return {row * BM, (static_cast<int>(blockIdx.x) - row * across) * BN};
}

// In groups of RASTER tile rows, column by column within a group: the blocks that run at the same
// time then read few distinct rows of A and columns of B, which stay in L2.
__device__ __forceinline__ Tile raster_tile(int M, int N) {
  const int across = (N + BN - 1) / BN;
  const int down = (M + BM - 1) / BM;
  const int group = blockIdx.x / (RASTER * across);
  const int inside = blockIdx.x - group * RASTER * across;
  const int height = min(RASTER, down - group * RASTER);
  return {(group * RASTER + inside % height) * BM, inside / height * BN};
}

// Four consecutive floats of global memory. The aligned compilation reads them at once; the
// guarded one reads the first `valid` of them one by one and gives zero for the rest.
__device__ __forceinline__ float4 load4(const float* source, int valid) {
#if ALIGNED
  return *reinterpret_cast<const float4*>(source);
#else
  float4 v = {0.f, 0.f, 0.f, 0.f};
  if (valid > 0) v.x = source[0];
  if (valid > 1) v.y = source[1];
  if (valid > 2) v.z = source[2];
  if (valid > 3) v.w = source[3];
  return v;
#endif
}

// The same for row `row` of a matrix of `rows` rows: a row outside gives zeros.
__device__ __forceinline__ float4 load4(const float* source, int row, int rows, int valid) {
  return load4(source, row < rows ? valid : 0);
}
