// Few rows or columns, each element by one chain of FMAs over K: bound by reading the large operand once.
//
// Idea: K cannot be shared among threads, so what keeps memory busy is not threads but a deep ring. Copying warps have
//   64 KB of the large operand X under way for each SM; a computing warp has 32 rows of X and TM TN rows of the small
//   operand Y.
// Words of the next FRAGMENT_STEPS k-steps are read from shared memory while the ones before are multiplied: a lone warp on its
//   scheduler waits for nothing but the chain, 4 cycles a k-step.
// TN = 2: two lanes have two rows of X and TM of Y each, so that what a wavefront brings of Y is multiplied twice.
// A copying warp has every fourth stage to itself. K's remainder is the first stage, behind zeros, so that a sum is a chain
// over K and nothing else.
// SWAPPED: X is op(A), columns of Y are columns of C. Otherwise X is op(B) transposed.

#include "include/copy/ring.cuh"
#include "include/epilogue/epilogue.cuh"
#include "include/mma/fragment.cuh"
#include "include/ptx/dependents.cuh"
#include "include/scheduler/gemm.cuh"

constexpr bool X_ALONG_K = SWAPPED ? !TRANS_A : TRANS_B;
constexpr bool Y_ALONG_K = SWAPPED ? TRANS_B : !TRANS_A;
constexpr int PITCH = BK + 4;  // of a row whose k-steps lie beside each other: eight lanes' quads have banks of their own
constexpr int FRAGMENTS_A_STAGE = BK / FRAGMENT_STEPS, COPYING = PRODUCERS / 32;
static_assert(BN == 32 && TN <= 2, "a lane has a row of X, or two lanes have two");
static_assert(FRAGMENTS_A_STAGE % 2 == 0 && STAGES >= COPYING, "two fragments in turn, a stage for each copying warp");

// A warp's copies of one operand: ROWS by BK of it make a stage, STRAIGHT as it is stored, else with its k-steps
// beside each other.
template <bool ALONG_K, bool STRAIGHT, int WIDTH, int ROWS>
struct Slab {
  static constexpr int FLOATS = STRAIGHT && !ALONG_K ? BK * ROWS : ROWS * PITCH;
  static constexpr int LINES = ALONG_K ? ROWS : BK, PIECES = (ALONG_K ? BK : ROWS) / WIDTH;  // as stored
  static constexpr int ACROSS = PIECES < 32 ? PIECES : 32, DOWN = 32 / ACROSS;              // lanes
  static constexpr int NEAR = PIECES / ACROSS, FAR = LINES < DOWN ? 1 : LINES / DOWN;       // rounds
  static_assert(WIDTH == 1 || ALONG_K || STRAIGHT, "quads keep their order");
  const float* next;    // this lane's first element of its next stage
  long long far, tile;  // elements to the next round, to its next stage
  int row, k, rows;     // of the first element; rows that there are from there on
  unsigned to;

  __device__ __forceinline__ Slab(const float* operand, long long ld, int first, int total, int from, int lane) {
    const int word = lane % ACROSS * WIDTH, line = lane / ACROSS;
    row = ALONG_K ? line : word, k = ALONG_K ? word : line;
    rows = LINES < DOWN && line >= LINES ? -BK : total - first - row;
    next = operand + (ALONG_K ? (first + row) * ld + from + k : (from + k) * ld + first + row);
    far = DOWN * ld;
    tile = COPYING * BK * (ALONG_K ? 1 : ld);
    to = 4 * place(row, k);
  }

  static __device__ __forceinline__ int place(int row, int k) {
    return STRAIGHT && !ALONG_K ? k * ROWS + row : row * PITCH + k;
  }

  // A stage of which the first `none` k-steps are zeros.
  __device__ __forceinline__ void copy(unsigned at, int none) {
    if (LINES < DOWN && rows <= -BK) return;  // more lanes than lines
    const float* from = next;
#pragma unroll(FAR * NEAR <= 16 ? FAR : 8)
    for (int f = 0; f < FAR; ++f, from += far)
#pragma unroll
      for (int n = 0; n < NEAR; ++n) {
        const int down = f * DOWN, right = n * ACROSS * WIDTH, on_row = ALONG_K ? down : right, on_k = ALONG_K ? right : down;
        const bool there = on_row < rows && k + on_k >= none;
        if constexpr (WIDTH == 4) copy16_or_zero(at + to + 4 * place(on_row, on_k), from + right, there ? 4 : 0);
        else copy4_or_zero(at + to + 4 * place(on_row, on_k), from + right, there);
      }
    next += tile;
  }
};

using SlabX = Slab<X_ALONG_K, true, WIDTH_X, BN>;
using SlabY = Slab<Y_ALONG_K, false, WIDTH_Y, BM>;
constexpr int STAGE = SlabX::FLOATS + SlabY::FLOATS;

