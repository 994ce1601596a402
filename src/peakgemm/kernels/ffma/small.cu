// Products with a short K, and many small ones: bound by memory, so what counts is how many loads are under way.
//
// Idea: no ring and no loop over tiles. A team of threads has one tile, asks for all of its operands (BK k-steps) at
//   once, multiplies and is gone; many blocks on an SM hide each other's latencies.
// SLICES teams make a block, each with a tile of its own: of 8 x 8 x 8 a matrix has work for half a warp.
// Operands stay in shared memory as they lie in global memory. Where K is contiguous a thread reads several k-steps of
//   a row at once, and its rows are a whole tile's threads apart, so that neighbouring lanes read neighbouring rows: their
//   pitch, four words more than BK, gives eight lanes banks of their own. Else it reads neighbours of one k-step; but of
//   B, where rows of C start anywhere (WIDTH_C), columns that far apart, too, so that lanes store neighbouring words.
// What all tiles of a matrix read comes by way of L1 (VIA_L1_A, VIA_L1_B): else they meet at a few lines of L2, and wait.

#include "include/ptx/cp_async.cuh"
#include "include/ptx/dependents.cuh"
#include "include/scheduler/gemm.cuh"
#include "include/copy/prefetch.cuh"
#include "include/epilogue/epilogue.cuh"
#include "include/mma/fragment.cuh"
#include "include/ptx/store_quad.cuh"

// Of the config and the problem come FRAGMENT_STEPS, CHUNK_STEPS and PAIRED: ffma/small.py says why.
constexpr int CARRIED = CHUNK_STEPS ? (PAIRED ? 2 : 1) * CHUNK_STEPS : BK;  // k-steps whose sums join the others'
constexpr int PART = BK / STAGES;                                             // k-steps that are awaited together
static_assert(PART % 8 == 0 && CHUNK_STEPS % FRAGMENT_STEPS == 0, "whole sums");

// Sixteen bytes by way of L1, or zeros (`valid`: 4 or 0). L2 brings their whole line: of rows with K contiguous the other
// half is the next part's.
__device__ __forceinline__ void copy16_via_l1_or_zero(unsigned to, const float* from, int valid) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(4 * valid) : "memory");
}

// ROWS (M or N) by K of an operand in shared memory, MINE of them a thread's.
template <bool ALONG_K, int ROWS, int MINE, int WIDTH, bool VIA_L1, bool SPREAD>
struct Panel {
  static constexpr int LINE = ALONG_K ? PART : ROWS, LINES = ALONG_K ? ROWS : PART;  // of a part: words of a row, rows
  static constexpr int PITCH = ALONG_K ? BK + 4 : ROWS;
  static constexpr int FLOATS = (ALONG_K ? ROWS : BK) * PITCH;
  static constexpr int APART = ROWS / MINE;  // threads along the rows
  static constexpr int APART_K = ALONG_K ? PART : PART * PITCH;  // from a part to the next
  static constexpr int ACROSS = LINE / WIDTH;  // pieces of a line
  static constexpr int STEP = THREADS > ACROSS ? THREADS / ACROSS : 1;  // lines at once
  static_assert(THREADS % ACROSS == 0 || ACROSS % THREADS == 0, "a round is whole lines, or an equal share of one");
  static_assert(LINE % WIDTH == 0 && PART % FRAGMENT_STEPS == 0, "whole pieces, whole groups of k-steps");

  // Asks for `rows` of the tile and `steps` of a part of K, with zeros up to a whole round: `from` is the first element.
  static __device__ __forceinline__ void fetch(unsigned to, const float* from, long long ld, int rows, int steps,
                                               int thread) {
    const int words = ALONG_K ? steps : rows, lines = ALONG_K ? rows : steps;
    const int line = thread / ACROSS, word = thread % ACROSS * WIDTH;
    const int wanted = WIDTH == 4 || ALONG_K ? LINES : min(LINES, (steps + FRAGMENT_STEPS - 1) / FRAGMENT_STEPS * FRAGMENT_STEPS);
    from += line * ld + word;
    to += 4 * (line * PITCH + word);
#pragma unroll(WIDTH == 4 ? LINES / STEP + 1 : 8)  // all of the words' rounds unrolled, up to 2400 bytes are spilled
    for (int down = 0; down < wanted; down += STEP) {
      if (LINES % STEP && line + down >= LINES) break;
#pragma unroll
      for (int right = 0; right < ACROSS; right += THREADS) {
        const bool inside = line + down < lines && word + right * WIDTH < words;
        if (WIDTH == 4 && VIA_L1) copy16_via_l1_or_zero(to + 4 * right * WIDTH, from + right * WIDTH, inside ? 4 : 0);
        else if (WIDTH == 4) copy16_or_zero(to + 4 * right * WIDTH, from + right * WIDTH, inside ? 4 : 0);
        else copy4_or_zero(to + 4 * right, from + right, inside);
      }
      from += STEP * ld;
      to += 4 * STEP * PITCH;
    }
  }

