// One operand is large and is read once; the other has few rows or columns (BN = 1, 2, 4, 8 or 16 with padding).
//
// Idea: the large operand X is read as fast as memory gives it. A thread holds 4 x 4 patches of X, four loads of
//   16 bytes each, and loads the next into the same registers as soon as it has multiplied. Whichever way X lies,
//   only the loads differ: a float4 goes along K or along the rows.
// Threads: THREADS across the BM rows of the block, SLICES along K; their sums meet in shuffles, then in shared
//   memory, always in the same order.
// Each warp keeps its share of the small operand Y in shared memory of its own, so that no block-wide barrier is
//   in the loop. The last k-steps, of which some may be missing, come first.
// SWAPPED: X is op(B) transposed, rows of X are columns of C. Otherwise X is op(A).

#include "include/ptx/dependents.cuh"
#include "include/scheduler/gemm.cuh"
#include "include/copy/prefetch.cuh"
#include "include/epilogue/epilogue.cuh"

constexpr int S = BN;
constexpr bool X_ALONG_K = SWAPPED ? TRANS_B : !TRANS_A;
constexpr bool Y_ALONG_K = SWAPPED ? !TRANS_A : TRANS_B;
constexpr bool VECTORS = WIDTH == 4;
// Of the config and the layouts come K_LANES and Y_LANES, lanes of a warp along K and along the stored rows of Y, and
// KEPT, the groups of warps whose sums are in shared memory at a time: ffma/skinny.py says why.
constexpr int GROUPS = SLICES / K_LANES;  // of warps, along K
constexpr int QUADS = BK / (4 * SLICES);  // patches of a thread at once
constexpr int RUN = 4 * K_LANES * QUADS;  // k-steps of a warp at once
constexpr int PITCH = RUN + 4;            // of a column of Y in shared memory
constexpr int LANE_STEP = X_ALONG_K ? 1 : THREADS;  // from a lane to the next along K
// Single words: neighbouring lanes read neighbouring words, so what a thread holds is not contiguous.
constexpr bool SPREAD_ROWS = X_ALONG_K || !VECTORS;
constexpr bool SPREAD_K = X_ALONG_K && !VECTORS;

// Where a sum lies in shared memory: as C does, rows or, of its transpose, columns beside each other. Rows are turned by a
// word for each 32 words before them: else lanes whose rows are neighbours would meet in few banks, 16 in one with 16
// columns.
__device__ __forceinline__ int sum_at(int row, int s) { return SWAPPED ? s * BM + row : row * S + (s + row * S / 32) % S; }

static_assert(TM == 4 && TN == BN, "patches of 4 x 4, all columns of Y");
static_assert(SLICES % K_LANES == 0 && QUADS * 4 * SLICES == BK, "whole warps, whole patches");

// Where thread `across` (of THREADS) and lane `along` (of K_LANES) find row i and k-step j of a patch.
__device__ __forceinline__ int patch_row(int across, int i) {
  return SPREAD_ROWS ? across + THREADS * i : 4 * across + i;
}
__device__ __forceinline__ int patch_k(int along, int j) { return SPREAD_K ? along + K_LANES * j : 4 * along + j; }

// Four floats that are read once, so past L1, which Y needs.
__device__ __forceinline__ void load_once(const float* from, float& a, float& b, float& c, float& d) {
  asm("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(from));
}

// The rows of X that a thread reads. Those past the end are read as the last one, and not stored.
struct Rows {
  const float* at[4];  // X_ALONG_K: each row, at this thread's first k of the step
  long long ld;

  __device__ __forceinline__ Rows(const float* X, long long ld, int across, int along, int first, int rows, int k)
      : ld(ld) {
    const int mine = patch_row(across, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int last = SPREAD_ROWS ? rows - 1 : rows - 4 + i;  // vectors along the rows: a multiple of four rows
      const int row = min(first + mine + patch_row(0, i), last), step = k + patch_k(along, 0);
      at[i] = X + (X_ALONG_K ? row * ld + step : step * ld + row);
    }
  }

  __device__ __forceinline__ void advance(int steps) {
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] += X_ALONG_K ? steps : steps * ld;
  }

  __device__ __forceinline__ void load(float (&x)[4][4], int q) const {
    const int k = 4 * K_LANES * q;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      if constexpr (VECTORS && X_ALONG_K) load_once(at[v] + k, x[v][0], x[v][1], x[v][2], x[v][3]);
      else if constexpr (VECTORS) load_once(at[0] + (k + v) * ld, x[0][v], x[1][v], x[2][v], x[3][v]);
      else
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i][v] = __ldg(at[i] + (X_ALONG_K ? k + K_LANES * v : (k + v) * ld));
    }
  }

  // Of the thread's k-steps those below `left` (counted from the warp's first), zeros for the others.
  __device__ __forceinline__ void load_some(float (&x)[4][4], int q, int along, int left) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int k = 4 * K_LANES * q + patch_k(0, j);
      const bool there = k + patch_k(along, 0) < left;
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i][j] = there ? __ldg(at[i] + (X_ALONG_K ? k : k * ld)) : 0.f;
    }
  }
};

