// Adds up the partial sums of the tiles whose K several blocks have shared (product.cu), in the order of K: the same
// bits whichever block was first. A thread has four neighbours in memory.

#include "include/epilogue/output.cuh"
#include "include/epilogue/partial_sums.cuh"
#include "include/ptx/dependents.cuh"
#include "include/scheduler/shares.cuh"
#include "include/split/split_panel.cuh"

constexpr int ADDERS = 256;
constexpr int BLOCKS = BM * BN / (4 * ADDERS);  // of a tile

extern "C" __global__ void __launch_bounds__(ADDERS)
tensor_reduce(const float* A, const float* B, const float* C0, float* C, char* workspace,
              const __grid_constant__ Emulated e) {
  next_kernel_may_start();
  const Gemm& g = e.g;
  const int tile = blockIdx.x / BLOCKS;
  const Shares shares(g, chunks_of(g), tile);
  const Output out(g, place_of(g, g.whole + tile), C0, C, nullptr, -1);
  const int at = (blockIdx.x % BLOCKS * ADDERS + threadIdx.x) * 4;
  const int row = TRANS_C ? at % BM : at / BN, column = TRANS_C ? at / BM : at % BN;
  previous_kernel_has_ended();
  if (shares.whole || row >= out.rows || column >= out.columns) return;
  const float* const from = reinterpret_cast<const float*>(workspace + e.partial_offset) + at;
  auto load = [&](long long slot) { return *reinterpret_cast<const Sums<4>*>(from + slot * BM * BN); };
  Sums<4> sum = load(shares.first_slot);
  add_parts(sum, shares.last - shares.first, [&](int i) { return load(shares.first + 1ll + i); });
  out.store(row, column, sum.of[0], sum.of[1]);
  out.store(TRANS_C ? row + 2 : row, TRANS_C ? column : column + 2, sum.of[2], sum.of[3]);
}
