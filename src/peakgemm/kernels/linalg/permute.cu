// A matrix copied, its rows in the order of a permutation or in its inverse; of no matrix, the identity's.
//
// Idea: tiles of 32 x 32 by way of shared memory, as in triangle.cu. The bottleneck is DRAM.
//
// A: the matrix; not read where `is_identity`. B: the permutation, int32, `rows` for each matrix: which row comes there,
// or where a row goes where `is_inverse`. Not read where `moves` is 0: rows stay. C: the result, which shares no memory
// with A.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct Permute {
  Strides from, to;
  int rows, columns, moves, is_inverse, is_identity, unused;
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_permute(const float* A, const float* B, const float* C0, float* C, char* workspace,
               const __grid_constant__ Permute s) {
  __shared__ float tile[TILE][TILE + 1];
  __shared__ int order[TILE];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int across = (s.columns + TILE - 1) / TILE, down = (s.rows + TILE - 1) / TILE;
  const int left = blockIdx.x % across * TILE, top = blockIdx.x / across % down * TILE, batch = blockIdx.x / across / down;
  const int* const permutation = reinterpret_cast<const int*>(B) + static_cast<long long>(batch) * s.rows;
  const float* const from = A + batch * s.from.batch;
  float* const to = C + batch * s.to.batch;
  previous_kernel_has_ended();
  if (threadIdx.x < TILE) order[lane] = s.moves && top + lane < s.rows ? permutation[top + lane] : top + lane;
  __syncthreads();
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const auto [r, c] = s.from.position(warp + WARPS * line, lane);
    if (top + r >= s.rows || left + c >= s.columns) continue;
    const int row = s.is_inverse ? top + r : order[r];
    tile[r][c] = s.is_identity ? row == left + c : from[s.from.at(row, left + c)];
  }
  __syncthreads();
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const auto [r, c] = s.to.position(warp + WARPS * line, lane);
    if (top + r < s.rows && left + c < s.columns) to[s.to.at(s.is_inverse ? order[r] : top + r, left + c)] = tile[r][c];
  }
}