  static __device__ __forceinline__ int row(int thread, int i) { return SPREAD ? thread + APART * i : thread * MINE + i; }

  // From a thread's row, and from a k-step, to the next.
  static constexpr int NEXT_ROW = (SPREAD ? APART : 1) * (ALONG_K ? PITCH : 1), NEXT_K = ALONG_K ? 1 : PITCH;

  // A thread's first row of the first k-step. Kept from step to step: recomputed in each, it delays its loads.
  static __device__ __forceinline__ const float* mine(const float* panel, int thread) {
    return panel + row(thread, 0) * (ALONG_K ? PITCH : 1);
  }

  // A thread's rows of FRAGMENT_STEPS k-steps, `at` its first.
  static __device__ __forceinline__ void read(const float* at, float (&x)[FRAGMENT_STEPS][MINE]) {
    if constexpr (ALONG_K) {
#pragma unroll
      for (int i = 0; i < MINE; ++i) {
        float v[FRAGMENT_STEPS];
        load_words<FRAGMENT_STEPS>(v, at + i * NEXT_ROW);
#pragma unroll
        for (int s = 0; s < FRAGMENT_STEPS; ++s) x[s][i] = v[s];
      }
    } else {
      constexpr int WIDE = SPREAD ? 1 : MINE % 4 == 0 ? 4 : MINE;
#pragma unroll
      for (int s = 0; s < FRAGMENT_STEPS; ++s)
#pragma unroll
        for (int i = 0; i < MINE; i += WIDE) load_words<WIDE>(x[s] + i, at + s * NEXT_K + i * NEXT_ROW);
    }
  }
};

using Left = Panel<!TRANS_A, BM, TM, WIDTH_A, VIA_L1_A, !TRANS_A>;
constexpr int WIDE = TN % 4 == 0 ? 4 : TN;  // results of a row, that leave at once where rows of C allow
using Right = Panel<TRANS_B, BN, TN, WIDTH_B, VIA_L1_B, TRANS_B || WIDTH_C < WIDE>;

// A warp's teams wait for each other, or a block's.
__device__ __forceinline__ void teams_meet() {
  if (32 % THREADS == 0) __syncwarp();
  else __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS * SLICES, MIN_BLOCKS)
