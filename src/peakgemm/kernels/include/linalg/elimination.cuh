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
  float solved[STEP][ROWS];
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
  float s[STEP][STEP] = {}, next[STEP];
  // Eight columns of this thread's row; what is above the diagonal are zeros of X, rows behind the last those of an
  // identity.
  auto load = [&](int first) {
#pragma unroll
    for (int j = 0; j < STEP; ++j) {
      const int column = first + j;
      next[j] = thread == column;
      if (thread < e.n && column <= thread && !(e.unit && thread == column))
        next[j] = e.from[e.from_strides.at(thread, column)];
    }
  };
  if (thread < ROWS) load(0);
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
    if (thread < ROWS) {
#pragma unroll
      for (int j = 0; j < STEP; j += 4)
        *reinterpret_cast<float4*>(&shared.given[thread][j]) =
            make_float4(next[j], next[j + 1], next[j + 2], next[j + 3]);
      load(first + STEP);
    }
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
      float* factor = e.factor + e.factor_strides.at(row, first);
      float* inverse = e.inverse + e.inverse_strides.at(first, row);
#pragma unroll
      for (int j = 0; j < STEP; ++j, factor += e.factor_strides.column, inverse += e.inverse_strides.row) {
        if (thread < ROWS) shared.solved[j][row] = v[j];
        if (row >= e.n || first + j >= e.n) continue;
        if (FACTOR && !identity) *factor = row >= first + j ? v[j] : 0.f;
        if (thread < ROWS) *inverse = row <= first + j ? v[j] : 0.f;
      }
    }
    __syncthreads();
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

// Zeros in `rows` rows of `columns`, but for as many columns as rows behind `left`.
__device__ __forceinline__ void zero_beside(float* to, const Strides& s, int rows, int left, int columns) {
  const bool along_rows = s.along_rows();
  const int length = along_rows ? rows : columns;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * columns; i += THREADS) {
    const int line = i / length, inside = i - line * length;
    const int r = along_rows ? inside : line, c = along_rows ? line : inside;
    if (c < left || c >= left + rows) to[s.at(r, c)] = 0.f;
  }
}
