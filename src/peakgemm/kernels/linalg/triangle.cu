// The lower triangle of a matrix copied, with zeros above it; or mirrored, for a symmetric matrix of which one triangle
// is known.
//
// Idea: tiles of 32 x 32 by way of shared memory, so that reads and writes are both of consecutive words, whichever way
// either matrix is stored. Tiles above the diagonal are not read. The bottleneck is DRAM.
//
// A: the matrix, less the identity where `minus_identity`. C: the copy, which may be A: then only what changes is written.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct Triangle {
  Strides from, to;
  int rows, columns, unit, mirror;
  int strip, minus_identity;  // tiles of a row that a block copies
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_triangle(const float* A, const float* B, const float* C0, float* C, char* workspace,
                const __grid_constant__ Triangle s) {
  __shared__ float tile[TILE][TILE + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int down = (s.rows + TILE - 1) / TILE, across = (s.columns + TILE - 1) / TILE;
  const int strips = (across + s.strip - 1) / s.strip;
  const int strip = blockIdx.x % strips * s.strip, i = blockIdx.x / strips % down, batch = blockIdx.x / strips / down;
  const bool in_place = A == C;
  const float* const from = A + batch * s.from.batch;
  float* const to = C + batch * s.to.batch;
  previous_kernel_has_ended();
#pragma unroll 1
  for (int j = strip; j < min(strip + s.strip, across); ++j) {
    if (s.mirror ? j > i : in_place && j < i) continue;
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = s.from.position(warp + WARPS * line, lane);
      const int row = TILE * i + r, column = TILE * j + c;
      float value = row == column;
      if (row < s.rows && column < s.columns && (column < row || (column == row && !s.unit)))
        value = from[s.from.at(row, column)] - (s.minus_identity && row == column ? 1.f : 0.f);
      tile[r][c] = value;
    }
    __syncthreads();
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = s.to.position(warp + WARPS * line, lane);
      const int row = TILE * i + r, column = TILE * j + c;
      const bool changes = !in_place || (row <= column && !s.mirror);
      if (row < s.rows && column < s.columns && changes && !(s.mirror && row < column))
        to[s.to.at(row, column)] = tile[r][c];
      if (!s.mirror) continue;
      // Of the tile on the other side of the diagonal, the element that this thread writes.
      const int above = TILE * j + r, right = TILE * i + c;
      if (above < right && right < s.rows) to[s.to.at(above, right)] = tile[c][r];
    }
  }
}
