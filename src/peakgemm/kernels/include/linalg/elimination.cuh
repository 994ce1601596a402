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
// The bottleneck is the chain from panel to panel: eight pivots, some 70 cycles each, two barriers and the latencies of
// shared memory; then the update, which the next panel but one waits for. Below that are 0.7 million FMAs, 5,500 cycles
// of an SM. Code is short on purpose: 150 KB of it, run a few times each, took 56 us (docs/notebook/25).

#include "include/linalg/strides.cuh"
#include "include/ptx/cp_async.cuh"

constexpr int ROWS = 128, STEP = 8, SIDE = ROWS / STEP;
constexpr int UPDATING = SIDE * SIDE, SOLVING = ROWS, THREADS = UPDATING + SOLVING;
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
  bool unit, zeros;  // zeros are stored above the diagonals of the results, or nothing
  float floor;       // of pivots, below which SKIPS leaves a column out
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

// A thread's elements of a matrix, lanes along what is contiguous: of all lines that one every `apart` lines from `line`
// on. body(row, column, address)
template <typename Pointer, typename Body>
__device__ __forceinline__ void each_element(Pointer first, const Strides& s, int line, int apart, Body body) {
  const bool along = s.along_rows();
  const int inside = threadIdx.x % ROWS;
  const long long step = along ? s.column : s.row;
  Pointer at = first + inside * (along ? s.row : s.column) + line * step;
#pragma unroll 2
  for (; line < ROWS; line += apart, at += apart * step) body(along ? inside : line, along ? line : inside, at);
}

// The lower triangle of what `square` has, or of its transpose, by all warps, a line of the result at a time along what
// is contiguous; above it zeros, or nothing.
__device__ __forceinline__ void store(float* to, const Strides& s, const float (&square)[ROWS][LINE], bool transposed,
                                      int n, bool zeros) {
  const bool along = s.along_rows();
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32;
  const int from_line = along == transposed ? LINE : 1, from_inside = along == transposed ? 1 : LINE;
  const long long step = along ? s.column : s.row, inside_step = 32 * (along ? s.row : s.column);
  const float* from = &square[0][0] + first * from_line + lane * from_inside;
  float* at = to + first * step + lane * (along ? s.row : s.column);
#pragma unroll 1
  for (int line = first; line < n; line += THREADS / 32, from += THREADS / 32 * from_line, at += THREADS / 32 * step) {
    float values[ROWS / 32];  // all are read before one is stored, so that one wait is for all
#pragma unroll
    for (int i = 0; i < ROWS / 32; ++i) values[i] = from[i * 32 * from_inside];
#pragma unroll
    for (int i = 0; i < ROWS / 32; ++i) {
      const int inside = lane + i * 32;
      const bool is_lower = along ? inside >= line : inside <= line;
      if (inside < n && (is_lower || zeros)) at[i * inside_step] = is_lower ? values[i] : 0.f;
    }
  }
}

// Update warps: a warp has 64 x 32 elements, a thread quads of four of its rows and of two of its columns (mma/warp_tile.cuh
// says why). What lies above the diagonal in rows that are L's yet is not looked at.
template <bool FACTOR>
__device__ __forceinline__ void update(Shared& shared, int steps) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lane_n = lane % 2 + lane / 16 * 2;
  // The two warps of a strip are of different schedulers, for the last strip has columns to update when others have not.
  const int strip = (warp + warp / 4 * 2) % 4, m = warp / 4 * 64 + lane / 2 % 8 * 4, n = strip * 32 + lane_n * 4;
  float s[STEP][STEP];
#pragma unroll
  for (int i = 0; i < STEP; ++i)
#pragma unroll
    for (int j = 0; j < STEP; j += 4) load_quad(&s[i][j], &shared.square[m + i % 4 + i / 4 * 32][n + j * 4]);
  auto give = [&](int step) {
    if (strip == step / 4 && lane_n / 2 == step % 2)
#pragma unroll
      for (int i = 0; i < STEP; ++i) {
        const bool left = step % 4 < 2;
        const float four[4] = {left ? s[i][0] : s[i][4], left ? s[i][1] : s[i][5], left ? s[i][2] : s[i][6],
                               left ? s[i][3] : s[i][7]};
        load_quad(shared.panel[step % 2].row(m + i % 4 + i / 4 * 32) + lane_n % 2 * 4, four);
      }
    arrive(PANEL + step % 2, THREADS);
  };
  give(0);
  if (steps > 1) give(1);
#pragma unroll 1
  for (int step = 0; step + 2 < steps; ++step) {
    meet(SOLVED + step % 2, THREADS);
    if (strip * 4 + 3 >= step + 2) {
#pragma unroll
      for (int i = 0; i < STEP; ++i)  // rows of L become rows of X
        if (FACTOR && (m + i / 4 * 32) / STEP == step)
#pragma unroll
          for (int j = 0; j < STEP; ++j) s[i][j] = 0.f;
#pragma unroll 2
      for (int k = 0; k < STEP; ++k) {
        const float* const column = shared.square[step * STEP + k];
        float a[STEP], b[STEP];
#pragma unroll
        for (int i = 0; i < STEP; i += 4) {
          load_quad(a + i, column + m + i * 8);
          load_quad(b + i, column + n + i * 4);
        }
#pragma unroll
        for (int i = 0; i < STEP; ++i) {
          if (!FACTOR && (m + i / 4 * 32) / STEP > step) a[i] = 0.f;  // rows of L stay as they are
#pragma unroll
          for (int j = 0; j < STEP; ++j) s[i][j] = fmaf(-a[i], b[j], s[i][j]);
        }
      }
    }
    give(step + 2);
  }
}

