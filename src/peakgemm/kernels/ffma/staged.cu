// Staged through registers: for GPUs without cp.async (sm_70, sm_75).
//
// Idea: the next tile is read into registers while this one is computed, and stored to the other half of shared
//   memory: one barrier a tile. Any layout, alignment and edge: one word an access, lanes along whichever
//   dimension is contiguous, zeros for what is outside. K's remainder is the first tile, behind zeros, so that a sum is
//   a chain over K and nothing else.

#include "include/copy/edge.cuh"
#include "include/epilogue/tile_store.cuh"
#include "include/mma/outer_product.cuh"
#include "include/ptx/dependents.cuh"

// One operand, ROWS (M or N) by K: THREADS threads carry a tile of it, element by element.
template <bool K_INNER, int ROWS>
struct Carrier {
  static constexpr int PITCH = ROWS + 4;
  static constexpr int COUNT = ROWS * BK / THREADS;
  float held[COUNT];

  __device__ __forceinline__ void read(const float* operand, long long ld, int first, int total, int from) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int e = threadIdx.x + i * THREADS;
      const int k = from + (K_INNER ? e % BK : e / ROWS), row = first + (K_INNER ? e / BK : e % ROWS);
      held[i] = k >= 0 && row < total ? operand[K_INNER ? row * ld + k : k * ld + row] : 0.f;
    }
  }

  __device__ __forceinline__ void write(float* tile) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int e = threadIdx.x + i * THREADS;
      tile[(K_INNER ? e % BK : e / ROWS) * PITCH + (K_INNER ? e / BK : e % ROWS)] = held[i];
    }
  }
};

constexpr int A_FLOATS = BK * (BM + 4), STAGE = A_FLOATS + BK * (BN + 4);

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
ffma_staged(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C,
            float* __restrict__ partial, const __grid_constant__ Gemm g) {
  extern __shared__ __align__(16) float shared[];
  previous_kernel_has_ended();
  const int steps = (g.K + BK - 1) / BK;
  const WarpTile mine = warp_tile();
#pragma unroll 1
  for (int turn = 2 * blockIdx.x; turn < 2 * (g.whole + g.parts); turn += turn % 2 ? 2 * gridDim.x - 1 : 1) {
    Segment s;
    if (!segment_of(g, steps, turn / 2, turn % 2, s)) continue;
    const Place place = place_of(g, s.tile);
    const float* const a = A + batch_offset(g, g.a_batch, place.batch);
    const float* const b = B + batch_offset(g, g.b_batch, place.batch);
    Carrier<!TRANS_A, BM> carry_a;
    Carrier<TRANS_B, BN> carry_b;
    float acc[TM][TN] = {};
    auto read = [&](int t) {
      const int from = g.K - (steps - t) * BK;
      carry_a.read(a, g.lda, first_row(g, place), g.M, from);
      carry_b.read(b, g.ldb, first_column(g, place), g.N, from);
    };
    auto write = [&](int t) {
      carry_a.write(shared + t % 2 * STAGE);
      carry_b.write(shared + t % 2 * STAGE + A_FLOATS);
    };
    if (s.begin < s.end) {
      read(s.begin);
      write(s.begin);
    }
    __syncthreads();
#pragma unroll 1
    for (int t = s.begin; t < s.end; ++t) {
      if (t + 1 < s.end) read(t + 1);
      const float* const As = shared + t % 2 * STAGE + mine.m;
      const float* const Bs = shared + t % 2 * STAGE + A_FLOATS + mine.n;
#pragma unroll
      for (int k = 0; k < BK; ++k) {
        float af[TM], bf[TN];
        load_fragment(af, As + k * (BM + 4), 8);
        load_fragment(bf, Bs + k * (BN + 4), 4);
        outer_product(acc, af, bf);
      }
      if (t + 1 < s.end) write(t + 1);
      __syncthreads();
    }
    store_tile(acc, C0, C, partial, g, s, threadIdx.x, 0, shared + 2 * STAGE);
    __syncthreads();
  }
}
