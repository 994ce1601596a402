// What handed_segment deals to each block, in its order, for tests: tile, first k-step, end and slot; -2 ends it.
#include "include/scheduler/gemm.cuh"
#include "include/scheduler/handed.cuh"

extern "C" __global__ void segments(int* out, int most, int blocks, const __grid_constant__ Gemm g) {
  const int block = blockIdx.x * blockDim.x + threadIdx.x, steps = (g.K + BK - 1) / BK;
  int* to = out + 4 * most * block;
  for (int item = block; block < blocks && item < items_of(g); item += blocks)
    for (int half = 0; half < 2; ++half) {
      Segment s;
      if (!handed_segment(g, steps, item, half, s)) continue;
      to[0] = s.tile, to[1] = s.begin, to[2] = s.end, to[3] = s.slot;
      to += 4;
    }
  to[0] = -2;
}

// The first `warps` of block 0 hand on, late; block 1 takes over at once.
extern "C" __global__ void late(float* out, float* sums, unsigned* flags, int turns, int warps) {
  float acc[TM][TN];
  if (blockIdx.x == 1) {
    load_carry(acc, flags, sums, 0, threadIdx.x);
    for (int e = 0; e < TM * TN; ++e) out[e * THREADS + threadIdx.x] = acc[e / TN][e % TN];
    return;
  }
  float v = 1.f;
  for (int i = 0; i < turns; ++i) v = fmaf(v, 0.5f, 1.f);
  if (threadIdx.x >= 32 * warps) return;
  for (int e = 0; e < TM * TN; ++e) sums[e * THREADS + threadIdx.x] = v + e * THREADS + threadIdx.x;
  store_carry(flags, 0);
}
