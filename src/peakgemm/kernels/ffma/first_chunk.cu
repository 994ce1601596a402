// Before a product that lays its operands out beside its own work (common/lay_out.cuh): counters at zero, and the first
// chunk of K, which the product would have to wait for. A warp lays out a unit.

#include "common/gemm.cuh"
#include "common/cp_async.cuh"
#include "common/dependents.cuh"
#include "common/lay_out.cuh"

struct Chunk {
  Gemm g;
  Anew anew;
};
constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
ffma_first_chunk(const float* A, const float* B, const float* C0, float* C, float* workspace,
                 const __grid_constant__ Chunk c) {
  __shared__ __align__(16) float shared[WARPS * UNIT_WORDS];
  const int number = blockIdx.x * WARPS + threadIdx.x / 32;
  previous_kernel_has_ended();
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < c.anew.a; i += 32 * WARPS) reinterpret_cast<unsigned*>(workspace)[i] = 0;
  if (number >= c.anew.units) return;
  const unsigned words = shared_address(shared + threadIdx.x / 32 * UNIT_WORDS);
  const Unit unit(c.anew, number);
  ask_for(unit, A, B, c.g, c.anew, words);
  copies_wait_all();
  __syncwarp();
  lay_out(unit, workspace, c.g, c.anew, words);
}
