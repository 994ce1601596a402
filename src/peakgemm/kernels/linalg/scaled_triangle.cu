// A lower triangle with its rows scaled, as the steps of a QR factorization need it (linalg/orthogonal.py):
// GRAM: of a Gram matrix, rows and columns by powers of two of `threshold` at most, so that its diagonal lies from 1 to
// 4, and a shift added to that. FACTOR: of the scaled matrix's factor, rows by the inverse of these, zeros above; a
// negative diagonal element marks a column that was skipped. RESULT: of R^T, rows by given factors, zeros above; the rank
// is counted.
//
// Idea: tiles of 32 x 32 by way of shared memory, as in triangle.cu. The bottleneck is DRAM.
//
// A: the matrix. C: the result, which may be A but for GRAM. The workspace: GRAM writes the powers of two, [batch][n],
// FACTOR reads them. B: of RESULT the factors and norms of columns, [batch][3][line], as scale_columns.cu writes them.
// C0: of FACTOR an int32 for each row, whether it was skipped, of RESULT one for each matrix, to which is added how many
// diagonal elements are greater than `threshold` times their row's norm.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

enum Mode { GRAM, FACTOR, RESULT };

struct ScaledTriangle {
  Strides from, to;
  int rows, columns, mode;
  float shift, threshold;
  int line;
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;

// The power of two whose square brings a number to 1 to 4; 1 for 0.
__device__ __forceinline__ float scale_of(float square) {
  const int exponent = (__float_as_int(square) >> 23 & 255) - 127;
  return square == 0.f ? 1.f : __int_as_float((127 - (exponent >> 1)) << 23);
}

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_scaled_triangle(const float* A, const float* B, const float* C0, float* C, char* workspace,
                       const __grid_constant__ ScaledTriangle s) {
  __shared__ float tile[TILE][TILE + 1], scales[2][TILE];  // of rows, of columns
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int down = (s.rows + TILE - 1) / TILE, across = (s.columns + TILE - 1) / TILE;
  const int i = blockIdx.x / across % down, j = blockIdx.x % across, row = TILE * i, column = TILE * j;
  const long long batch = blockIdx.x / across / down;
  const float* const from = A + batch * s.from.batch;
  const float* const facts = B + batch * 3 * s.line;
  float* const to = C + batch * s.to.batch;
  float* const powers = reinterpret_cast<float*>(workspace) + batch * s.rows;
  previous_kernel_has_ended();
  if (j > i && s.mode == GRAM) return;
  if (warp < 2) {
    const int at = (warp ? column : row) + lane;
    float scale = 1.f;
    if (at < s.rows) {
      if (s.mode == GRAM) scale = fminf(scale_of(from[s.from.at(at, at)]), s.threshold);
      else if (warp == 0) scale = s.mode == FACTOR ? 1.f / powers[at] : facts[at];
      if (s.mode == GRAM && warp == 0 && i == j) powers[at] = scale;
    }
    scales[warp][lane] = scale;
  }
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const auto [r, c] = s.from.position(warp + WARPS * line, lane);
    const bool below = row + r < s.rows && column + c < s.columns && row + r >= column + c;
    tile[r][c] = below ? from[s.from.at(row + r, column + c)] : 0.f;
  }
  __syncthreads();
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const auto [r, c] = s.to.position(warp + WARPS * line, lane);
    if (row + r >= s.rows || column + c >= s.columns) continue;
    const bool diagonal = row + r == column + c;
    const float value = tile[r][c];
    float result = value * scales[0][r] * scales[1][c];
    int* const flags = reinterpret_cast<int*>(const_cast<float*>(C0));
    if (diagonal && s.mode == GRAM) result += s.shift;
    if (diagonal && s.mode == FACTOR) {
      flags[batch * s.rows + row + r] = value < 0.f;
      result = fabsf(result);
    }
    if (diagonal && s.mode == RESULT && result != 0.f && fabsf(value) > s.threshold * facts[s.line + row + r])
      atomicAdd(flags + batch, 1);
    to[s.to.at(row + r, column + c)] = result;
  }
}
