// Before a product that repacks its operands while it runs (include/copy/repack.cuh): counters and flags at zero, and the first
// chunk of K, which the product would have to wait for. A warp repacks a unit.

#include "include/copy/repack.cuh"
#include "include/ptx/dependents.cuh"

struct Chunk {
  Gemm g;
  Repack repack;
};
constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
ffma_first_chunk(const float* A, const float* B, const float* C0, float* C, float* workspace,
                 const __grid_constant__ Chunk c) {
  __shared__ __align__(16) float shared[WARPS * UNIT_WORDS];
  const int number = blockIdx.x * WARPS + threadIdx.x / 32;
  previous_kernel_has_ended();
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < c.repack.a; i += 32 * WARPS) reinterpret_cast<unsigned*>(workspace)[i] = 0;
    for (int i = threadIdx.x; i < c.repack.flags; i += 32 * WARPS)
      reinterpret_cast<unsigned*>(workspace)[c.repack.sums - c.repack.flags + i] = 0;
  }
  if (number >= c.repack.units) return;
  const unsigned words = shared_address(shared + threadIdx.x / 32 * UNIT_WORDS);
  const Unit unit(c.repack, number);
  ask_for(unit, A, B, c.g, c.repack, words);
  copies_wait_all();
  __syncwarp();
  repack_unit(unit, workspace, c.g, c.repack, words);
}
