// Complex matrices made ready for real products, and three such products combined.
//
// Idea: a complex matrix in memory is a real one of twice as many columns. Embedded, a number b is the square
// [re b, im b; -im b, re b], so that a real product of rows re a, im a with it has both parts of a b. Tiles go by way of
// shared memory, so that reads and writes are both of consecutive numbers. The bottleneck is DRAM.
//
// A: the matrices, or of COMBINE three products of planes and of JOIN two parts, floats row by row. C0: of these two the
// matrix that beta scales. C: what is made; it may be A, or C0, by the same strides.

#include "include/linalg/strides.cuh"
#include "include/ptx/dependents.cuh"

// kernels/linalg/complex_pack.py says what each makes.
enum Mode { COPY, EMBED, PLANES, COMBINE, JOIN };
enum Part { WHOLE, LOWER, LOWER_AND_ZEROS, MIRRORED };

struct Pack {
  Strides from, old, to;  // in numbers; of planes in floats
  long long plane;        // from plane to plane; of EMBED from the first row of squares to the second
  int rows, columns, mode, conjugated, part, real_diagonal;
  float second_sign;      // of the second rows of squares
  float factor_re, factor_im, beta_re, beta_im;
};
constexpr int TILE = 32, WARPS = 8, THREADS = 32 * WARPS, LINES = TILE / WARPS;

// A real factor scales each part by itself, so that an infinity in one makes no NaN of the other.
__device__ __forceinline__ float2 scaled(float2 v, float re, float im) {
  if (im == 0.f) return make_float2(re * v.x, re * v.y);
  return make_float2(re * v.x - im * v.y, re * v.y + im * v.x);
}

// Where a thread reads a matrix and writes a tile, or the other way: lanes go along the unit stride of the matrix.
struct Line {
  int r, c;  // in the tile

  __device__ __forceinline__ Line(const Strides& matrix, int line) {
    const int lane = threadIdx.x % 32, other = threadIdx.x / 32 + WARPS * line;
    r = matrix.along_rows() ? lane : other;
    c = matrix.along_rows() ? other : lane;
  }
};

// All loads of a thread are under way at once.
template <Mode MODE>
__device__ __forceinline__ void load(float2 (&tile)[TILE][TILE + 1], const float* A, const Pack& s, int row, int column) {
  float2 values[LINES];
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const Line at(s.from, line);
    if (row + at.r >= s.rows || column + at.c >= s.columns) continue;
    if (s.part != WHOLE && row + at.r < column + at.c) continue;
    const long long from = s.from.at(row + at.r, column + at.c);
    if (MODE == COMBINE) {
      const float real = A[from], imaginary = A[from + s.plane], both = A[from + 2 * s.plane];
      values[line] = make_float2(real - imaginary, both - real - imaginary);
    } else if (MODE == JOIN) {
      values[line] = make_float2(A[from], A[from + s.plane]);
    } else {
      values[line] = reinterpret_cast<const float2*>(A)[from];
    }
  }
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const Line at(s.from, line);
    if (s.conjugated) values[line].y = -values[line].y;
    tile[at.r][at.c] = values[line];
  }
}

__device__ __forceinline__ void store(float* C, long long at, float2 v, const Pack& s) {
  if (s.mode == PLANES) {
    C[at] = v.x;
    C[at + s.plane] = v.y;
    C[at + 2 * s.plane] = v.x + v.y;
    return;
  }
  float2* const to = reinterpret_cast<float2*>(C) + at;
  to[0] = v;
  if (s.mode == EMBED) to[s.plane] = make_float2(s.second_sign * -v.y, s.second_sign * v.x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
linalg_complex_pack(const float* A, const float* B, const float* C0, float* C, char* workspace,
                    const __grid_constant__ Pack s) {
  __shared__ float2 tile[TILE][TILE + 1];
  const int down = (s.rows + TILE - 1) / TILE, across = (s.columns + TILE - 1) / TILE;
  const int first_column = blockIdx.x % across * TILE, first_row = blockIdx.x / across % down * TILE;
  const long long batch = blockIdx.x / across / down;
  previous_kernel_has_ended();
  const float* const from = A + batch * s.from.batch * (s.mode >= COMBINE ? 1 : 2);
  const bool above = s.part != WHOLE && first_row < first_column;
  if (above && s.part == LOWER) return;
  const int row0 = above ? first_column : first_row, column0 = above ? first_row : first_column;
  if (above && s.part == LOWER_AND_ZEROS) ;  // nothing is read
  else if (s.mode == COMBINE) load<COMBINE>(tile, from, s, row0, column0);
  else if (s.mode == JOIN) load<JOIN>(tile, from, s, row0, column0);
  else load<COPY>(tile, from, s, row0, column0);
  __syncthreads();
  const bool adds = s.mode >= COMBINE && (s.beta_re != 0.f || s.beta_im != 0.f);
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const Line inside(s.to, line);
    const int row = first_row + inside.r, column = first_column + inside.c;
    if (row >= s.rows || column >= s.columns) continue;
    float2 value = make_float2(0.f, 0.f);
    if (s.part != WHOLE && row < column) {  // of the other triangle
      if (s.part == LOWER) continue;
      if (s.part == MIRRORED) value = make_float2(tile[inside.c][inside.r].x, -tile[inside.c][inside.r].y);
      store(C, batch * s.to.batch + s.to.at(row, column), value, s);
      continue;
    }
    value = scaled(tile[inside.r][inside.c], s.factor_re, s.factor_im);
    if (adds) {
      const long long at = batch * s.old.batch + s.old.at(row, column);
      const float2 old = scaled(reinterpret_cast<const float2*>(C0)[at], s.beta_re, s.beta_im);
      value = make_float2(value.x + old.x, value.y + old.y);
    }
    if (s.real_diagonal && row == column) value.y = 0.f;
    store(C, batch * s.to.batch + s.to.at(row, column), value, s);
  }
}
