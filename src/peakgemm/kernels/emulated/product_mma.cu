// FP32 products on tensor cores without wgmma (sm_80 and later): sums of products of split operands.
//
// Idea: as in product.cu, the tensor cores add up little, for they truncate, and here more coarsely than Hopper's: only
//   32 bytes of K, starting from zero. Those sums are added in FP32, rounded to nearest, to the chunk's; the chunk's
//   are scaled and added to the tile's. Products with a second or third plane go first and the products of first
//   planes are added to them, so a thread holds 64 sums twice and the few of one row of fragments.
// All threads copy panels of split operands (split.cu) into a ring of stages by cp.async, and multiply; the panels'
//   swizzle, made for wgmma, also spreads the rows that ldmatrix reads over all banks.
// A half tile for whose data the split is too coarse (guard.cuh) is computed with FFMAs instead.

#include "include/mma/ieee_tile.cuh"
#include "include/ptx/cp_async.cuh"
#include "include/ptx/dependents.cuh"
#include "include/ptx/mma.cuh"
#include "include/ptx/opaque.cuh"
#include "include/split/guard.cuh"
#include "include/split/lost_bits.cuh"

constexpr int WARP_M = 64, WARP_N = 32;
constexpr int ROW_TILES = WARP_M / 16, COLUMN_TILES = WARP_N / 8;
constexpr int COMPUTE = BM / WARP_M * (BN / WARP_N) * 32;
constexpr int STAGE = 2 * HALF;        // half a chunk of A, then of B
constexpr int TAILS = STAGES / 2 + 1;  // chunks that STAGES halves in a row touch
static_assert(BM == 2 * WARP_M && WARP_M == IEEE_ROWS, "a group of four warps has half a tile");
static_assert(HALF % (16 * COMPUTE) == 0 && TAIL % 16 == 0 && TAIL <= 16 * COMPUTE, "whole rounds of copies");
static_assert(STAGES >= 2 && STAGES * STAGE >= 2 * 4 * IEEE_FLOATS, "the ring is empty by then, so FFMAs use its place");

// BYTES of a panel by all threads, each from its own first 16 bytes on.
template <int BYTES>
__device__ __forceinline__ void copy(unsigned to, const char* from) {
#pragma unroll
  for (int at = 0; at < BYTES; at += 16 * COMPUTE) copy16_if(true, to + at, reinterpret_cast<const float*>(from + at));
}

typedef float Accumulators[ROW_TILES][COLUMN_TILES][4];
typedef unsigned Columns[COLUMN_TILES / 2][4];  // B's fragments, two to four matrices

// d += 16 rows of A by all columns of B.
__device__ __forceinline__ void multiply_rows(float (&d)[COLUMN_TILES][4], const unsigned (&a)[4], const Columns& b) {
#pragma unroll
  for (int j = 0; j < COLUMN_TILES; ++j) mma(d[j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
}

// sum += the products of 32 bytes of K; `a` and `b`: what this lane tells ldmatrix of the first planes.
__device__ __forceinline__ void multiply_step(Accumulators& sum, unsigned a, unsigned b) {
  Columns columns[PLANES];
#pragma unroll
  for (int p = 0; p < PLANES; ++p)
#pragma unroll
    for (int j = 0; j < COLUMN_TILES / 2; ++j) load_matrices(columns[p][j], b + p * PLANE + j * 16 * 64);
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i) {
    float part[COLUMN_TILES][4] = {};
#pragma unroll
    for (int p = PLANES - 1; p >= 0; --p) {  // the smallest products first, or nearly so
      unsigned rows[4];
      load_matrices(rows, a + p * PLANE + i * 16 * 64);
#pragma unroll
      for (int q = PLANES == 2 ? 1 - p : 2; q >= (p == 0); --q) multiply_rows(part, rows, columns[q]);
      if (p == 0) {
        if (LOW_SCALE != 1.f)
#pragma unroll
          for (int j = 0; j < COLUMN_TILES; ++j)
#pragma unroll
            for (int r = 0; r < 4; ++r) part[j][r] *= 1.f / LOW_SCALE;
        multiply_rows(part, rows, columns[0]);
      }
    }
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) sum[i][j][r] += part[j][r];
  }
}

// sum += scale_i scale_j part, with the scales of a chunk from this lane's first row and column on.
__device__ __forceinline__ void promote(Accumulators& sum, const Accumulators& part, const float* rows,
                                        const float* columns) {
  float2 across[COLUMN_TILES];
#pragma unroll
  for (int j = 0; j < COLUMN_TILES; ++j) across[j] = *reinterpret_cast<const float2*>(columns + 8 * j);
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float down = rows[16 * i + 8 * r];
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j) {
        sum[i][j][2 * r] = fmaf(part[i][j][2 * r], down * across[j].x, sum[i][j][2 * r]);
        sum[i][j][2 * r + 1] = fmaf(part[i][j][2 * r + 1], down * across[j].y, sum[i][j][2 * r + 1]);
      }
    }
}

// `row` and `column`: of this lane's first sum.
__device__ __forceinline__ void store(const Accumulators& sum, const Output& out, int row, int column) {
#pragma unroll
  for (int i = 0; i < 2 * ROW_TILES; ++i)
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j) {
      const float* const from = sum[i / 2][j] + i % 2 * 2;
      out.store(row + 8 * i, column + 8 * j, from[0], from[1]);
    }
}

