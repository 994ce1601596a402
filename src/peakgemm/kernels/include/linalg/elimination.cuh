// Up to 128 rows of a lower triangle L and of its inverse W, by one block: the factor of a symmetric matrix and the
// inverse of that (FACTOR), or of a given triangle the inverse alone.
//
// Idea: W comes from the identity as further rows below the matrix, as X L^T = I has the solution X = W^T. When columns
// STEP are eliminated, the rows of L that they change are those below, and of X those above: always 128 rows. So one
// square holds both, L on and below its diagonal and X above.
// Row warps have a row a thread. Of eight columns at a time each factors the 8 x 8 on the diagonal, as all do, and
// eliminates in its own row. Update warps keep the square in registers, 8 x 8 a thread, subtract products of the columns
// that are solved from those behind, and hand over the next panel of eight columns. They are a step late: what the last
// step takes from a panel its own rows subtract.
// The bottleneck is the chain of pivots, some 70 cycles each, and what is between two panels: two barriers and the
// latencies of shared memory. Next to it are 0.7 million FMAs, 5,500 cycles of an SM. Code is short on purpose: of what
// is unrolled 3 KB take a microsecond to be fetched. Addresses in global memory are stepped: 64-bit products took as
// long as the rest.

#include "include/linalg/strides.cuh"

constexpr int ROWS = 128, STEP = 8, SIDE = ROWS / STEP;
constexpr int UPDATING = SIDE * SIDE, SOLVING = ROWS + 32, THREADS = UPDATING + SOLVING;
constexpr int LINE = ROWS + 4;

// Eight columns of all rows. After eight rows there is a gap, so that the owners of four blocks below each other store
// to different banks, as eight lanes load rows.
struct Columns {
  float words[SIDE * (STEP * 12 + 4)];

  __device__ __forceinline__ float* row(int r) { return words + r * 12 + r / STEP * 4; }
};

struct Shared {
  float square[ROWS][LINE];   // the matrix; then of each column that is solved, all rows
  float corner[ROWS][STEP];   // of each row of L what lies in the 8 x 8 on the diagonal
  Columns panel[2];
  float diagonal[STEP][STEP];
};

struct Elimination {
  const float* from;  // the matrix, of which the lower triangle is read
  float* factor;
  float* inverse;
  Strides from_strides, factor_strides, inverse_strides;
  int n;
  bool unit;
};