// A warp's share of Y, RUN x S. A lane reads several words of few rows or columns, as stored: few addresses.
struct Columns {
  static constexpr int WIDE = Y_ALONG_K ? RUN : S, OTHER = Y_ALONG_K ? S : RUN;  // words along the stored rows, rows
  static constexpr int ROUNDS = WIDE / Y_LANES;
  static constexpr int APART = 32 / Y_LANES;  // rows at once
  static constexpr int FETCHES = ROUNDS * (OTHER > APART ? OTHER / APART : 1);
  const float* at;
  long long ld;
  float* to;
  int column;
  bool idle;  // there are fewer rows than lanes for them

  // Where k-step `k` lies in a column in shared memory: as the threads hold it.
  static __device__ __forceinline__ int place(int k) {
    const int inside = k % (4 * K_LANES);
    return SPREAD_K ? k - inside + inside % K_LANES * 4 + inside / K_LANES : k;
  }

  __device__ __forceinline__ Columns(const float* Y, long long ld, int lane, int first_k, float* own) : ld(ld) {
    const int in = lane % Y_LANES, other = lane / Y_LANES, k = Y_ALONG_K ? in : other;
    column = Y_ALONG_K ? other : in;
    at = Y + (Y_ALONG_K ? column * ld + first_k + k : (first_k + k) * ld + column);
    to = own + column * PITCH + place(k);
    idle = other >= OTHER;
  }

  __device__ __forceinline__ void advance(int steps) { at += Y_ALONG_K ? steps : steps * ld; }

  // Columns that do not exist, and k-steps from `left` on (counted from this lane's first), are zeros.
  template <bool WHOLE>
  __device__ __forceinline__ void fetch(float (&y)[FETCHES], int columns, int left) const {
    const float* from = at;
#pragma unroll
    for (int n = 0; n < FETCHES; ++n) {
      const int in = n % ROUNDS * Y_LANES, other = n / ROUNDS * APART;
      const int k = Y_ALONG_K ? in : other, s = Y_ALONG_K ? other : in;
      y[n] = !idle && column + s < columns && (WHOLE || k < left) ? __ldg(from + in) : 0.f;
      if (n % ROUNDS == ROUNDS - 1) from += APART * ld;
    }
  }

  __device__ __forceinline__ void keep(const float (&y)[FETCHES]) const {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < FETCHES; ++n) {
      const int in = n % ROUNDS * Y_LANES, other = n / ROUNDS * APART;
      if (!idle) to[Y_ALONG_K ? other * PITCH + place(in) : in * PITCH + place(other)] = y[n];
    }
    __syncwarp();
  }
};

__device__ __forceinline__ void multiply(float (&acc)[4][S], const float (&x)[4][4], const float* own) {
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const float4 y = *reinterpret_cast<const float4*>(own + s * PITCH);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i][s] = fmaf(x[i][0], y.x, acc[i][s]);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i][s] = fmaf(x[i][1], y.y, acc[i][s]);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i][s] = fmaf(x[i][2], y.z, acc[i][s]);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i][s] = fmaf(x[i][3], y.w, acc[i][s]);
  }
}

