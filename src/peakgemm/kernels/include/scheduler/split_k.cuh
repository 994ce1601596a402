// Which tile, and which range of its k-steps, a block computes.
#include "include/epilogue/cluster_split_k.cuh"
#include "include/scheduler/handed.cuh"

// What block `item` computes. A block that has one tile whole (ONE_TILE without SPLIT_K) is not asked which range of its k-steps
// it has, which costs 1 %; a loop over more tiles than one costs the smallest products 6 %.
__device__ __forceinline__ bool work_of(const Gemm& g, int steps, int item, int half, Segment& s) {
  if constexpr (HANDED) return handed_segment(g, steps, item, half, s);
  if constexpr (!ONE_TILE || SPLIT_K) return segment_of(g, steps, item, half, s);
  if constexpr (CLUSTER_SPLIT_K) {
    const int log = cluster_log(), rank = cluster_block(), up = cluster_blocks() - 1;
    s = {item >> log, (steps * rank + up) >> log, (steps * (rank + 1) + up) >> log, -1};
  } else {
    s = {item, 0, steps, -1};
  }
  return half == 0;
}

// body(s, item) for each segment of each item of this block's.
template <typename Body>
__device__ __forceinline__ void for_each_segment(const Gemm& g, int steps, int items, Body body) {
  for (int item = blockIdx.x; ONE_TILE ? item == blockIdx.x : item < items; item += ONE_TILE ? 1 : gridDim.x)
#pragma unroll 1
    for (int half = 0; half < (ONE_TILE ? 1 : 2); ++half) {
      Segment s;
      if (work_of(g, steps, item, half, s)) body(s, item);
    }
}
