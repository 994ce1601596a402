// X = L^-1 T by substitution: for blocks whose inverses grow too much (`growth.cu`), and for those that are not inverted.
//
// Idea: a block has 32 columns of X, a column a lane, and goes down L by squares of 128. Of what lies left of a square on
// the diagonal all warps subtract the products. Of that square one warp solves 32 rows at a time in registers, and all
// subtract their products from the rows below. Upwards, with L^T, is the same walk from the last row, with strides
// negated and swapped. The bottleneck is the one warp, and the latency of loads.
//
// A: L; where it `skips`, a negative diagonal element marks a row of X that is zeros (skipping_block.cu). B: T. C: X, which
// may be T. C0: int32, `blocks` for each matrix of the batch: where number `block` is 0 nothing
// is done; no `blocks`: it is done.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

struct Substitute {
  Strides matrix, from, to;
  int size, columns, unit, transposed, block, blocks, skips, unused;
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, SQUARE = 128;

struct Shared {
  float left[SQUARE][SQUARE + 4];  // of L: four of a row are read at once
  float above[SQUARE][TILE], x[SQUARE][TILE];
};

// A thread's elements of SQUARE x COLUMNS of a matrix, of which the first `rows` and `columns` are wanted, lanes along
// what is contiguous. body(row, column, address)
template <int COLUMNS, typename Pointer, typename Body>
__device__ __forceinline__ void each_element(Pointer first, const Strides& s, int rows, int columns, Body body) {
  const int inner = s.along_rows() ? SQUARE : COLUMNS, lines = s.along_rows() ? columns : rows;
  int line = threadIdx.x / inner;
  auto [r, c] = s.position(line, threadIdx.x % inner);
  if (s.along_rows() ? r >= rows : c >= columns) return;
  const int apart = THREADS / inner, down = s.along_rows() ? 0 : apart, right = apart - down;
  Pointer at = first + s.at(r, c);
#pragma unroll 4
  for (; line < lines; line += apart, r += down, c += right, at += s.at(down, right)) body(r, c, at);
}

// Whole tiles that hold so many rows of a square.
__device__ __forceinline__ int in_tiles(int rows) { return min((rows + TILE - 1) / TILE * TILE, SQUARE); }

// Of a matrix of `rows` x `columns` from (i, j) on; zeros beyond its edge, up to the tile's.
template <int COLUMNS, int PITCH>
__device__ __forceinline__ void load(float (&tile)[SQUARE][PITCH], const float* from, const Strides& s, int i, int j,
                                     int rows, int columns) {
  const int down = in_tiles(rows - i), across = min(in_tiles(columns - j), COLUMNS);
  each_element<COLUMNS>(from + s.at(i, j), s, down, across, [&](int r, int c, const float* at) {
    tile[r][c] = i + r < rows && j + c < columns ? *at : 0.f;
  });
}

// Of four rows of X, in one column: products with `terms` rows of `x` are subtracted; four rows of L lie at `left`.
__device__ __forceinline__ void subtract(float (&sum)[4], const float* left, const float* x, int terms) {
#pragma unroll 4
  for (int k = 0; k < terms; k += 4) {
    float of[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) of[e] = x[(k + e) * TILE];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 l = *reinterpret_cast<const float4*>(left + i * (SQUARE + 4) + k);
      sum[i] = fmaf(-l.w, of[3], fmaf(-l.z, of[2], fmaf(-l.y, of[1], fmaf(-l.x, of[0], sum[i]))));
    }
  }
}

// One warp: TILE rows of X, of the square on the diagonal from `first` on, whose diagonal is reciprocals by now.
__device__ __forceinline__ void solve(Shared& shared, int first, int lane, bool unit) {
  float x[TILE];
#pragma unroll
  for (int r = 0; r < TILE; ++r) x[r] = shared.x[first + r][lane];
#pragma unroll
  for (int k = 0; k < TILE; k += 4)
#pragma unroll
    for (int r = k; r < TILE; ++r) {
      const float4 l = *reinterpret_cast<const float4*>(&shared.left[first + r][first + k]);
      const float of[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
      for (int e = 0; e < 4 && k + e < r; ++e) x[r] = fmaf(-of[e], x[k + e], x[r]);
      if (r < k + 4 && !unit) x[r] *= of[r - k];
    }
#pragma unroll
  for (int r = 0; r < TILE; ++r) shared.x[first + r][lane] = x[r];
}

// Room for more blocks on an SM, which ptxas makes unasked, costs spills on some architectures.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
linalg_substitute(const float* A, const float* B, const float* C0, float* C, char* workspace,
                  const __grid_constant__ Substitute s) {
  extern __shared__ __align__(16) float words[];
  Shared& shared = *reinterpret_cast<Shared*>(words);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slabs = (s.columns + TILE - 1) / TILE;
  const int batch = blockIdx.x / slabs, column = blockIdx.x % slabs * TILE;
  Strides matrix = s.matrix, from = s.from, to = s.to;
  const float* l = A + batch * matrix.batch;
  const float* t = B + batch * from.batch;
  float* x = C + batch * to.batch;
  if (s.transposed) {
    const long long last = s.size - 1;
    l += last * (matrix.row + matrix.column), t += last * from.row, x += last * to.row;
    matrix = {-s.matrix.column, -s.matrix.row, 0};
    from.row = -from.row, to.row = -to.row;
  }
  previous_kernel_has_ended();
  if (s.blocks > 0 && reinterpret_cast<const int*>(C0)[batch * s.blocks + s.block] == 0) return;
#pragma unroll 1
  for (int i = 0; i < s.size; i += SQUARE) {
    load<TILE>(shared.x, t, from, i, column, s.size, s.columns);
#pragma unroll 1
    for (int k = 0; k <= i; k += SQUARE) {
      __syncthreads();
      load<SQUARE>(shared.left, l, matrix, i, k, s.size, s.size);
      if (k < i) load<TILE>(shared.above, x, to, k, column, s.size, s.columns);
      __syncthreads();
      if (float* const pivot = &shared.left[threadIdx.x % SQUARE][threadIdx.x % SQUARE];
          k == i && threadIdx.x < in_tiles(s.size - i))
        *pivot = s.skips && *pivot < 0.f ? 0.f : 1.f / *pivot;
      __syncthreads();
      // Of a square on the left all rows at once; of that on the diagonal TILE by TILE, and then the rows below.
#pragma unroll 1
      for (int done = 0; done < (k < i ? 1 : min(SQUARE, s.size - i)); done += TILE) {
        if (k == i) {
          if (warp == 0) solve(shared, done, lane, s.unit);
          __syncthreads();
        }
        const float* const terms = k < i ? &shared.above[0][lane] : &shared.x[done][lane];
        for (int r = (k < i ? 0 : done + TILE) + warp * 4; r < in_tiles(s.size - i); r += WARPS * 4) {
          float sum[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[e] = shared.x[r + e][lane];
          subtract(sum, &shared.left[r][k < i ? 0 : done], terms, k < i ? SQUARE : TILE);
#pragma unroll
          for (int e = 0; e < 4; ++e) shared.x[r + e][lane] = sum[e];
        }
        __syncthreads();
      }
    }
    each_element<TILE>(x + to.at(i, column), to, min(s.size - i, SQUARE), min(s.columns - column, TILE),
                       [&](int r, int c, float* at) { *at = shared.x[r][c]; });
    __syncthreads();
  }
}
