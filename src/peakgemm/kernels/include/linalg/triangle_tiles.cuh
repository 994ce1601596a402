// Lower triangles of up to 128 rows in shared memory, as tiles of 32 x 32, and the steps that factor and invert them.
//
// The inverse W of a triangle L comes from the identity as further right-hand sides: X L^T = I has the solution X =
// W^T. Panel j of L and X (32 columns) is right-hand sides times the inverse transposed of L's diagonal tile, by
// substitution, one row a thread; then later columns lose the panel times L's panel transposed. Row block b of the
// panel is X's where b <= j, L's where b > j: as many rows in each panel, so that the factor and its inverse take one
// loop.
//
// Tile (i, j) of L is in slot i (i + 1) / 2 + j; once panel j has been copied to `panel`, the slot holds tile (j, i) of
// X. A diagonal tile is stored transposed, with the reciprocals of its diagonal in place of the diagonal.

#include "include/linalg/strides.cuh"
#include "include/ptx/opaque.cuh"

constexpr int TILE = 32, MOST_BLOCKS = 4, SLOTS = MOST_BLOCKS * (MOST_BLOCKS + 1) / 2, TILE_FLOATS = TILE * TILE;
constexpr int THREADS = 256, WARPS = THREADS / 32;
extern __shared__ __align__(16) float tiles[];  // (SLOTS + MOST_BLOCKS) * TILE_FLOATS

// Where four consecutive floats of a row begin. Quads of eight rows are permuted, so that eight lanes that read the
// same quad of consecutive rows have all banks.
__device__ __forceinline__ int quad_at(int row, int quad) { return TILE * row + 4 * (quad ^ (row & 7)); }
__device__ __forceinline__ int at(int row, int column) { return quad_at(row, column / 4) + column % 4; }
__device__ __forceinline__ float4 load_quad(const float* tile, int row, int quad) {
  return *reinterpret_cast<const float4*>(tile + quad_at(row, quad));
}
// Opaque, or what follows from the lane would be kept in registers, and spilled, from panel to panel.
__device__ __forceinline__ int this_lane() { return opaque(static_cast<int>(threadIdx.x % 32)); }
__device__ __forceinline__ void load_row(float (&x)[TILE], const float* tile, int row) {
#pragma unroll
  for (int quad = 0; quad < TILE / 4; ++quad) {
    const float4 v = load_quad(tile, row, quad);
    x[4 * quad] = v.x, x[4 * quad + 1] = v.y, x[4 * quad + 2] = v.z, x[4 * quad + 3] = v.w;
  }
}
__device__ __forceinline__ void store_row(float* tile, int row, const float (&x)[TILE]) {
#pragma unroll
  for (int quad = 0; quad < TILE / 4; ++quad)
    *reinterpret_cast<float4*>(tile + quad_at(row, quad)) =
        make_float4(x[4 * quad], x[4 * quad + 1], x[4 * quad + 2], x[4 * quad + 3]);
}
__device__ __forceinline__ float* slot(int i, int j) { return tiles + (i * (i + 1) / 2 + j) * TILE_FLOATS; }
__device__ __forceinline__ float* panel(int block) { return tiles + (SLOTS + block) * TILE_FLOATS; }

// All threads: the lower triangle of n rows, with the rows of an identity behind it. Half of the loads are under way at
// once. `transpose_corners`: so are diagonal tiles stored. Of a `unit` triangle the diagonal is not read.
__device__ __forceinline__ void load_triangle(const float* from, const Strides& s, int n, bool transpose_corners,
                                              bool unit) {
  constexpr int LINES = TILE / WARPS, HALF = SLOTS / 2;
  const Position here = s.position(threadIdx.x / 32, threadIdx.x % 32), step = s.position(WARPS, 0);
  const float* const mine = from + s.at(here.r, here.c);
  const long long next = s.at(step.r, step.c);
#pragma unroll 1
  for (int first = 0; first < SLOTS; first += HALF) {
    float values[HALF][LINES];
#pragma unroll
    for (int t = 0; t < HALF; ++t)
#pragma unroll
      for (int line = 0; line < LINES; ++line) {
        const int number = first + t, i = (number >= 1) + (number >= 3) + (number >= 6), j = number - i * (i + 1) / 2;
        const int r = TILE * i + here.r + line * step.r, c = TILE * j + here.c + line * step.c;
        values[t][line] = r == c;
        if (r < n && (c < r || (c == r && !unit))) values[t][line] = mine[s.at(TILE * i, TILE * j) + line * next];
      }
#pragma unroll
    for (int t = 0; t < HALF; ++t)
#pragma unroll
      for (int line = 0; line < LINES; ++line) {
        const int number = first + t;
        const int r = here.r + line * step.r, c = here.c + line * step.c;
        const bool transposed = transpose_corners && (number == 0 || number == 2 || number == 5 || number == 9);
        tiles[number * TILE_FLOATS + (transposed ? at(c, r) : at(r, c))] = values[t][line];
      }
  }
}

// Which of the warps that share some work a thread is in.
struct Workers {
  int warp, warps;
};

