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
