// Two warpgroups that multiply a tile's products on the tensor cores, 64 rows by BN columns each.
#include "include/split/split_panel.cuh"

constexpr int GROUPS = 2;                        // warpgroups that multiply,
constexpr int COMPUTE = 128 * GROUPS;            // their threads
constexpr bool TWICE = ACCUMULATIONS == 2;       // products of first planes are added up twice a chunk,
constexpr bool FOUR_TIMES = ACCUMULATIONS == 4;  // or four times, each wgmma by itself
static_assert((BM == ROWS || ALTERNATE) && BN <= ROWS, "64 or 128 rows, and one panel of B");

// body(work, s) for each segment of a block's items of work, each of which touches two tiles at most. `work`: twice the
// item, and which of the two.
template <class Body>
__device__ __forceinline__ void for_each_work(const Gemm& g, int chunks, int items, Body body) {
  const int blocks = gridDim.x / CLUSTER;
  for (int work = blockIdx.x / CLUSTER * 2; work < 2 * items; work += work % 2 ? 2 * blocks - 1 : 1) {
    Segment s;
    if (segment_of(g, chunks, work / 2, work % 2, s)) body(work, s);
  }
}

// The chunks of all of them.
__device__ __forceinline__ int chunks_left(const Gemm& g, int chunks, int items) {
  int left = 0;
  for (int item = blockIdx.x / CLUSTER; item < items; item += gridDim.x / CLUSTER)
    left += item < g.whole ? chunks : static_cast<int>(part_begin(g, item - g.whole + 1) -
                                                       part_begin(g, item - g.whole));
  return left;
}

// The warpgroups take turns at the tensor cores. Without, the hardware deals instructions evenly, both end at the
// same time and the tensor cores wait while both add up.
__device__ __forceinline__ void take_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(COMPUTE) : "memory");
}
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(3 - group), "n"(COMPUTE) : "memory");
}