// Panel j of row block `block`, by one warp, a row a lane. `solved`: L's blocks have been, and are copied.
__device__ __forceinline__ void solve_block(int block, int j, bool solved) {
  const int lane = this_lane();
  float x[TILE];
  load_row(x, block > j ? slot(block, j) : slot(j, block), lane);
  if (block > j && solved) {
    store_row(panel(block), lane, x);
    return;
  }
  if (block == j)
#pragma unroll
    for (int k = 0; k < TILE; ++k) x[k] = k == lane;
  const float* const corner = slot(j, j);
#pragma unroll
  for (int t = 0; t < TILE; ++t)
#pragma unroll
    for (int quad = t / 4; quad < TILE / 4; ++quad) {
      const float4 v = load_quad(corner, t, quad);  // the same for all lanes
      const float column[4] = {v.x, v.y, v.z, v.w};
      if (quad == t / 4) x[t] *= column[t % 4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (4 * quad + e > t) x[4 * quad + e] = fmaf(-x[t], column[e], x[4 * quad + e]);
    }
  store_row(panel(block), this_lane(), x);
}

// Rows of a tile lose `left` times `right` transposed, by one warp, M x N elements a lane: rows first_row ... + M N -
// 1. Products are added up from zero, so that few sums are rounded at the size of large elements. `fresh`: the rows
// have been zeros. What lanes add to permuted quads are constants: first_row is a multiple of M N, so nothing is
// carried.
template <int M, int N>
__device__ __forceinline__ void subtract_product(float* tile, const float* left, const float* right, int first_row,
                                                 bool fresh) {
  constexpr int COLUMNS = TILE / N, ROWS = 32 / COLUMNS;  // of lanes; a lane's elements are as far apart
  const int lane = this_lane(), r = first_row + lane / COLUMNS, c = lane % COLUMNS;
  const auto load = [](const float* row, int quad) { return *reinterpret_cast<const float4*>(row + 4 * quad); };
  constexpr int UNROLLED = M * N > 4 ? 1 : 4;  // by registers
  float sum[M][N] = {};
#pragma unroll UNROLLED
  for (int quad = 0; quad < TILE / 4; ++quad) {
    float4 a[M];
#pragma unroll
    for (int m = 0; m < M; ++m) a[m] = load(left + TILE * (r + ROWS * m), quad ^ (r & 7) ^ (ROWS * m & 7));
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 b = load(right + TILE * (c + COLUMNS * n), quad ^ (c & 7));
#pragma unroll
      for (int m = 0; m < M; ++m) {
        sum[m][n] = fmaf(a[m].x, b.x, sum[m][n]);
        sum[m][n] = fmaf(a[m].y, b.y, sum[m][n]);
        sum[m][n] = fmaf(a[m].z, b.z, sum[m][n]);
        sum[m][n] = fmaf(a[m].w, b.w, sum[m][n]);
      }
    }
  }
  const int first = 4 * (c / 4 ^ (r & 7)) + c % 4;
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float& element = tile[TILE * (r + ROWS * m) + (first ^ 4 * (COLUMNS / 4 * n ^ (ROWS * m & 7)))];
      element = (fresh ? 0.0f : element) - sum[m][n];
    }
}

// Columns behind panel j lose their products with it, half a tile a warp at a time.
// `factored`: L's have long done so; if not, the tile that is factored next has.
__device__ __forceinline__ void update(int j, int blocks, bool factored, Workers workers) {
  int turn = 0;
  for (int k = j + 1; k < blocks; ++k)
    for (int block = 0; block < (factored ? j + 1 : blocks); ++block) {
      if (block > j && (block < k || (block == k && k == j + 1))) continue;
      for (int half = 0; half < 2; ++half)
        if (turn++ % workers.warps == workers.warp)
          subtract_product<4, 4>(block > j ? slot(block, k) : slot(k, block), panel(block), panel(k), 16 * half,
                                 block == j);
    }
}

// Tile (i, j) of a lower triangle to global memory, zeros above the diagonal; of L's the diagonal is left out.
__device__ __forceinline__ void store_tile(float* to, const Strides& s, int n, int i, int j, const float* tile,
                                           bool transposed, bool diagonal, Workers workers) {
  const Position here = s.position(workers.warp, this_lane()), step = s.position(workers.warps, 0);
  const long long next = s.at(step.r, step.c);
  to += s.at(TILE * i + here.r, TILE * j + here.c);
  const int rows = n - TILE * i, columns = i > j ? TILE : n - TILE * j;
  for (int r = here.r, c = here.c; max(r, c) < TILE; r += step.r, c += step.c, to += next)
    if (r < rows && c < columns && (i > j || r != c || diagonal))
      *to = i < j || (i == j && r < c) ? 0.0f : tile[transposed ? at(c, r) : at(r, c)];
}

// Tiles above the diagonal, zeros.
__device__ __forceinline__ void store_zeros(float* to, const Strides& s, int n, int blocks, Workers workers) {
  for (int j = 1; j < blocks; ++j)
    for (int i = 0; i < j; ++i) store_tile(to, s, n, i, j, tiles, false, true, workers);
}

// Row block j of the inverse, which is X's panel j transposed.
__device__ __forceinline__ void store_inverse(float* to, const Strides& s, int n, int j, Workers workers) {
  for (int block = 0; block <= j; ++block) store_tile(to, s, n, j, block, panel(block), true, true, workers);
}

// Zeros in n rows of `columns`, but for the n columns behind `left`.
__device__ __forceinline__ void store_zeros_beside(float* to, const Strides& s, int n, int left, int columns,
                                                   Workers workers) {
  const int beside = columns - n, lines = s.along_rows() ? beside : n, length = s.along_rows() ? n : beside;
  for (int line = workers.warp; line < lines; line += workers.warps)
    for (int i = threadIdx.x % 32; i < length; i += 32) {
      const auto [r, c] = s.position(line, i);
      to[s.at(r, c < left ? c : c + n)] = 0.0f;
    }
}
