// Random numbers added to the columns that a factorization has skipped as dependent on those before: what is left of
// them is rounding errors, zeros perhaps, and has to have some direction of its own. They are as small as rounding errors
// of the columns that the rest makes up by R.
//
// Idea: a block has 32 columns and a strip of rows, and leaves at once where no column was skipped. The bottleneck is the
// launch.
//
// A: R, of which row j says how much of column j the others have. C0: int32, [batch][columns], whether it was skipped.
// C: the columns.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct PerturbColumns {
  Strides factor, to;
  int rows, columns, strips, seed;
  float amount, root;  // the norm that is added to a column of R's scale; of as many rows, the bound of a number
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;

// From -1 to 1, by a hash of 32 bits (Wellons, "Prospecting for Hash Functions", 2018: lowbias32).
__device__ __forceinline__ float random_of(unsigned row, unsigned column) {
  unsigned x = row * 0x9e3779b9u ^ column * 0x85ebca6bu;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return static_cast<int>(x ^ x >> 16) * 0x1p-31f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_perturb_columns(const float* A, const float* B, const float* C0, float* C, char* workspace,
                       const __grid_constant__ PerturbColumns s) {
  __shared__ float amounts[TILE];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slabs = (s.columns + TILE - 1) / TILE;
  const int column = blockIdx.x % slabs * TILE, strip = blockIdx.x / slabs % s.strips;
  const long long batch = blockIdx.x / slabs / s.strips;
  const int height = ((s.rows + s.strips - 1) / s.strips + TILE - 1) / TILE * TILE;
  const int first = strip * height, last = min(s.rows, first + height);
  const int* const skipped = reinterpret_cast<const int*>(C0) + batch * s.columns;
  const float* const factor = A + batch * s.factor.batch;
  previous_kernel_has_ended();
  bool any = false;
  for (int line = warp; line < TILE; line += WARPS) {
    const int row = column + line;  // of R, which has the column's numbers
    const bool wanted = row < s.columns && skipped[row];
    float largest = 0.f;
    if (wanted)
      for (int at = row + lane; at < s.columns; at += 32) largest = fmaxf(largest, fabsf(factor[s.factor.at(row, at)]));
    for (int step = 16; step; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
    if (lane == 0) amounts[line] = wanted ? fminf(s.amount / largest, 1.f) * s.root : 0.f;
    any |= wanted;
  }
  if (!__syncthreads_or(any)) return;
#pragma unroll 1
  for (int row = first; row < last; row += TILE)
#pragma unroll
    for (int line = 0; line < LINES; ++line) {
      const auto [r, c] = s.to.position(warp + WARPS * line, lane);
      if (row + r < last && column + c < s.columns && amounts[c] != 0.f)
        C[batch * s.to.batch + s.to.at(row + r, column + c)] += amounts[c] * random_of(row + r, s.seed + column + c);
    }
}
