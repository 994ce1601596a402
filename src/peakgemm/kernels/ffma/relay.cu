// B laid out anew: K rows of N floats, each row a multiple of 16 bytes, with zeros at its end.
//
// Of a B with K contiguous, or with rows that start anywhere, the kernels copy single words, four times as many
// instructions as sixteen bytes at a time: 4 to 5 % of a large product, of which this pass takes back 1 to 2.

#include "common/gemm.cuh"
#include "common/dependents.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
ffma_relay(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, float* to,
           const __grid_constant__ Gemm g) {
  constexpr int BELOW = THREADS / BN;  // rows that the lanes read, or write, at once
  __shared__ float tile[BK][BN + 1];
  next_kernel_may_start();
  const int across = (g.N + BN - 1) / BN;
  const int down = over(blockIdx.x, g.matrix), k = down * BK, n = (blockIdx.x - down * across) * BN;
  const int x = threadIdx.x % BN, y = threadIdx.x / BN;
  const int pitch = (g.N + 3) / 4 * 4;
  previous_kernel_has_ended();
  if constexpr (!TRANS_B) {  // lanes read as they write: no word waits for those of others
    const bool here = n + x < pitch, inside = n + x < g.N;
    float words[BK / BELOW];
#pragma unroll
    for (int round = 0; round < BK / BELOW; ++round) {
      const int row = k + y + round * BELOW;
      words[round] = inside && row < g.K ? B[row * g.ldb + n + x] : 0.f;
    }
#pragma unroll
    for (int round = 0; round < BK / BELOW; ++round) {
      const int row = k + y + round * BELOW;
      if (here && row < g.K) to[static_cast<long long>(row) * pitch + n + x] = words[round];
    }
    return;
  }
#pragma unroll
  for (int round = 0; round < BK / BELOW; ++round) {
    const int i = y + round * BELOW;  // row of what is read, along which lanes lie
    tile[i][x] = n + i < g.N && k + x < g.K ? B[(n + i) * g.ldb + k + x] : 0.f;
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < BK / BELOW; ++round) {
    const int i = y + round * BELOW;
    if (k + i < g.K && n + x < pitch) to[static_cast<long long>(k + i) * pitch + n + x] = tile[x][i];
  }
}
