// A chunk's products by strips of columns, of whose sums a thread has registers for two beside those of the tile.
#include "include/mma/warpgroups.cuh"
#include "include/ptx/wgmma_fences.cuh"
#include "include/ptx/wgmma_registers.cuh"
#include "include/split/streamed_stage.cuh"

constexpr int STRIPS = BN / STRIP;
// While a sum is scaled or promoted the tensor cores have something to multiply: IN_PAIRS, of the strip beside it, where
// corrections become part of the sum as soon as they are scaled; MEANWHILE, corrections (emulated/schemes.py).

// Chunks all columns of which have one scale, and others, have a loop APIECE: no scale to be found or read in the first,
// and less that is jumped over, which costs instructions that are waited for (docs/notebook/16). PTXAS(13.0): not where
// sums are carried over twice, of which it waits for products before others are asked for; make it !SPLIT_B, peakgemm
// sass.
constexpr bool APIECE = !SPLIT_B && ACCUMULATIONS != 2;

// sum += scale_j part, of a strip's columns; `scales` from this thread's first column on. `alike`: they all have the scale
// `common`, as those of a panel often do (split.cu).
__device__ __forceinline__ void promote_strip(float (&sum)[ACCUMULATORS], const float (&part)[STRIP_SUMS],
                                              const float* scales, bool alike, float common, int strip) {
  if (alike) {
#pragma unroll
    for (int i = 0; i < STRIP_SUMS; ++i)
      sum[strip * STRIP_SUMS + i] = fmaf(part[i], common, sum[strip * STRIP_SUMS + i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < STRIP_SUMS / 4; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(scales + strip * STRIP + 8 * i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& to = sum[strip * STRIP_SUMS + 4 * i + j];
      to = fmaf(part[4 * i + j], j % 2 ? scale.y : scale.x, to);
    }
  }
}

// A chunk's products of rows in registers, `a`, and of B's planes.
template <class Rows>
struct StripProducts {
  const Rows& a;
  unsigned long long b;  // a descriptor of B's first plane

  __device__ __forceinline__ unsigned long long descriptor(int strip, int plane, int k) const {
    return b + (k / 2 * B_HALF + plane * B_PLANE + strip * STRIP * 64 + k % 2 * 32 >> 4);
  }

  template <bool ADD>
  __device__ __forceinline__ void high(float (&sums)[STRIP_SUMS], int strip, int k) const {
    wgmma<ADD>(sums, a.high[k], descriptor(strip, 0, k));
  }

  // All corrections of a strip.
  __device__ __forceinline__ void low(float (&sums)[STRIP_SUMS], int strip) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k) wgmma<true>(sums, a.high[k], descriptor(strip, 1, k));
      else wgmma<false>(sums, a.high[k], descriptor(strip, 1, k));
      wgmma<true>(sums, a.low[k], descriptor(strip, 0, k));
    }
  }
};

// IN_PAIRS: strips two by two.
template <class Products, class Look, class Promote, class Pass, class Read>
__device__ __forceinline__ void multiply_pairs(const Products& products, bool keep, Look look_at, Promote promote,
                                               Pass pass, Read all_is_read) {
  float part[2][STRIP_SUMS];  // of two strips corrections, and then all products
#pragma unroll
  for (int strip = 0; strip < STRIPS; strip += 2) {
    // Twice: the last k-steps by themselves first. What is left at the end is of some that a short chunk has, too.
    if (ACCUMULATIONS == 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        products.template high<false>(part[i], strip + i, 3);
        products.template high<true>(part[i], strip + i, 2);
        wgmma_commit();
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (ACCUMULATIONS == 2 || strip) {
        wgmma_wait<1>();
        if (ACCUMULATIONS == 1) look_at(part[i], strip + i - 2);
        promote(part[i], ACCUMULATIONS == 2 ? strip + i : strip + i - 2);
        wgmma_fence();
      }
      products.low(part[i], strip + i);
      wgmma_commit();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      wgmma_wait<1>();
      float (&sums)[STRIP_SUMS] = part[i];
#pragma unroll
      for (int j = 0; j < STRIP_SUMS; ++j) {
        sums[j] *= 1.f / LOW_SCALE;
        asm volatile("" : "+f"(sums[j]));  // before the fence
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4 / ACCUMULATIONS; ++k) products.template high<true>(sums, strip + i, k);
      wgmma_commit();
    }
  }
  pass();
  wgmma_wait<1>();
  if (ACCUMULATIONS == 2) look_at(part[0], STRIPS - 2);
  if (ACCUMULATIONS == 1 && keep) {  // one place to be jumped over, not two
    wgmma_wait<0>();
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      float sums[STRIP_SUMS];
#pragma unroll
      for (int j = 0; j < STRIP_SUMS; ++j) sums[j] = i ? part[1][j] : part[0][j];
      look_at(sums, STRIPS - 2 + i);
    }
  }
  promote(part[0], STRIPS - 2);
  wgmma_wait<0>();
  if (ACCUMULATIONS == 2) look_at(part[1], STRIPS - 1);
  all_is_read();
  promote(part[1], STRIPS - 1);
}

// One strip after the other.
template <class Products, class Look, class Promote, class Pass, class Read>
__device__ __forceinline__ void multiply_singly(const Products& products, Look look_at, Promote promote, Pass pass,
                                                Read all_is_read) {
  float high[STRIP_SUMS], low[STRIP_SUMS];
#pragma unroll
  for (int strip = 0; strip < STRIPS; ++strip) {
    const bool last = strip + 1 == STRIPS;
    if (!MEANWHILE) products.low(low, strip);
#pragma unroll
    for (int part = 0; part < ACCUMULATIONS; ++part) {
      const bool ends = part + 1 == ACCUMULATIONS;
#pragma unroll
      for (int step = 0; step < 4 / ACCUMULATIONS; ++step) {
        // Parts from the last one on: what is left at the end is of k-steps that a short chunk has, too.
        const int k = ACCUMULATIONS == 1 ? step : 3 - part * (4 / ACCUMULATIONS) - step;
        if (step) products.template high<true>(high, strip, k);
        else products.template high<false>(high, strip, k);
      }
      wgmma_commit();
      if (MEANWHILE && !ends) {
        products.low(low, strip);
        wgmma_commit();
        wgmma_wait<1>();
      } else {
        if (ends && last) pass();
        wgmma_wait<0>();
      }
      if (ends) {
        look_at(high, strip);
        if (last) all_is_read();
#pragma unroll
        for (int i = 0; i < STRIP_SUMS; ++i) high[i] = fmaf(low[i], 1.f / LOW_SCALE, high[i]);
      }
      promote(high, strip);
      if (!ends || !last) wgmma_fence();
    }
  }
}

// A chunk's products: rows in registers, `a`, by B's planes in shared memory at `b`. look_at(sums, strip): where sums
// are to be looked at (`keep`); promote(part, strip): adds them to the tile's; pass() when all is issued, all_is_read()
// when the operands have been.
template <class Rows, class Look, class Promote, class Pass, class Read>
__device__ __forceinline__ void multiply_strips(const Rows& a, unsigned b, bool keep, Look look_at, Promote promote,
                                                Pass pass, Read all_is_read) {
  const StripProducts<Rows> products = {a, matrix_descriptor(b)};
  wgmma_fence();
  if constexpr (IN_PAIRS) multiply_pairs(products, keep, look_at, promote, pass, all_is_read);
  else multiply_singly(products, look_at, promote, pass, all_is_read);
}
