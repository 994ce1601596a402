// Split: FP32 operands to planes of narrower floats, for the tensor cores.
//
// Idea: one read of each operand. A power of two per row and chunk of K scales, or one for all of B's columns in a panel,
//   so a block needs no more than its own panel, which is written as the product will want it, in whole lines: from
//   registers where K is contiguous, as a warp has whole rows; else by way of shared memory.
// Any layout: where K is contiguous eight threads share a row, else the lanes of a warp read neighbouring rows. Rows
//   that start anywhere are read by the 16 bytes in which their elements lie and shifted in registers; where there is
//   nothing beside them, word by word, a warp beside itself, and dealt out through shared memory.
// The guard's facts (exponents, infinities, elements too small to split) are counted on the way.

#include "include/copy/prefetch.cuh"
#include "include/ptx/dependents.cuh"
#include "include/split/split_panel.cuh"

constexpr int SPLITTERS = 256;
constexpr int EACH = ROWS * 8 / SPLITTERS;  // pieces a thread makes
// Where the exponents of all largest elements of B's columns are less than this apart, the panel's is scaled to TOP and
// all columns with it: products then promote sums by one scale for all columns (tensor_tile.cuh).
constexpr int SPREAD = 4;

// Elements of a row from `from` on, as many as a piece has; zeros from `left` on.
template <bool K_INNER, int WIDTH>
__device__ __forceinline__ void read_piece(float (&v)[PIECE], const float* from, long long col, int left) {
  if (K_INNER && WIDTH == 4 && left >= PIECE) {
#pragma unroll
    for (int i = 0; i < PIECE; i += 4)
      *reinterpret_cast<float4*>(&v[i]) = __ldg(reinterpret_cast<const float4*>(from + i));
  } else if (left >= PIECE) {
#pragma unroll
    for (int i = 0; i < PIECE; ++i) v[i] = __ldg(from + (K_INNER ? i : i * col));
  } else {
#pragma unroll
    for (int i = 0; i < PIECE; ++i) v[i] = i < left ? __ldg(from + (K_INNER ? i : i * col)) : 0.f;
  }
}

// All of a piece of a row that starts anywhere, by the 16 bytes in which its elements lie; zeros where it is not `inside`.
__device__ __forceinline__ void read_shifted(float (&v)[PIECE], const float* from, bool inside) {
  const int shift = reinterpret_cast<unsigned long long>(from) / 4 % 4;
  float whole[PIECE + 4] = {};
#pragma unroll
  for (int i = 0; i <= PIECE; i += 4)
    if (inside && (i < PIECE || shift))
      *reinterpret_cast<float4*>(&whole[i]) = __ldg(reinterpret_cast<const float4*>(from - shift + i));
#pragma unroll
  for (int i = 0; i < PIECE + 2; ++i) whole[i] = shift & 1 ? whole[i + 1] : whole[i];
#pragma unroll
  for (int i = 0; i < PIECE; ++i) v[i] = shift & 2 ? whole[i + 2] : whole[i];
}

constexpr float LARGE = 3.4028234663852886e38f;  // FP32's largest number

__device__ __forceinline__ int exponent_of(unsigned magnitude) { return max(static_cast<int>(magnitude >> 23), 1) - 127; }

// This thread's pieces of a panel: their elements, rows and places along K. `image`: where they may be staged.
template <bool K_INNER, int WIDTH>
__device__ __forceinline__ void read_panel(float (&v)[EACH][PIECE], int (&row)[EACH], int (&piece)[EACH],
                                           const float* operand, long long row_step, long long col_step, int first,
                                           int rows, int k, int depth, char* image) {
  const int thread = threadIdx.x;
  // Reading up to three elements before a piece and after it needs other elements there.
  const bool shifted = K_INNER && WIDTH == 1 && k + CHUNK <= depth && (k > 0 || first > 0) &&
                       (first + ROWS < rows || k + CHUNK + 4 <= depth);
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    // Eight lanes that store at a time are two rows by four pieces, or eight rows: eight different bank groups.
    row[e] = K_INNER ? thread / 16 * 2 + thread / 4 % 2 + e * (SPLITTERS / 8) : thread % ROWS;
    piece[e] = K_INNER ? thread % 4 + thread / 8 % 2 * 4 : thread / ROWS + e * (SPLITTERS / ROWS);
    const int at = k + piece[e] * PIECE;
    const bool inside = first + row[e] < rows;
    if (!K_INNER || WIDTH == 4)
      read_piece<K_INNER, WIDTH>(v[e], operand + (first + row[e]) * row_step + at * col_step, col_step,
                                 inside ? depth - at : 0);
    else if (shifted)
      read_shifted(v[e], operand + (first + row[e]) * row_step + at, inside);
  }
  if (K_INNER && WIDTH == 1 && !shifted) {
    float* const staged = reinterpret_cast<float*>(image);
    static_assert(ROWS * CHUNK * 4 <= SCALES, "the summary after the planes is there already");
#pragma unroll
    for (int i = 0; i < EACH * PIECE; ++i) {
      const int at = thread + i * SPLITTERS, there = at / CHUNK, step = at % CHUNK;
      const bool inside = first + there < rows && k + step < depth;
      staged[at] = inside ? __ldg(operand + (first + there) * row_step + k + step) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int i = 0; i < PIECE; i += 4)
        *reinterpret_cast<float4*>(&v[e][i]) =
            *reinterpret_cast<const float4*>(staged + row[e] * CHUNK + piece[e] * PIECE + i);
    __syncthreads();
  }
}