// Where the panels of this tile begin in A, or in B.
__device__ __forceinline__ const char* first_panel(const Emulated& e, char* workspace, int item, bool b) {
  const Place place = place_of(e.g, item);
  const int matrix = batch_offset(e.g, b ? e.b_step : e.a_step, place.batch);
  return panel_of(b ? panels_b(e, workspace) : panels_a(e, workspace), matrix, b ? place.n : place.m, b ? e.g.N : e.g.M,
                  chunks_of(e.g), 0);
}

// The first row and column of the tile that this thread has sums of.
__device__ __forceinline__ int row_of(int thread) { return thread / 128 * WARP_M + thread % 32 / 4; }
__device__ __forceinline__ int column_of(int thread) {
  return thread / 32 % (BN / WARP_N) * WARP_N + thread % 4 * 2;
}

extern "C" __global__ void __launch_bounds__(COMPUTE, 1)
tensor_product_mma(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
                   char* workspace, const __grid_constant__ Emulated e) {
  extern __shared__ __align__(128) char ring[];
  __shared__ int verdicts[2];  // of the guard, for this tile and the next
  const Gemm& g = e.g;
  char* const tails = ring + STAGES * STAGE;
  const unsigned first_stage = shared_address(ring), first_tail = shared_address(tails);
  previous_kernel_has_ended();

  const int chunks = chunks_of(g);
  for (int item = blockIdx.x; item < g.whole; item += gridDim.x) {
    // What is to be copied next: how many halves are left, which slot takes a chunk's tails, this thread's pieces.
    int left = 2 * chunks, slot = 0;
    const char* from_a = first_panel(e, workspace, item, false) + 16 * threadIdx.x;
    const char* from_b = first_panel(e, workspace, item, true) + 16 * threadIdx.x;
    auto fetch = [&](int stage) {
      if (left > 0) {
        const int thread = opaque(static_cast<int>(threadIdx.x));
        const unsigned to = first_stage + stage * STAGE + 16 * thread;
        copy<HALF>(to, from_a);
        copy<HALF>(to + HALF, from_b);
        if (left % 2 == 0) {
          if (thread < TAIL / 16) {
            copy<16>(first_tail + slot * 2 * TAIL + 16 * thread, from_a + SCALES);
            copy<16>(first_tail + slot * 2 * TAIL + TAIL + 16 * thread, from_b + SCALES);
          }
          if (++slot == TAILS) slot = 0;
        }
        const int step = left % 2 ? PANEL_PITCH - HALF : HALF;
        from_a += step;
        from_b += step;
        --left;
      }
      copies_commit();
    };
    if (threadIdx.x < 32) {
      const int broken = broken_halves(from_a - 16 * threadIdx.x, from_b - 16 * threadIdx.x, chunks, g.K);
      if (threadIdx.x == 0) verdicts[item / gridDim.x % 2] = broken;
    }
    __syncthreads();  // nobody reads what the tile before left in the ring
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);

    Accumulators sum = {};
    int stage = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Accumulators part = {};
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        copies_wait<STAGES - 2>();
        __syncthreads();  // all have this half, and are done with the one before it, whose place the next takes
        fetch(stage ? stage - 1 : STAGES - 1);
        // Rows whose 16 bytes this lane names to ldmatrix: of A two matrices in M by two in K, of B two in K by two
        // in N.
        const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % 32;
        const unsigned at = first_stage + stage * STAGE;
        unsigned a = at + thread / 128 * WARP_M * 64 + piece_at(lane % 16, lane / 16);
        unsigned b = at + HALF + thread / 32 % (BN / WARP_N) * WARP_N * 64 +
                     piece_at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll 1
        for (int k = 0; k < 2; ++k) {
          multiply_step(part, a, b);
          a ^= 32;  // two pieces on, as they are swizzled
          b ^= 32;
        }
        if (++stage == STAGES) stage = 0;
      }
      const char* const tail = tails + chunk % TAILS * 2 * TAIL;
      const int thread = opaque(static_cast<int>(threadIdx.x));
      promote(sum, part, reinterpret_cast<const float*>(tail) + row_of(thread),
              reinterpret_cast<const float*>(tail + TAIL) + column_of(thread));
    }
    const Place place = place_of(g, opaque(item));
    const int thread = opaque(static_cast<int>(threadIdx.x)), group = thread / 128, top = group * WARP_M;
    int broken = verdicts[item / gridDim.x % 2];
    if (broken) __syncthreads();  // FFMAs take the ring's place
    if (broken & LOST_BITS) {
      if (!(broken >> group & 1) &&
          !lossy_sums_hold(first_panel(e, workspace, opaque(item), false), first_panel(e, workspace, opaque(item), true),
                           0, chunks, thread / 32 * 16))
        atomicOr(&verdicts[item / gridDim.x % 2], 1 << group);
      __syncthreads();
      broken = verdicts[item / gridDim.x % 2];
    }
    if (place.m + top >= g.M) continue;
    const Output out(g, place, C0, C, nullptr, -1);
    if (broken >> group & 1) {
      ieee_tile(A + batch_offset(g, g.a_batch, place.batch) + (place.m + top) * e.a_row,
                B + batch_offset(g, g.b_batch, place.batch) + place.n * e.b_row, out.rows - top, out.columns, out, e,
                top, g.K, reinterpret_cast<float*>(ring) + group * IEEE_FLOATS, group, thread % 128);
      if (thread % 128 == 0) atomicAdd(&reinterpret_cast<Progress*>(workspace)->rerouted, 1);
    } else {
      store(sum, out, row_of(thread), column_of(thread));
    }
  }
}
