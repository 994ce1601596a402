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

struct Shared {
  float given[ROWS][PITCH];  // of eight columns what the matrix has,
  float panel[ROWS][PITCH];  // and what has been added to that
  float solved[STEP][ROWS + 4];  // so that four rows of eight columns lie in all banks
  float corner[STEP][STEP];      // L's own rows of these columns
};

// Of eight columns of ROWS rows, the element that a thread moves in round `i`: neighbours are neighbours in memory.
struct Element {
  int row, column;

  __device__ __forceinline__ Element(int i, bool along_rows) {
    const int number = threadIdx.x + i * THREADS;
    row = along_rows ? number % ROWS : number / STEP;
    column = along_rows ? number / ROWS : number % STEP;
  }
};
constexpr int EACH = ROWS * STEP / THREADS;

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

// All threads: eight columns of the factor, and eight rows of the inverse, with zeros on their other sides.
__device__ __forceinline__ void store(const Elimination& e, const Shared& shared, int first, bool factor) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const Element x(i, e.inverse_strides.row != 1), y(i, e.factor_strides.along_rows());
    if (x.row < e.n && first + x.column < e.n)
      e.inverse[e.inverse_strides.at(first + x.column, x.row)] =
          x.row <= first + x.column ? shared.solved[x.column][x.row] : 0.f;
    if (!factor || y.row >= e.n || first + y.column >= e.n) continue;
    const int inside = y.row - first;
    e.factor[e.factor_strides.at(y.row, first + y.column)] =
        inside < y.column ? 0.f : inside < STEP ? shared.corner[inside][y.column] : shared.solved[y.column][y.row];
  }
}

// The order of the leading minor that is not positive definite, or 0; to threads 0 ... 127.
template <bool FACTOR>
__device__ __forceinline__ int eliminate(const Elimination& e, Shared& shared) {
  const int thread = threadIdx.x, down = block_row(), right = block_column();
  float s[STEP][STEP] = {}, next[EACH];
  // Eight columns, one step ahead; above the diagonal are zeros of X, rows behind the last are those of an identity.
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const Element x(i, e.from_strides.along_rows());
      const int column = first + x.column;
      next[i] = x.row == column;
      if (x.row < e.n && column <= x.row && !(e.unit && x.row == column))
        next[i] = e.from[e.from_strides.at(x.row, column)];
    }
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
          *reinterpret_cast<float4*>(&shared.panel[down * STEP + i][j]) =
              make_float4(s[i][j], s[i][j + 1], s[i][j + 2], s[i][j + 3]);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const Element x(i, e.from_strides.along_rows());
      shared.given[x.row][x.column] = next[i];
    }
    load(first + STEP);
    __syncthreads();
    // Rows of X up to these columns', and of L behind; then, of FACTOR, L's own rows of these columns.
    if (thread < ROWS + (FACTOR ? STEP : 0)) {
      const int row = thread < ROWS ? thread : first + thread - ROWS;
      float d[STEP][STEP], v[STEP];
      auto sum = [&](int r, int j) {
        const float4 x = *reinterpret_cast<const float4*>(&shared.given[r][j]);
        const float4 y = *reinterpret_cast<const float4*>(&shared.panel[r][j]);
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
    store(e, shared, first, FACTOR);
    if (right > step && ((FACTOR && down >= right) || down <= step))
#pragma unroll 2
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