template <bool K_INNER, int WIDTH>
__device__ __forceinline__ void split_panel(const float* operand, long long row_step, long long col_step, int first,
                                            int rows, int k, int depth, int spread, char* image, uint2* halves,
                                            char* to) {
  const int thread = threadIdx.x;
  float v[EACH][PIECE];
  int row[EACH], piece[EACH];
  unsigned top[EACH], count[EACH];
  float least[EACH];
  read_panel<K_INNER, WIDTH>(v, row, piece, operand, row_step, col_step, first, rows, k, depth, image);
  // Of each piece the largest magnitude (of NaN more than infinity), and the smallest one that is not zero.
  bool zeros = false;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    float most = 0.f;
    least[e] = LARGE;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
      asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(v[e][i])));
      least[e] = fminf(least[e], fabsf(v[e][i]));
    }
    top[e] = __float_as_uint(most);
    zeros |= least[e] == 0.f;
  }
  // Of each row how many elements are not zero: seldom less than all.
  const bool some = __any_sync(~0u, zeros);
#pragma unroll
  for (int e = 0; e < EACH; ++e) count[e] = K_INNER && !some ? CHUNK : PIECE;
  if (__builtin_expect(some, 0)) {
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      count[e] = first + row[e] < rows || piece[e] ? 0 : CHUNK;  // rows past the edge pass for full ones
      least[e] = LARGE;
#pragma unroll
      for (int i = 0; i < PIECE; ++i) {
        count[e] += v[e][i] != 0.f;
        if (v[e][i] != 0.f) least[e] = fminf(least[e], fabsf(v[e][i]));
      }
      if (K_INNER)
#pragma unroll
        for (int lane = 1; lane <= 8; lane *= lane == 2 ? 4 : 2) count[e] += __shfl_xor_sync(~0u, count[e], lane);
    }
  }
  if (K_INNER) {  // a row's eight lanes
#pragma unroll
    for (int e = 0; e < EACH; ++e)
#pragma unroll
      for (int lane = 1; lane <= 8; lane *= lane == 2 ? 4 : 2) top[e] = max(top[e], __shfl_xor_sync(~0u, top[e], lane));
  } else {  // a row's two threads
    uint2 mine = {0, 0};
#pragma unroll
    for (int e = 0; e < EACH; ++e) mine = {max(mine.x, top[e]), mine.y + count[e]};
    halves[thread] = mine;
    __syncthreads();
    const uint2 other = halves[(thread + ROWS) % SPLITTERS];
#pragma unroll
    for (int e = 0; e < EACH; ++e) top[e] = max(mine.x, other.x), count[e] = mine.y + other.y;
  }
  Summary* const summary = reinterpret_cast<Summary*>(image + SCALES + SUMMARY);
  int high = NO_ROW, low = -NO_ROW, fewest = CHUNK;
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    fewest = min(fewest, static_cast<int>(count[e]));
    if (top[e]) {
      high = max(high, top[e] < 0x7f800000u ? exponent_of(top[e]) : NOT_FINITE);
      low = min(low, exponent_of(top[e]));
    }
  }
  high = __reduce_max_sync(~0u, high);
  low = __reduce_min_sync(~0u, low);
  fewest = __reduce_min_sync(~0u, fewest);
  if (thread % 32 == 0) {
    atomicMax(&summary->high, high);
    atomicMin(&summary->low, low);
    atomicMin(&summary->fewest, fewest);
  }
  __syncthreads();
  high = summary->high;
  const bool share = high - summary->low < spread;
  if (share && thread == 0) atomicOr(&summary->flags, ONE_SCALE);
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const bool finite = top[e] < 0x7f800000u;
    const int shift = finite ? shift_to_top(share ? high : exponent_of(top[e])) : 0;
    const float up = __uint_as_float((127 + shift) << 23), down = __uint_as_float((127 - shift) << 23);
    const bool lossy = least[e] * up < LOSSY;
    Planes planes;
