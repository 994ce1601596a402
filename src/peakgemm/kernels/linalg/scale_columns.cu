// Columns scaled by powers of two to norms from 1 to 2, which is exact: no square over- or underflows afterwards, and
// what is small beside a column's norm is so in absolute terms.
//
// Idea: two passes, each with 32 columns and a strip of rows a block. First sums of squares of a strip, in FP64, which
// has room for the square of every float32; then the strips' sums are added and elements multiplied. The bottleneck is
// DRAM.
//
// A: the matrices. The workspace: the sums, double, [batch][strips][columns]. C: the scaled columns, which may be A; of
// columns behind the last of A zeros. C0: [batch][3][columns]: by what the scaled column is to be multiplied, 0 for one
// of zeros; the scaled column's norm, 1 for one of zeros; the column's sum of squares.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct ScaleColumns {
  Strides from, to;
  int rows, given, columns, strips, second, line;
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_scale_columns(const float* A, const float* B, const float* C0, float* C, char* workspace,
                     const __grid_constant__ ScaleColumns s) {
  __shared__ float tile[TILE][TILE + 1];
  __shared__ double partial[WARPS][TILE];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slabs = (s.columns + TILE - 1) / TILE;
  const int column = blockIdx.x % slabs * TILE, strip = blockIdx.x / slabs % s.strips;
  const long long batch = blockIdx.x / slabs / s.strips;
  const int height = ((s.rows + s.strips - 1) / s.strips + TILE - 1) / TILE * TILE;
  const int first = strip * height, last = min(s.rows, first + height);
  const float* const from = A + batch * s.from.batch;
  double* const sums = reinterpret_cast<double*>(workspace) + batch * s.strips * s.columns + column;
  previous_kernel_has_ended();
  float factor = 1.f;  // of the lane's column
  if (s.second) {
    double sum = 0;
    if (column + lane < s.columns)
      for (int each = 0; each < s.strips; ++each) sum += sums[static_cast<long long>(each) * s.columns + lane];
    const float norm = static_cast<float>(sqrt(sum));
    const int exponent = max(-126, min(126, (__float_as_int(norm) >> 23) - 127));  // of NaN the most
    factor = __int_as_float((127 - exponent) << 23);
    if (strip == 0 && warp == 0 && column + lane < s.columns) {
      float* const facts = const_cast<float*>(C0) + batch * 3 * s.line + column + lane;
      facts[0] = sum == 0 ? 0.f : __int_as_float((127 + exponent) << 23);
      facts[s.line] = sum == 0 ? 1.f : norm * factor;
      facts[2 * s.line] = static_cast<float>(sum);
    }
  }
  double sum = 0;
#pragma unroll 1
  for (int row = first; row < last; row += TILE) {
    float values[LINES];
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = s.from.position(warp + WARPS * line, lane);
      const bool inside = row + r < last && column + c < s.given;
      values[line] = inside ? from[s.from.at(row + r, column + c)] : 0.f;
    }
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = s.from.position(warp + WARPS * line, lane);
      tile[r][c] = values[line];
    }
    __syncthreads();
    if (!s.second) {
#pragma unroll
      for (int line = 0; line < LINES; ++line) {
        const double value = tile[warp + WARPS * line][lane];
        sum = fma(value, value, sum);
      }
      continue;
    }
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = s.to.position(warp + WARPS * line, lane);
      const float by = __shfl_sync(0xffffffff, factor, c);
      if (row + r < last && column + c < s.columns) C[batch * s.to.batch + s.to.at(row + r, column + c)] = tile[r][c] * by;
    }
  }
  if (s.second) return;
  partial[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column + lane >= s.columns) return;
  for (int other = 1; other < WARPS; ++other) sum += partial[other][lane];
  sums[static_cast<long long>(strip) * s.columns + lane] = sum;
}
