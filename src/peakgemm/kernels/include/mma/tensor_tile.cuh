// 64 x 128 of a tile by one of two warpgroups: products of a chunk's planes on the tensor cores, sums in FP32.
#include "include/mma/warpgroups.cuh"
#include "include/ptx/wgmma.cuh"
#include "include/split/split_panel.cuh"

constexpr int A_PLANE = BM * 64;                 // bytes of the tile's rows, of half a chunk

// Planes p of A and q of B, the k-th 32 bytes of their rows (descriptors count 16 bytes).
template <bool ADD>
__device__ __forceinline__ void multiply(float (&d)[ACCUMULATORS], unsigned long long a, int p, unsigned long long b,
                                         int q, int k) {
  wgmma<ADD>(d, a + (p * A_PLANE >> 4) + 2 * k, b + (q * PLANE >> 4) + 2 * k);
}

// A stage's products of first planes, added to `d` or, without ADD, by themselves.
template <bool ADD>
__device__ __forceinline__ void multiply_high(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b) {
  multiply<ADD>(d, a, 0, b, 0, 0);
  multiply<true>(d, a, 0, b, 0, 1);
}

// And all others, the smallest first.
template <bool ADD>
__device__ __forceinline__ void multiply_low(float (&d)[ACCUMULATORS], unsigned long long a, unsigned long long b) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (PLANES == 3) {
      if (k) multiply<true>(d, a, 2, b, 2, k);
      else multiply<ADD>(d, a, 2, b, 2, k);
      multiply<true>(d, a, 1, b, 2, k);
      multiply<true>(d, a, 2, b, 1, k);
      multiply<true>(d, a, 0, b, 2, k);
      multiply<true>(d, a, 2, b, 0, k);
      multiply<true>(d, a, 1, b, 1, k);
      multiply<true>(d, a, 0, b, 1, k);
    } else {
      if (k) multiply<true>(d, a, 0, b, 1, k);
      else multiply<ADD>(d, a, 0, b, 1, k);
    }
    multiply<true>(d, a, 1, b, 0, k);
  }
}

// scale_i scale_j of this thread's two rows, where all columns have the same; else negative. All lanes of a warp call.
struct Factors {
  float top, bottom;

  __device__ __forceinline__ void find(const float* scales, int row) {
    const uint4 all = *reinterpret_cast<const uint4*>(scales + BM + 4 * (threadIdx.x % 32));  // none is negative
    const unsigned most = __reduce_max_sync(~0u, max(max(all.x, all.y), max(all.z, all.w)));
    const auto other = [=](unsigned x) { return static_cast<int>(x != most) & static_cast<int>(x != 0); };
    const bool several = __any_sync(~0u, other(all.x) | other(all.y) | other(all.z) | other(all.w));  // zeros': zero
    top = several ? -1.f : scales[row] * __uint_as_float(most);
    bottom = scales[row + 8] * __uint_as_float(most);
  }
};

// sum += scale_i scale_j part, with the scales of a chunk, those of rows, then those of columns; or with `factors`.
__device__ __forceinline__ void promote(float (&sum)[ACCUMULATORS], const float (&part)[ACCUMULATORS],
                                        const Factors& factors, const float* scales, int row, int column) {
  if (__all_sync(~0u, factors.top >= 0.f)) {
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum[i] = fmaf(part[i], i / 2 % 2 ? factors.bottom : factors.top, sum[i]);
    return;
  }
  const float* const rows = scales + row;
  const float* const columns = scales + BM + column;
  const float top = rows[0], bottom = rows[8];
#pragma unroll
  for (int i = 0; i < ACCUMULATORS / 4; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(columns + 8 * i);
    sum[4 * i] = fmaf(part[4 * i], top * scale.x, sum[4 * i]);
    sum[4 * i + 1] = fmaf(part[4 * i + 1], top * scale.y, sum[4 * i + 1]);
    sum[4 * i + 2] = fmaf(part[4 * i + 2], bottom * scale.x, sum[4 * i + 2]);
    sum[4 * i + 3] = fmaf(part[4 * i + 3], bottom * scale.y, sum[4 * i + 3]);
  }
}

// A chunk, by its two halves' descriptors and its scales. `pass` is called when all is issued, `read` when the operands
// have been. What it leaves in `rest` is to be promoted, with its scales, by the next chunk while that one's corrections
// are multiplied; here `rest`, `factors` and `last` are what the chunk before has left. PTXAS(13.0): of the array that
// wgmma writes it cannot tell that its values are there, and waits; promote `high` instead of `rest`, peakgemm sass.
constexpr bool LATER = !TWICE && !FOUR_TIMES;  // those promote all at once
template <class Pass, class Read>
__device__ __forceinline__ void add_chunk(float (&sum)[ACCUMULATORS], float (&rest)[ACCUMULATORS],
                                          const unsigned long long (&a)[2], const unsigned long long (&b)[2],
                                          const float* last, Factors& factors, const float* scales, int row, int column,
                                          Pass pass, Read read) {
  float high[ACCUMULATORS], low[ACCUMULATORS];
  wgmma_fence();
  if (TWICE) {  // the first time under way
    multiply_high<false>(high, a[0], b[0]);
    wgmma_commit();
    multiply_low<false>(low, a[0], b[0]);
    multiply_low<true>(low, a[1], b[1]);
    wgmma_commit();
    factors.find(scales, row);
    wgmma_wait<1>();
    promote(sum, high, factors, scales, row, column);
    wgmma_fence();
    multiply_high<false>(high, a[1], b[1]);
  } else if (FOUR_TIMES) {
    multiply_low<false>(low, a[0], b[0]);
    multiply_low<true>(low, a[1], b[1]);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply<false>(high, a[step / 2], 0, b[step / 2], 0, step % 2);
      if (step == 3) break;
      wgmma_commit();
      if (step == 0) factors.find(scales, row);
      wgmma_wait<0>();
      promote(sum, high, factors, scales, row, column);
      wgmma_fence();
    }
  } else {
    multiply_low<false>(low, a[0], b[0]);
    multiply_low<true>(low, a[1], b[1]);
    wgmma_commit();
    __syncwarp();  // nothing of what follows goes before them
    promote(sum, rest, factors, last, row, column);
    wgmma_fence();
    multiply_high<false>(high, a[0], b[0]);
    multiply_high<true>(high, a[1], b[1]);
  }
  wgmma_commit();
  pass();
  if (LATER) factors.find(scales, row);
  wgmma_wait<0>();
  read();
#pragma unroll
  for (int i = 0; i < ACCUMULATORS; ++i) rest[i] = fmaf(low[i], 1.f / LOW_SCALE, high[i]);
  if (!LATER) promote(sum, rest, factors, scales, row, column);
}