#pragma unroll
    for (int i = 0; i < PIECE; i += 2) planes.set(i, v[e][i] * up, v[e][i + 1] * up);
#pragma unroll
    for (int p = 0; p < PLANES; ++p)
      *reinterpret_cast<uint4*>((K_INNER ? to : image) + p * PLANE + piece_at(row[e], piece[e])) = planes.piece(p);
    if (piece[e] == 0) {
      reinterpret_cast<float*>(image + SCALES)[row[e]] = top[e] ? down : 0.f;
      image[SCALES + COUNTS + row[e]] = count[e];
    }
    if (lossy) {
      atomicOr(&summary->lossy[row[e] / 32], 1u << row[e] % 32);
      atomicOr(&summary->flags, SOME_LOSSY);  // many threads at once
    }
  }
  __syncthreads();
  // Where K is contiguous the planes have left already.
  for (int i = thread + (K_INNER ? SCALES / 16 : 0); i < PANEL / 16; i += SPLITTERS)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(image)[i];
}

// The pass ends with the memory, not with its divisions; most are of small numbers.
__device__ __forceinline__ int quotient(int x, int y) {
  return x < y ? 0 : static_cast<unsigned>(x) / static_cast<unsigned>(y);
}

extern "C" __global__ void __launch_bounds__(SPLITTERS, 4)
tensor_split(const float* __restrict__ A, const float* __restrict__ B, const float*, float*, char* workspace,
             const __grid_constant__ Emulated e) {
  extern __shared__ __align__(128) char image[];  // a panel: 48 KB and more with three planes
  __shared__ uint2 halves[SPLITTERS];
  const Gemm& g = e.g;
  if (threadIdx.x == 0) *reinterpret_cast<Summary*>(image + SCALES + SUMMARY) = {NO_ROW, -NO_ROW, CHUNK, 0, {0, 0, 0, 0}};
  __syncthreads();
  const int chunks = chunks_of(g);
  const int down_a = (g.M + ROWS - 1) / ROWS, down_b = (g.N + ROWS - 1) / ROWS;
  const int all_a = e.a_matrices * down_a * chunks;
  const bool is_a = blockIdx.x < all_a;
  const int panel = is_a ? blockIdx.x : blockIdx.x - all_a;
  const int line = quotient(panel, chunks), chunk = panel - line * chunks, down = is_a ? down_a : down_b;
  const int matrix = quotient(line, down), first = (line - matrix * down) * ROWS;
  char* const panels = is_a ? panels_a(e, workspace) : panels_b(e, workspace);
  char* const to = panels + static_cast<long long>(panel) * PANEL_PITCH;
  const int k = chunk * CHUNK;
  // The matrix's place: its index counts the levels of the batch that do not broadcast.
  long long offset = 0;
  int rest = matrix;
#pragma unroll
  for (int level = 2; level >= 0; --level)
    if (is_a ? e.a_step[level] : e.b_step[level]) {
      const int outer = quotient(rest, g.batch[level]);
      offset += (rest - outer * g.batch[level]) * (is_a ? g.a_batch[level] : g.b_batch[level]);
      rest = outer;
    }
  const int spread = is_a ? 0 : SPREAD;
  if (asks_ahead(lines_of(true, ROWS, CHUNK))) {
    if (is_a)
      into_l2<SPLITTERS, !TRANS_A, ROWS, CHUNK, WIDTH_A == 1>(
          A + offset + first * e.a_row + k * e.a_col, TRANS_A ? e.a_col : e.a_row, g.M - first, g.K - k, threadIdx.x);
    else
      into_l2<SPLITTERS, TRANS_B, ROWS, CHUNK, WIDTH_B == 1>(
          B + offset + first * e.b_row + k * e.b_col, TRANS_B ? e.b_row : e.b_col, g.N - first, g.K - k, threadIdx.x);
  }
  previous_kernel_has_ended();
  if (blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<Progress*>(workspace) = {0, 0};
  if (is_a) split_panel<!TRANS_A, WIDTH_A>(A + offset, e.a_row, e.a_col, first, g.M, k, g.K, spread, image, halves, to);
  else split_panel<TRANS_B, WIDTH_B>(B + offset, e.b_row, e.b_col, first, g.N, k, g.K, spread, image, halves, to);
}