// Row warps, of row `thread`. The order of the leading minor that is not positive definite, or 0.
template <bool FACTOR, bool SKIPS>
__device__ __forceinline__ int solve(Shared& shared, int thread, int steps, float floor) {
  float v[STEP] = {};
  int failed = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int first = step * STEP, inside = thread - first;
    meet(PANEL + step % 2, THREADS);
    float own[STEP], d[STEP][STEP];
#pragma unroll
    for (int j = 0; j < STEP; j += 4) load_quad(own + j, shared.panel[step % 2].row(thread) + j);
    if (FACTOR && inside < 0 && inside >= -STEP)  // the first columns of a row of X
#pragma unroll
      for (int j = 0; j < STEP; ++j) own[j] = 0.f;
    if (step > 0 && (FACTOR || inside < 0))
#pragma unroll
      for (int k = 0; k < STEP; ++k) {
        float l[STEP];
#pragma unroll
        for (int j = 0; j < STEP; j += 4) load_quad(l + j, &shared.square[first - STEP + k][first + j]);
#pragma unroll
        for (int j = 0; j < STEP; ++j) own[j] = fmaf(-v[k], l[j], own[j]);
      }
    const bool identity = inside >= 0 && inside < STEP;
    if (identity)
#pragma unroll
      for (int j = 0; j < STEP; j += 4) load_quad(&shared.diagonal[inside][j], own + j);
    meet(ROW_WARPS, SOLVING);
#pragma unroll
    for (int i = 0; i < STEP; ++i)
#pragma unroll
      for (int j = 0; j <= i; j += 4) load_quad(&d[i][j], &shared.diagonal[i][j]);
#pragma unroll
    for (int j = 0; j < STEP; ++j) v[j] = identity ? inside == j : own[j];
    const bool given = !FACTOR && inside >= STEP;
#pragma unroll
    for (int j = 0; j < STEP; ++j) {
      float reciprocal;
      if (FACTOR) {
        const float pivot = d[j][j];
        failed = failed == 0 && !(pivot > 0.f) ? first + j + 1 : failed;
        reciprocal = rsqrtf(pivot);
        reciprocal = fmaf(0.5f * reciprocal, fmaf(-pivot * reciprocal, reciprocal, 1.f), reciprocal);
        if (SKIPS && pivot <= floor) reciprocal = 0.f;
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
      if (FACTOR) d[j][j] = SKIPS && reciprocal == 0.f ? -1.f : d[j][j] * reciprocal;
    }
#pragma unroll
    for (int j = 0; j < STEP; ++j) shared.square[first + j][thread] = v[j];
    if (FACTOR && inside == 0)
#pragma unroll
      for (int i = 0; i < STEP; ++i)
#pragma unroll
        for (int j = 0; j <= i; j += 4) load_quad(&shared.corner[first + i][j], &d[i][j]);
    if (step + 2 < steps) arrive(SOLVED + step % 2, THREADS);
  }
  return failed;
}

// All threads. The order of the leading minor that is not positive definite, or 0, to the last of them.
template <bool FACTOR, bool SKIPS = false>
__device__ __forceinline__ int eliminate(const Elimination& e, Shared& shared) {
  const int thread = threadIdx.x, steps = (e.n + STEP - 1) / STEP;
  // Above the diagonal are zeros of X, rows behind the last are those of an identity.
  if (thread < UPDATING) {
    each_element(e.from, e.from_strides, thread / ROWS, UPDATING / ROWS, [&](int r, int c, const float* at) {
      copy4_or_zero(shared_address(&shared.square[r][c]), at, r < e.n && c <= r);
    });
    copies_wait_all();
  }
  __syncthreads();
  if (thread < ROWS && (e.unit || thread >= e.n)) shared.square[thread][thread] = 1.f;
  __syncthreads();
  int failed = 0;
  if (thread < UPDATING) update<FACTOR>(shared, steps);
  else failed = solve<FACTOR, SKIPS>(shared, thread - UPDATING, steps, e.floor);
  __syncthreads();
  store(e.inverse, e.inverse_strides, shared.square, false, e.n, e.zeros);
  if (FACTOR) {  // of L what lies in the squares on the diagonal joins the rest, in the place of X
    __syncthreads();
    for (int i = thread; i < steps * STEP * STEP; i += THREADS) {
      const int r = i / STEP, c = r / STEP * STEP + i % STEP;
      if (c <= r) shared.square[c][r] = shared.corner[r][i % STEP];
    }
    __syncthreads();
    store(e.factor, e.factor_strides, shared.square, true, e.n, e.zeros);
  }
  return failed;
}
