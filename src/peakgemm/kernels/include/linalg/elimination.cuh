// Up to 128 rows of a lower triangle L and of its inverse W, by one block: the factor of a symmetric matrix and the
// inverse of that (FACTOR), or of a given triangle the inverse alone.
//
// Idea: W comes from the identity as further rows below the matrix, as X L^T = I has the solution X = W^T. When columns
// STEP are eliminated, the rows of L that they change are those below, and of X those above: always 128 rows. So one
// square holds both, L on and below its diagonal and X above, and stays in registers, 8 x 8 a thread.
// A step of eight columns: their owners put them into shared memory (panel); a thread for each row factors the 8 x 8
// on the diagonal, as all others do, and eliminates in its own row (solved); all threads subtract products of the
// solved columns from the columns behind.
// The bottleneck is the chain of pivots, some 50 cycles each, and next to it 0.7 million FMAs, 5,500 cycles of an SM.
// Code is short on purpose: what is unrolled is fetched once for each block, and 100 KB of it took 50 us.

#include "include/linalg/strides.cuh"

constexpr int ROWS = 128, STEP = 8, SIDE = ROWS / STEP, THREADS = SIDE * SIDE;
constexpr int PITCH = STEP + 4;  // of a panel's rows: eight lanes that read quads of neighbouring rows have all banks

// Eight columns of all rows, rows side by side. After eight rows there is a gap, so that the owners of four blocks below
// each other store to different banks.
struct Columns {
  float words[SIDE * (STEP * PITCH + 4)];

  __device__ __forceinline__ float* row(int r) { return words + r * PITCH + r / STEP * 4; }
};

struct Shared {
  Columns given, panel;          // what the matrix has, and what has been added to that
  float solved[STEP][ROWS + 4];  // so that four rows of eight columns lie in all banks
  float corner[STEP][STEP];      // L's own rows of these columns
};

// The elements of eight columns of ROWS rows that a thread moves: neighbours are neighbours in memory. One behind the
// other they are `down` rows and `right` columns apart.
constexpr int EACH = ROWS * STEP / THREADS;
struct Mine {
  int row, column, down, right;
  long long begin, apart;  // elements from the matrix's first to this thread's, and from one of these to the next

  __device__ __forceinline__ Mine(const Strides& s, bool along_rows) {
    row = along_rows ? threadIdx.x % ROWS : threadIdx.x / STEP;
    column = along_rows ? threadIdx.x / ROWS : threadIdx.x % STEP;
    down = along_rows ? 0 : THREADS / STEP;
    right = along_rows ? THREADS / ROWS : 0;
    begin = s.at(row, column);
    apart = s.at(down, right);
  }
};

// Where a thread's 8 x 8 elements begin. A warp has 4 x 8 of them, so that whole warps have nothing left to do early.
__device__ __forceinline__ int block_row() { return threadIdx.x / 64 * 4 + threadIdx.x % 32 / 8; }
__device__ __forceinline__ int block_column() { return threadIdx.x / 32 % 2 * 8 + threadIdx.x % 8; }

struct Elimination {
  const float* from;  // the matrix, of which the lower triangle is read
  float* factor;      // null: not wanted
  float* inverse;
  Strides from_strides, factor_strides, inverse_strides;
  int n;
  bool unit;
};

