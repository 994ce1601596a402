// From the accumulators of wgmma to C, or to partial sums, by way of shared memory.
#include "include/epilogue/output.cuh"
#include "include/mma/warpgroups.cuh"
#include "include/ptx/wgmma_fences.cuh"

// Eight rows by 64 of a warp's sums, the p-th of them, to `staged`.
__device__ __forceinline__ void stage_sums(const float (&sum)[ACCUMULATORS], int p, float* staged, int lane) {
  constexpr int ACROSS = BN / 64;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int at = p % ACROSS * 32 + 4 * i + p / ACROSS * 2;
    *reinterpret_cast<float2*>(staged + lane / 4 * STAGED_PITCH + lane % 4 * 2 + 8 * i) = make_float2(sum[at], sum[at + 1]);
  }
}

// The results of a warp, 8 x 64 of its 16 x BN sums at a time, by way of `staged`; `row`: its first; `strip`: of 64
// columns, where the other warpgroup stores the others. Where all of a tile is stored as it lies, unrolled, with no
// test: less than half of the instructions.
__device__ __forceinline__ void store_sums(const float (&sum)[ACCUMULATORS], const Output& out, float* staged, int row,
                                           int lane, int strip = 0) {
  constexpr int ACROSS = BN / 64;
  if (!TRANS_C && out.whole) {
    float* const first = out.plain ? out.at(row + lane / 16, lane % 16 * 4) : out.at(row, lane);
#pragma unroll
    for (int p = 0; p < 2 * ACROSS; ++p) {
      if (ALTERNATE && p % ACROSS != strip) continue;
      __syncwarp();
      stage_sums(sum, p, staged, lane);
      __syncwarp();
      float* to = first + p / ACROSS * 8 * out.ldc + p % ACROSS * 64;
      if (out.plain) {
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          v[i] = *reinterpret_cast<const float4*>(staged + (2 * i + lane / 16) * STAGED_PITCH + lane % 16 * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i, to += 2 * out.ldc)
          *reinterpret_cast<float4*>(to) =
              make_float4(out.alpha * v[i].x, out.alpha * v[i].y, out.alpha * v[i].z, out.alpha * v[i].w);
      } else {
        float v[16];
#pragma unroll
        for (int t = 0; t < 16; ++t) v[t] = out.alpha * staged[t / 2 * STAGED_PITCH + t % 2 * 32 + lane];
#pragma unroll
        for (int t = 0; t < 16; t += 2, to += out.ldc) to[0] = v[t], to[32] = v[t + 1];
      }
    }
    return;
  }
#pragma unroll 1
  for (int part = strip; part < 2 * ACROSS; part += ALTERNATE ? ACROSS : 1) {
    __syncwarp();
#pragma unroll
    for (int p = 0; p < 2 * ACROSS; ++p)
      if (p == part) stage_sums(sum, p, staged, lane);
    __syncwarp();
    out.store_rows(staged, row + part / ACROSS * 8, part % ACROSS * 64, lane);
  }
}