enum Barrier { PANEL = 1, SOLVED = 3, ROW_WARPS = 5 };  // of panels and solved columns two each, in turn
__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void load_quad(float* to, const float* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

// Elements of a matrix, that `threads` threads of number `thread` move: lane by lane along what is contiguous, a line and
// then the next. body(row, column, address)
template <int COUNT, typename Pointer, typename Body>
__device__ __forceinline__ void each_element(Pointer first, const Strides& s, int n, int thread, Body body) {
  const bool along = s.along_rows();
  const int inside = thread % ROWS, line = thread / ROWS, apart = COUNT / ROWS;
  const long long step = along ? s.column : s.row;
  Pointer at = first + inside * (along ? s.row : s.column) + line * step;
#pragma unroll 8
  for (int i = line; i < n; i += apart, at += apart * step)
    if (inside < n) body(along ? inside : i, along ? i : inside, at);
}

// Update warps.
template <bool FACTOR>
__device__ __forceinline__ void update(const Elimination& e, Shared& shared, int steps) {
  // A warp has 4 x 8 blocks, so that whole warps have nothing left to do early.
  const int down = threadIdx.x / 64 * 4 + threadIdx.x % 32 / 8, right = threadIdx.x / 32 % 2 * 8 + threadIdx.x % 8;
  float s[STEP][STEP];
#pragma unroll
  for (int i = 0; i < STEP; ++i)
#pragma unroll
    for (int j = 0; j < STEP; j += 4) load_quad(&s[i][j], &shared.square[down * STEP + i][right * STEP + j]);
  auto give = [&](int step) {
    if (right == step)
#pragma unroll
      for (int i = 0; i < STEP; ++i)
#pragma unroll
        for (int j = 0; j < STEP; j += 4) load_quad(shared.panel[step % 2].row(down * STEP + i) + j, &s[i][j]);
    arrive(PANEL + step % 2, THREADS);
  };
  give(0);
  if (steps > 1) give(1);
#pragma unroll 1
  for (int step = 0; step + 2 < steps; ++step) {
    meet(SOLVED + step % 2, THREADS);
    if (right >= step + 2 && ((FACTOR && down >= right) || down <= step))
#pragma unroll 4
      for (int k = 0; k < STEP; ++k) {
        const float* const column = shared.square[step * STEP + k];
        float a[STEP], b[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i += 4) {
          load_quad(a + i, column + down * STEP + i);
          load_quad(b + i, column + right * STEP + i);
        }
#pragma unroll
        for (int i = 0; i < STEP; ++i)
#pragma unroll
          for (int j = 0; j < STEP; ++j) s[i][j] = fmaf(-a[i], b[j], s[i][j]);
      }
    give(step + 2);
  }
}

// Row warps, of row `thread`; behind ROWS: of L's own rows on the diagonal. The order of the leading minor that is not
// positive definite, or 0.
template <bool FACTOR>
__device__ __forceinline__ int solve(Shared& shared, int thread, int steps) {
  float v[STEP] = {};
  int failed = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int first = step * STEP, inside = thread - first;
    const bool is_row = thread < ROWS;
    meet(PANEL + step % 2, THREADS);
    float own[STEP], d[STEP][STEP];
#pragma unroll
    for (int j = 0; j < STEP; j += 4) load_quad(own + j, shared.panel[step % 2].row(is_row ? thread : 0) + j);
    if (step > 0 && (FACTOR || inside < 0))
#pragma unroll
      for (int k = 0; k < STEP; ++k) {
        float l[STEP];
#pragma unroll
        for (int j = 0; j < STEP; j += 4) load_quad(l + j, &shared.square[first - STEP + k][first + j]);
#pragma unroll
        for (int j = 0; j < STEP; ++j) own[j] = fmaf(-v[k], l[j], own[j]);
      }
    const bool identity = is_row && inside >= 0 && inside < STEP;
    if (identity)
#pragma unroll
      for (int j = 0; j < STEP; j += 4) load_quad(&shared.diagonal[inside][j], own + j);
    meet(ROW_WARPS, SOLVING);
#pragma unroll
    for (int i = 0; i < STEP; ++i)
#pragma unroll
      for (int j = 0; j <= i; j += 4) load_quad(&d[i][j], &shared.diagonal[i][j]);
#pragma unroll
    for (int j = 0; j < STEP; ++j)
      v[j] = identity ? inside == j : is_row ? own[j] : shared.diagonal[thread % STEP][j];
    const bool given = !FACTOR && inside >= STEP;
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
    if (is_row) {
#pragma unroll
      for (int j = 0; j < STEP; ++j) shared.square[first + j][thread] = v[j];
    } else if (thread < ROWS + STEP) {
#pragma unroll
      for (int j = 0; j < STEP; ++j) shared.corner[first + thread - ROWS][j] = v[j];
    }
    if (step + 2 < steps) arrive(SOLVED + step % 2, THREADS);
  }
  return failed;
}

// All threads. The order of the leading minor that is not positive definite, or 0, to the last of them.
template <bool FACTOR>
__device__ __forceinline__ int eliminate(const Elimination& e, Shared& shared) {
  const int thread = threadIdx.x, steps = (e.n + STEP - 1) / STEP;
  // Above the diagonal are zeros of X, rows behind the last are those of an identity.
  if (thread < UPDATING) {
    each_element<UPDATING>(e.from, e.from_strides, ROWS, thread, [&](int r, int c, const float* at) {
      const bool one = r == c && (e.unit || r >= e.n);
      shared.square[r][c] = r < e.n && c <= r && !one ? *at : one;
    });
  }
  __syncthreads();
  int failed = 0;
  if (thread < UPDATING) update<FACTOR>(e, shared, steps);
  else failed = solve<FACTOR>(shared, thread - UPDATING, steps);
  __syncthreads();
  if (thread < UPDATING && FACTOR)
    each_element<UPDATING>(e.factor, e.factor_strides, e.n, thread, [&](int r, int c, float* at) {
      const float x = r / STEP == c / STEP ? shared.corner[r][c % STEP] : shared.square[c][r];
      *at = r >= c ? x : 0.f;
    });
  const int rest = FACTOR ? thread - UPDATING : thread;
  constexpr int STORING = FACTOR ? ROWS : UPDATING;
  if (rest >= 0 && rest < STORING)
    each_element<STORING>(e.inverse, e.inverse_strides, e.n, rest,
                          [&](int r, int c, float* at) { *at = r >= c ? shared.square[r][c] : 0.f; });
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