extern "C" __global__ void __launch_bounds__(THREADS + PRODUCERS, MIN_BLOCKS)
ffma_chain(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, float* partial,
           const __grid_constant__ Gemm g) {
  extern __shared__ __align__(16) float shared[];
  __shared__ __align__(8) unsigned long long barriers[2 * STAGES];
  Ring<4 * STAGE> ring(barriers);
  ring.init(32, THREADS / 32);
  __syncthreads();
  next_kernel_may_start();

  const int rows = SWAPPED ? g.M : g.N, columns = SWAPPED ? g.N : g.M;  // of X, of Y
  const int batch = over(blockIdx.x, g.matrix), first = (blockIdx.x - batch * ((rows + BN - 1) / BN)) * BN;
  const int steps = (g.K + BK - 1) / BK, remainder = g.K - (steps - 1) * BK;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (warp >= THREADS / 32) {
    const int mine = warp - THREADS / 32, from = remainder + (mine - 1) * BK;
    const float* const a = A + batch_offset(g, g.a_batch, batch);
    const float* const b = B + batch_offset(g, g.b_batch, batch);
    SlabX x(SWAPPED ? a : b, SWAPPED ? g.lda : g.ldb, first, rows, from, lane);
    SlabY y(SWAPPED ? b : a, SWAPPED ? g.ldb : g.lda, 0, columns, from, lane);
    previous_kernel_has_ended();
    ring.step(mine);
#pragma unroll 1
    for (int t = mine; t < steps; t += COPYING) {
      ring.wait_empty();
      const int none = t ? 0 : BK - remainder;
      const unsigned to = shared_address(shared) + ring.at();
      x.copy(to, none);
      y.copy(to + 4 * SlabX::FLOATS, none);
      mbarrier_arrive_after_copies(ring.full());
      ring.step(COPYING);
    }
    copies_wait_all();
    return;
  }

  // Neighbouring lanes share TN rows of X, and lanes two apart a row of Y: either takes half of the wavefronts then.
  const int across = lane / TN, down = warp * TM * TN + lane % TN;
  auto row_of = [&](int j) { return X_ALONG_K ? across + j * (32 / TN) : across * TN + j; };
  const char* const from_x = reinterpret_cast<const char*>(shared + SlabX::place(row_of(0), 0));
  const char* const from_y = reinterpret_cast<const char*>(shared + SlabX::FLOATS + down * PITCH);
  float acc[TM][TN] = {};
  float x[2][TN][FRAGMENT_STEPS], y[2][TM][FRAGMENT_STEPS];
  auto quad = [](float* to, const char* from) { load_words<4>(to, reinterpret_cast<const float*>(from)); };
  auto load = [&](int slot, const char* at_x, const char* at_y, int k) {
#pragma unroll
    for (int s = 0; s < FRAGMENT_STEPS; s += 4)
#pragma unroll
      for (int i = 0; i < TM; ++i) quad(&y[slot][i][s], at_y + 4 * (i * TN * PITCH + k + s));
#pragma unroll
    for (int s = 0; s < FRAGMENT_STEPS; s += X_ALONG_K ? 4 : 1) {
      const char* const from = at_x + 4 * SlabX::place(0, k + s);
      if constexpr (X_ALONG_K) {
#pragma unroll
        for (int j = 0; j < TN; ++j) quad(&x[slot][j][s], from + 4 * SlabX::place(j * (32 / TN), 0));
      } else if constexpr (TN == 2) {
        const float2 v = *reinterpret_cast<const float2*>(from);
        x[slot][0][s] = v.x, x[slot][TN - 1][s] = v.y;
      } else {
        x[slot][0][s] = *reinterpret_cast<const float*>(from);
      }
    }
  };
  if (steps) {
    ring.wait_full();
    load(0, from_x, from_y, 0);
  }
#pragma unroll 1
  for (int left = steps; left > 0; --left) {
    const unsigned read = ring.empty();
    const char *at_x = from_x + ring.at(), *at_y = from_y + ring.at();
    bool there = true;
#pragma unroll
    for (int f = 0; f < FRAGMENTS_A_STAGE; ++f) {
      if (f + 1 < FRAGMENTS_A_STAGE) {
        load((f + 1) % 2, at_x, at_y, (f + 1) * FRAGMENT_STEPS);
        if (f + 2 == FRAGMENTS_A_STAGE) {  // the next stage, asked for before it is needed; or this one once more
          ring.step(left > 1);
          there = mbarrier_is_complete(ring.full(), ring.parity);
        }
      } else {
        if (!there) ring.wait_full();
        at_x = from_x + ring.at(), at_y = from_y + ring.at();
        load(0, at_x, at_y, 0);
      }
#pragma unroll
      for (int s = 0; s < FRAGMENT_STEPS; ++s)
        each_result([&](int i, int j) { acc[i][j] = fmaf(x[f % 2][j][s], y[f % 2][i][s], acc[i][j]); });
      // PTXAS(13.0): it puts all FFMAs behind the wait; leave this out, peakgemm sass.
      each_result([&](int i, int j) { asm volatile("" : "+f"(acc[i][j])); });
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(read);
  }

  previous_kernel_has_ended();
  float* const c = C + batch_offset(g, g.c_batch, batch);
  const float* const c0 = C0 + batch_offset(g, g.c0_batch, batch);
  each_result([&](int i, int j) {
    const int row = first + row_of(j), column = down + i * TN;
    if (row >= rows || column >= columns) return;
    const long long m = SWAPPED ? row : column, n = SWAPPED ? column : row;
    c[m * g.ldc + n] = scaled(acc[i][j], g.alpha, g.beta, c0 + m * g.c0_row + n * g.c0_col);
  });
}
