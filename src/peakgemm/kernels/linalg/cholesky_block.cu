// The Cholesky factor of up to 128 rows, and its inverse: a block has one matrix of the batch, and
// `fillers` more blocks store the zeros beside its inverse.
//
// Idea: the matrix stays in shared memory; what limits a block is not its arithmetic (0.7 million FMAs, some 3 us of an
// SM) but the chain of 128 pivots, each from the one before. So one warp factors a diagonal tile of 32 columns, a row a
// lane: a column's chain is a reciprocal square root with a Newton step, a multiplication and an FMA, some 60 cycles.
// Meanwhile the other seven warps subtract the previous panel's products from the columns behind, and store that panel
// (look-ahead); before, all warps bring the next diagonal tile up to date. Then each of up to 128 threads substitutes
// for a row of the panel, of the factor or of the inverse (include/linalg/triangle_tiles.cuh).
// Barriers: 1, and for each 32 columns 3. Dependent cycles for 128 rows: 4 x 32 pivots of 60, 4 substitutions of 700, 3
// updates of a diagonal tile of 500; some 15,000 in all.
//
// A: the matrix, whose strict upper triangle is not read. C: the factor, zeros above it; it may be A. The workspace:
// rows of the inverse, from their first column; the inverse begins at column `left`, zeros are beside. C0: LAPACK's
// info, an int32 for each matrix: where it is not 0 at the start nothing is factored; it becomes the order of the
// leading minor that is not positive definite, `first` included, and what is then in both outputs is undefined.

#include "include/linalg/triangle_tiles.cuh"
#include "include/ptx/dependents.cuh"

struct CholeskyBlock {
  Strides matrix, factor, inverse;
  int n, first, left, columns, fillers, unused;
};

// Factors a symmetric tile in its slot, by one warp, and stores the factor's diagonal. The first column whose pivot is
// not positive, or TILE.
__device__ __forceinline__ int factor_tile(float* tile, float* diagonal, long long step, int columns) {
  const int lane = this_lane();
  float row[TILE], own_pivot = 0;
  load_row(row, tile, lane);
  __syncwarp();
  float pivot = __shfl_sync(~0u, row[0], 0);
#pragma unroll
  for (int j = 0; j < TILE; ++j) {
    // What the next pivot is made from comes to all lanes before the reciprocal is known: the chain has no shuffle.
    const float below = __shfl_sync(~0u, row[j], (j + 1) % TILE);
    const float next = __shfl_sync(~0u, row[(j + 1) % TILE], (j + 1) % TILE);
    float reciprocal = rsqrtf(pivot);
    reciprocal = fmaf(0.5f * reciprocal, fmaf(-pivot * reciprocal, reciprocal, 1.0f), reciprocal);
    if (lane == j) own_pivot = pivot, tile[at(j, j)] = reciprocal;
    pivot = fmaf(-below * reciprocal, below * reciprocal, next);
    row[j] *= reciprocal;
#pragma unroll
    for (int k = j + 1; k < TILE; ++k) row[k] = fmaf(-row[j], __shfl_sync(~0u, row[j], k), row[k]);
  }
#pragma unroll
  for (int j = 0; j < TILE; ++j)
    if (lane > j) tile[at(j, lane)] = row[j];
  if (lane < columns) diagonal[lane * step] = sqrtf(own_pivot);
  const unsigned failed = __ballot_sync(~0u, !(own_pivot > 0));
  return failed ? __ffs(failed) - 1 : TILE;
}

// Column block j of the factor and row block j of the inverse.
__device__ __forceinline__ void store_panel(float* factor, float* inverse, const CholeskyBlock& s, int j, int blocks,
                                            Workers workers) {
  for (int block = j; block < blocks; ++block)
    store_tile(factor, s.factor, s.n, block, j, block == j ? slot(j, j) : panel(block), block == j, false, workers);
  store_inverse(inverse, s.inverse, s.n, j, workers);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
linalg_cholesky_block(const float* A, const float* B, const float* C0, float* C, char* workspace,
                      const __grid_constant__ CholeskyBlock s) {
  const int warp = threadIdx.x / 32, blocks = (s.n + TILE - 1) / TILE;
  const int batch = blockIdx.x / (1 + s.fillers), filler = blockIdx.x % (1 + s.fillers);
  float* const factor = C + batch * s.factor.batch;
  float* const rows = reinterpret_cast<float*>(workspace) + batch * s.inverse.batch;
  float* const inverse = rows + s.left * s.inverse.column;
  int* const info = reinterpret_cast<int*>(const_cast<float*>(C0)) + batch;
  previous_kernel_has_ended();
  if (filler > 0) {
    const Workers workers = {WARPS * (filler - 1) + warp, WARPS * s.fillers};
    store_zeros_beside(rows, s.inverse, s.n, s.left, s.columns, workers);
    return;
  }
  if (*info != 0) return;
  load_triangle(A + batch * s.matrix.batch, s.matrix, s.n, false, false);
  __syncthreads();  // which also comes between all reads of info and its being written
  for (int j = 0; j <= blocks; ++j) {
    const bool factors = j < blocks;  // else all that is left is to store the last panel
    const Workers workers = {warp - factors, WARPS - factors};
    if (j > 0 && factors) {
      subtract_product<2, 2>(slot(j, j), panel(j), panel(j), TILE / WARPS * warp, false);
      __syncthreads();
    }
    if (factors && warp == 0) {
      const int from = TILE * j;
      const long long step = s.factor.row + s.factor.column;
      const int failed = factor_tile(slot(j, j), factor + s.factor.at(from, from), step, s.n - from);
      if (failed < TILE && threadIdx.x == 0 && *info == 0) *info = s.first + from + failed + 1;
    } else if (j == 0) {
      store_zeros(factor, s.factor, s.n, blocks, workers);
      store_zeros(inverse, s.inverse, s.n, blocks, workers);
    } else {
      update(j - 1, blocks, false, workers);
      store_panel(factor, inverse, s, j - 1, blocks, workers);
    }
    if (!factors) return;
    __syncthreads();
    if (warp < blocks) solve_block(warp, j, false);
    __syncthreads();
  }
}
