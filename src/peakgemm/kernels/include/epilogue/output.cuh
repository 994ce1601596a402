// Where the sums of an emulated tile go.
#include "include/epilogue/epilogue.cuh"
#include "include/scheduler/gemm.cuh"

// Eight rows of 64 results in shared memory, rows so far apart that four of them have banks of their own.
constexpr int STAGED_PITCH = 72;

// TRANS_C: a kernel that is asked for C^T finds C's columns where a row is expected: what is contiguous are its own rows.
// Where the sums of a tile go: to C, as alpha sum + beta C0; or, where other blocks have the rest of K, as they
// are to a slot of partial sums, row beside row or, turned, column beside column.
struct Output {
  float* c;         // at the tile's first element
  const float* c0;
  long long ldc, c0_row, c0_col;
  float alpha, beta;
  int rows, columns;  // from there to the edge; of a slot all of a row (or column) is written
  int diagonal;       // rows from the tile's place to that of the same column; a slot has no triangle
  bool pairs;         // two neighbours may be stored at once,
  bool whole;         // all of the tile is inside, with nothing to be added,
  bool plain;         // and four may be stored at once anywhere in it

  __device__ __forceinline__ Output(const Gemm& g, Place place, const float* C0, float* C, float* partial, int slot) {
    rows = TRANS_C && slot >= 0 ? BM : g.M - place.m;
    columns = !TRANS_C && slot >= 0 ? BN : min(g.N - place.n, BN);
    if (slot >= 0) {
      c = partial + static_cast<long long>(slot) * BM * BN;
      c0 = nullptr;
      ldc = TRANS_C ? BM : BN;
      c0_row = c0_col = 0;
      alpha = 1.f;
      beta = 0.f;
    } else {
      c = C + batch_offset(g, g.c_batch, place.batch) + (TRANS_C ? place.n * g.ldc + place.m : place.m * g.ldc + place.n);
      c0 = C0 + batch_offset(g, g.c0_batch, place.batch) + place.m * g.c0_row + place.n * g.c0_col;
      ldc = g.ldc;
      c0_row = g.c0_row;
      c0_col = g.c0_col;
      alpha = g.alpha;
      beta = g.beta;
    }
    diagonal = slot < 0 ? place.m - place.n : TRIANGLE == UPPER ? -(1 << 20) : 1 << 20;
    pairs = ldc % 2 == 0 && reinterpret_cast<unsigned long long>(c) % 8 == 0;
    whole = beta == 0.f && rows >= BM && columns >= BN && is_wanted(0, BN - 1) && is_wanted(BM - 1, 0);
    plain = whole && ldc % 4 == 0 && reinterpret_cast<unsigned long long>(c) % 16 == 0;
  }

  // Of the triangle that is asked for, if one is.
  __device__ __forceinline__ bool is_wanted(int row, int column) const { return in_triangle(row + diagonal, column); }

  __device__ __forceinline__ bool is_inside(int row, int column) const {
    return row < rows && column < columns && is_wanted(row, column);
  }

  __device__ __forceinline__ float scaled(int row, int column, float sum) const {
    return ::scaled(sum, alpha, beta, c0 + row * c0_row + column * c0_col);
  }

  __device__ __forceinline__ float* at(int row, int column) const {
    return c + (TRANS_C ? column * ldc + row : row * ldc + column);
  }

  __device__ __forceinline__ void store(int row, int column, float sum) const {
    if (is_inside(row, column)) *at(row, column) = scaled(row, column, sum);
  }

  // And its neighbour in memory, the right one or, turned, the lower one; `sum` is at an even place.
  __device__ __forceinline__ void store(int row, int column, float sum, float next) const {
    const int down = TRANS_C ? row + 1 : row, right = TRANS_C ? column : column + 1;
    if (pairs && !TRIANGLE && down < rows && right < columns) {
      *reinterpret_cast<float2*>(at(row, column)) = make_float2(scaled(row, column, sum), scaled(down, right, next));
    } else {
      store(row, column, sum);
      store(down, right, next);
    }
  }

  // What a warp has staged: from there on, whole lines. Little code, on purpose: of a store for each of a thread's 64
  // sums, jumps past its tests each miss the instruction cache.
  __device__ __forceinline__ void store_rows(const float* staged, int row, int column, int lane) const {
    if (TRANS_C && plain) {  // two lanes have a column's eight rows, a whole sector
      // All is read before the first is stored: the compiler takes what is stored for what may be read next.
      float4 v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const from = staged + lane % 2 * 4 * STAGED_PITCH + 16 * i + lane / 2;
        v[i] = make_float4(from[0], from[STAGED_PITCH], from[2 * STAGED_PITCH], from[3 * STAGED_PITCH]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<float4*>(at(row + lane % 2 * 4, column + 16 * i + lane / 2)) =
            make_float4(alpha * v[i].x, alpha * v[i].y, alpha * v[i].z, alpha * v[i].w);
      return;
    }
    if (beta == 0.f) {
      // Rows that start anywhere, or end at the edge: words, with two tests each.
      const int first = TRANS_C ? lane % 8 : 0, beside = TRANS_C ? lane / 8 : lane;
      const float* const from = staged + first * STAGED_PITCH + beside;
      const int down = rows - row - first, right = columns - column - beside;
      float v[16];
#pragma unroll
      for (int t = 0; t < 16; ++t) v[t] = alpha * from[TRANS_C ? 4 * t : t / 2 * STAGED_PITCH + t % 2 * 32];
      float* to = at(row + first, column + beside);
#pragma unroll
      for (int t = 0; t < 16; ++t) {
        if ((TRANS_C ? 0 : t / 2) < down && (TRANS_C ? 4 * t : t % 2 * 32) < right &&
            is_wanted(row + t / 2, column + beside + t % 2 * 32))
          to[TRANS_C ? 0 : t % 2 * 32] = v[t];
        if (TRANS_C) to += 4 * ldc;
        else if (t % 2) to += ldc;
      }
      return;
    }
#pragma unroll 1
    for (int y = 0; y < 8; y += 4) {
      float v[8];  // and C0 may be C
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const int down = TRANS_C ? lane % 8 : y + t / 2, right = TRANS_C ? 8 * y + 4 * t + lane / 8 : t % 2 * 32 + lane;
        v[t] = staged[down * STAGED_PITCH + right];
        v[t] = is_inside(row + down, column + right) ? scaled(row + down, column + right, v[t]) : 0.f;
      }
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const int down = TRANS_C ? lane % 8 : y + t / 2, right = TRANS_C ? 8 * y + 4 * t + lane / 8 : t % 2 * 32 + lane;
        if (is_inside(row + down, column + right)) *at(row + down, column + right) = v[t];
      }
    }
  }
};
