// All ranks' rows of a matrix brought together in the memory of each, for few rows, where a launch of NCCL or a copy
// engine takes longer than the bytes.
// Idea: each block stores its share of this rank's rows in the memory of every rank, its own too, and adds one to a word
//   there that counts this rank's blocks. The first block then waits until the other ranks' words here say the same. So
//   one launch moves the rows, says so, and waits; the host has nothing to count.

#include "include/ptx/dependents.cuh"

struct Gather {
  long long to[RANKS];       // addresses: where this rank's rows go, in the memory of each rank
  long long arrived[RANKS];  // of the word of each rank that counts this rank's blocks
  long long words;           // here: of the words that count the other ranks' blocks, by rank
  long long expected;        // here: of what they will have counted when the call before has ended
  long long released;        // here: of a word that is not 0 once a rank has been given up
  int quads, world, rank, unused;
};

__device__ __forceinline__ unsigned acquire(long long address) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
all_gather(const float* __restrict__ A, const float* __restrict__ B, const float* C0, float* C, float* partial,
           const __grid_constant__ Gather g) {
  previous_kernel_has_ended();
  const int4* const from = reinterpret_cast<const int4*>(A);
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < g.quads; i += gridDim.x * THREADS) {
    const int4 quad = from[i];
#pragma unroll
    for (int rank = 0; rank < RANKS; ++rank)
      if (rank < g.world) reinterpret_cast<int4*>(g.to[rank])[i] = quad;
  }
  __syncthreads();  // all of the block's stores come before what its threads say below
  const int other = threadIdx.x;
  if (other < g.world && other != g.rank)
    asm volatile("fence.acq_rel.sys;\nred.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(g.arrived[other]) : "memory");
  if (blockIdx.x > 0) return;
  unsigned* const expected = reinterpret_cast<unsigned*>(g.expected);
  const unsigned wanted = *expected + gridDim.x;
  if (other < g.world && other != g.rank)
    while (static_cast<int>(acquire(g.words + 4 * other) - wanted) < 0 && acquire(g.released) == 0) {}
  __syncthreads();
  if (threadIdx.x == 0) *expected = wanted;
}
