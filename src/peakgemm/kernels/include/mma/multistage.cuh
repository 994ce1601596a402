// The main loop of a multi-stage cp.async kernel: acc (TM x TN) += A B over the whole of K.
//
// A is transposed on the way in by four-byte copies, which need no alignment; eight lanes go along
// k and four along the rows, and rows of As are padded by four words, so that the 32 words of a copy
// go to 32 banks (bank = 4 k + row; at their source four share one: 4 wavefronts a copy). B comes in sixteen-byte copies in the aligned compilation
// and in four-byte copies in the guarded one.
//
// The guarded compilation takes the remainder of K as its *first* tile, filled with zeros, and
// clamps rows and columns to the last one that exists (what they yield is never stored), so
// that the steady loop tests nothing.
#include "include/mma/fragment.cuh"
#include "include/mma/outer_product.cuh"
#include "include/mma/warp_tile.cuh"
#include "include/ptx/cp_async.cuh"
#include "include/rung.cuh"

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int A_PITCH = BM + 4;
constexpr int A_TILE = BK * A_PITCH;
constexpr int STAGE = A_TILE + BK * BN;  // floats
constexpr int A_ROWS = THREADS / 8;      // rows that one round of copies covers, 8 k-steps wide
constexpr int A_ROUNDS = BM / A_ROWS;
constexpr int A_COPIES = A_ROUNDS * (BK / 8);
constexpr int B_WIDTH = ALIGNED ? 4 : 1;
constexpr int B_ROWS = THREADS / (BN / B_WIDTH);  // k-steps that one round of copies covers
constexpr int B_COPIES = BK / B_ROWS;

__device__ __forceinline__ void multistage(float (&acc)[TM][TN], const float* A, const float* B, int M, int N, int K,
                                           long long lda, long long ldb, Tile tile, WarpTile mine) {
  extern __shared__ __align__(16) float shared[];
  const int ak = threadIdx.x % 8, am = threadIdx.x / 8;
  const int bk = threadIdx.x / (BN / B_WIDTH), bn = threadIdx.x % (BN / B_WIDTH) * B_WIDTH;

  const float* a[A_ROUNDS];
#pragma unroll
  for (int i = 0; i < A_ROUNDS; ++i) {
    const int m = tile.m + am + i * A_ROWS;
    a[i] = A + (ALIGNED ? m : min(m, M - 1)) * lda + ak;
  }
  const float* b = B + bk * ldb + (ALIGNED ? tile.n + bn : min(tile.n + bn, N - 1));
  const unsigned to_a = shared_address(shared + ak * A_PITCH + am);
  const unsigned to_b = shared_address(shared + A_TILE + bk * BN + bn);

  // Copy number c of a tile into stage `at` (in bytes).
  auto copy_a = [&](bool wanted, int c, unsigned at) {
    const int i = c % A_ROUNDS, k = c / A_ROUNDS * 8;
    copy4_if(wanted, to_a + at + 4 * (k * A_PITCH + i * A_ROWS), a[i] + k);
  };
  auto copy_b = [&](bool wanted, int c, unsigned at) {
    const unsigned to = to_b + at + 4 * c * B_ROWS * BN;
    if constexpr (ALIGNED) copy16_if(wanted, to, b + c * B_ROWS * ldb);
    else copy4_if(wanted, to, b + c * B_ROWS * ldb);
  };
  auto advance = [&](int k) {
#pragma unroll
    for (int i = 0; i < A_ROUNDS; ++i) a[i] += k;
    b += k * ldb;
  };

  int tiles = (K + BK - 1) / BK;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    const unsigned at = s * STAGE * 4;
    if (!ALIGNED && s == 0) {
      const int first = K - (tiles - 1) * BK;
      if (tiles > 0) {
#pragma unroll
        for (int c = 0; c < A_COPIES; ++c) {
          const int i = c % A_ROUNDS, k = c / A_ROUNDS * 8;
          copy4_or_zero(to_a + at + 4 * (k * A_PITCH + i * A_ROWS), a[i] + k, ak + k < first);
        }
#pragma unroll
        for (int c = 0; c < B_COPIES; ++c)
          copy4_or_zero(to_b + at + 4 * c * B_ROWS * BN, b + c * B_ROWS * ldb, bk + c * B_ROWS < first);
      }
      advance(first);
    } else {
#pragma unroll
      for (int c = 0; c < A_COPIES; ++c) copy_a(s < tiles, c, at);
#pragma unroll
      for (int c = 0; c < B_COPIES; ++c) copy_b(s < tiles, c, at);
      advance(BK);
    }
    copies_commit();
  }

  float af[2][TM], bf[2][TN];
  const float* As = shared + mine.m;
  const float* Bs = shared + A_TILE + mine.n;
  auto load = [&](int slot, int stage, int k) {
    load_fragment(af[slot], As + stage + k * A_PITCH, 8);
    load_fragment(bf[slot], Bs + stage + k * BN, 4);
  };

  if (tiles > 0) {
    copies_wait<STAGES - 2>();
    __syncthreads();
    load(0, 0, 0);
  }
  int read = 0;                      // stage in use, in floats
  int write = (STAGES - 1) * STAGE;  // stage that the tile before has left
#pragma unroll 1
  for (; tiles > 0; --tiles) {
    const bool more = tiles >= STAGES;
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      if (k + 1 < BK) {
        load((k + 1) % 2, read, k + 1);
      } else {
        copies_commit();
        copies_wait<STAGES - 2>();
        __syncthreads();
        // After the last tile there is no next one: read this one again rather than branch.
        write = read;
        if (tiles > 1) read = read == (STAGES - 1) * STAGE ? 0 : read + STAGE;
        load((k + 1) % 2, read, 0);
      }
      // The copies of the tile STAGES - 1 ahead, spread over the k-steps of this one.
#pragma unroll
      for (int c = 0; c < A_COPIES; ++c)
        if (c * (BK - 1) / A_COPIES == k) copy_a(more, c, write * 4);
#pragma unroll
      for (int c = 0; c < B_COPIES; ++c)
        if (c * (BK - 1) / B_COPIES == k) copy_b(more, c, write * 4);
      if (k == BK - 2) advance(BK);
      outer_product(acc, af[k % 2], bf[k % 2]);
    }
  }
  copies_wait<0>();
}
