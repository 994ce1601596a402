// Sums of a tile that others have the rest of K of, to `slot` of the partial sums, for reduce.cu: they lie as the threads hold
// them, one thread beside the other, element e of thread t at e THREADS + t. Those that are `wanted(i)`, by their row.
#include "include/mma/fragment.cuh"
#include "include/scheduler/gemm.cuh"

template <class Wanted>
__device__ __forceinline__ void store_partial(const float (&acc)[TM][TN], float* partial, int slot, int thread,
                                              Wanted wanted) {
  float* const to = partial + static_cast<long long>(slot) * BM * BN + thread;
  each_result([&](int i, int j) {
    if (wanted(i)) to[(i * TN + j) * THREADS] = acc[i][j];
  });
}