// Adds the COUNT values of LANES lanes. At each step a lane gives half of its values away and keeps the other half,
// so that in the end each has a share of the sums, from the index that is returned on.
template <int COUNT, int LANES>
__device__ __forceinline__ int add_lanes(float* v, int along) {
  if constexpr (LANES == 1) {
    return 0;
  } else if constexpr (COUNT == 1) {
    v[0] += __shfl_xor_sync(~0u, v[0], LANES / 2 * LANE_STEP);
    return add_lanes<1, LANES / 2>(v, along);
  } else {
    constexpr int HALF = COUNT / 2;
    const bool upper = along & LANES / 2;
#pragma unroll
    for (int n = 0; n < HALF; ++n) {
      const float given = upper ? v[n] : v[n + HALF];
      v[n] = (upper ? v[n + HALF] : v[n]) + __shfl_xor_sync(~0u, given, LANES / 2 * LANE_STEP);
    }
    return (upper ? HALF : 0) + add_lanes<HALF, LANES / 2>(v, along);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS * SLICES, MIN_BLOCKS)
ffma_skinny(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
            float* __restrict__ partial, const __grid_constant__ Gemm g) {
  extern __shared__ __align__(16) float shared[];
  next_kernel_may_start();
  const int thread = threadIdx.x, lane = thread % 32;
  const int across = X_ALONG_K ? thread / K_LANES % THREADS : thread % THREADS;
  const int along = X_ALONG_K ? thread % K_LANES : thread / THREADS % K_LANES;
  const int group = thread / (THREADS * K_LANES);

  const int rows = SWAPPED ? g.N : g.M, columns = SWAPPED ? g.M : g.N;
  const int part = over(blockIdx.x, g.group), tile = blockIdx.x - part * g.whole;
  const int down = (rows + BM - 1) / BM;
  const int batch = over(tile, g.matrix), first = (tile - batch * down) * BM;
  const int begin = static_cast<int>(part_begin(g, part)), last = static_cast<int>(part_begin(g, part + 1)) - 1;

  float acc[4][S] = {};
  if (begin <= last) {
    const float* const a = A + batch_offset(g, g.a_batch, batch);
    const float* const b = B + batch_offset(g, g.b_batch, batch);
    float* const own = shared + thread / 32 * (S * PITCH);
    const int k = last * BK + group * RUN;
    Rows x(SWAPPED ? b : a, SWAPPED ? g.ldb : g.lda, across, along, first, rows, k);
    Columns y(SWAPPED ? a : b, SWAPPED ? g.lda : g.ldb, lane, k, own);
    float patch[QUADS][4][4], small[Columns::FETCHES];
    // Two steps of a block.
    const float* const ahead = (SWAPPED ? b : a) + (X_ALONG_K ? first * x.ld + begin * BK : begin * BK * x.ld + first);
    into_l2<THREADS * SLICES, X_ALONG_K, BM, 2 * BK, !VECTORS>(ahead, x.ld, rows - first, g.K - begin * BK, thread);
    previous_kernel_has_ended();
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
      if (g.K - last * BK >= BK) x.load(patch[q], q);
      else x.load_some(patch[q], q, along, g.K - k);
    y.fetch<false>(small, columns, g.K - k - (Y_ALONG_K ? lane % Y_LANES : lane / Y_LANES));
    x.advance((begin - last) * BK);
    y.advance((begin - last) * BK);
#pragma unroll 1
    for (int left = last - begin; left > 0; --left) {
      y.keep(small);
#pragma unroll
      for (int q = 0; q < QUADS; ++q) {
        multiply(acc, patch[q], own + 4 * (along + K_LANES * q));
        x.load(patch[q], q);
      }
      y.fetch<true>(small, columns, RUN);
      x.advance(BK);
      y.advance(BK);
    }
    y.keep(small);
#pragma unroll
    for (int q = 0; q < QUADS; ++q) multiply(acc, patch[q], own + 4 * (along + K_LANES * q));
  }

  float* const v = &acc[0][0];
  const int from = add_lanes<4 * S, K_LANES>(v, along);
  constexpr int SHARE = 4 * S > K_LANES ? 4 * S / K_LANES : 1;
  constexpr int TWINS = K_LANES > 4 * S ? K_LANES / (4 * S) : 1;  // lanes with the same sums
  float* const mine = shared + group % KEPT * (BM * S);
  auto place = [&](int n) {
    const int row = patch_row(across, 0) + patch_row(0, (from + n) / S), s = (from + n) % S;
    return sum_at(row, s);
  };
  __syncthreads();  // the sums take the place of Y
  if (KEPT < GROUPS) {
    if (group >= KEPT && along % TWINS == 0)
#pragma unroll
      for (int n = 0; n < SHARE; ++n) mine[place(n)] = v[n];
    __syncthreads();
    if (group < KEPT && along % TWINS == 0)
#pragma unroll
      for (int n = 0; n < SHARE; ++n) v[n] += mine[place(n)];
  }
  if (group < KEPT && along % TWINS == 0)
#pragma unroll
    for (int n = 0; n < SHARE; ++n) mine[place(n)] = v[n];
  __syncthreads();

  previous_kernel_has_ended();  // where there was nothing to add up, too
  float* const c = C + batch_offset(g, g.c_batch, batch);
  const float* const c0 = C0 + batch_offset(g, g.c0_batch, batch);
  for (int e = thread; e < BM * S; e += THREADS * SLICES) {
    float sum = 0.f;
    const int at = sum_at(SWAPPED ? e % BM : e / S, SWAPPED ? e / BM : e % S);
#pragma unroll
    for (int other = 0; other < KEPT; ++other) sum += shared[other * BM * S + at];
    if (g.parts > 1) {
      partial[static_cast<long long>(blockIdx.x) * (BM * S) + e] = sum;
      continue;
    }
    const int row = first + (SWAPPED ? e % BM : e / S), s = SWAPPED ? e / BM : e % S;
    if (row < rows && s < columns) {
      const long long m = SWAPPED ? s : row, n = SWAPPED ? row : s;
      c[m * g.ldc + n] = scaled(sum, g.alpha, g.beta, c0 + m * g.c0_row + n * g.c0_col);
    }
  }
}