// The order of the leading minor that is not positive definite, or 0; to threads 0 ... 127.
template <bool FACTOR>
__device__ __forceinline__ int eliminate(const Elimination& e, Shared& shared) {
  const int thread = threadIdx.x, down = block_row(), right = block_column();
  float s[STEP][STEP] = {}, next[EACH];
  const Mine from(e.from_strides, e.from_strides.along_rows()), to(e.factor_strides, e.factor_strides.along_rows());
  const Mine turned({e.inverse_strides.column, e.inverse_strides.row, 0}, e.inverse_strides.column == 1);
  const float* source = e.from + from.begin;
  float *factor = e.factor + to.begin, *inverse = e.inverse + turned.begin;
  // Eight columns, one step ahead; above the diagonal are zeros of X, rows behind the last are those of an identity.
  auto load = [&](int first) {
    const float* at = source;
#pragma unroll
    for (int i = 0; i < EACH; ++i, at += from.apart) {
      const int row = from.row + i * from.down, column = first + from.column + i * from.right;
      next[i] = row == column;
      if (row < e.n && column <= row && !(e.unit && row == column)) next[i] = *at;
    }
    source += STEP * e.from_strides.column;
  };
  load(0);
  int failed = 0;
#pragma unroll 1
  for (int first = 0; first < e.n; first += STEP) {
    const int step = first / STEP;
    if (right == step)
#pragma unroll
      for (int i = 0; i < STEP; ++i)
#pragma unroll
        for (int j = 0; j < STEP; j += 4)
          *reinterpret_cast<float4*>(shared.panel.row(down * STEP + i) + j) =
              make_float4(s[i][j], s[i][j + 1], s[i][j + 2], s[i][j + 3]);
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      shared.given.row(from.row + i * from.down)[from.column + i * from.right] = next[i];
    load(first + STEP);
    __syncthreads();
    // Rows of X up to these columns', and of L behind; then, of FACTOR, L's own rows of these columns.
    if (thread < ROWS + (FACTOR ? STEP : 0)) {
      const int row = thread < ROWS ? thread : first + thread - ROWS;
      float d[STEP][STEP], v[STEP];
      auto sum = [&](int r, int j) {
        const float4 x = *reinterpret_cast<const float4*>(shared.given.row(r) + j);
        const float4 y = *reinterpret_cast<const float4*>(shared.panel.row(r) + j);
        return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
      };
#pragma unroll
      for (int i = 0; i < STEP; ++i)
#pragma unroll
        for (int j = 0; j <= i; j += 4) *reinterpret_cast<float4*>(&d[i][j]) = sum(first + i, j);
#pragma unroll
      for (int j = 0; j < STEP; j += 4) *reinterpret_cast<float4*>(&v[j]) = sum(row, j);
      const bool identity = thread < ROWS && row / STEP == step, given = !FACTOR && row >= first + STEP;
#pragma unroll
      for (int j = 0; j < STEP; ++j)
        if (identity) v[j] = row == first + j;
#pragma unroll
      for (int j = 0; j < STEP; ++j) {
        float reciprocal;
        if (FACTOR) {
          const float pivot = d[j][j];
          if (!(pivot > 0.f) && failed == 0) failed = first + j + 1;
          reciprocal = rsqrtf(pivot);
          reciprocal = fmaf(0.5f * reciprocal, fmaf(-pivot * reciprocal, reciprocal, 1.f), reciprocal);
        } else {
          asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(d[j][j]));
          reciprocal = fmaf(reciprocal, fmaf(-d[j][j], reciprocal, 1.f), reciprocal);
        }
        if (!given) v[j] *= reciprocal;
#pragma unroll
        for (int i = j + 1; i < STEP; ++i) {
          if (FACTOR) {
            d[i][j] *= reciprocal;
#pragma unroll
            for (int k = j + 1; k <= i; ++k) d[i][k] = fmaf(-d[i][j], d[k][j], d[i][k]);
          }
          if (!given) v[i] = fmaf(-v[j], d[i][j], v[i]);
        }
      }
#pragma unroll
      for (int j = 0; j < STEP; ++j)
        (thread < ROWS ? shared.solved[j][row] : shared.corner[row - first][j]) = v[j];
    }
    __syncthreads();
    // Of the factor these columns, of the inverse these rows, zeros on the other sides of their diagonals.
    float *down_factor = factor, *along_inverse = inverse;
#pragma unroll
    for (int i = 0; i < EACH; ++i, down_factor += to.apart, along_inverse += turned.apart) {
      const int row = turned.row + i * turned.down, column = turned.column + i * turned.right;
      const float x = shared.solved[column][row];
      if (row < e.n && first + column < e.n) *along_inverse = row <= first + column ? x : 0.f;
      if (!FACTOR) continue;
      const int r = to.row + i * to.down, c = to.column + i * to.right;
      const float l = r / STEP == step ? shared.corner[r % STEP][c] : shared.solved[c][r];
      if (r < e.n && first + c < e.n) *down_factor = r >= first + c ? l : 0.f;
    }
    factor += STEP * e.factor_strides.column;
    inverse += STEP * e.inverse_strides.row;
    if (right > step && ((FACTOR && down >= right) || down <= step))
#pragma unroll 4
      for (int k = 0; k < STEP; ++k) {
        float a[STEP], b[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i += 4) {
          *reinterpret_cast<float4*>(a + i) = *reinterpret_cast<const float4*>(&shared.solved[k][down * STEP + i]);
          *reinterpret_cast<float4*>(b + i) = *reinterpret_cast<const float4*>(&shared.solved[k][right * STEP + i]);
        }
#pragma unroll
        for (int i = 0; i < STEP; ++i)
#pragma unroll
          for (int j = 0; j < STEP; ++j) s[i][j] = fmaf(-a[i], b[j], s[i][j]);
      }
  }
  return failed;
}

// Zeros in `rows` rows of `columns`, but for as many columns as rows behind `left`. Lanes along the rows of W, or down.
__device__ __forceinline__ void zero_beside(float* to, const Strides& s, int rows, int left, int columns) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool along = s.along_rows();
  const int down = along ? 32 : THREADS / 32, right = along ? THREADS / 32 : 32;
#pragma unroll 1
  for (int r = along ? lane : warp; r < rows; r += down)
#pragma unroll 4
    for (int c = along ? warp : lane; c < columns; c += right)
      if (c < left || c >= left + rows) to[s.at(r, c)] = 0.f;
}
