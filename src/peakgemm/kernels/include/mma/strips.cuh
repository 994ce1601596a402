// A chunk's products by strips of columns, of whose sums a thread has registers for two beside those of the tile.
#include "include/mma/warpgroups.cuh"
#include "include/ptx/wgmma_fences.cuh"
#include "include/ptx/wgmma_registers.cuh"

constexpr int STRIPS = BN / STRIP;
constexpr int TIMES = FOUR_TIMES ? 4 : TWICE ? 2 : 1;  // that sums of first planes are carried over in a chunk

// While a sum is scaled or promoted the tensor cores have something to multiply: IN_PAIRS, of the strip beside it, where
// corrections become part of the sum as soon as they are scaled; MEANWHILE, where there is one strip and sums are carried
// over twice, corrections.
constexpr bool IN_PAIRS = STRIPS > 1 && (TIMES == 1 || (TIMES == 2 && STRIPS == 2));
constexpr bool MEANWHILE = STRIPS == 1 && TIMES == 2;

// Chunks all columns of which have one scale, and others, have a loop APIECE: no scale to be found or read in the first,
// and less that is jumped over, which costs instructions that are waited for. 3 to 4 % of a product
// (docs/notebook/16). Not where sums are carried over twice: ptxas then waits for products before others are asked
// for.
constexpr bool APIECE = !SPLIT_B && TIMES != 2;

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