ffma_small(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, float* partial,
           const __grid_constant__ Gemm g) {
  extern __shared__ __align__(16) float shared[];
  const int team = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
  const int across = thread % Right::APART, down = thread / Right::APART;
  const int tile = blockIdx.x * SLICES + team;
  const Place place = place_of(g, min(tile, g.whole - 1));
  const int rows = tile < g.whole ? g.M - place.m : 0, columns = g.N - place.n;
  float* const left = shared + team * (Left::FLOATS + Right::FLOATS);
  float* const right = left + Left::FLOATS;
  const float* const x_from = Left::mine(left, down);
  const float* const y_from = Right::mine(right, across);
  const float* a = A + batch_offset(g, g.a_batch, place.batch) + place.m * (TRANS_A ? 1 : g.lda);
  const float* b = B + batch_offset(g, g.b_batch, place.batch) + place.n * (TRANS_B ? g.ldb : 1);
  float acc[TM][TN] = {}, carried[CHUNK_STEPS ? TM : 1][CHUNK_STEPS ? TN : 1] = {}, half[PAIRED ? TM : 1][PAIRED ? TN : 1];
  auto carry = [&] {
    each_result([&](int i, int j) {
      if constexpr (PAIRED) acc[i][j] += half[i][j];
      carried[i][j] += acc[i][j], acc[i][j] = 0.f;
    });
  };
  // But not for what all tiles read: they would ask for the same lines.
  if (asks_ahead(SLICES * (lines_of(!TRANS_A, BM, BK) + lines_of(TRANS_B, BN, BK)))) {
    if (g.M > BM || g.N <= BN) into_l2<THREADS, !TRANS_A, BM, BK, WIDTH_A == 1>(a, g.lda, rows, g.K, thread);
    if (g.N > BN || g.M <= BM) into_l2<THREADS, TRANS_B, BN, BK, WIDTH_B == 1>(b, g.ldb, columns, g.K, thread);
  }
  previous_kernel_has_ended();
#pragma unroll 1
  for (int k = 0; k < g.K; k += BK) {
    const int steps = min(g.K - k, BK);
    if (k) teams_meet();  // all have read what was there
#pragma unroll
    for (int part = 0; part < STAGES; ++part) {
      Left::fetch(shared_address(left + part * Left::APART_K), a + part * PART * (TRANS_A ? g.lda : 1), g.lda, rows,
                  steps - part * PART, thread);
      Right::fetch(shared_address(right + part * Right::APART_K), b + part * PART * (TRANS_B ? 1 : g.ldb), g.ldb, columns,
                   steps - part * PART, thread);
      copies_commit();
    }
#pragma unroll
    for (int part = 0; part < STAGES; ++part) {
      if (part + 1 == STAGES) copies_wait<0>();
      else if (part + 2 == STAGES) copies_wait<1>();
      else copies_wait<2>();
      teams_meet();
      const int end = PAIRED ? (part + 1) * PART : min(steps, (part + 1) * PART);
#pragma unroll(PAIRED ? 2 : 1)
      for (int s = part * PART; s < end; s += FRAGMENT_STEPS) {
        if (PAIRED && s >= steps) break;
        float x[FRAGMENT_STEPS][TM], y[FRAGMENT_STEPS][TN];
        Left::read(x_from + s * Left::NEXT_K, x);
        Right::read(y_from + s * Right::NEXT_K, y);
#pragma unroll
        for (int t = 0; t < FRAGMENT_STEPS; ++t)
          each_result([&](int i, int j) { acc[i][j] = fmaf(x[t][i], y[t][j], acc[i][j]); });
        if (CHUNK_STEPS && (s + FRAGMENT_STEPS) % CARRIED == 0) carry();
        else if constexpr (PAIRED) each_result([&](int i, int j) { half[i][j] = acc[i][j], acc[i][j] = 0.f; });
      }
    }
    a += TRANS_A ? BK * g.lda : BK;
    b += TRANS_B ? BK : BK * g.ldb;
  }

  if constexpr (CHUNK_STEPS) each_result([&](int i, int j) { acc[i][j] += carried[i][j]; });
  float* const c = C + batch_offset(g, g.c_batch, place.batch) + place.m * g.ldc + place.n;
  const float* const c0 = C0 + batch_offset(g, g.c0_batch, place.batch) + place.m * g.c0_row + place.n * g.c0_col;
  const bool wide = !TRANS_B && WIDTH_C >= WIDE && WIDE % 2 == 0 && g.beta == 0.f;
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int m = Left::row(down, i);
    if (m >= rows) continue;
    if (wide) {
#pragma unroll
      for (int j = 0; j + WIDE <= TN; j += WIDE) {
        const int n = Right::row(across, j);
        float* const to = c + m * g.ldc + n;
        if (n >= columns) continue;
        if constexpr (WIDE == 4)
          store_quad(to, g.alpha * acc[i][j], g.alpha * acc[i][j + 1], g.alpha * acc[i][j + 2], g.alpha * acc[i][j + 3]);
        else if constexpr (WIDE == 2)
          store_pair(to, g.alpha * acc[i][j], g.alpha * acc[i][j + 1]);
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int n = Right::row(across, j);
      if (n >= columns) continue;
      c[m * g.ldc + n] = scaled(acc[i][j], g.alpha, g.beta, c0 + m * g.c0_row + n * g.c0_col);
    }
  }
}
